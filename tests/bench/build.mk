# SPDX-License-Identifier: BSD-2-Clause
# make bench: what lien costs, on the software driver; BENCH_ARGS='--json FILE' keeps the figures.

GRAPH_BENCHES := $(addprefix $(TESTS)/bench/, scale aliases)

$(GRAPH_BENCHES): $(TESTS)/bench/%: $(BUILD)/obj/tests/bench/%.o $(PURE)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(SANITIZE) -o $@ $^ $(LDFLAGS) -l:libjansson.a -lz

BENCH_NCCL := $(TESTS)/bench/libnccl.so.2

$(BENCH_NCCL): tests/bench/nccl.c
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LIEN_CFLAGS) $(CFLAGS) -fPIC -shared -Wl,-soname,libnccl.so.2 -Wl,--build-id -o $@ $<

# They go along to machines with GPUs; they need libc alone.
BENCH_PROGS := $(addprefix $(TESTS)/bench/, prog_peers prog_pools)

$(BENCH_PROGS): $(TESTS)/bench/%: tests/bench/%.c
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LIEN_CFLAGS) $(CFLAGS) -MMD -MP -o $@ $< -ldl

integration-tests: $(BENCH_PROGS)

bench: all $(GRAPH_BENCHES) $(BENCH_NCCL)
	$(Q)BUILD=$(BUILD) CC='$(CC)' $(PYTHON) tests/bench/bench.py $(BENCH_ARGS)

# How offload and restore grow with ranks and communicators; BENCH_ARGS='--sizes 8x32'.
bench-ranks: all integration-tests
	$(Q)BUILD=$(BUILD) CC='$(CC)' $(PYTHON) tests/bench/ranks.py $(BENCH_ARGS)

# What the coordination of many nodes costs, with simulated agents; BENCH_ARGS='--nodes 2 16 128'.
bench-nodes: all
	$(Q)BUILD=$(BUILD) $(PYTHON) tests/bench/nodes.py $(BENCH_ARGS)

-include $(BENCH_PROGS:=.d)
-include $(GRAPH_BENCHES:$(TESTS)/%=$(BUILD)/obj/tests/%.d)
