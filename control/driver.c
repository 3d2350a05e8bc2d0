// SPDX-License-Identifier: BSD-2-Clause
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "control/driver.h"

const struct lien_driver *lien_driver_find(const char **missing)
{
	static struct lien_driver driver;
	static int found;
	struct {
		const char *name;
		void *place;
		int optional;
	} functions[] = {
#define FUNCTION_ROW(name) {#name, &driver.name, 0},
		LIEN_DRIVER_FUNCTIONS(FUNCTION_ROW)
#undef FUNCTION_ROW
#define FUNCTION_ROW(name) {#name, &driver.name, 1},
			LIEN_DRIVER_OPTIONAL(FUNCTION_ROW)
#undef FUNCTION_ROW
	};
	void *library, *symbol;
	unsigned i;

	if (found)
		return &driver;
	library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
	*missing = "libcuda.so.1";
	if (!library)
		return NULL;
	for (i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		*missing = functions[i].name;
		symbol = dlsym(library, functions[i].name);
		if (!symbol && !functions[i].optional)
			return NULL;
		memcpy(functions[i].place, &symbol, sizeof(symbol));
	}
	found = 1;
	return &driver;
}

/* The driver has no names any more once the process is ending. */
static const char *known_name(CUresult result)
{
#define NAME(error)                                                                                \
	case error:                                                                                \
		return #error
	switch (result) {
	case CUDA_ERROR_DEINITIALIZED:
		return "the process is ending";
		NAME(CUDA_ERROR_INVALID_VALUE);
		NAME(CUDA_ERROR_OUT_OF_MEMORY);
		NAME(CUDA_ERROR_NOT_INITIALIZED);
		NAME(CUDA_ERROR_NO_DEVICE);
		NAME(CUDA_ERROR_INVALID_DEVICE);
		NAME(CUDA_ERROR_INVALID_CONTEXT);
		NAME(CUDA_ERROR_MAP_FAILED);
		NAME(CUDA_ERROR_ALREADY_MAPPED);
		NAME(CUDA_ERROR_NOT_MAPPED);
		NAME(CUDA_ERROR_OPERATING_SYSTEM);
		NAME(CUDA_ERROR_INVALID_HANDLE);
		NAME(CUDA_ERROR_ILLEGAL_STATE);
		NAME(CUDA_ERROR_ILLEGAL_ADDRESS);
		NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED);
		NAME(CUDA_ERROR_NOT_PERMITTED);
		NAME(CUDA_ERROR_NOT_SUPPORTED);
		NAME(CUDA_ERROR_UNKNOWN);
	default:
		return NULL;
	}
#undef NAME
}

void lien_driver_error(const struct lien_driver *driver, CUresult result, char *text, size_t size)
{
	const char *name = known_name(result);

	if (!name && driver->cuGetErrorName(result, &name))
		name = NULL;
	if (name)
		snprintf(text, size, "%s", name);
	else
		snprintf(text, size, "CUDA error %d", result);
}
