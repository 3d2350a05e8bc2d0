// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tools/replay/pattern.h"
#include "tools/replay/worker.h"

#define CHUNK_BYTES (8u << 20)

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Makes a context current that can access the mapping. *direct: only the host can. */
static int reach(struct lien_replay_worker *w, const struct lien_replay_mapping *mapping,
	bool writing, bool *direct)
{
	uint64_t devices = writing ? mapping->writable : mapping->readable;
	int device, first = -1;

	*direct = false;
	if (mapping->linear)
		return lien_replay_context(w, lien_replay_device(w, w->image->home));
	for (device = 0; device < 64; device++) {
		if (!(devices >> device & 1))
			continue;
		if (lien_replay_device(w, device) == w->current)
			return 0;
		if (first < 0)
			first = device;
	}
	if (first >= 0)
		return lien_replay_context(w, lien_replay_device(w, first));
	*direct = true;
	return 0;
}

/* Writes [from, to) of the mapping's allocation. */
static int write_pattern(struct lien_replay_worker *w, const struct lien_replay_mapping *mapping,
	uint64_t from, uint64_t to, uint64_t pattern)
{
	uint64_t actual = lien_replay_space_actual(&w->space, mapping->va) - mapping->offset, n;
	CUresult result = CUDA_SUCCESS;
	bool direct;
	int err;

	err = reach(w, mapping, true, &direct);
	for (; !err && from < to; from += n) {
		n = least(to - from, CHUNK_BYTES);
		lien_replay_pattern_fill(w->buffer, pattern, from, n);
		if (direct)
			memcpy((void *)(actual + from), w->buffer, n);
		else
			result = lien_replay_driver.cuMemcpyHtoD_v2(actual + from, w->buffer, n);
		if (result != CUDA_SUCCESS)
			return lien_replay_wrong(w,
				"cuMemcpyHtoD_v2 of %" PRIu64 " bytes to 0x%" PRIx64 ": %s", n,
				actual + from, lien_replay_error_name(result));
		err = lien_replay_progress(w);
	}
	return err;
}

static bool owns(const struct lien_replay_worker *w, const struct lien_replay_mapping *mapping)
{
	return w->allocations[mapping->allocation].owner == w->image->index &&
	       lien_replay_mapping_writable(mapping);
}

int lien_replay_fill(struct lien_replay_worker *w, struct lien_replay_mapping *mapping)
{
	uint64_t *written = &w->written[mapping->allocation];
	uint64_t end = mapping->offset + mapping->bytes;
	int err;

	if (!owns(w, mapping) || mapping->offset > *written || end <= *written)
		return 0;
	err = write_pattern(
		w, mapping, *written, end, lien_replay_pattern(mapping->allocation, w->change));
	if (!err)
		*written = end;
	return err;
}

int lien_replay_change(struct lien_replay_worker *w, uint64_t change)
{
	struct lien_replay_mapping *mapping;
	int err;

	w->change = change;
	TAILQ_FOREACH (mapping, &w->space.mappings, order) {
		if (owns(w, mapping))
			w->written[mapping->allocation] = 0;
	}
	TAILQ_FOREACH (mapping, &w->space.mappings, order) {
		err = lien_replay_fill(w, mapping);
		if (err)
			return err;
	}
	return 0;
}

uint64_t lien_replay_verifiable(
	const struct lien_replay_worker *w, const struct lien_replay_mapping *mapping)
{
	uint64_t filled = w->allocations[mapping->allocation].filled;

	if (!lien_replay_mapping_readable(mapping) || filled <= mapping->offset)
		return 0;
	return least(filled - mapping->offset, mapping->bytes);
}

/* Counts it, and returns whether it is the first one, of which the rest is noted. */
static bool note_failure(struct lien_replay_checked *checked,
	const struct lien_replay_mapping *mapping, uint64_t actual, uint64_t offset)
{
	if (checked->failed++)
		return false;
	checked->va = mapping->va;
	checked->actual = actual;
	checked->offset = offset;
	return true;
}

static void note_mismatch(struct lien_replay_checked *checked,
	const struct lien_replay_mapping *mapping, uint64_t actual, uint64_t expected,
	const void *found, uint64_t offset)
{
	if (!note_failure(checked, mapping, actual, offset))
		return;
	checked->expected = expected;
	memcpy(&checked->found, found, least(sizeof(checked->found), mapping->bytes - offset));
}

/* As while it is offloaded: the caller may restore it and verify again. */
static void note_unreadable(struct lien_replay_checked *checked,
	const struct lien_replay_mapping *mapping, uint64_t actual, uint64_t offset,
	CUresult result)
{
	if (note_failure(checked, mapping, actual, offset))
		checked->result = result;
}

/* Compares [from, to) of the mapping, relative to its beginning. Returns 1: a mismatch or memory
 * that cannot be read, recorded. */
static int compare(struct lien_replay_worker *w, const struct lien_replay_mapping *mapping,
	uint64_t from, uint64_t to, uint64_t change, struct lien_replay_checked *checked)
{
	uint64_t pattern = lien_replay_pattern(mapping->allocation, change), n;
	uint64_t actual = lien_replay_space_actual(&w->space, mapping->va);
	CUresult result = CUDA_SUCCESS;
	bool direct;
	size_t good;
	int err;

	err = reach(w, mapping, false, &direct);
	for (; !err && from < to; from += n) {
		n = least(to - from, CHUNK_BYTES);
		if (direct)
			memcpy(w->buffer, (void *)(actual + from), n);
		else
			result = lien_replay_driver.cuMemcpyDtoH_v2(w->buffer, actual + from, n);
		if (result != CUDA_SUCCESS) {
			note_unreadable(checked, mapping, actual, from, result);
			return 1;
		}
		checked->bytes += n;
		good = lien_replay_pattern_check(w->buffer, pattern, mapping->offset + from, n);
		if (good < n) {
			note_mismatch(checked, mapping, actual,
				lien_replay_pattern_word(pattern, mapping->offset + from + good),
				(char *)w->buffer + good, from + good);
			return 1;
		}
		err = lien_replay_progress(w);
	}
	return err;
}

int lien_replay_verify(struct lien_replay_worker *w, struct lien_replay_checked *checked)
{
	uint64_t end, changed, rewritable;
	struct lien_replay_mapping *mapping;
	int err;

	memset(checked, 0, sizeof(*checked));
	TAILQ_FOREACH (mapping, &w->space.mappings, order) {
		end = lien_replay_verifiable(w, mapping);
		if (!end)
			continue;
		checked->mappings++;
		/* A change covers the part that its owner still had mapped; the rest has the first
		 * pattern. */
		rewritable = w->allocations[mapping->allocation].rewritable;
		changed =
			rewritable > mapping->offset ? least(rewritable - mapping->offset, end) : 0;
		err = compare(w, mapping, 0, changed, w->change, checked);
		if (!err)
			err = compare(w, mapping, changed, end, 0, checked);
		if (err < 0)
			return err;
	}
	return 0;
}
