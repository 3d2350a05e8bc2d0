#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Sees to it that the named packages are there: installs them as root, else says how to. bpftool has a
# package of its own on Debian; Ubuntu has it in linux-tools.
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
command -v python3 >/dev/null && missing=$(printf '%s' "$missing" | sed 's/ python3\b//')
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
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 || {
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
