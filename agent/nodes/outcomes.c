// SPDX-License-Identifier: BSD-2-Clause
#include "agent/nodes/outcomes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OF_USER 16
#define ALL	256
#define LINE	128

struct outcome {
	char id[LIEN_NODES_ID_MAX + 1];
	uint32_t uid;
	enum lien_part_state state;
};

struct lien_outcomes {
	char *path;		 /* NULL: none */
	struct outcome all[ALL]; /* oldest first */
	unsigned count;
};

bool lien_nodes_is_id(const char *text)
{
	static const char allowed[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
	const size_t length = text ? strlen(text) : 0;

	return length && length <= LIEN_NODES_ID_MAX && strspn(text, allowed) == length;
}

static void forget(struct lien_outcomes *outcomes, unsigned i)
{
	outcomes->count--;
	memmove(&outcomes->all[i], &outcomes->all[i + 1],
		(outcomes->count - i) * sizeof(outcomes->all[0]));
}

static void keep(struct lien_outcomes *outcomes, const struct outcome *outcome)
{
	unsigned i, of_user = 0, oldest = 0;

	for (i = outcomes->count; i-- > 0;) {
		if (outcomes->all[i].uid != outcome->uid)
			continue;
		if (!strcmp(outcomes->all[i].id, outcome->id)) {
			outcomes->all[i].state = outcome->state;
			return;
		}
		oldest = i;
		of_user++;
	}
	if (of_user >= OF_USER)
		forget(outcomes, oldest);
	else if (outcomes->count == ALL)
		forget(outcomes, 0);
	outcomes->all[outcomes->count++] = *outcome;
}

/* Writes the file anew. If that fails, the old one stays. */
static int save(const struct lien_outcomes *outcomes)
{
	char path[4096];
	FILE *file;
	unsigned i;
	int fd, err = 0;

	if (snprintf(path, sizeof(path), "%s.new", outcomes->path) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	file = fdopen(fd, "w");
	if (!file) {
		close(fd);
		return -ENOMEM;
	}
	for (i = 0; i < outcomes->count; i++)
		fprintf(file, "%s %" PRIu32 " %s\n", outcomes->all[i].id, outcomes->all[i].uid,
			lien_part_state_name(outcomes->all[i].state));
	if (ferror(file))
		err = -EIO;
	if (fclose(file) && !err)
		err = -EIO;
	if (!err && rename(path, outcomes->path))
		err = -errno;
	if (err)
		unlink(path);
	return err;
}

static void take_over(struct lien_outcomes *outcomes)
{
	struct outcome outcome;
	char line[LINE], state[16];
	FILE *file = fopen(outcomes->path, "re");

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%64s %" SCNu32 " %15s", outcome.id, &outcome.uid, state) != 3)
			continue;
		outcome.state = lien_part_state_of(state);
		if (outcome.state == LIEN_PART_STATES || !lien_nodes_is_id(outcome.id))
			continue;
		keep(outcomes, &outcome);
	}
	if (file)
		fclose(file);
	for (unsigned i = 0; i < outcomes->count; i++)
		if (outcomes->all[i].state == LIEN_PART_COMMITTED)
			outcomes->all[i].state = LIEN_PART_BROKEN;
}

struct lien_outcomes *lien_outcomes_open(const char *path)
{
	struct lien_outcomes *outcomes = calloc(1, sizeof(*outcomes));

	if (!outcomes)
		return NULL;
	outcomes->path = path ? strdup(path) : NULL;
	if (outcomes->path)
		take_over(outcomes);
	return outcomes;
}

void lien_outcomes_close(struct lien_outcomes *outcomes, bool remove)
{
	if (!outcomes)
		return;
	if (remove && outcomes->path)
		unlink(outcomes->path);
	free(outcomes->path);
	free(outcomes);
}

int lien_outcomes_note(
	struct lien_outcomes *outcomes, const char *id, uint32_t uid, enum lien_part_state state)
{
	struct outcome outcome = {.uid = uid, .state = state};

	snprintf(outcome.id, sizeof(outcome.id), "%s", id);
	keep(outcomes, &outcome);
	return outcomes->path ? save(outcomes) : 0;
}

enum lien_part_state lien_outcomes_find(
	const struct lien_outcomes *outcomes, const char *id, bool one_user, uint32_t uid)
{
	unsigned i;

	for (i = outcomes->count; i-- > 0;)
		if (!strcmp(outcomes->all[i].id, id) && (!one_user || outcomes->all[i].uid == uid))
			return outcomes->all[i].state;
	return LIEN_PART_STATES;
}
