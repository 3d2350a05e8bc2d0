// SPDX-License-Identifier: BSD-2-Clause
#include "agent/processes/sites.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/core/jobs.h"
#include "agent/graph/array.h"
#include "agent/views/views.h"
#include "loader/discover/libraries.h"
#include "loader/discover/elf_symbols.h"
#include "loader/discover/untrusted.h"

/* Files open at a time. Callers in further files are shown by their offsets. */
#define OPEN_MAX_FILES 256
#define SWEEP_NS       2000000000ull

struct site_file {
	RB_ENTRY(site_file) by_inode;
	uint64_t inode;
	uint32_t dev_major, dev_minor;
	int fd;				  /* -1: not open */
	bool busy;			  /* its symbols are being read: it stays open */
	bool used;			  /* a process maps it, as of the last sweep */
	bool late;			  /* who maps it was too slow: a sweep opens it */
	const struct lien_site **unnamed; /* places that have no name yet */
	unsigned count, room;
};

static int site_file_cmp(const struct site_file *a, const struct site_file *b)
{
	if (a->inode != b->inode)
		return a->inode < b->inode ? -1 : 1;
	if (a->dev_major != b->dev_major)
		return a->dev_major < b->dev_major ? -1 : 1;
	return (a->dev_minor > b->dev_minor) - (a->dev_minor < b->dev_minor);
}

RB_HEAD(site_file_tree, site_file);
RB_GENERATE_INTERNAL(
	site_file_tree, site_file, by_inode, site_file_cmp, static __attribute__((unused)))

struct lien_sites {
	struct site_file_tree files;
	unsigned open;
	bool sweep;
	uint64_t t_sweep;
};

/* A job that reads one file's symbols. */
struct reading {
	struct lien_job job;
	struct site_file *file; /* the agent's, like the sites: the thread must not use it */
	int fd, err;		/* fd: the file's */
	const struct lien_site **unnamed;
	unsigned count;
	struct lien_symbol_lookup lookups[];
};

struct opening {
	uint32_t pid;
	const struct site_file *file;
	int fd;
	bool late; /* the process, or its file system, was too slow */
};

static int open_same(const struct lien_maps_entry *entry, void *arg)
{
	struct opening *opening = arg;
	char path[512];
	struct stat st;
	int err;

	if (entry->inode != opening->file->inode || entry->dev_major != opening->file->dev_major ||
		entry->dev_minor != opening->file->dev_minor)
		return 0;
	err = lien_maps_open_path(opening->pid, entry, path, sizeof(path));
	opening->fd = err ? err : lien_untrusted_open(path, &st);
	opening->late |= opening->fd == -ETIMEDOUT;
	if (opening->fd < 0)
		return 0;
	/* The path does not identify the file: it may lead to another file by now. */
	if (st.st_ino == entry->inode)
		return 1;
	close(opening->fd);
	opening->fd = -1;
	return 0;
}

static void file_open(struct lien_sites *sites, struct site_file *file, uint32_t pid)
{
	struct opening opening = {pid, file, -1, false};

	if (file->fd >= 0 || sites->open >= OPEN_MAX_FILES)
		return;
	opening.late = lien_maps_read_code(pid, open_same, &opening) == -ETIMEDOUT || opening.late;
	file->fd = opening.fd < 0 ? -1 : opening.fd;
	sites->open += file->fd >= 0;
	file->late = file->fd < 0 && opening.late;
	sites->sweep |= file->late;
}

static void file_close(struct lien_sites *sites, struct site_file *file)
{
	if (file->fd < 0)
		return;
	close(file->fd);
	file->fd = -1;
	sites->open--;
}

static struct site_file *file_of(struct lien_sites *sites, const struct lien_site *site)
{
	struct site_file *file = calloc(1, sizeof(*file)), *known;

	if (!file)
		return NULL;
	file->inode = site->inode;
	file->dev_major = site->dev_major;
	file->dev_minor = site->dev_minor;
	file->fd = -1;
	known = RB_INSERT(site_file_tree, &sites->files, file);
	if (!known)
		return file;
	free(file);
	return known;
}

static void on_site(void *context, struct lien_process *process, const struct lien_site *site)
{
	struct lien_agent *agent = context;
	struct site_file *file;

	if (!site->inode || !strcmp(site->library->text, LIEN_ARENA_LIBRARY) ||
		!(file = file_of(agent->sites, site)) ||
		lien_array_grow(&file->unnamed, file->count, &file->room, sizeof(*file->unnamed)))
		return;
	file->unnamed[file->count++] = site;
	if (process)
		file_open(agent->sites, file, process->pid);
}

static void reading_free(struct lien_job *job)
{
	struct reading *reading = (struct reading *)job;
	unsigned i;

	for (i = 0; i < reading->count; i++)
		free(reading->lookups[i].name);
	free(reading->unnamed);
	free(reading);
}

static void read_symbols(struct lien_job *job)
{
	struct reading *reading = (struct reading *)job;

	reading->err = lien_symbols_find(reading->fd, reading->lookups, reading->count);
}

static void symbols_read(struct lien_agent *agent, struct lien_job *job)
{
	struct reading *reading = (struct reading *)job;
	const struct lien_symbol_lookup *lookup = reading->lookups;
	unsigned i;

	if (reading->err)
		lien_log(5, "cannot read the symbols of %s: %s; its callers are shown by offsets",
			reading->unnamed[0]->file->text, strerror(-reading->err));
	for (i = 0; i < reading->count; i++)
		if (lookup[i].name)
			lien_graph_name_site(agent->graph, reading->unnamed[i], lookup[i].name,
				lookup[i].into + 1);
	reading->file->busy = false;
	agent->sites->sweep = true; /* it may have stayed open for this */
}

static void file_resolve(struct lien_agent *agent, struct site_file *file)
{
	struct reading *reading;
	unsigned i;

	if (file->fd < 0 || file->busy || !file->count)
		return;
	reading = calloc(1, sizeof(*reading) + file->count * sizeof(reading->lookups[0]));
	if (!reading)
		return;
	reading->job = (struct lien_job){.kind = LIEN_JOB_SYMBOLS,
		.work = read_symbols,
		.done = symbols_read,
		.drop = reading_free};
	reading->file = file;
	reading->fd = file->fd;
	reading->count = file->count;
	/* These are return addresses: the call itself lies before, and may be its function's last
	 * instruction. */
	for (i = 0; i < file->count; i++)
		reading->lookups[i].offset = file->unnamed[i]->offset - 1;
	if (lien_job_start(agent, &reading->job))
		return;
	reading->unnamed = file->unnamed;
	file->unnamed = NULL;
	file->count = file->room = 0;
	file->busy = true;
}

bool lien_sites_resolve(struct lien_agent *agent)
{
	struct site_file *file;

	if (!agent->is_copy)
		RB_FOREACH (file, site_file_tree, &agent->sites->files)
			file_resolve(agent, file);
	return lien_jobs_pending(agent, LIEN_JOB_SYMBOLS);
}

static void mark_used(struct lien_sites *sites, struct lien_process *process)
{
	struct lien_library_map *map;
	struct site_file *file;

	RB_FOREACH (map, lien_library_tree, &process->libraries) {
		struct site_file key = {.inode = map->inode,
			.dev_major = map->dev_major,
			.dev_minor = map->dev_minor};

		file = RB_FIND(site_file_tree, &sites->files, &key);
		if (!file)
			continue;
		file->used = true;
		if (file->late)
			file_open(sites, file, process->pid);
	}
}

void lien_sites_tick(struct lien_agent *agent)
{
	struct lien_sites *sites = agent->sites;
	struct lien_process *process;
	struct site_file *file;

	if ((!sites->sweep && agent->t_process_end < sites->t_sweep) ||
		lien_now_ns() - sites->t_sweep < SWEEP_NS)
		return;
	sites->sweep = false;
	sites->t_sweep = lien_now_ns();
	RB_FOREACH (file, site_file_tree, &sites->files)
		file->used = false;
	LIEN_FOREACH_PROCESS (process, agent->graph)
		mark_used(sites, process);
	RB_FOREACH (file, site_file_tree, &sites->files) {
		if (file->used || file->busy)
			continue;
		file_resolve(agent, file);
		if (!file->busy)
			file_close(sites, file);
	}
}

int lien_sites_start(struct lien_agent *agent)
{
	struct lien_sites *sites = calloc(1, sizeof(*sites));

	if (!sites)
		return -ENOMEM;
	RB_INIT(&sites->files);
	agent->sites = sites;
	lien_graph_on_site(agent->graph, on_site, agent);
	return 0;
}

void lien_sites_stop(struct lien_agent *agent)
{
	struct lien_sites *sites = agent->sites;
	struct site_file *file;

	if (!sites)
		return;
	while ((file = RB_ROOT(&sites->files))) {
		RB_REMOVE(site_file_tree, &sites->files, file);
		free(file->unnamed);
		file_close(sites, file);
		free(file);
	}
	free(sites);
	agent->sites = NULL;
}
