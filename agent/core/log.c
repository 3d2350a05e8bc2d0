// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <lien/clock.h>

/* systemd sets JOURNAL_STREAM to the journal's "device:inode"; children whose stderr goes elsewhere
 * inherit it, too. */
static bool is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat st;

	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
	       !fstat(STDERR_FILENO, &st) && st.st_dev == device && st.st_ino == inode;
}

static void begin(char *text, size_t size, int level)
{
	static const char *const levels[] = {
		"emergency", "alert", "critical", "error", "warning", "notice", "info", "debug"};
	time_t now = time(NULL);
	char when[32] = "";
	struct tm local;

	if (is_journal()) {
		snprintf(text, size, "<%d>", level);
		return;
	}
	if (localtime_r(&now, &local))
		strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &local);
	snprintf(text, size, "lien agent: %s %s: ", when, levels[level & 7]);
}

void lien_log(int level, const char *format, ...)
{
	char start[80], text[2048];
	struct iovec line[3];
	va_list args;

	begin(start, sizeof(start), level);
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	/* One write: other processes may write to the same file. */
	line[0] = (struct iovec){start, strlen(start)};
	line[1] = (struct iovec){text, strlen(text)};
	line[2] = (struct iovec){"\n", 1};
	if (writev(STDERR_FILENO, line, 3) < 0)
		return; /* there is nowhere to say it */
}

struct lien_log_size lien_log_size(uint64_t bytes)
{
	struct lien_log_size size;

	if (bytes < 1ull << 30)
		snprintf(size.text, sizeof(size.text), "%.1f MiB", bytes / 1048576.0);
	else
		snprintf(size.text, sizeof(size.text), "%.1f GiB", bytes / 1073741824.0);
	return size;
}

uint64_t lien_now_ns(void)
{
	return lien_clock_ns();
}
