# SPDX-License-Identifier: BSD-2-Clause
# The software CUDA driver, $(BUILD)/softcuda/libcuda.so.1; included by the top Makefile.

BUILD ?= build

SOFTCUDA := $(BUILD)/softcuda/libcuda.so.1
SOFTCUDA_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
SOFTCUDA_ROOT := $(SOFTCUDA_DIR)/../..
SOFTCUDA_SRC := $(wildcard $(SOFTCUDA_DIR)/*.c)
SOFTCUDA_OBJ := $(patsubst $(SOFTCUDA_DIR)/%.c,$(BUILD)/obj/softcuda/%.o,$(SOFTCUDA_SRC))

# An exported function has one entry of its own, so that a uprobe on it sees its callers and nobody
# else: identical functions are not folded into one, none becomes a jump from another.
SOFTCUDA_CFLAGS := -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -g -fPIC -pthread \
	-fvisibility=hidden -fno-optimize-sibling-calls -fno-semantic-interposition \
	-I$(SOFTCUDA_ROOT)/include -include $(SOFTCUDA_ROOT)/tools/glibc_floor.h
SOFTCUDA_CFLAGS += $(shell $(CC) -Werror -fno-ipa-icf -E -x c /dev/null >/dev/null 2>&1 && \
	echo -fno-ipa-icf)

$(BUILD)/obj/softcuda/%.o: $(SOFTCUDA_DIR)/%.c
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(SOFTCUDA_CFLAGS) -MMD -MP -c -o $@ $<

$(SOFTCUDA): $(SOFTCUDA_OBJ)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -shared -pthread -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,-z,defs \
		-Wl,-z,relro,-z,now -o $@ $(SOFTCUDA_OBJ) $(LDFLAGS)
	$(Q)ln -sf libcuda.so.1 $(@D)/libcuda.so

.PHONY: softcuda
softcuda: $(SOFTCUDA)

-include $(SOFTCUDA_OBJ:.o=.d)
