// SPDX-License-Identifier: BSD-2-Clause
#include "agent/nodes/words.h"

#include <stddef.h>
#include <string.h>

static const char *const states[LIEN_PART_STATES] = {
	[LIEN_PART_PLANNED] = "planned",
	[LIEN_PART_GOING] = "going",
	[LIEN_PART_SAVING] = "saving",
	[LIEN_PART_READY] = "ready",
	[LIEN_PART_COMMITTED] = "committed",
	[LIEN_PART_DONE] = "done",
	[LIEN_PART_UNDOING] = "undoing",
	[LIEN_PART_UNDONE] = "undone",
	[LIEN_PART_BROKEN] = "broken",
};

static const char *const words[LIEN_WORDS] = {
	[LIEN_WORD_WAIT] = "wait",
	[LIEN_WORD_GO] = "go",
	[LIEN_WORD_HOLD] = "hold",
	[LIEN_WORD_SAVE] = "save",
	[LIEN_WORD_COMMIT] = "commit",
	[LIEN_WORD_UNDO] = "undo",
	[LIEN_WORD_RESTORE] = "restore",
};

static unsigned find(const char *const *names, unsigned count, const char *name)
{
	unsigned i;

	for (i = 0; name && i < count; i++)
		if (!strcmp(names[i], name))
			return i;
	return count;
}

const char *lien_part_state_name(enum lien_part_state state)
{
	return states[state];
}

const char *lien_node_word_name(enum lien_node_word word)
{
	return words[word];
}

enum lien_part_state lien_part_state_of(const char *name)
{
	return find(states, LIEN_PART_STATES, name);
}

enum lien_node_word lien_node_word_of(const char *name)
{
	return find(words, LIEN_WORDS, name);
}
