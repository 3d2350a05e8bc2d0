/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A rank of a job that trains without a pause and knows nothing of lien:
 *
 *	prog_train LIBRARY RANK NRANKS DEVICE SEED ITERATIONS PACE
 *
 * Two threads with communicators of their own give their streams collectives and transfers of all
 * kinds, with data that follows from the seed, and compare each result with what it must be.
 * PACE: microseconds, at most, that the host dawdles between two calls. ITERATIONS 0: until `stop`.
 *
 * Rank 0 says "id HEX" first, which is to be the others' first line. All say "ready PID", and
 * "done ITERATIONS SUM ITERATIONS SUM" at the end, of each worker: the sum of all results. Rank 0
 * obeys `stop` and `pause`; all then say "paused", and wait for a `go` each. `status` is answered
 * with "status ITERATIONS ITERATIONS BYTES", bytes that were verified. While it pauses, `mark SEED`
 * in all ranks and then `check SEED` (lien_sync_mark()) are answered with "marked" and "checked
 *BYTES".
 *
 * Status 3: a peer is gone; 4: a result was wrong; 5, 6: CUDA, NCCL failed. What the "done" must
 *be, without any device: prog_train - RANK NRANKS SEED ITERATIONS ITERATIONS.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "train.h"

#define WORKERS 2

static struct train_job job;
static struct train_worker workers[WORKERS];
static _Atomic bool over;

static void say_done(void)
{
	printf("done %lu %016lx %lu %016lx\n", (unsigned long)workers[0].iteration,
		(unsigned long)workers[0].sum, (unsigned long)workers[1].iteration,
		(unsigned long)workers[1].sum);
	fflush(stdout);
}

static int model(char **argv)
{
	struct train_op ops[TRAIN_OPS_MAX];
	char *data = malloc(TRAIN_BYTES_MAX * TRAIN_RANKS_MAX);
	int rank = atoi(argv[2]), nranks = atoi(argv[3]), count, i, w;
	uint64_t seed = strtoul(argv[4], NULL, 0), iterations;

	for (w = 0; data && w < WORKERS; w++) {
		iterations = strtoul(argv[5 + w], NULL, 0);
		for (; workers[w].iteration < iterations; workers[w].iteration++) {
			count = train_plan(seed, w, workers[w].iteration, nranks, ops);
			for (i = 0; i < count; i++)
				workers[w].sum = train_sum(workers[w].sum, data,
					train_expect(&ops[i], rank, nranks, data));
		}
	}
	free(data);
	say_done();
	return 0;
}

static void bind(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);

	if (!library)
		train_fail(&job, 2, "%s", dlerror());
#define BIND(name, arguments)                                                                      \
	train_nccl.name = (__typeof__(train_nccl.name))dlsym(library, #name);                      \
	if (!train_nccl.name)                                                                      \
		train_fail(&job, 2, "no %s", #name);
	SYNC_NCCL_FUNCTIONS(BIND)
#undef BIND
	train_nccl.mark = (__typeof__(train_nccl.mark))dlsym(library, "lien_sync_mark");
	train_nccl.check = (__typeof__(train_nccl.check))dlsym(library, "lien_sync_check");
	train_nccl.release = (__typeof__(train_nccl.release))dlsym(RTLD_DEFAULT, "cuMemRelease");
	if (!train_nccl.mark || !train_nccl.check || !train_nccl.release)
		train_fail(&job, 2, "not softnccl_sync");
}

/* Rank 0's unique id, by way of who started the ranks. */
static void unique_id(ncclUniqueId *id)
{
	char line[300];
	unsigned byte;
	size_t i;

	if (!job.rank) {
		if (train_nccl.ncclGetUniqueId(id))
			train_fail(&job, 6, "ncclGetUniqueId");
		printf("id ");
		for (i = 0; i < sizeof(*id); i++)
			printf("%02x", id->internal[i] & 0xff);
		printf("\n");
		fflush(stdout);
		return;
	}
	if (!fgets(line, sizeof(line), stdin) || strlen(line) < 2 * sizeof(*id))
		train_fail(&job, 2, "no id");
	for (i = 0; i < sizeof(*id); i++) {
		sscanf(line + 2 * i, "%2x", &byte);
		id->internal[i] = byte;
	}
}

static void must(ncclResult_t result, const char *what)
{
	if (result)
		train_fail(&job, result == ncclRemoteError ? 3 : 6, "%s: %d", what, result);
}

static void open_all(int device)
{
	struct train_worker *main_worker = &workers[0], *second = &workers[1];
	ncclUniqueId id;
	CUcontext context;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context))
		train_fail(&job, 5, "no device %d", device);
	unique_id(&id);
	must(train_nccl.ncclCommInitRank(
		     &main_worker->comms[TRAIN_WORLD], job.nranks, id, job.rank),
		"ncclCommInitRank");
	must(train_nccl.ncclCommSplit(main_worker->comms[TRAIN_WORLD], 0, job.rank,
		     &second->comms[TRAIN_WORLD], NULL),
		"ncclCommSplit");
	must(train_nccl.ncclCommSplit(main_worker->comms[TRAIN_WORLD], job.rank % 2, job.rank,
		     &main_worker->comms[TRAIN_HALF], NULL),
		"ncclCommSplit");
	must(train_nccl.ncclCommSplit(main_worker->comms[TRAIN_WORLD], job.rank / 2, job.rank,
		     &main_worker->comms[TRAIN_PAIR], NULL),
		"ncclCommSplit");
	main_worker->context = second->context = context;
}

static void close_all(void)
{
	int c, w;

	for (w = WORKERS - 1; w >= 0; w--)
		for (c = TRAIN_COMMS - 1; c >= 0; c--)
			if (workers[w].comms[c])
				must(train_nccl.ncclCommDestroy(workers[w].comms[c]),
					"ncclCommDestroy");
}

/* What PyTorch's watchdog does. */
static void *watchdog(void *arg)
{
	ncclResult_t error;
	int c, w;

	(void)arg;
	while (!atomic_load(&over)) {
		for (w = 0; w < WORKERS; w++)
			for (c = 0; c < TRAIN_COMMS; c++)
				if (workers[w].comms[c] &&
					!train_nccl.ncclCommGetAsyncError(
						workers[w].comms[c], &error) &&
					error)
					train_fail(&job, 3, "a peer is gone");
		usleep(20000);
	}
	return NULL;
}

/* Only while it pauses. */
static void mark_or_check(bool marks, uint64_t seed)
{
	long bytes = 0, found;
	ncclComm_t comm;
	int c, w;

	cuCtxSetCurrent(workers[0].context);
	for (w = 0; w < WORKERS; w++)
		for (c = 0; c < TRAIN_COMMS; c++) {
			comm = workers[w].comms[c];
			if (!comm)
				continue;
			if (marks)
				must(train_nccl.mark(comm, seed), "lien_sync_mark");
			else if ((found = train_nccl.check(comm, seed)) < 0)
				train_fail(&job, 4, "wrong: memory of communicator %d of worker %d",
					c, w);
			else
				bytes += found;
		}
	printf("%s %ld\n", marks ? "marked" : "checked", bytes);
	fflush(stdout);
}

static void *obey(void *arg)
{
	char line[64];

	(void)arg;
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "stop\n"))
			atomic_store(&job.wish, TRAIN_STOP);
		else if (!strcmp(line, "pause\n"))
			atomic_store(&job.wish, TRAIN_PAUSE);
		if (!strcmp(line, "go\n"))
			atomic_store(&job.wish, TRAIN_GO);
		if (!strcmp(line, "go\n") || !strcmp(line, "stop\n"))
			atomic_fetch_add(&job.goes, 1);
		if (!strncmp(line, "mark ", 5) || !strncmp(line, "check ", 6))
			mark_or_check(line[0] == 'm', strtoul(strchr(line, ' '), NULL, 0));
		if (!strcmp(line, "status\n")) {
			printf("status %lu %lu %lu\n", (unsigned long)workers[0].iteration,
				(unsigned long)workers[1].iteration, (unsigned long)job.bytes);
			fflush(stdout);
		}
	}
	return NULL;
}

/* By system call: glibc would leave out its own. The threads that are made from now on take it
 * over.
 */
static void block_signals(void)
{
	const uint64_t all = UINT64_MAX;

	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, NULL, sizeof(all));
}

int main(int argc, char **argv)
{
	pthread_t threads[WORKERS], dog, reader;
	int w;

	if (argc == 7 && !strcmp(argv[1], "-"))
		return model(argv);
	if (argc != 8) {
		fprintf(stderr,
			"usage: prog_train LIBRARY RANK NRANKS DEVICE SEED ITERATIONS PACE\n");
		return 2;
	}
	job.rank = atoi(argv[2]);
	job.nranks = atoi(argv[3]);
	job.seed = strtoul(argv[5], NULL, 0);
	job.iterations = strtoul(argv[6], NULL, 0);
	job.pace_us = atoi(argv[7]);
	bind(argv[1]);
	open_all(atoi(argv[4]));
	printf("ready %d\n", getpid());
	fflush(stdout);
	pthread_create(&dog, NULL, watchdog, NULL);
	pthread_create(&reader, NULL, obey, NULL);
	for (w = 0; w < WORKERS; w++) {
		workers[w].job = &job;
		workers[w].number = w;
		if (w && getenv("TRAIN_BLOCKS_SIGNALS"))
			block_signals();
		pthread_create(&threads[w], NULL, train_work, &workers[w]);
	}
	for (w = 0; w < WORKERS; w++)
		pthread_join(threads[w], NULL);
	atomic_store(&over, true);
	pthread_join(dog, NULL);
	close_all();
	say_done();
	return 0;
}
