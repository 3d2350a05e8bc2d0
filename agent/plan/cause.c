// SPDX-License-Identifier: BSD-2-Clause
#include "agent/plan/cause.h"

#include <errno.h>
#include <stddef.h>

const struct lien_cause_row lien_causes[LIEN_CAUSE_COUNT] = {
#define LIEN_CAUSE_ROW(NAME, code, remedy) [LIEN_CAUSE_##NAME] = {code, remedy},
	LIEN_CAUSES(LIEN_CAUSE_ROW)
#undef LIEN_CAUSE_ROW
};

static const struct {
	int error;
	enum lien_cause cause;
} of_errors[] = {
	{-EBUSY, LIEN_CAUSE_NOT_AT_REST},
	{-EAGAIN, LIEN_CAUSE_NOT_AT_REST},
	{-ECANCELED, LIEN_CAUSE_CANCELLED},
	{-ESRCH, LIEN_CAUSE_PROCESS_GONE},
	{-ETIMEDOUT, LIEN_CAUSE_NO_ANSWER},
	{-EPERM, LIEN_CAUSE_PERMISSION},
	{-ENOMEM, LIEN_CAUSE_HOST_MEMORY},
	{-ENOSPC, LIEN_CAUSE_GPU_MEMORY},
	{-EBADMSG, LIEN_CAUSE_DAMAGED},
	{-EOWNERDEAD, LIEN_CAUSE_LOST},
	{-EOPNOTSUPP, LIEN_CAUSE_UNABLE},
	{-E2BIG, LIEN_CAUSE_TOO_MUCH},
};

enum lien_cause lien_cause_of(int error)
{
	size_t i;

	for (i = 0; i < sizeof(of_errors) / sizeof(of_errors[0]); i++)
		if (of_errors[i].error == error)
			return of_errors[i].cause;
	return LIEN_CAUSE_FAILED;
}
