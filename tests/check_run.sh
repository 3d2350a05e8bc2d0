#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Tries run.sh on programs that are made up: what it counts as passed, failed and flaky.
set -u
cd "$(dirname "$0")/.." || exit 1
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
passed=0 failed=0

# program FIRST AGAIN: the only unit test there is. What it does at first, and when it runs again.
program() {
	rm -rf "$folder/tests" "$folder/ran"
	mkdir -p "$folder/tests/unit"
	{
		echo '#!/bin/sh'
		echo "if [ ! -e $folder/ran ]; then touch $folder/ran; $1; else $2; fi"
	} >"$folder/tests/unit/test_one"
	chmod +x "$folder/tests/unit/test_one"
}

# expect WHAT STATUS LINE [NAME=VALUE]: LINE is in what run.sh prints
expect() {
	what=$1 wanted=$2 line=$3
	shift 3
	said=$(env -u STRICT -u LONG -u AGAIN BUILD="$folder" JOBS=1 "$@" tests/run.sh unit 2>&1)
	status=$?
	if [ "$status" = "$wanted" ] && echo "$said" | grep -q -x -e "$line"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAILED $what: exit status $status, expected $wanted and the line \"$line\":"
		echo "$said" | sed 's/^/    /'
	fi
}

ok='echo 3 passed, 0 failed'
bad='echo FAILED case: why; echo 2 passed, 1 failed; exit 1'
skip='echo skipped: it needs root; exit 77'

program "$ok" "$bad" && expect passes 0 '3 passed, 0 failed'
program "$bad" "$bad" && expect fails 1 '2 passed, 1 failed'
program "$bad" "$ok" && expect flaky 0 'flaky   unit/test_one (case: why)'
program "$bad" "$ok" && expect counted 0 '1 flaky'
program "$bad" "$ok" && expect counts_of_the_second_run 0 '3 passed, 0 failed'
program "$bad" "$ok" && expect strict 1 '2 passed, 1 failed' STRICT=1
program "$bad" "$skip" && expect skipped_the_second_time 1 '2 passed, 1 failed'
program "$bad" 'exit 78' && expect nothing_the_second_time 1 '2 passed, 1 failed'
program "$bad" 'kill -9 $$' && expect dies_the_second_time 1 '2 passed, 1 failed'
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
