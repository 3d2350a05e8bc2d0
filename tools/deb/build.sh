#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Makes the Debian packages of what `make install` put into a folder; `make deb` calls it.
#
#   tools/deb/build.sh STAGE VERSION OUT
#
# STAGE has the files for PREFIX=/usr. Each file of it goes into one package; one that no package takes
# is an error. The versions of glibc in `control` are those that tests/check_symbols.sh keeps to: what
# dpkg-shlibdeps says of it is what this machine's headers would allow. It finds what lien-exporter needs,
# which is recommended only, since all else works without. Needs dpkg-dev, no network and no root.
set -eu
stage=$(realpath "$1") version=$2 out=$3
top=$(realpath "$(dirname "$0")/../..")
mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d "$out/deb.XXXXXX")
trap 'rm -rf "$work"' EXIT
umask 022
cd "$work"
mkdir debian
cp "$top/tools/deb/control" debian/control
: "${SOURCE_DATE_EPOCH:=$(git -C "$top" log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH
cat > debian/changelog <<END
lien ($version) unstable; urgency=medium

  * Version $version.

 -- the lien authors <lien@localhost>  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END

# move PACKAGE PATH...: the paths are relative to /usr; what is there of them
move() {
	package=$1
	shift
	for path in "$@"; do
		[ -e "$stage/$path" ] || [ -L "$stage/$path" ] || continue
		mkdir -p "$package/usr/$(dirname "$path")"
		mv "$stage/$path" "$package/usr/$path"
	done
}

# Debian's zsh has what packages bring in a folder of its own.
mv "$stage/share/zsh/site-functions" "$stage/share/zsh/vendor-completions"
move lien-control lib/lien/liblien-control.so lib/lien/torch_memory_saver lib/python3
move liblien-dev include lib/liblien.a lib/pkgconfig
move lien bin share lib/lien lib/systemd
rest=$(find "$stage" ! -type d)
[ -z "$rest" ] || { echo "$0: no package has $rest" >&2 && exit 1; }

find lien lien-control -type f \( -path '*/bin/*' -o -name '*.so*' \) | while read -r file; do
	case $file in
	*.so*) strip --strip-unneeded "$file" && chmod 644 "$file" ;;
	*) strip "$file" ;;
	esac
done
strip --strip-debug -D liblien-dev/usr/lib/liblien.a
find lien/usr/share/man -type f -exec gzip -9n {} +

for package in lien lien-control liblien-dev; do
	doc=$package/usr/share/doc/$package
	mkdir -p "$doc" "$package/DEBIAN"
	{
		printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n'
		printf 'Upstream-Name: lien\n\nFiles: *\nCopyright: 2026, the lien authors\n'
		printf 'License: BSD-2-Clause\n'
		sed -n '/^Redistribution/,$ { s/^$/./; s/^/ /p }' "$top/LICENSE"
	} > "$doc/copyright"
	gzip -9nc debian/changelog > "$doc/changelog.gz"
	for script in postinst prerm postrm; do
		[ ! -f "$top/tools/deb/$package.$script" ] ||
			install -m 755 "$top/tools/deb/$package.$script" "$package/DEBIAN/$script"
	done
	if [ -e "$package/usr/bin/lien-exporter" ]; then
		dpkg-shlibdeps --warnings=0 -xlibc6 -Tdebian/substvars -dRecommends -e"$package/usr/bin/lien-exporter"
	fi
	touch debian/substvars
	(cd "$package" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$package/DEBIAN/md5sums"
	dpkg-gencontrol -Tdebian/substvars -p"$package" -P"$package" -v"$version" -fdebian/files 2>/dev/null
	rm -f debian/substvars
	dpkg-deb --root-owner-group --uniform-compression -Zxz -b "$package" "$out" >/dev/null
	echo "$out/${package}_${version}_amd64.deb"
done
