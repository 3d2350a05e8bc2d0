// SPDX-License-Identifier: BSD-2-Clause
#include "agent/join/eject.h"
#include "agent/core/proc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/join/attach.h"
#include "agent/join/detach.h"
#include "agent/core/worker.h"

#define EJECT_MS 5000

struct eject {
	struct lien_job job;
	uint32_t pid;
	uint64_t start;
	int pidfd, err;
	struct lien_inject_library library;
	struct lien_inject_result result;
	char why[300];
};

/* In the worker's thread. */
static void work(struct lien_job *job)
{
	struct eject *eject = (struct eject *)job;

	eject->err = lien_eject(eject->pid, eject->pidfd, &eject->library, EJECT_MS, &eject->result,
		eject->why, sizeof(eject->why));
}

static void drop(struct lien_job *job)
{
	struct eject *eject = (struct eject *)job;

	if (eject->pidfd >= 0)
		close(eject->pidfd);
	free(eject);
}

/* Nobody is to look for it there any more, and the next agent is to know. */
static void forget_library(struct lien_agent *agent, const struct eject *eject)
{
	struct lien_process *process = lien_graph_process(agent->graph, eject->pid);
	struct lien_tracked *tracked = process ? process->agent : NULL;
	struct lien_event event;

	if (!process || process->start != eject->start || process->ended)
		return;
	event = lien_agent_event_of(eject->pid, eject->start, LIEN_EVENT_LIBRARY);
	event.size = LIEN_EVENT_SIZE(library);
	event.t_entry = event.t_return = 0;
	event.library.start = eject->library.text;
	event.library.length = eject->library.text_end - eject->library.text;
	strcpy(event.library.name, "liblien-control.so");
	lien_agent_event(agent, &event);
	lien_probes_remove_control(agent->probes, eject->pid);
	if (tracked)
		memset(&tracked->place, 0, sizeof(tracked->place));
}

static void done(struct lien_agent *agent, struct lien_job *job)
{
	struct eject *eject = (struct eject *)job;

	if (!eject->err)
		forget_library(agent, eject);
	lien_detach_ejected(agent, eject->pid, eject->start, eject->err, eject->why);
	drop(job);
}

int lien_eject_submit(struct lien_agent *agent, const struct lien_process *process,
	const struct lien_inject_library *library)
{
	struct eject *eject = calloc(1, sizeof(*eject));
	int err = 0;

	if (!eject)
		return -ENOMEM;
	*eject = (struct eject){.job = {.work = work, .done = done, .drop = drop},
		.pid = process->pid,
		.start = process->start,
		.pidfd = syscall(SYS_pidfd_open, process->pid, 0),
		.library = *library};
	if (eject->pidfd < 0 || lien_proc_has_ended(process->pid, process->start))
		err = -ESRCH;
	else
		err = lien_attach_submit(agent, process->uid, &eject->job);
	if (err)
		drop(&eject->job);
	return err;
}
