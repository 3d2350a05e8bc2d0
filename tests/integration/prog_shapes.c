// SPDX-License-Identifier: BSD-2-Clause
/*
 * A process that gets, shares and keeps memory in every way that the driver knows, as it is told
 * to: a command a line on standard input, an answer a line on standard output, "ok VALUE..." or
 * "error NUMBER WHAT". Numbers are decimal or 0x...; the 64 bytes of an IPC handle, a fabric handle
 * or a pool pointer are 0x and up to 128 hexadecimal digits. `devices`, `types` and `flags` are
 * CUDA's numbers. libibverbs.so.1 is opened at the first ibv- command.
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../tests/softcuda/dump.h"
#include "shapes.h"

#define ARGS_MAX   8
#define THINGS_MAX 64

char **words;
uint64_t arg[ARGS_MAX];

void say(CUresult result, uint64_t value)
{
	const char *name = "";

	if (result && cuGetErrorName(result, &name))
		name = "?";
	if (result)
		printf("error %d %s\n", result, name);
	else
		printf("ok %#" PRIx64 "\n", value);
}

void say_two(CUresult result, uint64_t first, uint64_t second)
{
	if (result)
		say(result, 0);
	else
		printf("ok %#" PRIx64 " %#" PRIx64 "\n", first, second);
}

void say_errno(bool good, uint64_t value)
{
	if (good)
		say(0, value);
	else
		printf("error %d %s\n", errno, strerror(errno));
}

void say_bytes(CUresult result, const void *bytes, size_t size)
{
	if (result) {
		say(result, 0);
		return;
	}
	printf("ok 0x");
	for (size_t i = 0; i < size; i++)
		printf("%02x", ((const unsigned char *)bytes)[i]);
	printf("\n");
}

void parse_bytes(const char *text, unsigned char bytes[CU_IPC_HANDLE_SIZE])
{
	size_t digits, skip = !strncmp(text, "0x", 2) ? 2 : 0;
	unsigned int value;

	memset(bytes, 0, CU_IPC_HANDLE_SIZE);
	digits = strlen(text + skip);
	for (size_t i = 0; i < digits && i < 2 * CU_IPC_HANDLE_SIZE; i++) {
		char digit[2] = {text[skip + digits - 1 - i], 0};

		value = strtoul(digit, NULL, 16);
		bytes[CU_IPC_HANDLE_SIZE - 1 - i / 2] |= value << (i % 2 * 4);
	}
}

/* --- contexts and devices --- */

static CUcontext contexts[THINGS_MAX];
static unsigned int context_count;

static CUresult use_device(int ordinal)
{
	CUcontext context;
	CUresult result = cuDevicePrimaryCtxRetain(&context, ordinal);

	return result ? result : cuCtxSetCurrent(context);
}

static void do_init(void)
{
	CUresult result = cuInit(0);

	say(result ? result : use_device(arg[0]), 0);
}

static void do_device(void)
{
	say(use_device(arg[0]), 0);
}

static CUcontext context_of(uint64_t number)
{
	return number < context_count ? contexts[number] : NULL;
}

static void do_ctx(void)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (context_count < THINGS_MAX)
		result = cuCtxCreate_v2(&contexts[context_count], 0, arg[0]);
	say(result, context_count);
	context_count += !result;
}

SAYS(ctx_set, cuCtxSetCurrent(context_of(arg[0])))
SAYS(ctx_push, cuCtxPushCurrent_v2(context_of(arg[0])))
SAYS(ctx_pop, cuCtxPopCurrent_v2(NULL))
SAYS(ctx_destroy, cuCtxDestroy_v2(context_of(arg[0])))

static void do_uuid(void)
{
	CUuuid uuid;
	CUresult result = cuDeviceGetUuid_v2(&uuid, arg[0]);

	say_bytes(result, &uuid, sizeof(uuid));
}

static void do_info(void)
{
	size_t free_bytes = 0, total = 0;
	CUresult result = cuMemGetInfo_v2(&free_bytes, &total);

	say_two(result, free_bytes, total);
}

SAYS(sync, cuCtxSynchronize())

/* --- libibverbs --- */

static void *verbs(const char *name)
{
	static void *library;
	void *found;

	if (!library)
		library = dlopen("libibverbs.so.1", RTLD_NOW);
	found = library ? dlsym(library, name) : NULL;
	if (!found)
		printf("error -1 %s\n", dlerror());
	return found;
}

#define PD	      ((void *)verbs) /* any pointer will do */
#define VERBS(r, ...) ((r(*)(__VA_ARGS__))of)

static void do_ibv_reg(void)
{
	void *of = verbs("ibv_reg_mr"), *mr;

	if (!of)
		return;
	mr = VERBS(void *, void *, uint64_t, size_t, int)(PD, arg[0], arg[1], 1);
	say_errno(mr, (uintptr_t)mr);
}

static void reg_iova(const char *name)
{
	void *of = verbs(name), *mr;

	if (!of)
		return;
	mr = VERBS(void *, void *, uint64_t, size_t, uint64_t, int)(PD, arg[0], arg[1], arg[2], 1);
	say_errno(mr, (uintptr_t)mr);
}

static void do_ibv_reg_iova(void)
{
	reg_iova("ibv_reg_mr_iova");
}

static void do_ibv_reg_iova2(void)
{
	reg_iova("ibv_reg_mr_iova2");
}

static void do_ibv_reg_dmabuf(void)
{
	void *of = verbs("ibv_reg_dmabuf_mr"), *mr;

	if (!of)
		return;
	mr = VERBS(void *, void *, uint64_t, size_t, uint64_t, int, int)(
		PD, arg[1], arg[2], arg[3], arg[0], 1);
	say_errno(mr, (uintptr_t)mr);
}

static void do_ibv_dereg(void)
{
	void *of = verbs("ibv_dereg_mr");

	if (!of)
		return;
	errno = VERBS(int, void *)((void *)(uintptr_t)arg[0]);
	say_errno(!errno, 0);
}

/* --- threads, each on a device of its own --- */

static struct worker {
	pthread_t thread;
	int device;
	size_t bytes;
	CUdeviceptr va;
	CUresult result;
} workers[THINGS_MAX];
static unsigned int worker_count;
static pthread_barrier_t allocated, over;

static void *work(void *of)
{
	struct worker *worker = of;

	worker->result = use_device(worker->device);
	if (!worker->result)
		worker->result = cuMemAlloc_v2(&worker->va, worker->bytes);
	pthread_barrier_wait(&allocated);
	pthread_barrier_wait(&over);
	if (!worker->result)
		worker->result = cuMemFree_v2(worker->va);
	return NULL;
}

/* Their addresses, by device. They hold their memory until `threads-end`. */
static void do_threads(void)
{
	if (worker_count || !arg[0] || arg[0] > THINGS_MAX) {
		printf("error -1 one to %d threads, once\n", THINGS_MAX);
		return;
	}
	worker_count = arg[0];
	pthread_barrier_init(&allocated, NULL, worker_count + 1);
	pthread_barrier_init(&over, NULL, worker_count + 1);
	for (unsigned int i = 0; i < worker_count; i++) {
		workers[i] = (struct worker){.device = i, .bytes = arg[1]};
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			abort();
	}
	pthread_barrier_wait(&allocated);
	for (unsigned int i = 0; i < worker_count; i++) {
		if (workers[i].result) {
			say(workers[i].result, 0);
			return;
		}
	}
	printf("ok");
	for (unsigned int i = 0; i < worker_count; i++)
		printf(" %#llx", workers[i].va);
	printf("\n");
}

static void do_threads_end(void)
{
	CUresult result = CUDA_SUCCESS;

	if (worker_count)
		pthread_barrier_wait(&over);
	for (unsigned int i = 0; i < worker_count; i++) {
		pthread_join(workers[i].thread, NULL);
		result = result ? result : workers[i].result;
	}
	worker_count = 0;
	say(result, 0);
}

/* --- the truth --- */

static int print_object(const struct softcuda_object *object, void *first)
{
	printf("%s{\"kind\":%d,\"number\":%" PRIu64 ",\"value\":%" PRIu64 ",\"references\":%" PRIu64
	       ",\"va\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"size\":%" PRIu64 ",\"pool\":%" PRIu64
	       ",\"location\":[%d,%d],\"imported\":%d,\"multicast\":%" PRIu64 ",\"offset\":%" PRIu64
	       ",\"access\":[",
		*(bool *)first ? "" : ",", object->kind, object->number, object->value,
		object->references, object->va, object->bytes, object->size, object->pool,
		object->location.type, object->location.id, object->imported, object->multicast,
		object->offset);
	for (int i = 0; i <= SOFTCUDA_DEVICES; i++)
		printf("%s%d", i ? "," : "", object->access[i]);
	printf("]}");
	*(bool *)first = false;
	return 0;
}

/* All that softcuda_dump() tells, as JSON on a line; NVIDIA's driver has no such function. */
static void do_dump(void)
{
	int (*dump)(softcuda_dump_fn, void *) = dlsym(RTLD_DEFAULT, "softcuda_dump");
	bool first = true;

	if (!dump) {
		printf("error -1 not the software driver\n");
		return;
	}
	printf("[");
	dump(print_object, &first);
	printf("]\n");
}

static const struct command own_commands[] = {
	C("init", init, 1),		    /* DEVICE: cuInit; its primary context is current */
	C("device", device, 1),		    /* DEVICE: its primary context is current */
	C("ctx", ctx, 1),		    /* DEVICE: a new context, current; its number */
	C("ctx-set", ctx_set, 1),	    /* NUMBER */
	C("ctx-push", ctx_push, 1),	    /* NUMBER */
	C("ctx-pop", ctx_pop, 0),	    /* */
	C("ctx-destroy", ctx_destroy, 1),   /* NUMBER */
	C("uuid", uuid, 1),		    /* DEVICE */
	C("info", info, 0),		    /* free and total of the current device */
	C("sync", sync, 0),		    /* */
	C("ibv-reg", ibv_reg, 2),	    /* ADDRESS BYTES */
	C("ibv-reg-iova", ibv_reg_iova, 3), /* ADDRESS BYTES IOVA */
	C("ibv-reg-iova2", ibv_reg_iova2, 3),
	C("ibv-reg-dmabuf", ibv_reg_dmabuf, 4), /* FD OFFSET BYTES IOVA */
	C("ibv-dereg", ibv_dereg, 1),
	C("threads", threads, 2), /* DEVICES BYTES: a thread and an allocation on each */
	C("threads-end", threads_end, 0),
	C("dump", dump, 0),
	{NULL, NULL, 0},
};

static const struct command *find(const char *name, int args)
{
	const struct command *const tables[] = {own_commands, memory_commands, pool_commands};

	for (unsigned int i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
		for (const struct command *command = tables[i]; command->name; command++) {
			if (!strcmp(command->name, name) && command->args == args)
				return command;
		}
	}
	return NULL;
}

static void obey(char *line)
{
	char *split[ARGS_MAX + 1], *save = NULL, *word = strtok_r(line, " \n", &save);
	const struct command *command;
	int n = 0;

	for (; word && n <= ARGS_MAX; word = strtok_r(NULL, " \n", &save))
		split[n++] = word;
	words = split + 1;
	memset(arg, 0, sizeof(arg));
	for (int i = 1; i < n; i++)
		arg[i - 1] = strtoull(split[i], NULL, 0);
	command = n ? find(split[0], n - 1) : NULL;
	errno = 0;
	if (command)
		command->run();
	else
		printf("error -1 no such command\n");
}

int main(void)
{
	char line[512];

	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready %d\n", getpid());
	while (fgets(line, sizeof(line), stdin))
		obey(line);
	return 0;
}
