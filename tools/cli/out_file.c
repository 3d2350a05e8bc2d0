// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/cli/options.h"
#include "tools/text/complain.h"

static bool is_file(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISREG(st.st_mode);
}

FILE *lien_out_open(const char *command, const char *path, bool force)
{
	const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
	int fd = open(path, flags | O_EXCL, 0666);
	FILE *out;

	if (fd < 0 && errno == EEXIST && !force && is_file(path)) {
		lien_complain(command, "%s exists: --force overwrites it", path);
		return NULL;
	}
	if (fd < 0 && errno == EEXIST)
		fd = open(path, flags, 0666);
	out = fd < 0 ? NULL : fdopen(fd, "w");
	if (!out)
		lien_complain(command, "cannot write %s: %s", path, strerror(errno));
	return out;
}

int lien_out_close(const char *command, const char *path, FILE *out, int err)
{
	if (!err && (fflush(out) || ferror(out)))
		err = errno ? -errno : -EIO;
	if (fclose(out) && !err)
		err = -errno;
	if (!err)
		return LIEN_EXIT_OK;
	if (is_file(path))
		unlink(path);
	return lien_complain(command, "cannot write %s: %s", path, strerror(-err));
}
