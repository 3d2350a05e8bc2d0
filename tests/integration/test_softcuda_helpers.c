/* SPDX-License-Identifier: BSD-2-Clause */
/* What the tests share: roles in processes of their own, messages to them, short cuts to memory. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "test_softcuda.h"

char test_dir[64];
char test_self[4096]; /* not /proc/self/exe, which under valgrind is valgrind */
bool test_is_role;

void unmount_all(void)
{
	static const char *const dirs[] = {"devices", "other", "many"};
	char path[96];

	for (size_t i = 0; i < COUNT(dirs); i++) {
		snprintf(path, sizeof(path), "%s/%s", test_dir, dirs[i]);
		unmount_devices(path);
	}
	rmdir(test_dir);
}

void check_failed(void)
{
	if (!test_is_role)
		unmount_all();
	_exit(1);
}

static void start(struct actor *actor, const char *role, const char *const *env, int err)
{
	int sock[2];
	char number[16];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock), 0);
	snprintf(number, sizeof(number), "%d", sock[1]);
	actor->pid = fork();
	assert_true(actor->pid >= 0);
	if (!actor->pid) {
		for (; env && *env; env++) {
			if (strchr(*env, '='))
				putenv((char *)*env);
			else
				unsetenv(*env);
		}
		fcntl(sock[1], F_SETFD, 0);
		dup2(err, 2);
		execl(test_self, "test_softcuda", role, number, NULL);
		_exit(127);
	}
	close(sock[1]);
	actor->sock = sock[0];
	actor->err = -1;
}

void actor_start(struct actor *actor, const char *role, const char *const *env)
{
	start(actor, role, env, 2);
}

void actor_start_captured(struct actor *actor, const char *role, const char *const *env)
{
	int err[2];

	assert_int_equal(pipe2(err, O_CLOEXEC), 0);
	start(actor, role, env, err[1]);
	close(err[1]);
	actor->err = err[0];
}

int actor_wait(struct actor *actor, char *output, size_t len)
{
	size_t at = 0;
	ssize_t got;
	int status;

	while (actor->err >= 0 && at < len - 1) {
		got = read(actor->err, output + at, len - 1 - at);
		if (got <= 0)
			break;
		at += got;
	}
	output[at] = 0;
	assert_int_equal(waitpid(actor->pid, &status, 0), actor->pid);
	if (actor->err >= 0)
		close(actor->err);
	close(actor->sock);
	return status;
}

void actor_ok(struct actor *actor)
{
	char output[2];

	assert_int_equal(actor_wait(actor, output, sizeof(output)), 0);
}

void run_role(const char *role, const char *const *env)
{
	struct actor actor;

	actor_start(&actor, role, env);
	actor_ok(&actor);
}

void send_number(int sock, uint64_t number, int fd)
{
	struct iovec iov = {&number, sizeof(number)};
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		*CMSG_FIRSTHDR(&msg) = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
			.cmsg_type = SCM_RIGHTS,
			.cmsg_len = CMSG_LEN(sizeof(int))};
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), &fd, sizeof(fd));
	}
	CHECK(sendmsg(sock, &msg, MSG_NOSIGNAL) == sizeof(number));
}

uint64_t receive_number(int sock, int *fd)
{
	uint64_t number = 0;
	struct iovec iov = {&number, sizeof(number)};
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};

	CHECK(recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) == sizeof(number));
	if (fd) {
		CHECK(CMSG_FIRSTHDR(&msg));
		memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(*fd));
	}
	return number;
}

bool under_valgrind(void)
{
	const char *preload = getenv("LD_PRELOAD");

	return preload && strstr(preload, "vgpreload");
}

void unmount_devices(const char *dir)
{
	char path[128];

	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%s/%d", dir, i);
		umount2(path, MNT_DETACH);
		rmdir(path);
	}
	snprintf(path, sizeof(path), "%s/lock", dir);
	unlink(path);
	rmdir(dir);
}

CUmemAllocationProp device_prop(int device, CUmemAllocationHandleType types)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = types,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
	};
}

CUmemAccessDesc device_access(int device, CUmemAccess_flags flags)
{
	return (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
}

CUmemGenericAllocationHandle make(size_t size, CUmemAllocationHandleType types)
{
	CUmemAllocationProp prop = device_prop(0, types);
	CUmemGenericAllocationHandle handle = 0;

	CHECK(!cuMemCreate(&handle, size, &prop, 0));
	return handle;
}

void use_device(int device)
{
	CUcontext context;

	CHECK(!cuDevicePrimaryCtxRetain(&context, device));
	CHECK(!cuCtxSetCurrent(context));
}

size_t free_bytes(void)
{
	size_t free, total;

	CHECK(!cuMemGetInfo_v2(&free, &total));
	return free;
}

CUdeviceptr map_somewhere(CUmemGenericAllocationHandle handle, size_t size)
{
	CUmemAccessDesc access = device_access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	CUdeviceptr ptr;

	CHECK(!cuMemAddressReserve(&ptr, size, 0, 0, 0));
	CHECK(!cuMemMap(ptr, size, 0, handle, 0));
	CHECK(!cuMemSetAccess(ptr, size, &access, 1));
	return ptr;
}

void unmap_and_free(CUdeviceptr ptr, size_t size)
{
	CHECK(!cuMemUnmap(ptr, size));
	CHECK(!cuMemAddressFree(ptr, size));
}

void send_bytes(int sock, const void *bytes)
{
	CHECK(send(sock, bytes, CU_IPC_HANDLE_SIZE, MSG_NOSIGNAL) == CU_IPC_HANDLE_SIZE);
}

void receive_bytes(int sock, void *bytes)
{
	CHECK(recv(sock, bytes, CU_IPC_HANDLE_SIZE, 0) == CU_IPC_HANDLE_SIZE);
}

uint32_t read_mark(CUdeviceptr ptr)
{
	uint32_t mark = 0;

	CHECK(!cuMemcpyDtoH_v2(&mark, ptr, sizeof(mark)));
	return mark;
}

void write_mark(CUdeviceptr ptr, uint32_t mark)
{
	CHECK(!cuMemcpyHtoD_v2(ptr, &mark, sizeof(mark)));
}
