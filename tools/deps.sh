#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Sees to it that the named packages are there: installs them as root, else says how to. bpftool has a
# package of its own on Debian; Ubuntu has it in linux-tools. Services that come with them are neither
# started now nor at the next boot.
set -eu
command -v dpkg-query >/dev/null || exit 0 # not Debian: the compiler will say what is missing

have() {
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing=
for package in "$@"; do
	have "$package" || missing="$missing $package"
done
command -v gcc >/dev/null && missing=$(printf '%s' "$missing" | sed 's/ gcc\b//')
command -v make >/dev/null && missing=$(printf '%s' "$missing" | sed 's/ make\b//')
command -v python3 >/dev/null && missing=$(printf '%s' "$missing" | sed 's/ python3\( \|$\)/\1/')
python3 -m pip --version >/dev/null 2>&1 && missing=$(printf '%s' "$missing" | sed 's/ python3-pip\b//')
if ! command -v bpftool >/dev/null && ! [ -x /usr/sbin/bpftool ]; then
	if grep -qi ubuntu /etc/os-release; then
		missing="$missing linux-tools-common linux-tools-generic"
	else
		missing="$missing bpftool"
	fi
fi
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
	echo "missing packages: apt-get install$missing" >&2
	exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive

# Packages ask it before they start anything.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	trap 'rm -f $policy' EXIT
	trap 'exit 1' HUP INT TERM
	printf '#!/bin/sh\n# lien/tools/deps.sh, while it installs packages\nexit 101\n' >$policy
	chmod 755 $policy
fi
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 || {
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# Those that were there before stay as they were.
for package in $missing; do
	case $package in
	openssh-server) service=ssh ;;
	munge | slurmctld | slurmd) service=$package ;;
	*) continue ;;
	esac
	if command -v systemctl >/dev/null; then
		systemctl disable "$service" >/dev/null 2>&1 || true
	else
		update-rc.d "$service" disable >/dev/null 2>&1 || true
	fi
done
