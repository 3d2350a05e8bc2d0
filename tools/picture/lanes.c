// SPDX-License-Identifier: BSD-2-Clause
/*
 * Draws who holds whose memory: a vertical line for each process that takes part, and a lane
 * between two of them with an arrow from the owner to the importer. Arrows that do not overlap
 * share a lane.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/picture/sheet.h"
#include "tools/picture/several.h"
#include "tools/text/output.h"

#define NODES_MAX  16
#define PAIRS_MAX  (NODES_MAX * (NODES_MAX - 1) / 2)
#define ONE_HEIGHT 25 /* height of a lane with one line */
#define TWO_HEIGHT 44
#define HEAD	   24
#define AGAIN	   400 /* above this total height the heads are repeated below */

/* An end point of arrows: a process on a GPU; in a large job a GPU. */
struct node {
	char *name, *tip;
	int x;
	bool dead;
};

struct flow {
	uint64_t allocations, liens, bytes, offloaded;
	const char *library; /* "" for several, NULL for no flow */
};

struct pair {
	unsigned left, right; /* nodes */
	int lane;
};

struct lanes {
	const struct lien_sheet *sheet;
	struct node nodes[NODES_MAX];
	unsigned node_count;
	int *node_of;				 /* index: resident; or -1 */
	struct flow flows[NODES_MAX][NODES_MAX]; /* index: owner, importer */
	struct flow hidden;			 /* within a node */
	uint64_t most;				 /* bytes of the largest flow */
	struct pair pairs[PAIRS_MAX];
	unsigned pair_count;
	unsigned taken[PAIRS_MAX]; /* index: lane; bit i is the gap between nodes i and i + 1 */
	int heights[PAIRS_MAX];
	int lane_count;
};

static void add_flow(struct flow *flow, const struct lien_bundle *bundle)
{
	if (!flow->library)
		flow->library = bundle->library;
	else if (strcmp(flow->library, bundle->library))
		flow->library = "";
	flow->allocations += bundle->allocations;
	flow->liens += bundle->liens;
	flow->bytes += bundle->bytes;
	flow->offloaded += bundle->offloaded;
}

static char *resident_name(const struct lien_sheet *sheet, const struct lien_resident *resident)
{
	char *rank, *pid, *name;

	if (lien_residents_has_several(&sheet->residents, resident)) {
		pid = lien_sheet_pid(sheet, resident->pid);
		name = lien_format("%s, GPU %" PRId64, pid,
			lien_several_device(sheet->nodes, resident->device));
		free(pid);
		return name;
	}
	rank = lien_sheet_rank(sheet, resident);
	if (rank)
		return rank;
	if (!resident->pid)
		return lien_format("unknown");
	if (resident->dead)
		return lien_format(
			"exited %" PRIu64, lien_several_pid(sheet->nodes, resident->pid));
	return lien_sheet_pid(sheet, resident->pid);
}

static void add_resident(struct lanes *lanes, const struct lien_resident *resident)
{
	struct node *node = &lanes->nodes[lanes->node_count++];
	char *device = lien_sheet_device(lanes->sheet, resident->device);
	char *pid = lien_sheet_pid(lanes->sheet, resident->pid);

	node->name = resident_name(lanes->sheet, resident);
	node->tip = lien_format("%s, %s, %s", node->name, pid, device);
	node->dead = resident->dead;
	free(device);
	free(pid);
}

static unsigned count_involved(const struct lien_residents *all, bool *involved)
{
	unsigned count = 0;

	for (unsigned i = 0; i < all->bundle_count; i++)
		involved[all->bundles[i].owner] = involved[all->bundles[i].importer] = true;
	for (unsigned i = 0; i < all->count; i++)
		count += involved[i];
	return count;
}

static void make_resident_nodes(struct lanes *lanes, const bool *involved)
{
	const struct lien_residents *all = &lanes->sheet->residents;

	for (unsigned i = 0; i < all->count; i++) {
		unsigned number = all->order[i];

		if (!involved[number])
			continue;
		lanes->node_of[number] = lanes->node_count;
		add_resident(lanes, &all->residents[number]);
	}
}

/* With too many processes, arrows connect GPUs, and the last node stands for all that do not
 * fit. */
static void make_device_nodes(struct lanes *lanes, const bool *involved)
{
	const struct lien_residents *all = &lanes->sheet->residents;
	int device = -1;

	for (unsigned i = 0; i < all->count; i++) {
		const struct lien_resident *resident = &all->residents[all->order[i]];
		struct node *node;

		if (!involved[all->order[i]])
			continue;
		if (resident->device != device && lanes->node_count < NODES_MAX) {
			node = &lanes->nodes[lanes->node_count++];
			node->name = lien_sheet_device(lanes->sheet, resident->device);
			node->tip = lien_format("%s", node->name);
		} else if (resident->device != device) {
			node = &lanes->nodes[NODES_MAX - 1];
			free(node->name);
			node->name = lien_format("others");
		}
		device = resident->device;
		lanes->node_of[all->order[i]] = lanes->node_count - 1;
	}
}

static void place_nodes(struct lanes *lanes)
{
	const struct lien_sheet *sheet = lanes->sheet;
	int room = sheet->width - 2 * LIEN_SHEET_MARGIN, count = lanes->node_count;

	for (int i = 0; i < count; i++)
		lanes->nodes[i].x = LIEN_SHEET_MARGIN + room * (2 * i + 1) / (2 * count);
	for (unsigned i = 0; sheet->centers && i < sheet->residents.count; i++)
		if (lanes->node_of[i] >= 0)
			lanes->nodes[lanes->node_of[i]].x = sheet->centers[i];
}

static void make_flows(struct lanes *lanes)
{
	const struct lien_residents *all = &lanes->sheet->residents;

	for (unsigned i = 0; i < all->bundle_count; i++) {
		const struct lien_bundle *bundle = &all->bundles[i];
		int owner = lanes->node_of[bundle->owner];
		int importer = lanes->node_of[bundle->importer];
		struct flow *flow = &lanes->flows[owner][importer];

		add_flow(owner == importer ? &lanes->hidden : flow, bundle);
		if (flow->bytes > lanes->most)
			lanes->most = flow->bytes;
	}
}

static bool is_alike(const struct flow *a, const struct flow *b)
{
	return a->library && b->library && a->allocations == b->allocations &&
	       a->bytes == b->bytes && a->offloaded == b->offloaded &&
	       !strcmp(a->library, b->library);
}

/* Equal flows in both directions, typical of collectives, become one line with two heads. */
static int pair_height(const struct lanes *lanes, const struct pair *pair)
{
	const struct flow *there = &lanes->flows[pair->left][pair->right];
	const struct flow *back = &lanes->flows[pair->right][pair->left];

	return there->library && back->library && !is_alike(there, back) ? TWO_HEIGHT : ONE_HEIGHT;
}

static void put_in_lane(struct lanes *lanes, struct pair *pair)
{
	unsigned places = (1u << pair->right) - (1u << pair->left);
	int height = pair_height(lanes, pair);

	while (lanes->taken[pair->lane] & places)
		pair->lane++;
	lanes->taken[pair->lane] |= places;
	if (pair->lane >= lanes->lane_count)
		lanes->lane_count = pair->lane + 1;
	if (lanes->heights[pair->lane] < height)
		lanes->heights[pair->lane] = height;
}

/* Short arrows first, so that neighbours stay at the top. */
static void make_pairs(struct lanes *lanes)
{
	for (unsigned span = 1; span < lanes->node_count; span++) {
		for (unsigned left = 0; left + span < lanes->node_count; left++) {
			unsigned right = left + span;

			if (!lanes->flows[left][right].library &&
				!lanes->flows[right][left].library)
				continue;
			lanes->pairs[lanes->pair_count] =
				(struct pair){.left = left, .right = right};
			put_in_lane(lanes, &lanes->pairs[lanes->pair_count++]);
		}
	}
}

static void draw_flow(
	const struct lanes *lanes, unsigned owner, unsigned importer, int y, bool both)
{
	const struct flow *flow = &lanes->flows[owner][importer];
	int from = lanes->nodes[owner].x, to = lanes->nodes[importer].x;
	int step = from < to ? 1 : -1;
	const char *color =
		*flow->library ? lien_sheet_shades(lanes->sheet, flow->library).strong : LIEN_MUTED;
	int thickness = 12 + (int)(16.0 * flow->bytes / (lanes->most ? lanes->most : 1));
	struct lien_look look;
	FILE *out = lanes->sheet->out;

	if (lanes->nodes[owner].dead)
		color = LIEN_RED;
	look = (struct lien_look){NULL, color, 0, flow->offloaded > 0};
	lien_svg_line(out, from + (both ? 9 : 3) * step, y, to - 9 * step, y, thickness, &look);
	lien_svg_head(out, to - 2 * step, y, step > 0, color);
	if (both)
		lien_svg_head(out, from + 2 * step, y, step < 0, color);
	else
		lien_svg_dot(out, from + 2 * step, y, color);
}

/* Placed between the two middle lines, so that no line crosses it. */
static void draw_label(
	const struct lanes *lanes, const struct pair *pair, const struct flow *flow, int y)
{
	unsigned place = (pair->left + pair->right - 1) / 2;
	int left = lanes->nodes[place].x, right = lanes->nodes[place + 1].x;
	const struct lien_font font = {11, LIEN_INK, false, LIEN_MIDDLE};
	struct lien_bytes_text size = lien_bytes(flow->bytes);
	char *text = lien_format("%" PRIu64 " · %s", flow->allocations, size.text);

	if (lien_svg_width(&font, text) > right - left - 6) {
		free(text);
		text = lien_format("%s", size.text);
	}
	lien_svg_text(
		lanes->sheet->out, (left + right) / 2, y, right - left - 6, &font, "%s", text);
	free(text);
}

static void note_pair(const struct lanes *lanes, unsigned owner, unsigned importer)
{
	const struct flow *flow = &lanes->flows[owner][importer];

	lien_svg_open(lanes->sheet->out,
		"memory of %s held by %s: %" PRIu64 " %s, %s, %s offloaded; %" PRIu64
		" handles and mappings; made by %s",
		lanes->nodes[owner].tip, lanes->nodes[importer].tip,
		LIEN_PLURAL(flow->allocations, "allocation", "allocations"),
		lien_bytes(flow->bytes).text, lien_bytes(flow->offloaded).text, flow->liens,
		*flow->library ? flow->library : "several libraries");
}

static void draw_pair(const struct lanes *lanes, const struct pair *pair, int y)
{
	const struct flow *there = &lanes->flows[pair->left][pair->right];
	const struct flow *back = &lanes->flows[pair->right][pair->left];
	bool both = is_alike(there, back);

	if (there->library) {
		note_pair(lanes, pair->left, pair->right);
		draw_label(lanes, pair, there, y + 12);
		draw_flow(lanes, pair->left, pair->right, y + 18, both);
		lien_svg_close(lanes->sheet->out);
	}
	if (back->library && !both) {
		int line = there->library ? y + 27 : y + 18;

		note_pair(lanes, pair->right, pair->left);
		draw_label(lanes, pair, back, there->library ? line + 13 : line - 6);
		draw_flow(lanes, pair->right, pair->left, line, false);
		lien_svg_close(lanes->sheet->out);
	}
}

static void draw_heads(const struct lanes *lanes, int y)
{
	int width = (lanes->sheet->width - 2 * LIEN_SHEET_MARGIN) / (int)lanes->node_count - 6;

	if (width > 110)
		width = 110;
	for (unsigned i = 0; i < lanes->node_count; i++) {
		const struct node *node = &lanes->nodes[i];
		const struct lien_font font = {
			12, node->dead ? LIEN_RED : LIEN_INK, true, LIEN_MIDDLE};

		lien_svg_open(lanes->sheet->out, "%s", node->tip);
		lien_svg_box(lanes->sheet->out, node->x - width / 2, y, width, HEAD - 4,
			&(struct lien_look){node->dead ? "#fbe3e1" : "#e3eaf1", NULL, 4, false});
		lien_svg_text(
			lanes->sheet->out, node->x, y + 14, width - 4, &font, "%s", node->name);
		lien_svg_close(lanes->sheet->out);
	}
}

static int draw_lanes(const struct lanes *lanes, int y)
{
	const struct lien_look line = {NULL, "#d5dbe3", 0, false};
	int height = 8, top = y, tops[PAIRS_MAX];

	for (int i = 0; i < lanes->lane_count; i++) {
		tops[i] = y + HEAD + height;
		height += lanes->heights[i];
	}
	draw_heads(lanes, y);
	for (unsigned i = 0; i < lanes->node_count; i++)
		lien_svg_line(lanes->sheet->out, lanes->nodes[i].x, y + HEAD - 4, lanes->nodes[i].x,
			y + HEAD + height + 4, 15, &line);
	for (unsigned i = 0; i < lanes->pair_count; i++)
		draw_pair(lanes, &lanes->pairs[i], tops[lanes->pairs[i].lane]);
	y += HEAD + height + 4;
	if (y - top <= AGAIN)
		return y;
	draw_heads(lanes, y);
	return y + HEAD;
}

static int draw_hidden(const struct lanes *lanes, int y)
{
	const struct lien_font font = {12, LIEN_MUTED, false, LIEN_START};

	if (!lanes->hidden.library)
		return y;
	lien_svg_text(lanes->sheet->out, LIEN_SHEET_MARGIN, y + 16,
		lanes->sheet->width - 2 * LIEN_SHEET_MARGIN, &font,
		"not drawn, between processes of one GPU: %" PRIu64 " · %s",
		lanes->hidden.allocations, lien_bytes(lanes->hidden.bytes).text);
	return y + 24;
}

static int draw(struct lanes *lanes, const bool *involved, unsigned count, int y)
{
	const char *note = "from owner to importer: allocations · size; a line with two heads: as "
			   "much each way";

	if (count <= NODES_MAX)
		make_resident_nodes(lanes, involved);
	else
		make_device_nodes(lanes, involved);
	place_nodes(lanes);
	make_flows(lanes);
	make_pairs(lanes);
	y = lien_sheet_heading(lanes->sheet, y, "Imports",
		count ? note
		      : "none: no process holds "
			"memory of another");
	if (lanes->pair_count)
		y = draw_lanes(lanes, y);
	y = draw_hidden(lanes, y);
	for (unsigned i = 0; i < lanes->node_count; i++) {
		free(lanes->nodes[i].name);
		free(lanes->nodes[i].tip);
	}
	return y;
}

int lien_lanes_draw(const struct lien_sheet *sheet, int y)
{
	struct lanes *lanes = calloc(1, sizeof(*lanes));
	bool *involved = calloc(sheet->residents.count + 1, sizeof(*involved));

	if (lanes)
		lanes->node_of = calloc(sheet->residents.count + 1, sizeof(*lanes->node_of));
	if (!lanes || !involved || !lanes->node_of) {
		y = -1;
		goto out;
	}
	for (unsigned i = 0; i < sheet->residents.count; i++)
		lanes->node_of[i] = -1;
	lanes->sheet = sheet;
	y = draw(lanes, involved, count_involved(&sheet->residents, involved), y);
out:
	if (lanes)
		free(lanes->node_of);
	free(lanes);
	free(involved);
	return y;
}
