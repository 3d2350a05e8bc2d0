// SPDX-License-Identifier: BSD-2-Clause
/* What orders answer. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include "control/orders/control.h"

/* An agent that does not read for this long is gone; its successor asks again. */
#define SEND_LIMIT_MS 30000

void lien_control_forgive(struct lien_control *control)
{
	control->reply.text[0] = 0;
	control->reply.arg = 0;
}

int lien_control_fail(struct lien_control *control, int result, uint64_t where, const char *what)
{
	struct lien_wire_header *reply = &control->reply;
	char error[64] = "";
	size_t length;

	if (reply->text[0])
		return result; /* report the first failure */
	if (result > 0)
		lien_driver_error(control->driver, result, error, sizeof(error));
	reply->arg = where;
	strncpy(reply->text, what, sizeof(reply->text) - 1);
	length = strlen(reply->text);
	if (error[0] && length + 2 + strlen(error) < sizeof(reply->text)) {
		strcpy(reply->text + length, ": ");
		strcpy(reply->text + length + 2, error);
	}
	return result;
}

int lien_control_reply(int fd, const struct lien_wire_header *header, const void *body, size_t size,
	const int *fds, unsigned fds_count)
{
	struct lien_wire_header head = *header;
	struct iovec parts[2] = {{&head, sizeof(head)}, {(void *)body, size}};
	struct pollfd ready = {.fd = fd, .events = POLLOUT};
	int err, waited_ms = 0;

	head.length = sizeof(head) + size;
	while ((err = lien_pass_send(fd, parts, size ? 2 : 1, fds, fds_count))) {
		if (err == -ETOOMANYREFS && waited_ms < SEND_LIMIT_MS) {
			waited_ms += 10; /* the agent is reading them */
			usleep(10000);
		} else if (err != -EAGAIN || poll(&ready, 1, SEND_LIMIT_MS) <= 0) {
			break;
		}
	}
	return err;
}

int lien_control_send(struct lien_control *control, int fd, const void *body, size_t size)
{
	return lien_control_reply(fd, &control->reply, body, size, NULL, 0);
}
