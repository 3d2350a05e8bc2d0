// SPDX-License-Identifier: BSD-2-Clause
#include "agent/ras/ras.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"

#define DEPTH_MAX 16
#define TEXT_MAX  64 /* limit of a key, string or number: the rest is cut */

/* --- the answer ------------------------------------------------------------------------------- */

static struct lien_ras_comm *add_comm(struct lien_ras_answer *answer, int *err)
{
	if (answer->comms == LIEN_RAS_COMMS_MAX) {
		answer->whole = false;
		return NULL;
	}
	*err = lien_array_grow(
		&answer->comm, answer->comms, &answer->comms_room, sizeof(*answer->comm));
	if (*err)
		return NULL;
	answer->comm[answer->comms] = (struct lien_ras_comm){.nranks = -1};
	return &answer->comm[answer->comms++];
}

static struct lien_ras_rank *add_rank(struct lien_ras_answer *answer, int *err)
{
	if (answer->ranks == LIEN_RAS_RANKS_MAX || !answer->comms) {
		answer->whole = false;
		return NULL;
	}
	*err = lien_array_grow(
		&answer->rank, answer->ranks, &answer->ranks_room, sizeof(*answer->rank));
	if (*err)
		return NULL;
	answer->rank[answer->ranks] = (struct lien_ras_rank){
		.comm = answer->comms - 1, .rank = -1, .pid = -1, .device = -1};
	return &answer->rank[answer->ranks++];
}

void lien_ras_answer_clear(struct lien_ras_answer *answer)
{
	free(answer->comm);
	free(answer->rank);
	memset(answer, 0, sizeof(*answer));
}

void lien_ras_report_free(struct lien_ras_report *report)
{
	if (report)
		free(report->row);
	free(report);
}

int32_t lien_ras_number(const char *text)
{
	char *end;
	long value;

	if (!isdigit((unsigned char)text[0]))
		return -1;
	value = strtol(text, &end, 10);
	return value > INT32_MAX || isalnum((unsigned char)*end) ? -1 : (int32_t)value;
}

static void set_host(struct lien_ras_host *host, const char *text)
{
	memset(host, 0, sizeof(*host));
	if (inet_pton(AF_INET, text, host->address) == 1)
		host->family = 4;
	else if (inet_pton(AF_INET6, text, host->address) == 1)
		host->family = 6;
}

static void set_version(struct lien_ras_answer *answer, const char *text)
{
	size_t i;

	for (i = 0; text[i] && i + 1 < LIEN_RAS_VERSION; i++)
		answer->version[i] = text[i] > ' ' && text[i] < 0x7f ? text[i] : '?';
	answer->version[i] = '\0';
}

/* --- JSON without commas ---------------------------------------------------------------------- */

enum token {
	TOKEN_END, /* end of the text, or of its readable part */
	TOKEN_OPEN,
	TOKEN_CLOSE,
	TOKEN_KEY,
	TOKEN_VALUE,
};

/* The kind of an object or array, by its position and key. */
enum place { ELSEWHERE, TOP, COMMS, COMM, RANKS, MISSING, RANK, MISSING_RANK };

struct reader {
	const char *at, *end;
	char text[TEXT_MAX]; /* the last key or value, cut */
	char key[TEXT_MAX];
	enum place stack[DEPTH_MAX];
	unsigned depth;
	struct lien_ras_answer *answer;
	struct lien_ras_comm *comm; /* NULL: none, or no room for it */
	struct lien_ras_rank *rank;
	int err;
};

static void keep(struct reader *reader, size_t *n, char c)
{
	if (*n + 1 < TEXT_MAX)
		reader->text[(*n)++] = c;
	reader->text[*n] = '\0';
}

static bool read_string(struct reader *reader)
{
	size_t n = 0;

	reader->text[0] = '\0';
	for (reader->at++; reader->at < reader->end; reader->at++) {
		if (*reader->at == '"') {
			reader->at++;
			return true;
		}
		if (*reader->at == '\\' && ++reader->at == reader->end)
			break;
		keep(reader, &n, *reader->at);
	}
	return false;
}

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '-' || c == '+' || c == '.';
}

static void skip_space(struct reader *reader)
{
	while (reader->at < reader->end &&
		(isspace((unsigned char)*reader->at) || *reader->at == ','))
		reader->at++;
}

static enum token next(struct reader *reader)
{
	size_t n = 0;

	skip_space(reader);
	if (reader->at == reader->end)
		return TOKEN_END;
	switch (*reader->at) {
	case '{':
	case '[':
		return TOKEN_OPEN;
	case '}':
	case ']':
		return TOKEN_CLOSE;
	case '"':
		if (!read_string(reader))
			return TOKEN_END;
		skip_space(reader);
		if (reader->at < reader->end && *reader->at == ':') {
			reader->at++;
			return TOKEN_KEY;
		}
		return TOKEN_VALUE;
	}
	while (reader->at < reader->end && is_word(*reader->at))
		keep(reader, &n, *reader->at++);
	return n ? TOKEN_VALUE : TOKEN_END;
}

static enum place place_of(const struct reader *reader, char opener)
{
	enum place in = reader->depth ? reader->stack[reader->depth - 1] : ELSEWHERE;

	if (!reader->depth)
		return opener == '{' ? TOP : ELSEWHERE;
	if (opener == '[') {
		if (in == TOP && !strcmp(reader->key, "communicators"))
			return COMMS;
		if (in == COMM && !strcmp(reader->key, "ranks"))
			return RANKS;
		if (in == COMM && !strcmp(reader->key, "missing_ranks"))
			return MISSING;
		return ELSEWHERE;
	}
	return in == COMMS ? COMM : in == RANKS ? RANK : in == MISSING ? MISSING_RANK : ELSEWHERE;
}

static bool open_one(struct reader *reader)
{
	enum place place = place_of(reader, *reader->at++);

	if (reader->depth == DEPTH_MAX)
		return false;
	reader->stack[reader->depth++] = place;
	reader->key[0] = '\0';
	if (place == COMM)
		reader->comm = add_comm(reader->answer, &reader->err);
	if (place != RANK && place != MISSING_RANK)
		return !reader->err;
	reader->rank = reader->comm ? add_rank(reader->answer, &reader->err) : NULL;
	if (reader->rank)
		reader->rank->missing = place == MISSING_RANK;
	return !reader->err;
}

/* "0x1f:0x2e" */
static void take_secondary(struct lien_ras_comm *comm, const char *text)
{
	char *end;

	comm->host_hash = strtoull(text, &end, 16);
	comm->pid_hash = *end == ':' ? strtoull(end + 1, NULL, 16) : 0;
}

static void take_value(struct reader *reader)
{
	enum place in = reader->depth ? reader->stack[reader->depth - 1] : ELSEWHERE;
	struct lien_ras_comm *comm = in == COMM ? reader->comm : NULL;
	struct lien_ras_rank *rank = in == RANK || in == MISSING_RANK ? reader->rank : NULL;
	const char *key = reader->key, *text = reader->text;

	if (in == TOP && !strcmp(key, "nccl_version"))
		set_version(reader->answer, text);
	else if (comm && !strcmp(key, "hash"))
		comm->hash = strtoull(text, NULL, 16);
	else if (comm && !strcmp(key, "secondary_hash"))
		take_secondary(comm, text);
	else if (comm && !strcmp(key, "size"))
		comm->nranks = lien_ras_number(text);
	else if (rank && !strcmp(key, "rank"))
		rank->rank = lien_ras_number(text);
	else if (rank && !strcmp(key, "pid"))
		rank->pid = lien_ras_number(text);
	else if (rank && !strcmp(key, "cuda_dev"))
		rank->device = lien_ras_number(text);
	else if (rank && !strcmp(key, "host"))
		set_host(&rank->host, text);
	reader->key[0] = '\0';
}

static void count_named(struct lien_ras_answer *answer)
{
	unsigned i;

	for (i = 0; i < answer->comms; i++)
		answer->named += answer->comm[i].hash != 0;
}

int lien_ras_parse_json(const char *text, size_t size, struct lien_ras_answer *answer)
{
	struct reader reader = {.at = text, .end = text + size, .answer = answer};
	bool opened = false, ended = false;
	enum token token;

	memset(answer, 0, sizeof(*answer));
	answer->whole = true;
	while (!ended && (token = next(&reader)) != TOKEN_END) {
		if (token == TOKEN_OPEN) {
			if (!open_one(&reader))
				break;
			opened |= reader.depth == 1 && reader.stack[0] == TOP;
		} else if (!reader.depth) {
			break;
		} else if (token == TOKEN_CLOSE) {
			reader.at++;
			ended = !--reader.depth;
		} else if (token == TOKEN_KEY) {
			memcpy(reader.key, reader.text, sizeof(reader.key));
		} else {
			take_value(&reader);
		}
	}
	answer->whole &= ended;
	count_named(answer);
	return reader.err ? reader.err : opened ? 0 : -EBADMSG;
}

/* --- the processes' memory -------------------------------------------------------------------- */

static uint64_t word(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static int32_t half(const uint8_t *at)
{
	int32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

size_t lien_ras_structure(const void *memory, size_t size)
{
	const uint8_t *bytes = memory;
	uint64_t first;
	size_t at;

	if (size < 2 * sizeof(first))
		return 0;
	first = word(bytes);
	if (!first)
		return 0;
	for (at = sizeof(first); at + sizeof(first) <= size; at += sizeof(first))
		if (word(bytes + at) == first)
			return at + sizeof(first);
	return 0;
}

/* Do the values after the hash match the row's rank and size? */
static bool confirmed(const struct lien_ras_row *row, int32_t rank, int32_t nranks)
{
	return row->nranks > 0 && nranks == row->nranks && rank >= 0 && rank < nranks &&
	       (row->rank < 0 || row->rank == rank);
}

/* The rows that were found; with a second one it is unclear which is meant. */
struct found {
	int row; /* -1: none so far */
	int32_t rank;
	bool several;
};

static void note(struct found *found, int row, int32_t rank)
{
	found->several |= found->row >= 0 && found->row != row;
	found->row = row;
	found->rank = rank;
}

int lien_ras_match(const void *structure, size_t size, const struct lien_ras_row *row,
	unsigned count, int32_t *rank)
{
	struct found sure = {-1, -1, false}, perhaps = {-1, -1, false}, *best;
	const uint8_t *bytes = structure;
	int32_t its_rank, its_size;
	unsigned i;
	size_t at;

	for (at = 0; at + sizeof(uint64_t) <= size; at += sizeof(uint64_t)) {
		for (i = 0; i < count && row[i].hash != word(bytes + at); i++)
			;
		if (i == count || !row[i].hash)
			continue;
		its_rank = size - at >= 16 ? half(bytes + at + 8) : -1;
		its_size = size - at >= 16 ? half(bytes + at + 12) : -1;
		for (; i < count; i++) {
			if (row[i].hash != word(bytes + at))
				continue;
			if (confirmed(&row[i], its_rank, its_size))
				note(&sure, i, its_rank);
			else if (row[i].sure)
				note(&perhaps, i, row[i].rank);
		}
	}
	best = sure.row >= 0 ? &sure : &perhaps;
	*rank = best->rank;
	return best->several ? -1 : best->row;
}

void lien_ras_match_once(int *from, unsigned addresses)
{
	unsigned i, j;
	bool twice;

	for (i = 0; i < addresses; i++) {
		twice = false;
		for (j = i + 1; from[i] >= 0 && j < addresses; j++)
			if (from[j] == from[i]) {
				from[j] = -1;
				twice = true;
			}
		if (twice)
			from[i] = -1;
	}
}
