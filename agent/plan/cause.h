/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Why a request failed, for programs. An error reply has it beside the sentence for humans
 * (docs/protocol.md), so that no client has to parse that.
 */
#ifndef LIEN_CAUSE_H
#define LIEN_CAUSE_H

#include <stdint.h>

/* clang-format off */
/* X(NAME, code, remedy). Several causes may have one code; NULL: there is no general remedy. */
#define LIEN_CAUSES(X) \
	X(FAILED, "failed", NULL) \
	X(INVALID, "invalid", NULL) \
	X(BUSY, "busy", "wait until the other transaction has ended; `lien status` shows it") \
	X(NOT_AT_REST, "not-at-rest", "try again a little later, or give the job more time") \
	X(CAPTURING, "not-at-rest", "try again when the CUDA graph is captured") \
	X(CANCELLED, "cancelled", NULL) \
	X(NO_CONTROL, "refused", "start the process with `lien run`, or `lien attach` it") \
	X(UNABLE, "refused", NULL) \
	X(NOT_SELECTED, "refused", "select the holder as well, or all that share the memory (with_closure)") \
	X(STRICT, "refused", "without `strict` all else is moved") \
	X(TOO_MUCH, "refused", "select less") \
	X(TOO_LITTLE, "refused", "ask for less, or select more") \
	X(PERMISSION, "permission", "ask as root") \
	X(HOST_MEMORY, "host-memory", "free host memory, or move less") \
	X(GPU_MEMORY, "gpu-memory", "free memory on that GPU, then restore again") \
	X(PROCESS_GONE, "process-gone", NULL) \
	X(NO_ANSWER, "no-answer", "let the process go on if it is stopped, then try again") \
	X(DAMAGED, "damaged", "restore again; if it still differs, end the process") \
	X(LOST, "lost", "end the processes that used what is lost")
/* clang-format on */

enum lien_cause {
#define LIEN_CAUSE_NUMBER(NAME, code, remedy) LIEN_CAUSE_##NAME,
	LIEN_CAUSES(LIEN_CAUSE_NUMBER)
#undef LIEN_CAUSE_NUMBER
		LIEN_CAUSE_COUNT,
};

struct lien_blame {
	enum lien_cause cause;
	uint32_t process; /* the one that it is about; 0: none, or not known */
	uint32_t holder;  /* another one, which holds the process's memory; 0: none */
};

extern const struct lien_cause_row {
	const char *code;
	const char *remedy; /* NULL: there is no general one */
} lien_causes[LIEN_CAUSE_COUNT];

/* The cause of a failed transaction, from the error that it ended with (-errno). */
enum lien_cause lien_cause_of(int error);

#endif
