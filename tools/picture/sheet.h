/* SPDX-License-Identifier: BSD-2-Clause */
/* The sheet on which all parts of the picture of lien_graph_svg() draw. */
#ifndef LIEN_TOOLS_GRAPH_SHEET_H
#define LIEN_TOOLS_GRAPH_SHEET_H

#include <stdio.h>

#include "tools/picture/residents.h"
#include "tools/picture/teams.h"
#include "tools/picture/svg.h"

#define LIEN_SHEET_MARGIN 24
#define LIEN_SHEET_NARROW 760  /* minimum width */
#define LIEN_SHEET_WIDE	  1480 /* maximum width */

#define LIEN_INK   "#1d2430"
#define LIEN_MUTED "#5b6573"
#define LIEN_FAINT "#c9d0d9"
#define LIEN_RED   "#b3261e"
#define LIEN_AMBER "#8a5a00"

struct lien_sheet {
	FILE *out;	     /* NULL: only measure */
	const json_t *nodes; /* of the reply, if they are several: tools/picture/several.h */
	struct lien_residents residents;
	struct lien_teams teams;
	int width;
	int column;   /* width of a resident in its card */
	int top;      /* height of the part that identifies a resident */
	int *centers; /* of residents, when all cards are side by side; otherwise NULL */
};

struct lien_shades {
	const char *strong, *light;
};

/* Returns the colours of a library. */
struct lien_shades lien_sheet_shades(const struct lien_sheet *sheet, const char *library);

/* "rank 3", "ranks 0-7", or NULL for a process that is in no communicator; the caller frees. */
char *lien_sheet_rank(const struct lien_sheet *sheet, const struct lien_resident *resident);
/* "A", "B", ... for teams; the caller frees. */
char *lien_sheet_team(const struct lien_sheet *sheet, unsigned team);
/* "GPU 3", "node7 · GPU 3"; the caller frees. */
char *lien_sheet_device(const struct lien_sheet *sheet, int device);
/* "pid 812", "node7 · pid 812"; the caller frees. */
char *lien_sheet_pid(const struct lien_sheet *sheet, uint64_t pid);

/* Draws the heading of a section; returns the y below it. */
int lien_sheet_heading(const struct lien_sheet *sheet, int y, const char *title, const char *note);

/* The sections: each draws from y on and returns the y below it. cards.c, lanes.c */
void lien_cards_arrange(struct lien_sheet *sheet);
int lien_cards_draw(struct lien_sheet *sheet, int y);
int lien_lanes_draw(const struct lien_sheet *sheet, int y);

#endif
