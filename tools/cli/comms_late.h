/* SPDX-License-Identifier: BSD-2-Clause */
/* The "late" list of comms: processes that ran before lien watched them. */
#ifndef LIEN_TOOLS_COMMS_LATE_H
#define LIEN_TOOLS_COMMS_LATE_H

#include <stdbool.h>

#include <jansson.h>

/* Prints the members that NCCL's RAS names and that nobody has used since, then the processes that
 * may have other members. Returns true if it printed anything; begins with an empty line if
 * `more`. */
bool lien_print_late(const json_t *late, bool more);

#endif
