#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Runs the tests that the build made and sums them up; the last line is "N passed, N failed", with
# ", N skipped" if any were. `make check` and `make check-long` call it.
#
#   tests/run.sh [unit|asan|valgrind|integration|smoke|fuzz|kernels|static]...
#
# LONG=1: the long cases in place of the others, strictly, and with a seed of this run's own; LIEN_SEED repeats it.
# By default that runs kernels, integration, unit, asan, valgrind and fuzz; without LONG, integration, unit and static.
#
# A test program is one of cmocka's, or prints "N passed, N failed[, N skipped]" as its last line; exit
# status 77 says that it cannot run here. Logs stay in $BUILD/tests/log, those of failures are shown.
# JOBS of them (more than there are processors, since they wait as well) run at a time: their agents do not see
# each other, but the kernel attaches and removes the probes of one after the other.
#
# A program that fails runs once more, alone. If it passes then, it is flaky: that is printed and counted, and
# fails nothing unless STRICT=1. When all parts have passed and nothing is uncommitted, $BUILD/tests/passed
# names the tree that did.
set -u
cd "$(dirname "$0")/.." || exit 1

BUILD=${BUILD:-build}
ASAN_BUILD=${ASAN_BUILD:-$BUILD/asan}
LIEN=${LIEN:-$BUILD/lien}
CONTROL=${CONTROL:-$BUILD/liblien-control.so}
SOFTCUDA=${SOFTCUDA:-$BUILD/softcuda}
MAKE_RECORDING=${MAKE_RECORDING:-$BUILD/tests/integration/make_recording}
# The interpreter itself: a wrapper that looks for it (pyenv) costs as much as some tests.
PYTHON=$("${PYTHON:-python3}" -c "import sys; print(sys.executable)")
TEST_BIN=$BUILD/tests/integration
LOGS=$BUILD/tests/log
JOBS=${JOBS:-$((2 * $(nproc) + 1))}
LONG=${LONG:-}
if [ -n "$LONG" ]; then
	STRICT=1
	LIEN_SEED=${LIEN_SEED:-$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')}
	echo "LIEN_SEED=$LIEN_SEED"
	export LIEN_SEED
fi
export LONG BUILD LIEN CONTROL SOFTCUDA MAKE_RECORDING TEST_BIN

mkdir -p "$LOGS"

# What a log says: "PASSED FAILED SKIPPED". cmocka lists failures twice, so what did not end well is
# what was begun and neither passed nor was skipped; that way a crash counts, too.
count_cmocka() {
	awk '/^\[ RUN      \]/ { run++ }
	     /^\[       OK \]/ { ok++ }
	     /^\[  SKIPPED \] [^ ]+$/ && !seen[$NF]++ { skipped++ }
	     END { print ok + 0, run - ok - skipped, skipped + 0 }' "$1"
}

count_summary() {
	sed -n '$s/^\([0-9]*\) passed, \([0-9]*\) failed\(, \([0-9]*\) skipped\)\{0,1\}$/\1 \2 \4/p' "$1"
}

# The tree that is checked out, if nothing in it is uncommitted.
clean_tree() {
	[ -n "$(git status --porcelain 2>&1)" ] || git rev-parse 'HEAD^{tree}'
}

# first_failure LOG: "CASE: WHY", as the log has it
first_failure() {
	sed -n -e 's/^ *FAILED *//p' -e 's/^\[  FAILED  \] \([^0-9]\)/\1/p' "$1" | head -n 1 | cut -c 1-200
}

# busy FILE: the processor seconds of a shell's children, which `times` wrote
busy() {
	awk 'NR == 2 { split($1, u, /[ms]/); split($2, s, /[ms]/); printf "%d", 60 * (u[1] + s[1]) + u[2] + s[2] }' "$1"
}

# one NAME SECONDS COMMAND...		AGAIN=1: the second run
one() {
	name=$1 limit=$2
	shift 2
	log=$LOGS/$(echo "$name" | tr / -)${AGAIN:+.again}
	begin=$(date +%s)
	timeout -k 10 "$limit" "$@" >"$log.log" 2>&1 </dev/null
	status=$?
	times >"$log.times"
	took="$(($(date +%s) - begin)) s, $(busy "$log.times") s busy"
	if grep -q '^\[ RUN      \]' "$log.log"; then
		counts=$(count_cmocka "$log.log")
	else
		counts=$(count_summary "$log.log")
	fi
	# shellcheck disable=SC2086
	set -- ${counts:-0 0} 0
	ok=$1 bad=$2 left=$3 why=
	if [ "$status" = 78 ]; then # has no case of that kind, long or not
		echo "0 0 0" >"$log.counts"
		return
	elif [ "$status" = 77 ] && [ "$bad" = 0 ]; then
		[ "$left" != 0 ] || left=1
		why=": $(tail -n 1 "$log.log")"
	elif [ "$status" != 0 ] || [ -z "$counts" ]; then
		[ "$bad" != 0 ] || bad=1
		why=": exit status $status"
		[ "$status" != 124 ] && [ "$status" != 137 ] || why=": ran longer than $limit s"
		[ "$status" != 0 ] || why=": its last line does not say how many passed"
	elif [ "$ok$bad$left" = 000 ]; then
		bad=1 why=": no test in it"
	fi
	echo "$ok $bad $left" >"$log.counts"
	if [ "$bad" != 0 ]; then
		sed 's/^/    /' "$log.log" | grep -a -v -e '\[       OK \]' | tail -n 200
		echo "FAILED  $name ($ok passed, $bad failed, $took)$why"
	elif [ "$ok" = 0 ]; then
		echo "skipped $name$why"
	else
		rest=
		[ "$left" = 0 ] || rest=", $left skipped"
		echo "ok      $name ($ok passed$rest, $took)$why"
	fi
}

# draws COUNT: what sets how many random jobs a unit test draws; COUNT in make check-long
draws() {
	[ -z "$LONG" ] && echo "LIEN_SEQUENCES=100" || echo "LIEN_SEQUENCES=$1"
}

# What there is to run, a line for each: NAME SECONDS COMMAND...
list_unit() {
	for test in "$BUILD"/tests/unit/test_*; do
		[ ! -x "$test" ] || echo "unit/${test##*/} 600 env $(draws 2000) $test"
	done
}

list_asan() {
	options='env ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1'
	options="$options UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1"
	for test in "$ASAN_BUILD"/tests/unit/test_*; do
		[ ! -x "$test" ] || echo "asan/${test##*/} 600 $options $(draws 1000) $test"
	done
}

# Debian 12's valgrind does not know these system calls of theirs: openat2(), pidfd_open(), and the query of
# mappings; and a signal that a thread sends itself by rt_tgsigqueueinfo() never arrives there. They run under
# the sanitizers as well. So does what leaves a thread behind on purpose (jobs).
NO_VALGRIND="code jobs libraries link signal timeout untrusted"

list_valgrind() {
	for test in "$BUILD"/tests/unit/test_*; do
		case " $NO_VALGRIND " in
		*" ${test##*/test_} "*) continue ;;
		esac
		[ ! -x "$test" ] || echo "valgrind/${test##*/} 600 env LIEN_SEQUENCES=100" \
			"valgrind -q --fair-sched=try --leak-check=full --error-exitcode=9 $test"
	done
}

# Those that take longest begin first: then no core is idle at the end.
LONGEST="move_refused faults agent_journal adopt permissions python gate nccl_calls coordinate agent_arena cli lease"

list_integration() {
	if [ -n "$LONG" ]; then
		for test in tests/integration/test_*.py; do
			name=${test##*/}
			! grep -q -e long=True -e '^@long' "$test" || echo "integration/${name%.py} 3600 $PYTHON $test"
		done
		return
	fi
	for name in $LONGEST; do
		echo "integration/test_$name 1800 $PYTHON tests/integration/test_$name.py"
	done
	for test in "$TEST_BIN"/test_*; do
		[ ! -x "$test" ] || echo "integration/${test##*/} 600 $test"
	done
	for test in tests/integration/test_*.py; do
		name=${test##*/test_} name=${name%.py}
		case " $LONGEST " in
		*" $name "*) ;;
		*) echo "integration/test_$name 1800 $PYTHON $test" ;;
		esac
	done
}

list_smoke() {
	echo "integration/test_agent_live 1800 $PYTHON tests/integration/test_agent_live.py"
}

list_fuzz() {
	for target in tests/fuzz/fuzz_*.c; do
		name=$(basename "$target" .c)
		echo "fuzz/${name#fuzz_} 300 tests/fuzz/run.sh $name short"
	done
}

list_kernels() {
	echo "kernels 1500 $PYTHON tests/kernels/check_kernels.py"
}

list_static() {
	echo "run 600 tests/check_run.sh"
	echo "symbols 600 tests/check_symbols.sh $LIEN $CONTROL"
	echo "format 600 tests/check_format.sh"
	echo "seeds 600 tests/check_seeds.sh"
	echo "layers 600 $PYTHON tests/check_layers.py"
}

if [ "${1:-}" = one ]; then
	shift
	text=$(one "$@")
	echo "$text" # in one piece: others write as well
	exit 0
fi

whole=
if [ $# = 0 ] && [ -n "$LONG" ]; then
	set -- kernels integration unit asan valgrind fuzz
elif [ $# = 0 ]; then
	whole=1
	set -- integration unit static
fi
begun=$(date +%s)
tree=$(clean_tree)
rm -f "$LOGS"/*.counts "$LOGS"/*.again.log
[ -z "$whole" ] || rm -f "$BUILD/tests/passed"
for part in "$@"; do
	case $part in
	unit | asan | valgrind | integration | smoke | fuzz | kernels | static) "list_$part" ;;
	*) echo "usage: $0 [unit|asan|valgrind|integration|smoke|fuzz|kernels|static]..." >&2 && exit 2 ;;
	esac
done >"$LOGS/list" || exit
xargs -P "$JOBS" -L 1 "$0" one <"$LOGS/list"

ok=0 bad=0 left=0 flaky=0
while read -r line; do
	name=${line%% *} log=$LOGS/$(echo "${line%% *}" | tr / -)
	if [ ! -f "$log.counts" ]; then
		echo "FAILED  $name was not run to its end"
		bad=$((bad + 1))
		continue
	fi
	read -r passed failed skipped <"$log.counts"
	if [ "$failed" != 0 ]; then
		echo "$name has failed; again, alone:"
		# shellcheck disable=SC2086
		AGAIN=1 "$0" one $line
		# Whoever keeps only the end of a long output finds the reason there.
		sed 's/^/    /' "$log.log" | grep -a -A 8 -e FAILED -e ERROR | cut -c 1-400 | tail -n 25
		read -r passes fails skips <"$log.again.counts"
		# What is skipped now, or has no case, does not make up for a failure.
		if [ "$fails" = 0 ] && [ "$passes" != 0 ]; then
			echo "flaky   $name ($(first_failure "$log.log"))"
			flaky=$((flaky + 1))
			[ -n "${STRICT:-}" ] || passed=$passes failed=0 skipped=$skips
		fi
	fi
	ok=$((ok + passed)) bad=$((bad + failed)) left=$((left + skipped))
done <"$LOGS/list"

rest=
[ "$left" = 0 ] || rest=", $left skipped"
[ "$flaky" = 0 ] || echo "$flaky flaky"
echo "in $(($(date +%s) - begun)) s; logs in $LOGS"
if [ "$bad" = 0 ] && [ "$ok" != 0 ] && [ -n "$whole" ] && [ -n "$tree" ] && [ "$tree" = "$(clean_tree)" ]; then
	echo "$tree" >"$BUILD/tests/passed"
fi
echo "$ok passed, $bad failed$rest"
[ "$bad" = 0 ] && [ "$ok" != 0 ]
