# SPDX-License-Identifier: BSD-2-Clause
# lien-exporter, which serves `lien metrics` over HTTP. libmicrohttpd is linked dynamically: its static
# library wants GnuTLS. Without its header nothing is built. BUILD, CC, the flags and Q are the top Makefile's.

EXPORTER_SRCS := $(sort $(wildcard tools/exporter/*.c)) tools/cli/client.c \
	$(wildcard tools/cli/options*.c) $(wildcard tools/text/*.c) agent/graph/nearest.c
EXPORTER_OBJS := $(EXPORTER_SRCS:%.c=$(BUILD)/obj/%.o)

# Not the value of a variable that is set once: the package may be installed while make runs.
EXPORTER = $(if $(shell echo '\#include <microhttpd.h>' | $(CC) -E -x c - >/dev/null 2>&1 && echo yes),$(BUILD)/lien-exporter)

$(BUILD)/lien-exporter: $(EXPORTER_OBJS)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS) $(SANITIZE) -pthread -o $@ $^ $(LDFLAGS) -l:libjansson.a -lmicrohttpd
