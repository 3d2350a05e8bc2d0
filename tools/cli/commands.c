// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/commands.h"

const struct lien_command lien_commands[] = {
#define ROW(name, line) {#name, line, lien_cmd_##name},
	LIEN_COMMANDS(ROW)
#undef ROW
};

const unsigned lien_commands_count = sizeof(lien_commands) / sizeof(lien_commands[0]);
