# SPDX-License-Identifier: BSD-2-Clause
#
# make            build/lien, build/lien-replay, build/lien-exporter, build/liblien-control.so and build/liblien.a
# make demo       see it work: on GPUs where there are two and PyTorch, else on the software driver
# make check      the gate: at least one test of everything that needs no GPU; as root, with the real kernel
# make check-long the rest of them: whole matrices, random ones, sanitizers, fuzzing, other kernels
# make check-kernels  lien in Debian's kernels 6.1 and 6.12, under qemu
# make check-fast unit tests, style, and one test with real BPF: less than a minute
# make gpu-check  the tests that need GPUs (two for most), PyTorch and NCCL
# make chaos      random jobs, transactions, faults and kills for CHAOS_STEPS (200) steps; as root
# make chaos-nodes  likewise, a job on several nodes
# make fuzz       each fuzz target for FUZZ_SECONDS (600); needs clang's libFuzzer
# make bench      figures, as ratios within one run
# make install    into $(DESTDIR)$(PREFIX)
# make deb        Debian packages into build/deb: lien, lien-control, liblien-dev
#
# V=1 shows commands. CUDA_HOME names a CUDA Toolkit, used by one test if it is there.

BUILD	  ?= build
PREFIX	  ?= /usr/local
CUDA_HOME ?= /usr/local/cuda
VERSION	  := $(shell sed -n 's/.define LIEN_VERSION "\(.*\)"/\1/p' include/lien/version.h)
CLANG	  ?= clang
# Ubuntu's /usr/sbin/bpftool looks for the running kernel's own and fails in containers.
BPFTOOL	  ?= $(firstword $(wildcard /usr/lib/linux-tools/*/bpftool /usr/lib/linux-tools-*/bpftool \
	/usr/sbin/bpftool /usr/bin/bpftool) bpftool)
PYTHON	  ?= python3

ifeq ($(V),1)
Q :=
say :=
else
Q := @
say = $(info $()  $(1)	$(2))
endif

CFLAGS	 ?= -O2 -g
WARN	 := -Wall -Wextra -Werror
LIEN_CFLAGS := -std=gnu11 -D_GNU_SOURCE -include tools/glibc_floor.h $(WARN) -Iinclude -I. \
	-I$(BUILD) -pthread

.DELETE_ON_ERROR:
.SECONDARY:
.DEFAULT_GOAL := all

LIEN	:= $(BUILD)/lien
CONTROL := $(BUILD)/liblien-control.so
SAVER	:= $(BUILD)/torch_memory_saver/liblien-control.so
CLIENT	:= $(BUILD)/liblien.a

include tests/softcuda/build.mk
include tools/replay/build.mk
include tools/exporter/build.mk

.PHONY: all demo check gpu-check bench bench-nodes bench-ranks install uninstall deb clean deps
COMPLETIONS := $(addprefix $(BUILD)/completion., bash zsh fish)

all: $(LIEN) $(REPLAY) $(EXPORTER) $(CONTROL) $(SAVER) $(CLIENT) $(SOFTCUDA) $(REPLAY_SOFTNCCL) $(COMPLETIONS)

# --- what the build needs ------------------------------------------------------------------------
# As root missing packages are installed; otherwise one line says how.
PACKAGES := gcc make clang llvm libbpf-dev libelf-dev zlib1g-dev libjansson-dev libbsd-dev \
	libncurses-dev libcmocka-dev libiberty-dev libmicrohttpd-dev pkg-config python3 python3-pip

deps:
	$(Q)tools/deps.sh $(PACKAGES)

$(BUILD)/.deps: tools/deps.sh Makefile
	$(Q)tools/deps.sh $(PACKAGES)
	$(Q)mkdir -p $(@D) && touch $@

# Before anything else is made, and once: make begins anew when it has made what it includes.
ifneq ($(MAKECMDGOALS),clean)
include $(BUILD)/.deps
endif

# --- BPF -----------------------------------------------------------------------------------------
# Not by $(wildcard): what is missing is installed while make runs.
BPF_INCLUDES := -Iinclude -Ibpf -I/usr/include/x86_64-linux-gnu

$(BUILD)/%.bpf.o: bpf/%.bpf.c $(wildcard bpf/*.h) $(wildcard include/lien/*.h)
	$(call say,BPF,$@)
	$(Q)$(CLANG) -O2 -g -mcpu=v3 -target bpf $(WARN) $(BPF_INCLUDES) -c $< -o $@

$(BUILD)/%.skel.h: $(BUILD)/%.bpf.o
	$(call say,SKEL,$@)
	$(Q)$(BPFTOOL) gen skeleton $< name $(*F)_bpf > $@

# --- lien ----------------------------------------------------------------------------------------
# The agent's pure part: no BPF, no CUDA, no root. Unit tests link it alone.
PURE_DIRS := $(addprefix agent/, graph journal nodes plan ras reread targets transaction views)
PURE_SRCS := $(sort $(wildcard $(PURE_DIRS:%=%/*.c)))
WITHOUT_JOIN := tests/integration/without_join.c
LIEN_SRCS := $(sort $(PURE_SRCS) $(wildcard agent/*/*.c loader/*.c loader/*/*.c \
	$(addprefix tools/, cli/*.c picture/*.c text/*.c top/*.c)))
LIEN_OBJS := $(LIEN_SRCS:%.c=$(BUILD)/obj/%.o)
# The same without agent/join: nothing else needs what is in it.
WITHOUT_JOIN_OBJS := $(patsubst %.c,$(BUILD)/obj/%.o,$(WITHOUT_JOIN) $(filter-out agent/join/%, $(LIEN_SRCS)))

# Everything but libc is linked statically: lien runs on machines that have nothing installed.
STATIC_LIBS = -l:libbpf.a -l:libelf.a -l:libjansson.a -l:libz.a -l:libiberty.a \
	-l:libncurses.a -l:libtinfo.a \
	$(shell test -e /usr/lib/x86_64-linux-gnu/libzstd.a && echo -l:libzstd.a)

$(BUILD)/obj/%.o: %.c | $(BUILD)/trace.skel.h
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LIEN_CFLAGS) $(SANITIZE) -MMD -MP -c $< -o $@

$(LIEN): $(LIEN_OBJS)
$(BUILD)/lien-without-join: $(WITHOUT_JOIN_OBJS)
$(LIEN) $(BUILD)/lien-without-join:
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS) $(SANITIZE) -pthread -o $@ $^ $(LDFLAGS) $(STATIC_LIBS) -ldl

# --- the control library -------------------------------------------------------------------------
# It goes into other people's containers: glibc 2.31 must do. Symbols that newer versions of glibc
# moved into libc.so.6 are bound, through stubs with their old versions, to where they were; newer
# systems still have them there.
CONTROL_SRCS := $(sort $(wildcard control/*.c control/*/*.c))
CONTROL_OBJS := $(CONTROL_SRCS:%.c=$(BUILD)/obj/pic/%.o)
STUBS	     := $(BUILD)/stubs/libpthread.so.0 $(BUILD)/stubs/libdl.so.2

$(BUILD)/obj/pic/%.o: %.c
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LIEN_CFLAGS) $(SANITIZE) -fPIC -fvisibility=hidden -MMD -MP -c $< -o $@

# The probes find the caller of a translated call through its frame pointer.
$(BUILD)/obj/pic/control/driver/translate.o $(BUILD)/obj/pic/control/plain/%.o: LIEN_CFLAGS += -fno-omit-frame-pointer \
	-fno-optimize-sibling-calls

$(BUILD)/stubs/%: control/stubs/%.map
	$(Q)mkdir -p $(@D)
	$(Q)sed -n 's/^\t\([a-z_0-9]*\);$$/void \1(void) {}/p' $< | \
		$(CC) -w -fno-builtin -x c -shared -nostdlib -fPIC -Wl,-soname,$* \
		-Wl,--version-script=$< -o $@ -

$(CONTROL): $(CONTROL_OBJS) $(STUBS)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS) -shared -Wl,-soname,liblien-control.so -Wl,-z,defs -Wl,-z,relro,-z,now \
		-Wl,--no-as-needed -Wl,--build-id -o $@ $(CONTROL_OBJS) $(STUBS) $(LDFLAGS)

# torch_memory_saver looks for a library with its own name in the path, among those in LD_PRELOAD.
$(SAVER): $(CONTROL)
	$(Q)mkdir -p $(@D)
	$(Q)ln -sf ../$(notdir $<) $@

# --- the C client, for other programs ------------------------------------------------------------
# Position-independent, so that it can go into their libraries.
CLIENT_OBJS := $(BUILD)/obj/pic/tools/cli/client.o

$(CLIENT): $(CLIENT_OBJS)
	$(call say,AR,$@)
	$(Q)rm -f $@
	$(Q)$(AR) rcsD $@ $^

# --- tests ---------------------------------------------------------------------------------------
include tools/python/build.mk
include tests/build.mk
include tests/bench/build.mk

demo: all
	$(Q)$(PYTHON) tools/demo/demo.py

gpu-check: all
	$(Q)$(PYTHON) tests/gpu/gpu_check.py --lien $(LIEN)

$(COMPLETIONS): $(BUILD)/completion.%: $(LIEN) $(REPLAY)
	$(Q)$(LIEN) completion $* >$@

# --- the rest ------------------------------------------------------------------------------------
# Where these shells look for them, in any prefix.
BASH_COMPLETION := share/bash-completion/completions/lien
ZSH_COMPLETION	:= share/zsh/site-functions/_lien
FISH_COMPLETION := share/fish/vendor_completions.d/lien.fish

install: all
	install -D -m 755 $(LIEN) $(DESTDIR)$(PREFIX)/bin/lien
	install -D -m 755 $(REPLAY) $(DESTDIR)$(PREFIX)/bin/lien-replay
	install -D -m 755 $(CONTROL) $(DESTDIR)$(PREFIX)/lib/lien/liblien-control.so
	install -d $(DESTDIR)$(PREFIX)/lib/lien/torch_memory_saver
	ln -sf ../liblien-control.so $(DESTDIR)$(PREFIX)/lib/lien/torch_memory_saver/liblien-control.so
	install -D -m 755 $(REPLAY_SOFTNCCL) $(DESTDIR)$(PREFIX)/lib/lien/replay/libnccl.so.2
	install -D -m 755 $(SOFTCUDA) $(DESTDIR)$(PREFIX)/lib/lien/softcuda/libcuda.so.1
	install -D -m 644 docs/lien.1 $(DESTDIR)$(PREFIX)/share/man/man1/lien.1
	install -D -m 644 $(BUILD)/completion.bash $(DESTDIR)$(PREFIX)/$(BASH_COMPLETION)
	install -D -m 644 $(BUILD)/completion.zsh $(DESTDIR)$(PREFIX)/$(ZSH_COMPLETION)
	install -D -m 644 $(BUILD)/completion.fish $(DESTDIR)$(PREFIX)/$(FISH_COMPLETION)
	install -D -m 644 include/lien/client.h $(DESTDIR)$(PREFIX)/include/lien/client.h
	install -D -m 644 include/lien/tag.h $(DESTDIR)$(PREFIX)/include/lien/tag.h
	install -D -m 644 $(CLIENT) $(DESTDIR)$(PREFIX)/lib/liblien.a
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' tools/deploy/lien.pc.in \
		> $(DESTDIR)$(PREFIX)/lib/pkgconfig/lien.pc
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|ExecStart=/usr/local/|ExecStart=$(PREFIX)/|' tools/deploy/lien-agent.service \
		> $(DESTDIR)$(PREFIX)/lib/systemd/system/lien-agent.service
ifneq ($(EXPORTER),)
	install -D -m 755 $(EXPORTER) $(DESTDIR)$(PREFIX)/bin/lien-exporter
	sed 's|ExecStart=/usr/local/|ExecStart=$(PREFIX)/|' tools/deploy/lien-exporter.service \
		> $(DESTDIR)$(PREFIX)/lib/systemd/system/lien-exporter.service
endif

uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,bin/lien bin/lien-replay bin/lien-exporter share/man/man1/lien.1 \
		$(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION) \
		include/lien/client.h include/lien/tag.h lib/liblien.a lib/pkgconfig/lien.pc \
		lib/systemd/system/lien-agent.service lib/systemd/system/lien-exporter.service)
	rm -rf $(DESTDIR)$(PREFIX)/lib/lien
	-rmdir $(DESTDIR)$(PREFIX)/include/lien

# Each file goes into one of the packages: tools/deb/build.sh says which.
DEB	    ?= $(BUILD)/deb
DEB_VERSION ?= $(VERSION)
deb: all
	$(Q)tools/deps.sh dpkg-dev
	$(Q)rm -rf $(DEB)
	$(Q)mkdir -p $(DEB)/stage
	$(Q)$(MAKE) -s -o all install DESTDIR=$(abspath $(DEB))/stage PREFIX=/usr >/dev/null
	$(Q)$(PYTHON) tools/python/build_lien.py $(DEB)/stage/usr/lib/python3/dist-packages
	$(Q)tools/deb/build.sh $(DEB)/stage/usr $(DEB_VERSION) $(DEB)
	$(Q)rm -rf $(DEB)/stage

clean:
	rm -rf $(BUILD)

-include $(LIEN_OBJS:.o=.d) $(REPLAY_OBJS:.o=.d) $(EXPORTER_OBJS:.o=.d) $(CONTROL_OBJS:.o=.d) $(CLIENT_OBJS:.o=.d)
