// SPDX-License-Identifier: BSD-2-Clause
/* Dumps communicators, and the buffers registered with them and with network cards, as events. */
#include <string.h>

#include "agent/graph/dump/dump.h"

static uint64_t comm_address(struct lien_process *process, uint32_t number)
{
	struct lien_comm *comm = number ? lien_process_comm(process, number) : NULL;

	return comm ? comm->address : 0;
}

/*
 * When the call that makes the communicator was entered: NCCL's threads refer to it by that time.
 * 0: not known.
 */
static uint64_t comm_entered(const struct lien_process *process, uint32_t number)
{
	const struct lien_init *init = lien_process_init(process, number);

	return init ? init->scope & ~LIEN_SCOPE_INIT : 0;
}

static int emit_comm(
	struct lien_dump *dump, struct lien_process *process, const struct lien_comm *comm)
{
	struct lien_event event =
		lien_dump_event(process, comm->made_by ? comm->made_by : LIEN_CALL_NCCL_INIT_RANK);
	int err;

	event.flags = LIEN_EVENT_IMPORTED;
	event.t_entry = comm_entered(process, comm->number);
	event.t_return = comm->t_init;
	event.comm.comm = comm->address;
	event.comm.parent = comm_address(process, comm->parent);
	event.comm.rank = comm->rank;
	event.comm.nranks = comm->nranks;
	event.comm.device = comm->device;
	event.comm.key = comm->splits;
	event.comm.excluded = comm->shrinks;
	memcpy(event.comm.id, comm->id, sizeof(event.comm.id));
	err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(comm));
	if (!err && comm->hash) {
		event = lien_dump_event(process, LIEN_CALL_NCCL_INIT_RANK);
		event.flags = LIEN_EVENT_FOUND;
		event.comm.comm = comm->address;
		event.comm.rank = comm->rank;
		event.comm.nranks = comm->nranks;
		event.comm.device = comm->device;
		lien_comm_found_id(event.comm.id, comm->hash, 0, 0);
		err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(comm));
	}
	if (err || !comm->finalized)
		return err;
	event = lien_dump_event(process, LIEN_CALL_NCCL_FINALIZE);
	event.comm_end.comm = comm->address;
	return lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(comm_end));
}

static int emit_split(struct lien_dump *dump, struct lien_process *process,
	const struct lien_split_member *member)
{
	struct lien_event event = lien_dump_event(process, LIEN_CALL_NCCL_SPLIT);

	event.comm.parent = comm_address(process, member->parent);
	if (!event.comm.parent)
		return 0; /* destroyed: its event cannot report the end of a split */
	event.flags = LIEN_EVENT_IMPORTED;
	event.comm.nranks = LIEN_COMM_AWAITED;
	event.comm.comm = comm_address(process, member->number);
	event.comm.color = member->color;
	event.comm.key = member->key;
	event.comm.excluded = member->split->number;
	return lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(comm));
}

/* Emits communicators in the order of their making: parents before the ones split off them. */
int lien_dump_comms(struct lien_dump *dump, struct lien_process *process)
{
	const struct lien_split_member *member;
	struct lien_comm *comm;
	int err = 0;

	RB_FOREACH (comm, lien_comm_number_tree, &process->comm_numbers)
		if (!err)
			err = emit_comm(dump, process, comm);
	LIST_FOREACH (member, &process->splits, of_process)
		if (!err)
			err = emit_split(dump, process, member);
	return err;
}

static int emit_registrations(struct lien_dump *dump, struct lien_process *process,
	struct lien_registration_tree *list, uint64_t comm)
{
	struct lien_registration *registration;
	struct lien_event event;
	int err = 0;

	RB_FOREACH (registration, lien_registration_tree, list) {
		event = lien_dump_event(process, !comm ? LIEN_CALL_IBV_REG_MR
						 : registration->window
							 ? LIEN_CALL_NCCL_WINDOW_REGISTER
							 : LIEN_CALL_NCCL_REGISTER);
		event.reg.comm = comm;
		event.reg.va = registration->va;
		event.reg.bytes = registration->bytes;
		event.reg.handle = registration->handle;
		if (!err)
			err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(reg));
	}
	return err;
}

int lien_dump_registered(struct lien_dump *dump, struct lien_process *process)
{
	struct lien_comm *comm;
	int err = 0;

	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		if (!err)
			err = emit_registrations(
				dump, process, &comm->registrations, comm->address);
	return err ? err : emit_registrations(dump, process, &process->cards, 0);
}
