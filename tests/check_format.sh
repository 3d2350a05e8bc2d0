#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Is all C as .clang-format says? Versions differ in their opinion: 14 decides.
set -u
for format in clang-format-14 clang-format; do
	case $("$format" --version 2>/dev/null) in
	*" version 14."*) break ;;
	esac
	format=
done
[ -n "$format" ] || { echo "needs clang-format 14" && exit 77; }
find agent bpf control include loader tests tools -name '*.[ch]' -print0 | sort -z |
	xargs -0 "$format" --dry-run -Werror || exit 1
echo "1 passed, 0 failed"
