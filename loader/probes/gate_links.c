// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/gate_links.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lien/clock.h>
#include "agent/graph/hash.h"
#include "loader/probes/make_link.h"
#include "loader/probes/uprobe.h"

#define S_NS	   1000000000ull
#define GO_AT_ONCE 8	/* of those with one link for each place, */
#define GO_NEXT_NS S_NS /* and the next ones so much later */

/* --- places ----------------------------------------------------------------------------------- */

/* Where the gate's probes go in a library's file. A gate asks several times, as does each other
 * gate of the same file, and it takes a millisecond to find out: so the last answers are kept,
 * until the file changes. */
struct lien_gate_places {
	struct lien_file_state file;
	enum lien_library library;
	bool all;
	uint64_t hash; /* of the places and their cookies */
	struct lien_probe_set set;
};

static bool are_of(const struct lien_gate_places *places, const struct stat *st,
	enum lien_library library, bool all)
{
	return lien_file_state_is(&places->file, st) && places->library == library &&
	       places->all == all;
}

static int look_up(struct lien_gate_places *places, int fd, const struct stat *st,
	enum lien_library library, bool all)
{
	struct lien_probe_set *set = &places->set;
	int err = lien_calls_gated(set, fd, library, all);

	places->file = err ? (struct lien_file_state){0} : lien_file_state_of(st);
	places->library = library;
	places->all = all;
	places->hash = lien_hash(LIEN_HASH_START, set->offsets, set->count * sizeof(*set->offsets));
	places->hash = lien_hash(places->hash, set->cookies, set->count * sizeof(*set->cookies));
	return err;
}

/* Returns 0: kept[0] are the places; or the errors of lien_calls_gated(). */
static int find_places(struct lien_gate_places *kept[LIEN_GATE_PLACES_KEPT], int fd,
	const struct stat *st, enum lien_library library, bool all)
{
	struct lien_gate_places *places;
	unsigned i = 0;

	while (i < LIEN_GATE_PLACES_KEPT - 1 && kept[i] && !are_of(kept[i], st, library, all))
		i++;
	places = kept[i] ? kept[i] : calloc(1, sizeof(*places));
	if (!places)
		return -ENOMEM;
	memmove(kept + 1, kept, i * sizeof(*kept)); /* one that is new takes the last one's place */
	kept[0] = places;
	return are_of(places, st, library, all) ? 0 : look_up(places, fd, st, library, all);
}

/* --- the list --------------------------------------------------------------------------------- */

static uint32_t build_of(const struct lien_probes *probes)
{
	return lien_hash(LIEN_HASH_START, probes->build, strlen(probes->build));
}

/* Returns a copy of `like` that has no links yet; NULL: out of memory. */
static struct lien_gate_links *add(struct lien_probes *probes, const struct lien_gate_links *like)
{
	struct lien_gate_links *links = malloc(sizeof(*links));

	if (!links)
		return NULL;
	*links = *like;
	links->fds = malloc(links->count * sizeof(links->fds[0]));
	if (!links->fds) {
		free(links);
		return NULL;
	}
	memset(links->fds, 0xff, links->count * sizeof(links->fds[0]));
	TAILQ_INSERT_TAIL(&probes->gate_links, links, next);
	return links;
}

/* Frees links whose fds are closed. */
static void forget(struct lien_probes *probes, struct lien_gate_links *links)
{
	TAILQ_REMOVE(&probes->gate_links, links, next);
	lien_making_abandon(&links->making);
	free(links->fds);
	free(links);
}

/* Finds those for the same places and process, or that all processes see (pid 0). */
static struct lien_gate_links *find(
	const struct lien_probes *probes, const struct lien_gate_links *like)
{
	struct lien_gate_links *links;

	TAILQ_FOREACH (links, &probes->gate_links, next)
		if (links->pid == like->pid && links->inode == like->inode &&
			links->device == like->device && links->build == like->build &&
			links->places == like->places && links->count == like->count &&
			(!like->pid || !links->start || links->start == like->start))
			return links;
	return NULL;
}

/* --- pins ------------------------------------------------------------------------------------- */

static void name_pin(const struct lien_gate_links *links, unsigned index, char *name, size_t size)
{
	snprintf(name, size,
		"gate-%u-%u-%08" PRIx32 "-%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%d-%u-%u",
		links->number, links->pid, links->build, (uint64_t)links->device,
		(uint64_t)links->inode, links->places, links->each, links->count, index);
}

/* Returns false if the name is no gate's. */
static bool read_pin(const char *name, struct lien_gate_links *links)
{
	uint64_t device, inode;
	unsigned each, index;

	if (sscanf(name,
		    "gate-%u-%" SCNu32 "-%" SCNx32 "-%" SCNx64 "-%" SCNx64 "-%" SCNx64 "-%u-%u-%u",
		    &links->number, &links->pid, &links->build, &device, &inode, &links->places,
		    &each, &links->count, &index) != 9)
		return false;
	links->device = device;
	links->inode = inode;
	links->each = links->kept = each;
	return true;
}

/* Pins those from the index on. */
static void pin(struct lien_probes *probes, struct lien_gate_links *links, unsigned from)
{
	char name[160];
	unsigned i;

	for (i = from; i < links->count; i++) {
		name_pin(links, i, name, sizeof(name));
		if (!lien_keep_link(probes, name, links->fds[i], "a link"))
			break;
		if (links->each) {
			close(links->fds[i]);
			links->fds[i] = -1;
		}
	}
}

static bool has_gate(const struct lien_probes *probes, uint32_t pid)
{
	struct lien_probe_gate gate;

	return !bpf_map_lookup_elem(MAP(probes, gates), &pid, &gate);
}

static bool is_taken(const struct lien_probes *probes, unsigned number)
{
	const struct lien_gate_links *links;

	TAILQ_FOREACH (links, &probes->gate_links, next)
		if (links->number == number)
			return true;
	return false;
}

/* Links are pinned from the first and removed from the last, so those that exist are the first. */
static void take(struct lien_probes *probes, const struct lien_gate_links *found)
{
	struct lien_gate_links *links = add(probes, found);
	char name[160];

	for (; links && links->left < links->count; links->left++) {
		name_pin(links, links->left, name, sizeof(name));
		if (links->each && lien_pins_has(probes->pins, name))
			continue;
		links->fds[links->left] = lien_pins_get(probes->pins, name);
		if (links->fds[links->left] < 0)
			break;
	}
	/* One of two: keep it while it may be needed, never use it again. */
	if (links && !links->each && links->left < links->count)
		links->build = 0;
}

static void take_one(void *context, const char *name)
{
	struct lien_gate_links found = {.t_unused = lien_clock_ns()};
	struct lien_probes *probes = context;

	if (!read_pin(name, &found))
		return;
	if (found.number > probes->next_attachment)
		probes->next_attachment = found.number;
	if (found.pid && !has_gate(probes, found.pid))
		lien_pins_drop(probes->pins, name);
	else if (!is_taken(probes, found.number))
		take(probes, &found);
}

void lien_gate_links_take(struct lien_probes *probes)
{
	lien_pins_each(probes->pins, take_one, probes);
}

/* --- removing --------------------------------------------------------------------------------- */

/* Entries go before returns: a thread that is counted in is counted out. */
static void remove_to(struct lien_probes *probes, struct lien_gate_links *links, unsigned left)
{
	char name[160];
	int *fd;

	while (links->left > left) {
		fd = &links->fds[--links->left];
		if (*fd >= 0)
			lien_uprobe_close(*fd);
		*fd = -1;
		name_pin(links, links->left, name, sizeof(name));
		lien_pins_drop(probes->pins, name);
	}
	if (!left)
		forget(probes, links);
}

/* A gate that an earlier agent made may depend on any links, until it is known to be open. */
static bool may_be_needed(const struct lien_probes *probes)
{
	unsigned i;

	for (i = 0; i < probes->facts.gates; i++)
		if (probes->gates[i].inherited && has_gate(probes, probes->gates[i].pid))
			return true;
	return false;
}

static void put(struct lien_probes *probes, struct lien_gate_links *links)
{
	if (--links->users)
		return;
	links->t_unused = lien_clock_ns();
	if (!links->kept && !may_be_needed(probes))
		remove_to(probes, links, 0);
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
	struct lien_gate_links *links, *next;

	TAILQ_FOREACH_SAFE(links, &probes->gate_links, next, next)
	if (goes(links, pid, ends, shared))
		remove_to(probes, links, 0);
}

void lien_probes_gate_tick(struct lien_probes *probes)
{
	const uint64_t now = lien_clock_ns();
	struct lien_gate_links *links, *next;
	bool needed = may_be_needed(probes);

	TAILQ_FOREACH_SAFE(links, &probes->gate_links, next, next)
	{
		if (links->users || (needed && links->left) || now < links->t_next ||
			(links->build == build_of(probes) &&
				now - links->t_unused <= LIEN_GATE_LINKS_KEPT_S * S_NS))
			continue;
		lien_making_abandon(&links->making); /* whoever asked for it does so no more */
		links->t_next = now + GO_NEXT_NS;
		remove_to(probes, links,
			links->each && links->left > GO_AT_ONCE ? links->left - GO_AT_ONCE : 0);
	}
}

void lien_gate_links_free(struct lien_probes *probes)
{
	struct lien_gate_links *links;
	unsigned i;

	while ((links = TAILQ_FIRST(&probes->gate_links))) {
		for (i = 0; i < links->left; i++)
			if (links->fds[i] >= 0)
				lien_uprobe_close(links->fds[i]);
		forget(probes, links);
	}
	for (i = 0; i < LIEN_GATE_PLACES_KEPT; i++) {
		free(probes->gate_places[i]);
		probes->gate_places[i] = NULL;
	}
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
			.each = links->each, .at_return = !i, .pid = links->pid};
	}
	return lien_making_begin(&links->making, fd, requests, LIEN_LINK_REQUESTS);
}

/* Returns 0: they are complete. */
static int complete(struct lien_probes *probes, struct lien_gate_links *links, int fd,
	const struct lien_probe_set *set, bool wait)
{
	const unsigned from = links->left;
	int err = 0;

	if (!links->making && from < links->count)
		err = begin(probes, links, fd, set);
	if (err || !links->making)
		return err;
	err = wait ? lien_making_wait(&links->making, links->fds + from) : -EINPROGRESS;
	if (err)
		return err;
	links->left = links->count;
	pin(probes, links, from);
	return 0;
}

bool lien_probes_gate_ready(const struct lien_probes *probes, uint32_t pid)
{
	const struct lien_gate_links *links;

	TAILQ_FOREACH (links, &probes->gate_links, next)
		if ((links->pid == pid || !links->pid) && links->making &&
			!lien_making_ready(links->making))
			return false;
	return true;
}

/* Gets a reference to complete links for a file. Returns as lien_gate_file_add(), or 1: there is
 * nothing to hold in it. */
static int get(struct lien_probes *probes, const struct lien_gate *gate, int fd,
	const struct stat *st, enum lien_library library, bool all, bool wait,
	struct lien_gate_links **out)
{
	const bool bound = probes->facts.can_follow && !gate->shared;
	struct lien_gate_links like = {.device = st->st_dev,
		.inode = st->st_ino,
		.build = build_of(probes),
		.each = !probes->facts.multi,
		.kept = !probes->facts.multi || !all};
	const struct lien_probe_set *set;
	struct lien_gate_links *links;
	int err = find_places(probes->gate_places, fd, st, library, all);

	if (err)
		return err;
	set = &probes->gate_places[0]->set;
	if (!set->count)
		return 1;
	like.places = probes->gate_places[0]->hash;
	like.count = LIEN_LINK_REQUESTS * (like.each ? set->count : 1);
	links = find(probes, &like);
	if (links && bound && !links->users && !may_be_needed(probes)) {
		remove_to(probes, links, 0); /* by now others would pay for them */
		links = NULL;
	}
	if (!links && bound) {
		like.pid = gate->pid;
		like.start = gate->start;
		links = find(probes, &like);
	}
	if (!links) {
		like.number = ++probes->next_attachment;
		links = add(probes, &like);
	}
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
		forget(probes, links);
	if (err)
		return err;
	links->users++;
	*out = links;
	return 0;
}

/* --- the files of a gate ---------------------------------------------------------------------- */

static bool has_file(const struct lien_gate *gate, const struct stat *st, bool all)
{
	unsigned i;

	for (i = 0; i < gate->files_count; i++)
		if (lien_file_state_is(&gate->files[i].state, st) && gate->files[i].all >= all)
			return true;
	return false;
}

static struct lien_gate_file *file_with(struct lien_gate *gate, const struct lien_gate_links *links)
{
	unsigned i;

	for (i = 0; i < gate->files_count; i++)
		if (gate->files[i].links == links)
			return &gate->files[i];
	return NULL;
}

int lien_gate_file_add(struct lien_probes *probes, struct lien_gate *gate, int fd,
	const struct stat *st, enum lien_library library, bool all, bool wait)
{
	const struct lien_attached *same = lien_attached_find(probes, st->st_dev, st->st_ino);
	struct lien_gate_links *links;
	struct lien_gate_file *file;
	struct stat of = *st;
	int err;

	if (same) /* through another overlay */
		of.st_dev = same->file.device;
	if (has_file(gate, &of, all))
		return 0;
	if (gate->files_count == LIEN_GATE_FILES)
		return -EMFILE;
	err = get(probes, gate, fd, &of, library, all, wait, &links);
	if (err)
		return err > 0 ? 0 : err;
	file = file_with(gate, links);
	if (file) /* its calls are where they were */
		put(probes, links);
	else
		file = &gate->files[gate->files_count++];
	file->links = links;
	file->all |= all;
	file->state = lien_file_state_of(&of);
	return 0;
}

void lien_gate_files_put(struct lien_probes *probes, struct lien_gate *gate)
{
	while (gate->files_count)
		put(probes, gate->files[--gate->files_count].links);
}
