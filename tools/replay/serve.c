// SPDX-License-Identifier: BSD-2-Clause
/* What a worker does: its script, then the parent's commands. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tools/replay/worker.h"

#define BUFFER_BYTES (8u << 20)

/* Limit for a parent to send the script: it is busy starting others. */
#define START_TIMEOUT_MS 60000

static int prepare(struct lien_replay_worker *w)
{
	const char *problem = lien_replay_driver_load();
	CUresult result;
	int device, err;

	if (problem)
		return lien_replay_wrong(
			w, "no CUDA driver: %s: without a GPU, use --software", problem);
	w->nccl = w->image->nccl && lien_replay_nccl_load();
	result = lien_replay_driver.cuInit(0);
	if (result != CUDA_SUCCESS)
		return lien_replay_wrong(w, "cuInit: %s", lien_replay_error_name(result));
	result = lien_replay_driver.cuDeviceGetCount(&w->devices);
	if (result != CUDA_SUCCESS || w->devices < 1)
		return lien_replay_wrong(
			w, "the CUDA driver has no device: %s", lien_replay_error_name(result));
	for (device = 0; device < LIEN_REPLAY_DEVICES_MAX; device++) {
		if (!(w->image->devices >> device & 1))
			continue;
		err = lien_replay_context(w, lien_replay_device(w, device));
		if (err)
			return err;
	}
	return lien_replay_context(w, lien_replay_device(w, w->image->home));
}

static int make_calls(struct lien_replay_worker *w)
{
	uint64_t i;
	int err;

	for (i = 0; i < w->image->op_count; i++) {
		err = lien_replay_issue(w, &w->ops[i]);
		if (!err)
			err = lien_replay_progress(w);
		if (err)
			return err;
		atomic_store(&w->image->calls, i + 1);
	}
	return 0;
}

/* Copies from pageable memory may still be in progress when they return. */
static int drain(struct lien_replay_worker *w)
{
	CUresult result;
	int device, err;

	for (device = 0; device < LIEN_REPLAY_DEVICES_MAX; device++) {
		if (!w->contexts[device])
			continue;
		err = lien_replay_context(w, device);
		if (err)
			return err;
		result = lien_replay_driver.cuCtxSynchronize();
		if (result != CUDA_SUCCESS)
			return lien_replay_wrong(
				w, "cuCtxSynchronize: %s", lien_replay_error_name(result));
	}
	return 0;
}

static int say_done(struct lien_replay_worker *w)
{
	struct lien_replay_message message = {.say = LIEN_SAY_DONE};
	struct lien_replay_mapping *mapping;
	int err;

	err = drain(w);
	if (err)
		return err;
	message.done.calls = atomic_load(&w->image->calls);
	message.done.devices = w->devices;
	message.done.direct = w->image->nccl && !w->nccl;
	TAILQ_FOREACH (mapping, &w->space.mappings, order) {
		message.done.mappings++;
		message.done.bytes += mapping->bytes;
		message.done.unverified += lien_replay_verifiable(w, mapping) < mapping->bytes;
	}
	return lien_replay_send(w->sock, &message, -1, w->image->timeout_ms);
}

static int verify(struct lien_replay_worker *w)
{
	struct lien_replay_message message = {.say = LIEN_SAY_CHECKED};
	int err = lien_replay_verify(w, &message.checked);

	return err ? err : lien_replay_send(w->sock, &message, -1, w->image->timeout_ms);
}

/* Between commands a worker is idle, like a rank that waits for work. */
static int serve(struct lien_replay_worker *w)
{
	struct lien_replay_message message;
	int fd, err;

	for (;;) {
		err = lien_replay_receive(w->sock, &message, &fd, -1);
		if (err)
			return err;
		if (fd >= 0)
			close(fd);
		switch (message.say) {
		case LIEN_SAY_VERIFY:
			err = verify(w);
			break;
		case LIEN_SAY_CHANGE:
			err = lien_replay_change(w, message.change);
			if (!err)
				err = say_done(w);
			break;
		case LIEN_SAY_FREE:
			err = lien_replay_unwind(w);
			if (!err)
				err = say_done(w);
			break;
		default:
			return 0;
		}
		if (err)
			return err;
	}
}

static int run(struct lien_replay_worker *w)
{
	struct lien_replay_message message;
	int fd, err;

	err = lien_replay_receive(w->sock, &message, &fd, START_TIMEOUT_MS);
	if (err)
		return err;
	err = message.say == LIEN_SAY_START ? lien_replay_image_open(fd, &w->image) : -EPROTO;
	if (fd >= 0)
		close(fd);
	if (err)
		return err;
	w->allocations = lien_replay_image_allocations(w->image);
	w->ops = lien_replay_image_ops(w->image);
	w->written = calloc(w->image->allocation_count + 1, sizeof(*w->written));
	w->buffer = malloc(BUFFER_BYTES);
	if (!w->written || !w->buffer)
		return -ENOMEM;
	err = prepare(w);
	if (!err)
		err = make_calls(w);
	if (!err)
		err = say_done(w);
	return err ? err : serve(w);
}

int lien_replay_worker_main(int number, int sock)
{
	struct lien_replay_message message = {.say = LIEN_SAY_FAILED};
	struct lien_replay_worker w = {.sock = sock, .current = -1};
	char name[16];
	int err;

	/* execve of /proc/self/exe leaves "exe", which is meaningless in a process list. */
	snprintf(name, sizeof(name), "replay/%d", number);
	prctl(PR_SET_NAME, name);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	lien_replay_names_init(&w.names);
	lien_replay_space_init(&w.space);
	err = run(&w);
	if (err && err != -ECANCELED && err != -EPIPE) {
		if (err != -EIO)
			lien_replay_wrong(&w, "%s", strerror(-err));
		memcpy(message.text, w.text, sizeof(message.text));
		lien_replay_send(sock, &message, -1, 1000);
	}
	lien_replay_names_clear(&w.names);
	lien_replay_space_clear(&w.space);
	lien_replay_image_close(w.image);
	free(w.written);
	free(w.buffer);
	return err ? EXIT_FAILURE : EXIT_SUCCESS;
}
