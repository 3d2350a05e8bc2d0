// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/gate_links.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lien/clock.h>
#include "loader/discover/detached.h"
#include "loader/probes/close_later.h"
#include "loader/probes/gate.h"
#include "loader/probes/make_link.h"
#include "loader/probes/uprobe_close.h"

#define STACK 65536
#define S_NS  1000000000ull

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stopped = PTHREAD_COND_INITIALIZER;

/* --- the list --------------------------------------------------------------------------------- */

struct lien_gate_links *lien_gate_links_add(struct lien_probes *probes, unsigned count)
{
	struct lien_gate_links **grown, *links;

	grown = reallocarray(probes->gate_links, probes->gate_links_count + 1, sizeof(*grown));
	if (!grown)
		return NULL;
	probes->gate_links = grown;
	links = calloc(1, sizeof(*links));
	if (!links)
		return NULL;
	links->fds = malloc(count * sizeof(links->fds[0]));
	if (!links->fds) {
		free(links);
		return NULL;
	}
	memset(links->fds, 0xff, count * sizeof(links->fds[0]));
	links->count = count;
	grown[probes->gate_links_count++] = links;
	return links;
}

void lien_gate_links_forget(struct lien_probes *probes, struct lien_gate_links *links)
{
	unsigned i;

	for (i = 0; probes->gate_links[i] != links; i++)
		;
	probes->gate_links[i] = probes->gate_links[--probes->gate_links_count];
	lien_making_abandon(&links->making);
	free(links->fds);
	free(links);
}

dev_t lien_gate_links_device(const struct lien_probes *probes, const struct stat *st)
{
	const struct lien_attached *attached = lien_attached_find(probes, st->st_dev, st->st_ino);

	return attached ? attached->file.device : st->st_dev;
}

static bool is_of(const struct lien_probes *probes, const struct lien_gate_links *links,
	uint32_t pid, const struct stat *st)
{
	return links->pid == pid && links->inode == st->st_ino &&
	       links->device == lien_gate_links_device(probes, st) &&
	       links->build == lien_keep_gate_build(probes);
}

/* Those that are bound to the process of `like`, or all processes see (pid 0). */
static struct lien_gate_links *find(const struct lien_probes *probes, uint32_t pid,
	const struct stat *st, const struct lien_gate_links *like)
{
	struct lien_gate_links *links;
	unsigned i;

	for (i = 0; i < probes->gate_links_count; i++) {
		links = probes->gate_links[i];
		if (is_of(probes, links, pid, st) && links->places == like->places &&
			links->count == like->count &&
			(!pid || !links->start || links->start == like->start))
			return links;
	}
	return NULL;
}

/* --- removing --------------------------------------------------------------------------------- */

/* Returns true if the links are nobody's now but the caller's. If not, they will be soon. */
static bool stop_removing(struct lien_gate_links *links)
{
	bool removing;

	pthread_mutex_lock(&lock);
	links->stop = links->removing;
	removing = links->removing;
	pthread_mutex_unlock(&lock);
	return !removing;
}

/* Returns the index of the next link to remove; -1: none. */
static int next_removed(struct lien_gate_links *links)
{
	int next = -1;

	pthread_mutex_lock(&lock);
	if (links->left && !links->stop)
		next = links->left - 1;
	else
		links->removing = links->stop = false;
	pthread_cond_broadcast(&stopped);
	pthread_mutex_unlock(&lock);
	return next;
}

struct removal {
	struct lien_probes *probes;
	struct lien_gate_links *links;
};

/* Entries go before returns: a thread that is counted in is counted out. */
static void *remove_all(void *of)
{
	struct removal *removal = of;
	struct lien_gate_links *links = removal->links;
	int i, fd;

	while ((i = next_removed(links)) >= 0) {
		fd = lien_keep_gate_link_take(removal->probes, links, i);
		if (fd >= 0)
			lien_uprobe_close(fd);
		pthread_mutex_lock(&lock);
		links->left = i;
		pthread_mutex_unlock(&lock);
	}
	free(removal);
	return NULL;
}

/* Links that all processes see, one by one. Unlike that of many at once, their removal delays
 * fork() little (docs/measurements.md), so lien_close_later_busy() does not count it. Without
 * memory or a thread, a later tick does it. */
static void begin_to_remove(struct lien_probes *probes, struct lien_gate_links *links)
{
	struct removal *removal = malloc(sizeof(*removal));

	if (!removal)
		return;
	*removal = (struct removal){probes, links};
	links->removing = true;
	if (!lien_detached_start(STACK, remove_all, removal))
		return;
	links->removing = false;
	free(removal);
}

/* Two links, which the kernel removes in one go. */
static void remove_at_once(struct lien_probes *probes, struct lien_gate_links *links)
{
	unsigned i;
	int fd;

	for (i = links->left; i-- > 0;) {
		fd = lien_keep_gate_link_take(probes, links, i);
		if (fd >= 0)
			lien_close_later(fd);
	}
	lien_gate_links_forget(probes, links);
}

/* A gate that an earlier agent made may depend on any links, until it is known to be open. */
static bool may_be_needed(const struct lien_probes *probes)
{
	struct lien_probe_gate gate;
	unsigned i;

	for (i = 0; i < probes->gates_count; i++)
		if (probes->gates[i].inherited &&
			lien_probes_gate_get(probes, probes->gates[i].pid, &gate))
			return true;
	return false;
}

void lien_gate_links_put(struct lien_probes *probes, struct lien_gate_links *links)
{
	if (--links->users)
		return;
	links->t_unused = lien_clock_ns();
	if (!links->kept && !may_be_needed(probes))
		remove_at_once(probes, links);
}

static bool goes(const struct lien_gate_links *links, uint32_t pid, bool ends, bool shared)
{
	bool stays = links->kept && links->left == links->count;

	if (links->users)
		return false;
	return links->pid ? links->pid == pid && (ends || !stays)
			  : shared && !links->each && !stays;
}

void lien_gate_links_end(struct lien_probes *probes, uint32_t pid, bool ends, bool last)
{
	const bool shared = last && !may_be_needed(probes);
	unsigned i;

	for (i = probes->gate_links_count; i-- > 0;)
		if (goes(probes->gate_links[i], pid, ends, shared))
			remove_at_once(probes, probes->gate_links[i]);
}

static bool is_removed(struct lien_gate_links *links)
{
	bool removed;

	pthread_mutex_lock(&lock);
	removed = !links->left && !links->removing;
	pthread_mutex_unlock(&lock);
	return removed;
}

static bool is_removing(struct lien_gate_links *links)
{
	bool removing;

	pthread_mutex_lock(&lock);
	removing = links->removing;
	pthread_mutex_unlock(&lock);
	return removing;
}

static bool is_due(const struct lien_probes *probes, const struct lien_gate_links *links)
{
	return !links->users &&
	       (links->build != lien_keep_gate_build(probes) ||
		       lien_clock_ns() - links->t_unused > LIEN_GATE_LINKS_KEPT_S * S_NS);
}

void lien_gate_links_tick(struct lien_probes *probes)
{
	struct lien_gate_links *links;
	bool needed = may_be_needed(probes);
	unsigned i;

	for (i = probes->gate_links_count; i-- > 0;) {
		links = probes->gate_links[i];
		if (is_removing(links) || (needed && !is_removed(links)) || !is_due(probes, links))
			continue;
		lien_making_abandon(&links->making); /* whoever asked for it does so no more */
		if (is_removed(links))
			lien_gate_links_forget(probes, links);
		else if (!links->each)
			remove_at_once(probes, links);
		else
			begin_to_remove(probes, links);
	}
}

void lien_gate_links_stop(struct lien_probes *probes)
{
	struct lien_gate_links *links;
	unsigned i;

	for (i = 0; i < probes->gate_links_count; i++) {
		links = probes->gate_links[i];
		pthread_mutex_lock(&lock);
		links->stop = links->removing;
		while (links->removing)
			pthread_cond_wait(&stopped, &lock);
		pthread_mutex_unlock(&lock);
	}
}

void lien_gate_links_free(struct lien_probes *probes)
{
	struct lien_gate_links *links;
	unsigned i;

	lien_gate_links_stop(probes);
	while (probes->gate_links_count) {
		links = probes->gate_links[0];
		for (i = 0; i < links->left; i++)
			if (links->fds[i] >= 0)
				lien_uprobe_close(links->fds[i]);
		lien_gate_links_forget(probes, links);
	}
	free(probes->gate_links);
	probes->gate_links = NULL;
	lien_gate_places_free(&probes->gate_places);
}

/* --- making ----------------------------------------------------------------------------------- */

/* Begins to make the links that are missing: first the returns, so that every thread counted in is
 * counted out. */
static int begin(struct lien_probes *probes, struct lien_gate_links *links, int fd,
	const struct lien_probe_set *set)
{
	struct lien_link_request requests[LIEN_LINK_REQUESTS];
	unsigned there = links->left, first, i;

	for (i = 0; i < LIEN_LINK_REQUESTS; i++, there -= first) {
		first = there < set->count ? there : set->count;
		requests[i] = (struct lien_link_request){
			bpf_program__fd(i ? probes->skel->progs.lien_gate_entry
					  : probes->skel->progs.lien_gate_return),
			set->offsets + first, set->cookies + first, set->count - first,
			.each = links->each, .how = {.at_return = !i, .pid = links->pid}};
	}
	return lien_making_begin(&links->making, fd, requests, LIEN_LINK_REQUESTS);
}

static int go_on(struct lien_probes *probes, struct lien_gate_links *links)
{
	unsigned from = links->left;
	int err = lien_making_wait(&links->making, links->fds + from);

	if (err)
		return err;
	links->left = links->count;
	lien_keep_gate_links(probes, links, from);
	return 0;
}

/* Returns 0: they are complete. */
static int complete(struct lien_probes *probes, struct lien_gate_links *links, int fd,
	const struct lien_probe_set *set, bool wait)
{
	int err = 0;

	if (!stop_removing(links))
		return -EINPROGRESS;
	if (!links->making && links->left < links->count)
		err = begin(probes, links, fd, set);
	if (!err && links->making)
		err = wait ? go_on(probes, links) : -EINPROGRESS;
	return err;
}

bool lien_gate_links_ready(const struct lien_probes *probes, uint32_t pid)
{
	const struct lien_gate_links *links;
	unsigned i;

	for (i = 0; i < probes->gate_links_count; i++) {
		links = probes->gate_links[i];
		if ((links->pid == pid || !links->pid) && links->making &&
			!lien_making_ready(links->making))
			return false;
	}
	return true;
}

static struct lien_gate_links *add(
	struct lien_probes *probes, const struct stat *st, const struct lien_gate_links *like)
{
	struct lien_gate_links *links = lien_gate_links_add(probes, like->count);

	if (!links)
		return NULL;
	links->device = lien_gate_links_device(probes, st);
	links->inode = st->st_ino;
	links->places = like->places;
	links->each = like->each;
	links->kept = like->kept;
	links->pid = like->pid;
	links->start = like->pid ? like->start : 0;
	links->build = lien_keep_gate_build(probes);
	links->number = ++probes->next_attachment;
	return links;
}

int lien_gate_links_get(struct lien_probes *probes, const struct lien_gate *gate, int fd,
	const struct stat *st, enum lien_library library, bool all, bool wait,
	struct lien_gate_links **out)
{
	const bool bound = probes->can_follow && !gate->shared;
	struct lien_gate_links like = {0}, *links;
	const struct lien_probe_set *set;
	int err = lien_gate_places(&probes->gate_places, fd, st, library, all, &set, &like.places);

	if (err || !set->count)
		return err ? err : 1;
	like.each = !probes->multi;
	like.kept = like.each || !all;
	like.start = gate->start;
	like.count = LIEN_LINK_REQUESTS * (like.each ? set->count : 1);
	links = find(probes, 0, st, &like);
	if (links && bound && !links->users && !may_be_needed(probes)) {
		remove_at_once(probes, links); /* by now others would pay for them */
		links = NULL;
	}
	if (!links && bound) {
		like.pid = gate->pid;
		links = find(probes, like.pid, st, &like);
	}
	if (!links)
		links = add(probes, st, &like);
	if (!links)
		return -ENOMEM;
	if (links->failed)
		return links->failed;
	links->t_unused = lien_clock_ns();
	links->kept |= like.kept;
	err = complete(probes, links, fd, set, wait);
	if (err && err != -EINPROGRESS && links->each)
		links->failed = err;
	else if (err && err != -EINPROGRESS && !links->left)
		lien_gate_links_forget(probes, links);
	if (err)
		return err;
	links->users++;
	*out = links;
	return 0;
}
