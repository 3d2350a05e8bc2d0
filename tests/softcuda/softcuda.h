/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of the software CUDA driver share. It is written from the public cuda.h alone.
 *
 * Rules of this library:
 * - Exported functions (SOFT_EXPORT) never call each other: a uprobe on one must fire for its
 * callers only. What two of them need is a soft_* function.
 * - Two locks. soft.lock guards the memory (devices, handles, ranges, mappings, pools, pinned host
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
#include <sys/queue.h>
#include <sys/stat.h>
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
#define SOFT_GRANULARITY    soft.config.granularity
#define SOFT_MAX_DEVICES    16
#define SOFT_HANDLE_TYPES   (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)
#define SOFT_FIRST_FD	    1024 /* our fds have greater numbers, where the limit allows */

struct soft_device {
	int physical; /* number of the tmpfs, and of the device among those of all processes */
	int dir; /* fd of the tmpfs's root: a later chroot or mount namespace changes nothing */
	CUcontext primary;
	CUmemoryPool default_pool, current_pool; /* made when first asked for */
};

struct soft_config {
	int devices;
	size_t memory;	    /* bytes per device */
	size_t granularity; /* of its allocations */
	const char *dir;
	const char *busy_file;
	bool quiet;
	bool strict;
	int numa_node; /* of the host, that all devices are near to; -1: it has none */
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

/*
 * reuse.c: values that were freed, the last one on top. When strict, none is ever given out again:
 * push() keeps nothing.
 */
struct soft_freed {
	uint64_t *value;
	size_t count, room;
};

bool soft_freed_push(struct soft_freed *freed, uint64_t value); /* false: not kept */
bool soft_freed_pop(struct soft_freed *freed, uint64_t *value); /* false: there is none */
/* Memory for what callers know by pointer, zeroed. */
void *soft_block_new(size_t size);
void soft_block_free(void *block, size_t size);

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
int soft_backing_export(int fd);
/*
 * A file that came from elsewhere: our own fd for it, with size and properties as created. -EINVAL
 * for one that is not ours, or was not made to be shared by this type (NONE: any).
 */
int soft_backing_import(
	int fd, CUmemAllocationHandleType type, CUmemAllocationProp *prop, size_t *size);
/* A number that all processes have for this file, and no other file ever has. */
uint64_t soft_backing_number(int fd);
/* A file in memory that is charged to no device: "<name><suffix>", to be shared by these types. */
int soft_backing_memfd(const char *name, int suffix, unsigned int types, size_t size);
/* Is it such a file of ours, shareable by this type and no smaller than this? */
bool soft_backing_is_memfd(int fd, const char *name, CUmemAllocationHandleType type, size_t least);

/*
 * handle.c: allocations and the handles that name them. soft.lock is held for writing.
 */
struct soft_multicast;

struct soft_allocation {
	RB_ENTRY(soft_allocation) node;
	LIST_ENTRY(soft_allocation) entry;   /* of all; once it has a mapping or a handle */
	CUmemGenericAllocationHandle handle; /* 0: cuMemAlloc memory, which has no handle */
	unsigned int references;	     /* 0 with mappings left: the handle is not usable */
	unsigned int mappings;
	unsigned int bindings; /* to multicast objects */
	int fd;		       /* -1: only the mapping holds the file */
	bool imported;
	uint64_t number; /* soft_backing_number() */
	size_t size;
	CUmemAllocationProp prop;
	struct soft_multicast *multicast; /* it is no memory, but a multicast object */
};

/* The allocation of a usable handle; NULL (and abort when strict) for a stale or unknown one. */
struct soft_allocation *soft_handle_use(CUmemGenericAllocationHandle handle, const char *call);
CUresult soft_allocation_create(
	struct soft_allocation **created, size_t size, const CUmemAllocationProp *prop);
/* Around an open file: its fd goes with the allocation, also where this fails. */
CUresult soft_allocation_wrap(
	struct soft_allocation **made, int fd, size_t size, const CUmemAllocationProp *prop);
void soft_allocation_list(struct soft_allocation *allocation); /* it is one of all now */
/* Gives it a handle with one reference. */
CUmemGenericAllocationHandle soft_allocation_adopt(struct soft_allocation *allocation);
void soft_allocation_put(struct soft_allocation *allocation);  /* frees it when nothing holds it */
bool soft_allocation_has_fd(int fd);			       /* is it one of our own? */
void soft_allocation_hide(struct soft_allocation *allocation); /* closes its fd */
struct soft_allocation *soft_allocation_first(void);
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

/* How a mapping came to be, and so which call takes it back. */
enum soft_mapping_kind {
	SOFT_VMM = 0, /* cuMemMap */
	SOFT_PLAIN,   /* cuMemAlloc */
	SOFT_PITCH,
	SOFT_MANAGED,
	SOFT_ASYNC,	   /* of a pool of ours; bytes is 0 while it is free */
	SOFT_ASYNC_IMPORT, /* of an imported pool */
	SOFT_IPC,
};

struct soft_mapping {
	RB_ENTRY(soft_mapping) node;
	uintptr_t base;
	size_t size;
	enum soft_mapping_kind kind;
	size_t bytes;	 /* what the caller asked for: less than size only without a handle */
	uint64_t buffer; /* unique in this process's life */
	struct soft_allocation *allocation;
	struct soft_range *range;
	CUcontext context; /* it goes with this one; NULL: with none */
	CUmemoryPool pool;
	unsigned int opens; /* of IPC memory */
	pid_t owner;	    /* of IPC memory */
	bool sync_memops;
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
uint64_t soft_buffer_new(void); /* a number for a buffer, unique in this process's life */
struct soft_range *soft_range_first(void);
struct soft_range *soft_range_next(struct soft_range *range);

/*
 * memory.c, host.c
 */
void soft_memory_free_context(CUcontext context); /* soft.lock held for writing */
/*
 * Maps an allocation at addresses of its own, accessible to the devices that access says (NULL:
 * all). soft.lock held for writing.
 */
CUresult soft_place(struct soft_mapping **made, struct soft_allocation *allocation, size_t bytes,
	enum soft_mapping_kind kind, const uint8_t *access);
void soft_unplace(struct soft_mapping *mapping);
/* What cuMemFree and cuMemFreeAsync may free at this address, and its end. For writing. */
struct soft_mapping *soft_mapping_freeable(CUdeviceptr ptr);
void soft_free(struct soft_mapping *mapping);
CUresult soft_mapping_protect(struct soft_mapping *mapping); /* as its access says */
size_t soft_whole(size_t bytes);			     /* in pieces; 0: too many */
/* The place of a location in soft_mapping.access. */
CUresult soft_access_slot(const CUmemLocation *location, int *slot);
bool soft_access_flags_ok(CUmemAccess_flags flags);
struct soft_host {
	RB_ENTRY(soft_host) node;
	uintptr_t base;
	size_t size;
	unsigned int flags;
	bool registered; /* the program's memory, not ours */
	uint64_t buffer;
	CUcontext context;
};

bool soft_host_find(uintptr_t address, uintptr_t *base, size_t *size, CUcontext *context);
uint64_t soft_host_buffer(uintptr_t address);	     /* 0: none */
struct soft_host *soft_host_from(uintptr_t address); /* first one that ends behind it */
struct soft_host *soft_host_next(struct soft_host *host);
void soft_host_free_context(CUcontext context); /* soft.lock held for writing */

/*
 * copy.c, copy_2d.c
 */
enum soft_side {
	SOFT_DEVICE_SIDE,
	SOFT_HOST_SIDE,
	SOFT_ANY_SIDE,
};

struct soft_copy {
	uintptr_t dst, src;
	enum soft_side dst_side, src_side;
	size_t bytes;
};

/* What every copy that waits for its end begins with. */
CUresult soft_copy_enter(CUcontext *context);
/* Not to be executed: is it right? */
CUresult soft_copy_now(const struct soft_copy *copy, int device, bool execute);

/*
 * pool.c, pool_alloc.c: stream-ordered memory. soft.lock guards the pools too.
 */
struct CUmemPoolHandle_st {
	LIST_ENTRY(CUmemPoolHandle_st) entry;
	CUmemPoolProps props;
	uint64_t number; /* the same in all processes that share it; 0: never exported */
	int fd;		 /* what is exported; -1: not shareable */
	bool imported;
	bool is_default;
	bool destroyed;	  /* lives on while memory of it is in use */
	int reuse[3];	  /* the three ..._REUSE_... attributes */
	size_t threshold; /* what may stay reserved though nobody uses it */
	size_t reserved, reserved_high;
	size_t used, used_high;
	unsigned int idle; /* mappings that are reserved and not in use */
	uint8_t access[SOFT_MAX_DEVICES + 1];
};

/* The pool if it is one; soft.lock held. */
CUmemoryPool soft_pool_use(CUmemoryPool pool);
CUresult soft_pool_current(CUmemoryPool *pool, int device, bool its_default); /* for writing */
CUresult soft_pool_new(CUmemoryPool *made, const CUmemPoolProps *props);
void soft_pool_add(CUmemoryPool pool);
CUresult soft_pool_make_shareable(CUmemoryPool pool); /* frees it where it fails */
void soft_pool_account(CUmemoryPool pool, size_t reserved, size_t used);
void soft_pool_put(CUmemoryPool pool); /* frees a destroyed one that nothing uses */
CUmemoryPool soft_pool_first(void);
void soft_pools_forked(void);
/* Gives idle memory back until no more than keep is reserved; soft.lock held for writing. */
void soft_pool_trim(CUmemoryPool pool, size_t keep);
/* A stream, event or context was waited for: pools shrink to their thresholds. No lock held. */
void soft_pools_settle(void);
/* Takes memory of a pool back, to the pool or, if imported, for good. For writing. */
void soft_async_free(struct soft_mapping *mapping);

/*
 * multicast.c
 */
struct soft_binding {
	LIST_ENTRY(soft_binding) entry;
	int device;
	size_t offset; /* in the multicast object */
	size_t size;
	size_t memory_offset;
	struct soft_allocation *memory;
};

/* No lock held. An allocation for a multicast file; NULL: it is none, or *result says why. */
struct soft_allocation *soft_multicast_import(
	int fd, CUmemAllocationHandleType type, CUresult *result);
void soft_multicast_free(struct soft_allocation *allocation);
/* Its team as a set of devices as all processes number them, and how many it is to have. */
uint64_t soft_multicast_team(const struct soft_allocation *multicast, unsigned int *wanted);
struct soft_binding *soft_multicast_bindings(const struct soft_allocation *multicast); /* first */
/* Waits, with soft.lock held for writing but let go meanwhile, until the team is complete. */
CUresult soft_multicast_wait(CUmemGenericAllocationHandle handle, const char *call);

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
	_Atomic unsigned int flags;
	_Atomic bool alive;
	unsigned barred; /* threads in soft_work_wait_barred(); work.c */
};

CUresult soft_context_current(CUcontext *context);	/* takes no lock */
void soft_peers_drop(CUcontext context);		/* peer_access.c; soft.objects held */
bool soft_peer_access(CUcontext user, CUcontext owner); /* cuCtxEnablePeerAccess() */

/*
 * stream.c, event.c, capture.c
 */
struct soft_capture;

struct CUstream_st {
	struct soft_object object;
	struct soft_capture *capture; /* the one that it takes part in */
	unsigned int flags;
	uint64_t id;
};

/* A place in a stream's work that is not done at once; all 0: it is passed. */
struct soft_mark {
	uint64_t queue, item;
};

struct CUevent_st {
	struct soft_object object;
	struct soft_capture *capture; /* last recorded in this one */
	struct soft_mark mark;
};

struct CUgraph_st {
	struct soft_object object;
};

/* May this thread make a call that is unsafe during a capture? Else the captures are invalidated.
 */
CUresult soft_capture_unsafe(void);
/* May the context be synchronized? Else its captures, in whatever mode, are invalidated (seen,
 * 580.159). */
CUresult soft_capture_synchronized(CUcontext context);
/* A call that is about the legacy default stream of the context, which waits for all blocking ones.
 * soft.objects held. */
CUresult soft_capture_implicit(CUcontext context, bool invalidates);
/* Work for a stream: *execute is false where the stream is capturing. */
CUresult soft_stream_submit(CUstream stream, bool *execute);
/* The stream of a handle, the default streams included (*stream NULL). soft.objects held. */
CUresult soft_stream_find(CUstream handle, CUstream *stream);
/* The device of a stream, default streams included; NOT_SUPPORTED where it is capturing. */
CUresult soft_stream_device(CUstream handle, int *device);
void soft_stream_free(CUstream stream);	 /* soft.objects held */
void soft_event_free(CUevent event);	 /* soft.objects held */
void soft_capture_drop(CUstream stream); /* a stream goes away; soft.objects held */
void soft_capture_invalidate(struct soft_capture *capture); /* soft.objects held */
void soft_capture_join(CUstream stream, struct soft_capture *capture);
bool soft_capture_active(const struct soft_capture *capture);
bool soft_busy(void); /* the devices have work: see LIEN_SOFTCUDA_BUSY_FILE */
void soft_busy_wait(void);

/*
 * work.c: streams that have work that is not done at once. The context is the current one, which
 * only the default streams need. No lock of the above is needed; waiting needs that none is held.
 */
/* In order; run() frees what arg points to. */
CUresult soft_work_add(CUstream handle, CUcontext context, void (*run)(void *), void *arg);
/* Must work that is put into this stream now wait? */
bool soft_work_pending(CUstream handle, CUcontext context);
void soft_work_wait(CUstream handle, CUcontext context);
void soft_work_wait_all(CUcontext context);
/* The same, and meanwhile no thread puts work into a stream of the context. */
void soft_work_wait_barred(CUcontext context);
void soft_work_stream_gone(CUstream stream);
/* The owner has all that is in the stream to wait for as its own work. */
CUresult soft_work_also(CUcontext owner, CUstream stream, CUcontext context);
/* Events: the place behind all work so far; whether it is still to be reached; other streams. */
CUresult soft_work_mark(CUstream handle, CUcontext context, struct soft_mark *mark);
bool soft_work_marked(const struct soft_mark *mark);
void soft_work_wait_marked(const struct soft_mark *mark);
CUresult soft_work_after(CUstream handle, CUcontext context, const struct soft_mark *mark);

/*
 * fault.c. SOFT_FAULT() comes first in every exported function that returns a CUresult.
 */
struct softcuda_faults;
extern struct softcuda_faults *soft_faults; /* NULL: none are wanted */
void soft_faults_open(void);
CUresult soft_fault(const char *function);
#define SOFT_FAULT()                                                                               \
	do {                                                                                       \
		CUresult fault_ = soft_faults ? soft_fault(__func__) : CUDA_SUCCESS;               \
                                                                                                   \
		if (fault_)                                                                        \
			return fault_;                                                             \
	} while (0)

#endif
