// SPDX-License-Identifier: BSD-2-Clause
/* Attaches probes to a library's calls, once per file. */
#include <errno.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "loader/probes/calls.h"
#include <lien/clock.h>
#include "agent/graph/hash.h"
#include "loader/probes/make_link.h"
#include "loader/probes/probes_internal.h"
#include "loader/discover/untrusted.h"

/* Limit of overlays remembered per file. A forgotten one is found again when the file is mapped. */
#define ALIASES_MAX 256
#define S_NS	    1000000000ull
#define TOLD_NS	    S_NS /* time that a caller has to fetch the result */

/* --- files that cannot be probed -------------------------------------------------------------- */

static bool is_skipped_as(
	const struct lien_skipped_file *file, const char *path, const struct stat *st)
{
	if (!st->st_ino || !file->inode)
		return st->st_ino == file->inode && !strcmp(file->path, path);
	return file->device == st->st_dev && file->inode == st->st_ino &&
	       file->changed.tv_sec == st->st_ctim.tv_sec &&
	       file->changed.tv_nsec == st->st_ctim.tv_nsec;
}

static const struct lien_skipped_file *find_skipped(
	const struct lien_skipped *skipped, const char *path, const struct stat *st)
{
	unsigned i;

	for (i = 0; i < skipped->kept; i++)
		if (is_skipped_as(&skipped->files[i], path, st))
			return &skipped->files[i];
	return NULL;
}

static const char *reason_of(int err)
{
	switch (err) {
	case -ESPIPE:
		return "not a regular file";
	case -ENOEXEC:
		return "not a library of x86-64";
	case -EBADMSG:
		return "damaged: cut off, or its parts are not where its header says";
	case -ENODATA:
		return "exports none of the calls that lien traces";
	case -ETXTBSY:
		return "a process has rewritten some of its functions in memory, as UCX and some "
		       "profilers do, and a probe there would crash it (`lien ps` names it); tried "
		       "again until it has ended";
	case -EWOULDBLOCK:
		return "a process holds a lease on it";
	}
	return strerror(-err);
}

/* Returns true if there is room for another file of this user. */
static bool has_room(const struct lien_skipped *skipped, uint32_t user)
{
	unsigned i, of_user = 0;

	for (i = 0; i < skipped->kept; i++)
		of_user += skipped->files[i].user == user;
	return skipped->kept < LIEN_SKIPPED_MAX &&
	       (!user || user == LIEN_PROBES_SYSTEM || of_user < LIEN_SKIPPED_OF_USER);
}

static const struct lien_skipped_file *add_skipped(struct lien_skipped *skipped, const char *path,
	const struct stat *st, int err, uint32_t user)
{
	struct lien_skipped_file *file = &skipped->files[skipped->kept];

	skipped->count++;
	if (!has_room(skipped, user))
		return NULL;
	file->path = lien_library_text(path);
	if (!file->path)
		return NULL;
	skipped->kept++;
	file->user = user;
	file->reason = reason_of(err);
	file->err = err;
	file->device = st->st_dev;
	file->inode = st->st_ino;
	file->changed = st->st_ctim;
	return file;
}

static void remove_skipped(struct lien_skipped *skipped, dev_t device, ino_t inode)
{
	struct lien_skipped_file *file = skipped->files;
	unsigned i;

	for (i = skipped->kept; i-- > 0;) {
		if (file[i].device != device || file[i].inode != inode)
			continue;
		free(file[i].path);
		memmove(file + i, file + i + 1, (--skipped->kept - i) * sizeof(*file));
		skipped->count--;
	}
}

/* Records the reason, and reports it once. */
static int skip(
	struct lien_probes *probes, const char *name, const struct stat *st, int err, uint32_t user)
{
	const struct lien_skipped_file *file;

	if (find_skipped(&probes->facts.skipped, name, st))
		return err;
	file = add_skipped(&probes->facts.skipped, name, st, err, user);
	if (file)
		probes->config.on_skipped(probes->config.context, file);
	return err;
}

/* An error for a path in /proc when the process no longer maps the file. */
static bool is_gone(int err)
{
	return err == -ENOENT || err == -ESRCH;
}

/* Returns true if the contents are not worth reading again. */
static int refused_before(const struct lien_probes *probes, const char *name, const struct stat *st)
{
	const struct lien_skipped_file *file = find_skipped(&probes->facts.skipped, name, st);

	return file && (file->err == -ENOEXEC || file->err == -EBADMSG || file->err == -ENODATA)
		       ? file->err
		       : 0;
}

bool lien_probes_is_rewritten(const struct lien_probes *probes, ino_t inode)
{
	unsigned i;

	for (i = 0; i < probes->facts.skipped.kept; i++)
		if (probes->facts.skipped.files[i].inode == inode &&
			probes->facts.skipped.files[i].err == -ETXTBSY)
			return true;
	return false;
}

/* --- attaching -------------------------------------------------------------------------------- */

/* Returns first: then every call seen at entry is also seen at return. */
static int begin_links(struct lien_probes *probes, struct lien_attached *attached, int fd,
	const struct lien_probe_set *set)
{
	const unsigned quick = attached->quick;
	const bool each = !probes->facts.multi, returns = quick < set->count;
	const unsigned count = each ? 2 * set->count - quick : 1u + returns;
	const struct lien_link_request requests[] = {
		{bpf_program__fd(probes->skel->progs.lien_return), set->offsets + quick,
			set->cookies + quick, set->count - quick, .each = each, .at_return = true},
		{bpf_program__fd(probes->skel->progs.lien_entry), set->offsets, set->cookies,
			set->count, .each = each},
	};

	return lien_attached_room(attached, count)
		       ?: lien_making_begin(&attached->making, fd,
				  returns ? requests : requests + 1, 1 + returns);
}

/* The pass in which a call is attached. The first pass has no return probes; cuInit comes last. */
static unsigned pass_of(const struct lien_probed_call *call)
{
	return call->flags & LIEN_CALL_QUICK ? 0 : call->flags & LIEN_CALL_FIRST ? 2 : 1;
}

/* Looks up the library's calls. Returns 0, -ENODATA: it has none; -errno. */
static int find_calls(const struct lien_probes *probes, struct lien_attached *attached, int fd,
	struct lien_probe_set *set)
{
	const struct lien_call_place *place;
	struct lien_call_places places;
	unsigned missing = 0, pass, i;
	int err;

	err = lien_calls_look_up(&places, fd, attached->file.library);
	if (err)
		return err;
	memcpy(attached->file.build_id, places.build_id, sizeof(attached->file.build_id));
	for (pass = 0; pass < 3; pass++) {
		for (i = 0; i < places.count; i++) {
			place = &places.places[i];
			if (pass_of(place->call) != pass)
				continue;
			if (place->offset == UINT64_MAX)
				attached->file.missing[missing++] = place->call->symbol;
			else if (!probes->facts.can_follow ||
				 !(place->call->flags & LIEN_CALL_CONTEXT))
				lien_probe_set_add(set, place, attached->number);
		}
		if (!pass)
			attached->quick = set->count;
	}
	return set->count ? 0 : -ENODATA;
}

static void identify(struct lien_probed_file *file, int fd, const struct stat *st)
{
	struct statfs fs;

	file->device = st->st_dev;
	file->inode = st->st_ino;
	file->overlay = !fstatfs(fd, &fs) && fs.f_type == OVERLAYFS_SUPER_MAGIC;
	file->size = st->st_size;
	file->t_changed = st->st_ctim.tv_sec * 1000000000ull + st->st_ctim.tv_nsec;
}

/*
 * Returns true for the same file below an overlay, which has the same uprobes. The change time is
 * the real file's: a copy that a container made has another one.
 */
static bool is_same(const struct lien_probed_file *a, const struct lien_probed_file *b)
{
	return (a->overlay || b->overlay) && a->library == b->library && a->inode == b->inode &&
	       a->size == b->size && a->t_changed == b->t_changed && a->t_changed;
}

static struct lien_attached *find_same(
	const struct lien_attached_list *list, const struct lien_probed_file *file)
{
	struct lien_attached *attached;

	TAILQ_FOREACH (attached, list, next)
		if (is_same(&attached->file, file))
			return attached;
	return NULL;
}

/* Checks whether the file is attached through another overlay or directly. Returns 1, 0,
 * -EINPROGRESS or -ENOMEM. */
static int note_alias(struct lien_probes *probes, const struct lien_probed_file *file)
{
	struct lien_attached *attached = find_same(&probes->files, file);
	dev_t *aliases;

	if (!attached)
		return find_same(&probes->attaching, file) ? -EINPROGRESS : 0;
	if (attached->aliases_count == ALIASES_MAX) /* forgets the oldest */
		memmove(attached->aliases, attached->aliases + 1,
			--attached->aliases_count * sizeof(attached->aliases[0]));
	aliases = reallocarray(
		attached->aliases, attached->aliases_count + 1, sizeof(attached->aliases[0]));
	if (!aliases)
		return -ENOMEM;
	attached->aliases = aliases;
	aliases[attached->aliases_count++] = file->device;
	return 1;
}

const struct lien_probed_file *lien_probes_file(
	const struct lien_probes *probes, dev_t device, ino_t inode)
{
	const struct lien_attached *attached = lien_attached_find(probes, device, inode);

	return attached ? &attached->file : NULL;
}

/* Returns the time from which these calls of the file were seen: earlier than now if another build
 * probed the same ones. */
static uint64_t t_attached(const struct lien_probes *probes, const struct lien_attached *attached)
{
	const struct lien_attached *old;

	TAILQ_FOREACH (old, &probes->old, next)
		if (old->probes == attached->probes &&
			((old->file.device == attached->file.device &&
				 old->file.inode == attached->file.inode) ||
				is_same(&old->file, &attached->file)))
			return old->file.t_attached;
	return lien_clock_ns();
}

/* Hashes the places and calls without the attachment's number. Calls with LIEN_CALL_CONTEXT do not
 * count: contexts are followed in one of two ways. */
static uint64_t hash_probes(const struct lien_probe_set *set)
{
	uint64_t hash = LIEN_HASH_START;
	uint32_t call;
	unsigned i;

	for (i = 0; i < set->count; i++) {
		call = (uint32_t)set->cookies[i];
		if (LIEN_COOKIE_FLAGS(set->cookies[i]) & LIEN_CALL_CONTEXT)
			continue;
		hash = lien_hash(hash, &set->offsets[i], sizeof(set->offsets[i]));
		hash = lien_hash(hash, &call, sizeof(call));
	}
	return hash;
}

/* The account is the system's if the system names the file, otherwise the first user's who asks for
 * it. */
static void note_user(struct lien_attached *attached, uint32_t user)
{
	if (user == LIEN_PROBES_SYSTEM || attached->file.user == LIEN_PROBES_UNKNOWN)
		attached->file.user = user;
}

/* Continues with an attachment of probes->attaching. Returns 0: it is in probes->files;
 * -EINPROGRESS; -errno. */
static int proceed(struct lien_probes *probes, struct lien_attached *attached)
{
	int err = attached->err;

	if (!err && attached->making)
		err = lien_making_wait(&attached->making, attached->links);
	if (err)
		return err;
	attached->file.t_attached = t_attached(probes, attached);
	TAILQ_REMOVE(&probes->attaching, attached, next);
	TAILQ_INSERT_TAIL(&probes->files, attached, next);
	lien_keep_links(probes, attached);
	lien_keep_save(probes);
	remove_skipped(&probes->facts.skipped, attached->file.device, attached->file.inode);
	return 0;
}

static void give_up(struct lien_probes *probes, struct lien_attached *attached)
{
	TAILQ_REMOVE(&probes->attaching, attached, next);
	lien_attached_free(attached);
}

/* Keeps the error for the next caller who asks for the file. If nobody does, reports it here. */
static void fail(struct lien_probes *probes, struct lien_attached *attached, int err)
{
	const struct lien_probed_file *file = &attached->file;
	struct stat st = {.st_dev = file->device,
		.st_ino = file->inode,
		.st_ctim = {file->t_changed / S_NS, file->t_changed % S_NS}};
	uint64_t now = lien_clock_ns();

	if (!attached->err)
		attached->t_failed = now;
	attached->err = err;
	if (now - attached->t_failed < TOLD_NS)
		return;
	skip(probes, file->path, &st, err, file->user);
	give_up(probes, attached);
}

void lien_probes_attach_tick(struct lien_probes *probes)
{
	struct lien_attached *attached, *next;
	int err;

	TAILQ_FOREACH_SAFE(attached, &probes->attaching, next, next)
	{
		err = proceed(probes, attached);
		if (err && err != -EINPROGRESS)
			fail(probes, attached, err);
	}
}

unsigned lien_probes_attaching(const struct lien_probes *probes, uint32_t user)
{
	const struct lien_attached *attached;
	unsigned count = 0;

	TAILQ_FOREACH (attached, &probes->attaching, next)
		count += attached->file.user == user;
	return count;
}

static struct lien_attached *find_attaching(
	const struct lien_probes *probes, dev_t device, ino_t inode)
{
	struct lien_attached *attached;

	TAILQ_FOREACH (attached, &probes->attaching, next)
		if (attached->file.device == device && attached->file.inode == inode)
			return attached;
	return NULL;
}

bool lien_probes_is_attaching(const struct lien_probes *probes, dev_t device, ino_t inode)
{
	return find_attaching(probes, device, inode);
}

/* Returns 0: *attached is in progress, or NULL if there is nothing to do. */
static int begin(struct lien_probes *probes, enum lien_library library, int fd,
	const struct stat *st, const char *name, struct lien_attached **attached)
{
	struct lien_attached *new = lien_attached_new(name);
	struct lien_probe_set set = {.count = 0};
	int err;

	if (!new)
		return -ENOMEM;
	new->file.library = library;
	identify(&new->file, fd, st);
	err = note_alias(probes, &new->file);
	if (err)
		goto out;
	new->number = ++probes->next_attachment;
	err = find_calls(probes, new, fd, &set);
	if (err)
		goto out;
	new->file.calls = set.count;
	new->probes = hash_probes(&set);
	err = begin_links(probes, new, fd, &set);
out:
	if (err) {
		lien_attached_free(new);
		return err < 0 ? err : 0;
	}
	TAILQ_INSERT_TAIL(&probes->attaching, new, next);
	*attached = new;
	return 0;
}

int lien_probes_attach(struct lien_probes *probes, enum lien_library library, const char *path,
	const char *name, uint32_t user)
{
	struct lien_attached *attached = NULL, *known;
	struct stat st = {0};
	int fd, err;

	fd = lien_untrusted_open(path, &st);
	if (fd == -ETIMEDOUT || (is_gone(fd) && user != LIEN_PROBES_SYSTEM))
		return fd;
	if (fd < 0)
		return skip(probes, name, &st, fd, user);
	err = refused_before(probes, name, &st);
	known = lien_attached_find(probes, st.st_dev, st.st_ino);
	if (known)
		note_user(known, user);
	if (!err && !known) {
		attached = find_attaching(probes, st.st_dev, st.st_ino);
		if (!attached)
			err = begin(probes, library, fd, &st, name, &attached);
	}
	if (attached) {
		note_user(attached, user);
		err = proceed(probes, attached);
		if (err && err != -EINPROGRESS)
			give_up(probes, attached);
	}
	close(fd);
	return err && err != -EINPROGRESS ? skip(probes, name, &st, err, user) : err;
}

const struct lien_probed_file *lien_probes_each(const struct lien_probes *probes, unsigned index)
{
	const struct lien_attached *attached;

	TAILQ_FOREACH (attached, &probes->files, next)
		if (!index--)
			return &attached->file;
	return NULL;
}

void lien_probes_drop(struct lien_probes *probes, dev_t device, ino_t inode)
{
	struct lien_attached *attached = lien_attached_find(probes, device, inode);

	if (!attached)
		return;
	TAILQ_REMOVE(&probes->files, attached, next);
	lien_keep_remove(probes, attached);
	lien_keep_save(probes);
}
