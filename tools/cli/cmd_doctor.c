// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "loader/discover/elf_symbols.h"
#include "loader/features.h"
#include "loader/discover/libraries.h"
#include "loader/probes/uprobe.h"
#include "tools/cli/commands.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/cli/preload.h"
#include "tools/cli/query.h"

#define CHECKS_MAX	  (LIEN_FEATURES_MAX + 8)
#define CONNECT_MS	  2000
#define SOFTWARE_FUNCTION "soft_mount_devices"

static const char *const examples[] = {"lien doctor",
	"everything that the agent and the jobs need, with remedies",
	"lien doctor --json | jq -r '.checks[] | select(.status != \"ok\") | .remedy'",
	"only what is left to do", NULL};

static const struct lien_usage usage = {
	.command = "lien doctor",
	.arguments = "",
	.summary =
		"Checks what this machine has and lacks: the kernel, permissions, libraries, the "
		"control library, GPUs, the agent. Needs no agent and changes nothing. Exit code "
		"1: something is missing that lien cannot work without. Where an agent answers, "
		"what only an agent needs does not count.",
	.examples = examples,
};

struct libraries {
	unsigned count[LIEN_LIB_COUNT];
	char first[LIEN_LIB_COUNT][PATH_MAX];
	char software[PATH_MAX]; /* the software CUDA driver */
};

static int is_its_function(void *context, const struct lien_elf_export *export)
{
	(void)context;
	return export->function && !strcmp(export->name, SOFTWARE_FUNCTION);
}

/* No other driver has this function. */
static bool is_software_driver(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool is;

	if (fd < 0)
		return false;
	is = lien_elf_exports(fd, is_its_function, NULL) == 1;
	close(fd);
	return is;
}

static int note_library(const struct lien_library_file *file, void *arg)
{
	struct libraries *libraries = arg;

	if (!libraries->count[file->library]++)
		snprintf(libraries->first[file->library], PATH_MAX, "%s", file->path);
	if (file->library == LIEN_LIB_CUDA && !*libraries->software &&
		is_software_driver(file->open_path))
		snprintf(libraries->software, PATH_MAX, "%s", file->path);
	return 0;
}

static void check_library(struct lien_feature *f, const struct libraries *libraries,
	enum lien_library library, const char *remedy)
{
	if (!libraries->count[library]) {
		lien_feature_found(f, *remedy ? LIEN_FEATURE_WARN : LIEN_FEATURE_OK,
			"none yet: noticed when a process maps one");
		lien_feature_remedy(f, "%s", remedy);
	} else if (libraries->count[library] == 1) {
		lien_feature_found(f, LIEN_FEATURE_OK, "%s", libraries->first[library]);
	} else {
		lien_feature_found(f, LIEN_FEATURE_OK, "%s and %u more", libraries->first[library],
			libraries->count[library] - 1);
	}
}

static void check_control(struct lien_feature *f)
{
	char path[PATH_MAX];

	f->name = "control";
	if (!lien_preload_find(path, sizeof(path))) {
		lien_feature_found(f, LIEN_FEATURE_OK, "%s", path);
		return;
	}
	lien_feature_found(f, LIEN_FEATURE_FAIL, "%s is not in %s", LIEN_CONTROL_NAME, path);
	lien_feature_remedy(f, "build it with `make`, or set LIEN_CONTROL to its path");
}

/* The agent attaches its probes by the best way that the kernel has. */
static const char *gate_way(bool multi)
{
	if (!multi)
		return "single probes that all processes pass";
	return lien_uprobe_multi_of_process_supported() ? "probes of single processes"
							: "probes that all processes pass";
}

/* `may_load`: BPF programs can be loaded, so that the kernel can be asked. */
static void check_gate(struct lien_feature *f, bool may_load)
{
	const bool multi = may_load && lien_uprobe_multi_supported();
	const char *lacks = may_load ? lien_uprobe_gate_lacks(multi) : NULL;

	f->name = "gate";
	if (!may_load) {
		lien_feature_found(f, LIEN_FEATURE_WARN, "not known: BPF cannot be used");
		lien_feature_remedy(f, "run this as root");
	} else if (lacks) {
		lien_feature_found(f, LIEN_FEATURE_WARN, "threads cannot be held back");
		lien_feature_remedy(f, "offload jobs while they pause. The kernel: %s", lacks);
	} else {
		lien_feature_found(
			f, LIEN_FEATURE_OK, "threads can be held back, by %s", gate_way(multi));
	}
}

static bool may_load(const struct lien_feature *checks, unsigned count)
{
	unsigned i;

	for (i = 0; i < count; i++)
		if (checks[i].status == LIEN_FEATURE_FAIL &&
			(!strcmp(checks[i].name, "bpf") || !strcmp(checks[i].name, "capabilities")))
			return false;
	return true;
}

static void check_gpu(struct lien_feature *f, const struct libraries *libraries)
{
	f->name = "gpu";
	if (!access("/dev/nvidiactl", F_OK)) {
		lien_feature_found(f, LIEN_FEATURE_OK, "/dev/nvidiactl");
		return;
	}
	if (*libraries->software) {
		lien_feature_found(
			f, LIEN_FEATURE_OK, "the software driver, %s", libraries->software);
		return;
	}
	lien_feature_found(f, LIEN_FEATURE_WARN, "no /dev/nvidiactl and no software driver");
	lien_feature_remedy(f,
		"install the NVIDIA driver (or modprobe nvidia); to try lien without a GPU: "
		"`lien replay --software`");
}

/* Is there a process whose code the agent found rewritten? */
static bool check_rewritten(struct lien_feature *f, const json_t *status)
{
	const json_t *pids = json_object_get(json_object_get(status, "unprobed"), "rewritten");

	f->name = "rewritten";
	if (!json_array_size(pids))
		return false;
	lien_feature_found(f, LIEN_FEATURE_WARN,
		"process %" JSON_INTEGER_FORMAT
		" has rewritten functions of CUDA or NCCL in its memory",
		json_integer_value(json_array_get(pids, 0)));
	lien_feature_remedy(f, "its calls are not seen: start it without profilers and memory "
			       "hooks (for UCX: UCX_MEM_CUDA_HOOK_MODE=none)");
	return true;
}

/* Returns true if there is an agent that answers; *answer: what it says, which the
 * caller gives back. */
static bool check_agent(struct lien_feature *f, const char *socket, json_t **answer)
{
	struct lien_client *client = lien_client_new(socket);
	json_t *request = json_pack("{s:s}", "op", "status"), *status = NULL;
	const json_t *other;
	int err;

	f->name = "agent";
	if (!client || !request) {
		lien_feature_found(f, LIEN_FEATURE_FAIL, "out of memory");
		json_decref(request);
		lien_client_free(client);
		return false;
	}
	lien_client_timeout(client, CONNECT_MS);
	err = lien_client_call(client, request, &status);
	json_decref(request);
	switch (err) {
	case 0:
		other = json_array_get(json_object_get(status, "other_agents"), 0);
		if (!other) {
			lien_feature_found(
				f, LIEN_FEATURE_OK, "answers on %s", lien_client_path(client));
			break;
		}
		lien_feature_found(f, LIEN_FEATURE_WARN,
			"answers on %s, and another one, pid %" JSON_INTEGER_FORMAT
			", watches the same processes",
			lien_client_path(client), json_integer_value(other));
		lien_feature_remedy(f, "stop one: a process takes orders from one agent only");
		break;
	case -ENOENT:
	case -ECONNREFUSED:
		lien_feature_found(f, LIEN_FEATURE_WARN, "none on %s", lien_client_path(client));
		lien_feature_remedy(f, "start one with `lien agent` (as root)");
		break;
	default:
		lien_feature_found(f, LIEN_FEATURE_WARN, "%s", lien_client_error(client));
		lien_feature_remedy(f, err == -ETIMEDOUT ? "see its log" : "run this as root");
	}
	*answer = status;
	lien_client_free(client);
	return !err;
}

/* What the agent needs, a working one has; who runs this need not have it. */
static void excuse(struct lien_feature *f)
{
	if (f->status != LIEN_FEATURE_FAIL)
		return;
	f->status = LIEN_FEATURE_WARN;
	lien_feature_remedy(f, "only to start another agent: the one that runs has what it needs");
}

static unsigned check_all(struct lien_feature *checks, const char *socket)
{
	static struct libraries libraries;
	const unsigned features = lien_features_check(checks, LIEN_FEATURES_MAX);
	unsigned n = features, i;
	json_t *status = NULL;

	check_gate(&checks[n], may_load(checks, n));
	n++;
	lien_libraries_each(note_library, &libraries);
	checks[n].name = "libcuda";
	check_library(&checks[n++], &libraries, LIEN_LIB_CUDA,
		"install the NVIDIA driver, unless jobs bring one (containers, the software "
		"driver)");
	checks[n].name = "libcudart";
	check_library(&checks[n++], &libraries, LIEN_LIB_CUDART, "");
	checks[n].name = "libnccl";
	check_library(&checks[n++], &libraries, LIEN_LIB_NCCL, "");
	check_control(&checks[n++]);
	check_gpu(&checks[n++], &libraries);
	if (check_agent(&checks[n++], socket, &status))
		for (i = 0; i < features; i++)
			excuse(&checks[i]);
	n += check_rewritten(&checks[n], status);
	json_decref(status);
	return n;
}

static void print_plain(const struct lien_feature *checks, unsigned count)
{
	static const enum lien_color colors[] = {
		[LIEN_FEATURE_OK] = LIEN_COLOR_GREEN,
		[LIEN_FEATURE_WARN] = LIEN_COLOR_YELLOW,
		[LIEN_FEATURE_FAIL] = LIEN_COLOR_RED,
	};

	for (unsigned i = 0; i < count; i++) {
		const struct lien_feature *f = &checks[i];

		lien_print_marked(stdout, 6, colors[f->status], "%-4s %s: %s%s%s",
			lien_feature_status_name(f->status), f->name, f->found,
			*f->remedy ? " — " : "", f->remedy);
	}
}

static void print_json(const struct lien_feature *checks, unsigned count, bool ok)
{
	json_t *list = json_array(), *all;

	for (unsigned i = 0; i < count; i++) {
		const struct lien_feature *f = &checks[i];
		json_t *check = json_pack("{s:s, s:s, s:s, s:s}", "name", f->name, "status",
			lien_feature_status_name(f->status), "found", f->found, "remedy",
			f->remedy);

		/* JSON cannot hold a path that is not UTF-8. */
		if (!check)
			check = json_pack("{s:s, s:s, s:s, s:s}", "name", f->name, "status",
				lien_feature_status_name(f->status), "found", "not UTF-8", "remedy",
				"");
		json_array_append_new(list, check);
	}
	all = json_pack("{s:o, s:b}", "checks", list, "ok", ok);
	lien_print_json(stdout, all);
	json_decref(all);
}

int lien_cmd_doctor(int argc, char **argv)
{
	static struct lien_feature checks[CHECKS_MAX];
	const char *socket = NULL;
	bool json = false, ok = true;
	const struct lien_option options[] = {LIEN_CLIENT_OPTIONS(&json, &socket), {}};
	unsigned count;
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	count = check_all(checks, socket);
	for (unsigned i = 0; i < count; i++)
		ok &= checks[i].status != LIEN_FEATURE_FAIL;
	if (json)
		print_json(checks, count, ok);
	else
		print_plain(checks, count);
	return ok ? LIEN_EXIT_OK : LIEN_EXIT_FAILURE;
}
