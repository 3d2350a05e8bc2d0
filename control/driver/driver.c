// SPDX-License-Identifier: BSD-2-Clause
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/cuda_errors.h>

#include "control/driver/driver.h"
#include "control/driver/interpose.h"

static const struct lien_driver *found;

static const struct {
	const char *name;
	size_t offset;
	int optional;
} functions[] = {
#define FUNCTION_ROW(name) {#name, offsetof(struct lien_driver, name), 0},
	LIEN_DRIVER_FUNCTIONS(FUNCTION_ROW)
#undef FUNCTION_ROW
#define FUNCTION_ROW(name) {#name, offsetof(struct lien_driver, name), 1},
		LIEN_DRIVER_OPTIONAL(FUNCTION_ROW)
#undef FUNCTION_ROW
};

static void *loaded(void)
{
	return dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
}

/* Returns NULL, or the function that the library lacks. */
static const char *fill(struct lien_driver *driver, void *library)
{
	void *symbol;
	unsigned i;

	for (i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		symbol = lien_genuine_dlsym(library, functions[i].name);
		if (!symbol && !functions[i].optional)
			return functions[i].name;
		memcpy((char *)driver + functions[i].offset, &symbol, sizeof(symbol));
	}
	return NULL;
}

const struct lien_driver *lien_driver_found(void)
{
	return __atomic_load_n(&found, __ATOMIC_ACQUIRE);
}

/* Takes no lock: dlopen() may wait for a thread that loads a library whose constructor calls us.
 * Each thread searches for itself, and the first result is kept. */
const struct lien_driver *lien_driver_find(const char **missing)
{
	const struct lien_driver *first = lien_driver_found();
	struct lien_driver *driver;
	void *library;

	if (first)
		return first;
	*missing = "libcuda.so.1";
	library = loaded();
	if (!library)
		return NULL;
	driver = malloc(sizeof(*driver));
	*missing = driver ? fill(driver, library) : "memory";
	if (!*missing && __atomic_compare_exchange_n(
				 &found, &first, driver, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return driver;
	free(driver);
	dlclose(library);
	return *missing ? NULL : first;
}

void *lien_driver_symbol(const char *name)
{
	void *library = loaded(), *symbol = NULL;

	if (library) {
		symbol = lien_genuine_dlsym(library, name);
		dlclose(library);
	}
	return symbol;
}

/* The driver no longer knows any names once the process is ending. */
static const char *known_name(CUresult result)
{
#define NAME(error)                                                                                \
	case error:                                                                                \
		return #error;
	if (result == CUDA_ERROR_DEINITIALIZED)
		return "the process is ending";
	switch (result) {
		LIEN_CUDA_ERRORS(NAME)
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
