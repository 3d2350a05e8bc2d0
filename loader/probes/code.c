// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/code.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/discover/libraries.h"
#include "loader/discover/untrusted.h"

#define COMPARED   16 /* bytes: what jumps to another function take is less */
#define CHUNK	   16384
#define BREAKPOINT 0xcc
#define CALL	   0xe8

/* The kernel replaces such an instruction by a call when it has a probe (6.17). */
static const uint8_t nop[] = {0x0f, 0x1f, 0x44, 0x00, 0x00};

struct place {
	uint64_t offset;
	uint8_t code[COMPARED];
	unsigned size; /* less at the end of the file */
};

struct check {
	ino_t inode;
	struct place *places; /* sorted */
	unsigned count;
	uint32_t pid; /* being read, */
	uint64_t first;
	ssize_t read; /* and so much of a mapping from `first` on; negative: an error */
	uint8_t memory[CHUNK];
};

static int by_offset(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Returns false if out of memory. */
static bool read_places(struct check *check, int fd, const uint64_t *offsets, unsigned count)
{
	ssize_t n;
	unsigned i;

	check->places = calloc(count + 1, sizeof(*check->places));
	if (!check->places)
		return false;
	check->count = count;
	for (i = 0; i < count; i++) {
		check->places[i].offset = offsets[i];
		n = pread(fd, check->places[i].code, COMPARED, offsets[i]);
		check->places[i].size = n > 0 ? n : 0;
	}
	qsort(check->places, count, sizeof(*check->places), by_offset);
	return true;
}

static bool is_same(const struct place *place, const uint8_t *memory, unsigned size)
{
	unsigned i = 0;

	if (size >= sizeof(nop) && memory[0] == CALL && !memcmp(place->code, nop, sizeof(nop)))
		i = sizeof(nop);
	for (; i < size; i++)
		if (memory[i] != place->code[i] && memory[i] != BREAKPOINT)
			return false;
	return true;
}

/* The bytes of a mapping from an offset into it on; NULL: they cannot be read. */
static const uint8_t *read_at(
	struct check *check, const struct lien_maps_entry *entry, uint64_t at, unsigned size)
{
	const uint64_t left = entry->end - entry->start - at;

	if (at < check->first || at + size > check->first + check->read) {
		check->first = at;
		check->read = lien_untrusted_memory(
			check->pid, entry->start + at, check->memory, left < CHUNK ? left : CHUNK);
	}
	return check->read >= (ssize_t)(at - check->first + size)
		       ? check->memory + (at - check->first)
		       : NULL;
}

/* Returns -ETXTBSY: the mapping has other code; -EAGAIN: it cannot be read. */
static int check_mapping(const struct lien_maps_entry *entry, void *arg)
{
	const uint64_t end = entry->offset + (entry->end - entry->start);
	struct check *check = arg;
	const struct place *place = check->places;
	const uint8_t *memory;
	unsigned size;

	if (entry->inode != check->inode)
		return 0;
	check->read = 0;
	for (; place < check->places + check->count; place++) {
		if (place->offset < entry->offset || place->offset >= end)
			continue;
		size = end - place->offset < place->size ? end - place->offset : place->size;
		memory = read_at(check, entry, place->offset - entry->offset, size);
		if (check->read == -ESRCH)
			return 0;
		if (!memory)
			return -EAGAIN;
		if (!is_same(place, memory, size))
			return -ETXTBSY;
	}
	return 0;
}

static int check_process(struct check *check, uint32_t pid)
{
	int err;

	check->pid = pid;
	err = lien_maps_read_code(pid, check_mapping, check);
	return err == -ETXTBSY || err == -EAGAIN ? err : 0;
}

static int check_all(struct check *check)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	uint32_t pid;
	int err = 0;

	while (proc && !err && (entry = readdir(proc))) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		pid = strtoul(entry->d_name, NULL, 10);
		if (pid != (uint32_t)getpid())
			err = check_process(check, pid);
	}
	if (proc)
		closedir(proc);
	return err;
}

int lien_code_check(int fd, const uint64_t *offsets, unsigned count, uint32_t pid)
{
	struct check *check;
	struct stat st;
	int err = -ENOMEM;

	if (!count)
		return 0;
	if (fstat(fd, &st))
		return -errno;
	check = calloc(1, sizeof(*check));
	if (check && read_places(check, fd, offsets, count)) {
		check->inode = st.st_ino;
		err = pid ? check_process(check, pid) : check_all(check);
	}
	free(check ? check->places : NULL);
	free(check);
	return err;
}
