// SPDX-License-Identifier: BSD-2-Clause
#include <curses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/top/top.h"

#define ESCAPE 27

/* Directories where distributions keep terminal descriptions; the linked library may have been
 * built for others. */
#define TERMINFO_PLACES                                                                            \
	"/etc/terminfo:/lib/terminfo:/usr/share/terminfo:/usr/lib/terminfo:"                       \
	"/usr/local/share/terminfo"

static SCREEN *screen;

const char *lien_screen_start(void)
{
	/* Substitutes for a terminal whose description is not installed. */
	static const char *const like[] = {NULL, "xterm-256color", "xterm", "vt100"};
	const char *name = getenv("TERM");
	size_t i;

	if (!name || !*name || !strcmp(name, "dumb"))
		return "TERM names a terminal without a screen";
	setenv("TERMINFO_DIRS", TERMINFO_PLACES, 0);
	/* The terminal knows better, also when its size changes. */
	unsetenv("COLUMNS");
	unsetenv("LINES");
	setenv("ESCDELAY", "25", 0); /* ms to wait for the rest of a key's sequence */
	for (i = 0; i < sizeof(like) / sizeof(like[0]) && !screen; i++)
		screen = newterm(like[i], stdout, stdin);
	if (!screen)
		return "no description of this terminal: install ncurses-base";
	cbreak();
	noecho();
	nonl();
	curs_set(0);
	keypad(stdscr, TRUE);
	nodelay(stdscr, TRUE);
	return NULL;
}

void lien_screen_end(void)
{
	if (!screen)
		return;
	endwin();
	delscreen(screen);
	screen = NULL;
}

unsigned lien_screen_width(void)
{
	return COLS;
}

unsigned lien_screen_height(void)
{
	return LINES;
}

unsigned lien_screen_room(const struct lien_page *page)
{
	int room = LINES - 1 - (int)page->head;

	return room > 0 ? room : 0;
}

static void put_line(int row, const char *text, enum lien_mark mark)
{
	static const attr_t attributes[] = {
		[LIEN_MARK_TITLE] = A_BOLD,
		[LIEN_MARK_HEADING] = A_UNDERLINE,
		[LIEN_MARK_SELECTED] = A_REVERSE,
		[LIEN_MARK_WARNING] = A_BOLD,
	};
	int column;

	attrset(attributes[mark]);
	/* Writing the last column of the last line would scroll the screen. */
	for (column = 0; *text && column < COLS - (row == LINES - 1); column++, text++)
		mvaddch(row, column, *text >= ' ' && *text <= '~' ? (chtype)*text : '?');
	if (mark == LIEN_MARK_SELECTED)
		for (; column < COLS - (row == LINES - 1); column++)
			mvaddch(row, column, ' ');
	attrset(A_NORMAL);
}

void lien_screen_draw(const struct lien_page *page, unsigned top, const char *footer)
{
	int room = LINES - 1;
	unsigned i, line;

	erase();
	for (i = 0; (int)i < room; i++) {
		line = i < page->head ? i : i + top;
		if (line >= page->count)
			break;
		put_line(i, page->lines[line].text, page->lines[line].mark);
	}
	put_line(LINES - 1, footer, LIEN_MARK_TITLE);
	refresh();
}

enum lien_key lien_screen_key(void)
{
	switch (getch()) {
	case ERR:
		return LIEN_KEY_NONE;
	case KEY_UP:
	case 'k':
		return LIEN_KEY_UP;
	case KEY_DOWN:
	case 'j':
		return LIEN_KEY_DOWN;
	case KEY_PPAGE:
		return LIEN_KEY_PAGE_UP;
	case KEY_NPAGE:
	case ' ':
		return LIEN_KEY_PAGE_DOWN;
	case KEY_HOME:
		return LIEN_KEY_FIRST;
	case KEY_END:
		return LIEN_KEY_LAST;
	case KEY_ENTER:
	case '\r':
	case '\n':
		return LIEN_KEY_OPEN;
	case ESCAPE:
	case 'q':
		return LIEN_KEY_BACK;
	case 's':
	case '>':
		return LIEN_KEY_SORT_NEXT;
	case '<':
		return LIEN_KEY_SORT_PREVIOUS;
	case 'r':
		return LIEN_KEY_REVERSE;
	case '?':
	case 'h':
		return LIEN_KEY_HELP;
	default:
		return LIEN_KEY_OTHER;
	}
}
