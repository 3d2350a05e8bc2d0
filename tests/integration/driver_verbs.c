// SPDX-License-Identifier: BSD-2-Clause
/* Commands of prog_driver: libibverbs.so.1, libmlx5.so.1 and libgdrapi.so.2, each opened at the
 * first command that needs it. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

static void *verbs(const char *name)
{
	void *library = dlopen(!strncmp(name, "ibv", 3)	   ? "libibverbs.so.1"
			       : !strncmp(name, "mlx5", 4) ? "libmlx5.so.1"
							   : "libgdrapi.so.2",
		RTLD_NOW);
	void *found = library ? dlsym(library, name) : NULL;

	if (!found)
		printf("error -1 %s\n", dlerror());
	return found;
}

/* The first members of libibverbs' structures, as the product reads them. */
static struct {
	void *operations[2];
	int kind, transport;
	char name[64];
} device = {.name = "soft_7"};
static struct {
	void *device;
} context = {&device};
static struct {
	void *context;
} pd = {&context};

#define PD	      ((void *)&pd)
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

static void do_ibv_reg_ex(void)
{
	void *of = verbs("ibv_reg_mr_ex"), *mr;
	const uint64_t attributes[] = {arg[1], 0, 2, 0, arg[0], 0, 0};

	if (!of)
		return;
	mr = VERBS(void *, void *, const void *)(PD, attributes);
	say_errno(mr, (uintptr_t)mr);
}

static void do_ibv_rereg(void)
{
	void *of = verbs("ibv_rereg_mr");

	if (of)
		say_errno(!VERBS(int, void *, int, void *, uint64_t, size_t, int)(
				  (void *)(uintptr_t)arg[0], 1, PD, arg[1], arg[2], 1),
			0);
}

static void do_umem_reg(void)
{
	void *of = verbs("mlx5dv_devx_umem_reg"), *umem;

	if (!of)
		return;
	umem = VERBS(void *, void *, uint64_t, size_t, uint32_t)(&context, arg[0], arg[1], 1);
	say_errno(umem, (uintptr_t)umem);
}

static void do_umem_reg_ex(void)
{
	void *of = verbs("mlx5dv_devx_umem_reg_ex"), *umem;
	const uint64_t in[] = {arg[0], arg[1], 1, 0, 0, 0};

	if (!of)
		return;
	umem = VERBS(void *, void *, const void *)(&context, in);
	say_errno(umem, (uintptr_t)umem);
}

static void do_umem_dereg(void)
{
	void *of = verbs("mlx5dv_devx_umem_dereg");

	if (of)
		say_errno(!VERBS(int, void *)((void *)(uintptr_t)arg[0]), 0);
}

static void do_gdr_pin(void)
{
	void *of = verbs("gdr_pin_buffer");
	uint64_t handle = 0;

	if (!of)
		return;
	errno = VERBS(int, void *, uint64_t, size_t, uint64_t, uint32_t, uint64_t *)(
		&context, arg[0], arg[1], 0, 0, &handle);
	say_errno(!errno, handle);
}

static void do_gdr_pin_v2(void)
{
	void *of = verbs("gdr_pin_buffer_v2");
	uint64_t handle = 0;

	if (!of)
		return;
	errno = VERBS(int, void *, uint64_t, size_t, uint32_t, uint64_t *)(
		&context, arg[0], arg[1], 0, &handle);
	say_errno(!errno, handle);
}

static void do_gdr_unpin(void)
{
	void *of = verbs("gdr_unpin_buffer");

	if (of)
		say_errno(!VERBS(int, void *, uint64_t)(&context, arg[0]), 0);
}

const struct command verbs_commands[] = {
	C("ibv-reg", ibv_reg, 2),	    /* ADDRESS BYTES */
	C("ibv-reg-iova", ibv_reg_iova, 3), /* ADDRESS BYTES IOVA */
	C("ibv-reg-iova2", ibv_reg_iova2, 3),
	C("ibv-reg-dmabuf", ibv_reg_dmabuf, 4), /* FD OFFSET BYTES IOVA */
	C("ibv-dereg", ibv_dereg, 1),
	C("ibv-reg-ex", ibv_reg_ex, 2), /* ADDRESS BYTES */
	C("ibv-rereg", ibv_rereg, 3),	/* REGION ADDRESS BYTES */
	C("umem-reg", umem_reg, 2),	/* ADDRESS BYTES */
	C("umem-reg-ex", umem_reg_ex, 2),
	C("umem-dereg", umem_dereg, 1),
	C("gdr-pin", gdr_pin, 2), /* ADDRESS BYTES */
	C("gdr-pin-v2", gdr_pin_v2, 2),
	C("gdr-unpin", gdr_unpin, 1),
	{NULL, NULL, 0},
};
