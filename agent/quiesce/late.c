// SPDX-License-Identifier: BSD-2-Clause
#include "agent/quiesce/late.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/link/link.h"
#include "loader/discover/status.h"

/* Reads a line of /proc/PID/task/TID/syscall: "NUMBER ARGUMENTS SP PC", "-1 SP PC", or "running".
 */
static bool read_stand(char *text, uint64_t *number, uint64_t *argument, uint64_t *sp)
{
	char *space = strrchr(text, ' '), *end;

	if (!space)
		return false;
	*space = '\0';
	space = strrchr(text, ' ');
	if (!space)
		return false;
	*sp = strtoull(space + 1, NULL, 16);
	*number = strtoull(text, &end, 10);
	*argument = end < space ? strtoull(end, NULL, 16) : UINT64_MAX;
	return true;
}

bool lien_late_stands(
	uint32_t pid, uint32_t tid, uint64_t *number, uint64_t *argument, uint64_t *sp)
{
	char path[64], text[256];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/task/%u/syscall", pid, tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	*number = *argument = *sp = UINT64_MAX;
	if (n <= 0)
		return true; /* it has ended */
	text[n] = '\0';
	return read_stand(text, number, argument, sp);
}

static bool was_found(const struct lien_tracked *tracked, uint32_t tid)
{
	unsigned i;

	for (i = 0; i < tracked->late_count; i++)
		if (tracked->late[i] == tid)
			return true;
	return false;
}

bool lien_late_waits(struct lien_agent *agent, uint32_t pid, uint32_t tid, uint32_t *own)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);
	struct lien_tracked *tracked = process ? process->agent : NULL;
	struct lien_control_state state;
	uint64_t number, argument, sp;
	long long inner;

	if (!tracked || tracked->late_count == LIEN_LATE_MAX || was_found(tracked, tid) ||
		!lien_late_stands(pid, tid, &number, &argument, &sp) || number != SYS_futex ||
		lien_link_state(pid, &tracked->place, &state) || argument != state.gate)
		return false;
	inner = lien_status_of(pid, tid, "NSpid", 10);
	if (inner <= 0)
		return false;
	*own = inner;
	tracked->late[tracked->late_count++] = tid;
	return true;
}
