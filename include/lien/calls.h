/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The calls that lien traces, one row each. The number is the event's type, the uprobe's cookie and
 * the number in recordings: never reuse or renumber a row.
 *
 * A row: X(NAME, number, library, symbol, flags, kind). The kind says what its event carries and
 * does (LIEN_KINDS). The symbol is the one that the driver's dispatch reaches: cuGetProcAddress()
 * returns the address of the exported, versioned symbol for all of these (measured, driver
 * 580.159), so a probe on the symbol sees callers that resolved it at run time.
 */
#ifndef LIEN_CALLS_H
#define LIEN_CALLS_H

enum lien_library {
	LIEN_LIB_CUDA = 1, /* libcuda.so.1, the driver: the truth about memory */
	LIEN_LIB_CUDART,   /* libcudart.so.N: only says who called the driver */
	LIEN_LIB_NCCL,	   /* libnccl.so.2: communicators and registrations */
	LIEN_LIB_CONTROL,  /* liblien-control.so: not probed; found so that it can be woken */
	/* From here on any process may use the library, not only those that use CUDA. */
	LIEN_LIB_IBVERBS, /* libibverbs.so.1: memory that a network card accesses by itself */
	LIEN_LIB_MLX5,	  /* libmlx5.so.1, the same for queues that are in GPU memory */
	LIEN_LIB_GDRAPI,  /* libgdrapi.so.2 (GDRCopy): memory that the processor accesses */
	LIEN_LIB_COUNT,
};

/* The call gives something back, so it is also announced at entry: see lien_event.t_entry. */
#define LIEN_CALL_RELEASES 0x1
/* Has no event of its own; tells "who called" for the driver calls below it. */
#define LIEN_CALL_FRAME 0x2
/* Every user of the driver makes this call first. It is attached last, so that a process whose
 * cuInit was seen had every probe in place from its first call on. */
#define LIEN_CALL_FIRST 0x4
/* Probed at entry only, without an event: the kernel side counts it, or notes the thread's context.
 * For calls that are made all the time. */
#define LIEN_CALL_QUICK 0x8
/* Made several times per collective. In a process with several contexts nothing else tells a
 * thread's current one. Probed in one process at a time, where the kernel can
 * (loader/probes/follow.c). */
#define LIEN_CALL_CONTEXT 0x10
/* clang-format off */
/*
 * The kinds of calls: X(kind, least bytes of its event, origin). The kind selects the event's body
 * and its effect on the graph (apply_KIND() in agent/graph, in one file for each of these lists), how
 * the body is read from registers (bpf/trace.bpf.c) and how it is shown (tools/cli/event_text.c). The
 * origin is that of the memory that the call makes (LIEN_ORIGINS). A kind that lacks one of these does
 * not compile.
 */
#define LIEN_MEMORY_KINDS(X) \
	X(create,           LIEN_EVENT_SIZE(create),       CREATE) \
	X(multicast_create, LIEN_EVENT_SIZE(multicast),    MULTICAST) \
	X(retain,           LIEN_EVENT_SIZE(retain),       NONE) \
	X(reserve,          LIEN_EVENT_SIZE(reserve),      NONE) \
	X(map,              LIEN_EVENT_SIZE(map),          NONE) \
	X(access,           offsetof(struct lien_event, access.access), NONE) \
	X(alloc,            LIEN_EVENT_SIZE(alloc),        ALLOC) \
	X(alloc_pitch,      LIEN_EVENT_SIZE(alloc),        PITCH) \
	X(alloc_managed,    LIEN_EVENT_SIZE(alloc),        MANAGED) \
	X(alloc_async,      LIEN_EVENT_SIZE(alloc),        POOL) \
	X(alloc_from_pool,  LIEN_EVENT_SIZE(alloc),        POOL) \
	X(alloc_host,       LIEN_EVENT_SIZE(alloc),        HOST) \
	X(register_host,    LIEN_EVENT_SIZE(alloc),        REGISTERED) \
	X(range_handle,     LIEN_EVENT_SIZE(range_handle), NONE) \
	X(pool_create,      LIEN_EVENT_SIZE(pool),         NONE) \
	X(pool_destroy,     LIEN_EVENT_SIZE(pool),         NONE) \
	X(pool_share,       LIEN_EVENT_SIZE(pool),         NONE) \
	X(pool_import,      LIEN_EVENT_SIZE(pool),         NONE) \
	X(capture_begin,    LIEN_EVENT_SIZE(capture),      NONE) \
	X(capture_end,      LIEN_EVENT_SIZE(capture),      NONE) \
	X(stream_destroy,   LIEN_EVENT_SIZE(capture),      NONE)

#define LIEN_RELEASE_KINDS(X) \
	X(release,          LIEN_EVENT_SIZE(release),      NONE) \
	X(address_free,     LIEN_EVENT_SIZE(range),        NONE) \
	X(unmap,            LIEN_EVENT_SIZE(range),        NONE) \
	X(free,             LIEN_EVENT_SIZE(range),        NONE) \
	X(free_host,        LIEN_EVENT_SIZE(range),        NONE) \
	X(unregister_host,  LIEN_EVENT_SIZE(range),        NONE) \
	X(ipc_close,        LIEN_EVENT_SIZE(range),        NONE) \
	X(context,          LIEN_EVENT_SIZE(context),      NONE) \
	X(context_destroy,  LIEN_EVENT_SIZE(context),      NONE)

#define LIEN_SHARE_KINDS(X) \
	X(export,           offsetof(struct lien_event, share.key), NONE) \
	X(import,           offsetof(struct lien_event, share.key), IMPORT) \
	X(key_export,       LIEN_EVENT_SIZE(key),          NONE) \
	X(key_import,       LIEN_EVENT_SIZE(key),          NONE) \
	X(multicast_device, LIEN_EVENT_SIZE(multicast),    NONE) \
	X(multicast_bind,   LIEN_EVENT_SIZE(multicast),    NONE) \
	X(multicast_unbind, LIEN_EVENT_SIZE(multicast),    NONE)

#define LIEN_COMM_KINDS(X) \
	X(comm_init,        LIEN_EVENT_SIZE(comm),         NONE) \
	X(comm_split,       LIEN_EVENT_SIZE(comm),         NONE) \
	X(comm_shrink,      LIEN_EVENT_SIZE(comm),         NONE) \
	X(comm_finalize,    LIEN_EVENT_SIZE(comm_end),     NONE) \
	X(comm_end,         LIEN_EVENT_SIZE(comm_end),     NONE)

#define LIEN_REGISTER_KINDS(X) \
	X(register,         LIEN_EVENT_SIZE(reg),          NONE) \
	X(deregister,       LIEN_EVENT_SIZE(reg),          NONE) \
	X(register_mr,      LIEN_EVENT_SIZE(reg),          NONE) \
	X(deregister_mr,    LIEN_EVENT_SIZE(reg),          NONE)

#define LIEN_OTHER_KINDS(X) \
	X(init,             LIEN_EVENT_HEADER,             NONE) \
	X(holds,            LIEN_EVENT_HEADER,             NONE) \
	X(device_comm,      LIEN_EVENT_HEADER,             NONE)

#define LIEN_KINDS(X) \
	LIEN_MEMORY_KINDS(X) LIEN_RELEASE_KINDS(X) LIEN_SHARE_KINDS(X) LIEN_COMM_KINDS(X) \
	LIEN_REGISTER_KINDS(X) LIEN_OTHER_KINDS(X)

#define LIEN_CALLS(X) \
	X(CU_INIT,              16, CUDA,   "cuInit",                        LIEN_CALL_FIRST, init) \
	X(CU_MEM_CREATE,        17, CUDA,   "cuMemCreate",                   0, create) \
	X(CU_MEM_RELEASE,       18, CUDA,   "cuMemRelease",                  LIEN_CALL_RELEASES, release) \
	X(CU_MEM_RETAIN,        19, CUDA,   "cuMemRetainAllocationHandle",   0, retain) \
	X(CU_MEM_RESERVE,       20, CUDA,   "cuMemAddressReserve",           0, reserve) \
	X(CU_MEM_ADDRESS_FREE,  21, CUDA,   "cuMemAddressFree",              LIEN_CALL_RELEASES, address_free) \
	X(CU_MEM_MAP,           22, CUDA,   "cuMemMap",                      0, map) \
	X(CU_MEM_UNMAP,         23, CUDA,   "cuMemUnmap",                    LIEN_CALL_RELEASES, unmap) \
	X(CU_MEM_SET_ACCESS,    24, CUDA,   "cuMemSetAccess",                0, access) \
	X(CU_MEM_EXPORT,        25, CUDA,   "cuMemExportToShareableHandle",  0, export) \
	X(CU_MEM_IMPORT,        26, CUDA,   "cuMemImportFromShareableHandle", 0, import) \
	X(CU_MEM_ALLOC,         27, CUDA,   "cuMemAlloc_v2",                 0, alloc) \
	X(CU_MEM_FREE,          28, CUDA,   "cuMemFree_v2",                  LIEN_CALL_RELEASES, free) \
	X(CU_CAPTURE_BEGIN,     29, CUDA,   "cuStreamBeginCapture_v2",       0, capture_begin) \
	X(CU_CAPTURE_BEGIN_PTSZ, 30, CUDA,  "cuStreamBeginCapture_v2_ptsz",  0, capture_begin) \
	X(CU_CAPTURE_TO_GRAPH,  31, CUDA,   "cuStreamBeginCaptureToGraph",   0, capture_begin) \
	X(CU_CAPTURE_TO_GRAPH_PTSZ, 32, CUDA, "cuStreamBeginCaptureToGraph_ptsz", 0, capture_begin) \
	X(CU_CAPTURE_END,       33, CUDA,   "cuStreamEndCapture",            0, capture_end) \
	X(CU_CAPTURE_END_PTSZ,  34, CUDA,   "cuStreamEndCapture_ptsz",       0, capture_end) \
	X(CU_MEM_ALLOC_PITCH,   35, CUDA,   "cuMemAllocPitch_v2",            0, alloc_pitch) \
	X(CU_MEM_ALLOC_MANAGED, 36, CUDA,   "cuMemAllocManaged",             0, alloc_managed) \
	X(CU_MEM_ALLOC_ASYNC,   37, CUDA,   "cuMemAllocAsync",               0, alloc_async) \
	X(CU_MEM_ALLOC_ASYNC_PTSZ, 38, CUDA, "cuMemAllocAsync_ptsz",         0, alloc_async) \
	X(CU_MEM_ALLOC_FROM_POOL, 39, CUDA, "cuMemAllocFromPoolAsync",       0, alloc_from_pool) \
	X(CU_MEM_ALLOC_FROM_POOL_PTSZ, 40, CUDA, "cuMemAllocFromPoolAsync_ptsz", 0, alloc_from_pool) \
	X(CU_MEM_FREE_ASYNC,    41, CUDA,   "cuMemFreeAsync",                LIEN_CALL_RELEASES, free) \
	X(CU_MEM_FREE_ASYNC_PTSZ, 42, CUDA, "cuMemFreeAsync_ptsz",           LIEN_CALL_RELEASES, free) \
	X(CU_POOL_CREATE,       43, CUDA,   "cuMemPoolCreate",               0, pool_create) \
	X(CU_POOL_DESTROY,      44, CUDA,   "cuMemPoolDestroy",              LIEN_CALL_RELEASES, pool_destroy) \
	X(CU_POOL_EXPORT,       45, CUDA,   "cuMemPoolExportToShareableHandle", 0, pool_share) \
	X(CU_POOL_IMPORT,       46, CUDA,   "cuMemPoolImportFromShareableHandle", 0, pool_import) \
	X(CU_POOL_EXPORT_POINTER, 47, CUDA, "cuMemPoolExportPointer",        0, key_export) \
	X(CU_POOL_IMPORT_POINTER, 48, CUDA, "cuMemPoolImportPointer",        0, key_import) \
	X(CU_HOST_ALLOC,        49, CUDA,   "cuMemHostAlloc",                0, alloc_host) \
	X(CU_ALLOC_HOST,        50, CUDA,   "cuMemAllocHost_v2",             0, alloc_host) \
	X(CU_FREE_HOST,         51, CUDA,   "cuMemFreeHost",                 LIEN_CALL_RELEASES, free_host) \
	X(CU_HOST_REGISTER,     52, CUDA,   "cuMemHostRegister_v2",          0, register_host) \
	X(CU_HOST_UNREGISTER,   53, CUDA,   "cuMemHostUnregister",           LIEN_CALL_RELEASES, unregister_host) \
	X(CU_IPC_GET,           54, CUDA,   "cuIpcGetMemHandle",             0, key_export) \
	X(CU_IPC_OPEN,          55, CUDA,   "cuIpcOpenMemHandle_v2",         0, key_import) \
	X(CU_IPC_CLOSE,         56, CUDA,   "cuIpcCloseMemHandle",           LIEN_CALL_RELEASES, ipc_close) \
	X(CU_MULTICAST_CREATE,  57, CUDA,   "cuMulticastCreate",             0, multicast_create) \
	X(CU_MULTICAST_DEVICE,  58, CUDA,   "cuMulticastAddDevice",          0, multicast_device) \
	X(CU_MULTICAST_BIND,    59, CUDA,   "cuMulticastBindMem",            0, multicast_bind) \
	X(CU_MULTICAST_BIND_ADDRESS, 60, CUDA, "cuMulticastBindAddr",        0, multicast_bind) \
	X(CU_MULTICAST_UNBIND,  61, CUDA,   "cuMulticastUnbind",             0, multicast_unbind) \
	X(CU_RANGE_HANDLE,      62, CUDA,   "cuMemGetHandleForAddressRange", 0, range_handle) \
	X(CU_STREAM_DESTROY,    63, CUDA,   "cuStreamDestroy_v2",            LIEN_CALL_RELEASES, stream_destroy) \
	X(CU_MULTICAST_BIND_V2, 77, CUDA,   "cuMulticastBindMem_v2",         0, multicast_bind) \
	X(CU_MULTICAST_BIND_ADDRESS_V2, 78, CUDA, "cuMulticastBindAddr_v2",  0, multicast_bind) \
	X(CU_UNKNOWN,           79, CUDA,   "cuUnknownToLien",               0, holds) \
	X(CU_HOST_REGISTER_OLDER, 80, CUDA, "cuMemHostRegister",             0, register_host) \
	X(CUDA_MALLOC,          64, CUDART, "cudaMalloc",                    LIEN_CALL_FRAME, none) \
	X(CUDA_FREE,            65, CUDART, "cudaFree",                      LIEN_CALL_FRAME, none) \
	X(CUDA_MALLOC_ASYNC,    66, CUDART, "cudaMallocAsync",               LIEN_CALL_FRAME, none) \
	X(CUDA_MALLOC_ASYNC_PTSZ, 67, CUDART, "cudaMallocAsync_ptsz",        LIEN_CALL_FRAME, none) \
	X(CUDA_MALLOC_FROM_POOL, 68, CUDART, "cudaMallocFromPoolAsync",      LIEN_CALL_FRAME, none) \
	X(CUDA_MALLOC_FROM_POOL_PTSZ, 69, CUDART, "cudaMallocFromPoolAsync_ptsz", LIEN_CALL_FRAME, none) \
	X(CUDA_MALLOC_MANAGED,  70, CUDART, "cudaMallocManaged",             LIEN_CALL_FRAME, none) \
	X(CUDA_MALLOC_PITCH,    71, CUDART, "cudaMallocPitch",               LIEN_CALL_FRAME, none) \
	X(CUDA_MALLOC_HOST,     72, CUDART, "cudaMallocHost",                LIEN_CALL_FRAME, none) \
	X(CUDA_HOST_ALLOC,      73, CUDART, "cudaHostAlloc",                 LIEN_CALL_FRAME, none) \
	X(CUDA_HOST_REGISTER,   74, CUDART, "cudaHostRegister",              LIEN_CALL_FRAME, none) \
	X(CUDA_IPC_OPEN,        75, CUDART, "cudaIpcOpenMemHandle",          LIEN_CALL_FRAME, none) \
	X(CUDA_FREE_ASYNC,      76, CUDART, "cudaFreeAsync",                 LIEN_CALL_FRAME, none) \
	X(NCCL_INIT_RANK,       96, NCCL,   "ncclCommInitRank",              0, comm_init) \
	X(NCCL_INIT_RANK_CONFIG, 97, NCCL,  "ncclCommInitRankConfig",        0, comm_init) \
	X(NCCL_INIT_RANK_SCALABLE, 98, NCCL, "ncclCommInitRankScalable",     0, comm_init) \
	X(NCCL_DESTROY,         99, NCCL,   "ncclCommDestroy",               LIEN_CALL_RELEASES, comm_end) \
	X(NCCL_ABORT,          100, NCCL,   "ncclCommAbort",                 LIEN_CALL_RELEASES, comm_end) \
	X(NCCL_REGISTER,       101, NCCL,   "ncclCommRegister",              0, register) \
	X(NCCL_DEREGISTER,     102, NCCL,   "ncclCommDeregister",            LIEN_CALL_RELEASES, deregister) \
	X(NCCL_WINDOW_REGISTER, 103, NCCL,  "ncclCommWindowRegister",        0, register) \
	X(NCCL_WINDOW_DEREGISTER, 104, NCCL, "ncclCommWindowDeregister",     LIEN_CALL_RELEASES, deregister) \
	X(NCCL_INIT_ALL,       105, NCCL,   "ncclCommInitAll",               0, comm_init) \
	X(NCCL_SPLIT,          106, NCCL,   "ncclCommSplit",                 0, comm_split) \
	X(NCCL_SHRINK,         107, NCCL,   "ncclCommShrink",                0, comm_shrink) \
	X(NCCL_FINALIZE,       108, NCCL,   "ncclCommFinalize",              0, comm_finalize) \
	X(NCCL_MEM_ALLOC,      109, NCCL,   "ncclMemAlloc",                  LIEN_CALL_FRAME, none) \
	X(NCCL_MEM_FREE,       110, NCCL,   "ncclMemFree",                   LIEN_CALL_FRAME, none) \
	X(NCCL_GROUP_END,      111, NCCL,   "ncclGroupEnd",                  LIEN_CALL_FRAME, none) \
	X(IBV_REG_MR,          112, IBVERBS, "ibv_reg_mr",                   0, register_mr) \
	X(IBV_REG_MR_IOVA,     113, IBVERBS, "ibv_reg_mr_iova",              0, register_mr) \
	X(IBV_REG_MR_IOVA2,    114, IBVERBS, "ibv_reg_mr_iova2",             0, register_mr) \
	X(IBV_REG_DMABUF_MR,   115, IBVERBS, "ibv_reg_dmabuf_mr",            0, register_mr) \
	X(IBV_DEREG_MR,        116, IBVERBS, "ibv_dereg_mr",                 LIEN_CALL_RELEASES, deregister_mr) \
	X(IBV_REG_MR_EX,       117, IBVERBS, "ibv_reg_mr_ex",                0, register_mr) \
	X(MLX5_UMEM_REG,       118, MLX5,   "mlx5dv_devx_umem_reg",          0, register_mr) \
	X(MLX5_UMEM_REG_EX,    119, MLX5,   "mlx5dv_devx_umem_reg_ex",       0, register_mr) \
	X(MLX5_UMEM_DEREG,     120, MLX5,   "mlx5dv_devx_umem_dereg",        LIEN_CALL_RELEASES, deregister_mr) \
	X(GDR_PIN,             121, GDRAPI, "gdr_pin_buffer",                0, register_mr) \
	X(GDR_PIN_V2,          122, GDRAPI, "gdr_pin_buffer_v2",             0, register_mr) \
	X(GDR_UNPIN,           123, GDRAPI, "gdr_unpin_buffer",              LIEN_CALL_RELEASES, deregister_mr) \
	X(RDMA_UNKNOWN,        124, IBVERBS, "rdmaUnknownToLien",            0, holds) \
	X(CU_CONTEXT_SET,      128, CUDA,   "cuCtxSetCurrent",               LIEN_CALL_QUICK | LIEN_CALL_CONTEXT, none) \
	X(CU_CONTEXT_PUSH,     129, CUDA,   "cuCtxPushCurrent_v2",           LIEN_CALL_QUICK | LIEN_CALL_CONTEXT, none) \
	X(CU_CONTEXT_POP,      130, CUDA,   "cuCtxPopCurrent_v2",            LIEN_CALL_QUICK | LIEN_CALL_CONTEXT, none) \
	X(CU_CONTEXT_CREATE,   131, CUDA,   "cuCtxCreate_v2",                0, context) \
	X(CU_CONTEXT_CREATE_V3, 132, CUDA,  "cuCtxCreate_v3",                0, context) \
	X(CU_CONTEXT_CREATE_V4, 133, CUDA,  "cuCtxCreate_v4",                0, context) \
	X(CU_CONTEXT_PRIMARY,  134, CUDA,   "cuDevicePrimaryCtxRetain",      0, context) \
	X(CU_CONTEXT_DESTROY,  135, CUDA,   "cuCtxDestroy_v2",               LIEN_CALL_RELEASES, context_destroy) \
	X(NCCL_ALL_REDUCE,     144, NCCL,   "ncclAllReduce",                 LIEN_CALL_QUICK, none) \
	X(NCCL_BROADCAST,      145, NCCL,   "ncclBroadcast",                 LIEN_CALL_QUICK, none) \
	X(NCCL_REDUCE,         146, NCCL,   "ncclReduce",                    LIEN_CALL_QUICK, none) \
	X(NCCL_ALL_GATHER,     147, NCCL,   "ncclAllGather",                 LIEN_CALL_QUICK, none) \
	X(NCCL_REDUCE_SCATTER, 148, NCCL,   "ncclReduceScatter",             LIEN_CALL_QUICK, none) \
	X(NCCL_SEND,           149, NCCL,   "ncclSend",                      LIEN_CALL_QUICK, none) \
	X(NCCL_RECV,           150, NCCL,   "ncclRecv",                      LIEN_CALL_QUICK, none) \
	X(NCCL_ALL_TO_ALL,     151, NCCL,   "ncclAlltoAll",                  LIEN_CALL_QUICK, none) \
	X(NCCL_GATHER,         152, NCCL,   "ncclGather",                    LIEN_CALL_QUICK, none) \
	X(NCCL_SCATTER,        153, NCCL,   "ncclScatter",                   LIEN_CALL_QUICK, none) \
	X(NCCL_DEVICE_COMM,    156, NCCL,   "ncclDevCommCreate",             0, device_comm)
/* Number 154 was ncclCommGetAsyncError, which every collective calls. 176 to 191 are not calls: see
 * state.h. */

/* Calls that the gate holds back but that are not traced. Other held calls have numbers made from
 * their names (loader/probes/functions.h). */
#define LIEN_GATE_CALLS(X) \
	X(NCCL_GROUP_START,    155, NCCL,   "ncclGroupStart",                0, none) \
	X(CU_GRAPH_LAUNCH,     160, CUDA,   "cuGraphLaunch",                 0, none) \
	X(CU_GRAPH_LAUNCH_PTSZ, 161, CUDA,  "cuGraphLaunch_ptsz",            0, none)

/* Functions that differ from a traced call by a last argument alone, and are that call. */
#define LIEN_SAME_CALLS(X) \
	X(NCCL_ALL_REDUCE,      NCCL, "ncclAllReduceConfig",     LIEN_CALL_QUICK) \
	X(NCCL_BROADCAST,       NCCL, "ncclBroadcastConfig",     LIEN_CALL_QUICK) \
	X(NCCL_REDUCE,          NCCL, "ncclReduceConfig",        LIEN_CALL_QUICK) \
	X(NCCL_ALL_GATHER,      NCCL, "ncclAllGatherConfig",     LIEN_CALL_QUICK) \
	X(NCCL_REDUCE_SCATTER,  NCCL, "ncclReduceScatterConfig", LIEN_CALL_QUICK) \
	X(NCCL_ALL_TO_ALL,      NCCL, "ncclAlltoAllConfig",      LIEN_CALL_QUICK) \
	X(NCCL_GATHER,          NCCL, "ncclGatherConfig",        LIEN_CALL_QUICK) \
	X(NCCL_SCATTER,         NCCL, "ncclScatterConfig",       LIEN_CALL_QUICK)
/* clang-format on */

enum lien_kind {
	LIEN_KIND_none, /* has no event */
#define LIEN_KIND_ENUM(kind, least, origin) LIEN_KIND_##kind,
	LIEN_KINDS(LIEN_KIND_ENUM)
#undef LIEN_KIND_ENUM
		LIEN_KIND_COUNT,
};

enum lien_call {
#define LIEN_CALL_ENUM(name, number, lib, symbol, flags, kind) LIEN_CALL_##name = (number),
	LIEN_CALLS(LIEN_CALL_ENUM) LIEN_GATE_CALLS(LIEN_CALL_ENUM)
#undef LIEN_CALL_ENUM
		LIEN_CALL_MAX = 200,
	LIEN_CALL_GATED_FIRST = 1024,
	LIEN_CALL_GATED_LAST = 0xffff, /* all of a cookie's bits */
};

/* True for calls of NCCL; their result is ncclInProgress while they continue in the background. */
#define LIEN_CALL_IS_NCCL(call)                                                                    \
	(((call) >= LIEN_CALL_NCCL_INIT_RANK && (call) <= LIEN_CALL_NCCL_GROUP_END) ||             \
		((call) >= LIEN_CALL_NCCL_ALL_REDUCE && (call) <= LIEN_CALL_NCCL_DEVICE_COMM))

/* The calls that move data over a communicator; LIEN_TRAFFIC(call) counts from 0. */
#define LIEN_TRAFFIC_FIRST LIEN_CALL_NCCL_ALL_REDUCE
#define LIEN_TRAFFIC_KINDS 10
#define LIEN_CALL_IS_TRAFFIC(call)                                                                 \
	((call) >= LIEN_TRAFFIC_FIRST && (call) < LIEN_TRAFFIC_FIRST + LIEN_TRAFFIC_KINDS)
/* True for transfers from one rank to another. The others are collectives, which all ranks take
 * part in. */
#define LIEN_CALL_IS_TRANSFER(call) ((call) == LIEN_CALL_NCCL_SEND || (call) == LIEN_CALL_NCCL_RECV)

/* True for calls that make a communicator out of none. */
#define LIEN_CALL_MAKES_COMM(call)                                                                 \
	(((call) >= LIEN_CALL_NCCL_INIT_RANK && (call) <= LIEN_CALL_NCCL_INIT_RANK_SCALABLE) ||    \
		(call) == LIEN_CALL_NCCL_INIT_ALL)
/* True for kinds of calls that make memory of the caller's own, which may have a tag. Imports have
 * their owner's, and multicast objects have no memory. */
#define LIEN_KIND_MAKES_MEMORY(kind)                                                               \
	((kind) == LIEN_KIND_create ||                                                             \
		((kind) >= LIEN_KIND_alloc && (kind) <= LIEN_KIND_register_host))
#define LIEN_CALL_BEGINS_CAPTURE(call)                                                             \
	((call) >= LIEN_CALL_CU_CAPTURE_BEGIN && (call) <= LIEN_CALL_CU_CAPTURE_TO_GRAPH_PTSZ)

/* These go by ranges of numbers, so that they are cheap in the kernel: each row must agree. */
#define LIEN_CALL_CHECK(name, number, lib, symbol, flags, kind)                                    \
	_Static_assert(                                                                            \
		(number) >= 16 && (number) < LIEN_CALL_MAX && ((number) < 176 || (number) > 191),  \
		"number of " symbol);                                                              \
	_Static_assert(                                                                            \
		LIEN_CALL_IS_NCCL(number) == (LIEN_LIB_##lib == LIEN_LIB_NCCL) &&                  \
			LIEN_CALL_IS_TRAFFIC(number) ==                                            \
				(LIEN_LIB_##lib == LIEN_LIB_NCCL && (flags) == LIEN_CALL_QUICK) && \
			LIEN_CALL_MAKES_COMM(number) ==                                            \
				(LIEN_KIND_##kind == LIEN_KIND_comm_init) &&                       \
			LIEN_CALL_BEGINS_CAPTURE(number) ==                                        \
				(LIEN_KIND_##kind == LIEN_KIND_capture_begin),                     \
		"range of " symbol);
LIEN_CALLS(LIEN_CALL_CHECK)
LIEN_GATE_CALLS(LIEN_CALL_CHECK)
#undef LIEN_CALL_CHECK

#endif
