// SPDX-License-Identifier: BSD-2-Clause
/* The other process: it opens what it is told to, and says what it sees. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "same.h"

#define FOUND(name) ((__typeof__(&(name)))names_find(#name))

static int to_peer = -1;
static pid_t peer;

void peer_start(bool exec)
{
	char number[16];
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
		abort();
	peer = fork();
	if (peer < 0)
		abort();
	if (peer) {
		close(fds[1]);
		to_peer = fds[0];
		return;
	}
	close(fds[0]);
	snprintf(number, sizeof(number), "%d", fds[1]);
	if (exec)
		execl("/proc/self/exe", "prog_same", "peer", number, NULL);
	_exit(peer_main(fds[1]));
}

void peer_end(void)
{
	close(to_peer);
	waitpid(peer, NULL, 0);
}

struct peer_answer peer_ask(const struct peer_request *request)
{
	struct peer_answer answer;

	if (send(to_peer, request, sizeof(*request), MSG_NOSIGNAL) != sizeof(*request) ||
		recv(to_peer, &answer, sizeof(answer), MSG_WAITALL) != sizeof(answer)) {
		say(" the other process is gone");
		return (struct peer_answer){.result = CUDA_ERROR_UNKNOWN};
	}
	return answer;
}

/* --- in the other process --- */

static struct {
	CUdeviceptr va;
	CUcontext context;
} slots[PEER_SLOTS];

static CUresult use_device(int device, CUcontext *context)
{
	static CUcontext contexts[DEVICES];
	CUresult result = CUDA_SUCCESS;

	if (!contexts[device])
		result = FOUND(cuDevicePrimaryCtxRetain)(&contexts[device], device);
	*context = contexts[device];
	return result ? result : FOUND(cuCtxSetCurrent)(*context);
}

static CUresult opens(const struct peer_request *request, struct peer_answer *answer)
{
	__typeof__(&cuIpcOpenMemHandle) open =
		names_find(request->old ? "cuIpcOpenMemHandle" : "cuIpcOpenMemHandle_v2");
	CUresult result = use_device(request->device, &slots[request->slot].context);

	(void)answer;
	return result ? result
		      : open(&slots[request->slot].va, request->handle,
				CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUresult sees(const struct peer_request *request, struct peer_answer *answer)
{
	static unsigned char host[HOST_BYTES];
	CUdeviceptr va = slots[request->slot].va + request->offset;
	CUdeviceptr base = 0;
	size_t size = 0;
	CUresult result;

	result = FOUND(cuCtxSetCurrent)(slots[request->slot].context);
	if (result)
		return result;
	switch (request->call) {
	case PEER_CLOSE:
		return FOUND(cuIpcCloseMemHandle)(slots[request->slot].va);
	case PEER_SUM:
		result = FOUND(cuMemcpyDtoH_v2)(host, va, request->bytes);
		answer->value[0] = sum_of(host, request->bytes);
		return result;
	case PEER_SET:
		pattern(host, request->bytes, request->value);
		result = FOUND(cuMemcpyHtoD_v2)(va, host, request->bytes);
		return result ? result : FOUND(cuCtxSynchronize)();
	default:
		result = FOUND(cuMemGetAddressRange_v2)(&base, &size, va);
		answer->value[0] = va - base;
		answer->value[1] = size;
		return result;
	}
}

int peer_main(int fd)
{
	struct peer_request request;
	struct peer_answer answer;
	bool begun = false;

	signal(SIGPIPE, SIG_IGN);
	while (recv(fd, &request, sizeof(request), MSG_WAITALL) == sizeof(request)) {
		if (!begun) {
			names_open(0);
			FOUND(cuInit)(0);
			begun = true;
		}
		answer = (struct peer_answer){0};
		answer.result = request.call == PEER_OPEN ? opens(&request, &answer)
							  : sees(&request, &answer);
		if (send(fd, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer))
			return 1;
	}
	return 0;
}
