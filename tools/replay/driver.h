/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The CUDA driver as found at run time (dlopen of libcuda.so.1: a real one or softcuda), and the
 * stand-in libnccl, which issues NCCL's share of the calls.
 */
#ifndef LIEN_REPLAY_DRIVER_H
#define LIEN_REPLAY_DRIVER_H

#include <stdbool.h>

#include <lien/cuda_abi.h>

/* clang-format off */
#define LIEN_REPLAY_DRIVER(X) \
	X(cuInit) \
	X(cuGetErrorName) \
	X(cuDeviceGet) \
	X(cuDeviceGetCount) \
	X(cuDevicePrimaryCtxRetain) \
	X(cuCtxSetCurrent) \
	X(cuCtxSynchronize) \
	X(cuMemAlloc_v2) \
	X(cuMemFree_v2) \
	X(cuMemcpyHtoD_v2) \
	X(cuMemcpyDtoH_v2) \
	X(cuMemCreate) \
	X(cuMemRelease) \
	X(cuMemRetainAllocationHandle) \
	X(cuMemAddressReserve) \
	X(cuMemAddressFree) \
	X(cuMemMap) \
	X(cuMemUnmap) \
	X(cuMemSetAccess) \
	X(cuMemExportToShareableHandle) \
	X(cuMemImportFromShareableHandle)
/* clang-format on */

/* ncclUniqueId: 128 bytes, passed by value. */
struct lien_replay_nccl_id {
	char bytes[128];
};

/*
 * Every call goes through these two tables, which are writable data of the program. So replays keep
 * stale handles as NCCL does, and the control library finds and replaces the pointers as it does in
 * NCCL.
 */
struct lien_replay_driver {
#define LIEN_REPLAY_FIELD(name) __typeof__(&name) name;
	LIEN_REPLAY_DRIVER(LIEN_REPLAY_FIELD)
#undef LIEN_REPLAY_FIELD
};

struct lien_replay_nccl {
	/* Calls fn from code in libnccl. */
	long (*call)(void *fn, long a0, long a1, long a2, long a3, long a4, long a5);
	int (*init_rank)(void **comm, int nranks, struct lien_replay_nccl_id id, int rank);
	int (*init_rank_config)(
		void **comm, int nranks, struct lien_replay_nccl_id id, int rank, void *config);
	int (*init_rank_scalable)(void **comm, int nranks, int rank, int ids,
		struct lien_replay_nccl_id *id, void *config);
	int (*destroy)(void *comm);
	int (*abort)(void *comm);
	int (*enroll)(void *comm, void *buffer, size_t bytes, void **handle);
	int (*withdraw)(void *comm, void *handle);
	int (*window_enroll)(void *comm, void *buffer, size_t bytes, void **window, int flags);
	int (*window_withdraw)(void *comm, void *window);
};

extern struct lien_replay_driver lien_replay_driver;
extern struct lien_replay_nccl lien_replay_nccl;

/* Fills the driver's table. Returns NULL, or the error (static text, or dlerror's). */
const char *lien_replay_driver_load(void);

/*
 * Fills NCCL's table from $LIEN_SOFTNCCL, or replay/libnccl.so.2 next to the program. Returns
 * false: not found, and the table stays empty.
 */
bool lien_replay_nccl_load(void);

/* Finds a file next to the program, as built, or in ../lib/lien, as installed. */
bool lien_replay_find(const char *file, char *path, size_t room);

/* Returns "CUDA_ERROR_...", or the number of an error that the driver does not know. Valid until
 * the next call. */
const char *lien_replay_error_name(CUresult result);

#endif
