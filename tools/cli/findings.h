/* SPDX-License-Identifier: BSD-2-Clause */
/* `lien check` without --deep: anomalies in the memory of this node. */
#ifndef LIEN_TOOLS_FINDINGS_H
#define LIEN_TOOLS_FINDINGS_H

#include <jansson.h>
#include <stdbool.h>

/* Prints the answer to the operation `check`, worst first, with the remedies; from an agent or a
 * recording. */
void lien_findings_print(const json_t *result, bool recorded);
/* Returns true if one of them is more than a note. */
bool lien_findings_any(const json_t *result);

#endif
