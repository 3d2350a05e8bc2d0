// SPDX-License-Identifier: BSD-2-Clause
#include "tools/replay/software.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lien/client.h>

#include "tools/replay/driver.h"
#include "tools/text/complain.h"

#define DEVICES_DIR "/run/lien-softcuda" /* softcuda's default */
#define DEVICES_MAX 16			 /* that it can have */
#define PROBED_MS   2000
#define PROBED_EACH 10
#define REQUEST_MS  500

/* In a mount namespace of this process and its children: the devices' memory needs no removal. */
static int own_mounts(const char *command)
{
	if (unshare(CLONE_NEWNS))
		return lien_complain(command,
			"--software needs root, to mount its devices' memory: %s", strerror(errno));
	if (mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL))
		return lien_complain(command, "cannot make mounts private: %s", strerror(errno));
	if ((mkdir(DEVICES_DIR, 0755) && errno != EEXIST) ||
		mount("lien-softcuda", DEVICES_DIR, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"))
		return lien_complain(command, "cannot mount %s: %s", DEVICES_DIR, strerror(errno));
	return 0;
}

static int set_environment(const char *command, const char *folder, int devices)
{
	const char *before = getenv("LD_LIBRARY_PATH");
	char number[16], *list;
	int err;

	snprintf(number, sizeof(number), "%d", devices < DEVICES_MAX ? devices : DEVICES_MAX);
	if (asprintf(&list, "%s%s%s", folder, before && *before ? ":" : "", before ? before : "") <
		0)
		return lien_complain(command, "out of memory");
	err = setenv("LD_LIBRARY_PATH", list, 1) || setenv("LIEN_SOFTCUDA_DEVICES", number, 0) ||
	      unsetenv("CUDA_VISIBLE_DEVICES");
	free(list);
	return err ? lien_complain(command, "out of memory") : 0;
}

static bool is_probed(const json_t *status, const struct stat *file)
{
	struct stat st;
	json_t *entry;
	size_t i;

	json_array_foreach (json_object_get(status, "libraries"), i, entry) {
		const char *path = json_string_value(json_object_get(entry, "path"));

		if (path && !stat(path, &st) && st.st_dev == file->st_dev &&
			st.st_ino == file->st_ino)
			return true;
	}
	return false;
}

/* Maps the library until the agent, if there is one, has probed it. */
static void show(struct lien_client *client, const char *path)
{
	json_t *request, *status;
	struct stat file;
	bool probed = false;
	int ms;

	if (stat(path, &file) || !dlopen(path, RTLD_LAZY | RTLD_LOCAL))
		return;
	request = json_pack("{s:s}", "op", "status");
	for (ms = 0; !probed && ms < PROBED_MS; ms += PROBED_EACH) {
		if (lien_client_call(client, request, &status))
			break;
		probed = is_probed(status, &file);
		json_decref(status);
		if (!probed)
			usleep(PROBED_EACH * 1000);
	}
	json_decref(request);
}

/* In a process that makes no call of CUDA's: else the agent would know this one, too. */
static void show_agent(const char *driver)
{
	struct lien_client *client;
	char nccl[PATH_MAX];
	pid_t pid = fork();

	if (pid > 0)
		waitpid(pid, NULL, 0);
	if (pid)
		return;
	client = lien_client_new(NULL);
	if (client) {
		lien_client_timeout(client, REQUEST_MS);
		/* First: without the driver it makes no process that the agent would warn of. */
		if (lien_replay_find("replay/libnccl.so.2", nccl, sizeof(nccl)))
			show(client, nccl);
		show(client, driver);
	}
	_exit(0);
}

int lien_replay_software(const char *command, int devices)
{
	const char *dir = getenv("LIEN_SOFTCUDA_DIR");
	char found[PATH_MAX], path[PATH_MAX];
	char *slash;

	if (!lien_replay_find("softcuda/libcuda.so.1", found, sizeof(found)) ||
		!realpath(found, path))
		return lien_complain(command,
			"the software driver, softcuda/libcuda.so.1, is neither beside lien nor in "
			"../lib/lien of that: build it with `make`");
	if ((!dir || !*dir) && own_mounts(command))
		return -1;
	show_agent(path);
	slash = strrchr(path, '/');
	*slash = '\0';
	return set_environment(command, path, devices);
}
