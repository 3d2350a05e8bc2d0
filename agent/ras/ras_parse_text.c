// SPDX-License-Identifier: BSD-2-Clause
/* NCCL's RAS in words: what "STATUS" and "VERBOSE STATUS" print since NCCL 2.24. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/ras/ras_parse.h"

#define LINE_MAX_BYTES 512 /* of a line; the rest is cut */
#define GROUPS_MAX     1024

/* The table of communicators has a line for all that are alike. */
struct groups {
	int32_t nranks[GROUPS_MAX]; /* -1: not told */
	unsigned count;
	bool in_table;
};

/* A number that is followed by a space or nothing; moves on behind it. */
static int32_t number(const char **at)
{
	int32_t value;

	while (**at == ' ')
		(*at)++;
	value = lien_ras_number(*at);
	while (**at && **at != ' ')
		(*at)++;
	return value;
}

/* "  0   8   4   1   4   32   RUNNING   OK": number, communicators, nodes, ranks per node (which
 * may be "1-2"), ranks per communicator, ... */
static bool table_line(struct groups *groups, const char *line, struct lien_ras_answer *answer)
{
	int32_t group = number(&line), comms = number(&line), nranks;

	number(&line);
	number(&line);
	nranks = number(&line);
	if (group != (int32_t)groups->count || comms < 0 || nranks < 1)
		return false;
	if (groups->count == GROUPS_MAX) {
		answer->whole = false;
		return false;
	}
	groups->nranks[groups->count++] = nranks;
	if (__builtin_add_overflow(answer->named, (unsigned)comms, &answer->named))
		answer->named = UINT32_MAX;
	return true;
}

/* "#0-0 (27a079b828ff1a75) MISMATCH": each kind of trouble has its own. */
static struct lien_ras_comm *heading(const char *line, const struct groups *groups,
	struct lien_ras_answer *answer, int *err, unsigned *index)
{
	struct lien_ras_comm *comm;
	unsigned long group = strtoul(line + 1, NULL, 10);
	const char *open = strstr(line, " (");
	uint64_t hash = open ? strtoull(open + 2, NULL, 16) : 0;
	int32_t nranks = group < groups->count ? groups->nranks[group] : -1;
	unsigned i;

	if (!hash)
		return NULL;
	for (i = 0; i < answer->comms; i++)
		if (answer->comm[i].hash == hash && answer->comm[i].nranks == nranks)
			break;
	comm = i < answer->comms ? &answer->comm[i] : lien_ras_add_comm(answer, err);
	if (comm) {
		comm->hash = hash;
		comm->nranks = nranks;
		*index = comm - answer->comm;
	}
	return comm;
}

/* The number that follows these words; -1: it is not there. */
static int32_t number_after(const char *line, const char *words)
{
	const char *at = strstr(line, words);

	return at ? lien_ras_number(at + strlen(words)) : -1;
}

/* "  Rank 3 has status RUNNING -- GPU 0 (NVML 3) managed by process 483075 on node 172.16.64.210"
 */
static void rank_line(const char *line, unsigned comm, struct lien_ras_answer *answer, int *err)
{
	int32_t rank = lien_ras_number(line + strlen("  Rank ")),
		pid = number_after(line, " managed by process ");
	const char *node = strstr(line, " on node ");
	struct lien_ras_rank *one;
	unsigned i;

	if (rank < 0 || pid < 0 || !node)
		return;
	for (i = 0; i < answer->ranks; i++)
		if (answer->rank[i].comm == comm && answer->rank[i].rank == rank)
			return; /* told before, for another reason */
	one = lien_ras_add_rank(answer, err);
	if (!one)
		return;
	one->comm = comm;
	one->rank = rank;
	one->pid = pid;
	one->device = number_after(line, " -- GPU ");
	lien_ras_host_parse(node + strlen(" on node "), &one->host);
}

/* Of the next line what fits, without its end. False: there is none. */
static bool next_line(const char **at, const char *end, char line[LINE_MAX_BYTES])
{
	const char *stop;
	size_t length;

	if (*at == end)
		return false;
	stop = memchr(*at, '\n', end - *at);
	length = (stop ? stop : end) - *at;
	if (length >= LINE_MAX_BYTES)
		length = LINE_MAX_BYTES - 1;
	memcpy(line, *at, length);
	line[length] = '\0';
	line[strcspn(line, "\r")] = '\0';
	*at = stop ? stop + 1 : end;
	return true;
}

static bool begins(const char *line, const char *words)
{
	return !strncmp(line, words, strlen(words));
}

int lien_ras_parse_text(const char *text, size_t size, struct lien_ras_answer *answer)
{
	const char *at = text, *end = text + size;
	struct lien_ras_comm *comm = NULL;
	struct groups groups = {0};
	char line[LINE_MAX_BYTES];
	bool known = false, ends = false;
	unsigned index = 0;
	int err = 0;

	memset(answer, 0, sizeof(*answer));
	answer->whole = answer->in_words = true;
	while (!err && next_line(&at, end, line)) {
		if (begins(line, "NCCL version ")) {
			const char *version = line + strlen("NCCL version ");

			lien_ras_set_version(answer, version, strcspn(version, " "));
			known = true;
		} else if (begins(line, "Group ")) {
			groups.in_table = known = true;
		} else if (begins(line, "    #  in group")) {
			continue;
		} else if (groups.in_table && !comm && table_line(&groups, line, answer)) {
			continue;
		} else if (begins(line, "Warnings") ||
			   begins(line, "No communicator data collected!")) {
			ends = true;
		} else if (line[0] == '#') {
			groups.in_table = false;
			comm = heading(line, &groups, answer, &err, &index);
		} else if (comm && begins(line, "  Rank ")) {
			rank_line(line, index, answer, &err);
		} else if (!line[0]) {
			groups.in_table = false;
		}
	}
	answer->whole &= ends;
	return err ? err : known ? 0 : -EBADMSG;
}
