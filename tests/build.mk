# SPDX-License-Identifier: BSD-2-Clause
# Tests; included by the top Makefile, which defines BUILD, the flags and PURE_SRCS.
#
# make check            the gate: what needs neither a GPU nor long: tests/run.sh
# make check-long       the rest, with fresh seeds: whole fault matrices, chaos, many nodes, packages, other kernels
# make chaos            tests/integration/chaos.py for CHAOS_STEPS steps; CHAOS_SEED repeats its choices
# make chaos-nodes      tests/integration/chaos_nodes.py, likewise: a job on several nodes
# make check-unit       the unit tests alone
# make check-asan       the unit tests, built with AddressSanitizer and UBSan
# make check-valgrind   the unit tests under valgrind
# make check-kernels    Debian's kernels 6.1 and 6.12 under qemu: tests/kernels/check_kernels.py. KERNELS names
#                       some of them; KERNEL_IMAGES, kernels of other origin to be tried instead
#
# A tests/unit/test_NAME.c becomes $(BUILD)/tests/unit/test_NAME, linked with the agent's pure part and
# what UNIT_SRCS_test_NAME and UNIT_LIBS_test_NAME add. A tests/integration/prog_NAME.c becomes
# $(BUILD)/tests/integration/prog_NAME, linked with the software driver and PROG_SRCS_prog_NAME.

TESTS	   := $(BUILD)/tests
TEST_LIBS  := -lcmocka -l:libjansson.a -lz
UNIT_NAMES := $(patsubst tests/unit/%.c,%,$(sort $(wildcard tests/unit/test_*.c)))
# A sanitizer would add to the basic blocks that it counts.
ifneq ($(SANITIZE),)
UNIT_NAMES := $(filter-out test_steps,$(UNIT_NAMES))
endif

# What loader/discover/elf_symbols.c needs.
ELF_LIBS  := -lelf -l:libiberty.a
# Reading files that are not to be trusted, and what is in them.
UNTRUSTED := $(addprefix loader/discover/, status.c timeout.c untrusted.c)
LIBRARIES := $(UNTRUSTED) $(addprefix loader/discover/, elf_symbols.c libraries.c)
INJECT	  := $(LIBRARIES) $(sort $(wildcard loader/inject/*.c))
# The control library without what looks into its process (tests/unit/no_translate.h).
CONTROL_ALONE := $(filter-out $(addprefix control/, start.c driver/cached.c driver/genuine.c driver/interpose.c \
	driver/translate.c nccl/%.c plain/%.c tms/%.c), $(CONTROL_SRCS))

UNIT_SRCS_test_arena	     := $(CONTROL_ALONE)
UNIT_LIBS_test_arena	     := -Wl,--wrap=syscall
UNIT_SRCS_test_calls	     := $(addprefix loader/, probes/calls.c probes/functions.c discover/elf_symbols.c)
UNIT_LIBS_test_calls	     := $(ELF_LIBS) -rdynamic
UNIT_SRCS_test_client	     := tools/cli/client.c
UNIT_SRCS_test_control	     := $(filter-out control/orders/restore.c,$(CONTROL_ALONE))
UNIT_SRCS_test_elf_symbols   := loader/discover/elf_symbols.c
UNIT_LIBS_test_elf_symbols   := $(ELF_LIBS)
UNIT_SRCS_test_functions     := loader/discover/elf_symbols.c
UNIT_LIBS_test_functions     := $(ELF_LIBS)
UNIT_SRCS_test_gate	     := $(addprefix agent/quiesce/, gate.c gate_make.c)
UNIT_SRCS_test_gate_links    := loader/probes/gate_links.c
UNIT_LIBS_test_gate_links    := -l:libbpf.a -lelf -Wl,--wrap=clock_gettime -Wl,--wrap=bpf_map_lookup_elem
UNIT_SRCS_test_heap	     := control/plain/heap.c
UNIT_LIBS_test_host	     := -Wl,--wrap=fopen
UNIT_SRCS_test_inject_choice := $(filter-out loader/inject/inject.c,$(INJECT))
UNIT_LIBS_test_inject_choice := $(ELF_LIBS)
UNIT_SRCS_test_items	     := control/memory/items.c
UNIT_SRCS_test_jobs	     := agent/core/jobs.c
UNIT_SRCS_test_libraries     := $(LIBRARIES)
UNIT_LIBS_test_libraries     := $(ELF_LIBS) -Wl,--wrap=lien_untrusted_stat
UNIT_SRCS_test_link	     := $(UNTRUSTED) agent/link/link.c
UNIT_SRCS_test_code	     := $(LIBRARIES) loader/probes/code.c
UNIT_LIBS_test_code	     := $(ELF_LIBS)
UNIT_SRCS_test_make_link     := loader/probes/make_link.c
UNIT_SRCS_test_names	     := control/driver/names.c
UNIT_SRCS_test_quiesce	     := $(addprefix agent/quiesce/, by_comm.c elsewhere.c gate.c others.c quiesce.c \
	standings.c)
UNIT_LIBS_test_quiesce	     := -Wl,--wrap=fopen
UNIT_SRCS_test_ras_tcp	     := $(UNTRUSTED) agent/join/ras_ask.c
UNIT_SRCS_test_replay_order  := $(REPLAY_SCRIPT_SRCS)
UNIT_SRCS_test_replay_script := $(REPLAY_SCRIPT_SRCS)
UNIT_SRCS_test_serve	     := $(filter-out control/orders/serve.c,$(CONTROL_ALONE))
UNIT_LIBS_test_serve	     := -Wl,--wrap=poll
UNIT_SRCS_test_signal	     := control/driver/thread.c
UNIT_SRCS_test_symbols	     := loader/discover/elf_symbols.c
UNIT_LIBS_test_symbols	     := $(ELF_LIBS)
UNIT_SRCS_test_text	     := $(sort $(wildcard tools/text/*.c) agent/graph/nearest.c)
UNIT_SRCS_test_timeout	     := $(addprefix loader/discover/, status.c timeout.c)
UNIT_SRCS_test_translate     := control/memory/handles.c \
	$(addprefix control/driver/, gate.c genuine.c names.c \
	watchdog.c)
UNIT_LIBS_test_uprobe	     := -l:libbpf.a -lelf
UNIT_SRCS_test_untrusted     := $(UNTRUSTED)

# The two headers cannot be included together: ours goes into a file of its own, its prototypes into
# one that the compiler reads behind the real cuda.h.
ifeq ($(wildcard $(CUDA_HOME)/include/cuda.h),)
UNIT_NAMES := $(filter-out test_cuda_abi test_cuda_handles,$(UNIT_NAMES))
else
UNIT_SRCS_test_cuda_abi := tests/unit/cuda_abi_ours.c
$(TESTS)/unit/cuda_abi_prototypes.h: include/lien/cuda_abi.h
	$(Q)mkdir -p $(@D)
	$(Q)sed -n '/^CUresult cu[A-Za-z]*/,/;$$/p' $< > $@
$(BUILD)/obj/tests/unit/test_cuda_abi.o: $(TESTS)/unit/cuda_abi_prototypes.h
$(BUILD)/obj/tests/unit/test_cuda_abi.o: LIEN_CFLAGS += -isystem $(CUDA_HOME)/include \
	-I$(TESTS)/unit -DLIEN_CUDA_ABI_PATH='"$(abspath include/lien/cuda_abi.h)"'
$(TESTS)/unit/cuda_preprocessed: $(CUDA_HOME)/include/cuda.h
	$(Q)mkdir -p $(@D)
	$(Q)echo '#include <cuda.h>' | $(CC) -E -P -D__CUDA_API_VERSION_INTERNAL \
		-I$(CUDA_HOME)/include -x c - > $@
$(BUILD)/obj/tests/unit/test_cuda_handles.o: $(TESTS)/unit/cuda_preprocessed
$(BUILD)/obj/tests/unit/test_cuda_handles.o: LIEN_CFLAGS += \
	-DLIEN_CUDA_PREPROCESSED='"$(abspath $(TESTS)/unit/cuda_preprocessed)"'
endif

UNIT_TESTS := $(UNIT_NAMES:%=$(TESTS)/unit/%)
# Half the time that they take to compile; what they test is compiled as it is for users.
$(BUILD)/obj/tests/%.o: LIEN_CFLAGS += -O0
PURE	   := $(TESTS)/pure.a

$(PURE): $(PURE_SRCS:%.c=$(BUILD)/obj/%.o)
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# Counts the basic blocks that run, for ratios: test_steps alone is linked with these.
STEPS_OBJS := $(PURE_SRCS:%.c=$(BUILD)/obj/steps/%.o)
$(BUILD)/obj/steps/%.o: %.c | $(BUILD)/.deps
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -O0 -fsanitize-coverage=trace-pc $(LIEN_CFLAGS) $(SANITIZE) -MMD -MP -c $< -o $@

define unit_test
$(TESTS)/unit/$(1): $(BUILD)/obj/tests/unit/$(1).o $(sort $(patsubst $(BUILD)/obj/control/%, \
		$(BUILD)/obj/pic/control/%,$(UNIT_SRCS_$(1):%.c=$(BUILD)/obj/%.o))) \
		$(if $(filter test_steps,$(1)),$(STEPS_OBJS),$(PURE))
	$$(call say,LINK,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CFLAGS) $$(SANITIZE) -pthread -o $$@ $$^ $$(LDFLAGS) $(UNIT_LIBS_$(1)) \
		$(TEST_LIBS) -ldl
endef
$(foreach name,$(UNIT_NAMES),$(eval $(call unit_test,$(name))))

# --- integration ---------------------------------------------------------------------------------
SOFTCUDA_TEST	   := $(TESTS)/integration/test_softcuda
SOFTCUDA_TEST_SRCS := $(sort $(wildcard tests/integration/test_softcuda*.c))
PROG_NAMES	   := $(patsubst tests/integration/%.c,%, \
	$(sort $(wildcard tests/integration/prog_*.c)))
PROGS		   := $(PROG_NAMES:%=$(TESTS)/integration/%)
MAKE_RECORDING	   := $(TESTS)/integration/make_recording
# One file with the functions of all three.
SOFTIBVERBS	   := $(addprefix $(TESTS)/integration/, libibverbs.so.1 libmlx5.so.1 libgdrapi.so.2)
SLOW_DISK	   := $(TESTS)/integration/slow_disk.so

# Calls the driver by names that it looks up itself, and needs libc only: it also runs on machines with GPUs.
SAME		   := $(TESTS)/integration/prog_same

PROG_SRCS_prog_train := $(addprefix tests/integration/, train_plan.c train_work.c)
PROG_SRCS_prog_driver := $(addprefix tests/integration/, driver_context.c driver_memory.c driver_pool.c \
	driver_process.c driver_verbs.c)
PROG_SRCS_prog_inject := $(INJECT)
PROG_LIBS_prog_inject := $(ELF_LIBS)
PROG_SRCS_prog_random := $(addprefix tests/integration/, random_contents.c random_handles.c \
	random_multicast.c random_plain.c random_pools.c)

$(SOFTCUDA_TEST): $(SOFTCUDA_TEST_SRCS:%.c=$(BUILD)/obj/%.o) $(SOFTCUDA)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -pthread -o $@ $^ -Wl,-rpath,$(abspath $(dir $(SOFTCUDA))) $(LDFLAGS) \
		-lcmocka -ldl

$(MAKE_RECORDING): $(addprefix $(BUILD)/obj/, tests/integration/make_recording.o \
		agent/journal/recording.o agent/graph/event_check.o)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -o $@ $^ $(LDFLAGS) -lz

$(SLOW_DISK): tests/integration/slow_disk.c
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LIEN_CFLAGS) $(CFLAGS) -fPIC -shared -o $@ $< $(LDFLAGS)

# Their functions begin with an endbr64, as on Ubuntu: probes sit behind that.
$(SOFTIBVERBS): tests/integration/softibverbs.c
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LIEN_CFLAGS) $(CFLAGS) -fcf-protection=branch -fPIC -fvisibility=hidden -fno-optimize-sibling-calls -shared \
		-pthread -Wl,-soname,$(@F) -o $@ $< $(LDFLAGS)

# The replay's libnccl, with more in it.
ALONENCCL      := $(TESTS)/integration/alone/libnccl.so.2
ALONENCCL_SRCS := tools/replay/softnccl.c $(addprefix tests/integration/softnccl_alone, .c _memory.c _traffic.c)
$(ALONENCCL): $(ALONENCCL_SRCS) tests/integration/softnccl_alone.h tools/replay/softnccl.h include/lien/cuda_abi.h
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LIEN_CFLAGS) -fPIC -shared -fvisibility=hidden \
		-fno-optimize-sibling-calls -fno-ipa-icf -Wl,-soname,libnccl.so.2 -Wl,--build-id \
		-o $@ $(ALONENCCL_SRCS) $(LDFLAGS) -ldl

# A libnccl whose ranks wait for each other. As in NCCL's own each function has two names; which of them
# comes first in the table of symbols is chance.
SYNCNCCL      := $(TESTS)/integration/sync/libnccl.so.2
SYNCNCCL_SRCS := $(addprefix tests/integration/softnccl_sync, .c _meet.c _memory.c _net.c _play.c _proxy.c _user.c)
SYNCNCCL_NAMES := $(shell sed -n 's/^EXPORT ncclResult_t \(nccl[A-Za-z]*\).*/\1/p' $(SYNCNCCL_SRCS))
# The same as of an earlier version, with less in it.
OLDNCCL	 := $(TESTS)/integration/sync-2.19/libnccl.so.2
$(OLDNCCL): SYNCNCCL_FLAGS := -DSYNC_VERSION=21903
$(OLDNCCL): SYNCNCCL_LACKS := ncclCommWindow% ncclAlltoAll
$(SYNCNCCL) $(OLDNCCL): $(SYNCNCCL_SRCS) tests/integration/softnccl_sync.h tests/integration/sync_nccl.h \
		include/lien/cuda_abi.h
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LIEN_CFLAGS) $(CFLAGS) $(SYNCNCCL_FLAGS) -fPIC -fvisibility=hidden \
		-fno-optimize-sibling-calls -fno-ipa-icf -shared -Wl,-soname,libnccl.so.2 -Wl,--build-id \
		-o $@ $(SYNCNCCL_SRCS) $(foreach name,$(filter-out $(SYNCNCCL_LACKS),$(SYNCNCCL_NAMES)), \
		-Wl,--defsym=p$(name)=$(name)) $(LDFLAGS) -ldl

# The software driver with all that CUDA 13.0's exports, and a function that nobody knows: what it does
# not have of its own does nothing.
NEXTCUDA := $(TESTS)/integration/next/libcuda.so.1
$(TESTS)/integration/next/next_calls.h: tests/data/cuda-13.0.gated $(SOFTCUDA)
	$(Q)mkdir -p $(@D)
	$(Q)nm -D $(SOFTCUDA) | awk 'NR == FNR { has[$$3]; next } !($$1 in has) { print "CALL(" $$1 ")" }' \
		- $< > $@

$(NEXTCUDA): tests/integration/softcuda_next.c $(TESTS)/integration/next/next_calls.h $(SOFTCUDA)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS) -I$(@D) -fno-ipa-icf -fPIC -shared -pthread -Wl,-soname,libcuda.so.1 \
		-Wl,-Bsymbolic -o $@ $< $(SOFTCUDA_OBJ) $(LDFLAGS)

# Libraries that come by the driver's functions in different ways.
LATE_DIR := $(TESTS)/integration/late
LATE	 := $(addprefix $(LATE_DIR)/liblate_, direct.so now.so dlsym.so proc.so proc_v1.so heap.so)
$(LATE_DIR)/liblate_direct.so:	LATE_FLAGS := -DLATE_DIRECT -Wl,-z,lazy
$(LATE_DIR)/liblate_now.so:	LATE_FLAGS := -DLATE_DIRECT -Wl,-z,relro,-z,now
$(LATE_DIR)/liblate_dlsym.so:	LATE_FLAGS := -DLATE_DLSYM
$(LATE_DIR)/liblate_proc.so:	LATE_FLAGS := -DLATE_PROC
$(LATE_DIR)/liblate_proc_v1.so: LATE_FLAGS := -DLATE_PROC_V1
$(LATE_DIR)/liblate_heap.so:	LATE_FLAGS := -DLATE_HEAP
$(LATE): tests/integration/late.c tests/integration/late.h include/lien/cuda_abi.h | $(SOFTCUDA)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LIEN_CFLAGS) $(CFLAGS) -fPIC -fvisibility=hidden -fno-optimize-sibling-calls \
		-shared -Wl,-soname,$(@F) -o $@ $< $(LATE_FLAGS) $(LDFLAGS) -Wl,--as-needed \
		$(SOFTCUDA) -ldl

# Stands in for PyTorch; the clock is in liblien-control.so, or in libstdc++.
WATCHED := $(TESTS)/integration/libtorch_cuda.so
$(WATCHED): tests/integration/watched.c
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LIEN_CFLAGS) $(CFLAGS) -fPIC -fno-optimize-sibling-calls -shared -o $@ $< $(LDFLAGS)

# The calls of one library each, by the name that the library has.
HOSTILE_DIR := $(TESTS)/integration/hostile
HOSTILE	    := $(addprefix $(HOSTILE_DIR)/, libcuda.so.1 libcudart.so.12 libnccl.so.2 libibverbs.so.1)
$(HOSTILE_DIR)/libcuda.so.1:	HOSTILE_LIB := CUDA
$(HOSTILE_DIR)/libcudart.so.12:	HOSTILE_LIB := CUDART
$(HOSTILE_DIR)/libnccl.so.2:	HOSTILE_LIB := NCCL
$(HOSTILE_DIR)/libibverbs.so.1:	HOSTILE_LIB := IBVERBS
$(HOSTILE): tests/integration/hostile.c include/lien/calls.h
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LIEN_CFLAGS) $(CFLAGS) -DHOSTILE_$(HOSTILE_LIB) -fPIC -fvisibility=hidden -shared \
		-Wl,-soname,$(@F) -o $@ $< $(LDFLAGS)

# Which libcuda they get is LD_LIBRARY_PATH's to say. Those that name no function of a library do not
# need it: they open it themselves.
define integration_prog
$(TESTS)/integration/$(1): $(BUILD)/obj/tests/integration/$(1).o \
		$(PROG_SRCS_$(1):%.c=$(BUILD)/obj/%.o) | $(SOFTCUDA)
	$$(call say,LINK,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CFLAGS) -pthread -o $$@ $$^ $$(LDFLAGS) -Wl,--as-needed \
		$$(SOFTCUDA) $(PROG_LIBS_$(1)) -ldl
endef
$(foreach name,$(PROG_NAMES),$(eval $(call integration_prog,$(name))))

$(SAME): $(patsubst %.c,$(BUILD)/obj/%.o,$(sort $(wildcard tests/same/*.c)))
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -pthread -o $@ $^ $(LDFLAGS) -ldl

include tests/fuzz/build.mk

# --- targets -------------------------------------------------------------------------------------
ASAN_BUILD := $(BUILD)/asan
ASAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
TEST_JOBS   = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))
TEST_RUN    = BUILD=$(BUILD) ASAN_BUILD=$(ASAN_BUILD) LIEN=$(LIEN) CONTROL=$(CONTROL) \
	SOFTCUDA=$(dir $(SOFTCUDA)) MAKE_RECORDING=$(MAKE_RECORDING) PYTHON=$(PYTHON) CC=$(CC) \
	tests/run.sh

# What some tests need besides: the others run without it.
LAB_PACKAGES	:= iproute2 openssh-client
KERNEL_PACKAGES := qemu-system-x86 busybox-static debian-archive-keyring
NODES_PACKAGES	:= $(LAB_PACKAGES) munge openssh-server slurm-client slurmctld slurmd
LONG_DEPS	 = $(Q)tools/deps.sh valgrind || echo "check-valgrind cannot run without this"
LAB_DEPS	 = $(Q)tools/deps.sh $(LAB_PACKAGES) || echo "tests of several nodes cannot run without these"
NODES_DEPS	 = $(Q)tools/deps.sh $(NODES_PACKAGES) || echo "tests of many nodes cannot run without these"
KERNEL_DEPS	 = $(Q)tools/deps.sh $(KERNEL_PACKAGES) || echo "check-kernels cannot run without these"

.PHONY: chaos chaos-nodes check-fast check-long unit-tests asan-tests integration-tests check-unit check-asan check-valgrind check-kernels
unit-tests: $(UNIT_TESTS)
integration-tests: all $(BUILD)/lien-without-join $(SOFTCUDA_TEST) $(MAKE_RECORDING) $(SOFTIBVERBS) $(SLOW_DISK) $(HOSTILE) $(ALONENCCL) $(SYNCNCCL) $(OLDNCCL) \
	$(NEXTCUDA) $(LATE) $(WATCHED) $(PROGS) $(SAME) $(EVENT_LAYOUT)
asan-tests: $(BUILD)/trace.skel.h
	$(Q)mkdir -p $(ASAN_BUILD)
	$(Q)touch $(ASAN_BUILD)/.deps && cp -u $^ $(ASAN_BUILD)/
	$(Q)$(MAKE) --no-print-directory BUILD=$(ASAN_BUILD) CFLAGS='-O0 -g' \
		SANITIZE='$(ASAN_FLAGS)' -o $(ASAN_BUILD)/trace.skel.h unit-tests

check:
	$(LAB_DEPS)
	$(Q)$(MAKE) --no-print-directory $(TEST_JOBS) unit-tests integration-tests fuzz-links
	$(Q)$(TEST_RUN)

check-long:
	$(LONG_DEPS)
	$(KERNEL_DEPS)
	$(NODES_DEPS)
	$(Q)$(MAKE) --no-print-directory $(TEST_JOBS) unit-tests asan-tests integration-tests fuzz-targets
	$(Q)LONG=1 $(TEST_RUN)

# While one works: pure code, style, and one test with real BPF.
check-fast:
	$(Q)$(MAKE) --no-print-directory $(TEST_JOBS) unit-tests integration-tests
	$(Q)$(TEST_RUN) unit static smoke

chaos:
	$(Q)$(MAKE) --no-print-directory $(TEST_JOBS) integration-tests
	$(Q)BUILD=$(BUILD) LIEN=$(LIEN) CONTROL=$(CONTROL) SOFTCUDA=$(dir $(SOFTCUDA)) \
		$(PYTHON) tests/integration/chaos.py

chaos-nodes:
	$(NODES_DEPS)
	$(Q)$(MAKE) --no-print-directory $(TEST_JOBS) integration-tests
	$(Q)BUILD=$(BUILD) LIEN=$(LIEN) CONTROL=$(CONTROL) SOFTCUDA=$(dir $(SOFTCUDA)) \
		$(PYTHON) tests/integration/chaos_nodes.py

check-kernels:
	$(KERNEL_DEPS)
	$(Q)$(MAKE) --no-print-directory $(TEST_JOBS) integration-tests
	$(Q)BUILD=$(BUILD) $(PYTHON) tests/kernels/check_kernels.py $(KERNEL_IMAGES:%=--image=%) $(KERNELS)

check-unit:
	$(Q)$(MAKE) --no-print-directory $(TEST_JOBS) unit-tests
	$(Q)$(TEST_RUN) unit

check-asan:
	$(Q)$(MAKE) --no-print-directory $(TEST_JOBS) asan-tests
	$(Q)$(TEST_RUN) asan

check-valgrind:
	$(Q)$(MAKE) --no-print-directory $(TEST_JOBS) unit-tests
	$(Q)$(TEST_RUN) valgrind

# Whatever has been compiled: unit tests compile the control library as well.
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
