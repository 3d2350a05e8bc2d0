/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of the software CUDA driver share. It is written from the public cuda.h alone.
 *
 * Rules of this library:
 * - Exported functions (SOFT_EXPORT) never call each other: a uprobe on one must fire for its
 * callers only. What two of them need is a soft_* function.
 * - Two locks. soft.lock guards the memory (devices, handles, ranges, mappings, pinned host
 * memory): held for writing by whatever changes it, for reading by copies and queries, so that no
 * mapping goes away under a copy. soft.objects guards contexts, streams, events, graphs and
 * captures. When both are needed, soft.lock is taken first.
 * - Functions that return CUresult and begin with soft_ expect the locks as their comment says.
 */
#ifndef SOFTCUDA_H
#define SOFTCUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <bsd/sys/tree.h>

#include <lien/cuda_abi.h>

/* noclone, noinline: the function that is exported is the function that runs. */
#if __has_attribute(noclone)
#define SOFT_EXPORT __attribute__((visibility("default"), noinline, noclone))
#else
#define SOFT_EXPORT __attribute__((visibility("default"), noinline))
#endif

/* RB_GENERATE_STATIC of libbsd needs a macro that only libbsd defines. */
#define SOFT_TREE(name, type, field, compare)                                                      \
	RB_GENERATE_INTERNAL(name, type, field, compare, __attribute__((unused)) static)

#define SOFT_DRIVER_VERSION 13000
#define SOFT_GRANULARITY    (2ul << 20)
#define SOFT_MAX_DEVICES    16

struct soft_device {
	int physical; /* number of the tmpfs, and of the device among those of all processes */
	int dir; /* fd of the tmpfs's root: a later chroot or mount namespace changes nothing */
	CUcontext primary;
};

struct soft_config {
	int devices;
	size_t memory; /* bytes per device */
	const char *dir;
	const char *busy_file;
	bool quiet;
	bool strict;
};

struct soft_state {
	_Atomic bool ready;  /* cuInit succeeded in this process */
	_Atomic bool forked; /* a child of such a process: every call fails */
	struct soft_config config;
	int count; /* visible devices */
	struct soft_device device[SOFT_MAX_DEVICES];
	dev_t physical[SOFT_MAX_DEVICES]; /* st_dev of every device's tmpfs, visible or not */
	pthread_rwlock_t lock;
	pthread_mutex_t objects;
};

extern struct soft_state soft;

static inline bool soft_ready(void)
{
	return atomic_load_explicit(&soft.ready, memory_order_acquire);
}

static inline bool soft_device_ok(int device)
{
	return device >= 0 && device < soft.count;
}

/* CUresult of an errno or a negative errno of a file or memory operation. */
CUresult soft_result(int error);

/* mount.c: every device's tmpfs, mounted where it is not. 0 or -errno; *where is what failed. */
int soft_mount_devices(const struct soft_config *config, int *dirs, char *where, size_t len);

/*
 * backing.c: the memory itself, a file each. Functions return an fd or -errno.
 */
void soft_fd_limit_raise(void);
int soft_backing_create(const CUmemAllocationProp *prop, size_t size);
int soft_backing_reopen(int fd);
/* A file that came from elsewhere: our own fd for it, with size and properties as created. */
int soft_backing_import(int fd, CUmemAllocationProp *prop, size_t *size);

/*
 * handle.c: allocations and the handles that name them. soft.lock is held for writing.
 */
struct soft_allocation {
	RB_ENTRY(soft_allocation) node;
	CUmemGenericAllocationHandle handle; /* 0: cuMemAlloc memory, which has no handle */
	unsigned int references;	     /* 0 with mappings left: the handle is not usable */
	unsigned int mappings;
	int fd; /* -1: only the mapping holds the file */
	size_t size;
	CUmemAllocationProp prop;
};

/* The allocation of a usable handle; NULL (and abort when strict) for a stale or unknown one. */
struct soft_allocation *soft_handle_use(CUmemGenericAllocationHandle handle, const char *call);
CUresult soft_allocation_create(
	struct soft_allocation **created, size_t size, const CUmemAllocationProp *prop);
void soft_allocation_put(struct soft_allocation *allocation); /* frees it when nothing holds it */
bool soft_prop_ok(const CUmemAllocationProp *prop, CUresult *why);
void soft_handles_forked(void); /* in a forked child: let go of the parent's memory */

/*
 * range.c: reserved addresses and the mappings in them. soft.lock is held.
 */
struct soft_range {
	RB_ENTRY(soft_range) node;
	uintptr_t base;
	size_t size;
	unsigned int mappings;
	bool internal; /* cuMemAlloc's: not to be freed by cuMemAddressFree, nor mapped into */
};

struct soft_mapping {
	RB_ENTRY(soft_mapping) node;
	uintptr_t base;
	size_t size;
	size_t bytes; /* what the caller asked for: less than size for cuMemAlloc only */
	struct soft_allocation *allocation;
	struct soft_range *range;
	CUcontext context; /* cuMemAlloc's; NULL for a mapping made by cuMemMap */
	/* One per visible device, the last one for the host: CUmemAccess_flags. */
	uint8_t access[SOFT_MAX_DEVICES + 1];
};

CUresult soft_range_reserve(
	struct soft_range **made, size_t size, size_t alignment, uintptr_t hint, bool internal);
CUresult soft_range_release(struct soft_range *range);
struct soft_range *soft_range_find(uintptr_t address);
struct soft_range *soft_range_overlapping(uintptr_t base, size_t size);
CUresult soft_mapping_create(struct soft_mapping **made, struct soft_range *range, uintptr_t base,
	size_t size, struct soft_allocation *allocation);
CUresult soft_mapping_remove(struct soft_mapping *first, struct soft_mapping *end);
struct soft_mapping *soft_mapping_find(uintptr_t address);
struct soft_mapping *soft_mapping_next(struct soft_mapping *mapping);
struct soft_mapping *soft_mapping_from(uintptr_t address); /* first one that ends behind it */

/* The mappings that cover exactly [base, base + size): first and one past the last, or false. */
bool soft_mapping_span(
	uintptr_t base, size_t size, struct soft_mapping **first, struct soft_mapping **end);
int soft_mapping_prot(const struct soft_mapping *mapping);

/*
 * memory.c, host.c
 */
void soft_memory_free_context(CUcontext context); /* soft.lock held for writing */
bool soft_host_find(uintptr_t address, uintptr_t *base, size_t *size); /* soft.lock held */
void soft_host_free_context(CUcontext context);			       /* for writing */

/*
 * object.c: pointers given to the caller, so that a wrong one is an error and not a crash.
 * soft.objects is held.
 */
enum soft_kind {
	SOFT_CONTEXT = 1,
	SOFT_STREAM,
	SOFT_EVENT,
	SOFT_GRAPH,
};

struct soft_object {
	RB_ENTRY(soft_object) node;
	enum soft_kind kind;
	CUcontext context;
};

void soft_object_add(struct soft_object *object, enum soft_kind kind, CUcontext context);
void soft_object_remove(struct soft_object *object);
bool soft_object_is(const void *pointer, enum soft_kind kind);
struct soft_object *soft_object_first(void);
struct soft_object *soft_object_after(struct soft_object *object);

/*
 * context.c. Contexts are never given back to malloc: a destroyed one may be current elsewhere.
 */
struct CUctx_st {
	struct soft_object object;
	CUdevice device;
	unsigned int references; /* primary contexts only */
	bool primary;
	_Atomic bool alive;
};

CUresult soft_context_current(CUcontext *context); /* takes no lock */

/*
 * stream.c, capture.c
 */
struct soft_capture;

struct CUstream_st {
	struct soft_object object;
	struct soft_capture *capture; /* the one that it takes part in */
	unsigned int flags;
};

struct CUevent_st {
	struct soft_object object;
	struct soft_capture *capture; /* last recorded in this one */
};

struct CUgraph_st {
	struct soft_object object;
};

/* May this thread make a call that is unsafe during a capture? Else the captures are invalidated.
 */
CUresult soft_capture_unsafe(void);
/* Work for a stream: *execute is false where the stream is capturing. */
CUresult soft_stream_submit(CUstream stream, bool *execute);
/* The stream of a handle, the default streams included (*stream NULL). soft.objects held. */
CUresult soft_stream_find(CUstream handle, CUstream *stream);
void soft_stream_free(CUstream stream);	 /* soft.objects held */
void soft_event_free(CUevent event);	 /* soft.objects held */
void soft_capture_drop(CUstream stream); /* a stream goes away; soft.objects held */
void soft_capture_invalidate(struct soft_capture *capture); /* soft.objects held */
void soft_capture_join(CUstream stream, struct soft_capture *capture);
bool soft_capture_active(const struct soft_capture *capture);
bool soft_busy(void); /* the devices have work: see LIEN_SOFTCUDA_BUSY_FILE */
void soft_busy_wait(void);

#endif
