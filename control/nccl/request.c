// SPDX-License-Identifier: BSD-2-Clause
/* Requests to the agent, and what becomes of its refusals. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/ask/ask.h"
#include "control/nccl/nccl.h"

#define REST_S	   30 /* that the job may take to come to rest */
#define REST_S_MAX 3600
#define MOVE_MS	   600000 /* for all else: others' transactions first, copies, the way back */
#define LOOK_MS	   30000

/* By the agent's code. What is not listed: ncclSystemError. */
static const struct {
	const char *code;
	int result;
} results[] = {
	{"invalid", LIEN_NCCL_INVALID_ARGUMENT},
	{"refused", LIEN_NCCL_INVALID_USAGE},
	{"not-at-rest", LIEN_NCCL_INVALID_USAGE},
};

static int result_of(const char *code)
{
	size_t i;

	for (i = 0; i < sizeof(results) / sizeof(results[0]); i++)
		if (!strcmp(results[i].code, code))
			return results[i].result;
	return LIEN_NCCL_SYSTEM_ERROR;
}

static unsigned rest_ms(void)
{
	const char *text = getenv("LIEN_NCCL_TIMEOUT");
	char *end = NULL;
	long seconds = text ? strtol(text, &end, 10) : 0;

	if (!text || !text[0] || *end || seconds < 1 || seconds > REST_S_MAX)
		seconds = REST_S;
	return seconds * 1000;
}

int lien_nccl_look(const char *call, const char *request, struct lien_asked *asked)
{
	return lien_ask(request, LOOK_MS, asked)
		       ? lien_nccl_fail(result_of(asked->code), call, "%s", asked->text)
		       : LIEN_NCCL_SUCCESS;
}

int lien_nccl_move(const char *call, const char *what, uint64_t turn)
{
	const unsigned timeout_ms = rest_ms();
	struct lien_asked asked = {0};
	char request[4096], together[24] = "true";
	int length;

	if (turn)
		snprintf(together, sizeof(together), "%" PRIu64, turn);
	length = snprintf(request, sizeof(request),
		"{%s, \"together\": %s, \"wait\": true, \"timeout_ms\": %u}\n", what, together,
		timeout_ms);
	if (length < 0 || (size_t)length >= sizeof(request))
		return lien_nccl_fail(LIEN_NCCL_SYSTEM_ERROR, call, "the request is too long");
	if (!lien_ask(request, MOVE_MS + timeout_ms, &asked))
		return LIEN_NCCL_SUCCESS;
	return lien_nccl_fail(result_of(asked.code), call, "%s", asked.text);
}
