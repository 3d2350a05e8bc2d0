#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# lien must start on glibc 2.35, liblien-control.so on 2.31, and neither may need a library that libc
# does not bring along: tests/check_symbols.sh LIEN CONTROL
set -u
passed=0
failed=0

# verdict NAME WHY: failed when there is a reason
verdict() {
	if [ -n "$2" ]; then
		failed=$((failed + 1))
		echo "FAILED $1: $2"
	else
		passed=$((passed + 1))
		echo "ok $1"
	fi
}

# check FILE NEWEST: symbol versions up to GLIBC_NEWEST, and libc's own libraries alone
check() {
	name=$(basename "$1")
	symbols=$(objdump -T "$1") || symbols=
	why=
	[ -n "$symbols" ] || why="objdump -T cannot read it"
	for version in $(echo "$symbols" | sed -n 's/.*GLIBC_\([0-9][0-9.]*\).*/\1/p' | sort -uV); do
		newest=$(printf '%s\n' "$version" "$2" | sort -V | tail -n 1)
		[ "$newest" = "$2" ] || why="$why GLIBC_$version: $(echo "$symbols" |
			sed -n "s/.*GLIBC_$version)\{0,1\} *//p" | tr '\n' ' ')"
	done
	[ -z "$(echo "$symbols" | grep GLIBC_PRIVATE)" ] || why="$why GLIBC_PRIVATE"
	verdict "$name-glibc-$2" "$why"
	why=
	for library in $(objdump -p "$1" | awk '$1 == "NEEDED" { print $2 }'); do
		case $library in
		libc.so.6 | ld-linux-x86-64.so.2 | libm.so.6 | libpthread.so.0 | libdl.so.2) ;;
		*) why="$why $library" ;;
		esac
	done
	verdict "$name-needed" "${why:+needs$why}"
}

check "$1" 2.35
check "$2" 2.31
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
