// SPDX-License-Identifier: BSD-2-Clause
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/driver/driver.h"
#include "control/driver/genuine.h"
#include "control/driver/interpose.h"
#include "control/driver/thread.h"

static const struct lien_driver *found;	 /* stays loaded */
static const struct lien_driver *called; /* may have been unloaded since */
static int keeping LIEN_ZERO_IN_CHILD;	 /* a thread is in lien_driver_keep() */

static const struct {
	const char *name;
	size_t offset;
	int optional;
} functions[] = {
#define FUNCTION_ROW(name) {#name, offsetof(struct lien_driver, name), 0},
	LIEN_DRIVER_NEEDED(FUNCTION_ROW)
#undef FUNCTION_ROW
#define FUNCTION_ROW(name) {#name, offsetof(struct lien_driver, name), 1},
		LIEN_DRIVER_OPTIONAL(FUNCTION_ROW)
#undef FUNCTION_ROW
};

/* A `library` of NULL: searches without the loader's lock. */
static void *symbol_in(void *library, const char *name)
{
	return library ? lien_genuine_dlsym(library, name) : lien_driver_symbol(name);
}

static struct lien_driver *allocate(void)
{
	return malloc(sizeof(struct lien_driver) +
		      (__stop_lien_real_names - __start_lien_real_names) * sizeof(void *));
}

/* Returns NULL, or the function that the library lacks. */
static const char *fill(struct lien_driver *driver, void *library)
{
	const size_t count = __stop_lien_real_names - __start_lien_real_names;
	void *symbol;
	size_t i;

	for (i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		symbol = symbol_in(library, functions[i].name);
		if (!symbol && !functions[i].optional)
			return functions[i].name;
		memcpy((char *)driver + functions[i].offset, &symbol, sizeof(symbol));
	}
	for (i = 0; i < count; i++)
		driver->real[i] = symbol_in(library, __start_lien_real_names[i]);
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
	library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
	if (!library)
		return NULL;
	driver = allocate();
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
	return lien_genuine_of(LIEN_GENUINE_DRIVER, name);
}

void lien_driver_keep(void)
{
	const char *missing;

	if (!lien_driver_found() && lien_driver_symbol("cuGetErrorName"))
		lien_driver_find(&missing);
}

static void *keep(void *arg)
{
	lien_driver_keep();
	__atomic_store_n(&keeping, 0, __ATOMIC_RELEASE);
	return arg;
}

/* Lets a thread wait for the loader's lock, if necessary, and keep the driver loaded. */
static void keep_later(void)
{
	if (!__atomic_exchange_n(&keeping, 1, __ATOMIC_ACQ_REL) && lien_thread_start(keep, NULL))
		__atomic_store_n(&keeping, 0, __ATOMIC_RELEASE);
}

/* Does not free the functions that it replaces: another thread may be using them. */
static const struct lien_driver *look(const struct lien_driver *before)
{
	struct lien_driver *driver = allocate();

	if (!driver || fill(driver, NULL))
		before = NULL;
	else if (__atomic_compare_exchange_n(
			 &called, &before, driver, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return driver;
	free(driver);
	return before;
}

const struct lien_driver *lien_driver_called(void)
{
	const struct lien_driver *driver = lien_driver_found();

	if (driver)
		return driver;
	driver = __atomic_load_n(&called, __ATOMIC_ACQUIRE);
	if (!driver || driver->cuGetErrorName != lien_driver_symbol("cuGetErrorName"))
		driver = look(driver);
	if (driver)
		keep_later();
	return driver;
}

/* The driver no longer knows any names once the process is ending. */
static const char *known_name(CUresult result)
{
#define NAME(error, value)                                                                         \
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
