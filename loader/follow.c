// SPDX-License-Identifier: BSD-2-Clause
#include "loader/follow.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/clock.h"
#include "loader/close_later.h"
#include "loader/probes_internal.h"
#include "loader/untrusted.h"
#include "loader/uprobe_multi.h"

#define NEVER UINT64_MAX

bool lien_probes_can_follow(const struct lien_probes *probes)
{
	return probes->can_follow;
}

static struct lien_following *find(const struct lien_probes *probes, uint32_t pid)
{
	unsigned i;

	for (i = 0; i < probes->following_count; i++)
		if (probes->following[i].pid == pid)
			return &probes->following[i];
	return NULL;
}

bool lien_probes_is_followed(const struct lien_probes *probes, uint32_t pid)
{
	return find(probes, pid);
}

unsigned lien_probes_followed_count(const struct lien_probes *probes)
{
	return probes->following_count;
}

bool lien_probes_process(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_process *process)
{
	return !bpf_map_lookup_elem(bpf_map__fd(probes->skel->maps.processes), &pid, process);
}

static int set_since(struct lien_probes *probes, uint32_t pid, uint64_t start, uint64_t since)
{
	struct lien_probe_followed followed = {.start = start, .t_since = since};

	return bpf_map_update_elem(
		bpf_map__fd(probes->skel->maps.followed), &pid, &followed, BPF_ANY);
}

/* Is what an agent before this one knew still true? Its link is there until all is settled. */
static uint64_t since_before(const struct lien_probes *probes, uint32_t pid, uint64_t start)
{
	struct lien_probe_followed followed;

	if (probes->settled ||
		bpf_map_lookup_elem(bpf_map__fd(probes->skel->maps.followed), &pid, &followed) ||
		followed.start != start)
		return NEVER;
	return followed.t_since;
}

static struct lien_following *add(struct lien_probes *probes)
{
	struct lien_following *grown = realloc(
		probes->following, (probes->following_count + 1) * sizeof(*probes->following));

	if (!grown)
		return NULL;
	probes->following = grown;
	return &grown[probes->following_count];
}

static int attach(struct lien_probes *probes, const struct lien_attached *attached,
	const char *path, const struct lien_following *following)
{
	struct lien_probe_set set = {.count = 0};
	unsigned i;

	for (i = 0; i < attached->contexts_count; i++)
		lien_probe_set_add(&set, &attached->contexts[i], following->number);
	return lien_uprobe_multi_attach(bpf_program__fd(probes->skel->progs.lien_entry), path,
		set.offsets, set.cookies, set.count, LIEN_UPROBE_MULTI_OF_PROCESS(following->pid));
}

int lien_probes_follow(struct lien_probes *probes, uint32_t pid, uint64_t start, const char *path)
{
	struct lien_attached *attached;
	struct lien_following *following;
	uint64_t since;
	char fd_path[32];
	struct stat st;
	int fd, err;

	if (!probes->can_follow || find(probes, pid))
		return 0;
	following = add(probes);
	if (!following)
		return -ENOMEM;
	fd = lien_untrusted_open(path, &st);
	if (fd < 0)
		return fd;
	*following = (struct lien_following){pid, ++probes->next_attachment, -1};
	attached = lien_attached_find(probes, st.st_dev, st.st_ino);
	err = attached ? lien_attached_contexts(attached, fd) : -ENOENT;
	snprintf(fd_path, sizeof(fd_path), "/proc/self/fd/%d", fd);
	since = since_before(probes, pid, start);
	if (!err)
		err = set_since(probes, pid, start, since);
	if (!err)
		following->link = err = attach(probes, attached, fd_path, following);
	close(fd);
	if (err < 0)
		return err;
	probes->following_count++;
	lien_keep_following(probes, following);
	return since == NEVER ? set_since(probes, pid, start, lien_clock_ns()) : 0;
}

void lien_probes_unfollow(struct lien_probes *probes, uint32_t pid)
{
	struct lien_following *following = find(probes, pid);

	if (!following)
		return;
	bpf_map_delete_elem(bpf_map__fd(probes->skel->maps.followed), &pid);
	lien_keep_unfollow(probes, following);
	lien_close_later(following->link);
	*following = probes->following[--probes->following_count];
}
