// SPDX-License-Identifier: BSD-2-Clause
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/client.h>
#include "agent/core/log.h"
#include "agent/daemon/run.h"
#include "loader/features.h"
#include "tools/cli/commands.h"
#include "tools/cli/options.h"
#include "tools/cli/preload.h"

#define JOURNAL_MIB	64
#define PREPARE_PERCENT 25
#define JOURNAL_MIB_MAX 65536
#define THREADS_MAX	1048576

static const char *const examples[] = {"lien agent", "watch this node until Ctrl-C",
	"lien agent --library /opt/cuda/libcuda.so.1", "also a driver in an unusual place",
	"lien agent --clean", "for good: take the probes that an agent has left off running jobs",
	NULL};

static const struct lien_usage usage = {
	.command = "lien agent",
	.arguments = "",
	.summary =
		"Watches every process that uses CUDA on this node and serves the other commands "
		"on its socket: root sees everything, other users their own processes. Runs in the "
		"foreground, "
		"as "
		"root, and gives up most rights once it has started; one per node. When it is "
		"stopped or killed while processes use CUDA, its probes stay in them, and the next "
		"agent knows what this one knew and what happened since.",
	.apart = (const char *const[]){"no-prepare", "prepare", NULL},
	.examples = examples,
};

/* Prints the first requirement that this machine lacks, in one line; `lien doctor` lists them
 * all. */
static bool machine_lacks(void)
{
	struct lien_feature features[LIEN_FEATURES_MAX];
	int n = lien_features_check(features, LIEN_FEATURES_MAX), i;

	for (i = 0; i < n; i++)
		if (features[i].status == LIEN_FEATURE_FAIL) {
			lien_log(3, "%s: %s: %s", features[i].name, features[i].found,
				features[i].remedy);
			return true;
		}
	return false;
}

static bool find_user(const char *name, struct lien_agent_config *config)
{
	const struct passwd *user = getpwnam(name);
	unsigned long number = 0;

	if (!user && strcmp(name, "0") && !lien_parse_number(name, UINT32_MAX - 1, &number))
		return false;
	config->has_metrics_user = true;
	config->metrics_user = user ? user->pw_uid : number;
	return true;
}

int lien_cmd_agent(int argc, char **argv)
{
	const char *socket = NULL, *library = NULL, *on_stop = NULL, *metrics_user = NULL;
	unsigned long ring = 0, threads = 0, journal_size = JOURNAL_MIB;
	bool no_multi = false, no_bound = false, no_journal = false, clean = false,
	     no_prepare = false, no_attach = false, no_ras = false, force = false;
	unsigned long prepare = 0;
	uint64_t host_limit = 0;
	const struct lien_option options[] = {
		{"library", LIEN_OPTION_STRING, &library, "FILE",
			"probe this libcuda, libcudart or libnccl as well", 0},
		{"no-uprobe-multi", LIEN_OPTION_FLAG, &no_multi, NULL,
			"attach each probe by itself, as on kernels before 6.6", 0},
		{"no-process-probes", LIEN_OPTION_FLAG, &no_bound, NULL,
			"bind no probes to single processes, as on kernels before 6.10", 0},
		{"ring", LIEN_OPTION_NUMBER, &ring, "MIB",
			"room for events that wait to be read, a power of 2 (default 16)", 1024},
		{"threads", LIEN_OPTION_NUMBER, &threads, "N",
			"threads that use CUDA and can be followed (default 32768)", THREADS_MAX},
		{"no-journal", LIEN_OPTION_FLAG, &no_journal, NULL,
			"leave nothing to the next agent when this one ends", 0},
		{"on-stop", LIEN_OPTION_CHOICE, &on_stop, "detach|keep",
			"detach: take the probes off running jobs, of which the next agent then "
			"knows nothing; keep: the next agent goes on (default while a process "
			"uses CUDA)",
			0},
		{"journal-size", LIEN_OPTION_NUMBER, &journal_size, "MIB",
			"a snapshot replaces a longer journal (default 64)", JOURNAL_MIB_MAX},
		{"host-limit", LIEN_OPTION_SIZE, &host_limit, "SIZE",
			"host memory for offloads, all processes together: 64G (default: no limit)",
			0},
		{"no-attach", LIEN_OPTION_FLAG, &no_attach, NULL,
			"put the control library into processes only on request", 0},
		{"prepare", LIEN_OPTION_NUMBER, &prepare, "PERCENT",
			"of the available host memory, at most, is pinned before the first offload "
			"(default 25, and none in memory cgroups with a limit)",
			100},
		{"no-prepare", LIEN_OPTION_FLAG, &no_prepare, NULL,
			"pin host memory at the first offload, not before", 0},
		{"no-ras", LIEN_OPTION_FLAG, &no_ras, NULL,
			"do not ask NCCL's RAS for communicators that were made before", 0},
		{"metrics-user", LIEN_OPTION_STRING, &metrics_user, "USER",
			"a user, or a number, who gets the metrics of all processes, as root does",
			0},
		{"clean", LIEN_OPTION_FLAG, &clean, NULL,
			"remove what earlier agents left for the next one, and end", 0},
		{"force", LIEN_OPTION_FLAG, &force, NULL,
			"with --clean: even if running processes can no longer be moved then", 0},
		LIEN_SOCKET_OPTION(&socket), {}};
	const char *libraries[] = {NULL, NULL};
	char control[PATH_MAX];
	struct lien_agent_config config = {.libraries = libraries};
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (ring & (ring - 1))
		return lien_usage_error(&usage, "--ring '%lu' is not a power of 2", ring);
	if (force && !clean)
		return lien_usage_error(&usage, "--force needs --clean");
	if (on_stop)
		config.on_stop = strcmp(on_stop, "keep") ? LIEN_ON_STOP_DETACH : LIEN_ON_STOP_KEEP;
	if (no_journal && config.on_stop == LIEN_ON_STOP_KEEP)
		return lien_usage_error(
			&usage, "--on-stop keep and --no-journal cannot be combined");
	if (metrics_user && !find_user(metrics_user, &config))
		return lien_usage_error(&usage, "--metrics-user '%s' is not a user", metrics_user);
	config.socket = socket ? socket : getenv("LIEN_SOCKET");
	if (!config.socket || !config.socket[0])
		config.socket = LIEN_CLIENT_SOCKET;
	if (clean)
		return lien_agent_clean(config.socket, force) ? LIEN_EXIT_FAILURE : LIEN_EXIT_OK;
	if (machine_lacks())
		return LIEN_EXIT_FAILURE;
	libraries[0] = library;
	config.no_multi = no_multi;
	config.no_bound = no_bound;
	if (!lien_preload_find(control, sizeof(control)))
		config.control = control;
	config.ring_mib = ring;
	config.threads = threads;
	config.no_journal = no_journal;
	config.journal_limit = (uint64_t)journal_size << 20;
	config.host_limit = host_limit;
	config.prepare_limited = prepare; /* asked for: no surprise */
	config.prepare_percent = no_prepare ? 0 : prepare ? prepare : PREPARE_PERCENT;
	config.no_attach = no_attach;
	config.no_ras = no_ras;
	return lien_agent_run(&config) ? LIEN_EXIT_FAILURE : LIEN_EXIT_OK;
}
