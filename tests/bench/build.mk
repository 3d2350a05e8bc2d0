# SPDX-License-Identifier: BSD-2-Clause
# make bench: what lien costs, on the software driver; BENCH_ARGS='--json FILE' keeps the figures.

GRAPH_BENCHES := $(addprefix $(TESTS)/bench/, scale aliases)

$(GRAPH_BENCHES): $(TESTS)/bench/%: $(BUILD)/obj/tests/bench/%.o $(PURE_OBJS)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(SANITIZE) -o $@ $^ $(LDFLAGS) -l:libjansson.a -lz

BENCH_NCCL := $(TESTS)/bench/libnccl.so.2

$(BENCH_NCCL): tests/bench/nccl.c
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LIEN_CFLAGS) $(CFLAGS) -fPIC -shared -Wl,-soname,libnccl.so.2 -Wl,--build-id -o $@ $<

bench: all $(GRAPH_BENCHES) $(BENCH_NCCL)
	$(Q)BUILD=$(BUILD) CC='$(CC)' $(PYTHON) tests/bench/bench.py $(BENCH_ARGS)

-include $(GRAPH_BENCHES:$(TESTS)/%=$(BUILD)/obj/tests/%.d)
