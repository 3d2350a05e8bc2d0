// SPDX-License-Identifier: BSD-2-Clause
#include <link.h>
#include <pthread.h>
#include <string.h>

#include "control/plain/memory.h"

/* The segments of object files that have asked. A file that is unloaded stays here: then another
 * one that lies in its place shares chunks with its memory, and nothing else happens. */
#define FILES 256

struct file {
	uintptr_t begin, end;
	uint32_t number;
};

static struct file files[FILES];
static unsigned count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t known(uintptr_t code)
{
	unsigned i, n = __atomic_load_n(&count, __ATOMIC_ACQUIRE);

	for (i = 0; i < n; i++)
		if (code >= files[i].begin && code < files[i].end)
			return files[i].number;
	return 0;
}

struct search {
	uintptr_t code;
	struct file found;
};

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct search *search = arg;
	const ElfW(Phdr) * segment;
	uintptr_t begin;
	unsigned i;

	(void)size;
	for (i = 0; i < info->dlpi_phnum; i++) {
		segment = &info->dlpi_phdr[i];
		begin = info->dlpi_addr + segment->p_vaddr;
		if (segment->p_type == PT_LOAD && search->code >= begin &&
			search->code - begin < segment->p_memsz) {
			search->found.begin = begin;
			search->found.end = begin + segment->p_memsz;
			return 1;
		}
	}
	return 0;
}

uint32_t lien_plain_asker(const void *code)
{
	struct search search = {.code = (uintptr_t)code};
	uint32_t number = known(search.code);

	if (number || !dl_iterate_phdr(look, &search))
		return number; /* code that was generated has no file: 0 */
	pthread_mutex_lock(&lock);
	number = known(search.code);
	if (!number && count < FILES) {
		number = count + 1;
		search.found.number = number;
		files[count] = search.found;
		__atomic_store_n(&count, number, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return number;
}

void lien_plain_asker_forked(void)
{
	pthread_mutex_init(&lock, NULL);
}
