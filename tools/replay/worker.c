// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "tools/replay/worker.h"

int lien_replay_wrong(struct lien_replay_worker *w, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(w->text, sizeof(w->text), format, args);
	va_end(args);
	return -EIO;
}

int lien_replay_progress(struct lien_replay_worker *w)
{
	atomic_fetch_add(&w->image->position, 1);
	return atomic_load(&w->image->stop) ? -ECANCELED : 0;
}

CUresult lien_replay_call(
	struct lien_replay_worker *w, uint32_t flags, void *fn, const long args[6])
{
	long (*call)(long, long, long, long, long, long) = (__typeof__(call))fn;

	if (flags & LIEN_OP_NCCL && w->nccl)
		return (CUresult)lien_replay_nccl.call(
			fn, args[0], args[1], args[2], args[3], args[4], args[5]);
	return (CUresult)call(args[0], args[1], args[2], args[3], args[4], args[5]);
}

int lien_replay_device(const struct lien_replay_worker *w, int recorded)
{
	return recorded < 0 ? recorded : recorded % w->devices;
}

int lien_replay_context(struct lien_replay_worker *w, int device)
{
	CUresult result = CUDA_SUCCESS;
	CUdevice handle;

	if (device == w->current)
		return 0;
	if (device < 0 || device >= LIEN_REPLAY_DEVICES_MAX)
		return lien_replay_wrong(w, "device %d: no such device", device);
	if (!w->contexts[device]) {
		result = lien_replay_driver.cuDeviceGet(&handle, device);
		if (result == CUDA_SUCCESS)
			result = lien_replay_driver.cuDevicePrimaryCtxRetain(
				&w->contexts[device], handle);
	}
	if (result == CUDA_SUCCESS)
		result = lien_replay_driver.cuCtxSetCurrent(w->contexts[device]);
	if (result != CUDA_SUCCESS)
		return lien_replay_wrong(w, "primary context of device %d: %s", device,
			lien_replay_error_name(result));
	w->current = device;
	return 0;
}
