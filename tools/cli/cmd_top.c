// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <lien/clock.h>

#include "tools/cli/commands.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"
#include "tools/top/page.h"
#include "tools/top/top.h"

#define ANSWER_MS 10000
#define DELAY_MAX 86400
#define WIDE	  100 /* where the output is not a terminal */

static const char *const examples[] = {"lien top", "all GPU processes, refreshed every second",
	"lien top --once", "one page as text, without a terminal", NULL};

static const struct lien_usage usage = {
	.command = "lien top",
	.arguments = "",
	.summary = "Shows the processes that use CUDA on this node on a full screen that is "
		   "refreshed: "
		   "memory by owner, liens in and out, collectives per second. Keys: arrows, PgUp "
		   "and "
		   "PgDn move, s, < and > choose the column to sort by, r reverses, Enter opens a "
		   "process, q or Esc goes back and out, ? explains keys and columns. Processes "
		   "without GPU memory are left out.",
	.examples = examples,
};

struct session {
	struct lien_top top;
	struct lien_top_view view;
	struct lien_page page;
	unsigned first; /* first line shown below the page's head, relative to it */
	unsigned delay; /* seconds */
	sigset_t waiting;
	bool quit, lost; /* lost: the agent did not answer the last time */
};

static double now(void)
{
	return lien_clock_ns() / 1e9;
}

/* Returns the selected process's place in the list, or the first place when that has ended. */
static unsigned selected_index(const struct session *session)
{
	unsigned i;

	for (i = 0; i < session->top.count; i++)
		if (session->top.processes[i].pid == session->view.selected)
			return i;
	return 0;
}

/* Scrolls so that the chosen line, or the page's end, is on the screen. */
static void scroll(struct session *session)
{
	unsigned room = lien_screen_room(&session->page);
	unsigned body = session->page.count - session->page.head, chosen;

	if (session->page.chosen) {
		chosen = session->page.chosen - session->page.head;
		if (session->first > chosen)
			session->first = chosen;
		else if (room && chosen >= session->first + room)
			session->first = chosen - room + 1;
	}
	if (session->first + room > body)
		session->first = body > room ? body - room : 0;
}

static void draw(struct session *session)
{
	char *footer;

	if (session->view.help || session->view.opened)
		footer = lien_format("q back  ? help");
	else
		footer = lien_format("q quit  Enter open  s < > r sort: %s, %s first  ? help",
			lien_top_column_title(session->view.sort),
			session->view.ascending ? "least" : "most");
	scroll(session);
	lien_screen_draw(&session->page, session->first, footer);
	free(footer);
}

static void move_by(struct session *session, int lines)
{
	int at = session->first, last = session->top.count - 1;

	if (session->page.chosen) { /* the list */
		at = (int)selected_index(session) + lines;
		at = at > last ? last : at;
		session->view.selected = session->top.processes[at < 0 ? 0 : at].pid;
	} else {
		at += lines;
		session->first = at < 0 ? 0 : at;
	}
}

static void go_back(struct session *session)
{
	session->quit = !session->view.help && !session->view.opened;
	if (session->view.help)
		session->view.help = false;
	else
		session->view.opened = 0;
	session->first = 0;
}

static void sort_by(struct session *session, int step)
{
	unsigned count = lien_top_columns();

	session->view.sort = (session->view.sort + count + step) % count;
}

/* Returns true if another process is shown, so its data are needed. */
static bool handle_key(struct session *session, enum lien_key key)
{
	int screenful = lien_screen_room(&session->page);
	bool list = !session->view.help && !session->view.opened;

	screenful = screenful > 1 ? screenful - 1 : 1;
	switch (key) {
	case LIEN_KEY_UP:
		move_by(session, -1);
		break;
	case LIEN_KEY_DOWN:
		move_by(session, 1);
		break;
	case LIEN_KEY_PAGE_UP:
		move_by(session, -screenful);
		break;
	case LIEN_KEY_PAGE_DOWN:
		move_by(session, screenful);
		break;
	case LIEN_KEY_FIRST:
		move_by(session, -(int)session->page.count - (int)session->top.count);
		break;
	case LIEN_KEY_LAST:
		move_by(session, session->page.count + session->top.count);
		break;
	case LIEN_KEY_OPEN:
		if (!list || !session->view.selected)
			break;
		session->view.opened = session->view.selected;
		session->first = 0;
		return true;
	case LIEN_KEY_BACK:
		go_back(session);
		break;
	case LIEN_KEY_SORT_NEXT:
		sort_by(session, 1);
		break;
	case LIEN_KEY_SORT_PREVIOUS:
		sort_by(session, -1);
		break;
	case LIEN_KEY_REVERSE:
		session->view.ascending = !session->view.ascending;
		break;
	case LIEN_KEY_HELP:
		session->view.help = true;
		session->first = 0;
		break;
	default:
		break;
	}
	return false;
}

/* Rebuilds the page from the current data. */
static bool make_page(struct session *session, unsigned width, unsigned height)
{
	lien_page_clear(&session->page);
	if (!lien_top_find(&session->top, session->view.selected)) {
		lien_top_sort(&session->top, &session->view);
		session->view.selected = session->top.count ? session->top.processes[0].pid : 0;
	}
	return lien_page_make(&session->page, &session->top, &session->view, width, height);
}

/* An agent that is restarted or upgraded comes back: the next refresh connects again. */
static void show_lost(struct session *session)
{
	lien_page_clear(&session->page);
	session->page.width = lien_screen_width();
	lien_page_say(&session->page, LIEN_MARK_TITLE, "lien top: waiting for the agent");
	lien_page_say(
		&session->page, LIEN_MARK_WARNING, "%s", lien_client_error(session->top.client));
	session->page.head = session->page.count;
}

static void show(struct session *session)
{
	if (!session->lost)
		session->lost = !make_page(session, lien_screen_width(), lien_screen_height());
	if (session->lost)
		show_lost(session);
}

static bool refresh_all(struct session *session)
{
	return !lien_top_refresh(&session->top, session->view.opened);
}

/* Waits for keys until it is time to refresh. Returns false: the terminal is gone. */
static bool wait_for_keys(struct session *session, double until)
{
	struct pollfd fd = {.fd = STDIN_FILENO, .events = POLLIN};
	double left = until - now();
	struct timespec limit = {};

	if (left > 0) {
		limit.tv_sec = left;
		limit.tv_nsec = (left - limit.tv_sec) * 1e9;
	}
	if (ppoll(&fd, 1, &limit, &session->waiting) < 0)
		return errno == EINTR;
	return !(fd.revents & (POLLHUP | POLLERR | POLLNVAL));
}

static void run(struct session *session)
{
	double due = 0;
	enum lien_key key;

	while (!session->quit) {
		if (now() >= due) {
			session->lost = !refresh_all(session);
			due = now() + session->delay;
		}
		show(session);
		draw(session);
		if (!wait_for_keys(session, due) || lien_interrupted())
			return;
		while (!session->quit && (key = lien_screen_key()) != LIEN_KEY_NONE) {
			if (handle_key(session, key))
				due = 0;
			show(session);
			scroll(session);
		}
	}
}

static int run_screen(struct session *session)
{
	const char *error;

	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
		return lien_complain(usage.command,
			"this is not a terminal: `lien ps` lists the processes, `lien top --once` "
			"prints one page");
	/* Before taking over the screen: a missing agent is usually missing from the start. */
	if (!refresh_all(session))
		return lien_complain(usage.command, "%s", lien_client_error(session->top.client));
	lien_interrupt_catch(&session->waiting);
	error = lien_screen_start();
	if (error)
		return lien_complain(usage.command, "%s", error);
	run(session);
	lien_screen_end();
	return LIEN_EXIT_OK;
}

/* Rates need two refreshes; without counters one is enough. */
static int run_once(struct session *session)
{
	bool ok = refresh_all(session);
	size_t width;
	unsigned i;

	if (ok && session->top.comms) {
		sleep(session->delay);
		ok = refresh_all(session);
	}
	width = lien_table_columns(stdout);
	if (!ok || !make_page(session, width < WIDE ? width : WIDE, UINT_MAX))
		return lien_complain(usage.command, "%s", lien_client_error(session->top.client));
	for (i = 0; i < session->page.count; i++)
		printf("%s\n", session->page.lines[i].text);
	return LIEN_EXIT_OK;
}

int lien_cmd_top(int argc, char **argv)
{
	struct session session = {.view.sort = LIEN_TOP_SORT_DEFAULT};
	const char *socket = NULL;
	unsigned long delay = 1;
	bool once = false;
	const struct lien_option options[] = {{"d,delay", LIEN_OPTION_NUMBER, &delay, "SECONDS",
						      "between refreshes (default 1)", DELAY_MAX},
		{"all", LIEN_OPTION_FLAG, &session.top.all, NULL,
			"also processes without GPU memory", 0},
		{"once", LIEN_OPTION_FLAG, &once, NULL, "print one page as text and end", 0},
		LIEN_SOCKET_OPTION(&socket), {}};
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	session.delay = delay;
	session.top.client = lien_client_new(socket);
	if (!session.top.client)
		return lien_complain(usage.command, "out of memory");
	lien_client_timeout(session.top.client, ANSWER_MS);
	code = once ? run_once(&session) : run_screen(&session);
	lien_page_clear(&session.page);
	lien_top_clear(&session.top);
	return code;
}
