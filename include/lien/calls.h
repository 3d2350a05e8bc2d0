/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The calls that lien traces: one row each. The number is the event's type, the uprobe's cookie and
 * the number in recordings: never reuse or renumber a row.
 *
 * A row: X(NAME, number, library, symbol, flags). The symbol is the one the driver's dispatch
 * reaches: cuGetProcAddress() returns the address of the exported, versioned symbol for all of
 * these (measured, driver 580.159), so a probe on the symbol sees callers that resolved it at run
 * time.
 */
#ifndef LIEN_CALLS_H
#define LIEN_CALLS_H

enum lien_library {
	LIEN_LIB_CUDA = 1, /* libcuda.so.1, the driver: the truth about memory */
	LIEN_LIB_CUDART,   /* libcudart.so.N: only says who called the driver */
	LIEN_LIB_NCCL,	   /* libnccl.so.2: communicators and registrations */
	LIEN_LIB_CONTROL,  /* liblien-control.so: not probed, found to be woken */
	LIEN_LIB_IBVERBS,  /* libibverbs.so.1: memory that a network card reaches by itself */
	LIEN_LIB_COUNT,
};

/* Gives something back, so it is announced at entry as well: see lien_event.t_entry. */
#define LIEN_CALL_RELEASES 0x1
/* Only a frame: no event of its own, but "who called" for the driver calls below it. */
#define LIEN_CALL_FRAME 0x2
/* The one call every user of the driver makes first; attached last, so that a process whose cuInit
 * was seen had every probe in place from its first call on. */
#define LIEN_CALL_FIRST 0x4

/* clang-format off */
#define LIEN_CALLS(X) \
	X(CU_INIT,              16, CUDA,   "cuInit",                        LIEN_CALL_FIRST) \
	X(CU_MEM_CREATE,        17, CUDA,   "cuMemCreate",                   0) \
	X(CU_MEM_RELEASE,       18, CUDA,   "cuMemRelease",                  LIEN_CALL_RELEASES) \
	X(CU_MEM_RETAIN,        19, CUDA,   "cuMemRetainAllocationHandle",   0) \
	X(CU_MEM_RESERVE,       20, CUDA,   "cuMemAddressReserve",           0) \
	X(CU_MEM_ADDRESS_FREE,  21, CUDA,   "cuMemAddressFree",              LIEN_CALL_RELEASES) \
	X(CU_MEM_MAP,           22, CUDA,   "cuMemMap",                      0) \
	X(CU_MEM_UNMAP,         23, CUDA,   "cuMemUnmap",                    LIEN_CALL_RELEASES) \
	X(CU_MEM_SET_ACCESS,    24, CUDA,   "cuMemSetAccess",                0) \
	X(CU_MEM_EXPORT,        25, CUDA,   "cuMemExportToShareableHandle",  0) \
	X(CU_MEM_IMPORT,        26, CUDA,   "cuMemImportFromShareableHandle", 0) \
	X(CU_MEM_ALLOC,         27, CUDA,   "cuMemAlloc_v2",                 0) \
	X(CU_MEM_FREE,          28, CUDA,   "cuMemFree_v2",                  LIEN_CALL_RELEASES) \
	X(CU_CAPTURE_BEGIN,     29, CUDA,   "cuStreamBeginCapture_v2",       0) \
	X(CU_CAPTURE_BEGIN_PTSZ, 30, CUDA,  "cuStreamBeginCapture_v2_ptsz",  0) \
	X(CU_CAPTURE_TO_GRAPH,  31, CUDA,   "cuStreamBeginCaptureToGraph",   0) \
	X(CU_CAPTURE_TO_GRAPH_PTSZ, 32, CUDA, "cuStreamBeginCaptureToGraph_ptsz", 0) \
	X(CU_CAPTURE_END,       33, CUDA,   "cuStreamEndCapture",            0) \
	X(CU_CAPTURE_END_PTSZ,  34, CUDA,   "cuStreamEndCapture_ptsz",       0) \
	X(CUDA_MALLOC,          64, CUDART, "cudaMalloc",                    LIEN_CALL_FRAME) \
	X(CUDA_FREE,            65, CUDART, "cudaFree",                      LIEN_CALL_FRAME) \
	X(NCCL_INIT_RANK,       96, NCCL,   "ncclCommInitRank",              0) \
	X(NCCL_INIT_RANK_CONFIG, 97, NCCL,  "ncclCommInitRankConfig",        0) \
	X(NCCL_INIT_RANK_SCALABLE, 98, NCCL, "ncclCommInitRankScalable",     0) \
	X(NCCL_DESTROY,         99, NCCL,   "ncclCommDestroy",               LIEN_CALL_RELEASES) \
	X(NCCL_ABORT,          100, NCCL,   "ncclCommAbort",                 LIEN_CALL_RELEASES) \
	X(NCCL_REGISTER,       101, NCCL,   "ncclCommRegister",              0) \
	X(NCCL_DEREGISTER,     102, NCCL,   "ncclCommDeregister",            LIEN_CALL_RELEASES) \
	X(NCCL_WINDOW_REGISTER, 103, NCCL,  "ncclCommWindowRegister",        0) \
	X(NCCL_WINDOW_DEREGISTER, 104, NCCL, "ncclCommWindowDeregister",     LIEN_CALL_RELEASES) \
	X(IBV_REG_MR,          112, IBVERBS, "ibv_reg_mr",                   0) \
	X(IBV_REG_MR_IOVA,     113, IBVERBS, "ibv_reg_mr_iova",              0) \
	X(IBV_REG_MR_IOVA2,    114, IBVERBS, "ibv_reg_mr_iova2",             0) \
	X(IBV_REG_DMABUF_MR,   115, IBVERBS, "ibv_reg_dmabuf_mr",            0) \
	X(IBV_DEREG_MR,        116, IBVERBS, "ibv_dereg_mr",                 LIEN_CALL_RELEASES)
/* clang-format on */

enum lien_call {
#define LIEN_CALL_ENUM(name, number, lib, symbol, flags) LIEN_CALL_##name = (number),
	LIEN_CALLS(LIEN_CALL_ENUM)
#undef LIEN_CALL_ENUM
		LIEN_CALL_MAX = 128,
};

#endif
