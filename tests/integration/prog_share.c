// SPDX-License-Identifier: BSD-2-Clause
/*
 * Two processes that share memory as fast as they can, so that descriptors and file pointers are
 * reused all the time: prog_share CHANNELS EXPORTS.
 *
 * On each channel, a thread in either process, the first process creates, exports, sends and
 * closes; the second one receives, imports and closes. Every eighth buffer is kept and mapped on
 * both sides, all others are released at once. The first process then prints, as JSON, its own pid,
 * the other's, and for every share the handles that it had here and there, in order; waits for the
 * end of its input; and both exit.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include <lien/cuda_abi.h>

#define MIB	     (1ull << 20)
#define CHANNELS_MAX 16
#define KEEP	     8 /* one in so many */

struct pair {
	CUmemGenericAllocationHandle here, there;
	CUdeviceptr va;
};

struct channel {
	int socket;
	unsigned count;
	CUcontext context;
	struct pair *pairs;
};

static void check(long bad, const char *what)
{
	if (!bad)
		return;
	fprintf(stderr, "prog_share: pid %d: %s: %ld, %s\n", getpid(), what, bad, strerror(errno));
	exit(1);
}

static void send_fd(int socket, int fd)
{
	char control[CMSG_SPACE(sizeof(fd))] = {0}, byte = 0;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(fd));
	check(sendmsg(socket, &msg, 0) != 1, "sendmsg");
}

static int receive_fd(int socket)
{
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	int fd;

	check(recvmsg(socket, &msg, 0) != 1 || !CMSG_FIRSTHDR(&msg), "recvmsg");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

static CUdeviceptr show(CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr va;

	check(cuMemAddressReserve(&va, 2 * MIB, 0, 0, 0), "cuMemAddressReserve");
	check(cuMemMap(va, 2 * MIB, 0, handle, 0), "cuMemMap");
	check(cuMemSetAccess(va, 2 * MIB, &access, 1), "cuMemSetAccess");
	return va;
}

static void *exporter(void *arg)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	struct channel *channel = arg;
	unsigned i;
	int fd;

	check(cuCtxSetCurrent(channel->context), "cuCtxSetCurrent");
	for (i = 0; i < channel->count; i++) {
		struct pair *pair = &channel->pairs[i];

		check(cuMemCreate(&pair->here, 2 * MIB, &prop, 0), "cuMemCreate");
		check(cuMemExportToShareableHandle(
			      &fd, pair->here, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
			"cuMemExportToShareableHandle");
		send_fd(channel->socket, fd);
		check(close(fd), "close");
		check(read(channel->socket, &pair->there, sizeof(pair->there)) !=
				sizeof(pair->there),
			"read");
		if (i % KEEP)
			check(cuMemRelease(pair->here), "cuMemRelease");
		else
			pair->va = show(pair->here);
	}
	return NULL;
}

static void *importer(void *arg)
{
	CUmemGenericAllocationHandle handle;
	struct channel *channel = arg;
	unsigned i;
	int fd;

	check(cuCtxSetCurrent(channel->context), "cuCtxSetCurrent");
	for (i = 0; i < channel->count; i++) {
		fd = receive_fd(channel->socket);
		check(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
			      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
			"cuMemImportFromShareableHandle");
		check(close(fd), "close");
		if (i % KEEP)
			check(cuMemRelease(handle), "cuMemRelease");
		else
			show(handle);
		check(write(channel->socket, &handle, sizeof(handle)) != sizeof(handle), "write");
	}
	return NULL;
}

static void run(struct channel *channels, unsigned count, void *(*part)(void *))
{
	pthread_t threads[CHANNELS_MAX];
	CUcontext context;
	CUdevice device;
	unsigned i;

	check(cuInit(0), "cuInit");
	check(cuDeviceGet(&device, 0), "cuDeviceGet");
	check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
	for (i = 0; i < count; i++) {
		channels[i].context = context;
		check(pthread_create(&threads[i], NULL, part, &channels[i]), "pthread_create");
	}
	for (i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
	unsigned count = argc > 1 ? atoi(argv[1]) : 4, exports = argc > 2 ? atoi(argv[2]) : 1000;
	struct channel here[CHANNELS_MAX] = {0}, there[CHANNELS_MAX] = {0};
	unsigned i, j;
	int pair[2];
	pid_t child;

	if (!count || count > CHANNELS_MAX)
		return 2;
	for (i = 0; i < count; i++) {
		check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
		here[i].socket = pair[0];
		there[i].socket = pair[1];
		here[i].count = there[i].count = exports / count;
		here[i].pairs = calloc(here[i].count, sizeof(struct pair));
	}
	child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run(there, count, importer);
		pause();
	}
	run(here, count, exporter);
	printf("{\"owner\": %d, \"importer\": %d, \"shares\": [", getpid(), child);
	for (i = 0; i < count; i++)
		for (j = 0; j < here[i].count; j++)
			printf("%s[%llu, %llu, %llu]", i || j ? ", " : "", here[i].pairs[j].here,
				here[i].pairs[j].there, here[i].pairs[j].va);
	printf("]}\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
