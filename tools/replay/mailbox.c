// SPDX-License-Identifier: BSD-2-Clause
/* Passes shares from the worker that exports to those that import. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "tools/replay/job.h"

#include <lien/clock.h>

static int serve(
	struct lien_job *job, struct lien_job_worker *worker, struct lien_replay_share *share)
{
	struct lien_replay_message message = {.say = LIEN_SAY_SHARE};
	int err;

	message.share.number = share->number;
	memcpy(message.share.fabric, share->fabric, sizeof(share->fabric));
	err = lien_replay_send(worker->sock, &message, share->fd, 0);
	if (err == -EPIPE)
		return lien_job_died(job, worker);
	if (err)
		return lien_job_complain(worker, "cannot be sent share %" PRIu64 ": %s",
			share->number, strerror(-err));
	worker->state = LIEN_JOB_BUSY;
	worker->moved = lien_clock_ms();
	/* An open fd keeps the memory alive, so close it as early as possible. */
	if (++share->served == share->imports && share->fd >= 0) {
		close(share->fd);
		share->fd = -1;
	}
	return 0;
}

int lien_job_take_export(struct lien_job *job, const struct lien_replay_message *message, int fd)
{
	struct lien_replay_share *share =
		lien_replay_share_find(&job->script->shares, message->share.number);
	size_t i;
	int err;

	/* A second export under the same number: the first one serves. */
	if (!share || share->arrived) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	share->arrived = true;
	share->fd = fd;
	memcpy(share->fabric, message->share.fabric, sizeof(share->fabric));
	for (i = 0; i < job->count; i++) {
		if (job->workers[i].state != LIEN_JOB_WAITING ||
			job->workers[i].share != share->number)
			continue;
		err = serve(job, &job->workers[i], share);
		if (err)
			return err;
	}
	return 0;
}

int lien_job_take_import(struct lien_job *job, struct lien_job_worker *worker, uint64_t number)
{
	struct lien_replay_share *share = lien_replay_share_find(&job->script->shares, number);

	if (share && share->arrived)
		return serve(job, worker, share);
	worker->state = LIEN_JOB_WAITING;
	worker->share = number;
	worker->moved = lien_clock_ms();
	return 0;
}
