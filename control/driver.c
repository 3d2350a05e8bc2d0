// SPDX-License-Identifier: BSD-2-Clause
#include <dlfcn.h>
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

const char *lien_driver_error(const struct lien_driver *driver, CUresult result)
{
	const char *name = NULL;

	driver->cuGetErrorName(result, &name);
	return name ? name : "unknown CUDA error";
}
