// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <linux/bpf.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loader/probes/empty_program.h"
#include "loader/probes/uprobe_multi.h"

#define UPROBE_MULTI_RETURN 1

/* The part of union bpf_attr that BPF_LINK_CREATE reads for these links (linux/bpf.h of 6.6). */
struct link_create {
	uint32_t program_fd, target_fd, attach_type, flags;
	uint64_t path, offsets, ref_ctr_offsets, cookies;
	uint32_t count, multi_flags, pid, zero;
};

static int link_create(struct link_create *attr)
{
	int fd = syscall(SYS_bpf, BPF_LINK_CREATE, attr, sizeof(*attr));

	return fd < 0 ? -errno : fd;
}

bool lien_uprobe_multi_supported(void)
{
	uint64_t offset = 0;
	struct link_create attr = {
		.attach_type = LIEN_UPROBE_MULTI_TYPE,
		.path = (uintptr_t) "/",
		.offsets = (uintptr_t)&offset,
		.count = 1,
	};
	int program = lien_empty_program(0, LIEN_UPROBE_MULTI_TYPE), result;

	if (program < 0)
		return false;
	attr.program_fd = program;
	/* A kernel that has these links gets as far as refusing a directory. */
	result = link_create(&attr);
	close(program);
	if (result >= 0)
		close(result);
	return result == -EBADF;
}

struct attempt {
	struct link_create attr;
	int result;
};

static void *attach_to_thread(void *arg)
{
	struct attempt *attempt = arg;

	attempt->attr.pid = syscall(SYS_gettid);
	attempt->result = link_create(&attempt->attr);
	return NULL;
}

bool lien_uprobe_multi_of_process_supported(void)
{
	uint64_t offset = 0; /* no code there */
	struct attempt attempt = {
		.attr =
			{
				.program_fd = lien_empty_program(0, LIEN_UPROBE_MULTI_TYPE),
				.attach_type = LIEN_UPROBE_MULTI_TYPE,
				.path = (uintptr_t) "/proc/self/exe",
				.offsets = (uintptr_t)&offset,
				.count = 1,
			},
		.result = -1,
	};
	pthread_t thread;

	if ((int)attempt.attr.program_fd < 0)
		return false;
	if (!pthread_create(&thread, NULL, attach_to_thread, &attempt))
		pthread_join(thread, NULL);
	close(attempt.attr.program_fd);
	if (attempt.result >= 0)
		close(attempt.result);
	/* A kernel that binds to processes finds none by a thread's id. */
	return attempt.result == -ESRCH;
}

int lien_uprobe_multi_attach(int program_fd, const char *path, const uint64_t *offsets,
	const uint64_t *cookies, unsigned count, struct lien_uprobe_multi_how how)
{
	struct link_create attr = {
		.program_fd = program_fd,
		.attach_type = LIEN_UPROBE_MULTI_TYPE,
		.path = (uintptr_t)path,
		.offsets = (uintptr_t)offsets,
		.cookies = (uintptr_t)cookies,
		.count = count,
		.multi_flags = how.at_return ? UPROBE_MULTI_RETURN : 0,
		.pid = how.pid,
	};

	return link_create(&attr);
}
