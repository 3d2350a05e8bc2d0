// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/uprobe_single.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "loader/probes/empty_program.h"

/* enum bpf_attach_type: BPF_PERF_EVENT */
#define PERF_EVENT_TYPE 41
/* perf_event_attr.config; see /sys/bus/event_source/devices/uprobe/format. */
#define RETURN_PROBE 1

/* The part of union bpf_attr that BPF_LINK_CREATE reads for these links (linux/bpf.h of 5.15). */
struct link_create {
	uint32_t program_fd, event_fd, attach_type, flags;
	uint64_t cookie;
};

static int link_create(struct link_create *attr)
{
	int fd = syscall(SYS_bpf, BPF_LINK_CREATE, attr, sizeof(*attr));

	return fd < 0 ? -errno : fd;
}

bool lien_uprobe_single_supported(void)
{
	struct link_create attr = {.event_fd = -1, .attach_type = PERF_EVENT_TYPE};
	int program = lien_empty_program(0, 0), result;

	if (program < 0)
		return false;
	attr.program_fd = program;
	/* A kernel that has these links gets as far as looking for the event. */
	result = link_create(&attr);
	close(program);
	if (result >= 0)
		close(result);
	return result == -EBADF;
}

bool lien_kernel_preempts(const char *version, const char *modes)
{
	if (!strstr(version, "PREEMPT_DYNAMIC"))
		return strstr(version, "PREEMPT");
	return !strstr(modes, "(none)") && !strstr(modes, "(voluntary)");
}

static bool preempts(void)
{
	FILE *file = fopen("/sys/kernel/debug/sched/preempt", "re");
	struct utsname name;
	char modes[80] = "";

	if (file && !fgets(modes, sizeof(modes), file))
		modes[0] = '\0';
	if (file)
		fclose(file);
	uname(&name);
	return lien_kernel_preempts(name.version, modes);
}

bool lien_uprobe_single_reliable(void)
{
	/* 6.0 brought programs that may sleep, and runs the others like those. */
	int program = lien_empty_program(BPF_F_SLEEPABLE, 0);

	if (program < 0)
		return !preempts();
	close(program);
	return true;
}

static int event_type(void)
{
	FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "re");
	int type;

	if (!file)
		return -errno;
	if (fscanf(file, "%d", &type) != 1)
		type = -EINVAL;
	fclose(file);
	return type;
}

static int event_open(const char *path, uint64_t offset, bool at_return)
{
	struct perf_event_attr attr;
	int type = event_type(), fd;

	if (type < 0)
		return type;
	memset(&attr, 0, sizeof(attr));
	attr.size = sizeof(attr);
	attr.type = type;
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
	int event = event_open(path, offset, at_return), link;
	struct link_create attr = {.program_fd = program_fd,
		.event_fd = event,
		.attach_type = PERF_EVENT_TYPE,
		.cookie = cookie};

	if (event < 0)
		return event;
	link = link_create(&attr);
	close(event); /* the link keeps it */
	return link;
}
