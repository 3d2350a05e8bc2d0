// SPDX-License-Identifier: BSD-2-Clause
/*
 * A process that makes the NCCL calls it is told to: prog_nccl LIBRARY. A command a line on
 * standard input, an answer a line on standard output: "ok VALUE..." or "error RESULT". A line that
 * begins with @NAME is obeyed by a thread of that name, which is started at its first line and
 * stays.
 *
 * A communicator is named by its address, as lien shows it. Calls that make one answer with the
 * ncclResult_t and the address.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/cuda_abi.h>
#include "softnccl_alone.h"

#define ARGS_MAX    16
#define THREADS_MAX 16

/* clang-format off */
#define FUNCTIONS(X) \
	X(init_rank, "ncclCommInitRank", (ncclComm_t *, int, ncclUniqueId, int)) \
	X(init_config, "ncclCommInitRankConfig", \
		(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *)) \
	X(init_scalable, "ncclCommInitRankScalable", \
		(ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *)) \
	X(init_all, "ncclCommInitAll", (ncclComm_t *, int, const int *)) \
	X(split, "ncclCommSplit", (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *)) \
	X(shrink, "ncclCommShrink", \
		(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int)) \
	X(finalize, "ncclCommFinalize", (ncclComm_t)) \
	X(destroy, "ncclCommDestroy", (ncclComm_t)) \
	X(abort, "ncclCommAbort", (ncclComm_t)) \
	X(async_error, "ncclCommGetAsyncError", (ncclComm_t, ncclResult_t *)) \
	X(enroll, "ncclCommRegister", (const ncclComm_t, void *, size_t, void **)) \
	X(withdraw, "ncclCommDeregister", (const ncclComm_t, void *)) \
	X(window, "ncclCommWindowRegister", (ncclComm_t, void *, size_t, ncclWindow_t *, int)) \
	X(window_end, "ncclCommWindowDeregister", (ncclComm_t, ncclWindow_t)) \
	X(group_start, "ncclGroupStart", (void)) \
	X(group_end, "ncclGroupEnd", (void)) \
	X(mem_alloc, "ncclMemAlloc", (void **, size_t)) \
	X(mem_free, "ncclMemFree", (void *)) \
	X(device_comm, "ncclDevCommCreate", (ncclComm_t, const void *, void *)) \
	X(all_reduce, "ncclAllReduce", (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, \
		ncclComm_t, cudaStream_t)) \
	X(reduce_scatter, "ncclReduceScatter", (const void *, void *, size_t, ncclDataType_t, \
		ncclRedOp_t, ncclComm_t, cudaStream_t)) \
	X(reduce, "ncclReduce", (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, \
		ncclComm_t, cudaStream_t)) \
	X(broadcast, "ncclBroadcast", (const void *, void *, size_t, ncclDataType_t, int, \
		ncclComm_t, cudaStream_t)) \
	X(bcast, "ncclBcast", (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)) \
	X(gather, "ncclGather", (const void *, void *, size_t, ncclDataType_t, int, \
		ncclComm_t, cudaStream_t)) \
	X(scatter, "ncclScatter", (const void *, void *, size_t, ncclDataType_t, int, \
		ncclComm_t, cudaStream_t)) \
	X(all_gather, "ncclAllGather", (const void *, void *, size_t, ncclDataType_t, \
		ncclComm_t, cudaStream_t)) \
	X(all_to_all, "ncclAlltoAll", (const void *, void *, size_t, ncclDataType_t, \
		ncclComm_t, cudaStream_t)) \
	X(send, "ncclSend", (const void *, size_t, ncclDataType_t, int, ncclComm_t, \
		cudaStream_t)) \
	X(recv, "ncclRecv", (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)) \
	X(allocate, "lien_softnccl_allocate", (size_t))
/* clang-format on */

static struct {
#define MEMBER(name, symbol, arguments) int(*name) arguments;
	FUNCTIONS(MEMBER)
#undef MEMBER
} nccl;

static void bind(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);

	if (!library) {
		fprintf(stderr, "prog_nccl: %s\n", dlerror());
		exit(1);
	}
#define BIND(name, symbol, arguments)                                                              \
	nccl.name = (__typeof__(nccl.name))dlsym(library, symbol);                                 \
	if (!nccl.name) {                                                                          \
		fprintf(stderr, "prog_nccl: no %s\n", symbol);                                     \
		exit(1);                                                                           \
	}
	FUNCTIONS(BIND)
#undef BIND
}

/* What a line says: its words, and those that are numbers as numbers. */
struct order {
	int count;
	char *word[ARGS_MAX + 1];
	uint64_t arg[ARGS_MAX + 1]; /* [0] of the first word after the command */
};

#define COMM(order, n) ((ncclComm_t)(order)->arg[n])

/* Where a call that has not ended yet will say what it made; one per thread. */
static __thread ncclComm_t made;

static int say(int result)
{
	if (result && result != ncclInProgress)
		printf("error %d\n", result);
	else
		printf("ok %d\n", result);
	return result;
}

static void say_made(int result)
{
	if (result && result != ncclInProgress)
		printf("error %d\n", result);
	else
		printf("ok %d %#lx\n", result, (long)made);
}

static ncclUniqueId id_of(const char *hex)
{
	ncclUniqueId id = {0};
	unsigned i, byte;

	for (i = 0; i < sizeof(id.internal) && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++)
		id.internal[i] = byte;
	return id;
}

static ncclConfig_t *config_of(bool blocking)
{
	static __thread ncclConfig_t config;

	config = (ncclConfig_t){.size = sizeof(config), .blocking = blocking};
	return &config;
}

static void do_init(const struct order *order)
{
	CUcontext context;
	CUdevice device;

	if (cuInit(0) || cuDeviceGet(&device, order->arg[0]) ||
		cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context))
		printf("error 1\n");
	else
		printf("ok 0\n");
}

static void do_allocate(const struct order *order)
{
	say(nccl.allocate(order->arg[0]));
}

static void do_init_rank(const struct order *order)
{
	say_made(nccl.init_rank(&made, order->arg[0], id_of(order->word[3]), order->arg[1]));
}

static void do_init_config(const struct order *order)
{
	say_made(nccl.init_config(&made, order->arg[0], id_of(order->word[3]), order->arg[1],
		config_of(order->arg[3])));
}

static void do_init_scalable(const struct order *order)
{
	ncclUniqueId ids[2] = {id_of(order->word[3]), {{0x55}}};

	say_made(nccl.init_scalable(
		&made, order->arg[0], order->arg[1], 2, ids, config_of(order->arg[3])));
}

/* init-all COUNT [DEVICE...] */
static void do_init_all(const struct order *order)
{
	ncclComm_t comms[ARGS_MAX] = {0};
	int devices[ARGS_MAX], count = order->arg[0], i, result;

	for (i = 0; i < count; i++)
		devices[i] = order->arg[i + 1];
	result = nccl.init_all(comms, count, order->count > 2 ? devices : NULL);
	printf("%s %d", result ? "error" : "ok", result);
	for (i = 0; i < count; i++)
		printf(" %#lx", (long)comms[i]);
	printf("\n");
}

static void do_split(const struct order *order)
{
	say_made(nccl.split(COMM(order, 0), (int)order->arg[1], (int)order->arg[2], &made,
		config_of(order->arg[3])));
}

/* shrink COMM BLOCKING RANK... */
static void do_shrink(const struct order *order)
{
	int excluded[ARGS_MAX], count = order->count - 3, i;

	for (i = 0; i < count; i++)
		excluded[i] = order->arg[i + 2];
	say_made(nccl.shrink(COMM(order, 0), excluded, count, &made, config_of(order->arg[1]), 0));
}

static void do_finalize(const struct order *order)
{
	say(nccl.finalize(COMM(order, 0)));
}

static void do_destroy(const struct order *order)
{
	say(nccl.destroy(COMM(order, 0)));
}

static void do_abort(const struct order *order)
{
	say(nccl.abort(COMM(order, 0)));
}

/* Answers with what has become of the thread's last communicator, too. */
static void do_poll(const struct order *order)
{
	ncclResult_t state = ncclSuccess;
	int result = nccl.async_error(COMM(order, 0), &state);

	say_made(result ? result : (int)state);
}

static void do_register(const struct order *order)
{
	void *handle = NULL;
	int result = nccl.enroll(COMM(order, 0), (void *)order->arg[1], order->arg[2], &handle);

	printf("%s %d %#lx\n", result ? "error" : "ok", result, (long)handle);
}

static void do_deregister(const struct order *order)
{
	say(nccl.withdraw(COMM(order, 0), (void *)order->arg[1]));
}

static void do_window(const struct order *order)
{
	ncclWindow_t window = NULL;
	int result = nccl.window(COMM(order, 0), (void *)order->arg[1], order->arg[2], &window, 1);

	printf("%s %d %#lx\n", result ? "error" : "ok", result, (long)window);
}

static void do_window_end(const struct order *order)
{
	say(nccl.window_end(COMM(order, 0), (ncclWindow_t)order->arg[1]));
}

static void do_group_start(const struct order *order)
{
	(void)order;
	say(nccl.group_start());
}

static void do_group_end(const struct order *order)
{
	(void)order;
	say_made(nccl.group_end());
}

static void do_mem_alloc(const struct order *order)
{
	void *address = NULL;
	int result = nccl.mem_alloc(&address, order->arg[0]);

	printf("%s %d %#lx\n", result ? "error" : "ok", result, (long)address);
}

static void do_mem_free(const struct order *order)
{
	say(nccl.mem_free((void *)order->arg[0]));
}

static void do_device_comm(const struct order *order)
{
	say(nccl.device_comm(COMM(order, 0), NULL, NULL));
}

static void do_set(const struct order *order)
{
	say(cuMemsetD8_v2(order->arg[0], order->arg[2], order->arg[1]));
}

static void do_holds(const struct order *order)
{
	const size_t size = order->arg[1];
	uint8_t *bytes = malloc(size);
	size_t i = 0;
	int result;

	if (!bytes)
		abort();
	result = cuMemcpyDtoH_v2(bytes, order->arg[0], size);
	while (!result && i < size && bytes[i] == order->arg[2])
		i++;
	free(bytes);
	say(result ? result : i < size);
}

static int call(const char *kind, ncclComm_t comm, size_t count, ncclDataType_t type)
{
	if (!strcmp(kind, "all_reduce"))
		return nccl.all_reduce(NULL, NULL, count, type, 0, comm, NULL);
	if (!strcmp(kind, "reduce_scatter"))
		return nccl.reduce_scatter(NULL, NULL, count, type, 0, comm, NULL);
	if (!strcmp(kind, "reduce"))
		return nccl.reduce(NULL, NULL, count, type, 0, 0, comm, NULL);
	if (!strcmp(kind, "broadcast"))
		return nccl.broadcast(NULL, NULL, count, type, 0, comm, NULL);
	if (!strcmp(kind, "bcast"))
		return nccl.bcast(NULL, count, type, 0, comm, NULL);
	if (!strcmp(kind, "gather"))
		return nccl.gather(NULL, NULL, count, type, 0, comm, NULL);
	if (!strcmp(kind, "scatter"))
		return nccl.scatter(NULL, NULL, count, type, 0, comm, NULL);
	if (!strcmp(kind, "all_gather"))
		return nccl.all_gather(NULL, NULL, count, type, comm, NULL);
	if (!strcmp(kind, "all_to_all"))
		return nccl.all_to_all(NULL, NULL, count, type, comm, NULL);
	if (!strcmp(kind, "send"))
		return nccl.send(NULL, count, type, 0, comm, NULL);
	return nccl.recv(NULL, count, type, 0, comm, NULL);
}

/* call KIND COMM COUNT TYPE TIMES */
static void do_call(const struct order *order)
{
	uint64_t i;
	int result = 0;

	for (i = 0; i < order->arg[4] && !result; i++)
		result = call(order->word[1], COMM(order, 1), order->arg[2], order->arg[3]);
	say(result);
}

struct hammer {
	ncclComm_t comm;
	uint64_t calls;
};

static void *hammer(void *arg)
{
	const struct hammer *hammer = arg;
	uint64_t i;

	for (i = 0; i < hammer->calls; i++)
		call(i & 1 ? "reduce" : "all_reduce", hammer->comm, 1, 2);
	return NULL;
}

/* hammer COMM THREADS CALLS: ncclAllReduce() and ncclReduce() in turn, one int each */
static void do_hammer(const struct order *order)
{
	struct hammer what = {COMM(order, 0), order->arg[2]};
	pthread_t threads[THREADS_MAX];
	unsigned count = order->arg[1], i;

	for (i = 0; i < count && i < THREADS_MAX; i++)
		pthread_create(&threads[i], NULL, hammer, &what);
	for (i = 0; i < count && i < THREADS_MAX; i++)
		pthread_join(threads[i], NULL);
	printf("ok 0\n");
}

/* What NCCL's RAS tells of it, and where it is in the structure. */
static void do_hash(const struct order *order)
{
	printf("ok %#lx %zu\n", (unsigned long)COMM(order, 0)->hash,
		offsetof(struct ncclComm, hash));
}

/* damage COMM: the structure has no end, for nothing is like its beginning */
static void do_damage(const struct order *order)
{
	COMM(order, 0)->start_magic = 0x1234567;
	printf("ok 0\n");
}

/* Memory of the application's own: its address. */
static void do_buffer(const struct order *order)
{
	CUdeviceptr va = 0;
	CUresult result = cuMemAlloc_v2(&va, order->arg[0]);

	printf("%s %d %#llx\n", result ? "error" : "ok", result, va);
}

/* A range beyond the end of memory: the driver refuses it, and a gate for all memory holds it
 * before. */
static void do_free_nothing(const struct order *order)
{
	(void)order;
	printf("ok %d\n", cuMemAddressFree(-1, 2));
}

static void do_exec(const struct order *order)
{
	char *argv[] = {"/bin/cat", NULL};

	(void)order;
	printf("ok 0\n");
	fflush(stdout);
	execv(argv[0], argv);
	_exit(127);
}

static const struct {
	const char *name;
	void (*run)(const struct order *order);
} commands[] = {
	{"init", do_init},		     /* DEVICE: its primary context becomes current */
	{"allocate", do_allocate},	     /* BYTES: the library asks for memory from now on */
	{"init-rank", do_init_rank},	     /* NRANKS RANK ID */
	{"init-config", do_init_config},     /* NRANKS RANK ID BLOCKING */
	{"init-scalable", do_init_scalable}, /* NRANKS RANK ID BLOCKING */
	{"init-all", do_init_all},	     /* COUNT [DEVICE...] */
	{"split", do_split},		     /* COMM COLOR KEY BLOCKING */
	{"shrink", do_shrink},		     /* COMM BLOCKING RANK... */
	{"finalize", do_finalize},	     /* COMM */
	{"destroy", do_destroy},	     /* COMM */
	{"abort", do_abort},		     /* COMM */
	{"poll", do_poll},		     /* COMM */
	{"register", do_register},	     /* COMM ADDRESS BYTES */
	{"deregister", do_deregister},	     /* COMM HANDLE */
	{"window", do_window},		     /* COMM ADDRESS BYTES */
	{"window-end", do_window_end},	     /* COMM WINDOW */
	{"group-start", do_group_start},
	{"group-end", do_group_end},
	{"mem-alloc", do_mem_alloc},	 /* BYTES */
	{"mem-free", do_mem_free},	 /* ADDRESS */
	{"device-comm", do_device_comm}, /* COMM */
	{"set", do_set},		 /* ADDRESS BYTES VALUE */
	{"holds", do_holds},		 /* ADDRESS BYTES VALUE */
	{"call", do_call},		 /* KIND COMM COUNT TYPE TIMES */
	{"hammer", do_hammer},		 /* COMM THREADS CALLS */
	{"hash", do_hash},		 /* COMM */
	{"damage", do_damage},		 /* COMM */
	{"buffer", do_buffer},		 /* BYTES */
	{"free-nothing", do_free_nothing},
	{"exec", do_exec},
};

static void obey(char *line)
{
	char *save = NULL, *word = strtok_r(line, " \n", &save);
	struct order order = {0};
	unsigned i;
	int j;

	for (; word && order.count <= ARGS_MAX; word = strtok_r(NULL, " \n", &save))
		order.word[order.count++] = word;
	for (j = 1; j < order.count; j++)
		order.arg[j - 1] = strtoll(order.word[j], NULL, 0);
	for (i = 0; order.count && i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(commands[i].name, order.word[0])) {
			commands[i].run(&order);
			return;
		}
	printf("error -1\n");
}

/* A thread with a name, that obeys one line after the other. */
static struct worker {
	char name[16];
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	char *line; /* NULL: it has obeyed */
} workers[THREADS_MAX];

static void *worker_run(void *arg)
{
	struct worker *worker = arg;

	pthread_mutex_lock(&worker->lock);
	while (true) {
		while (!worker->line)
			pthread_cond_wait(&worker->changed, &worker->lock);
		obey(worker->line);
		worker->line = NULL;
		pthread_cond_broadcast(&worker->changed);
	}
	return NULL;
}

static void delegate(char *line)
{
	size_t length = strcspn(line, " ");
	struct worker *worker = workers;

	while (worker->name[0] && (strncmp(worker->name, line, length) || worker->name[length]))
		worker++;
	if (!worker->name[0]) {
		snprintf(worker->name, sizeof(worker->name), "%.*s", (int)length, line);
		pthread_mutex_init(&worker->lock, NULL);
		pthread_cond_init(&worker->changed, NULL);
		pthread_create(&worker->thread, NULL, worker_run, worker);
	}
	pthread_mutex_lock(&worker->lock);
	worker->line = line + length;
	pthread_cond_broadcast(&worker->changed);
	while (worker->line)
		pthread_cond_wait(&worker->changed, &worker->lock);
	pthread_mutex_unlock(&worker->lock);
}

int main(int argc, char **argv)
{
	char line[1024];

	if (argc != 2) {
		fprintf(stderr, "usage: prog_nccl LIBRARY\n");
		return 2;
	}
	bind(argv[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready %d\n", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		if (line[0] == '@')
			delegate(line + 1);
		else
			obey(line);
	}
	return 0;
}
