/* SPDX-License-Identifier: BSD-2-Clause */
/* `lien check` without --deep: what is odd about the memory of this node. */
#ifndef LIEN_TOOLS_FINDINGS_H
#define LIEN_TOOLS_FINDINGS_H

#include <jansson.h>
#include <stdbool.h>

/* The answer to the operation `check`, worst first, with the remedies; of an agent, or of what was
 * recorded. */
void lien_findings_print(const json_t *result, bool recorded);
/* True when one of them is more than a note. */
bool lien_findings_any(const json_t *result);

#endif
