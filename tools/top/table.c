// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"
#include "tools/text/process_text.h"
#include "tools/top/top.h"

char *lien_top_size(uint64_t bytes)
{
	static const char units[] = "KMGTPE";
	double value = bytes / 1024.0;
	unsigned unit = 0;

	if (!bytes)
		return lien_format("0");
	for (; value >= 1023.5 && units[unit + 1]; unit++)
		value /= 1024;
	return lien_format("%.*f%c", value < 9.95 ? 1 : 0, value, units[unit]);
}

static char *short_count(double n)
{
	if (n < 10000)
		return lien_format("%.*f", n > 0 && n < 9.95 && n != (uint64_t)n ? 1 : 0, n);
	return n < 1e7 ? lien_format("%.0fk", n / 1e3) : lien_format("%.0fM", n / 1e6);
}

static char *ranks_text(const struct lien_top_process *process)
{
	const json_t *ranks = json_object_get(process->entry, "ranks"), *rank;

	rank = json_array_get(ranks, 0);
	if (!rank)
		return lien_format("-");
	return lien_format("%" PRIu64 "/%" PRIu64 "%s", lien_get_number(rank, "rank"),
		lien_get_number(rank, "nranks"), json_array_size(ranks) > 1 ? "+" : "");
}

static char *devices_text(const struct lien_top_process *process)
{
	return lien_devices_text(process->entry);
}

static char *rate_text(const struct lien_top_process *process)
{
	return process->rate < 0 ? lien_format("-") : short_count(process->rate);
}

static char *state_text(const struct lien_top_process *process)
{
	bool partial = json_is_false(json_object_get(process->entry, "complete"));

	return lien_format("%s%s", lien_state_text(process->entry), partial ? "*" : "");
}

static char *command_text(const struct lien_top_process *process)
{
	return lien_format("%s", lien_get_text(process->entry, "command"));
}

/* How a number is shown. */
enum number { PLAIN, SIZE, COUNT };

static const struct column {
	const char *title;
	unsigned width;
	bool left;	   /* left-aligned; otherwise a number, right-aligned */
	unsigned optional; /* the larger, the sooner it is dropped on a narrow terminal */
	/* NULL: the number of 64 bits at this offset */
	char *(*text)(const struct lien_top_process *process);
	size_t at;
	enum number kind;
} columns[] = {
#define AT(member) .at = offsetof(struct lien_top_process, member)
	{"PID", 7, false, 0, AT(pid), .kind = PLAIN},
	{"RANK", 7, true, 3, .text = ranks_text},
	{"DEV", 4, true, 4, .text = devices_text},
	{"GPU", 5, false, 0, AT(bytes), .kind = SIZE},
	{"NCCL", 5, false, 2, AT(nccl), .kind = SIZE},
	{"OTHER", 6, false, 7, AT(other), .kind = SIZE},
	{"IN", 4, false, 5, AT(imports), .kind = COUNT},
	{"OUT", 4, false, 5, AT(exports), .kind = COUNT},
	{"COLL/S", 7, false, 6, .text = rate_text},
	{"STATE", 9, true, 8, .text = state_text},
	{"COMMAND", 8, true, 1, .text = command_text},
#undef AT
};

#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

unsigned lien_top_columns(void)
{
	return COLUMNS;
}

const char *lien_top_column_title(unsigned column)
{
	return columns[column].title;
}

static uint64_t number_of(const struct lien_top_process *process, const struct column *column)
{
	return *(const uint64_t *)((const char *)process + column->at);
}

static char *text_of(const struct lien_top_process *process, const struct column *column)
{
	if (column->text)
		return column->text(process);
	if (column->kind == SIZE)
		return lien_top_size(number_of(process, column));
	return column->kind == COUNT ? short_count(number_of(process, column))
				     : lien_format("%" PRIu64, number_of(process, column));
}

/* Texts are compared as displayed. */
static int compare_in(const struct column *column, const struct lien_top_process *a,
	const struct lien_top_process *b)
{
	char *of_a, *of_b;
	int order;

	if (column->text == rate_text)
		return (a->rate > b->rate) - (a->rate < b->rate);
	if (!column->text)
		return (number_of(a, column) > number_of(b, column)) -
		       (number_of(a, column) < number_of(b, column));
	of_a = column->text(a);
	of_b = column->text(b);
	order = strverscmp(of_a, of_b);
	free(of_a);
	free(of_b);
	return order;
}

static int compare(const void *x, const void *y, void *context)
{
	const struct lien_top_process *a = x, *b = y;
	const struct lien_top_view *view = context;
	int order = compare_in(&columns[view->sort], a, b);

	if (!order)
		return (a->pid > b->pid) - (a->pid < b->pid);
	return view->ascending ? order : -order;
}

void lien_top_sort(struct lien_top *top, const struct lien_top_view *view)
{
	qsort_r(top->processes, top->count, sizeof(*top->processes), compare, (void *)view);
}

static unsigned needed(unsigned least)
{
	unsigned i, sum = 0;

	for (i = 0; i < COLUMNS; i++)
		if (columns[i].optional < least)
			sum += columns[i].width + 1;
	return sum - 1;
}

/* Returns the limit: columns at least as optional as this are dropped. */
static unsigned limit_for(unsigned width)
{
	unsigned limit = 9;

	while (limit > 1 && needed(limit) > width)
		limit--;
	return limit;
}

/* Adds a cell; the last column gets the remaining room. */
static char *add(char *line, const struct column *column, const char *text, unsigned width)
{
	unsigned used = line ? strlen(line) + 1 : 0, room = column->width;
	bool last = column == &columns[COLUMNS - 1];

	if (last && width > used)
		return lien_append(line, " ", "%.*s", (int)(width - used), text);
	if (last)
		return lien_append(line, " ", "%.*s", (int)room, text);
	if (column->left)
		return lien_append(line, " ", "%-*.*s", (int)room, (int)room, text);
	return lien_append(line, " ", "%*s", (int)room, text);
}

static char *trimmed(char *line)
{
	size_t length = line ? strlen(line) : 0;

	while (length && line[length - 1] == ' ')
		line[--length] = '\0';
	return line;
}

char *lien_top_heading(const struct lien_top_view *view, unsigned width)
{
	unsigned limit = limit_for(width), i;
	char *line = NULL, *title;

	for (i = 0; i < COLUMNS; i++) {
		if (columns[i].optional >= limit)
			continue;
		title = lien_format(view->sort == i ? ">%s" : "%s", columns[i].title);
		line = add(line, &columns[i], title, width);
		free(title);
	}
	return trimmed(line);
}

char *lien_top_row(const struct lien_top_process *process, unsigned width)
{
	unsigned limit = limit_for(width), i;
	char *line = NULL, *text;

	for (i = 0; i < COLUMNS; i++) {
		if (columns[i].optional >= limit)
			continue;
		text = text_of(process, &columns[i]);
		line = add(line, &columns[i], text, width);
		free(text);
	}
	return trimmed(line);
}
