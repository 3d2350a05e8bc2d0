/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The functions that some versions of NCCL have, for all others (docs/nccl-calls.md): AMem's, which
 * pause what a process has made under its group id, and those of NCCL 2.29.7, which suspend one
 * communicator. They ask the agent to move the memory, in all ranks; requests of several ranks for
 * the same are one transaction. No function exits, and every wait has a limit.
 *
 * Any thread may call them; it must not be in an NCCL group with calls in it. State is the
 * process's.
 */
#ifndef LIEN_CONTROL_NCCL_H
#define LIEN_CONTROL_NCCL_H

#include <stdint.h>

/* ncclResult_t */
enum lien_nccl_result {
	LIEN_NCCL_SUCCESS = 0,
	LIEN_NCCL_SYSTEM_ERROR = 2,
	LIEN_NCCL_INVALID_ARGUMENT = 4,
	LIEN_NCCL_INVALID_USAGE = 5,
};

typedef void *lien_nccl_comm; /* ncclComm_t */

/* NCCL_SUSPEND_MEM */
#define LIEN_NCCL_SUSPEND_MEM 1

/* ncclCommMemStat_t */
enum lien_nccl_stat {
	LIEN_NCCL_STAT_SUSPEND,	  /* bytes that can be suspended, or are */
	LIEN_NCCL_STAT_SUSPENDED, /* 1: they are */
	LIEN_NCCL_STAT_PERSIST,	  /* bytes that stay */
	LIEN_NCCL_STAT_TOTAL,
};

/* pause.c */
int lien_ncclPause(lien_nccl_comm *ignored);
int lien_ncclResume(lien_nccl_comm *ignored);
int lien_ncclMemStats(void);
int lien_ncclSetGroupID(int id);
int lien_ncclGetGroupID(int *id);

/* suspend.c */
int lien_ncclCommSuspend(lien_nccl_comm comm, int flags);
int lien_ncclCommResume(lien_nccl_comm comm);
int lien_ncclCommMemStats(lien_nccl_comm comm, int stat, uint64_t *value);

/* error.c */
int lien_ncclGetVersion(int *version);
const char *lien_ncclGetLastError(lien_nccl_comm comm);
/* Notes why a call fails, for ncclGetLastError() and on standard error. Returns result. */
__attribute__((format(printf, 3, 4))) int lien_nccl_fail(
	int result, const char *call, const char *format, ...);

/*
 * request.c. Carries out a request: the members that all have are added. `turn` 0: it is not of a
 * numbered turn. Returns an ncclResult_t; a failure has been noted.
 */
int lien_nccl_move(const char *call, const char *what, uint64_t turn);
/* Asks for something that moves nothing; as lien_ask(). */
struct lien_asked;
int lien_nccl_look(const char *call, const char *request, struct lien_asked *asked);

#endif
