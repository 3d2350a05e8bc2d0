// SPDX-License-Identifier: BSD-2-Clause
#include "tools/picture/dot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"
#include "tools/picture/several.h"
#include "tools/picture/teams.h"
#include "tools/text/output.h"

#define ARROWS_MAX     8 /* more arrows between processes than this hide each other */
#define PEERS_SHOWN    16
#define NAMES_SHOWN    4 /* of a team's communicators */
#define FONT	       "fontname=\"Helvetica,Arial,sans-serif\""
#define COLOR_LOCAL    "#e8eef7"
#define COLOR_EXPORTED "#ffe2b8"
#define COLOR_ORPHAN   "#f6c6c6"
#define COLOR_IMPORT   "#c26a00"
#define COLOR_TEAM     "#d7efd7"
#define COLOR_RANK     "#3c7a3c"

/* Another process that holds members of a group, and how many of them. */
struct peer {
	uint64_t pid, count, bytes;
};

struct group {
	/* Properties that all members share. The reply owns the strings. */
	uint64_t pid;				  /* 0: unknown owner */
	int64_t device;				  /* -1: none, or unknown */
	const char *owner, *tag, *origin, *state; /* tag: "" for none */
	bool alive, exported;
	struct peer *peers;
	unsigned peer_count;

	uint64_t count, bytes;
};

/* The group of an allocation of the reply, and the place of its mappings. */
struct place {
	uint64_t pid, address, bytes;
	unsigned group;
};

struct groups {
	struct group *groups; /* sorted by pid, then largest first */
	unsigned count;
	struct place *places; /* sorted by pid and address */
	unsigned place_count;
};

/* A picture with more boxes than this is unreadable. */
#define GROUPS_MAX 16

/* An allocation to be merged into a group. */
struct member {
	struct group kind;	  /* its own, with count 1 */
	const json_t *allocation; /* in the reply */
};

static int compare_numbers(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static int compare_peers(const struct group *a, const struct group *b)
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

static int compare_kinds(const struct group *a, const struct group *b)
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

static struct peer *find_peer(const struct group *group, uint64_t pid)
{
	for (unsigned i = 0; i < group->peer_count; i++) {
		if (group->peers[i].pid == pid)
			return &group->peers[i];
	}
	return NULL;
}

static void add_holders(struct group *kind, const json_t *holders)
{
	const json_t *holder;
	size_t i;

	json_array_foreach (holders, i, holder) {
		uint64_t pid = lien_get_number(holder, "pid");

		if (pid != kind->pid && !find_peer(kind, pid))
			kind->peers[kind->peer_count++] =
				(struct peer){pid, kind->count, kind->bytes};
	}
}

static int describe(const json_t *allocation, struct group *kind)
{
	const json_t *handles = json_object_get(allocation, "handles");
	const json_t *mappings = json_object_get(allocation, "mappings");
	const json_t *device = json_object_get(allocation, "device");
	size_t most = json_array_size(handles) + json_array_size(mappings);

	*kind = (struct group){
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
	const struct place *x = a, *y = b;
	int order = compare_numbers(&x->pid, &y->pid);

	return order ? order : compare_numbers(&x->address, &y->address);
}

static int add_places(
	struct groups *groups, const struct member *member, unsigned group, unsigned *room)
{
	const json_t *mappings = json_object_get(member->allocation, "mappings"), *mapping;
	size_t i;

	json_array_foreach (mappings, i, mapping) {
		if (lien_array_grow(
			    &groups->places, groups->place_count, room, sizeof(*groups->places)))
			return -ENOMEM;
		groups->places[groups->place_count++] = (struct place){
			.pid = lien_get_number(mapping, "pid"),
			.address = strtoull(lien_get_text(mapping, "address"), NULL, 16),
			.bytes = lien_get_number(mapping, "bytes"),
			.group = group,
		};
	}
	return 0;
}

static int add_peers(struct group *group, const struct group *member)
{
	struct peer *grown, *peer;

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
static int merge(struct groups *groups, struct member *members, size_t count,
	int (*compare)(const void *, const void *))
{
	unsigned room = 0;

	for (size_t i = 0; i < count; i++) {
		const struct group *kind = &members[i].kind;
		struct group *group;

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
			add_places(groups, &members[i], groups->count - 1, &room))
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

static void free_groups(struct groups *groups)
{
	for (unsigned i = 0; i < groups->count; i++)
		free(groups->groups[i].peers);
	free(groups->groups);
	free(groups->places);
	memset(groups, 0, sizeof(*groups));
}

/* Returns 0 or -ENOMEM. The reply must outlive the groups. */
static int make_groups(const json_t *reply, struct groups *out)
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
		free_groups(out);
	return err;
}

/* Returns the group of the memory at an address of a process, or -1. */
static int group_at(const struct groups *groups, uint64_t pid, uint64_t address)
{
	/* The first place after the address: the one before it is the candidate. */
	const struct place key = {.pid = pid, .address = address + 1};
	const unsigned low = lien_array_at_least(
		groups->places, groups->place_count, sizeof(key), &key, compare_places);
	const struct place *place;

	if (!low)
		return -1;
	place = &groups->places[low - 1];
	if (place->pid != pid || address - place->address >= place->bytes)
		return -1;
	return place->group;
}

struct picture {
	const json_t *reply;
	const json_t *nodes; /* of the reply, if they are several: tools/picture/several.h */
	struct groups groups;
	struct lien_teams teams;
	bool arrows; /* from memory to its importers; otherwise the boxes name them */
	FILE *out;
};

/* Writes the inside of a quoted string of DOT. */
static void put_text(FILE *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fputc('\\', out);
		fputc((unsigned char)*text < ' ' ? '?' : *text, out);
	}
}

/* Nothing where there is one node. */
static void put_node(
	const struct picture *picture, const char *before, const char *node, const char *behind)
{
	if (!*node)
		return;
	fputs(before, picture->out);
	put_text(picture->out, node);
	fputs(behind, picture->out);
}

static bool few_importers(const struct groups *groups)
{
	unsigned count = 0;

	for (unsigned i = 0; i < groups->count; i++)
		count += groups->groups[i].peer_count;
	return count <= ARROWS_MAX;
}

static void print_importers(const struct picture *picture, const struct group *group)
{
	for (unsigned p = 0; p < group->peer_count; p++) {
		const struct peer *peer = &group->peers[p];

		if (p == PEERS_SHOWN) {
			fprintf(picture->out, "\\nand %u more", group->peer_count - p);
			return;
		}
		fprintf(picture->out, "\\n%" PRIu64 " imported by %" PRIu64 ", %s", peer->count,
			lien_several_pid(picture->nodes, peer->pid), lien_bytes(peer->bytes).text);
	}
}

static void print_group(const struct picture *picture, unsigned index)
{
	const struct group *group = &picture->groups.groups[index];
	bool offloaded = !strcmp(group->state, "offloaded");
	const char *color = COLOR_LOCAL;

	if (group->exported || group->peer_count)
		color = COLOR_EXPORTED;
	if (!group->alive)
		color = COLOR_ORPHAN;
	fprintf(picture->out, "\t\tg%u [label=\"", index);
	put_text(picture->out, *group->owner ? group->owner : "unknown owner");
	fprintf(picture->out, " · ");
	put_text(picture->out, group->origin);
	if (*group->tag) {
		fprintf(picture->out, "\\ntag ");
		put_text(picture->out, group->tag);
	}
	fprintf(picture->out, "\\n%" PRIu64 " %s, %s",
		LIEN_PLURAL(group->count, "allocation", "allocations"),
		lien_bytes(group->bytes).text);
	if (group->device >= 0)
		fprintf(picture->out, " on device %" PRId64,
			lien_several_device(picture->nodes, group->device));
	if (!group->pid && group->device >= 0)
		put_node(picture, " of ",
			lien_several_node_of_device(picture->nodes, group->device), "");
	if (!picture->arrows)
		print_importers(picture, group);
	fprintf(picture->out, "%s%s\", fillcolor=\"%s\", style=\"filled,rounded%s\"];\n",
		offloaded ? "\\noffloaded" : "",
		group->alive || !group->pid ? "" : "\\nowner has exited", color,
		offloaded ? ",dashed" : "");
}

static void print_title(const struct picture *picture, const json_t *process, uint64_t pid)
{
	FILE *out = picture->out;

	if (!pid) {
		fprintf(out, "owner unknown");
		return;
	}
	put_node(picture, "", lien_several_node_of_pid(picture->nodes, pid), ": ");
	fprintf(out, "process %" PRIu64 " ", lien_several_pid(picture->nodes, pid));
	if (!process)
		fprintf(out, "(exited)");
	else
		put_text(out, lien_get_text(process, "command"));
	if (process && json_is_false(json_object_get(process, "complete")))
		fprintf(out, " (incomplete)");
}

/* Memory may outlive its owning process, which the reply then no longer lists. */
static void print_heading(const struct picture *picture, const json_t *process, uint64_t pid)
{
	FILE *out = picture->out;

	fprintf(out, "\tsubgraph cluster_%" PRIu64 " {\n\t\tlabel=\"", pid);
	print_title(picture, process, pid);
	fprintf(out,
		"\";\n\t\tstyle=\"rounded,filled\"; color=\"#8a94a6\"; fillcolor=\"#fafbfd\";\n");
	if (process)
		fprintf(out,
			"\t\tp%" PRIu64 " [label=\"%s on the GPU\\n%s imported\", shape=ellipse,"
			" style=filled, fillcolor=white];\n",
			pid, lien_bytes(lien_get_number(process, "bytes")).text,
			lien_bytes(lien_get_number(process, "imported_bytes")).text);
}

static void print_process(const struct picture *picture, const json_t *process, uint64_t pid)
{
	const struct groups *groups = &picture->groups;

	print_heading(picture, process, pid);
	for (unsigned i = 0; i < groups->count; i++) {
		if (groups->groups[i].pid != pid)
			continue;
		print_group(picture, i);
	}
	fprintf(picture->out, "\t}\n");
}

static const json_t *find_process(const struct picture *picture, uint64_t pid)
{
	const json_t *list = json_object_get(picture->reply, "processes"), *process;
	size_t i;

	json_array_foreach (list, i, process) {
		if (lien_get_number(process, "pid") == pid)
			return process;
	}
	return NULL;
}

static void print_processes(const struct picture *picture)
{
	const json_t *list = json_object_get(picture->reply, "processes"), *process;
	const struct groups *groups = &picture->groups;
	size_t i;

	json_array_foreach (list, i, process)
		print_process(picture, process, lien_get_number(process, "pid"));
	for (unsigned g = 0; g < groups->count; g++) {
		uint64_t pid = groups->groups[g].pid;

		/* Groups are sorted by pid. */
		if ((!g || groups->groups[g - 1].pid != pid) && !find_process(picture, pid))
			print_process(picture, NULL, pid);
	}
}

static void print_imports(const struct picture *picture)
{
	for (unsigned i = 0; i < picture->groups.count; i++) {
		const struct group *group = &picture->groups.groups[i];

		for (unsigned p = 0; p < group->peer_count; p++) {
			const struct peer *peer = &group->peers[p];

			if (!picture->arrows || !find_process(picture, peer->pid))
				continue;
			fprintf(picture->out,
				"\tg%u -> p%" PRIu64 " [label=\"%" PRIu64
				" %s\\n%s\", color=\"%s\","
				" fontcolor=\"%s\"];\n",
				i, peer->pid, LIEN_PLURAL(peer->count, "import", "imports"),
				lien_bytes(peer->bytes).text, COLOR_IMPORT, COLOR_IMPORT);
		}
	}
}

/* Memory that a team's communicators have registered, per group of allocations. */
struct registered {
	uint64_t buffers, windows, bytes;
};

static void sum_registrations(
	const struct picture *picture, const struct lien_member *member, struct registered *sums)
{
	const json_t *one;
	size_t i;

	json_array_foreach (member->registrations, i, one) {
		bool window = lien_get_true(one, "window");
		int group = group_at(&picture->groups, member->pid,
			strtoull(lien_get_text(one, "address"), NULL, 16));

		if (group < 0)
			continue;
		sums[group].windows += window;
		sums[group].buffers += !window;
		sums[group].bytes += lien_get_number(one, "bytes");
	}
}

static char *describe_registrations(const struct registered *sum)
{
	char *text = NULL;

	if (sum->buffers)
		text = lien_append(text, ", ", "%" PRIu64 " %s",
			LIEN_PLURAL(sum->buffers, "buffer", "buffers"));
	if (sum->windows)
		text = lien_append(text, ", ", "%" PRIu64 " %s",
			LIEN_PLURAL(sum->windows, "window", "windows"));
	return text;
}

static int print_registrations(const struct picture *picture, unsigned team)
{
	const struct lien_teams *teams = &picture->teams;
	struct registered *sums = calloc(picture->groups.count + 1, sizeof(*sums));

	if (!sums)
		return -ENOMEM;
	for (unsigned c = team; c < teams->count; c++) {
		const struct lien_communicator *communicator = &teams->communicators[c];

		for (unsigned m = 0; m < communicator->member_count && communicator->team == team;
			m++)
			sum_registrations(picture, &communicator->members[m], sums);
	}
	for (unsigned i = 0; i < picture->groups.count; i++) {
		char *text = describe_registrations(&sums[i]);

		if (text)
			fprintf(picture->out,
				"\tg%u -> c%u [label=\"%s\\n%s registered\", dir=back, "
				"style=dashed,"
				" color=\"%s\", fontcolor=\"%s\"];\n",
				i, team, text, lien_bytes(sums[i].bytes).text, COLOR_RANK,
				COLOR_RANK);
		free(text);
	}
	free(sums);
	return 0;
}

static void print_team(const struct picture *picture, unsigned team)
{
	const struct lien_teams *teams = &picture->teams;
	const struct lien_communicator *first = &teams->communicators[team];
	unsigned count = 0;

	for (unsigned c = team; c < teams->count; c++)
		count += teams->communicators[c].team == team;
	fprintf(picture->out, "\tc%u [label=\"%u %s of %" PRIu64 " %s", team, count,
		count == 1 ? "communicator" : "communicators",
		LIEN_PLURAL(first->members[0].nranks, "rank", "ranks"));
	for (unsigned c = team, shown = 0; c < teams->count && shown <= NAMES_SHOWN; c++) {
		if (teams->communicators[c].team != team)
			continue;
		fprintf(picture->out, "\\n");
		if (shown++ == NAMES_SHOWN)
			fprintf(picture->out, "and %u more", count - NAMES_SHOWN);
		else
			put_text(picture->out, teams->communicators[c].members[0].group);
	}
	fprintf(picture->out, "\", style=filled, fillcolor=\"%s\", color=\"%s\"];\n", COLOR_TEAM,
		COLOR_RANK);
	for (unsigned m = 0; m < first->member_count; m++) {
		const struct lien_member *member = &first->members[m];

		if (find_process(picture, member->pid))
			fprintf(picture->out,
				"\tp%" PRIu64 " -> c%u [label=\"rank %" PRIu64 "\", dir=none,"
				" color=\"%s\", fontcolor=\"%s\"];\n",
				member->pid, team, member->rank, COLOR_RANK, COLOR_RANK);
	}
}

static int print_teams(const struct picture *picture)
{
	int err = 0;

	for (unsigned c = 0; c < picture->teams.count && !err; c++) {
		if (picture->teams.communicators[c].team != c)
			continue;
		print_team(picture, c);
		err = print_registrations(picture, c);
	}
	return err;
}

int lien_graph_dot(const json_t *reply, FILE *out)
{
	json_t *united = lien_several_unite(reply);
	struct picture picture = {
		.reply = united, .nodes = json_object_get(united, "nodes"), .out = out};
	int err;

	err = united ? make_groups(united, &picture.groups) : -ENOMEM;
	if (err)
		goto out;
	picture.arrows = few_importers(&picture.groups);
	err = lien_teams_make(united, &picture.teams);
	if (err)
		goto out;
	fprintf(out, "digraph lien {\n\trankdir=LR; nodesep=0.2; ranksep=1.1; " FONT ";\n"
		     "\tnode [shape=box, fontsize=11, " FONT "];\n"
		     "\tedge [fontsize=9, " FONT "];\n");
	print_processes(&picture);
	print_imports(&picture);
	err = print_teams(&picture);
	fprintf(out, "}\n");
out:
	lien_teams_free(&picture.teams);
	free_groups(&picture.groups);
	json_decref(united);
	return err;
}
