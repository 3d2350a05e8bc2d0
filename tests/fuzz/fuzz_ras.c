// SPDX-License-Identifier: BSD-2-Clause
/* What listens on the port of NCCL's RAS may answer anything, and a job's memory may hold anything.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/ras/ras.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_for(const uint8_t *data, size_t size, const struct lien_ras_answer *answer)
{
	struct lien_ras_row rows[16];
	unsigned i, count = answer->ranks < 16 ? answer->ranks : 16;
	size_t structure = lien_ras_structure(data, size);
	int32_t rank;
	int found;

	for (i = 0; i < count; i++) {
		const struct lien_ras_comm *comm = &answer->comm[answer->rank[i].comm];

		rows[i] = (struct lien_ras_row){.hash = comm->hash,
			.nranks = comm->nranks,
			.rank = answer->rank[i].rank,
			.sure = i & 1};
	}
	found = lien_ras_match(data, structure ? structure : size, rows, count, &rank);
	if (structure > size || found >= (int)count)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct lien_ras_answer answer;
	unsigned i;

	lien_ras_parse_json((const char *)data, size, &answer);
	for (i = 0; i < answer.ranks; i++)
		if (answer.rank[i].comm >= answer.comms || answer.rank[i].rank < -1 ||
			answer.rank[i].pid < -1)
			abort();
	if (strnlen(answer.version, LIEN_RAS_VERSION) == LIEN_RAS_VERSION)
		abort();
	look_for(data, size, &answer);
	lien_ras_answer_clear(&answer);
	return 0;
}
