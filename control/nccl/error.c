// SPDX-License-Identifier: BSD-2-Clause
/* What failed last. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/driver/nccl_calls.h"
#include "control/driver/thread.h"
#include "control/nccl/nccl.h"

#define TEXT 1024

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last[TEXT];	  /* ours; "": none */
static char before[TEXT]; /* what NCCL's own last error was then */

typedef const char *last_error_fn(lien_nccl_comm comm);
typedef int version_fn(int *version);

static const char *nccls_last(lien_nccl_comm comm)
{
	last_error_fn *genuine = (last_error_fn *)lien_nccl_genuine("ncclGetLastError");
	const char *text = genuine ? genuine(comm) : NULL;

	return text ? text : "";
}

int lien_nccl_fail(int result, const char *call, const char *format, ...)
{
	const char *nccls = nccls_last(NULL);
	char text[TEXT];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "lien: %s: %s\n", call, text);
	pthread_mutex_lock(&lock);
	snprintf(last, sizeof(last), "lien: %.40s: %.960s", call, text);
	snprintf(before, sizeof(before), "%s", nccls);
	pthread_mutex_unlock(&lock);
	return result;
}

/* NCCL's own, if it has failed since. */
const char *lien_ncclGetLastError(lien_nccl_comm comm)
{
	const char *nccls = nccls_last(comm);
	int ours;

	pthread_mutex_lock(&lock);
	ours = last[0] && !strncmp(nccls, before, sizeof(before) - 1);
	pthread_mutex_unlock(&lock);
	return ours ? last : nccls;
}

int lien_ncclGetVersion(int *version)
{
	const char *wanted = getenv("LIEN_NCCL_VERSION");
	version_fn *genuine = (version_fn *)lien_nccl_genuine("ncclGetVersion");
	char *end = NULL;
	long number = wanted ? strtol(wanted, &end, 10) : 0;

	if (!version)
		return LIEN_NCCL_INVALID_ARGUMENT;
	if (wanted && wanted[0] && !*end && number > 0 && number < 10000000) {
		*version = number;
		return LIEN_NCCL_SUCCESS;
	}
	if (genuine)
		return genuine(version);
	return lien_nccl_fail(LIEN_NCCL_SYSTEM_ERROR, "ncclGetVersion", "NCCL is not loaded");
}

static void forked(void)
{
	const pthread_mutex_t free = PTHREAD_MUTEX_INITIALIZER;

	lock = free;
	last[0] = '\0';
}

LIEN_FORKED(forked);
