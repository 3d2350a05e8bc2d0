// SPDX-License-Identifier: BSD-2-Clause
#include "tools/picture/groups.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

/* A picture with more boxes than this is unreadable. */
#define GROUPS_MAX 16

/* An allocation to be merged into a group. */
struct member {
	struct lien_group kind;	  /* its own, with count 1 */
	const json_t *allocation; /* in the reply */
};

static int compare_numbers(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static int compare_peers(const struct lien_group *a, const struct lien_group *b)
{
	if (a->peer_count != b->peer_count)
		return a->peer_count < b->peer_count ? -1 : 1;
	for (unsigned i = 0; i < a->peer_count; i++) {
		int order = compare_numbers(&a->peers[i].pid, &b->peers[i].pid);

		if (order)
			return order;
	}
	return 0;
}

static int compare_kinds(const struct lien_group *a, const struct lien_group *b)
{
	int order = compare_numbers(&a->pid, &b->pid);

	if (!order && a->device != b->device)
		order = a->device < b->device ? -1 : 1;
	if (!order)
		order = strcmp(a->owner, b->owner);
	if (!order)
		order = strcmp(a->tag, b->tag);
	if (!order)
		order = strcmp(a->origin, b->origin);
	if (!order)
		order = strcmp(a->state, b->state);
	if (!order)
		order = a->alive - b->alive;
	if (!order)
		order = a->exported - b->exported;
	if (!order)
		order = !a->peer_count - !b->peer_count;
	return order;
}

static int compare_coarsely(const void *a, const void *b)
{
	return compare_kinds(&((const struct member *)a)->kind, &((const struct member *)b)->kind);
}

static int compare_finely(const void *a, const void *b)
{
	const struct member *x = a, *y = b;
	int order = compare_kinds(&x->kind, &y->kind);

	return order ? order : compare_peers(&x->kind, &y->kind);
}

static struct lien_peer *find_peer(const struct lien_group *group, uint64_t pid)
{
	for (unsigned i = 0; i < group->peer_count; i++) {
		if (group->peers[i].pid == pid)
			return &group->peers[i];
	}
	return NULL;
}

static void add_holders(struct lien_group *kind, const json_t *holders)
{
	const json_t *holder;
	size_t i;

	json_array_foreach (holders, i, holder) {
		uint64_t pid = lien_get_number(holder, "pid");

		if (pid != kind->pid && !find_peer(kind, pid))
			kind->peers[kind->peer_count++] =
				(struct lien_peer){pid, kind->count, kind->bytes};
	}
}

static int describe(const json_t *allocation, struct lien_group *kind)
{
	const json_t *handles = json_object_get(allocation, "handles");
	const json_t *mappings = json_object_get(allocation, "mappings");
	const json_t *device = json_object_get(allocation, "device");
	size_t most = json_array_size(handles) + json_array_size(mappings);

	*kind = (struct lien_group){
		.pid = lien_get_number(allocation, "pid"),
		.device = json_is_integer(device) ? json_integer_value(device) : -1,
		.owner = lien_get_text(allocation, "owner"),
		.tag = lien_get_text(allocation, "tag"),
		.origin = lien_get_text(allocation, "origin"),
		.state = lien_get_text(allocation, "state"),
		.alive = !json_is_false(json_object_get(allocation, "alive")),
		.exported = lien_get_number(allocation, "exports") > 0,
		.count = 1,
		.bytes = lien_get_number(allocation, "bytes"),
	};
	kind->peers = malloc((most ? most : 1) * sizeof(*kind->peers));
	if (!kind->peers)
		return -ENOMEM;
	add_holders(kind, handles);
	add_holders(kind, mappings);
	/* Compares .pid, the first field. */
	qsort(kind->peers, kind->peer_count, sizeof(*kind->peers), compare_numbers);
	return 0;
}

static int compare_places(const void *a, const void *b)
{
	const struct lien_place *x = a, *y = b;
	int order = compare_numbers(&x->pid, &y->pid);

	return order ? order : compare_numbers(&x->address, &y->address);
}

static int add_places(
	struct lien_groups *groups, const struct member *member, unsigned group, size_t *capacity)
{
	const json_t *mappings = json_object_get(member->allocation, "mappings"), *mapping;
	struct lien_place *grown;
	size_t i;

	json_array_foreach (mappings, i, mapping) {
		if (groups->place_count == *capacity) {
			*capacity = *capacity ? 2 * *capacity : 256;
			grown = reallocarray(groups->places, *capacity, sizeof(*grown));
			if (!grown)
				return -ENOMEM;
			groups->places = grown;
		}
		groups->places[groups->place_count++] = (struct lien_place){
			.pid = lien_get_number(mapping, "pid"),
			.address = strtoull(lien_get_text(mapping, "address"), NULL, 16),
			.bytes = lien_get_number(mapping, "bytes"),
			.group = group,
		};
	}
	return 0;
}

static int add_peers(struct lien_group *group, const struct lien_group *member)
{
	struct lien_peer *grown, *peer;

	for (unsigned i = 0; i < member->peer_count; i++) {
		peer = find_peer(group, member->peers[i].pid);
		if (peer) {
			peer->count += member->peers[i].count;
			peer->bytes += member->peers[i].bytes;
			continue;
		}
		grown = reallocarray(group->peers, group->peer_count + 1, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		group->peers = grown;
		group->peers[group->peer_count++] = member->peers[i];
	}
	return 0;
}

/* members must be sorted: those of a group are adjacent. */
static int merge(struct lien_groups *groups, struct member *members, size_t count,
	int (*compare)(const void *, const void *))
{
	size_t capacity = 0;

	for (size_t i = 0; i < count; i++) {
		const struct lien_group *kind = &members[i].kind;
		struct lien_group *group;

		if (!i || compare(&members[i - 1], &members[i])) {
			group = &groups->groups[groups->count++];
			*group = *kind;
			group->peers = NULL;
			group->peer_count = 0;
		} else {
			group = &groups->groups[groups->count - 1];
			group->count++;
			group->bytes += kind->bytes;
		}
		if (add_peers(group, kind) ||
			add_places(groups, &members[i], groups->count - 1, &capacity))
			return -ENOMEM;
	}
	if (groups->places)
		qsort(groups->places, groups->place_count, sizeof(*groups->places), compare_places);
	return 0;
}

static unsigned count_kinds(const struct member *members, size_t count)
{
	unsigned kinds = 0;

	for (size_t i = 0; i < count; i++)
		kinds += !i || compare_finely(&members[i - 1], &members[i]);
	return kinds;
}

int lien_groups_make(const json_t *reply, struct lien_groups *out)
{
	const json_t *allocations = json_object_get(reply, "allocations"), *allocation;
	size_t i, count = json_array_size(allocations);
	struct member *members;
	int err = -ENOMEM;

	memset(out, 0, sizeof(*out));
	members = calloc(count + 1, sizeof(*members));
	out->groups = calloc(count + 1, sizeof(*out->groups));
	if (!members || !out->groups)
		goto out;
	json_array_foreach (allocations, i, allocation) {
		members[i].allocation = allocation;
		if (describe(allocation, &members[i].kind))
			goto out;
	}
	/* Members that compare coarsely as equal are adjacent, too. */
	qsort(members, count, sizeof(*members), compare_finely);
	err = merge(out, members, count,
		count_kinds(members, count) > GROUPS_MAX ? compare_coarsely : compare_finely);
out:
	for (i = 0; members && i < count; i++)
		free(members[i].kind.peers);
	free(members);
	if (err)
		lien_groups_free(out);
	return err;
}

void lien_groups_free(struct lien_groups *groups)
{
	for (unsigned i = 0; i < groups->count; i++)
		free(groups->groups[i].peers);
	free(groups->groups);
	free(groups->places);
	memset(groups, 0, sizeof(*groups));
}

int lien_groups_at(const struct lien_groups *groups, uint64_t pid, uint64_t address)
{
	size_t low = 0, high = groups->place_count;
	struct lien_place key = {.pid = pid, .address = address};
	const struct lien_place *place;

	/* Finds the first place after the address: the one before it is the candidate. */
	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (compare_places(&groups->places[middle], &key) <= 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low)
		return -1;
	place = &groups->places[low - 1];
	if (place->pid != pid || address - place->address >= place->bytes)
		return -1;
	return place->group;
}
