#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Plain and stream-ordered memory natively, under `lien run` without an agent, and with one: us of a
# pair of calls, peak of the device. On a machine with a GPU: tests/bench/pools.sh [LIEN [PROG_POOLS]].
set -eu
lien=${1:-build/lien} prog=${2:-build/tests/bench/prog_pools}

each() {
	printf '%-26s' "$*"
	for with in "" "$lien run --"; do
		$with "$prog" "$@" | tr '\n' '|'
	done
	"$lien" agent >/tmp/pools-agent.log 2>&1 &
	agent=$!
	until "$lien" status >/dev/null 2>&1; do sleep 0.1; done
	"$lien" run -- "$prog" "$@"
	kill $agent
	wait $agent || :
}

echo "us of a pair, MiB at most: natively | lien run | with an agent"
for bytes in 256 65536 2097152 67108864 1073741824; do each plain 1 $bytes 300; done
each pair 1 1048576 20000
each pair 4 1048576 20000
each pair 1 67108864 5000
each sync 1 1048576 3000
each sync 4 1048576 3000
for streams in 1 4 16; do each live $streams 104857600 16000; done
