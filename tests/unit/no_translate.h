/* SPDX-License-Identifier: BSD-2-Clause */
/* Instead of what looks into the process in control/: nobody has cached a driver function
 * (cached.c), passes handles (translate.c), has plain memory (control/plain/), or starts a thread
 * (start.c). */
#ifndef TEST_NO_TRANSLATE_H
#define TEST_NO_TRANSLATE_H

#include <dlfcn.h>

#include <control/driver/cached.h>
#include <control/driver/genuine.h>
#include <control/orders/control.h>
#include <control/driver/translate.h>
#include <control/plain/plain.h>

void *lien_genuine_dlsym(void *handle, const char *name)
{
	return dlsym(handle, name);
}

int lien_genuine_range_of(const char *library, const char *name, struct lien_genuine_range *range)
{
	(void)library, (void)name, (void)range;
	return 0;
}

int lien_cached_replace(char *why, size_t size)
{
	(void)why, (void)size;
	return 0;
}

int lien_cached_none_new(char *why, size_t size)
{
	(void)why, (void)size;
	return 0;
}

void lien_cached_restore(void)
{
}

static int all_handles_wait;

void lien_translate_hold_all(int all)
{
	all_handles_wait = all;
}

int lien_translate_idle(void)
{
	return 1;
}

int lien_translate_wait_idle(void)
{
	return 1;
}

struct lien_control_state lien_control_state = {.agent_fd = -1};

void lien_plain_stop(void)
{
}

void lien_plain_primary_release(const struct lien_driver *driver, CUdevice device)
{
	driver->cuDevicePrimaryCtxRelease_v2(device);
}

int lien_plain_wait_keeps(CUdeviceptr address)
{
	(void)address;
	return 0;
}

#endif
