// SPDX-License-Identifier: BSD-2-Clause
/* Commands of prog_driver: libibverbs.so.1, which is opened at the first of them. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

#include "driver.h"

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

const struct command verbs_commands[] = {
	C("ibv-reg", ibv_reg, 2),	    /* ADDRESS BYTES */
	C("ibv-reg-iova", ibv_reg_iova, 3), /* ADDRESS BYTES IOVA */
	C("ibv-reg-iova2", ibv_reg_iova2, 3),
	C("ibv-reg-dmabuf", ibv_reg_dmabuf, 4), /* FD OFFSET BYTES IOVA */
	C("ibv-dereg", ibv_dereg, 1),
	{NULL, NULL, 0},
};
