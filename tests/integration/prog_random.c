// SPDX-License-Identifier: BSD-2-Clause
/*
 * One of several processes that make random legal calls in several threads and share memory with
 * each other:
 *
 *   prog_random FOLDER NUMBER COUNT [no-multicast] [whole]
 *
 * It is process NUMBER of COUNT; their sockets lie in FOLDER. Says "ready", then obeys lines:
 *
 *   burst THREADS TURNS SEED   that many threads take so many turns each; the answer is what the
 *                              software driver then holds for this process, as a line of JSON
 *   open                       gives both devices access to all memory with handles
 *   paint SEED                 fills memory with handles where it is mapped and can be written
 *   sums                       the answer is what is there, as a line of JSON
 *   mark                       a call that fails, with a handle that nobody else names
 *   fork                       a child that does nothing, and ends a little later
 *   exec                       becomes a new one of itself, in a thread other than the first
 *
 * SEED gives the same turns again; what they find depends on how the threads are scheduled.
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include "../../tests/softcuda/dump.h"
#include "random.h"

#define THREADS_MAX 32
#define MARK	    0x6d61726bull

CUcontext primary[2];
bool no_multicast, only_whole;
static __thread uint64_t state;
static int own_socket;
static unsigned int own_number, process_count;
static const char *folder;
static unsigned int turns;
static char **arguments;

void must(CUresult result, const char *what)
{
	const char *name = "?";

	if (!result)
		return;
	cuGetErrorName(result, &name);
	fprintf(stderr, "prog_random: %s: %s\n", what, name);
	exit(1);
}

unsigned int below(unsigned int n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % n;
}

/* --- parcels --- */

static struct sockaddr_un address_of(unsigned int number)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/random-%u", folder, number);
	return address;
}

static void parcels_init(void)
{
	struct sockaddr_un address = address_of(own_number);

	unlink(address.sun_path);
	own_socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (own_socket < 0 || bind(own_socket, (struct sockaddr *)&address, sizeof(address))) {
		perror("prog_random: socket");
		exit(1);
	}
}

void parcel_send(const struct parcel *parcel, int fd, bool may_be_own)
{
	struct sockaddr_un address;
	struct iovec part = {(void *)parcel, sizeof(*parcel)};
	unsigned int to = below(process_count);
	int out;

	if (to == own_number && !may_be_own)
		to = (to + 1) % process_count;
	address = address_of(to);
	out = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	/* A full queue or a dead process: the parcel is lost, as parcels are. */
	if (out >= 0 && !connect(out, (struct sockaddr *)&address, sizeof(address)))
		lien_pass_send(out, &part, 1, &fd, fd >= 0);
	if (out >= 0)
		close(out);
	if (fd >= 0)
		close(fd);
}

bool parcel_receive(struct parcel *parcel, int *fd)
{
	int fds[LIEN_PASS_FDS_MAX];
	unsigned int count;

	if (lien_pass_receive(own_socket, parcel, sizeof(*parcel), fds, &count, MSG_DONTWAIT) !=
		sizeof(*parcel))
		return false;
	*fd = count ? fds[0] : -1;
	return true;
}

static void receive_turn(void)
{
	struct parcel parcel;
	int fd;

	if (!parcel_receive(&parcel, &fd))
		return;
	if (parcel.kind == PARCEL_FD || parcel.kind == PARCEL_FABRIC)
		handles_receive(&parcel, fd);
	else
		plain_receive(&parcel, fd);
	if (fd >= 0)
		close(fd);
}

/* --- bursts --- */

static const struct {
	unsigned int share; /* of 100 */
	void (*take)(void);
} kinds_of_turn[] = {
	{52, handles_turn},
	{22, plain_turn},
	{8, receive_turn},
	{8, pools_turn},
	{10, contexts_turn},
};

static void *sequence(void *seed)
{
	unsigned int pick, i;

	state = (uintptr_t)seed;
	must(cuCtxSetCurrent(primary[below(2)]), "cuCtxSetCurrent");
	for (unsigned int turn = 0; turn < turns; turn++) {
		pick = below(100);
		for (i = 0; pick >= kinds_of_turn[i].share; i++)
			pick -= kinds_of_turn[i].share;
		kinds_of_turn[i].take();
	}
	return NULL;
}

static int print_object(const struct softcuda_object *object, void *comma)
{
	const char *separator = "";

	printf("%s[%d,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%d,%d,%d,%" PRIu64
	       ",%" PRIu64 ",[",
		*(const char **)comma, object->kind, object->number, object->value,
		object->references, object->va, object->bytes, object->location.type,
		object->location.id, object->imported, object->multicast, object->offset);
	*(const char **)comma = ",";
	for (int i = 0; i <= SOFTCUDA_DEVICES; i++) {
		if (!object->access[i])
			continue;
		printf("%s[%d,%d]", separator, i < SOFTCUDA_DEVICES ? i : -1, object->access[i]);
		separator = ",";
	}
	printf("]]");
	return 0;
}

static void print_state(void)
{
	int (*dump)(softcuda_dump_fn, void *) = dlsym(RTLD_DEFAULT, "softcuda_dump");
	const char *comma = "";
	CUmemoryPool pool[2];

	for (int i = 0; i < 2; i++)
		DO(cuDeviceGetDefaultMemPool, &pool[i], i);
	if (!dump) {
		fprintf(stderr, "prog_random: not the software driver\n");
		exit(1);
	}
	printf("{\"objects\":[");
	dump(print_object, &comma);
	printf("],\"default_pools\":[%" PRIu64 ",%" PRIu64 "]", (uint64_t)(uintptr_t)pool[0],
		(uint64_t)(uintptr_t)pool[1]);
	printf(",\"contexts\":[[%" PRIu64 ",0],[%" PRIu64 ",1]", (uint64_t)(uintptr_t)primary[0],
		(uint64_t)(uintptr_t)primary[1]);
	contexts_print();
	printf("]}\n");
}

static void burst(unsigned int threads, uint64_t seed)
{
	pthread_t thread[THREADS_MAX];

	for (unsigned int i = 0; i < threads; i++) {
		uint64_t mixed = (seed + i + 1) * 0x9e3779b97f4a7c15ull;

		mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull | 1;
		if (pthread_create(&thread[i], NULL, sequence, (void *)(uintptr_t)mixed)) {
			perror("prog_random: thread");
			exit(1);
		}
	}
	for (unsigned int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	print_state();
}

/* --- life --- */

static void *become_new(void *unused)
{
	(void)unused;
	execv("/proc/self/exe", arguments);
	perror("prog_random: exec");
	exit(1);
}

static void obey(const char *line)
{
	unsigned int threads;
	uint64_t seed;
	pthread_t thread;

	if (sscanf(line, "burst %u %u %" SCNu64, &threads, &turns, &seed) == 3) {
		if (threads > THREADS_MAX)
			exit(2);
		burst(threads, seed);
	} else if (sscanf(line, "paint %" SCNu64, &seed) == 1) {
		contents_paint(seed);
		printf("painted\n");
	} else if (!strcmp(line, "open\n")) {
		contents_open();
		printf("opened\n");
	} else if (!strcmp(line, "sums\n")) {
		contents_print();
	} else if (!strcmp(line, "mark\n")) {
		if (!cuMemRelease(MARK))
			exit(1);
		printf("marked\n");
	} else if (!strcmp(line, "fork\n")) {
		if (!fork()) {
			usleep(20000);
			_exit(0);
		}
		printf("forked\n");
	} else if (!strcmp(line, "exec\n")) {
		if (!pthread_create(&thread, NULL, become_new, NULL))
			pthread_join(thread, NULL);
	} else {
		exit(2);
	}
}

int main(int argc, char **argv)
{
	char line[128];

	if (argc < 4)
		return 2;
	arguments = argv;
	for (int i = 4; i < argc; i++) {
		no_multicast |= !strcmp(argv[i], "no-multicast");
		only_whole |= !strcmp(argv[i], "whole");
	}
	folder = argv[1];
	own_number = atoi(argv[2]);
	process_count = atoi(argv[3]);
	setvbuf(stdout, NULL, _IOLBF, 1 << 16);
	signal(SIGCHLD, SIG_IGN);
	parcels_init();
	must(cuInit(0), "cuInit");
	/* Until its contexts are followed. */
	printf("started\n");
	if (!fgets(line, sizeof(line), stdin))
		return 0;
	for (int i = 0; i < 2; i++)
		DO(cuDevicePrimaryCtxRetain, &primary[i], i);
	handles_init();
	plain_init();
	pools_init();
	printf("ready\n");
	while (fgets(line, sizeof(line), stdin))
		obey(line);
	return 0;
}
