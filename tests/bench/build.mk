# SPDX-License-Identifier: BSD-2-Clause
# make bench: what lien costs, on the software driver; BENCH_ARGS='--json FILE' keeps the figures.

bench: all
	$(Q)BUILD=$(BUILD) CC='$(CC)' $(PYTHON) tests/bench/bench.py $(BENCH_ARGS)
