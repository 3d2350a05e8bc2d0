// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/follow.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lien/clock.h>
#include "loader/probes/make_link.h"
#include "loader/probes/probes_internal.h"
#include "loader/discover/untrusted.h"

#define NEVER UINT64_MAX

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

bool lien_probes_follows(const struct lien_probes *probes, uint32_t pid)
{
	const struct lien_following *following = find(probes, pid);

	return following && !following->links->making;
}

static int set_since(struct lien_probes *probes, uint32_t pid, uint64_t start, uint64_t since)
{
	struct lien_probe_followed followed = {.start = start, .t_since = since};

	return bpf_map_update_elem(MAP(probes, followed), &pid, &followed, BPF_ANY);
}

/* Returns since when an earlier agent's record of the process is valid. That agent's link exists
 * until lien_probes_finish_takeover(). */
static uint64_t since_before(const struct lien_probes *probes, uint32_t pid, uint64_t start)
{
	struct lien_probe_followed followed;

	if (probes->taken_over || bpf_map_lookup_elem(MAP(probes, followed), &pid, &followed) ||
		followed.start != start)
		return NEVER;
	return followed.t_since;
}

static struct lien_following *add(struct lien_probes *probes, uint32_t pid, uint64_t start)
{
	struct lien_following *following =
		reallocarray(probes->following, probes->following_count + 1, sizeof(*following));
	struct lien_attached *links = following ? lien_attached_new("a link") : NULL;

	if (following)
		probes->following = following;
	if (!links)
		return NULL;
	links->number = ++probes->next_attachment;
	following += probes->following_count++;
	*following = (struct lien_following){pid, links, start, since_before(probes, pid, start)};
	return following;
}

/* Finds the places of the calls with LIEN_CALL_CONTEXT. Returns 0, -ENODATA: there is none; -errno.
 */
static int find_contexts(struct lien_attached *attached, int fd)
{
	struct lien_call_places places = {.count = 0};
	const struct lien_call_place *place = places.places;
	int err = 0;

	if (!attached->contexts_known)
		err = lien_calls_look_up(&places, fd, attached->file.library);
	if (err)
		return err;
	attached->contexts_known = true;
	for (; place < places.places + places.count; place++)
		if (place->call->flags & LIEN_CALL_CONTEXT && place->offset != UINT64_MAX &&
			attached->contexts_count < LIEN_CONTEXT_CALLS)
			attached->contexts[attached->contexts_count++] = *place;
	return attached->contexts_count ? 0 : -ENODATA;
}

static int begin(const struct lien_probes *probes, const struct lien_following *following, int fd,
	struct lien_attached *attached)
{
	struct lien_probe_set set = {.count = 0};
	struct lien_link_request request;
	int err = find_contexts(attached, fd);
	unsigned i;

	if (err)
		return err;
	for (i = 0; i < attached->contexts_count; i++)
		lien_probe_set_add(&set, &attached->contexts[i], following->links->number);
	request = (struct lien_link_request){bpf_program__fd(probes->skel->progs.lien_entry),
		set.offsets, set.cookies, set.count, .pid = following->pid};
	return lien_attached_room(following->links, 1)
		       ?: lien_making_begin(&following->links->making, fd, &request, 1);
}

static void forget(struct lien_probes *probes, struct lien_following *following)
{
	bpf_map_delete_elem(MAP(probes, followed), &following->pid);
	lien_keep_remove(probes, following->links);
	*following = probes->following[--probes->following_count];
}

/* Returns 0: the process is followed now, or will be; -errno: it is not, and `following` is
 * gone. */
static int go_on(struct lien_probes *probes, struct lien_following *following)
{
	int err = lien_making_wait(&following->links->making, following->links->links);

	if (err == -EINPROGRESS)
		return 0;
	if (err) {
		forget(probes, following);
		return err;
	}
	lien_keep_links(probes, following->links);
	return following->since == NEVER
		       ? set_since(probes, following->pid, following->start, lien_clock_ns())
		       : 0;
}

int lien_probes_follow(struct lien_probes *probes, uint32_t pid, uint64_t start, const char *path)
{
	struct lien_attached *attached;
	struct lien_following *following;
	struct stat st;
	int fd, err;

	if (!probes->facts.can_follow || find(probes, pid))
		return 0;
	fd = lien_untrusted_open(path, &st);
	if (fd < 0)
		return fd;
	attached = lien_attached_find(probes, st.st_dev, st.st_ino);
	following = attached ? add(probes, pid, start) : NULL;
	if (!following) {
		close(fd);
		return attached ? -ENOMEM : -ENOENT;
	}
	err = set_since(probes, pid, start, following->since);
	if (!err)
		err = begin(probes, following, fd, attached);
	close(fd);
	if (err)
		forget(probes, following);
	return err ? err : go_on(probes, following);
}

bool lien_probes_in_progress(const struct lien_probes *probes)
{
	unsigned i;

	for (i = 0; i < probes->following_count; i++)
		if (probes->following[i].links->making)
			return true;
	return !TAILQ_EMPTY(&probes->attaching);
}

void lien_probes_follow_tick(struct lien_probes *probes,
	void (*failed)(void *context, uint32_t pid, int err), void *context)
{
	uint32_t pid;
	unsigned i;
	int err;

	for (i = probes->following_count; i-- > 0;) {
		pid = probes->following[i].pid;
		err = probes->following[i].links->making ? go_on(probes, &probes->following[i]) : 0;
		if (err)
			failed(context, pid, err);
	}
}

void lien_probes_unfollow(struct lien_probes *probes, uint32_t pid)
{
	struct lien_following *following = find(probes, pid);

	if (following)
		forget(probes, following);
}
