# SPDX-License-Identifier: BSD-2-Clause
# lien-replay, and the stand-in libnccl that it loads from the folder replay/ beside itself. BUILD, CC,
# the flags and Q are the top Makefile's.

REPLAY := $(BUILD)/lien-replay

REPLAY_SRCS := $(filter-out tools/replay/softnccl%, $(sort $(wildcard tools/replay/*.c))) \
	agent/journal/recording.c $(wildcard agent/graph/*.c) \
	$(wildcard tools/cli/options*.c) tools/cli/client.c tools/cli/preload.c $(wildcard tools/text/*.c)
REPLAY_OBJS := $(REPLAY_SRCS:%.c=$(BUILD)/obj/%.o)

# What a test of script building links, and no more.
REPLAY_SCRIPT_SRCS := $(addprefix tools/replay/, \
	load.c script.c build.c script_memory.c script_share.c script_comm.c snapshot.c \
	names.c space.c share.c pending.c) \
	agent/journal/recording.c $(wildcard agent/graph/*.c)

$(REPLAY): $(REPLAY_OBJS)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS) $(SANITIZE) -pthread -o $@ $^ $(LDFLAGS) -l:libjansson.a -l:libz.a -ldl

REPLAY_SOFTNCCL := $(BUILD)/replay/libnccl.so.2

REPLAY_SOFTNCCL_SRCS := $(addprefix tools/replay/, softnccl.c softnccl_init.c)

# A call from here must leave a return address here, so no tail calls; nor may functions that are
# alike become one, which would have two probes.
$(REPLAY_SOFTNCCL): $(REPLAY_SOFTNCCL_SRCS) tools/replay/softnccl.h include/lien/cuda_abi.h
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LIEN_CFLAGS) -fPIC -shared -fvisibility=hidden \
		-fno-optimize-sibling-calls -fno-ipa-icf -Wl,-soname,libnccl.so.2 -Wl,--build-id \
		-o $@ $(REPLAY_SOFTNCCL_SRCS) $(LDFLAGS) -ldl
