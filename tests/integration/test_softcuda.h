/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tests of the software CUDA driver. A forked child of a process that has initialised CUDA cannot
 * use it, so whatever needs a process of its own is a role: this program, executed again. A role
 * talks to its test over a socket and fails by exit status.
 */
#ifndef TEST_SOFTCUDA_H
#define TEST_SOFTCUDA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
#include <cmocka.h>

#include <lien/cuda_abi.h>

#define COUNT(array)  (sizeof(array) / sizeof((array)[0]))
#define PIECE	      (2ul << 20)
#define DEVICE_MEMORY (256ul << 20) /* of the main process's devices */

/* In tests: */
#define OK(call)	   assert_int_equal(call, CUDA_SUCCESS)
#define FAILS(error, call) assert_int_equal(call, CUDA_ERROR_##error)

/* In roles: */
#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

void check_failed(void) __attribute__((noreturn));

struct role {
	const char *name;
	void (*run)(int sock);
};

extern const struct role device_roles[], load_roles[], share_roles[], stream_roles[],
	multicast_roles[], dump_roles[], shape_roles[], peer_roles[];

extern char test_dir[64]; /* ours alone; LIEN_SOFTCUDA_DIR is in it */
extern char test_self[4096];
extern bool test_is_role;

struct actor {
	pid_t pid;
	int sock;
	int err; /* its stderr, -1: not captured */
};

/* env: "NAME=value" or "NAME" to unset, NULL at the end; may be NULL. */
void actor_start(struct actor *actor, const char *role, const char *const *env);
void actor_start_captured(struct actor *actor, const char *role, const char *const *env);
int actor_wait(struct actor *actor, char *output, size_t len); /* its wait status */
void actor_ok(struct actor *actor);			       /* it must exit with 0 */
void run_role(const char *role, const char *const *env);

void send_number(int sock, uint64_t number, int fd); /* fd -1: none */
uint64_t receive_number(int sock, int *fd);
/* The 64 bytes of a handle. */
void send_bytes(int sock, const void *bytes);
void receive_bytes(int sock, void *bytes);
/* Four bytes of device memory. */
uint32_t read_mark(CUdeviceptr ptr);
void write_mark(CUdeviceptr ptr, uint32_t mark);

/* It has its own idea of RLIMIT_NOFILE, and writes to stderr. */
bool under_valgrind(void);

void unmount_devices(const char *dir);
void unmount_all(void);

CUmemAllocationProp device_prop(int device, CUmemAllocationHandleType types);
CUmemAccessDesc device_access(int device, CUmemAccess_flags flags);
CUmemGenericAllocationHandle make(size_t size, CUmemAllocationHandleType types);
/* A context of the device, current; the bytes free on it. */
void use_device(int device);
size_t free_bytes(void);
/* Reserve, map, and set access for device 0. */
CUdeviceptr map_somewhere(CUmemGenericAllocationHandle handle, size_t size);
void unmap_and_free(CUdeviceptr ptr, size_t size);

int device_tests(void);
int symbol_tests(void);
int vmm_tests(void);
int access_tests(void);
int load_tests(void);
int share_tests(void);
int stream_tests(void);
int work_tests(void);
int row_tests(void);
int alloc_tests(void);
int pool_tests(void);
int peer_tests(void);
int multicast_tests(void);
int dump_tests(void);
int shape_tests(void);

#endif
