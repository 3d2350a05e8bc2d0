// SPDX-License-Identifier: BSD-2-Clause
#include "tools/picture/dot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/picture/groups.h"
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

struct picture {
	const json_t *reply;
	const json_t *nodes; /* of the reply, if they are several: tools/picture/several.h */
	struct lien_groups groups;
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

static bool few_importers(const struct lien_groups *groups)
{
	unsigned count = 0;

	for (unsigned i = 0; i < groups->count; i++)
		count += groups->groups[i].peer_count;
	return count <= ARROWS_MAX;
}

static void print_importers(const struct picture *picture, const struct lien_group *group)
{
	for (unsigned p = 0; p < group->peer_count; p++) {
		const struct lien_peer *peer = &group->peers[p];

		if (p == PEERS_SHOWN) {
			fprintf(picture->out, "\\nand %u more", group->peer_count - p);
			return;
		}
		fprintf(picture->out, "\\n%" PRIu64 " imported by %" PRIu64 ", %s", peer->count,
			lien_several_pid(picture->nodes, peer->pid), lien_size(peer->bytes).text);
	}
}

static void print_group(const struct picture *picture, unsigned index)
{
	const struct lien_group *group = &picture->groups.groups[index];
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
		lien_size(group->bytes).text);
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
			pid, lien_size(lien_get_number(process, "bytes")).text,
			lien_size(lien_get_number(process, "imported_bytes")).text);
}

static void print_process(const struct picture *picture, const json_t *process, uint64_t pid)
{
	const struct lien_groups *groups = &picture->groups;

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
	const struct lien_groups *groups = &picture->groups;
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
		const struct lien_group *group = &picture->groups.groups[i];

		for (unsigned p = 0; p < group->peer_count; p++) {
			const struct lien_peer *peer = &group->peers[p];

			if (!picture->arrows || !find_process(picture, peer->pid))
				continue;
			fprintf(picture->out,
				"\tg%u -> p%" PRIu64 " [label=\"%" PRIu64
				" %s\\n%s\", color=\"%s\","
				" fontcolor=\"%s\"];\n",
				i, peer->pid, LIEN_PLURAL(peer->count, "import", "imports"),
				lien_size(peer->bytes).text, COLOR_IMPORT, COLOR_IMPORT);
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
		int group = lien_groups_at(&picture->groups, member->pid,
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
				i, team, text, lien_size(sums[i].bytes).text, COLOR_RANK,
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

	err = united ? lien_groups_make(united, &picture.groups) : -ENOMEM;
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
	lien_groups_free(&picture.groups);
	json_decref(united);
	return err;
}
