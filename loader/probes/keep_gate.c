// SPDX-License-Identifier: BSD-2-Clause
/*
 * The gate's links outlive the agent, because memory may be away. The names of their pins say all
 * that the next agent needs to know.
 */
#include <bpf/bpf.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lien/clock.h>
#include "loader/hash.h"
#include "loader/probes/gate_links.h"
#include "loader/probes/map_each.h"

uint32_t lien_keep_gate_build(const struct lien_probes *probes)
{
	return lien_hash(LIEN_HASH_START, probes->build, strlen(probes->build));
}

static void name_pin(const struct lien_gate_links *links, unsigned index, char *name, size_t size)
{
	snprintf(name, size,
		"gate-%u-%u-%08" PRIx32 "-%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%d-%u-%u",
		links->number, links->pid, links->build, (uint64_t)links->device,
		(uint64_t)links->inode, links->places, links->each, links->count, index);
}

/* Returns false if the name is no gate's. */
static bool read_pin(const char *name, struct lien_gate_links *links, unsigned *index)
{
	uint64_t device, inode;
	unsigned each;

	if (sscanf(name,
		    "gate-%u-%" SCNu32 "-%" SCNx32 "-%" SCNx64 "-%" SCNx64 "-%" SCNx64 "-%u-%u-%u",
		    &links->number, &links->pid, &links->build, &device, &inode, &links->places,
		    &each, &links->count, index) != 9)
		return false;
	links->device = device;
	links->inode = inode;
	links->each = links->kept = each;
	return true;
}

void lien_keep_gate_links(struct lien_probes *probes, struct lien_gate_links *links, unsigned from)
{
	char name[160];
	unsigned i;
	int err = 0;

	for (i = from; probes->pins && i < links->count && !err; i++) {
		name_pin(links, i, name, sizeof(name));
		err = lien_pins_put(probes->pins, name, links->fds[i]);
		if (err) {
			lien_keep_problem(probes, "a link", err);
		} else if (links->each) {
			close(links->fds[i]);
			links->fds[i] = -1;
		}
	}
}

int lien_keep_gate_link_take(
	struct lien_probes *probes, struct lien_gate_links *links, unsigned index)
{
	int fd = links->fds[index], pinned = -1;
	char name[160];

	links->fds[index] = -1;
	name_pin(links, index, name, sizeof(name));
	if (probes->pins)
		pinned = lien_pins_take(probes->pins, name);
	if (fd < 0)
		return pinned < 0 ? -1 : pinned;
	if (pinned >= 0)
		close(pinned);
	return fd;
}

/* --- taking over ------------------------------------------------------------------------------ */

static bool has_gate(const struct lien_probes *probes, uint32_t pid)
{
	struct lien_probe_gate gate;

	return !bpf_map_lookup_elem(bpf_map__fd(probes->skel->maps.gates), &pid, &gate);
}

static bool is_taken(const struct lien_probes *probes, unsigned number)
{
	unsigned i;

	for (i = 0; i < probes->gate_links_count; i++)
		if (probes->gate_links[i]->number == number)
			return true;
	return false;
}

/* Links are pinned from the first and removed from the last, so those that exist are the first. */
static void take(struct lien_probes *probes, const struct lien_gate_links *found)
{
	struct lien_gate_links *links = lien_gate_links_add(probes, found->count);
	struct lien_gate_links facts;
	char name[160];
	int fd;

	if (!links)
		return;
	facts = *found;
	facts.fds = links->fds;
	*links = facts;
	while (links->left < links->count) {
		name_pin(links, links->left, name, sizeof(name));
		if (links->each && lien_pins_has(probes->pins, name)) {
			links->left++;
			continue;
		}
		fd = lien_pins_get(probes->pins, name);
		if (fd < 0)
			break;
		links->fds[links->left++] = fd;
	}
	if (!links->each && links->left < links->count)
		links->build =
			0; /* one of two: keep it while it may be needed, never use it again */
	links->t_unused = lien_clock_ns();
}

static bool take_one(void *context, const char *name)
{
	struct lien_probes *probes = context;
	struct lien_gate_links found = {0};
	unsigned index;

	if (!read_pin(name, &found, &index))
		return true;
	if (found.number > probes->next_attachment)
		probes->next_attachment = found.number;
	if (found.pid && !has_gate(probes, found.pid))
		lien_pins_drop(probes->pins, name);
	else if (!is_taken(probes, found.number))
		take(probes, &found);
	return true;
}

static int inherit(void *context, const void *pid, const void *gate)
{
	struct lien_gate *made = lien_gate_add(context, *(const uint32_t *)pid);

	(void)gate;
	if (made)
		made->inherited = true;
	return 0;
}

void lien_keep_take_gates(struct lien_probes *probes)
{
	if (!probes->pins || !probes->resumed)
		return;
	lien_pins_each(probes->pins, take_one, probes);
	lien_map_each(probes->skel->maps.gates, inherit, probes);
}
