// SPDX-License-Identifier: BSD-2-Clause
/*
 * A process that makes the driver calls it is told to: a command a line on standard input, an
 * answer a line on standard output, "ok VALUE..." or "error NUMBER WHAT". Numbers are decimal or
 * 0x... Linked with libcuda.so.1, so that the driver is mapped from the beginning on.
 *
 * After `nccl FILE` memory calls are made through lien_softnccl_call() of that library, as NCCL
 * would.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lien/cuda_abi.h>
#include <lien/pass_fds.h>

#define ARGS_MAX 8

typedef long (*caller)(void *fn, long a0, long a1, long a2, long a3, long a4, long a5);

static caller through;
static char **arguments;

/* Returns its result to where it was called from: never a jump. */
static long straight(void *fn, long a0, long a1, long a2, long a3, long a4, long a5)
{
	long result = ((long (*)(long, long, long, long, long, long))fn)(a0, a1, a2, a3, a4, a5);

	__asm__ volatile("" : "+r"(result));
	return result;
}

#define CALL(fn, a0, a1, a2, a3, a4)                                                               \
	((CUresult)through(                                                                        \
		(void *)(fn), (long)(a0), (long)(a1), (long)(a2), (long)(a3), (long)(a4), 0))

static void say(CUresult result, uint64_t value)
{
	if (result)
		printf("error %d %d\n", result, errno);
	else
		printf("ok %#" PRIx64 "\n", value);
}

static void say_errno(long result)
{
	if (result < 0)
		printf("error %d %s\n", errno, strerror(errno));
	else
		printf("ok %ld\n", result);
}

static CUresult use_device(int ordinal)
{
	CUcontext context;
	CUdevice device;
	CUresult result = cuDeviceGet(&device, ordinal);

	if (!result)
		result = cuDevicePrimaryCtxRetain(&context, device);
	return result ? result : cuCtxSetCurrent(context);
}

static void do_init(const uint64_t *arg)
{
	CUresult result = cuInit(0);

	say(result ? result : use_device(arg[0]), 0);
}

static void do_cuinit(const uint64_t *arg)
{
	say(cuInit(arg[0]), 0);
}

static CUresult create(CUmemGenericAllocationHandle *handle, uint64_t bytes, int device)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};

	return CALL(cuMemCreate, handle, bytes, &prop, 0, 0);
}

static void do_create(const uint64_t *arg)
{
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = create(&handle, arg[0], arg[1]);

	say(result, handle);
}

/* The same with a properties pointer that cannot be read. */
static void do_create_bad(const uint64_t *arg)
{
	CUmemGenericAllocationHandle handle = 0;
	CUmemAllocationProp prop = {.type = 77};
	CUresult result = CALL(cuMemCreate, &handle, arg[0], &prop, 0, 0);

	say(result, handle);
}

static void do_release(const uint64_t *arg)
{
	say(CALL(cuMemRelease, arg[0], 0, 0, 0, 0), 0);
}

static void do_retain(const uint64_t *arg)
{
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = CALL(cuMemRetainAllocationHandle, &handle, arg[0], 0, 0, 0);

	say(result, handle);
}

static void do_reserve(const uint64_t *arg)
{
	CUdeviceptr va = 0;
	CUresult result = CALL(cuMemAddressReserve, &va, arg[0], 0, arg[1], 0);

	say(result, va);
}

static void do_free(const uint64_t *arg)
{
	say(CALL(cuMemAddressFree, arg[0], arg[1], 0, 0, 0), 0);
}

static void do_map(const uint64_t *arg)
{
	say(CALL(cuMemMap, arg[0], arg[1], 0, arg[2], 0), 0);
}

static void do_unmap(const uint64_t *arg)
{
	say(CALL(cuMemUnmap, arg[0], arg[1], 0, 0, 0), 0);
}

static CUresult set_access(uint64_t va, uint64_t bytes, int device, int flags)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};

	return CALL(cuMemSetAccess, va, bytes, &access, 1, 0);
}

static void do_access(const uint64_t *arg)
{
	say(set_access(arg[0], arg[1], arg[2], arg[3]), 0);
}

/* Maps a handle at a new address: reserve, map, access of the device. */
static CUresult show(CUdeviceptr *va, uint64_t bytes, uint64_t handle, int device)
{
	CUresult result = CALL(cuMemAddressReserve, va, bytes, 0, 0, 0);

	if (!result)
		result = CALL(cuMemMap, *va, bytes, 0, handle, 0);
	return result ? result : set_access(*va, bytes, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

static void do_show(const uint64_t *arg)
{
	CUdeviceptr va = 0;
	CUresult result = show(&va, arg[0], arg[1], arg[2]);

	say(result, va);
}

static void do_make(const uint64_t *arg)
{
	CUmemGenericAllocationHandle handle = 0;
	CUdeviceptr va = 0;
	CUresult result = create(&handle, arg[0], arg[1]);

	if (!result)
		result = show(&va, arg[0], handle, arg[1]);
	if (result)
		say(result, 0);
	else
		printf("ok %#llx %#llx\n", handle, va);
}

static void do_export(const uint64_t *arg)
{
	int fd = -1;
	CUresult result = CALL(cuMemExportToShareableHandle, &fd, arg[0],
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0, 0);

	say(result, fd);
}

/* And closes it again, so many times. */
static void do_export_often(const uint64_t *arg)
{
	CUresult result = CUDA_SUCCESS;
	uint64_t i;
	int fd;

	for (i = 0; i < arg[1] && !result; i++) {
		result = CALL(cuMemExportToShareableHandle, &fd, arg[0],
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0, 0);
		if (!result)
			close(fd);
	}
	say(result, i);
}

static void do_import(const uint64_t *arg)
{
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = CALL(cuMemImportFromShareableHandle, &handle, arg[0],
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0, 0);

	say(result, handle);
}

static void do_getfd(const uint64_t *arg)
{
	int pidfd = syscall(SYS_pidfd_open, (pid_t)arg[0], 0);
	int fd = pidfd < 0 ? -1 : syscall(SYS_pidfd_getfd, pidfd, (int)arg[1], 0);

	say_errno(fd);
	if (pidfd >= 0)
		close(pidfd);
}

static void do_close(const uint64_t *arg)
{
	say_errno(close(arg[0]));
}

static void do_send(const uint64_t *arg)
{
	struct iovec part = {"", 1};
	int fd = arg[1], err = lien_pass_send(arg[0], &part, 1, &fd, 1);

	errno = -err;
	say_errno(err ? -1 : 0);
}

static void do_receive(const uint64_t *arg)
{
	unsigned count = 0;
	char byte;
	int fd = -1;
	ssize_t n = lien_pass_receive(arg[0], &byte, 1, &fd, &count, 0);

	errno = n < 0 ? -n : ENODATA;
	say_errno(count ? fd : -1);
}

static void do_alloc(const uint64_t *arg)
{
	CUdeviceptr va = 0;
	CUresult result = CALL(cuMemAlloc_v2, &va, arg[0], 0, 0, 0);

	say(result, va);
}

static void do_memfree(const uint64_t *arg)
{
	say(CALL(cuMemFree_v2, arg[0], 0, 0, 0, 0), 0);
}

/* Retains a mapping's handle and gives it back, so and so often. */
static void do_burn(const uint64_t *arg)
{
	CUmemGenericAllocationHandle handle;
	CUresult result = CUDA_SUCCESS;
	uint64_t i;

	for (i = 0; i < arg[1] && !result; i++) {
		result = CALL(cuMemRetainAllocationHandle, &handle, arg[0], 0, 0, 0);
		if (!result)
			result = CALL(cuMemRelease, handle, 0, 0, 0, 0);
	}
	say(result, i);
}

/* Buffers of 2 MiB, each with an address of its own in one reservation with as much room again. */
static void do_many(const uint64_t *arg)
{
	const uint64_t piece = 2 << 20;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr va = 0;
	CUresult result = CALL(cuMemAddressReserve, &va, 2 * piece * arg[0], 0, 0, 0);
	uint64_t i;

	for (i = 0; i < arg[0] && !result; i++) {
		result = create(&handle, piece, arg[1]);
		if (!result)
			result = CALL(cuMemMap, va + 2 * piece * i, piece, 0, handle, 0);
		if (!result)
			result = set_access(va + 2 * piece * i, piece, arg[1], 3);
	}
	say(result, va);
}

/* Maps, moves and unmaps at the same few addresses until it is given its next command. */
static void do_loop(const uint64_t *arg)
{
	CUmemGenericAllocationHandle handle[4] = {0};
	struct pollfd input = {.fd = 0, .events = POLLIN};
	CUdeviceptr va = 0;
	CUresult result = CALL(cuMemAddressReserve, &va, 64 << 20, 0, 0, 0);
	uint64_t rounds = 0;
	unsigned i;

	printf("ok 0\n");
	while (!result && !poll(&input, 1, 0)) {
		for (i = 0; i < 4 && !result; i++) {
			result = create(&handle[i], 2 << 20, arg[0]);
			if (!result)
				result = CALL(cuMemMap, va + ((i + rounds) % 8 << 21), 2 << 20, 0,
					handle[i], 0);
			if (!result)
				result = set_access(va + ((i + rounds) % 8 << 21), 2 << 20, arg[0],
					rounds & 1 ? 1 : 3);
		}
		for (i = 0; i < 4 && !result; i++) {
			result = CALL(cuMemUnmap, va + ((i + rounds) % 8 << 21), 2 << 20, 0, 0, 0);
			if (!result)
				result = CALL(cuMemRelease, handle[i], 0, 0, 0, 0);
		}
		rounds++;
	}
	say(result, rounds);
}

static void do_fill(const uint64_t *arg)
{
	CUresult result = cuMemsetD8_v2(arg[0], arg[2], arg[1]);

	say(result ? result : cuCtxSynchronize(), 0);
}

/* Says how many bytes are not as they should be. */
static void do_check(const uint64_t *arg)
{
	unsigned char *bytes = malloc(arg[1]);
	uint64_t wrong = 0, i;
	CUresult result = bytes ? cuMemcpyDtoH_v2(bytes, arg[0], arg[1]) : CUDA_ERROR_OUT_OF_MEMORY;

	for (i = 0; !result && i < arg[1]; i++)
		wrong += bytes[i] != (unsigned char)arg[2];
	free(bytes);
	say(result, wrong);
}

static void do_info(const uint64_t *arg)
{
	size_t free_bytes = 0, total = 0;
	CUresult result = use_device(arg[0]);

	if (!result)
		result = cuMemGetInfo_v2(&free_bytes, &total);
	if (result)
		say(result, 0);
	else
		printf("ok %#zx %#zx\n", free_bytes, total);
}

static CUstream stream;

static void do_capture(const uint64_t *arg)
{
	CUresult result = stream ? CUDA_SUCCESS : cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);

	say(result ? result : cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)arg[0]), 0);
}

static void do_capture_end(const uint64_t *arg)
{
	CUgraph graph = NULL;

	(void)arg;
	say(cuStreamEndCapture(stream, &graph), (uintptr_t)graph);
	if (graph)
		cuGraphDestroy(graph);
}

static void do_nccl(const uint64_t *arg)
{
	void *library = dlopen(arguments[0], RTLD_NOW);

	(void)arg;
	through = library ? (caller)dlsym(library, "lien_softnccl_call") : NULL;
	if (through) {
		say(0, (uintptr_t)through);
	} else {
		printf("error 0 %s\n", dlerror());
		through = straight;
	}
}

/* Unloads it, and takes its place: when it is loaded again, it is elsewhere. */
static void do_nccl_close(const uint64_t *arg)
{
	void *library = dlopen(arguments[0], RTLD_NOW | RTLD_NOLOAD);
	Dl_info where = {0};

	(void)arg;
	if (!library || !dladdr((void *)through, &where)) {
		printf("error 0 not loaded\n");
		return;
	}
	through = straight;
	dlclose(library);
	dlclose(library);
	say_errno(
		mmap(where.dli_fbase, 4096, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == where.dli_fbase
			? 0
			: -1);
}

static void do_nccl_drop(const uint64_t *arg)
{
	void *library = dlopen(arguments[0], RTLD_NOW | RTLD_NOLOAD);
	Dl_info where = {0};

	(void)arg;
	dladdr((void *)through, &where);
	through = straight;
	if (library)
		dlclose(library);
	say_errno(library && !dlclose(library) ? (long)where.dli_fbase : -1);
}

static void do_stream(const uint64_t *arg)
{
	(void)arg;
	say(cuStreamDestroy_v2(stream), 0);
	stream = NULL;
}

static void read_commands(void);

static void *go_on(void *unused)
{
	(void)unused;
	printf("ok 0\n");
	read_commands();
	exit(0);
}

static void *call_and_stay(void *arg)
{
	sem_t *called = arg;

	cuInit(0);
	sem_post(called);
	for (;;)
		pause();
	return NULL;
}

static void do_thread(const uint64_t *arg)
{
	pthread_t thread;
	sem_t called;

	(void)arg;
	sem_init(&called, 0, 0);
	if (pthread_create(&thread, NULL, call_and_stay, &called)) {
		printf("error 0 no thread\n");
		return;
	}
	while (sem_wait(&called)) /* for a signal, perhaps */
		;
	say(0, 0);
}

static void *reserve_and_free(void *poked)
{
	CUdeviceptr at;

	if (!cuMemAddressReserve(&at, 2 << 20, 0, 0, 0))
		cuMemAddressFree(at, 2 << 20);
	atomic_store((atomic_int *)poked, 0);
	return NULL;
}

/* Traced calls in another thread, unless one is at them: they may be held. */
static void do_poke(const uint64_t *arg)
{
	static atomic_int poked;
	pthread_t thread;

	(void)arg;
	if (!atomic_exchange(&poked, 1)) {
		if (pthread_create(&thread, NULL, reserve_and_free, &poked)) {
			printf("error 0 no thread\n");
			return;
		}
		pthread_detach(thread);
	}
	say(0, 0);
}

/* Another thread goes on, and the first one ends. */
static void do_leave(const uint64_t *arg)
{
	pthread_t thread;

	(void)arg;
	if (pthread_create(&thread, NULL, go_on, NULL))
		printf("error 0 no thread\n");
	else
		pthread_exit(NULL);
}

static void *become(void *path)
{
	char *argv[] = {path, NULL};

	execv(argv[0], argv);
	return NULL;
}

/* Another thread becomes the program. */
static void do_become(const uint64_t *arg)
{
	pthread_t thread;

	(void)arg;
	if (!pthread_create(&thread, NULL, become, arguments[0]))
		pthread_join(thread, NULL);
	printf("error 0 not this one\n");
}

/* A child that holds what it inherited, uses nothing, and ends with its parent's input. */
static void do_fork(const uint64_t *arg)
{
	pid_t pid;

	(void)arg;
	fflush(stdout);
	pid = fork();
	if (!pid) {
		while (getppid() != 1)
			usleep(50000);
		_exit(0);
	}
	say_errno(pid);
}

static void do_exec(const uint64_t *arg)
{
	char *argv[] = {"/bin/cat", NULL};

	(void)arg;
	printf("ok 0\n");
	fflush(stdout);
	execv(argv[0], argv);
	_exit(127);
}

/* Without our environment, and so without the control library. */
static void do_exec_bare(const uint64_t *arg)
{
	clearenv();
	do_exec(arg);
}

static void do_closeall(const uint64_t *arg)
{
	(void)arg;
	say_errno(syscall(SYS_close_range, 3u, ~0u, 0u));
}

static void do_mask(const uint64_t *arg)
{
	sigset_t all;

	(void)arg;
	sigfillset(&all);
	say_errno(-sigprocmask(SIG_SETMASK, &all, NULL));
}

static void do_unmask(const uint64_t *arg)
{
	sigset_t none;

	(void)arg;
	sigemptyset(&none);
	say_errno(-sigprocmask(SIG_SETMASK, &none, NULL));
}

static void do_limit(const uint64_t *arg)
{
	struct rlimit limit = {arg[1], arg[1]};

	say_errno(setrlimit((__rlimit_resource_t)arg[0], &limit));
}

static void do_exit(const uint64_t *arg)
{
	printf("ok 0\n");
	fflush(stdout);
	_exit(arg[0]);
}

static void do_pid(const uint64_t *arg)
{
	(void)arg;
	say_errno(getpid());
}

static const struct {
	const char *name;
	void (*run)(const uint64_t *arg);
	int args;
} commands[] = {
	{"init", do_init, 1},	  /* DEVICE: cuInit, its primary context becomes current */
	{"cuinit", do_cuinit, 1}, /* FLAGS */
	{"create", do_create, 2}, /* BYTES DEVICE */
	{"create-bad", do_create_bad, 1},
	{"release", do_release, 1}, /* HANDLE */
	{"retain", do_retain, 1},   /* ADDRESS */
	{"reserve", do_reserve, 2}, /* BYTES HINT */
	{"free", do_free, 2},	    /* ADDRESS BYTES */
	{"map", do_map, 3},	    /* ADDRESS BYTES HANDLE */
	{"unmap", do_unmap, 2},	    /* ADDRESS BYTES */
	{"access", do_access, 4},   /* ADDRESS BYTES DEVICE FLAGS */
	{"show", do_show, 3},	    /* BYTES HANDLE DEVICE: reserve, map, access */
	{"make", do_make, 2},	    /* BYTES DEVICE: create and show; handle and address */
	{"export", do_export, 1},   /* HANDLE */
	{"export-often", do_export_often, 2}, /* HANDLE TIMES */
	{"import", do_import, 1},	      /* FD */
	{"getfd", do_getfd, 2},		      /* PID FD: a copy of another process's */
	{"close", do_close, 1},		      /* FD */
	{"send", do_send, 2},		      /* SOCKET FD: hands a copy to who has the other end */
	{"receive", do_receive, 1},	      /* SOCKET: what was sent */
	{"alloc", do_alloc, 1},		      /* BYTES */
	{"memfree", do_memfree, 1},	      /* ADDRESS */
	{"fill", do_fill, 3},		      /* ADDRESS BYTES VALUE */
	{"check", do_check, 3},		      /* ADDRESS BYTES VALUE */
	{"burn", do_burn, 2},		      /* ADDRESS TIMES */
	{"many", do_many, 2},		      /* HOW-MANY DEVICE: the first one's address */
	{"loop", do_loop, 1},	    /* DEVICE: two answers, the second with the next command */
	{"info", do_info, 1},	    /* DEVICE: free and total */
	{"capture", do_capture, 1}, /* MODE */
	{"capture-end", do_capture_end, 0},
	{"nccl", do_nccl, -1},		   /* FILE */
	{"nccl-close", do_nccl_close, -1}, /* FILE */
	{"nccl-drop", do_nccl_drop, -1},   /* FILE: unloads it; where it was */
	{"stream-destroy", do_stream, 0},  /* that of `capture` */
	{"thread", do_thread, 0},	   /* that has made a traced call, and stays */
	{"poke", do_poke, 0},		   /* traced calls, now or when the gate opens */
	{"leave", do_leave, 0},
	{"become", do_become, -1}, /* PROGRAM */
	{"fork", do_fork, 0},
	{"exec", do_exec, 0},
	{"exec-bare", do_exec_bare, 0},
	{"closeall", do_closeall, 0}, /* every descriptor above standard error's */
	{"mask", do_mask, 0},	      /* blocks all signals */
	{"unmask", do_unmask, 0},
	{"limit", do_limit, 2}, /* RESOURCE VALUE */
	{"exit", do_exit, 1},
	{"pid", do_pid, 0},
};

static void obey(char *line)
{
	char *words[ARGS_MAX + 1], *save = NULL, *word = strtok_r(line, " \n", &save);
	uint64_t arg[ARGS_MAX] = {0};
	unsigned i;
	int n = 0;

	for (; word && n <= ARGS_MAX; word = strtok_r(NULL, " \n", &save))
		words[n++] = word;
	for (i = 0; n && i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].name, words[0]))
			continue;
		if (commands[i].args >= 0 && commands[i].args != n - 1)
			break;
		arguments = words + 1;
		for (int j = 1; j < n; j++)
			arg[j - 1] = strtoull(words[j], NULL, 0);
		errno = 0;
		commands[i].run(arg);
		return;
	}
	printf("error -1 no such command\n");
}

static void read_commands(void)
{
	char line[512];

	while (fgets(line, sizeof(line), stdin))
		obey(line);
}

int main(void)
{
	through = straight;
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready %d\n", getpid());
	read_commands();
	return 0;
}
