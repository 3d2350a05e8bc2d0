# SPDX-License-Identifier: BSD-2-Clause
# make bench: what lien costs, on the software driver; BENCH_ARGS='--json FILE' keeps the figures.

BENCH_NCCL := $(TESTS)/bench/libnccl.so.2

$(BENCH_NCCL): tests/bench/nccl.c
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LIEN_CFLAGS) $(CFLAGS) -fPIC -shared -Wl,-soname,libnccl.so.2 -Wl,--build-id -o $@ $<

bench: all $(BENCH_NCCL)
	$(Q)BUILD=$(BUILD) CC='$(CC)' $(PYTHON) tests/bench/bench.py $(BENCH_ARGS)
