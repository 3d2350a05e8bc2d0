/* SPDX-License-Identifier: BSD-2-Clause */
/* Types that several kinds of records share. */
#ifndef LIEN_TYPES_H
#define LIEN_TYPES_H

#ifndef LIEN_BPF
#include <stdint.h>
#include <stddef.h>
typedef uint8_t __lien_u8;
typedef uint16_t __lien_u16;
typedef uint32_t __lien_u32;
typedef int32_t __lien_s32;
typedef uint64_t __lien_u64;
#else
typedef __u8 __lien_u8;
typedef __u16 __lien_u16;
typedef __u32 __lien_u32;
typedef __s32 __lien_s32;
typedef __u64 __lien_u64;
#endif

/* CUipcMemHandle, CUmemFabricHandle and CUmemPoolPtrExportData: names of memory, as bytes, that can
 * be passed to any process of the node. */
#define LIEN_KEY_BYTES 64
/* Room for a tag: up to 63 printable characters. */
#define LIEN_TAG_BYTES 64
/* Room for the name of a network card. */
#define LIEN_CARD_BYTES 24
/* Stands for a card where GDRCopy has pinned memory. */
#define LIEN_CARD_GDRCOPY "gdrdrv"

/* CUmemAllocationProp without the fields that are meaningless on Linux. */
struct lien_prop {
	__lien_u32 type;	  /* CUmemAllocationType */
	__lien_u32 handle_types;  /* CUmemAllocationHandleType bits */
	__lien_u32 location_type; /* CUmemLocationType */
	__lien_s32 location_id;	  /* device ordinal of the calling process, or NUMA node */
	__lien_u8 compression;
	__lien_u8 rdma; /* gpuDirectRDMACapable */
	__lien_u16 usage;
	__lien_u32 zero;
};

struct lien_access {
	__lien_u16 location_type;
	__lien_u16 location_id;
	__lien_u32 flags; /* CUmemAccess_flags */
};

/* A call that names more locations than this sets LIEN_EVENT_PARTIAL. */
#define LIEN_ACCESS_MAX 16

_Static_assert(sizeof(struct lien_prop) == 24, "layout");

#endif
