// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/node_slurm.h"

#include <dirent.h>
#include <errno.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/text/complain.h"

extern char **environ;

/* Has the process this in its environment? */
static bool has(const char *pid, const char *variable)
{
	char path[300], *entry = NULL;
	bool found = false;
	size_t room = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%s/environ", pid);
	file = fopen(path, "re");
	while (file && !found && getdelim(&entry, &room, '\0', file) > 0)
		found = !strcmp(entry, variable);
	if (file)
		fclose(file);
	free(entry);
	return found;
}

json_t *lien_slurm_pids(const char *job)
{
	json_t *pids = json_array();
	DIR *proc = opendir("/proc");
	const struct dirent *entry;
	char variable[80];

	snprintf(variable, sizeof(variable), "SLURM_JOB_ID=%.60s", job);
	while (proc && (entry = readdir(proc)))
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
			has(entry->d_name, variable))
			json_array_append_new(pids, json_integer(atol(entry->d_name)));
	if (proc)
		closedir(proc);
	return pids;
}

/* Runs a program, and returns its output without the last line's end; NULL after a message. */
static char *output_of(const char *command, char *const *argv)
{
	posix_spawn_file_actions_t actions;
	char *text = NULL, *grown;
	size_t used = 0;
	int fds[2], err, status;
	ssize_t n;
	pid_t pid;

	if (pipe(fds)) {
		lien_complain(command, "%s", strerror(errno));
		return NULL;
	}
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
	posix_spawn_file_actions_addclose(&actions, fds[0]);
	posix_spawn_file_actions_addclose(&actions, fds[1]);
	err = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(fds[1]);
	for (n = 1; !err && n > 0; used += n > 0 ? n : 0) {
		grown = realloc(text, used + 4097);
		if (!grown)
			break;
		text = grown;
		n = read(fds[0], text + used, 4096);
		text[used + (n > 0 ? n : 0)] = '\0';
	}
	close(fds[0]);
	if (err) {
		lien_complain(command, "cannot start %s: %s", argv[0], strerror(err));
	} else if (waitpid(pid, &status, 0) != pid || status) {
		lien_complain(command, "%s failed: is Slurm there, and the job?", argv[0]);
		err = -1;
	}
	if (err) {
		free(text);
		return NULL;
	}
	while (text && used && text[used - 1] == '\n')
		text[--used] = '\0';
	return text;
}

char *lien_slurm_nodes(const char *command, const char *job)
{
	char *const ask[] = {"squeue", "-h", "-t", "RUNNING", "-o", "%N", "-j", (char *)job, NULL};
	char *list = output_of(command, ask), *names, *at;
	char *const expand[] = {"scontrol", "show", "hostnames", list, NULL};

	if (!list)
		return NULL;
	if (!*list) {
		lien_complain(command, "job %s does not run", job);
		free(list);
		return NULL;
	}
	names = output_of(command, expand);
	for (at = names; at && *at; at++)
		if (*at == '\n')
			*at = ',';
	free(list);
	return names;
}
