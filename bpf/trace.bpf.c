// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Traces the CUDA driver, its runtime and NCCL. Two programs serve all probes: the probe's cookie
 * says which call it is (include/lien/calls.h).
 *
 * The verifier checks global functions once, for any arguments, and static ones again for each path
 * that leads to them. So functions that are large or called from several places are not static.
 */
#define LIEN_BPF
#include "control.h"
/* Before nccl.h: the order of the maps is part of what an agent that takes over compares
 * (loader/probes/keep.c). */
#include "sharing.h"
#include "nccl.h"
#include "lifecycle.h"
#include "iterators.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* --- the driver's memory calls ---------------------------------------------------------------- */

/* CUmemAllocationProp in the caller's memory. */
struct user_prop {
	__u32 type, handle_types, location_type;
	__s32 location_id;
	__u64 win32;
	__u8 compression, rdma;
	__u16 usage;
	__u8 reserved[4];
};

static __always_inline void read_prop(struct lien_event *event, __u64 from)
{
	struct lien_prop *to = &event->create.prop;
	struct user_prop prop;

	read_user(event, &prop, sizeof(prop), from);
	to->type = prop.type;
	to->handle_types = prop.handle_types;
	to->location_type = prop.location_type;
	to->location_id = prop.location_id;
	to->compression = prop.compression;
	to->rdma = prop.rdma;
	to->usage = prop.usage;
}

/* CUmemAccessDesc in the caller's memory. */
struct user_access {
	__u32 location_type;
	__s32 location_id;
	__u32 flags;
};

static __always_inline __u32 read_access(struct lien_event *event, __u64 from, __u64 n)
{
	struct user_access access;
	__u32 i;

	if (n > LIEN_ACCESS_MAX) {
		n = LIEN_ACCESS_MAX;
		event->flags |= LIEN_EVENT_PARTIAL;
	}
	event->access.count = n;
#pragma clang loop unroll(disable)
	for (i = 0; i < LIEN_ACCESS_MAX; i++) {
		if (i >= n)
			break;
		read_user(event, &access, sizeof(access), from + i * sizeof(access));
		event->access.access[i].location_type = access.location_type;
		event->access.access[i].location_id = access.location_id;
		event->access.access[i].flags = access.flags;
	}
	return LIEN_EVENT_SIZE(access) - (LIEN_ACCESS_MAX - (n & 31)) * sizeof(struct lien_access);
}

/* Calls that allocate memory and its address together. */
static __always_inline __u32 alloc_body(
	struct thread *thread, struct lien_event *event, const struct frame *frame)
{
	event->alloc.va = frame->call == LIEN_CALL_CU_HOST_REGISTER ||
					  frame->call == LIEN_CALL_CU_HOST_REGISTER_OLDER
				  ? frame->arg[0]
				  : read_user_u64(event, frame->arg[0]);
	event->alloc.bytes = frame->arg[1];
	event->alloc.context = context_of(thread);
	event->alloc.device = device_of(thread);
	switch (frame->call) {
	case LIEN_CALL_CU_MEM_ALLOC_MANAGED:
	case LIEN_CALL_CU_HOST_ALLOC:
		event->alloc.flags = frame->arg[2];
		break;
	case LIEN_CALL_CU_MEM_ALLOC_FROM_POOL:
	case LIEN_CALL_CU_MEM_ALLOC_FROM_POOL_PTSZ:
		event->alloc.pool = frame->arg[2];
		break;
	case LIEN_CALL_CU_MEM_ALLOC_PITCH:
		/* (address *, pitch *, width, height, element) */
		event->alloc.bytes = read_user_u64(event, frame->arg[1]) * frame->arg[3];
		break;
	case LIEN_CALL_CU_HOST_REGISTER:
	case LIEN_CALL_CU_HOST_REGISTER_OLDER:
		event->alloc.flags = frame->arg[2];
		event->alloc.device = -1;
		break;
	}
	return LIEN_EVENT_SIZE(alloc);
}

/* Calls with a range of addresses, or with its first address. */
static __always_inline __u32 range_body(struct lien_event *event, const struct frame *frame)
{
	event->range.va = frame->arg[0];
	if (frame->call == LIEN_CALL_CU_MEM_ADDRESS_FREE || frame->call == LIEN_CALL_CU_MEM_UNMAP)
		event->range.bytes = frame->arg[1];
	return LIEN_EVENT_SIZE(range);
}

/* --- all calls -------------------------------------------------------------------------------- */

static const __u8 kinds[LIEN_CALL_MAX] = {
#define KIND(name, number, library, symbol, flags, kind) [number] = LIEN_KIND_##kind,
	LIEN_CALLS(KIND)
#undef KIND
};

/* Fills the body of a returned call from the arguments kept at entry and the output in the caller's
 * memory. Returns the record's size, 0 for a call without a record. */
static __always_inline __u32 body(struct thread *thread, struct lien_event *event,
	const struct frame *frame, const struct given *given, __u64 returned)
{
	/* Each kind has its case: the compiler reports missing ones. */
	switch ((enum lien_kind)(frame->call < LIEN_CALL_MAX ? kinds[frame->call] : 0)) {
	case LIEN_KIND_none:
	case LIEN_KIND_init: /* the process record already tells this */
	case LIEN_KIND_COUNT:
		return 0;
	case LIEN_KIND_holds:
		/* Nobody knows whether they return a pointer or an error: any call counts. */
		if (frame->call == LIEN_CALL_RDMA_UNKNOWN)
			event->result = 0;
		return LIEN_EVENT_HEADER;
	case LIEN_KIND_device_comm:
		return LIEN_EVENT_HEADER;
	case LIEN_KIND_create:
		event->create.handle = read_user_u64(event, frame->arg[0]);
		event->create.bytes = frame->arg[1];
		read_prop(event, frame->arg[2]);
		return LIEN_EVENT_SIZE(create);
	case LIEN_KIND_release:
		event->release.handle = frame->arg[0];
		return LIEN_EVENT_SIZE(release);
	case LIEN_KIND_retain:
		event->retain.handle = read_user_u64(event, frame->arg[0]);
		event->retain.va = frame->arg[1];
		return LIEN_EVENT_SIZE(retain);
	case LIEN_KIND_reserve:
		event->reserve.va = read_user_u64(event, frame->arg[0]);
		event->reserve.bytes = frame->arg[1];
		event->reserve.align = frame->arg[2];
		return LIEN_EVENT_SIZE(reserve);
	case LIEN_KIND_free:
	case LIEN_KIND_free_host:
	case LIEN_KIND_unregister_host:
	case LIEN_KIND_ipc_close:
	case LIEN_KIND_address_free:
	case LIEN_KIND_unmap:
		return range_body(event, frame);
	case LIEN_KIND_map:
		event->map.va = frame->arg[0];
		event->map.bytes = frame->arg[1];
		event->map.offset = frame->arg[2];
		event->map.handle = frame->arg[3];
		return LIEN_EVENT_SIZE(map);
	case LIEN_KIND_access:
		event->access.va = frame->arg[0];
		event->access.bytes = frame->arg[1];
		return read_access(event, frame->arg[2], frame->arg[3]);
	case LIEN_KIND_export:
		return export_body(thread, event, frame);
	case LIEN_KIND_import:
		return import_body(event, frame, given);
	case LIEN_KIND_alloc:
	case LIEN_KIND_alloc_pitch:
	case LIEN_KIND_alloc_managed:
	case LIEN_KIND_alloc_async:
	case LIEN_KIND_alloc_from_pool:
	case LIEN_KIND_alloc_host:
	case LIEN_KIND_register_host:
		return alloc_body(thread, event, frame);
	case LIEN_KIND_pool_create:
	case LIEN_KIND_pool_destroy:
	case LIEN_KIND_pool_share:
	case LIEN_KIND_pool_import:
		return pool_body(thread, event, frame);
	case LIEN_KIND_key_export:
	case LIEN_KIND_key_import:
		if (frame->call == LIEN_CALL_CU_IPC_OPEN)
			event->key.context = context_of(thread);
		return key_body(event, frame, given);
	case LIEN_KIND_multicast_create:
	case LIEN_KIND_multicast_device:
	case LIEN_KIND_multicast_bind:
	case LIEN_KIND_multicast_unbind:
		return multicast_body(event, frame);
	case LIEN_KIND_range_handle:
		event->range_handle.va = frame->arg[1];
		event->range_handle.bytes = frame->arg[2];
		event->range_handle.handle_type = frame->arg[3];
		event->range_handle.fd = -1;
		if (!event->result)
			read_user(event, &event->range_handle.fd, sizeof(__s32), frame->arg[0]);
		return LIEN_EVENT_SIZE(range_handle);
	case LIEN_KIND_context:
		return context_body(thread, event, frame);
	case LIEN_KIND_context_destroy:
		event->context.context = frame->arg[0];
		if (event->t_return && !event->result)
			context_destroyed(thread, frame->arg[0]);
		return LIEN_EVENT_SIZE(context);
	case LIEN_KIND_capture_begin:
	case LIEN_KIND_capture_end:
	case LIEN_KIND_stream_destroy:
		event->capture.stream = frame->arg[0];
		return LIEN_EVENT_SIZE(capture);
	case LIEN_KIND_comm_init:
	case LIEN_KIND_comm_split:
	case LIEN_KIND_comm_shrink:
		return comm_body(thread, event, frame, given);
	case LIEN_KIND_comm_finalize:
	case LIEN_KIND_comm_end:
		event->comm_end.comm = frame->arg[0];
		return LIEN_EVENT_SIZE(comm_end);
	case LIEN_KIND_register_mr:
		return pinned_body(event, frame, returned);
	case LIEN_KIND_register:
	case LIEN_KIND_deregister:
	case LIEN_KIND_deregister_mr:
		return registration_body(event, frame);
	}
	return 0;
}

static __always_inline int makes_memory(__u32 call)
{
	__u32 kind = call < LIEN_CALL_MAX ? kinds[call] : 0;

	return LIEN_KIND_MAKES_MEMORY(kind);
}

/* Finds the place and size of a call's input; returns 0 for calls whose input is not kept. */
static __always_inline __u32 given_at(const struct frame *frame, __u64 *from)
{
	switch (frame->call) {
	case LIEN_CALL_NCCL_INIT_RANK:
	case LIEN_CALL_NCCL_INIT_RANK_CONFIG:
		*from = frame->sp + 8;
		return 128;
	case LIEN_CALL_NCCL_INIT_RANK_SCALABLE:
		*from = frame->arg[4];
		return 128;
	case LIEN_CALL_NCCL_SHRINK:
		*from = frame->arg[1];
		return frame->arg[2] < 32 ? (__u32)frame->arg[2] * 4 : 128;
	case LIEN_CALL_CU_IPC_OPEN:
		*from = frame->sp + 8;
		return LIEN_KEY_BYTES;
	case LIEN_CALL_CU_POOL_IMPORT_POINTER:
		*from = frame->arg[2];
		return LIEN_KEY_BYTES;
	case LIEN_CALL_CU_MEM_IMPORT:
		*from = frame->arg[1];
		return (__u32)frame->arg[2] == HANDLE_FABRIC ? LIEN_KEY_BYTES : 0;
	}
	return 0;
}

/* Returns the first place that no outer call has taken; GIVEN: none. */
static __always_inline __u32 given_free(const struct thread *thread, __u32 depth)
{
	__u32 taken = 0, i;

	for (i = 0; i < FRAMES; i++)
		if (i < depth && thread->frame[i].given)
			taken++;
	return taken;
}

/* Not inlined, so that the verifier sees the bounded size. */
static __noinline int given_read(struct given *to, __u32 size, __u64 from)
{
	return size > sizeof(*to) ? -1 : bpf_probe_read_user(to, size, (void *)from);
}

static __always_inline void given_keep(struct thread *thread, struct frame *frame, __u32 depth)
{
	__u32 at = given_free(thread, depth), size;
	__u64 from = 0;

	size = given_at(frame, &from);
	if (size && at < GIVEN && !given_read(&thread->given[at & (GIVEN - 1)], size, from))
		frame->given = at + 1;
}

/* Reports the call whose frame is at `depth`. `result`: its return value. */
__noinline int emit_call(
	struct thread *thread, __u32 depth, __u64 t_return, __u64 returned, __u32 flags)
{
	const struct given *given = 0;
	struct lien_event *event;
	struct frame *frame;
	__u32 size;

	if (!thread)
		return 0;
	frame = &thread->frame[depth & (FRAMES - 1)];
	event = event_init(thread, frame->call);
	event->flags = flags | (frame->control ? LIEN_EVENT_CONTROL : 0) |
		       (frame->translated ? LIEN_EVENT_TRANSLATED : 0);
	event->t_entry = frame->t_entry;
	event->t_return = t_return;
	event->result = (__s32)returned;
	event->outer = thread->frame[0].call;
	event->caller = thread->frame[0].caller;
	scope_fill(event, thread);
	if (frame->call == LIEN_CALL_NCCL_INIT_ALL) {
		emit_all(thread, event, frame);
		return 0;
	}
	if (frame->given)
		given = &thread->given[(frame->given - 1) & (GIVEN - 1)];
	size = body(thread, event, frame, given, returned);
	if (size && !flags && makes_memory(frame->call) && !frame->control)
		size = tag_add(thread, event, size);
	/* The control library borrows the application's contexts. */
	if (frame->control && frame->call >= LIEN_CALL_CU_CONTEXT_CREATE &&
		frame->call <= LIEN_CALL_CU_CONTEXT_DESTROY)
		size = 0;
	/* What it allocates by these is no memory that could be moved (control/plain/context.c). */
	if (frame->control &&
		(frame->call == LIEN_CALL_CU_MEM_ALLOC || frame->call == LIEN_CALL_CU_MEM_FREE))
		size = 0;
	if (size && !unmade_keep(thread, frame))
		emit(event, size, thread->account);
	return 0;
}

/* Returns true for the second hit of one call, by another attachment to the same file. */
static __always_inline int quick_again(struct thread *thread, __u64 sp, __u64 cookie)
{
	if (thread->quick_sp == sp && thread->quick_call == LIEN_COOKIE_CALL(cookie) &&
		thread->quick_attachment != LIEN_COOKIE_ATTACHMENT(cookie)) {
		thread->quick_sp = 0;
		return 1;
	}
	thread->quick_sp = sp;
	thread->quick_call = LIEN_COOKIE_CALL(cookie);
	thread->quick_attachment = LIEN_COOKIE_ATTACHMENT(cookie);
	return 0;
}

/* Pushes a frame for a call. Returns its depth, or FRAMES if there is none: the call already has
 * one through another attachment, or is nested too deeply. */
__noinline int frame_push(struct thread *thread, const struct arguments *arguments, __u64 cookie)
{
	struct frame *frame;
	__u64 sp, caller = 0;
	__u32 depth;

	if (!thread || !arguments)
		return FRAMES;
	sp = arguments->sp;
	depth = frames_left(thread, sp);
	bpf_probe_read_user(&caller, sizeof(caller), (void *)sp);
	if (depth && depth <= FRAMES) {
		frame = &thread->frame[(depth - 1) & (FRAMES - 1)];
		if (frame->sp == sp && frame->call == LIEN_COOKIE_CALL(cookie) &&
			frame->attachment != LIEN_COOKIE_ATTACHMENT(cookie))
			return FRAMES;
		/* Not a tail jump from the call above, so that call was left, too. */
		if (frame->sp == sp && caller != trampoline())
			depth = frames_left(thread, sp + 1);
	}
	if (depth >= FRAMES) {
		if (!(LIEN_COOKIE_FLAGS(cookie) & LIEN_CALL_FRAME))
			count_lost(thread->pid);
		return FRAMES;
	}
	frame = &thread->frame[depth & (FRAMES - 1)];
	__builtin_memset(frame, 0, sizeof(*frame));
	frame->sp = sp;
	frame->t_entry = bpf_ktime_get_ns();
	frame->call = LIEN_COOKIE_CALL(cookie);
	frame->flags = LIEN_COOKIE_FLAGS(cookie);
	frame->attachment = LIEN_COOKIE_ATTACHMENT(cookie);
	__builtin_memcpy(frame->arg, arguments->arg, sizeof(frame->arg));
	frame->caller = caller;
	thread->depth = depth + 1;
	return depth;
}

/* The most functions of the control library between the application and the driver
 * (control/driver/translate.h). */
#define TRANSLATE_FRAMES 6

/* Determines the caller: the control library for itself, the control library for the application,
 * or the application. Starts the control library's thread if it waits for a call. `bp`: the
 * caller's frame pointer. */
__noinline int frame_caller(struct thread *thread, __u32 depth, __u64 bp)
{
	struct lien_probe_control *control;
	struct frame *frame;
	__u32 i;

	if (!thread)
		return 0;
	frame = &thread->frame[depth & (FRAMES - 1)];
	control = control_of(thread->pid);
	if (!control)
		return 0;
	/* The control library makes a call for the application, which called the first of its
	 * frames. */
	for (i = 0; i < TRANSLATE_FRAMES; i++) {
		if (frame->caller < control->translate || frame->caller >= control->translate_end)
			break;
		bpf_probe_read_user(&frame->caller, sizeof(frame->caller), (void *)(bp + 8));
		bpf_probe_read_user(&bp, sizeof(bp), (void *)bp);
		frame->translated = 1;
	}
	frame->control = frame->caller >= control->text && frame->caller < control->text_end;
	/* Not on cuInit: a program may only check for a GPU before it forks. */
	if (control->wake && !frame->control &&
		(control->wake == LIEN_PROBE_WAKE_ANY || !(frame->flags & LIEN_CALL_FIRST)))
		wake(control);
	return 0;
}

/* Records or reports a call at its entry. The arguments' memory may change while the call runs, so
 * all that is needed of it is read now. */
__noinline int frame_begin(struct thread *thread, __u32 depth)
{
	struct frame *frame;
	__u64 scope;

	if (!thread || depth >= FRAMES)
		return 0;
	frame = &thread->frame[depth & (FRAMES - 1)];
	if ((frame->call == LIEN_CALL_CU_MEM_IMPORT || frame->call == LIEN_CALL_CU_POOL_IMPORT) &&
		(__u32)frame->arg[2] == HANDLE_FD)
		frame->share = export_find((__s32)frame->arg[1]);
	given_keep(thread, frame, depth);
	scope = scope_of(frame);
	if (frame->call == LIEN_CALL_NCCL_INIT_RANK_CONFIG)
		note_config(thread, frame->arg[3]);
	else if (frame->call == LIEN_CALL_NCCL_INIT_RANK_SCALABLE)
		note_config(thread, frame->arg[5]);
	else if (frame->call == LIEN_CALL_NCCL_SPLIT || frame->call == LIEN_CALL_NCCL_SHRINK)
		note_config(thread, frame->arg[4]);
	if (scope) {
		scope_enter(thread, scope);
		unmade_report(thread, scope & LIEN_SCOPE_INIT ? frame->arg[0] : scope, 0);
		if (scope & LIEN_SCOPE_INIT)
			unmade_forget(thread->pid, made_at(frame));
	}
	if (frame->call == LIEN_CALL_NCCL_DESTROY || frame->call == LIEN_CALL_NCCL_ABORT)
		traffic_end(thread, frame->arg[0]);
	if (frame->flags & LIEN_CALL_RELEASES)
		emit_call(thread, depth, 0, 0, LIEN_EVENT_ENTRY);
	return 0;
}

SEC("uprobe")
int lien_entry(struct pt_regs *ctx)
{
	struct arguments arguments = {
		.arg = {ctx->di, ctx->si, ctx->dx, ctx->cx, ctx->r8, ctx->r9}, .sp = ctx->sp};
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 call = LIEN_COOKIE_CALL(cookie), depth;
	struct thread *thread = thread_get();

	if (!thread)
		return 0;
	/* Programs that do not use CUDA register memory with network cards, too. */
	if (call >= LIEN_CALL_IBV_REG_MR && call <= LIEN_CALL_RDMA_UNKNOWN && !process_of(thread))
		return 0;
	if (LIEN_COOKIE_FLAGS(cookie) & LIEN_CALL_QUICK) {
		if (quick_again(thread, arguments.sp, cookie))
			return 0;
		if (LIEN_COOKIE_FLAGS(cookie) & LIEN_CALL_CONTEXT)
			context_call(thread, &arguments, call);
		else
			count_traffic(thread, &arguments, call);
		if (LIEN_CALL_IS_TRAFFIC(call))
			thread->t_counted = bpf_ktime_get_ns();
		return 0;
	}
	if (call < LIEN_CALL_CUDA_MALLOC && !thread->announced)
		announce(thread, LIEN_COOKIE_FLAGS(cookie) & LIEN_CALL_FIRST ? 1 : 0);
	depth = frame_push(thread, &arguments, cookie);
	if (depth >= FRAMES)
		return 0;
	frame_caller(thread, depth, ctx->bp);
	frame_begin(thread, depth);
	return 0;
}

SEC("uprobe")
int lien_return(struct pt_regs *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx), sp = ctx->sp - 8;
	__u32 ktid = (__u32)bpf_get_current_pid_tgid();
	struct thread *thread = bpf_map_lookup_elem(&threads, &ktid);
	struct frame *frame;
	__u32 depth;

	if (!thread)
		return 0;
	depth = frames_left(thread, sp);
	thread->depth = depth;
	if (!depth || depth > FRAMES)
		return 0;
	depth--;
	frame = &thread->frame[depth & (FRAMES - 1)];
	if (frame->sp != sp || frame->call != LIEN_COOKIE_CALL(cookie) ||
		frame->attachment != LIEN_COOKIE_ATTACHMENT(cookie))
		return 0;
	if (LIEN_CALL_IS_NCCL(frame->call))
		note_progress(thread, ctx->ax);
	if (!(frame->flags & LIEN_CALL_FRAME))
		emit_call(thread, depth, bpf_ktime_get_ns(), ctx->ax, 0);
	else if (frame->call == LIEN_CALL_NCCL_GROUP_END)
		unmade_report(thread, 0, (__s32)ctx->ax);
	thread->depth = depth;
	return 0;
}
