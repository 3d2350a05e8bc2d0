// SPDX-License-Identifier: BSD-2-Clause
/*
 * A stand-in for libibverbs.so.1, libmlx5.so.1 and libgdrapi.so.2: registrations of memory, without
 * a network card. What has no sense is refused as they do, with NULL and errno, or an error; what
 * is registered is remembered, so that giving back something else is an error. Any pointer but NULL
 * will do as a protection domain, a context or a gdr_t.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCAL_WRITE   0x1
#define REMOTE_WRITE  0x2
#define REMOTE_ATOMIC 0x8

struct ibv_pd;

/* As <infiniband/verbs.h> has it; ours goes on behind it. */
struct ibv_mr {
	void *context;
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle, lkey, rkey;
	LIST_ENTRY(ibv_mr) entry;
};

static LIST_HEAD(, ibv_mr) regions = LIST_HEAD_INITIALIZER(regions);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t last_key;

#define EXPORT __attribute__((visibility("default"), noinline, noclone))

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
struct ibv_mr *ibv_reg_mr_iova(
	struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access);
struct ibv_mr *ibv_reg_mr_iova2(
	struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access);
struct ibv_mr *ibv_reg_dmabuf_mr(
	struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);
int ibv_dereg_mr(struct ibv_mr *mr);

/* msync() fails where nothing is mapped, and by MS_ASYNC does nothing else. */
static bool is_memory(uintptr_t base, size_t length)
{
	uintptr_t at = base & -sysconf(_SC_PAGESIZE), end = base + length;

	return end > base && !msync((void *)at, end - at, MS_ASYNC);
}

static struct ibv_mr *add(struct ibv_pd *pd, void *addr, size_t length, unsigned int access)
{
	struct ibv_mr *mr;

	/* "If IBV_ACCESS_REMOTE_WRITE or REMOTE_ATOMIC is set, LOCAL_WRITE must be set too." */
	if (!pd || !length ||
		(access & (REMOTE_WRITE | REMOTE_ATOMIC) && !(access & LOCAL_WRITE))) {
		errno = EINVAL;
		return NULL;
	}
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return NULL;
	pthread_mutex_lock(&lock);
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->handle = mr->lkey = mr->rkey = ++last_key;
	LIST_INSERT_HEAD(&regions, mr, entry);
	pthread_mutex_unlock(&lock);
	return mr;
}

static struct ibv_mr *add_memory(struct ibv_pd *pd, void *addr, size_t length, unsigned int access)
{
	if (length && !is_memory((uintptr_t)addr, length)) {
		errno = EFAULT;
		return NULL;
	}
	return add(pd, addr, length, access);
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return add_memory(pd, addr, length, access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova(
	struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	(void)iova;
	return add_memory(pd, addr, length, access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(
	struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	(void)iova;
	return add_memory(pd, addr, length, access);
}

EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(
	struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	struct stat st;

	if (fstat(fd, &st)) /* sets EBADF */
		return NULL;
	if (offset + length < offset) {
		errno = EINVAL;
		return NULL;
	}
	return add(pd, (void *)(uintptr_t)iova, length, access);
}

EXPORT int ibv_dereg_mr(struct ibv_mr *wanted)
{
	struct ibv_mr *mr;

	pthread_mutex_lock(&lock);
	LIST_FOREACH (mr, &regions, entry) {
		if (mr == wanted)
			break;
	}
	if (mr)
		LIST_REMOVE(mr, entry);
	pthread_mutex_unlock(&lock);
	free(mr);
	return mr ? 0 : EINVAL;
}

/* As <infiniband/verbs.h> has it, up to what is used here. */
struct ibv_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
};

struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);
int ibv_rereg_mr(
	struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access);

EXPORT struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr)
{
	return attr->comp_mask & 2 /* IBV_REG_MR_MASK_ADDR */
		       ? add_memory(pd, attr->addr, attr->length, attr->access)
		       : ibv_reg_dmabuf_mr(pd, attr->fd_offset, attr->length, attr->iova, attr->fd,
				 attr->access);
}

EXPORT int ibv_rereg_mr(
	struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	(void)flags, (void)pd, (void)access;
	if (!is_memory((uintptr_t)addr, length))
		return -1; /* IBV_REREG_MR_ERR_INPUT */
	mr->addr = addr;
	mr->length = length;
	return 0;
}

/* --- libmlx5 ---------------------------------------------------------------------------------- */

struct mlx5dv_devx_umem_in {
	void *addr;
	size_t size;
	uint32_t access;
	uint64_t pgsz_bitmap, comp_mask;
	int dmabuf_fd;
};

void *mlx5dv_devx_umem_reg(void *context, void *addr, size_t size, uint32_t access);
void *mlx5dv_devx_umem_reg_ex(void *context, struct mlx5dv_devx_umem_in *in);
int mlx5dv_devx_umem_dereg(void *umem);

EXPORT void *mlx5dv_devx_umem_reg(void *context, void *addr, size_t size, uint32_t access)
{
	return add_memory(context, addr, size, access);
}

EXPORT void *mlx5dv_devx_umem_reg_ex(void *context, struct mlx5dv_devx_umem_in *in)
{
	return add_memory(context, in->addr, in->size, in->access);
}

EXPORT int mlx5dv_devx_umem_dereg(void *umem)
{
	return ibv_dereg_mr(umem);
}

/* --- libgdrapi -------------------------------------------------------------------------------- */

int gdr_pin_buffer(void *g, unsigned long addr, size_t size, uint64_t token, uint32_t space,
	uintptr_t *handle);
int gdr_pin_buffer_v2(void *g, unsigned long addr, size_t size, uint32_t flags, uintptr_t *handle);
int gdr_unpin_buffer(void *g, uintptr_t handle);

EXPORT int gdr_pin_buffer_v2(
	void *g, unsigned long addr, size_t size, uint32_t flags, uintptr_t *handle)
{
	struct ibv_mr *mr = add_memory(g, (void *)addr, size, flags);

	*handle = (uintptr_t)mr;
	return mr ? 0 : errno;
}

EXPORT int gdr_pin_buffer(
	void *g, unsigned long addr, size_t size, uint64_t token, uint32_t space, uintptr_t *handle)
{
	struct ibv_mr *mr = add_memory(g, (void *)addr, size, 0);

	(void)token, (void)space;
	*handle = (uintptr_t)mr;
	return mr ? 0 : errno;
}

EXPORT int gdr_unpin_buffer(void *g, uintptr_t handle)
{
	(void)g;
	return ibv_dereg_mr((struct ibv_mr *)handle);
}
