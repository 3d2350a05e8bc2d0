# SPDX-License-Identifier: BSD-2-Clause
# The Python package needs no build; its table of events is made here and kept in the repository.
# tests/integration/test_python.py compares the two.
#
# make python-layout   writes tools/python/lien/_layout.py anew

EVENT_LAYOUT := $(BUILD)/tests/integration/event_layout
EVENT_LAYOUT_SRCS := tools/python/layout.c tools/cli/event_text.c $(wildcard tools/text/*.c) $(PURE_SRCS)

$(EVENT_LAYOUT): $(EVENT_LAYOUT_SRCS:%.c=$(BUILD)/obj/%.o)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(SANITIZE) -pthread -o $@ $^ $(LDFLAGS) -l:libjansson.a -lz

.PHONY: python-layout
python-layout: $(EVENT_LAYOUT)
	$(Q)$< >tools/python/lien/_layout.py
