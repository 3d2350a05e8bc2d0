// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/findings.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

static const char *const levels[] = {"leak", "warning", "note"};
static const enum lien_color colors[] = {LIEN_COLOR_RED, LIEN_COLOR_YELLOW, LIEN_COLOR_PLAIN};

#define LEVELS (sizeof(levels) / sizeof(levels[0]))

/* "0x7f00 (2.0 MiB), fd 31, and 4 more" */
static char *evidence_of(const json_t *finding)
{
	const json_t *list = json_object_get(finding, "evidence"), *entry;
	uint64_t count = lien_get_number(finding, "count");
	char *text = NULL;
	size_t i;

	json_array_foreach (list, i, entry) {
		if (json_object_get(entry, "fd"))
			text = lien_append(text, ", ", "fd %" PRIu64, lien_get_number(entry, "fd"));
		else if (json_object_get(entry, "idle_ms"))
			text = lien_append(text, ", ", "group %s, rank %" PRIu64,
				lien_get_text(entry, "group"), lien_get_number(entry, "rank"));
		else
			text = lien_append(text, ", ", "%s (%s)", lien_get_text(entry, "address"),
				lien_size(lien_get_number(entry, "bytes")).text);
	}
	if (text && count > json_array_size(list))
		text = lien_append(
			text, ", ", "and %" PRIu64 " more", count - json_array_size(list));
	return text;
}

static void print_finding(const json_t *finding, enum lien_color color)
{
	char *evidence = evidence_of(finding);

	lien_print_marked(stdout, 2, color, "%s: %s: %s", lien_get_text(finding, "level"),
		lien_get_text(finding, "kind"), lien_get_text(finding, "text"));
	if (evidence)
		lien_print_wrapped(stdout, 4, "  at %s", evidence);
	lien_print_wrapped(stdout, 4, "  remedy: %s", lien_get_text(finding, "remedy"));
	free(evidence);
}

void lien_findings_print(const json_t *result, bool recorded)
{
	const json_t *list = json_object_get(result, "findings"), *finding;
	size_t i, level;

	for (level = 0; level < LEVELS; level++)
		json_array_foreach (list, i, finding)
			if (!strcmp(lien_get_text(finding, "level"), levels[level]))
				print_finding(finding, colors[level]);
	if (!json_array_size(list))
		printf("nothing odd was found\n");
	if (!lien_get_true(result, "open_files_known"))
		lien_print_wrapped(stdout, 0,
			"Exported descriptors that are still open could not be looked for: %s.",
			recorded ? "a recording does not have them"
				 : "this kernel does not let lien read them");
}

bool lien_findings_any(const json_t *result)
{
	const json_t *finding;
	size_t i;

	json_array_foreach (json_object_get(result, "findings"), i, finding)
		if (strcmp(lien_get_text(finding, "level"), "note") != 0)
			return true;
	return false;
}
