/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the loader and the BPF programs agree on besides the events: the probes' cookies and the
 * maps through which the agent tells the kernel side about control libraries.
 */
#ifndef LIEN_PROBE_H
#define LIEN_PROBE_H

/*
 * Cookie of an attached probe: the call's number, its LIEN_CALL_* flags and the number of the
 * attachment. A file seen through two file systems can be attached twice; of one call's two hits
 * the program drops the one whose attachment is not the frame's.
 */
#define LIEN_COOKIE(call, flags, attachment)                                                       \
	((unsigned long long)(attachment) << 32 | (unsigned long long)(flags) << 16 | (call))
#define LIEN_COOKIE_CALL(cookie)       ((unsigned int)((cookie)&0xffff))
#define LIEN_COOKIE_FLAGS(cookie)      ((unsigned int)((cookie) >> 16 & 0xffff))
#define LIEN_COOKIE_ATTACHMENT(cookie) ((unsigned int)((cookie) >> 32))

/* Value of map `controls`, key: pid. Written by the agent; .wake is also cleared by the kernel
 * side. */
struct lien_probe_control {
	unsigned long long text, text_end; /* the control library's code: its calls are marked */
	unsigned long long translate, translate_end; /* not these: calls of the application */
	unsigned long long handler; /* of .signal, as the process must have it installed */
	unsigned int signal;
	unsigned int wake; /* 1: signal the next thread that makes a traced call */
};

/* Process start times are clock ticks of 1/100 s, as /proc/PID/stat shows them to the agent. */
#define LIEN_TICK_NS 10000000ull

/* Value of map `processes`, key: pid. */
struct lien_probe_process {
	unsigned long long start;
	unsigned int announced; /* its first call was seen, or it may have called before */
	unsigned int zero;
};

/* Index of map `counters`. */
enum lien_probe_counter {
	LIEN_COUNTER_LOST = 0, /* records that found the ring full, or frames that found no room */
	LIEN_COUNTER_UNREADABLE, /* arguments that could not be read */
	LIEN_COUNTER_WOKEN,	 /* signals sent to start control threads */
	LIEN_COUNTER_COUNT,
};

#endif
