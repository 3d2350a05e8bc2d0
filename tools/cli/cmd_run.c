// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/sanitizer.h>

#include "tools/cli/commands.h"
#include "tools/cli/options.h"
#include "tools/cli/preload.h"
#include "tools/text/complain.h"

static const char *const examples[] = {"lien run -- torchrun --nproc-per-node 2 train.py",
	"every rank can be told to offload",
	"LIEN_CONTROL=/opt/lien/liblien-control.so lien run -- ./job",
	"take the control library from there", "lien run --torch-memory-saver -- python3 serve.py",
	"regions of torch_memory_saver are paused and resumed by the agent", NULL};

static const struct lien_usage usage = {
	.command = "lien run",
	.arguments = "-- COMMAND [ARGUMENTS]",
	.summary =
		"Starts a program with the control library in it and in all its children, so that "
		"the agent can offload and restore their memory. The library is $LIEN_CONTROL, or "
		"liblien-control.so next to the lien program, or in ../lib/lien from there.",
	.min = 1,
	.max = -1,
	.rest = true,
	.examples = examples,
};

/* Does compute-sanitizer check the program, or is it the program? */
static bool is_checked(const char *program)
{
	const char *slash = strrchr(program, '/');

	return getenv(LIEN_SANITIZER_VARIABLE) ||
	       !strcmp(slash ? slash + 1 : program, LIEN_SANITIZER);
}

int lien_cmd_run(int argc, char **argv)
{
	const char *set = getenv("LIEN_PLAIN");
	bool plain = false, saver = false;
	const struct lien_option options[] = {
		{"plain", LIEN_OPTION_FLAG, &plain, NULL,
			"leave plain memory (cudaMalloc) to the driver: it stays on the GPU", 0},
		{"torch-memory-saver", LIEN_OPTION_FLAG, &saver, NULL,
			"torch_memory_saver takes the control library for its own hook", 0},
		{}};
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (plain)
		unsetenv("LIEN_PLAIN");
	else if (!(set && *set) && is_checked(argv[0]))
		lien_complain(usage.command, LIEN_SANITIZER
			": plain memory (cudaMalloc) is left to the driver, as with --plain, so "
			"that accesses beyond small allocations are found; it stays on the GPU");
	if (lien_preload_set(usage.command, argv[0], plain, saver))
		return LIEN_EXIT_FAILURE;
	execvp(argv[0], argv);
	return lien_preload_failed(usage.command, argv[0], errno);
}
