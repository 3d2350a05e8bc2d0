# SPDX-License-Identifier: BSD-2-Clause
# libFuzzer targets; included by tests/build.mk.
#
# make fuzz             each of them for FUZZ_SECONDS (600): fails at the first finding, whose input
#                       stays in $(BUILD)/fuzz/NAME.d/
# make fuzz-targets     builds them, if this clang has what it takes
# make fuzz-links       links them with what everything else is made of: part of `make check`, so that
#                       they do not come apart unnoticed
#
# A tests/fuzz/fuzz_NAME.c becomes $(BUILD)/fuzz/fuzz_NAME, linked with the agent's pure part and what
# FUZZ_SRCS_fuzz_NAME adds.

FUZZ		:= $(BUILD)/fuzz
FUZZ_SECONDS	?= 600
FUZZ_NAMES	:= $(patsubst tests/fuzz/%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
FUZZ_TARGETS	:= $(FUZZ_NAMES:%=$(FUZZ)/%)
FUZZ_FLAGS	:= -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
	-fno-omit-frame-pointer
# What serves connections and takes orders and answers; the rest of the agent is fake_agent.c.
FUZZ_AGENT	:= tests/fuzz/fake_agent.c $(LIBRARIES) $(addprefix agent/, \
	core/agent.c server/server.c server/address.c link/link.c \
	$(addprefix orders/, connect.c offload.c orders.c prepare.c restore.c) \
	join/attach.c join/detach.c join/job.c join/join.c join/walks.c \
	daemon/move.c daemon/requests.c daemon/select.c daemon/status.c quiesce/elsewhere.c)

FUZZ_SRCS_fuzz_client	 := $(FUZZ_AGENT)
FUZZ_SRCS_fuzz_replies	 := $(FUZZ_AGENT)
FUZZ_LD_fuzz_client	 := -Wl,--wrap=poll,--wrap=getsockopt,--wrap=lien_maps_read
FUZZ_LD_fuzz_replies	 := -Wl,--wrap=poll,--wrap=getsockopt,--wrap=lien_maps_read
FUZZ_SRCS_fuzz_orders	 := $(filter-out %/serve.c %/driver.c %/names.c control/tag/% control/ask/%,$(CONTROL_ALONE))
FUZZ_LD_fuzz_orders	 := -Wl,--wrap=poll,--wrap=madvise
FUZZ_SRCS_fuzz_symbols	 := loader/discover/elf_symbols.c

$(FUZZ)/obj/%.o: %.c
	$(call say,FUZZ CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CLANG) $(FUZZ_FLAGS) $(LIEN_CFLAGS) -MMD -MP -c $< -o $@

define fuzz_target
$(FUZZ)/$(1): $(FUZZ)/obj/tests/fuzz/$(1).o \
		$(sort $(PURE_SRCS:%.c=$(FUZZ)/obj/%.o) $(FUZZ_SRCS_$(1):%.c=$(FUZZ)/obj/%.o))
	$$(call say,LINK,$$@)
	$$(Q)$$(CLANG) $$(FUZZ_FLAGS) -pthread $(FUZZ_LD_$(1)) -o $$@ $$^ $(TEST_LIBS) \
		-lelf -l:libiberty.a -ldl
endef
$(foreach name,$(FUZZ_NAMES),$(eval $(call fuzz_target,$(name))))

define fuzz_link
$(TESTS)/fuzz/$(1): $(BUILD)/obj/tests/fuzz/$(1).o $(sort $(patsubst $(BUILD)/obj/control/%, \
		$(BUILD)/obj/pic/control/%,$(FUZZ_SRCS_$(1):%.c=$(BUILD)/obj/%.o))) $(PURE)
	$$(call say,LINK,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CFLAGS) -pthread -Wl,--defsym=main=LLVMFuzzerTestOneInput $(FUZZ_LD_$(1)) -o $$@ $$^ \
		$$(LDFLAGS) $(TEST_LIBS) -lelf -l:libiberty.a -ldl
endef
$(foreach name,$(FUZZ_NAMES),$(eval $(call fuzz_link,$(name))))

# Debian has libFuzzer in libclang-rt-VERSION-dev.
FUZZ_RUNTIME = $(shell echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | \
	$(CLANG) -fsanitize=fuzzer,address -w -x c - -o /dev/null 2>/dev/null && echo yes)

.PHONY: fuzz fuzz-links fuzz-targets
fuzz-links: $(FUZZ_NAMES:%=$(TESTS)/fuzz/%)

fuzz-targets:
	$(Q)[ -z "$(FUZZ_RUNTIME)" ] || $(MAKE) --no-print-directory $(FUZZ_TARGETS)

fuzz: fuzz-targets
	$(Q)for name in $(FUZZ_NAMES); do \
		BUILD=$(BUILD) tests/fuzz/run.sh $$name $(FUZZ_SECONDS) || exit 1; done

-include $(shell find $(FUZZ)/obj -name '*.d' 2>/dev/null)
