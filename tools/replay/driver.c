// SPDX-License-Identifier: BSD-2-Clause
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/replay/driver.h"

struct lien_replay_driver lien_replay_driver;
struct lien_replay_nccl lien_replay_nccl;

struct symbol {
	const char *name;
	size_t offset; /* of its field */
};

static const struct symbol driver_symbols[] = {
#define SYMBOL(name) {#name, offsetof(struct lien_replay_driver, name)},
	LIEN_REPLAY_DRIVER(SYMBOL)
#undef SYMBOL
		{},
};

static const struct symbol nccl_symbols[] = {
	{"lien_softnccl_call", offsetof(struct lien_replay_nccl, call)},
	{"ncclCommInitRank", offsetof(struct lien_replay_nccl, init_rank)},
	{"ncclCommInitRankConfig", offsetof(struct lien_replay_nccl, init_rank_config)},
	{"ncclCommInitRankScalable", offsetof(struct lien_replay_nccl, init_rank_scalable)},
	{"ncclCommDestroy", offsetof(struct lien_replay_nccl, destroy)},
	{"ncclCommAbort", offsetof(struct lien_replay_nccl, abort)},
	{"ncclCommRegister", offsetof(struct lien_replay_nccl, enroll)},
	{"ncclCommDeregister", offsetof(struct lien_replay_nccl, withdraw)},
	{"ncclCommWindowRegister", offsetof(struct lien_replay_nccl, window_enroll)},
	{"ncclCommWindowDeregister", offsetof(struct lien_replay_nccl, window_withdraw)},
	{},
};

static const char *fill(const char *path, const struct symbol *symbols, void *table)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;

	if (!library)
		return dlerror();
	for (; symbols->name; symbols++) {
		symbol = dlsym(library, symbols->name);
		if (!symbol)
			return dlerror();
		memcpy((char *)table + symbols->offset, &symbol, sizeof(symbol));
	}
	return NULL;
}

const char *lien_replay_driver_load(void)
{
	return fill("libcuda.so.1", driver_symbols, &lien_replay_driver);
}

bool lien_replay_find(const char *file, char *path, size_t room)
{
	static const char *const places[] = {"%s/%s", "%s/../lib/lien/%s"};
	char self[PATH_MAX], *folder;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	unsigned i;

	if (n < 0)
		return false;
	self[n] = '\0';
	folder = dirname(self);
	for (i = 0; i < 2; i++)
		if ((size_t)snprintf(path, room, places[i], folder, file) < room &&
			!access(path, R_OK))
			return true;
	return false;
}

bool lien_replay_nccl_load(void)
{
	struct lien_replay_nccl table = {};
	const char *path = getenv("LIEN_SOFTNCCL");
	char beside[PATH_MAX];

	if (!path || !*path) {
		if (!lien_replay_find("replay/libnccl.so.2", beside, sizeof(beside)))
			return false;
		path = beside;
	}
	if (fill(path, nccl_symbols, &table))
		return false;
	lien_replay_nccl = table;
	return true;
}

const char *lien_replay_error_name(CUresult result)
{
	static char number[32];
	const char *name = NULL;

	if (lien_replay_driver.cuGetErrorName &&
		lien_replay_driver.cuGetErrorName(result, &name) == CUDA_SUCCESS && name)
		return name;
	snprintf(number, sizeof(number), "CUresult %d", result);
	return number;
}
