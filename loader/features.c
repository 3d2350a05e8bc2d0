/* SPDX-License-Identifier: BSD-2-Clause */
#include "loader/features.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loader/text.h"

#define NOFILE_NEEDED 65536
#define KERNEL(a, b)  ((a)*1000 + (b))

static const char *const status_names[] = {"ok", "warn", "FAIL"};

const char *lien_feature_status_name(enum lien_feature_status status)
{
	return status_names[status];
}

void lien_feature_found(
	struct lien_feature *feature, enum lien_feature_status status, const char *format, ...)
{
	va_list args;

	feature->status = status;
	va_start(args, format);
	vsnprintf(feature->found, sizeof(feature->found), format, args);
	va_end(args);
}

void lien_feature_remedy(struct lien_feature *feature, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(feature->remedy, sizeof(feature->remedy), format, args);
	va_end(args);
}

/* Fills in name and returns the version as KERNEL() has it. */
static int kernel_version(struct utsname *name)
{
	int major = 0, minor = 0;

	uname(name);
	sscanf(name->release, "%d.%d", &major, &minor);
	return KERNEL(major, minor);
}

static void check_kernel(struct lien_feature *f)
{
	struct utsname name;
	int version = kernel_version(&name);

	lien_feature_found(f, LIEN_FEATURE_OK, "%s %s", name.release, name.machine);
	if (strcmp(name.machine, "x86_64")) {
		f->status = LIEN_FEATURE_FAIL;
		lien_feature_remedy(f, "lien works on x86-64 only");
	} else if (version < KERNEL(5, 15)) {
		f->status = LIEN_FEATURE_FAIL;
		lien_feature_remedy(f, "Linux 5.15 or newer is needed");
	}
}

static void check_btf(struct lien_feature *f)
{
	const char *path = "/sys/kernel/btf/vmlinux";

	if (!access(path, R_OK)) {
		lien_feature_found(f, LIEN_FEATURE_OK, "%s", path);
		return;
	}
	lien_feature_found(f, LIEN_FEATURE_FAIL, "%s: %s", path, strerror(errno));
	lien_feature_remedy(
		f, "a kernel with CONFIG_DEBUG_INFO_BTF=y is needed (and /sys mounted)");
}

static void check_uprobes(struct lien_feature *f)
{
	const char *path = "/sys/bus/event_source/devices/uprobe/type";
	char type[16];
	int err = lien_text_read(path, type, sizeof(type));

	if (!err) {
		lien_feature_found(f, LIEN_FEATURE_OK, "perf event type %s", type);
		return;
	}
	lien_feature_found(f, LIEN_FEATURE_FAIL, "%s: %s", path, strerror(-err));
	lien_feature_remedy(f, "a kernel with CONFIG_UPROBE_EVENTS=y is needed (and /sys mounted)");
}

/*
 * From 6.11 on, the return probes of 64-bit processes enter the kernel by a system call of their
 * own (uretprobe, 335) instead of a breakpoint; only the kernel chooses between the two. At first
 * seccomp filters applied to that call: a filter that refuses calls it does not know sends the
 * process to a meaningless address. "seccomp: passthrough uretprobe systemcall without filtering"
 * in 6.14 fixed it, and is in updates of earlier releases.
 */
#define SYS_URETPROBE 335
/* No system call returns it: it shows that the filter has answered. */
#define REFUSAL ENOTNAM

enum uretprobe {
	URETPROBE_PASSES,
	URETPROBE_FILTERED,
	URETPROBE_UNKNOWN, /* filters of our own are not allowed here */
};

/* The kernel's answer to whoever makes the call but its own trampoline. */
static void on_sigill(int number)
{
	(void)number;
	_exit(URETPROBE_PASSES);
}

static bool refuse_uretprobe(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_URETPROBE, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | REFUSAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {
		.len = sizeof(code) / sizeof(code[0]),
		.filter = code,
	};

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
	       !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

static __attribute__((noreturn)) void try_in_child(void)
{
	if (signal(SIGILL, on_sigill) == SIG_ERR || !refuse_uretprobe())
		_exit(URETPROBE_UNKNOWN);
	if (syscall(SYS_URETPROBE) == -1 && errno == REFUSAL)
		_exit(URETPROBE_FILTERED);
	_exit(URETPROBE_UNKNOWN);
}

/* Tries, in a child, whether a seccomp filter applies to that system call. For kernels from 6.11
 * on: older ones do not have it, and let no unknown call pass. */
static enum uretprobe uretprobe_under_filter(void)
{
	pid_t child = fork(), ended;
	int status;

	if (!child)
		try_in_child();
	if (child < 0)
		return URETPROBE_UNKNOWN;
	do
		ended = waitpid(child, &status, 0);
	while (ended < 0 && errno == EINTR);
	if (ended != child || !WIFEXITED(status))
		return URETPROBE_UNKNOWN;
	return WEXITSTATUS(status);
}

static void check_uretprobe(struct lien_feature *f)
{
	struct utsname name;

	if (kernel_version(&name) < KERNEL(6, 11)) {
		lien_feature_found(f, LIEN_FEATURE_OK, "by breakpoint");
		return;
	}
	switch (uretprobe_under_filter()) {
	case URETPROBE_PASSES:
		lien_feature_found(
			f, LIEN_FEATURE_OK, "by system call, which seccomp filters let pass");
		return;
	case URETPROBE_FILTERED:
		lien_feature_found(
			f, LIEN_FEATURE_WARN, "by system call, to which seccomp filters apply");
		break;
	case URETPROBE_UNKNOWN:
		lien_feature_found(f, LIEN_FEATURE_WARN,
			"by system call; whether seccomp filters apply cannot be tried here");
	}
	lien_feature_remedy(f, "a filter (of a container) that does not allow the system call "
			       "uretprobe kills traced processes: use Linux 6.14, or an update of "
			       "6.11 to 6.13 that lets it pass");
}

static uint64_t effective_capabilities(void)
{
	char status[4096], *line;

	lien_text_read("/proc/self/status", status, sizeof(status));
	line = strstr(status, "\nCapEff:");
	return line ? strtoull(line + strlen("\nCapEff:"), NULL, 16) : 0;
}

static void check_capabilities(struct lien_feature *f)
{
	static const struct {
		int number;
		const char *name;
		bool admin; /* CAP_SYS_ADMIN includes it */
	} needed[] = {
		{CAP_BPF, "CAP_BPF", true},
		{CAP_PERFMON, "CAP_PERFMON", true},
		{CAP_SYS_PTRACE, "CAP_SYS_PTRACE", false},
	};
	uint64_t have = effective_capabilities();
	char missing[80] = "";

	for (unsigned i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
		bool admin = needed[i].admin && have >> CAP_SYS_ADMIN & 1;

		if (have >> needed[i].number & 1 || admin)
			continue;
		strcat(missing, *missing ? ", " : "");
		strcat(missing, needed[i].name);
	}
	if (!*missing) {
		lien_feature_found(f, LIEN_FEATURE_OK, "CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE");
		return;
	}
	lien_feature_found(f, LIEN_FEATURE_FAIL, "without %s", missing);
	lien_feature_remedy(
		f, "run as root, or: setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep on lien");
}

/* Creating a map with one element shows whether bpf() exists and is permitted: seccomp filters and
 * user namespaces refuse it regardless of capabilities. */
static void check_bpf(struct lien_feature *f)
{
	union bpf_attr attr;
	int fd;

	memset(&attr, 0, sizeof(attr));
	attr.map_type = BPF_MAP_TYPE_ARRAY;
	attr.key_size = 4;
	attr.value_size = 8;
	attr.max_entries = 1;
	fd = syscall(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof(attr));
	if (fd >= 0) {
		close(fd);
		lien_feature_found(f, LIEN_FEATURE_OK, "a map can be created");
		return;
	}
	lien_feature_found(f, LIEN_FEATURE_FAIL, "a map can't be created: %s", strerror(errno));
	if (errno == ENOSYS)
		lien_feature_remedy(f, "a kernel with CONFIG_BPF_SYSCALL=y is needed");
	else
		lien_feature_remedy(f, "run as root of the machine, not of a user namespace, and "
				       "where no seccomp filter refuses bpf()");
}

/* "[none] integrity confidentiality"; the last one denies BPF access to kernel memory. */
static void check_lockdown(struct lien_feature *f)
{
	char modes[64];

	if (lien_text_read("/sys/kernel/security/lockdown", modes, sizeof(modes)) ||
		!strstr(modes, "[confidentiality]")) {
		lien_feature_found(f, LIEN_FEATURE_OK, "BPF may read kernel memory");
		return;
	}
	lien_feature_found(f, LIEN_FEATURE_FAIL, "lockdown mode confidentiality");
	lien_feature_remedy(f, "boot without lockdown=confidentiality");
}

static void check_nofile(struct lien_feature *f)
{
	struct rlimit limit = {0, 0};

	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_max >= NOFILE_NEEDED) {
		lien_feature_found(f, LIEN_FEATURE_OK, "up to %llu open files",
			(unsigned long long)limit.rlim_max);
		return;
	}
	lien_feature_found(
		f, LIEN_FEATURE_WARN, "only %llu open files", (unsigned long long)limit.rlim_max);
	lien_feature_remedy(f,
		"ulimit -Hn %d, or LimitNOFILE=%d in the unit: large jobs pass many fds",
		NOFILE_NEEDED, NOFILE_NEEDED);
}

int lien_features_check(struct lien_feature *out, unsigned max)
{
	static const struct {
		const char *name;
		void (*check)(struct lien_feature *feature);
	} checks[] = {
		{"kernel", check_kernel},
		{"btf", check_btf},
		{"uprobes", check_uprobes},
		{"uretprobe", check_uretprobe},
		{"capabilities", check_capabilities},
		{"bpf", check_bpf},
		{"lockdown", check_lockdown},
		{"nofile", check_nofile},
	};
	unsigned count = sizeof(checks) / sizeof(checks[0]);

	if (count > max)
		count = max;
	for (unsigned i = 0; i < count; i++) {
		memset(&out[i], 0, sizeof(out[i]));
		out[i].name = checks[i].name;
		checks[i].check(&out[i]);
	}
	return count;
}
