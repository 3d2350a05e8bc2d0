// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/probe.h>

#include "agent/graph/graph.h"
#include "loader/discover/status.h"

#define FDS_MAX	     65536 /* a process with more may have a card open */
#define FLAG_EXITING 0x4   /* PF_EXITING: set before the process's files are closed */

/* Fields 3, 9, 20 and 22 of /proc/PID/stat, counted after the command's last ')'. */
struct stat_line {
	char state;
	unsigned flags, threads;
	unsigned long long start; /* clock ticks */
};

/* 0, or -ESRCH. */
static int read_stat(uint32_t pid, struct stat_line *stat)
{
	char path[32], line[1024];
	const char *at;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return -ESRCH;
	/* The command may contain newlines. */
	line[fread(line, 1, sizeof(line) - 1, file)] = 0;
	fclose(file);
	at = strrchr(line, ')');
	return at && sscanf(at + 1,
			     " %c %*s %*s %*s %*s %*s %u %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
			     "%u %*s %llu",
			     &stat->state, &stat->flags, &stat->threads, &stat->start) == 4
		       ? 0
		       : -ESRCH;
}

uint64_t lien_proc_start(uint32_t pid)
{
	struct stat_line stat;

	return read_stat(pid, &stat) ? 0 : stat.start;
}

bool lien_proc_runs(uint32_t pid, uint64_t start)
{
	struct stat_line stat;

	return !read_stat(pid, &stat) && stat.start == LIEN_START_TICKS(start);
}

bool lien_proc_has_ended(uint32_t pid, uint64_t start)
{
	struct stat_line stat;

	return read_stat(pid, &stat) || stat.start != LIEN_START_TICKS(start) ||
	       ((stat.state == 'Z' || stat.state == 'X') && stat.threads <= 1);
}

bool lien_proc_is_ending(uint32_t pid, uint64_t start)
{
	struct stat_line stat;

	return read_stat(pid, &stat) || stat.start != LIEN_START_TICKS(start) ||
	       stat.flags & FLAG_EXITING;
}

void lien_proc_command(uint32_t pid, char *command, size_t size)
{
	char path[32];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, command, size - 1);
	if (fd >= 0)
		close(fd);
	command[n > 0 ? n : 0] = '\0';
	command[strcspn(command, "\n")] = '\0';
}

bool lien_proc_owned(const struct lien_process *process, const struct lien_viewer *viewer)
{
	unsigned real, effective, saved;
	char text[LIEN_STATUS_SIZE];
	const char *uids;

	if (!process || !viewer->one_user)
		return process;
	uids = lien_status_read(process->pid, 0, text) ? NULL : lien_status_field(text, "Uid");
	return uids && sscanf(uids, "%u %u %u", &real, &effective, &saved) == 3 &&
	       process->uid == viewer->uid && real == viewer->uid && effective == real &&
	       saved == real;
}

char lien_proc_stopped(uint32_t pid)
{
	char text[LIEN_STATUS_SIZE];
	const char *state;

	state = lien_status_read(pid, 0, text) ? NULL : lien_status_field(text, "State");
	return state && (*state == 'T' || *state == 't') ? *state : 0;
}

/* strace stops a thread at each system call, for some 0.1 ms. */
#define LOOKS	5
#define LOOK_US 2000

bool lien_proc_halted(uint32_t pid, char remedy[static LIEN_REMEDY_SIZE])
{
	char stopped = lien_proc_stopped(pid);
	long long tracer;
	unsigned i;

	for (i = 1; stopped == 't' && i < LOOKS; i++) {
		usleep(LOOK_US);
		stopped = lien_proc_stopped(pid);
	}
	tracer = stopped == 't' ? lien_status_of(pid, 0, "TracerPid", 10) : 0;
	if (stopped == 't')
		snprintf(remedy, LIEN_REMEDY_SIZE, "debugger: process %lld",
			tracer > 0 ? tracer : 0);
	else
		snprintf(remedy, LIEN_REMEDY_SIZE, "kill -CONT %u", pid);
	return stopped;
}

const char *lien_proc_halted_words(uint32_t pid)
{
	char remedy[LIEN_REMEDY_SIZE];

	if (!lien_proc_halted(pid, remedy))
		return NULL;
	return remedy[0] == 'd' ? "a debugger has stopped it: let it go on first"
				: "it is stopped: let it go on first (kill -CONT)";
}

int lien_proc_check_goes_on(uint32_t pid, char *error, size_t size)
{
	char remedy[LIEN_REMEDY_SIZE];

	if (!lien_proc_halted(pid, remedy))
		return 0;
	snprintf(error, size, "process %u is stopped: let it go on first (%s)", pid, remedy);
	return -EBUSY;
}

#define GDRCOPY "/dev/gdrdrv"

/* Memory can only be registered on machines that have such devices. */
bool lien_proc_cards(void)
{
	DIR *cards = opendir("/sys/class/infiniband");
	struct dirent *entry;
	bool any = !access(GDRCOPY, F_OK);

	while (cards && (entry = readdir(cards)))
		any |= entry->d_name[0] != '.';
	if (cards)
		closedir(cards);
	return any;
}

/* Is there a descriptor of the process that is so? True if that cannot be determined. */
static bool any_file(uint32_t pid, bool (*is_so)(uint32_t pid, const char *fd, const char *link))
{
	char path[40], link[64];
	struct dirent *entry;
	unsigned count = 0;
	bool any = false;
	ssize_t n;
	DIR *fds;

	snprintf(path, sizeof(path), "/proc/%u/fd", pid);
	fds = opendir(path);
	while (fds && !any && (entry = readdir(fds))) {
		n = readlinkat(dirfd(fds), entry->d_name, link, sizeof(link) - 1);
		link[n < 0 ? 0 : n] = '\0';
		any = is_so(pid, entry->d_name, link) || ++count > FDS_MAX;
	}
	if (fds)
		closedir(fds);
	return any || !fds; /* unreadable: assume it may */
}

static bool is_card(uint32_t pid, const char *fd, const char *link)
{
	(void)pid;
	(void)fd;
	return !strncmp(link, "/dev/infiniband/uverbs", 22) || !strcmp(link, GDRCOPY);
}

bool lien_proc_uses_cards(uint32_t pid)
{
	return lien_proc_cards() && any_file(pid, is_card);
}

static bool awaits_file(uint32_t pid, const char *fd, const char *link)
{
	unsigned long long inside = 0;
	char path[64], line[128];
	FILE *info = NULL;

	snprintf(path, sizeof(path), "/proc/%u/fdinfo/%s", pid, fd);
	if (!strncmp(link, "socket:", 7))
		info = fopen(path, "re");
	while (info && !inside && fgets(line, sizeof(line), info))
		sscanf(line, "scm_fds: %llu", &inside);
	if (info)
		fclose(info);
	return inside;
}

bool lien_proc_awaits_files(uint32_t pid)
{
	return any_file(pid, awaits_file);
}
