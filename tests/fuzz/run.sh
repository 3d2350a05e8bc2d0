#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Runs one fuzz target with its committed corpus.
#
#   tests/fuzz/run.sh NAME SECONDS    what it learns is kept in $BUILD/fuzz/NAME.d/corpus
#   tests/fuzz/run.sh NAME short      the corpus and some thousand inputs more; nothing is kept
#
# A finding's input stays in $BUILD/fuzz/NAME.d/. Exit status 77: the target could not be built here.
set -u
cd "$(dirname "$0")/../.." || exit 1
name=$1 for=$2
target=${BUILD:-build}/fuzz/$name
work=$target.d
seeds=tests/fuzz/corpus/$name

[ -x "$target" ] || { echo "needs clang with libFuzzer (Debian: libclang-rt-14-dev)" && exit 77; }
[ -d "$seeds" ] || { echo "no corpus in $seeds" && exit 1; }
mkdir -p "$work/corpus"
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

# fuzz ARGUMENT...
fuzz() {
	"$target" -artifact_prefix="$work/" -timeout=60 -rss_limit_mb=2048 -max_len=8192 -seed=1 \
		-print_final_stats=1 "$@"
}

if [ "$for" = short ]; then
	runs=3000
	[ "$name" != fuzz_symbols ] || runs=50000 # ten times as fast as the others
	fresh=$(mktemp -d) || exit 1
	fuzz -runs="$runs" "$fresh" "$seeds"
	status=$?
	rm -rf "$fresh"
else
	fuzz -max_total_time="$for" "$work/corpus" "$seeds" 2>"$work/log"
	status=$?
	grep -E '^stat::|DONE|ERROR|SUMMARY|Test unit|runtime error' "$work/log"
fi
if [ "$status" != 0 ]; then
	echo "$name: a finding (exit status $status): its input is in $work"
	echo "0 passed, 1 failed"
	exit 1
fi
echo "1 passed, 0 failed"
