// SPDX-License-Identifier: BSD-2-Clause
#include "loader/discover/maps_query.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

/* linux/fs.h of 6.11 and later, in words of our own: PROCMAP_QUERY. */
enum {
	QUERY_READABLE = 1,
	QUERY_WRITABLE = 2,
	QUERY_EXECUTABLE = 4,
	QUERY_SHARED = 8,
	QUERY_THIS_OR_NEXT = 16,
	QUERY_OF_FILE = 32,
};

struct query {
	uint64_t size, flags, address;
	/* the answer */
	uint64_t start, end, of, page_size, offset, inode;
	uint32_t major, minor;
	uint32_t name_size, build_id_size; /* room, and then what there is */
	uint64_t name_address, build_id_address;
};

#define QUERY _IOWR('f', 17, struct query)

_Static_assert(sizeof(struct query) == 104 && QUERY == 0xc0686611, "as the kernel has it");

#define LINE_MAX_SIZE (4 * PATH_MAX + 128) /* each byte of the name may need an escape */

/* Returns the length of the line. */
static size_t write_line(char *line, const struct query *found, const char *name)
{
	size_t length = sprintf(line, "%llx-%llx %c%c%c%c %08llx %02x:%02x %llu ",
		(unsigned long long)found->start, (unsigned long long)found->end,
		found->of & QUERY_READABLE ? 'r' : '-', found->of & QUERY_WRITABLE ? 'w' : '-',
		found->of & QUERY_EXECUTABLE ? 'x' : '-', found->of & QUERY_SHARED ? 's' : 'p',
		(unsigned long long)found->offset, found->major, found->minor,
		(unsigned long long)found->inode);

	for (; *name; name++)
		if (*name == '\n')
			length += sprintf(line + length, "\\012");
		else
			line[length++] = *name;
	line[length++] = '\n';
	return length;
}

/* Makes room for one more line. */
static int grow(char **text, size_t *room, size_t length, size_t max)
{
	size_t more = *room ? 2 * *room : 1 << 16;
	char *grown;

	if (*room - length > LINE_MAX_SIZE)
		return 0;
	if (more > max)
		return -E2BIG;
	grown = realloc(*text, more);
	if (!grown)
		return -ENOMEM;
	*text = grown;
	*room = more;
	return 0;
}

ssize_t lien_maps_query(int fd, char **text, size_t max)
{
	size_t room = 0, length = 0;
	struct query query;
	uint64_t next = 0;
	char name[PATH_MAX];
	int err;

	*text = NULL;
	do {
		err = grow(text, &room, length, max);
		if (err)
			return err;
		query = (struct query){.size = sizeof(query),
			.flags = QUERY_THIS_OR_NEXT | QUERY_OF_FILE | QUERY_EXECUTABLE,
			.address = next,
			.name_size = sizeof(name),
			.name_address = (uintptr_t)name};
		name[0] = '\0';
		if (ioctl(fd, QUERY, &query))
			return errno == ENOENT ? (ssize_t)length : -errno;
		length += write_line(*text + length, &query, name);
		next = query.end;
	} while (next > query.start);
	return length;
}
