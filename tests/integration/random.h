/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of prog_random share. Everything that a process has lies in tables of things, each
 * with a lock: a thread takes any that is free at the moment and does something legal to it. What
 * the driver gives out again (addresses, pools, pinned pages) passes between threads through the
 * driver alone, so that a name is reused while its last release still returns.
 */
#ifndef RANDOM_H
#define RANDOM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <lien/cuda_abi.h>

#define FD     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC CU_MEM_HANDLE_TYPE_FABRIC
#define PIECE  (2ull << 20)

/* Ends the program: a legal call was refused. */
void must(CUresult result, const char *what);
#define DO(call, ...) must(call(__VA_ARGS__), #call)

/* A number below n; each thread has a generator of its own. */
unsigned int below(unsigned int n);

extern CUcontext primary[2];
extern bool no_multicast; /* no such objects are made */
extern bool only_whole;	  /* all of an allocation is mapped, never a part */

/* --- what processes send each other --- */

enum parcel_kind { PARCEL_FD, PARCEL_FABRIC, PARCEL_IPC, PARCEL_POINTER };

struct parcel {
	enum parcel_kind kind;
	unsigned int types;
	uint64_t bytes;
	int device; /* -1: in host memory */
	bool multicast;
	unsigned char key[CU_IPC_HANDLE_SIZE];
};

/* To some other process or, if it may be, this one; lost if that is gone or does not read. The fd
 * (-1: none) is closed in any case. */
void parcel_send(const struct parcel *parcel, int fd, bool may_be_own);
/* False: there is none. The fd is the caller's to close. */
bool parcel_receive(struct parcel *parcel, int *fd);

/* --- random_handles.c: memory with handles, and multicast objects --- */
void handles_init(void);
void handles_turn(void);
void handles_receive(const struct parcel *parcel, int fd);

/* --- random_plain.c: memory without --- */
void plain_init(void);
void plain_turn(void);
void plain_receive(const struct parcel *parcel, int fd);

/* Registers pages for which all threads compete. 0: another one was first. */
CUdeviceptr register_some(void);

/* --- random_pools.c: pools, contexts and what is in them --- */
void pools_init(void);
void pools_turn(void);
void contexts_turn(void);
/* Prints the live contexts that were created, as JSON: the rest of a list. */
void contexts_print(void);
/*
 * Memory of some pool, 0 if there is none. What another process was told of is kept: it must not be
 * freed before the importer has freed it, which nobody here knows.
 */
CUdeviceptr pool_alloc(uint64_t bytes, bool *keep);

/* --- random_contents.c: what is in memory with handles --- */
void contents_open(void);
void contents_paint(uint64_t seed);
void contents_print(void);

#endif
