// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/agent.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define LONG_NS 100000000ull /* longer turns are in the log */

void lien_turns_start(struct lien_turns *turns)
{
	turns->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
}

void lien_turns_stop(struct lien_turns *turns)
{
	close(turns->schedstat);
}

static void part_end(struct lien_turns *turns, uint64_t now)
{
	if (turns->part[0] && now - turns->t_part > turns->longest_part_ns) {
		turns->longest_part_ns = now - turns->t_part;
		turns->longest_part[0] = turns->part[0];
		turns->longest_part[1] = turns->part[1];
	}
	turns->part[0] = NULL;
}

void lien_turn_part(struct lien_agent *agent, const char *kind, const char *name)
{
	struct lien_turns *turns = &agent->turns;
	uint64_t now = lien_now_ns();

	part_end(turns, now);
	turns->t_part = now;
	turns->part[0] = kind;
	turns->part[1] = name;
}

/* CPU time that the agent's main thread has used. */
static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* Time that the thread was ready to run, but no processor was free. 0 where the kernel does not
 * count it. */
static uint64_t ready_ns(const struct lien_turns *turns)
{
	unsigned long long ran, ready;
	char line[80];
	ssize_t n = pread(turns->schedstat, line, sizeof(line) - 1, 0);

	line[n < 0 ? 0 : n] = 0;
	return sscanf(line, "%llu %llu", &ran, &ready) == 2 ? ready : 0;
}

void lien_turn_begin(struct lien_turns *turns)
{
	turns->cpu_begun = cpu_ns();
	turns->ready_begun = ready_ns(turns);
	turns->t_begun = lien_now_ns();
	turns->longest_part_ns = 0;
	turns->longest_part[0] = NULL;
	turns->turn_requests = turns->turn_records = 0;
}

/* Was the agent stopped during the turn? That time is not its own. */
static bool was_stopped(void)
{
	sigset_t pending;

	return !sigpending(&pending) && sigismember(&pending, SIGCONT);
}

void lien_turn_end(struct lien_turns *turns)
{
	uint64_t now = lien_now_ns(), took = now - turns->t_begun, ready;

	part_end(turns, now);
	turns->count++;
	turns->requests += turns->turn_requests;
	if (turns->turn_requests > turns->most_requests)
		turns->most_requests = turns->turn_requests;
	/* Neither part of it is longer than the whole. */
	if ((took <= turns->longest_ns && took <= turns->longest_ready_ns) || was_stopped())
		return;
	ready = ready_ns(turns) - turns->ready_begun;
	if (ready > turns->longest_ready_ns)
		turns->longest_ready_ns = ready;
	took -= ready < took ? ready : took;
	if (took <= turns->longest_ns || !turns->longest_part[0])
		return;
	turns->longest_ns = took;
	turns->longest_cpu_ns = cpu_ns() - turns->cpu_begun;
	snprintf(turns->longest_in, sizeof(turns->longest_in), "%s %s", turns->longest_part[0],
		turns->longest_part[1]);
	if (took > LONG_NS)
		lien_log(5, "a turn of the loop took %.1f ms (%.1f of them its own), %.1f in: %s",
			took / 1e6, turns->longest_cpu_ns / 1e6, turns->longest_part_ns / 1e6,
			turns->longest_in);
}
