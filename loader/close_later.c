// SPDX-License-Identifier: BSD-2-Clause
#include "loader/close_later.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define STACK 65536

static unsigned under_way;

struct closing {
	void (*work)(void *arg);
	void *arg;
};

bool lien_close_later_busy(void)
{
	return __atomic_load_n(&under_way, __ATOMIC_ACQUIRE);
}

static void *close_now(void *of)
{
	struct closing *closing = of;

	closing->work(closing->arg);
	free(closing);
	__atomic_sub_fetch(&under_way, 1, __ATOMIC_ACQ_REL);
	return NULL;
}

/* Each in a thread of its own: those that wait for the kernel together wait for one grace period.
 */
void lien_close_later_by(void (*work)(void *arg), void *arg)
{
	struct closing *closing = malloc(sizeof(*closing));
	pthread_attr_t attr;
	pthread_t thread;
	int err;

	if (!closing) {
		work(arg);
		return;
	}
	*closing = (struct closing){work, arg};
	__atomic_add_fetch(&under_way, 1, __ATOMIC_ACQ_REL);
	err = pthread_attr_init(&attr);
	if (!err) {
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&attr, STACK);
		err = pthread_create(&thread, &attr, close_now, closing);
		pthread_attr_destroy(&attr);
	}
	if (err)
		close_now(closing);
}

static void close_one(void *fd)
{
	close((int)(intptr_t)fd);
}

void lien_close_later(int fd)
{
	lien_close_later_by(close_one, (void *)(intptr_t)fd);
}
