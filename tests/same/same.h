/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of prog_same share: a program of driver calls drawn from a seed, each of which is
 * one line of a log, with its arguments, its result and whatever the caller sees. Two runs in which
 * all calls have the same results make the same calls: what is drawn follows from the seed and from
 * results alone, never from addresses.
 *
 * Only what NVIDIA's documentation defines is drawn, errors included: no handle of a context,
 * stream or event that is gone, no host memory that is too small, no work that is still under way
 * when somebody else touches its memory. What `lien run` changes on purpose
 * (docs/internals/plain.md, "Limits") is either not drawn, and the place says so, or in the table
 * of test_same.py.
 */
#ifndef SAME_H
#define SAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/cuda_abi.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define THREADS	     3
#define DEVICES	     2
#define HOST_BYTES   (64 << 10) /* of one copy at most */
#define MIB	     (1ull << 20)
#define PAGE	     4096ull

/* --- prog_same.c: what is drawn, and the log --- */

unsigned below(unsigned n); /* 0 to n - 1 */
bool one_in(unsigned n);
/* An element of an array. */
#define ANY(array) ((array)[below(COUNT(array))])

extern unsigned thread_now; /* whose turn it is */
extern int devices;
extern unsigned contexts_max; /* besides the primary ones */

/* Adds to the line of the step that is made. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Adds " = RESULT", and returns it. */
CUresult say_result(CUresult result);

/* Is this not to be drawn, because it is known to differ? Not with SAME_ALL=1. Each use names the
 * defect, and goes when that is mended. */
bool known(const char *defect);

/* --- names.c: functions by their names --- */

void names_open(uint64_t seed);
/* NULL: the driver has none of that name. In one of the ways that programs use, each name in the
 * same one in every run of a seed. */
void *names_find(const char *name);
/* Draws one of the names, which the line then has: functions of one type. */
void *names_any(const char *const *names);
#define FN(type, ...)                                                                              \
	((__typeof__(&(type)))names_any((const char *const[]){#type, ##__VA_ARGS__, NULL}))
/* Draws a function; the line says if the driver lacks it, and the step is over. */
#define LOOK_UP(function, type, ...)                                                               \
	__auto_type function = FN(type, ##__VA_ARGS__);                                            \
                                                                                                   \
	if (!(function))                                                                           \
	return

/* --- model.c: what there is --- */

struct context {
	unsigned number;
	CUcontext handle; /* NULL: nothing here */
	int device;
	bool primary, alive;
	unsigned retained; /* primary ones: how often */
};

struct stream {
	unsigned number; /* 0: a default stream, which is not in the table */
	CUstream handle;
	struct context *context;
	bool pending; /* it may have work that is under way */
};

struct event {
	unsigned number;
	CUevent handle;
	struct context *context;
};

struct pool {
	unsigned number;
	CUmemoryPool handle;
	int device;
	bool is_default;
	bool alive;
	bool unclear; /* its memory may have gone with the primary context */
};

enum kind {
	PLAIN = 1,
	PITCH = 2,
	MANAGED = 4,
	ASYNC = 8,
	HOST = 16,
	REGISTERED = 32,
	VIRTUAL = 64,
};
#define NOT_FREED 128 /* for address_any(): none that was freed */
#define ON_DEVICE (PLAIN | PITCH | MANAGED | ASYNC | VIRTUAL)

struct block {
	unsigned number; /* 0: nothing here */
	enum kind kind;
	CUdeviceptr va;
	size_t size;
	bool live;		 /* false: freed, and its address still drawn */
	struct context *context; /* it goes with this one; NULL: memory of a pool, or virtual */
	int device;
	size_t known; /* so many bytes from the beginning have contents that follow from the seed */
	unsigned opens; /* of it by the other process */
};

/* The capture that is under way: there is one at a time. */
extern struct capture {
	struct stream *stream; /* NULL: none */
	CUstreamCaptureMode mode;
	unsigned thread, steps;
} capture;

extern struct context primary[DEVICES];

void model_open(void);
struct context *context_add(CUcontext handle, int device);
struct context *context_any(void); /* a live one; NULL: none */
unsigned contexts_made(void);	   /* that are alive and not primary */
void context_gone(struct context *context);
const char *context_name(CUcontext handle);

/* Each thread's stack of contexts, as the program has made it. */
struct context *current(void); /* NULL: none, or not one that is alive */
void current_push(struct context *context);
void current_pop(void);
void current_set(struct context *context);
unsigned current_depth(void);
int current_device(void); /* of the current context, or 0 */

struct stream *stream_add(CUstream handle, struct context *context);
struct stream *stream_made(void);   /* one of the table; NULL: none */
struct stream stream_any(void);	    /* that one, or a default stream */
struct stream stream_to_work(void); /* for what is not done when the call returns */
void stream_gone(struct stream *stream);
const char *stream_name(const struct stream *stream);
/* Work has been put there: waits for it, or notes it. */
void stream_worked(const struct stream *stream);
/* Does it take part in a capture? */
bool stream_captures(const struct stream *stream);
/* Waits for all work that is under way. False: it cannot be waited for at the moment. */
bool streams_rest(void);

struct event *event_add(CUevent handle, struct context *context);
struct event *event_any(void);
void event_gone(struct event *event);

struct pool *pool_add(CUmemoryPool handle, int device, bool is_default);
struct pool *pool_any(bool made); /* made: no default one. NULL: none */
unsigned pools_made(void);
const char *pool_name(CUmemoryPool handle);

struct block *block_add(enum kind kind, CUdeviceptr va, size_t size);
struct block *block_any(unsigned kinds); /* a live one; NULL: none */
struct block *block_freed(void);
void block_gone(struct block *block);
/* The primary context has ended. Nobody knows whether memory of pools is still there: its addresses
 * are not drawn any more. */
void pools_lose(int device);
bool block_room(size_t size); /* may so much more be allocated? */
const char *address_name(CUdeviceptr va);

/* --- copies.c --- */

/* A part of a block whose contents are known; false: there is none. */
bool span_any(unsigned kinds, struct block **block, size_t *offset, size_t *bytes);
uint64_t sum_of(const void *memory, size_t bytes);
void pattern(void *memory, size_t bytes, unsigned seed);
/* Fills a new block: its contents are known from then on. */
void block_fill(struct block *block);

/* --- what is drawn: each file has a table of its subject --- */

struct op {
	void (*make)(void);
	unsigned weight;
};

/* contexts.c: makes a context current. */
void context_enter(void);

extern const struct op memory_ops[], copy_ops[], row_ops[], context_ops[], stream_ops[],
	capture_ops[], pool_ops[], pointer_ops[], ipc_ops[], virtual_ops[];

/* An address for a call that asks or frees: a block's, within, freed, of the host, none. Sets *of
 * where the address is the beginning of a live block. It says its name. address_was_freed: it is
 * one of memory that has been freed. */
extern bool address_was_freed;
extern enum kind address_kind; /* 0: no live block's */
CUdeviceptr address_any(unsigned kinds, struct block **of);
/* The same, or none: nothing inside of a block. */
CUdeviceptr address_whole(unsigned kinds, struct block **of);
size_t size_any(void);

/* --- peer.c: the other process, which is there from the start --- */

enum peer_call { PEER_OPEN, PEER_CLOSE, PEER_SUM, PEER_SET, PEER_RANGE };

struct peer_request {
	enum peer_call call;
	unsigned slot, value;
	int device;
	bool old; /* cuIpcOpenMemHandle without _v2 */
	size_t offset, bytes;
	CUipcMemHandle handle;
};

struct peer_answer {
	CUresult result;
	uint64_t value[2];
};

#define PEER_SLOTS 8

void peer_start(bool exec);
int peer_main(int fd);
void peer_end(void);
struct peer_answer peer_ask(const struct peer_request *request);

/* ipc.c: what the other process has open of this block, or of any (NULL), it closes: the owner must
 * not free it before. */
void ipc_close(const struct block *block);

#endif
