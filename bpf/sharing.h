/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Exports and the imports that match them. An exported descriptor has another number in the
 * importer, but is the same file in the kernel. A file's address is reused once it is closed, so
 * the match is made here, at the moment of the import, and a new export replaces an older one at
 * that address.
 */
#ifndef LIEN_BPF_SHARING_H
#define LIEN_BPF_SHARING_H

#include "thread.h"

/* For the exports of jobs, plus half as many for those of restores. */
#define EXPORTS_MAX	131072
#define EXPORTS_ALL_MAX (EXPORTS_MAX / 2 * 3)

/* Maps exported files to their exports. */
HASH_MAP(shares, EXPORTS_ALL_MAX, struct lien_probe_share, struct lien_probe_export);

#define MODE_READ_WRITE 3 /* FMODE_READ, FMODE_WRITE */

/* Returns -1 if there is no file. */
static __always_inline int file_key(struct lien_probe_share *key, const struct file *file)
{
	key->file = (__u64)file;
	key->private_data = file ? (__u64)BPF_CORE_READ(file, private_data) : 0;
	key->inode = file ? BPF_CORE_READ(file, f_inode, i_ino) : 0;
	key->device = file ? BPF_CORE_READ(file, f_inode, i_sb, s_dev) : 0;
	key->mode = file ? BPF_CORE_READ(file, f_mode) & MODE_READ_WRITE : 0;
	return file ? 0 : -1;
}

/* Returns how many references there are to a file; 0: it has been closed. */
static __always_inline __u64 references_to(const struct lien_probe_share *key)
{
	const struct file *file = (const struct file *)key->file;
	struct lien_probe_share now = {};
	long count;

	/* The kernel may have given the address to another file, or the page to something else. */
	if (file_key(&now, file) || now.private_data != key->private_data ||
		now.inode != key->inode || now.device != key->device || now.mode != key->mode)
		return 0;
	if (bpf_core_field_exists(file->f_ref))
		count = BPF_CORE_READ(file, f_ref.refcnt.counter) + 1;
	else
		count = BPF_CORE_READ(file, f_count.counter);
	return count > 0 ? count : 0;
}

#define HANDLE_FD     1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
#define HANDLE_FABRIC 8 /* CU_MEM_HANDLE_TYPE_FABRIC */

/* A user's exports rotate through as many slots as the user's share, past those that are still
 * open: nobody can import one that is closed. Exports that the control library makes for a restore
 * are closed soon, and rotate through half as many slots of their own: those of the job may stay
 * open. */
struct export_slot {
	__u64 account;
	__u32 slot, control;
};

struct export
{
	struct lien_probe_share file;
	__u64 number;
};

HASH_MAP(export_slots, EXPORTS_ALL_MAX, struct export_slot, struct export);

__u64 next_share = 0;

static __noinline struct file *file_of_fd(__s64 fd)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *fdt = BPF_CORE_READ(task, files, fdt);
	struct file **table, *file = 0;

	if (fd < 0 || !fdt || fd >= BPF_CORE_READ(fdt, max_fds))
		return 0;
	table = BPF_CORE_READ(fdt, fd);
	bpf_probe_read_kernel(&file, sizeof(file), table + fd);
	return file;
}

/* Is the slot's export known, and still open? If not, it is forgotten. */
static __noinline int is_taken(struct export_slot *key)
{
	struct export *export = bpf_map_lookup_elem(&export_slots, key);
	struct lien_probe_export *known = export ? bpf_map_lookup_elem(&shares, &export->file) : 0;

	if (!known || known->number != export->number)
		return 0;
	if (references_to(&export->file))
		return 1;
	bpf_map_delete_elem(&shares, &export->file);
	return 0;
}

#define SLOTS_TRIED 16

/* Finds a slot for another export of the user: the next one, or, because exports that stay open lie
 * side by side, one of those far behind it. Returns 0, or -1: there is none, or too few. */
static __always_inline int export_slot(struct export_slot *key, __u64 account, __u32 control)
{
	__u32 entries = (control ? EXPORTS_MAX / 2 : EXPORTS_MAX) >> lien_room_shift, next, tried;
	struct account *user = account_get(account);

	if (!user)
		return -1;
	entries = account == ACCOUNT_ROOT ? SHARE_OF_ROOT(entries) : SHARE_OF_USER(entries);
	key->account = account;
	key->control = control;
	next = __sync_fetch_and_add(&user->exports[control & 1], 1);
	for (tried = 0; tried < SLOTS_TRIED; tried++) {
		key->slot = (next + tried * (entries / SLOTS_TRIED + 1)) % entries;
		if (!is_taken(key))
			return 0;
	}
	return -1;
}

/* Returns the number of a new export by that descriptor; 0: it cannot be matched with an import, so
 * its memory stays where it is. */
__noinline __u64 export_add(__u64 account, __s32 fd, __u32 control)
{
	struct lien_probe_export known = {.control = control & 1};
	struct export_slot slot = {};
	struct export export = {};

	if (file_key(&export.file, file_of_fd(fd)) || export_slot(&slot, account, control & 1))
		return 0;
	known.number = export.number = __sync_fetch_and_add(&next_share, 1) + 1;
	if (bpf_map_update_elem(&export_slots, &slot, &export, BPF_ANY) ||
		bpf_map_update_elem(&shares, &export.file, &known, BPF_ANY))
		return 0;
	return export.number;
}

/* Returns the export of a descriptor; 0: none known. */
static __noinline __u64 export_find(__s32 fd)
{
	struct lien_probe_export *known;
	struct lien_probe_share key;

	if (file_key(&key, file_of_fd(fd)))
		return 0;
	known = bpf_map_lookup_elem(&shares, &key);
	return known ? known->number : 0;
}

/* Handles a descriptor that the call has made for other processes. */
static __always_inline __u64 share_of(
	const struct thread *thread, struct lien_event *event, __u64 from, __s32 *fd)
{
	read_user(event, fd, sizeof(*fd), from);
	return event->flags & LIEN_EVENT_PARTIAL
		       ? 0
		       : export_add(thread->account, *fd, !!(event->flags & LIEN_EVENT_CONTROL));
}

/* Returns the size of an export's or import's record: only fabric handles are included. */
#define SHARE_SIZE (LIEN_EVENT_SIZE(share) - LIEN_KEY_BYTES)

static __always_inline __u32 export_body(
	const struct thread *thread, struct lien_event *event, const struct frame *frame)
{
	__s32 fd = -1;

	event->share.handle = frame->arg[1];
	event->share.handle_type = frame->arg[2];
	if (event->share.handle_type == HANDLE_FABRIC && !event->result) {
		event->share.fd = -1;
		read_user(event, event->share.key, LIEN_KEY_BYTES, frame->arg[0]);
		return LIEN_EVENT_SIZE(share);
	}
	if (event->share.handle_type == HANDLE_FD && !event->result)
		event->share.share = share_of(thread, event, frame->arg[0], &fd);
	event->share.fd = fd;
	return SHARE_SIZE;
}

static __always_inline __u32 import_body(
	struct lien_event *event, const struct frame *frame, const struct given *given)
{
	event->share.handle = read_user_u64(event, frame->arg[0]);
	event->share.handle_type = frame->arg[2];
	event->share.fd = -1;
	event->share.share = frame->share;
	if (event->share.handle_type == HANDLE_FABRIC) {
		if (given)
			__builtin_memcpy(event->share.key, given->bytes, LIEN_KEY_BYTES);
		return LIEN_EVENT_SIZE(share);
	}
	if (event->share.handle_type == HANDLE_FD)
		event->share.fd = (__s32)frame->arg[1];
	return SHARE_SIZE;
}

static __always_inline __u32 pool_body(
	const struct thread *thread, struct lien_event *event, const struct frame *frame)
{
	__s32 location[2], fd = -1;

	switch (frame->call) {
	case LIEN_CALL_CU_POOL_CREATE:
		/* CUmemPoolProps: allocType, handleTypes, location { type, id } */
		read_user(event, location, sizeof(location), frame->arg[1] + 8);
		event->pool.pool = read_user_u64(event, frame->arg[0]);
		event->pool.device = location[0] == 1 ? location[1] : -1;
		break;
	case LIEN_CALL_CU_POOL_DESTROY:
		event->pool.pool = frame->arg[0];
		break;
	case LIEN_CALL_CU_POOL_EXPORT:
		event->pool.pool = frame->arg[1];
		event->pool.handle_type = frame->arg[2];
		if (event->pool.handle_type == HANDLE_FD && !event->result)
			event->pool.share = share_of(thread, event, frame->arg[0], &fd);
		event->pool.fd = fd;
		break;
	case LIEN_CALL_CU_POOL_IMPORT:
		event->pool.pool = read_user_u64(event, frame->arg[0]);
		event->pool.handle_type = frame->arg[2];
		event->pool.fd = (__s32)frame->arg[1];
		event->pool.share = frame->share;
		break;
	}
	return LIEN_EVENT_SIZE(pool);
}

/* Memory that is named by 64 bytes. */
static __always_inline __u32 key_body(
	struct lien_event *event, const struct frame *frame, const struct given *given)
{
	switch (frame->call) {
	case LIEN_CALL_CU_IPC_GET:
	case LIEN_CALL_CU_POOL_EXPORT_POINTER:
		event->key.va = frame->arg[1];
		if (!event->result)
			read_user(event, event->key.key, LIEN_KEY_BYTES, frame->arg[0]);
		break;
	case LIEN_CALL_CU_IPC_OPEN:
	case LIEN_CALL_CU_POOL_IMPORT_POINTER:
		event->key.va = read_user_u64(event, frame->arg[0]);
		if (given)
			__builtin_memcpy(event->key.key, given->bytes, LIEN_KEY_BYTES);
		else
			event->flags |= LIEN_EVENT_PARTIAL;
		break;
	}
	return LIEN_EVENT_SIZE(key);
}

static __always_inline __u32 multicast_body(struct lien_event *event, const struct frame *frame)
{
	const __u64 *arg = frame->arg + 1;

	event->multicast.handle = frame->arg[0];
	if (frame->call == LIEN_CALL_CU_MULTICAST_BIND_V2 ||
		frame->call == LIEN_CALL_CU_MULTICAST_BIND_ADDRESS_V2)
		arg++; /* behind the device */
	switch (frame->call) {
	case LIEN_CALL_CU_MULTICAST_CREATE:
		/* CUmulticastObjectProp: numDevices, size */
		event->multicast.handle = read_user_u64(event, frame->arg[0]);
		event->multicast.device = (__s32)read_user_u64(event, frame->arg[1]);
		event->multicast.bytes = read_user_u64(event, frame->arg[1] + 8);
		break;
	case LIEN_CALL_CU_MULTICAST_DEVICE:
		event->multicast.device = (__s32)frame->arg[1];
		break;
	case LIEN_CALL_CU_MULTICAST_BIND:
	case LIEN_CALL_CU_MULTICAST_BIND_V2:
		event->multicast.offset = arg[0];
		event->multicast.memory = arg[1];
		event->multicast.memory_offset = arg[2];
		event->multicast.bytes = arg[3];
		break;
	case LIEN_CALL_CU_MULTICAST_BIND_ADDRESS:
	case LIEN_CALL_CU_MULTICAST_BIND_ADDRESS_V2:
		event->multicast.offset = arg[0];
		event->multicast.memory = arg[1];
		event->multicast.bytes = arg[2];
		break;
	case LIEN_CALL_CU_MULTICAST_UNBIND:
		event->multicast.device = (__s32)frame->arg[1];
		event->multicast.offset = frame->arg[2];
		event->multicast.bytes = frame->arg[3];
		break;
	}
	return LIEN_EVENT_SIZE(multicast);
}

#endif
