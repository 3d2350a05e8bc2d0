/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What is compared between our cuda_abi.h and the real cuda.h. The two cannot be included together,
 * so each is included once, with this list behind it, which becomes a table under the name FACTS.
 */
struct fact {
	const char *name;
	unsigned long long value;
};

extern const struct fact our_facts[], real_facts[];
extern const unsigned int our_count, real_count;

#ifdef FACTS
#define VALUE(name)                                                                                \
	{                                                                                          \
#name, (unsigned long long)(name)                                                  \
	}
#define SIZE(type)                                                                                 \
	{                                                                                          \
		"sizeof " #type, sizeof(type)                                                      \
	}
#define ALIGNMENT(type)                                                                            \
	{                                                                                          \
		"alignof " #type, _Alignof(type)                                                   \
	}
#define FIELD(type, member)                                                                        \
	{                                                                                          \
#type "." #member, offsetof(type, member)                                          \
	}

const struct fact FACTS[] = {
	SIZE(CUdevice),
	ALIGNMENT(CUdevice),
	SIZE(CUdeviceptr),
	ALIGNMENT(CUdeviceptr),
	SIZE(CUmemGenericAllocationHandle),
	ALIGNMENT(CUmemGenericAllocationHandle),
	SIZE(CUcontext),
	ALIGNMENT(CUcontext),
	SIZE(CUstream),
	ALIGNMENT(CUstream),
	SIZE(CUevent),
	ALIGNMENT(CUevent),
	SIZE(CUgraph),
	ALIGNMENT(CUgraph),
	SIZE(CUuuid),
	ALIGNMENT(CUuuid),
	SIZE(CUresult),
	ALIGNMENT(CUresult),
	SIZE(CUmemLocation),
	ALIGNMENT(CUmemLocation),
	SIZE(CUmemAllocationProp),
	ALIGNMENT(CUmemAllocationProp),
	SIZE(CUmemAccessDesc),
	ALIGNMENT(CUmemAccessDesc),
	FIELD(CUmemLocation, type),
	FIELD(CUmemLocation, id),
	FIELD(CUmemAllocationProp, type),
	FIELD(CUmemAllocationProp, requestedHandleTypes),
	FIELD(CUmemAllocationProp, location),
	FIELD(CUmemAllocationProp, win32HandleMetaData),
	FIELD(CUmemAllocationProp, allocFlags),
	FIELD(CUmemAllocationProp, allocFlags.compressionType),
	FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable),
	FIELD(CUmemAllocationProp, allocFlags.usage),
	FIELD(CUmemAllocationProp, allocFlags.reserved),
	FIELD(CUmemAccessDesc, location),
	FIELD(CUmemAccessDesc, flags),
	FIELD(CUuuid, bytes),
	VALUE(CUDA_SUCCESS),
	VALUE(CUDA_ERROR_INVALID_VALUE),
	VALUE(CUDA_ERROR_OUT_OF_MEMORY),
	VALUE(CUDA_ERROR_NOT_INITIALIZED),
	VALUE(CUDA_ERROR_DEINITIALIZED),
	VALUE(CUDA_ERROR_NO_DEVICE),
	VALUE(CUDA_ERROR_INVALID_DEVICE),
	VALUE(CUDA_ERROR_INVALID_CONTEXT),
	VALUE(CUDA_ERROR_MAP_FAILED),
	VALUE(CUDA_ERROR_ALREADY_MAPPED),
	VALUE(CUDA_ERROR_NOT_MAPPED),
	VALUE(CUDA_ERROR_OPERATING_SYSTEM),
	VALUE(CUDA_ERROR_INVALID_HANDLE),
	VALUE(CUDA_ERROR_ILLEGAL_STATE),
	VALUE(CUDA_ERROR_NOT_FOUND),
	VALUE(CUDA_ERROR_NOT_READY),
	VALUE(CUDA_ERROR_ILLEGAL_ADDRESS),
	VALUE(CUDA_ERROR_CONTEXT_IS_DESTROYED),
	VALUE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
	VALUE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
	VALUE(CUDA_ERROR_NOT_PERMITTED),
	VALUE(CUDA_ERROR_NOT_SUPPORTED),
	VALUE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
	VALUE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
	VALUE(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
	VALUE(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
	VALUE(CUDA_ERROR_CAPTURED_EVENT),
	VALUE(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
	VALUE(CUDA_ERROR_UNKNOWN),
	VALUE(CU_MEM_HANDLE_TYPE_NONE),
	VALUE(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	VALUE(CU_MEM_HANDLE_TYPE_FABRIC),
	VALUE(CU_MEM_LOCATION_TYPE_INVALID),
	VALUE(CU_MEM_LOCATION_TYPE_DEVICE),
	VALUE(CU_MEM_LOCATION_TYPE_HOST),
	VALUE(CU_MEM_LOCATION_TYPE_HOST_NUMA),
	VALUE(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT),
	VALUE(CU_MEM_ALLOCATION_TYPE_INVALID),
	VALUE(CU_MEM_ALLOCATION_TYPE_PINNED),
	VALUE(CU_MEM_ACCESS_FLAGS_PROT_NONE),
	VALUE(CU_MEM_ACCESS_FLAGS_PROT_READ),
	VALUE(CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
	VALUE(CU_MEM_ALLOC_GRANULARITY_MINIMUM),
	VALUE(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
	VALUE(CU_STREAM_CAPTURE_MODE_GLOBAL),
	VALUE(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
	VALUE(CU_STREAM_CAPTURE_MODE_RELAXED),
	VALUE(CU_STREAM_CAPTURE_STATUS_NONE),
	VALUE(CU_STREAM_CAPTURE_STATUS_ACTIVE),
	VALUE(CU_STREAM_CAPTURE_STATUS_INVALIDATED),
	VALUE(CU_GET_PROC_ADDRESS_SUCCESS),
	VALUE(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
	VALUE(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
	VALUE(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
	VALUE(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
	VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
	VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
	VALUE(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
	VALUE(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
	VALUE(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
	VALUE(CU_GET_PROC_ADDRESS_DEFAULT),
	VALUE(CU_GET_PROC_ADDRESS_LEGACY_STREAM),
	VALUE(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
	VALUE(CU_MEMORYTYPE_HOST),
	VALUE(CU_MEMORYTYPE_DEVICE),
	VALUE(CU_POINTER_ATTRIBUTE_CONTEXT),
	VALUE(CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
	VALUE(CU_POINTER_ATTRIBUTE_DEVICE_POINTER),
	VALUE(CU_POINTER_ATTRIBUTE_HOST_POINTER),
	VALUE(CU_POINTER_ATTRIBUTE_IS_MANAGED),
	VALUE(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
	VALUE(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR),
	VALUE(CU_POINTER_ATTRIBUTE_RANGE_SIZE),
	VALUE(CU_POINTER_ATTRIBUTE_MAPPED),
	VALUE(CU_STREAM_LEGACY),
	VALUE(CU_STREAM_PER_THREAD),
	VALUE(CU_MEMHOSTREGISTER_PORTABLE),
	VALUE(CU_MEMHOSTALLOC_PORTABLE),
	VALUE(CU_STREAM_NON_BLOCKING),
	VALUE(CU_EVENT_DISABLE_TIMING),
};

const unsigned int FACTS_COUNT = sizeof(FACTS) / sizeof(FACTS[0]);
#endif
