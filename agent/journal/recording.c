// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include <lien/clock.h>
#include "agent/graph/event_check.h"
#include "agent/journal/recording.h"

#define FLUSH_INTERVAL_NS 1000000000ull

static const char magic[8] = LIEN_RECORDING_MAGIC;

struct lien_recording {
	gzFile file;
	bool writing;
	bool ended;
	bool is_state, in_state; /* the record that was read last; the next one */
	int error;		 /* first error */
	uint64_t created;
	struct lien_recording_origin origin; /* .clock without one: of the first event */
	uint64_t flushed;		     /* CLOCK_MONOTONIC ns */
};

static int fail(struct lien_recording *rec, int error)
{
	if (!rec->error)
		rec->error = error;
	return rec->error;
}

/* Returns the errno for zlib's code; call it right after the failed call. */
static int from_zlib(int code)
{
	int saved = errno;

	switch (code) {
	case Z_ERRNO:
		return saved ? -saved : -EIO;
	case Z_MEM_ERROR:
		return -ENOMEM;
	case Z_BUF_ERROR:
		return -ENODATA;
	default:
		return -EBADMSG;
	}
}

static int last_error(struct lien_recording *rec)
{
	int code = Z_OK;

	gzerror(rec->file, &code);
	return code == Z_OK ? 0 : from_zlib(code);
}

static int start(const char *path, int flags, const char *mode, struct lien_recording **out)
{
	struct lien_recording *rec;
	int fd, err;

	rec = calloc(1, sizeof(*rec));
	if (!rec)
		return -ENOMEM;
	fd = open(path, flags | O_CLOEXEC, 0600);
	if (fd < 0) {
		err = -errno;
		free(rec);
		return err;
	}
	rec->file = gzdopen(fd, mode);
	if (!rec->file) {
		close(fd);
		free(rec);
		return -ENOMEM;
	}
	*out = rec;
	return 0;
}

static int put(struct lien_recording *rec, const void *data, unsigned int bytes)
{
	int err;

	if (rec->error)
		return rec->error;
	errno = 0;
	if (gzwrite(rec->file, data, bytes) == (int)bytes)
		return 0;
	err = last_error(rec);
	return fail(rec, err ? err : -EIO);
}

int lien_recording_create(const char *path, struct lien_recording **out)
{
	struct lien_recording_header header = {
		.version = LIEN_RECORDING_VERSION, .flags = LIEN_RECORDING_HAS_ORIGIN};
	struct lien_recording *rec;
	struct timespec now;
	int err;

	err = start(path, O_WRONLY | O_CREAT | O_TRUNC, "wb", &rec);
	if (err)
		return err;
	rec->writing = true;
	clock_gettime(CLOCK_REALTIME, &now);
	rec->created = now.tv_sec * 1000000000ull + now.tv_nsec;
	rec->flushed = rec->origin.clock = lien_clock_ns();
	gethostname(rec->origin.host, sizeof(rec->origin.host) - 1);
	memcpy(header.magic, magic, sizeof(magic));
	header.created = rec->created;
	err = put(rec, &header, sizeof(header));
	if (!err)
		err = put(rec, &rec->origin, sizeof(rec->origin));
	if (err) {
		gzclose(rec->file);
		free(rec);
		return err;
	}
	*out = rec;
	return 0;
}

int lien_recording_write(struct lien_recording *rec, const struct lien_event *ev)
{
	int err;

	if (!rec->writing || !lien_event_valid(ev) || ev->type == LIEN_EVENT_END)
		return -EINVAL;
	err = put(rec, ev, ev->size);
	if (err)
		return err;
	if (lien_clock_ns() - rec->flushed >= FLUSH_INTERVAL_NS)
		return lien_recording_flush(rec);
	return 0;
}

int lien_recording_flush(struct lien_recording *rec)
{
	int code;

	if (!rec->writing)
		return -EINVAL;
	if (rec->error)
		return rec->error;
	rec->flushed = lien_clock_ns();
	errno = 0;
	code = gzflush(rec->file, Z_SYNC_FLUSH);
	return code == Z_OK ? 0 : fail(rec, from_zlib(code));
}

/*
 * Returns 1 if it read all of it, 0 if the stream ended cleanly before the first byte, else -errno.
 */
static int get(struct lien_recording *rec, void *data, unsigned int bytes)
{
	int n, err;

	errno = 0;
	n = gzread(rec->file, data, bytes);
	if (n == (int)bytes)
		return 1;
	err = last_error(rec);
	if (err)
		return err;
	return n ? -ENODATA : 0;
}

static int get_origin(struct lien_recording *rec)
{
	struct lien_recording_origin *origin = &rec->origin;
	int err = get(rec, origin, sizeof(*origin));

	origin->host[sizeof(origin->host) - 1] = '\0';
	for (char *c = origin->host; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return err == 1 ? 0 : err ? err : -ENODATA;
}

int lien_recording_open(const char *path, struct lien_recording **out)
{
	struct lien_recording_header header = {};
	struct lien_recording *rec;
	int err;

	err = start(path, O_RDONLY, "rb", &rec);
	if (err)
		return err;
	err = get(rec, &header, sizeof(header));
	if (err == 1)
		err = 0;
	else if (!err)
		err = -ENODATA;
	/* Even if the header is cut short, what is there must match the beginning of ours. */
	if ((!err || err == -ENODATA) && header.magic[0] &&
		strncmp(header.magic, magic, strnlen(header.magic, sizeof(magic))))
		err = -EBADMSG;
	if (!err && memcmp(header.magic, magic, sizeof(magic)))
		err = -EBADMSG;
	if (!err && (header.version < LIEN_RECORDING_OLDEST ||
			    header.version > LIEN_RECORDING_VERSION ||
			    header.flags & ~LIEN_RECORDING_HAS_ORIGIN))
		err = -EPROTONOSUPPORT;
	if (!err && header.flags & LIEN_RECORDING_HAS_ORIGIN)
		err = get_origin(rec);
	if (err) {
		gzclose(rec->file);
		free(rec);
		return err;
	}
	rec->created = header.created;
	*out = rec;
	return 0;
}

/* Nothing may follow END; and gzip compares the checksum only at the end of its stream. */
static int read_end(struct lien_recording *rec)
{
	char byte;
	int err = get(rec, &byte, 1);

	if (err)
		return fail(rec, err == 1 ? -EBADMSG : err);
	rec->ended = true;
	return 0;
}

/* A state has other records in between, and ends with its LIEN_STATE_end. */
static void note_state(struct lien_recording *rec, uint32_t type)
{
	rec->is_state = rec->in_state || LIEN_IS_STATE(type);
	rec->in_state = rec->is_state && type != LIEN_STATE_end;
}

int lien_recording_read(struct lien_recording *rec, struct lien_event *ev)
{
	int err;

	if (rec->writing)
		return -EINVAL;
	if (rec->error || rec->ended)
		return rec->error;
	memset(ev, 0, sizeof(*ev));
	err = get(rec, ev, LIEN_EVENT_HEADER);
	if (err != 1)
		return fail(rec, err ? err : -ENODATA);
	if (!ev->size && gzdirect(rec->file))
		return fail(rec, -ENODATA);
	if (ev->size < LIEN_EVENT_HEADER || ev->size > sizeof(*ev))
		return fail(rec, -EBADMSG);
	if (ev->size > LIEN_EVENT_HEADER) {
		err = get(rec, (char *)ev + LIEN_EVENT_HEADER, ev->size - LIEN_EVENT_HEADER);
		if (err != 1)
			return fail(rec, err ? err : -ENODATA);
	}
	if (!lien_event_valid(ev))
		return fail(rec, -EBADMSG);
	note_state(rec, ev->type);
	if (!rec->origin.clock && !rec->is_state)
		rec->origin.clock = ev->t_return ? ev->t_return : ev->t_entry;
	return ev->type == LIEN_EVENT_END ? read_end(rec) : 1;
}

bool lien_recording_is_state(const struct lien_recording *rec)
{
	return rec->is_state;
}

uint64_t lien_recording_time(const struct lien_recording *rec, uint64_t t)
{
	if (!rec->writing && gzdirect(rec->file))
		return 0;
	return rec->created + (t && rec->origin.clock ? t - rec->origin.clock : 0);
}

const char *lien_recording_host(const struct lien_recording *rec)
{
	return rec->origin.host;
}

int lien_recording_close(struct lien_recording *rec)
{
	struct lien_event end = {.size = LIEN_EVENT_HEADER, .type = LIEN_EVENT_END};
	int err = 0, code;

	if (!rec)
		return 0;
	if (rec->writing) {
		end.t_return = lien_clock_ns();
		put(rec, &end, end.size);
	}
	errno = 0;
	code = gzclose(rec->file);
	if (rec->writing)
		err = code == Z_OK ? rec->error : fail(rec, from_zlib(code));
	free(rec);
	return err;
}
