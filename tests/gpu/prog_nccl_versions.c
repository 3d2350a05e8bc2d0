// SPDX-License-Identifier: BSD-2-Clause
/*
 * A rank of a job that communicates without a pause, checks every value and knows nothing of lien;
 * nccl_versions.py runs it. It needs no header and no library of NVIDIA's to be built, launches no
 * kernels of its own, and takes the NCCL whose path it is given:
 *
 *	prog_nccl_versions devices			prints "devices N"
 *	prog_nccl_versions version LIBRARY		prints "version N", as ncclGetVersion() says
 *	prog_nccl_versions LIBRARY RANK NRANKS DEVICE
 *
 * Rank 0 prints "id HEX" first, which the others read as their first line. Each rank prints "ready
 * VERSION ALL-TO-ALL BUFFERS", then "step N" whenever it has checked the results of all operations
 * on all kinds of buffers. `stop`, or the end of the input, ends rank 0 and with it the others: all
 * use a communicator that is split off then, free everything, and print "done STEPS BYTES". A rank
 * that finds something wrong prints "failed WHY" and ends with status 1.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT_MAX  (256u << 10) /* values that a rank gives another */
#define REPEATS	   4		/* of each operation, before its results are checked */
#define PIECE	   (2ul << 20)	/* what NCCL wants the size of a window to be a multiple of */
#define SYMMETRIC  1		/* NCCL_WIN_COLL_SYMMETRIC */
#define VALUE	   sizeof(uint32_t)
#define PLACES_MAX 3

/* clang-format off */
#define DRIVER_FUNCTIONS(X) \
	X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) \
	X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemAllocHost_v2) X(cuMemFreeHost) X(cuMemsetD8Async) \
	X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoDAsync_v2) X(cuStreamCreate) \
	X(cuStreamSynchronize) X(cuStreamDestroy_v2)
#define NCCL_OPTIONAL(X) SYNC_NCCL_OPTIONAL(X)
/* clang-format on */

#include "tests/gpu/late_bound.h"

enum operation { ALL_REDUCE, ALL_TO_ALL, ALL_GATHER, SEND_RECEIVE, OPERATIONS };

static const char *const names[OPERATIONS] = {
	"all-reduce", "all-to-all", "all-gather", "send/receive"};

/* Memory that operations read in its lower half and write in its upper one, a slot each. */
static struct place {
	const char *name;
	CUdeviceptr va;
	bool plain;	    /* the driver's, not ncclMemAlloc()'s */
	void *registration; /* or NULL */
	ncclWindow_t window;
} places[PLACES_MAX];
static int places_count;

static ncclComm_t comm;
static int rank, nranks;
static CUstream stream;
static char *host; /* pinned; as large as a place */
static uint64_t step, checked;
static _Atomic bool stop;

/* Of an operation, as of a rank's half of a place. */
static size_t slot_bytes(void)
{
	return COUNT_MAX * VALUE * nranks;
}

static size_t half_bytes(void)
{
	return (slot_bytes() * OPERATIONS + PIECE - 1) & ~(PIECE - 1);
}

static CUdeviceptr source(const struct place *place, enum operation op)
{
	return place->va + op * slot_bytes();
}

static CUdeviceptr target(const struct place *place, enum operation op)
{
	return source(place, op) + half_bytes();
}

static uint32_t mix(uint64_t value)
{
	value = (value ^ value >> 31) * 0x9e3779b97f4a7c15ul;
	value = (value ^ value >> 29) * 0xbf58476d1ce4e5b9ul;
	return value >> 32;
}

/* What an operation is about follows from the step, equally in all ranks. */
struct work {
	uint32_t seed;
	uint32_t count; /* values that go from a rank to another one */
};

static struct work work_of(const struct place *place, enum operation op)
{
	struct work work = {.seed = mix(step << 8 | (place - places) << 4 | op)};

	work.count = 1 + mix(work.seed) % (COUNT_MAX >> work.seed % 12);
	return work;
}

/* The value that a rank gives at an index. */
static uint32_t given(const struct work *work, int from, uint32_t index)
{
	return (work->seed ^ (from + 1) * 0x85ebca6bu) + index * 2654435761u;
}

static uint32_t expected(enum operation op, const struct work *work, uint32_t index)
{
	int from = index / work->count, i;
	uint32_t sum = 0;

	switch (op) {
	case ALL_REDUCE:
		for (i = 0; i < nranks; i++)
			sum += given(work, i, index);
		return sum;
	case ALL_TO_ALL:
		return given(work, from, rank * work->count + index % work->count);
	case ALL_GATHER:
		return given(work, from, index % work->count);
	default:
		return given(work, (rank + nranks - 1) % nranks, index);
	}
}

static uint32_t given_count(enum operation op, const struct work *work)
{
	return op == ALL_TO_ALL ? work->count * nranks : work->count;
}

static uint32_t expected_count(enum operation op, const struct work *work)
{
	return op == ALL_TO_ALL || op == ALL_GATHER ? work->count * nranks : work->count;
}

/* As it is done where NCCL has no function for it. */
static void exchange_all(CUdeviceptr src, CUdeviceptr dst, uint32_t count)
{
	size_t bytes = count * VALUE;
	int i;

	CUDA(cuMemcpyDtoDAsync_v2(dst + rank * bytes, src + rank * bytes, bytes, stream));
	NCCL(ncclGroupStart());
	for (i = 0; i < nranks; i++) {
		if (i == rank)
			continue;
		NCCL(ncclSend((void *)(src + i * bytes), count, ncclUint32, i, comm, stream));
		NCCL(ncclRecv((void *)(dst + i * bytes), count, ncclUint32, i, comm, stream));
	}
	NCCL(ncclGroupEnd());
}

static void issue(const struct place *place, enum operation op)
{
	void *src = (void *)source(place, op), *dst = (void *)target(place, op);
	struct work work = work_of(place, op);

	switch (op) {
	case ALL_REDUCE:
		NCCL(ncclAllReduce(src, dst, work.count, ncclUint32, ncclSum, comm, stream));
		break;
	case ALL_TO_ALL:
		if (nccl.ncclAlltoAll)
			NCCL(ncclAlltoAll(src, dst, work.count, ncclUint32, comm, stream));
		else
			exchange_all(source(place, op), target(place, op), work.count);
		break;
	case ALL_GATHER:
		NCCL(ncclAllGather(src, dst, work.count, ncclUint32, comm, stream));
		break;
	default:
		NCCL(ncclGroupStart());
		NCCL(ncclSend(src, work.count, ncclUint32, (rank + 1) % nranks, comm, stream));
		NCCL(ncclRecv(
			dst, work.count, ncclUint32, (rank + nranks - 1) % nranks, comm, stream));
		NCCL(ncclGroupEnd());
	}
}

/* The results of earlier steps are overwritten, so that they are not taken for new ones. */
static void give(const struct place *place, enum operation op)
{
	uint32_t *values = (uint32_t *)(host + op * slot_bytes()), i;
	struct work work = work_of(place, op);
	uint32_t count = given_count(op, &work);

	for (i = 0; i < count; i++)
		values[i] = given(&work, rank, i);
	CUDA(cuMemcpyHtoDAsync_v2(source(place, op), values, count * VALUE, stream));
	CUDA(cuMemsetD8Async(target(place, op), 0xdb, expected_count(op, &work) * VALUE, stream));
}

static void fetch(const struct place *place, enum operation op)
{
	struct work work = work_of(place, op);

	CUDA(cuMemcpyDtoHAsync_v2(host + half_bytes() + op * slot_bytes(), target(place, op),
		expected_count(op, &work) * VALUE, stream));
}

static void check(const struct place *place, enum operation op)
{
	const uint32_t *found = (uint32_t *)(host + half_bytes() + op * slot_bytes());
	struct work work = work_of(place, op);
	uint32_t count = expected_count(op, &work), i, want;

	for (i = 0; i < count; i++) {
		want = expected(op, &work, i);
		if (found[i] != want)
			fail("%s of %s memory, step %lu: value %u of %u is %#x, not %#x", names[op],
				place->name, (unsigned long)step, i, count, found[i], want);
	}
	checked += count * VALUE;
}

static void communicate(const struct place *place)
{
	int op, i;

	for (op = 0; op < OPERATIONS; op++)
		give(place, op);
	for (i = 0; i < REPEATS; i++)
		for (op = 0; op < OPERATIONS; op++)
			issue(place, op);
	for (op = 0; op < OPERATIONS; op++)
		fetch(place, op);
	CUDA(cuStreamSynchronize(stream));
	for (op = 0; op < OPERATIONS; op++)
		check(place, op);
}

/* Shall all ranks stop? Rank 0 was asked to. */
static bool agreed_to_stop(void)
{
	CUdeviceptr src = source(&places[0], 0), dst = target(&places[0], 0);
	uint32_t *flag = (uint32_t *)host;

	*flag = atomic_load(&stop);
	CUDA(cuMemcpyHtoDAsync_v2(src, flag, VALUE, stream));
	NCCL(ncclBroadcast((void *)src, (void *)dst, 1, ncclUint32, 0, comm, stream));
	CUDA(cuMemcpyDtoHAsync_v2(flag, dst, VALUE, stream));
	CUDA(cuStreamSynchronize(stream));
	return *flag;
}

static struct place *add_place(const char *name, bool plain)
{
	struct place *place = &places[places_count++];
	void *memory = NULL;

	*place = (struct place){.name = name, .plain = plain};
	if (plain)
		CUDA(cuMemAlloc_v2(&place->va, 2 * half_bytes()));
	else
		NCCL(ncclMemAlloc(&memory, 2 * half_bytes()));
	if (!plain)
		place->va = (CUdeviceptr)memory;
	return place;
}

/* A communicator whose ranks cannot map each other's memory gives no window, and no error. */
static void add_places(void)
{
	struct place *place;
	void *memory;

	add_place("plain", true);
	if (nccl.ncclCommRegister) {
		place = add_place("registered", false);
		memory = (void *)place->va;
		NCCL(ncclCommRegister(comm, memory, 2 * half_bytes(), &place->registration));
	}
	if (nccl.ncclCommWindowRegister) {
		place = add_place("window", false);
		memory = (void *)place->va;
		NCCL(ncclCommWindowRegister(
			comm, memory, 2 * half_bytes(), &place->window, SYMMETRIC));
		if (!place->window)
			place->name = "unregistered";
	}
}

static void remove_places(void)
{
	struct place *place;

	for (place = places; place < places + places_count; place++) {
		if (place->registration)
			NCCL(ncclCommDeregister(comm, place->registration));
		if (place->window)
			NCCL(ncclCommWindowDeregister(comm, place->window));
		if (place->plain)
			CUDA(cuMemFree_v2(place->va));
		else
			NCCL(ncclMemFree((void *)place->va));
	}
}

static void unique_id(ncclUniqueId *id)
{
	char line[300];
	unsigned byte;
	size_t i;

	if (!rank) {
		NCCL(ncclGetUniqueId(id));
		printf("id ");
		for (i = 0; i < sizeof(*id); i++)
			printf("%02x", id->internal[i] & 0xff);
		printf("\n");
		fflush(stdout);
		return;
	}
	if (!fgets(line, sizeof(line), stdin) || strlen(line) < 2 * sizeof(*id))
		fail("no id of a communicator on standard input");
	for (i = 0; i < sizeof(*id); i++) {
		sscanf(line + 2 * i, "%2x", &byte);
		id->internal[i] = byte;
	}
}

static void begin(int device_number)
{
	CUcontext context;
	CUdevice device;
	ncclUniqueId id;

	CUDA(cuInit(0));
	CUDA(cuDeviceGet(&device, device_number));
	CUDA(cuDevicePrimaryCtxRetain(&context, device));
	CUDA(cuCtxSetCurrent(context));
	CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CUDA(cuMemAllocHost_v2((void **)&host, 2 * half_bytes()));
	unique_id(&id);
	NCCL(ncclCommInitRank(&comm, nranks, id, rank));
	add_places();
}

/* A communicator that is made after all offloads works as well. */
static void use_another(void)
{
	ncclComm_t first = comm;

	NCCL(ncclCommSplit(first, 0, rank, &comm, NULL));
	step++;
	communicate(&places[0]);
	NCCL(ncclCommDestroy(comm));
	comm = first;
}

static void finish(void)
{
	use_another();
	remove_places();
	NCCL(ncclCommDestroy(comm));
	CUDA(cuMemFreeHost(host));
	CUDA(cuStreamDestroy_v2(stream));
	printf("done %lu %lu\n", (unsigned long)step, (unsigned long)checked);
	fflush(stdout);
}

static void say_ready(void)
{
	int i;

	printf("ready %d %s ", nccl_version(), nccl.ncclAlltoAll ? "ncclAlltoAll" : "send/receive");
	for (i = 0; i < places_count; i++)
		printf("%s%s", i ? "," : "", places[i].name);
	printf("\n");
	fflush(stdout);
}

/* Not through stdio: exit() may wait for a thread that reads stdin. */
static void *obey(void *arg)
{
	char line[64];
	ssize_t n;

	while ((n = read(STDIN_FILENO, line, sizeof(line))) > 0 && !memmem(line, n, "stop\n", 5))
		;
	atomic_store(&stop, true);
	return arg;
}

int main(int argc, char **argv)
{
	pthread_t reader;
	int i;

	if (argc == 2 && !strcmp(argv[1], "devices"))
		return say_devices();
	if (argc != 5 && (argc != 3 || strcmp(argv[1], "version"))) {
		fprintf(stderr, "usage: prog_nccl_versions LIBRARY RANK NRANKS DEVICE\n");
		return 2;
	}
	bind_nccl(argv[argc == 5 ? 1 : 2]);
	if (argc == 3) {
		printf("version %d\n", nccl_version());
		return 0;
	}
	bind_driver();
	rank = atoi(argv[2]);
	nranks = atoi(argv[3]);
	begin(atoi(argv[4]));
	say_ready();
	pthread_create(&reader, NULL, obey, NULL);
	while (!agreed_to_stop()) {
		step++;
		for (i = 0; i < places_count; i++)
			communicate(&places[i]);
		printf("step %lu\n", (unsigned long)step);
		fflush(stdout);
	}
	finish();
	return 0;
}
