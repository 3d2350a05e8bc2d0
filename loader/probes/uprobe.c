// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/uprobe.h"

#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "loader/text.h"

/* enum bpf_attach_type: BPF_PERF_EVENT */
#define PERF_EVENT_TYPE	    41
#define UPROBE_MULTI_RETURN 1
/* perf_event_attr.config; see /sys/bus/event_source/devices/uprobe/format. */
#define RETURN_PROBE 1

/* Loads a program for uprobes that does nothing. Returns its fd, or -errno. */
static int load_empty(unsigned flags, unsigned attach_type)
{
	/* r0 = 0; exit */
	static const struct bpf_insn code[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_K},
		{.code = BPF_JMP | BPF_EXIT},
	};
	LIBBPF_OPTS(bpf_prog_load_opts, options, .prog_flags = flags,
		.expected_attach_type = attach_type);

	return bpf_prog_load(BPF_PROG_TYPE_KPROBE, NULL, "Dual BSD/GPL", code,
		sizeof(code) / sizeof(code[0]), &options);
}

/* --- many places ------------------------------------------------------------------------------ */

/* The part of union bpf_attr that BPF_LINK_CREATE reads for these links (linux/bpf.h of 6.6).
 * Debian's libbpf 1.1 and the headers of older systems lack it. */
struct multi {
	uint32_t program_fd, target_fd, attach_type, flags;
	uint64_t path, offsets, ref_ctr_offsets, cookies;
	uint32_t count, multi_flags, pid, zero;
};

int lien_uprobe_multi_attach(int program_fd, const char *path, const uint64_t *offsets,
	const uint64_t *cookies, unsigned count, bool at_return, uint32_t pid)
{
	struct multi attr = {
		.program_fd = program_fd,
		.attach_type = LIEN_UPROBE_MULTI_TYPE,
		.path = (uintptr_t)path,
		.offsets = (uintptr_t)offsets,
		.cookies = (uintptr_t)cookies,
		.count = count,
		.multi_flags = at_return ? UPROBE_MULTI_RETURN : 0,
		.pid = pid,
	};
	int fd = syscall(SYS_bpf, BPF_LINK_CREATE, &attr, sizeof(attr));

	return fd < 0 ? -errno : fd;
}

/* Returns what the kernel says to a program at the start of a file, where there is no code. */
static int try_multi(const char *path, uint32_t pid)
{
	const uint64_t offset = 0;
	int program = load_empty(0, LIEN_UPROBE_MULTI_TYPE), result;

	if (program < 0)
		return program;
	result = lien_uprobe_multi_attach(program, path, &offset, NULL, 1, false, pid);
	close(program);
	if (result >= 0)
		close(result);
	return result;
}

/* A kernel that has these links gets as far as refusing a directory. */
bool lien_uprobe_multi_supported(void)
{
	return try_multi("/", 0) == -EBADF;
}

static void *try_with_thread(void *result)
{
	*(int *)result = try_multi("/proc/self/exe", syscall(SYS_gettid));
	return NULL;
}

/* A kernel that binds to processes finds none by a thread's id. */
bool lien_uprobe_multi_of_process_supported(void)
{
	pthread_t thread;
	int result = 0;

	if (!pthread_create(&thread, NULL, try_with_thread, &result))
		pthread_join(thread, NULL);
	return result == -ESRCH;
}

/* --- one place -------------------------------------------------------------------------------- */

static int event_type(void)
{
	char text[16], *end;
	int err = lien_text_read("/sys/bus/event_source/devices/uprobe/type", text, sizeof(text));
	long type = strtol(text, &end, 10);

	return err ? err : end == text ? -EINVAL : type;
}

static int event_open(const char *path, uint64_t offset, bool at_return, bool disabled)
{
	struct perf_event_attr attr;
	int type = event_type(), fd;

	if (type < 0)
		return type;
	memset(&attr, 0, sizeof(attr));
	attr.size = sizeof(attr);
	attr.type = type;
	attr.disabled = disabled;
	attr.config = at_return ? RETURN_PROBE : 0;
	attr.config1 = (uintptr_t)path;
	attr.config2 = offset;
	/* The program runs on all processors, whichever the event is for. */
	fd = syscall(SYS_perf_event_open, &attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int lien_uprobe_single_attach(
	int program_fd, const char *path, uint64_t offset, uint64_t cookie, bool at_return)
{
	LIBBPF_OPTS(bpf_link_create_opts, options, .perf_event.bpf_cookie = cookie);
	int event = event_open(path, offset, at_return, false), link;

	if (event < 0)
		return event;
	link = bpf_link_create(program_fd, event, PERF_EVENT_TYPE, &options);
	close(event); /* the link keeps it */
	return link;
}

/* Has the kernel links to perf events, which can be pinned and carry a cookie? If so, it gets as
 * far as looking for the event. */
static bool has_single(void)
{
	int program = load_empty(0, 0), result;

	if (program < 0)
		return false;
	result = bpf_link_create(program, -1, PERF_EVENT_TYPE, NULL);
	close(program);
	if (result >= 0)
		close(result);
	return result == -EBADF;
}

bool lien_uprobe_permitted(bool multi, uint64_t offset)
{
	const char *path = "/proc/self/exe";
	int program = load_empty(0, multi ? LIEN_UPROBE_MULTI_TYPE : 0), fd;

	if (program < 0)
		return false;
	fd = multi ? lien_uprobe_multi_attach(program, path, &offset, NULL, 1, false, 0)
		   : event_open(path, offset, false, true);
	close(program);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* May a kernel take the processor from a task in a system call, as far as is known? version: as
 * uname() gives it; modes: /sys/kernel/debug/sched/preempt ("none (voluntary) full"), empty if it
 * cannot be read. */
static bool kernel_preempts(const char *version, const char *modes)
{
	if (!strstr(version, "PREEMPT_DYNAMIC"))
		return strstr(version, "PREEMPT");
	return !strstr(modes, "(none)") && !strstr(modes, "(voluntary)");
}

static bool preempts(void)
{
	struct utsname name;
	char modes[80];

	lien_text_read("/sys/kernel/debug/sched/preempt", modes, sizeof(modes));
	uname(&name);
	return kernel_preempts(name.version, modes);
}

/* Does the kernel run such a program at each hit? Before 6.0, it skips the program while a task
 * that it preempted on the same processor is in a BPF system call. Kernels that preempt no task
 * there are safe. */
static bool runs_each(void)
{
	/* 6.0 brought programs that may sleep, and runs the others like those. */
	int program = load_empty(BPF_F_SLEEPABLE, 0);

	if (program < 0)
		return !preempts();
	close(program);
	return true;
}

const char *lien_uprobe_gate_lacks(bool multi)
{
	if (multi)
		return NULL;
	if (!has_single())
		return "its probes cannot outlive the agent: 5.15 is needed";
	/* A call that no program sees is not held. */
	if (!runs_each())
		return "it is preemptible and may skip probes: 6.0 is needed, or preempt=voluntary "
		       "(with debugfs mounted, which shows that)";
	return NULL;
}

/* --- closing ---------------------------------------------------------------------------------- */

/* linux/mount.h of 5.2 */
#define CLOEXEC 1
#define CREATE	6

static int folder = -1; /* a mount that no path leads to: it ends with the process */
static unsigned names;

void lien_uprobe_close_prepare(void)
{
	int fs = folder < 0 ? syscall(SYS_fsopen, "bpf", CLOEXEC) : -1;

	if (fs < 0)
		return;
	if (!syscall(SYS_fsconfig, fs, CREATE, NULL, NULL, 0))
		folder = syscall(SYS_fsmount, fs, CLOEXEC, 0);
	close(fs);
}

/* The kernel leaves it to a thread of its own when the last reference to a link is a name. A child
 * of the process has the same folder. */
void lien_uprobe_close(int fd)
{
	char path[64];
	unsigned name = __atomic_add_fetch(&names, 1, __ATOMIC_RELAXED);
	int named;

	snprintf(path, sizeof(path), "/proc/self/fd/%d/%d-%u", folder, getpid(), name);
	named = folder >= 0 && !bpf_obj_pin(fd, path);
	close(fd);
	if (named)
		unlink(path);
}

/* Iterators delay nobody, and the child reads them. */
static bool is_link(int fds, const char *name)
{
	struct bpf_link_info link = {};
	unsigned size = sizeof(link);
	char to[32] = ""; /* "anon_inode:bpf_link" */

	return readlinkat(fds, name, to, sizeof(to) - 1) > 0 && strstr(to, "bpf_link") &&
	       (bpf_obj_get_info_by_fd(atoi(name), &link, &size) ||
		       link.type != BPF_LINK_TYPE_ITER);
}

void lien_uprobe_close_inherited(void)
{
	DIR *fds = opendir("/proc/self/fd");
	struct dirent *entry;

	while (fds && (entry = readdir(fds)))
		if (is_link(dirfd(fds), entry->d_name))
			lien_uprobe_close(atoi(entry->d_name));
	if (fds)
		closedir(fds);
}
