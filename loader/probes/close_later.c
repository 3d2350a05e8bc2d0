// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/close_later.h"

#include <bpf/bpf.h>
#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loader/discover/detached.h"
#include "loader/probes/uprobe_close.h"

#define STACK 65536

static unsigned under_way; /* closings in progress or held back */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static unsigned holds;

struct closing {
	void (*work)(void *arg);
	void *arg;
};

bool lien_close_later_busy(void)
{
	return __atomic_load_n(&under_way, __ATOMIC_ACQUIRE);
}

void lien_close_later_hold(void)
{
	pthread_mutex_lock(&lock);
	holds++;
	pthread_mutex_unlock(&lock);
}

void lien_close_later_go_on(void)
{
	pthread_mutex_lock(&lock);
	holds--;
	pthread_cond_broadcast(&released);
	pthread_mutex_unlock(&lock);
}

static void *close_now(void *of)
{
	struct closing *closing = of;

	pthread_mutex_lock(&lock);
	while (holds)
		pthread_cond_wait(&released, &lock);
	pthread_mutex_unlock(&lock);
	closing->work(closing->arg);
	free(closing);
	__atomic_sub_fetch(&under_way, 1, __ATOMIC_ACQ_REL);
	return NULL;
}

/* Each in its own thread: threads that wait for the kernel at the same time share one grace
 * period. */
void lien_close_later_by(void (*work)(void *arg), void *arg)
{
	struct closing *closing = malloc(sizeof(*closing));

	if (!closing) {
		work(arg);
		return;
	}
	*closing = (struct closing){work, arg};
	__atomic_add_fetch(&under_way, 1, __ATOMIC_ACQ_REL);
	if (!lien_detached_start(STACK, close_now, closing))
		return;
	__atomic_sub_fetch(&under_way, 1, __ATOMIC_ACQ_REL);
	work(arg);
	free(closing);
}

static void close_one(void *fd)
{
	lien_uprobe_close((int)(intptr_t)fd);
}

void lien_close_later(int fd)
{
	lien_close_later_by(close_one, (void *)(intptr_t)fd);
}

struct all {
	unsigned count;
	int fds[];
};

static void close_all(void *of)
{
	struct all *all = of;

	while (all->count)
		lien_uprobe_close(all->fds[--all->count]);
	free(all);
}

void lien_close_all_later(const int *fds, unsigned count)
{
	struct all *all = malloc(sizeof(*all) + count * sizeof(*fds));
	unsigned i;

	if (all)
		all->count = 0;
	for (i = 0; i < count; i++)
		if (fds[i] >= 0 && all)
			all->fds[all->count++] = fds[i];
		else if (fds[i] >= 0)
			lien_uprobe_close(fds[i]);
	if (all && all->count)
		lien_close_later_by(close_all, all);
	else
		free(all);
}

/* Iterators delay nobody, and the child reads them. */
static bool holds_up(int fd)
{
	struct bpf_link_info link = {};
	unsigned size = sizeof(link);

	return bpf_obj_get_info_by_fd(fd, &link, &size) || link.type != BPF_LINK_TYPE_ITER;
}

static bool is_link(int folder, const char *name)
{
	char to[32] = ""; /* "anon_inode:bpf_link", "anon_inode:[perf_event]" */

	return readlinkat(folder, name, to, sizeof(to) - 1) > 0 &&
	       (strstr(to, "perf_event") || (strstr(to, "bpf_link") && holds_up(atoi(name))));
}

void lien_close_inherited_links(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;

	while (folder && (entry = readdir(folder)))
		if (is_link(dirfd(folder), entry->d_name))
			close(atoi(entry->d_name));
	if (folder)
		closedir(folder);
}
