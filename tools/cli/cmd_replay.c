// SPDX-License-Identifier: BSD-2-Clause
/* `lien replay` is the program lien-replay, which lies beside lien. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/commands.h"
#include "tools/cli/options.h"
#include "tools/cli/preload.h"
#include "tools/text/complain.h"

int lien_cmd_replay(int argc, char **argv)
{
	char directory[PATH_MAX], program[PATH_MAX + sizeof("/lien-replay")];

	(void)argc;
	if (!lien_own_directory(directory, sizeof(directory)))
		return lien_complain(
			"lien replay", "cannot read /proc/self/exe: %s", strerror(errno));
	snprintf(program, sizeof(program), "%s/lien-replay", directory);
	execv(program, argv);
	return lien_complain("lien replay", "cannot run %s: %s: `make install` puts it there",
		program, strerror(errno));
}
