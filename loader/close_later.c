// SPDX-License-Identifier: BSD-2-Clause
#include "loader/close_later.h"

#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#define STACK 65536

static void *close_now(void *fd)
{
	close((int)(intptr_t)fd);
	return NULL;
}

/* Each in a thread of its own: those that wait for the kernel together wait for one grace period.
 */
void lien_close_later(int fd)
{
	pthread_attr_t attr;
	pthread_t thread;
	int err = pthread_attr_init(&attr);

	if (!err) {
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&attr, STACK);
		err = pthread_create(&thread, &attr, close_now, (void *)(intptr_t)fd);
		pthread_attr_destroy(&attr);
	}
	if (err)
		close(fd);
}
