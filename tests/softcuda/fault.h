/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Faults that a test puts into the calls of a process. With LIEN_SOFTCUDA_FAULTS=FOLDER, which must
 * be there, cuInit makes FOLDER/PID (the pid of the process's own namespace), this record, mapped
 * and shared: the test maps it too, fills in what it wants and sets `armed` last. A call meets its
 * fault at its beginning, before it has done anything. Without the variable nothing of this exists.
 */
#ifndef SOFTCUDA_FAULT_H
#define SOFTCUDA_FAULT_H

#include <stddef.h>
#include <stdint.h>

enum softcuda_fault_action {
	SOFTCUDA_COUNT = 0, /* only count and note the calls */
	SOFTCUDA_FAIL,	    /* return `result` */
	SOFTCUDA_DELAY,	    /* sleep `delay_ms`, or until disarmed or before `nth` */
	SOFTCUDA_KILL,	    /* SIGKILL to the process */
};

/* Whose thread calls, by its name. What the control library does within a call of the application
 * is the application's. */
#define SOFTCUDA_BY_APPLICATION 0x1
#define SOFTCUDA_BY_CONTROL	0x2

#define SOFTCUDA_FAULT_NAME 48
#define SOFTCUDA_FAULT_LOG  2048

struct softcuda_faults {
	/* Of the test. */
	uint32_t armed; /* 0: no call is looked at */
	uint32_t action, result, delay_ms;
	uint32_t by;			    /* calls by these count */
	uint32_t nth;			    /* the first one that is hit, from 1 */
	uint32_t times;			    /* so many are hit; 0: all from there on */
	char function[SOFTCUDA_FAULT_NAME]; /* calls of this one count; "": of all */
	/* Of the driver; the test sets them to 0 before it arms. */
	uint32_t calls; /* that count */
	uint32_t hit;	/* of these */
	/* Their names, in order. */
	char log[SOFTCUDA_FAULT_LOG][SOFTCUDA_FAULT_NAME];
};

_Static_assert(offsetof(struct softcuda_faults, calls) == 76, "tests know it");
_Static_assert(offsetof(struct softcuda_faults, log) == 84, "tests know it");

#endif
