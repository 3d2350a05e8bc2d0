/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The modules of `lien top`: data.c asks the agent, table.c has the columns of the processes,
 * pages.c and page_process.c make pages of text, screen.c shows a page on a terminal. Only screen.c
 * uses curses, so that --once prints the same pages.
 */
#ifndef LIEN_TOOLS_TOP_H
#define LIEN_TOOLS_TOP_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>
#include <lien/client.h>

/* --- data ------------------------------------------------------------------------------------- */

struct lien_top_process {
	const json_t *entry; /* in the reply to ps */
	uint64_t pid, bytes, nccl, other, imports, exports;
	uint64_t collectives; /* total of all its communicators */
	double rate;	      /* collectives per second; -1: unknown */
};

struct lien_top {
	struct lien_client *client;
	bool all;      /* also processes without GPU memory */
	bool no_comms; /* the agent lacks that operation */
	/* Replies of the last refresh. comms and graph may be NULL. */
	json_t *status, *ps, *mem, *comms, *graph;
	struct lien_top_process *processes;
	unsigned count, left_out;
	double seconds, event_rate; /* CLOCK_MONOTONIC; -1: not known yet */
	double graph_due;	    /* a large graph is requested less often */
};

/* The user's choices from which, with the data, a page is made. */
struct lien_top_view {
	unsigned sort; /* a column of table.c */
	bool ascending;
	uint64_t selected; /* pid of the chosen process; 0: none yet */
	uint64_t opened;   /* pid of the process whose page is shown; 0: the list */
	bool help;
};

/* Returns the request's result, or NULL without memory or if lien_client_error() says why. */
json_t *lien_top_ask(struct lien_top *top, json_t *request);

/* Requests everything again; with_graph: also the graph. Returns non-zero if lien_client_error()
 * says why. */
int lien_top_refresh(struct lien_top *top, bool with_graph);
void lien_top_clear(struct lien_top *top);
const struct lien_top_process *lien_top_find(const struct lien_top *top, uint64_t pid);

/* --- table ------------------------------------------------------------------------------------ */

#define LIEN_TOP_SORT_DEFAULT 3 /* memory on the GPUs */

/* Four or five characters: "784M", "3.4G", "1023M"; the caller frees. */
char *lien_top_size(uint64_t bytes);

unsigned lien_top_columns(void);
/* Sorts by the view's column. */
void lien_top_sort(struct lien_top *top, const struct lien_top_view *view);
const char *lien_top_column_title(unsigned column);
/* Return lines of at most `width` columns, unless that is very small; the caller frees. */
char *lien_top_heading(const struct lien_top_view *view, unsigned width);
char *lien_top_row(const struct lien_top_process *process, unsigned width);

/* --- pages ------------------------------------------------------------------------------------ */

enum lien_mark {
	LIEN_MARK_NONE,
	LIEN_MARK_TITLE,
	LIEN_MARK_HEADING,
	LIEN_MARK_SELECTED,
	LIEN_MARK_WARNING,
};

struct lien_page_line {
	char *text;
	enum lien_mark mark;
};

struct lien_page {
	struct lien_page_line *lines;
	unsigned count, capacity, width;
	unsigned head;	 /* number of first lines, which stay while the others scroll */
	unsigned chosen; /* the selected line; 0: none */
};

/* Makes the page that the view selects, for a terminal of that size. Returns false: the agent did
 * not answer, and lien_client_error() says why. */
bool lien_page_make(struct lien_page *page, struct lien_top *top, const struct lien_top_view *view,
	unsigned width, unsigned height);
void lien_page_clear(struct lien_page *page);

/* --- screen ----------------------------------------------------------------------------------- */

enum lien_key {
	LIEN_KEY_OTHER, /* also: the size has changed */
	LIEN_KEY_UP,
	LIEN_KEY_DOWN,
	LIEN_KEY_PAGE_UP,
	LIEN_KEY_PAGE_DOWN,
	LIEN_KEY_FIRST,
	LIEN_KEY_LAST,
	LIEN_KEY_OPEN,
	LIEN_KEY_BACK,
	LIEN_KEY_SORT_NEXT,
	LIEN_KEY_SORT_PREVIOUS,
	LIEN_KEY_REVERSE,
	LIEN_KEY_HELP,
	LIEN_KEY_NONE, /* no more keys for now */
};

/* Returns NULL, or in words why there is no screen. */
const char *lien_screen_start(void);
/* Restores the terminal; may be called without a start. */
void lien_screen_end(void);
unsigned lien_screen_width(void);
unsigned lien_screen_height(void);
/* Returns the number of lines between the page's head and the footer. */
unsigned lien_screen_room(const struct lien_page *page);
/* top: the first line shown below the head, relative to it. */
void lien_screen_draw(const struct lien_page *page, unsigned top, const char *footer);
enum lien_key lien_screen_key(void);

#endif
