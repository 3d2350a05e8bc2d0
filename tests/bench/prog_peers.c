// SPDX-License-Identifier: BSD-2-Clause
/*
 * A rank of the job that peers.py compares in: communicators of all ranks, whose memory is moved by
 * NCCL itself or by lien, and whose values are checked. It needs no header and no library of
 * NVIDIA's to be built, launches no kernels of its own, and takes the NCCL whose path it is given:
 *
 *	prog_peers devices			prints "devices N"
 *	prog_peers functions LIBRARY		prints "functions VERSION SUSPEND PAUSE": which it
 *								it has
 *	prog_peers LIBRARY RANK NRANKS DEVICE COMMUNICATORS
 *
 * Rank 0 prints "ids HEX...", which the others read as their first line. Then each rank answers
 * lines: "values SEED" ("values BYTES": so many compared, all right), "use COMMUNICATOR" ("use",
 * if its values are right), "memory" ("memory FREE TOTAL" of its device), "suspend", "resume",
 * "pause" and "unpause" (the name and the nanoseconds that NCCL's own calls took), and "end". It
 * prints "failed WHY" and ends with status 1 when something is wrong.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define VALUE	    sizeof(uint32_t)
#define COUNT_MAX   (1u << 20) /* values of one operation of a rank */
#define COMMS_MAX   256
#define SUSPEND_MEM 1

/* clang-format off */
#define DRIVER_FUNCTIONS(X) \
	X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) \
	X(cuMemAlloc_v2) X(cuMemAllocHost_v2) X(cuMemsetD8Async) X(cuMemGetInfo_v2) \
	X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoHAsync_v2) X(cuStreamCreate) X(cuStreamSynchronize)
/* Suspend and Resume of a communicator: NCCL 2.29.7 and later. The last two are AMem's. */
#define NCCL_OPTIONAL(X) \
	X(ncclGetVersion, (int *version)) \
	X(ncclCommSuspend, (ncclComm_t comm, int flags)) \
	X(ncclCommResume, (ncclComm_t comm)) \
	X(ncclPause, (ncclComm_t *comm)) \
	X(ncclResume, (ncclComm_t *comm))
/* clang-format on */

#include "tests/gpu/late_bound.h"

static ncclComm_t comms[COMMS_MAX];
static int comms_count, rank, nranks;
static CUstream stream;
static CUdeviceptr source, target;
static uint32_t *host;

/* --- values ----------------------------------------------------------------------------------- */

static uint32_t given(uint32_t seed, int from, uint32_t index)
{
	return (seed * 0x9e3779b9u ^ (from + 1) * 0x85ebca6bu) + index * 2654435761u;
}

static void give(uint32_t seed, uint32_t count)
{
	uint32_t i;

	for (i = 0; i < count; i++)
		host[i] = given(seed, rank, i);
	CUDA(cuMemcpyHtoDAsync_v2(source, host, count * VALUE, stream));
	CUDA(cuMemsetD8Async(target, 0xdb, count * VALUE, stream));
	CUDA(cuStreamSynchronize(stream));
}

/* `from` -1: the sum of all. */
static void check(const char *what, uint32_t seed, int comm, int from, uint32_t count)
{
	uint32_t i, want;
	int r;

	CUDA(cuMemcpyDtoHAsync_v2(host, target, count * VALUE, stream));
	CUDA(cuStreamSynchronize(stream));
	for (i = 0; i < count; i++) {
		want = from < 0 ? 0 : given(seed, from, i);
		for (r = 0; from < 0 && r < nranks; r++)
			want += given(seed, r, i);
		if (host[i] != want)
			fail("%s on communicator %d: value %u of %u is %#x, not %#x", what, comm, i,
				count, host[i], want);
	}
}

static void all_reduce(uint32_t seed, int comm, uint32_t count)
{
	give(seed, count);
	NCCL(ncclAllReduce(
		(void *)source, (void *)target, count, ncclUint32, ncclSum, comms[comm], stream));
	check("all-reduce", seed, comm, -1, count);
}

static void send_receive(uint32_t seed, int comm, uint32_t count)
{
	const int to = (rank + 1) % nranks, from = (rank + nranks - 1) % nranks;

	give(seed, count);
	NCCL(ncclGroupStart());
	NCCL(ncclSend((void *)source, count, ncclUint32, to, comms[comm], stream));
	NCCL(ncclRecv((void *)target, count, ncclUint32, from, comms[comm], stream));
	NCCL(ncclGroupEnd());
	check("send/receive", seed, comm, from, count);
}

/* Sizes for which NCCL takes each of its protocols. */
static void communicate(uint32_t seed)
{
	static const uint32_t counts[] = {256, 64u << 10, COUNT_MAX};
	uint64_t bytes = 0;
	unsigned i;
	int comm;

	for (comm = 0; comm < comms_count; comm++) {
		for (i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
			all_reduce(seed * 7 + i, comm, counts[i]);
			send_receive(seed * 11 + i, comm, counts[i]);
			bytes += 2 * counts[i] * VALUE;
		}
	}
	printf("values %lu\n", (unsigned long)bytes);
}

static void use(int comm)
{
	if (comm < 0 || comm >= comms_count)
		fail("there is no communicator %d", comm);
	all_reduce(comm + 1, comm, 256);
	printf("use\n");
}

/* --- moving ----------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void suspend(void)
{
	int i;

	for (i = 0; i < comms_count; i++)
		NCCL(ncclCommSuspend(comms[i], SUSPEND_MEM));
}

static void resume(void)
{
	int i;

	for (i = 0; i < comms_count; i++)
		NCCL(ncclCommResume(comms[i]));
}

static void pause_all(void)
{
	NCCL(ncclPause(NULL));
}

static void unpause(void)
{
	NCCL(ncclResume(NULL));
}

static const struct {
	const char *name;
	void (*run)(void);
} moves[] = {{"suspend", suspend}, {"resume", resume}, {"pause", pause_all}, {"unpause", unpause}};

/* Returns false if that is none. */
static bool move(const char *name)
{
	uint64_t began = now_ns();
	unsigned i;

	for (i = 0; i < sizeof(moves) / sizeof(moves[0]); i++) {
		if (strcmp(moves[i].name, name))
			continue;
		moves[i].run();
		printf("%s %lu\n", name, (unsigned long)(now_ns() - began));
		return true;
	}
	return false;
}

static void say_memory(void)
{
	size_t unused, total;

	CUDA(cuMemGetInfo_v2(&unused, &total));
	printf("memory %zu %zu\n", unused, total);
}

/* --- the job ---------------------------------------------------------------------------------- */

static void make_ids(ncclUniqueId *ids)
{
	size_t i;
	int c;

	printf("ids");
	for (c = 0; c < comms_count; c++) {
		NCCL(ncclGetUniqueId(&ids[c]));
		printf(" ");
		for (i = 0; i < sizeof(ids[c]); i++)
			printf("%02x", ids[c].internal[i] & 0xff);
	}
	printf("\n");
	fflush(stdout);
}

static void read_ids(ncclUniqueId *ids)
{
	unsigned byte;
	size_t i;
	int c;

	for (c = 0; c < comms_count; c++)
		for (i = 0; i < sizeof(ids[c]); i++) {
			if (scanf("%2x", &byte) != 1)
				fail("no id of communicator %d on standard input", c);
			ids[c].internal[i] = byte;
		}
}

static void begin(int device_number)
{
	static ncclUniqueId ids[COMMS_MAX];
	CUcontext context;
	CUdevice device;
	int i;

	CUDA(cuInit(0));
	CUDA(cuDeviceGet(&device, device_number));
	CUDA(cuDevicePrimaryCtxRetain(&context, device));
	CUDA(cuCtxSetCurrent(context));
	CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CUDA(cuMemAlloc_v2(&source, COUNT_MAX * VALUE));
	CUDA(cuMemAlloc_v2(&target, COUNT_MAX * VALUE));
	CUDA(cuMemAllocHost_v2((void **)&host, COUNT_MAX * VALUE));
	if (rank)
		read_ids(ids);
	else
		make_ids(ids);
	for (i = 0; i < comms_count; i++)
		NCCL(ncclCommInitRank(&comms[i], nranks, ids[i], rank));
}

static void serve(void)
{
	char line[64], word[32] = "";
	unsigned seed = 0;
	int i;

	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%31s %u", word, &seed) < 1)
			continue;
		if (!strcmp(word, "end"))
			break;
		if (!strcmp(word, "values"))
			communicate(seed);
		else if (!strcmp(word, "use"))
			use(seed);
		else if (!strcmp(word, "memory"))
			say_memory();
		else if (!move(word))
			fail("'%s' is no command", word);
		fflush(stdout);
	}
	for (i = 0; i < comms_count; i++)
		NCCL(ncclCommDestroy(comms[i]));
	printf("done\n");
	fflush(stdout);
}

static int say_functions(const char *path)
{
	bind_nccl(path);
	printf("functions %d %d %d\n", nccl_version(), nccl.ncclCommSuspend && nccl.ncclCommResume,
		nccl.ncclPause && nccl.ncclResume);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "devices"))
		return say_devices();
	if (argc == 3 && !strcmp(argv[1], "functions"))
		return say_functions(argv[2]);
	if (argc != 6) {
		fprintf(stderr, "usage: prog_peers LIBRARY RANK NRANKS DEVICE COMMUNICATORS\n");
		return 2;
	}
	bind_driver();
	bind_nccl(argv[1]);
	rank = atoi(argv[2]);
	nranks = atoi(argv[3]);
	comms_count = atoi(argv[5]);
	if (comms_count < 1 || comms_count > COMMS_MAX)
		fail("%s communicators: 1 to %d", argv[5], COMMS_MAX);
	begin(atoi(argv[4]));
	printf("ready\n");
	fflush(stdout);
	serve();
	return 0;
}
