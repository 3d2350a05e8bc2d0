// SPDX-License-Identifier: BSD-2-Clause
/* Contexts, and each thread's stack of them. */
#include "same.h"

#define DEPTH_MAX 6

/* One time in 20 one that is no device. */
static int device_any(void)
{
	return one_in(20) ? 77 : (int)below(devices);
}

static void create(void)
{
	int device = device_any();
	CUcontext handle = NULL;
	CUresult result;

	if (contexts_made() >= contexts_max || current_depth() >= DEPTH_MAX)
		return;
	switch (below(3)) {
	case 0: {
		LOOK_UP(call, cuCtxCreate_v2);
		say("(%d)", device);
		result = call(&handle, 0, device);
		break;
	}
	case 1: {
		LOOK_UP(call, cuCtxCreate_v3);
		say("(%d)", device);
		result = call(&handle, NULL, 0, 0, device);
		break;
	}
	default: {
		LOOK_UP(call, cuCtxCreate_v4);
		say("(%d)", device);
		result = call(&handle, NULL, 0, device);
	}
	}
	if (say_result(result))
		return;
	current_push(context_add(handle, device));
	say(" %s", context_name(handle));
}

/* No capture is left half in a context that goes. */
static void destroy(void)
{
	struct context *context = context_any();

	if (!context || context->primary || capture.stream || !streams_rest())
		return;
	LOOK_UP(call, cuCtxDestroy_v2, "cuCtxDestroy");
	say("(%s)", context_name(context->handle));
	ipc_close(NULL);
	if (say_result(call(context->handle)))
		return;
	if (current() == context)
		current_pop();
	context_gone(context);
}

static void retain(void)
{
	int device = device_any();
	CUcontext handle = NULL;

	LOOK_UP(call, cuDevicePrimaryCtxRetain);
	say("(%d)", device);
	if (say_result(call(&handle, device)))
		return;
	primary[device].handle = handle;
	primary[device].alive = true;
	primary[device].retained++;
}

/* The pool of a device whose primary context has ended is not looked at any more. */
static void primary_gone(int device)
{
	context_gone(&primary[device]);
	pools_lose(device);
}

/* Programs whose memory is moved have primary contexts only, which do not end. */
static bool lasts(int device)
{
	return known("the agent does not see that a primary context ends") && !contexts_max &&
	       device < devices && primary[device].retained < 2;
}

/* More often than it was retained, too: that is an error. */
static void release(void)
{
	int device = device_any();

	if (capture.stream || lasts(device) || !streams_rest())
		return;
	if (device < devices && primary[device].retained == 1 && !one_in(4))
		return;
	LOOK_UP(call, cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease");
	say("(%d)", device);
	ipc_close(NULL);
	if (device < devices && primary[device].alive)
		if (!say_result(call(device)) && !--primary[device].retained)
			primary_gone(device);
}

static void reset(void)
{
	int device = device_any();

	if (capture.stream || !one_in(4) || !streams_rest())
		return;
	if (known("the agent does not see that a primary context ends") && !contexts_max)
		return;
	LOOK_UP(call, cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset");
	say("(%d)", device);
	ipc_close(NULL);
	if (device < devices && primary[device].alive)
		if (!say_result(call(device)))
			primary_gone(device);
}

static void state(void)
{
	int device = device_any(), active = -1;
	unsigned flags = 0;

	LOOK_UP(call, cuDevicePrimaryCtxGetState);
	say("(%d)", device);
	if (!say_result(call(device, &flags, &active)))
		say(" flags %u active %d", flags, active);
}

static void set(void)
{
	struct context *context = one_in(12) ? NULL : context_any();

	LOOK_UP(call, cuCtxSetCurrent);
	say("(%s)", context_name(context ? context->handle : NULL));
	if (!say_result(call(context ? context->handle : NULL)))
		current_set(context);
}

/* The thread has none: most calls would only say so. */
void context_enter(void)
{
	if (context_any())
		set();
	else
		retain();
}

static void get(void)
{
	CUcontext handle = NULL;

	LOOK_UP(call, cuCtxGetCurrent);
	say("()");
	if (!say_result(call(&handle)))
		say(" %s", context_name(handle));
}

static void push(void)
{
	struct context *context = context_any();

	if (!context || current_depth() >= DEPTH_MAX)
		return;
	LOOK_UP(call, cuCtxPushCurrent_v2, "cuCtxPushCurrent");
	say("(%s)", context_name(context->handle));
	if (!say_result(call(context->handle)))
		current_push(context);
}

static void pop(void)
{
	CUcontext handle = NULL;

	LOOK_UP(call, cuCtxPopCurrent_v2, "cuCtxPopCurrent");
	say("()");
	if (say_result(call(&handle)))
		return;
	say(" %s", context_name(handle));
	current_pop();
}

static void get_device(void)
{
	struct context *context = one_in(3) ? NULL : context_any();
	CUdevice device = -1;
	CUresult result;

	if (one_in(2)) {
		LOOK_UP(call, cuCtxGetDevice);
		say("()");
		result = call(&device);
	} else {
		LOOK_UP(call, cuCtxGetDevice_v2);
		say("(%s)", context_name(context ? context->handle : NULL));
		result = call(&device, context ? context->handle : NULL);
	}
	if (!say_result(result))
		say(" %d", device);
}

static void synchronize(void)
{
	struct context *context = one_in(3) ? NULL : context_any();

	if (one_in(2)) {
		LOOK_UP(call, cuCtxSynchronize);
		say("()");
		say_result(call());
		return;
	}
	LOOK_UP(call, cuCtxSynchronize_v2);
	say("(%s)", context_name(context ? context->handle : NULL));
	say_result(call(context ? context->handle : NULL));
}

static void peers(void)
{
	struct context *context = context_any();

	if (!context)
		return;
	if (one_in(3)) {
		LOOK_UP(call, cuCtxDisablePeerAccess);
		say("(%s)", context_name(context->handle));
		say_result(call(context->handle));
		return;
	}
	LOOK_UP(call, cuCtxEnablePeerAccess);
	say("(%s)", context_name(context->handle));
	say_result(call(context->handle, one_in(20)));
}

const struct op context_ops[] = {
	{create, 6},
	{destroy, 4},
	{retain, 8},
	{release, 8},
	{reset, 3},
	{state, 4},
	{set, 30},
	{get, 6},
	{push, 8},
	{pop, 5},
	{get_device, 6},
	{synchronize, 10},
	{peers, 5},
	{0},
};
