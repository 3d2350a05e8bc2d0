// SPDX-License-Identifier: BSD-2-Clause
#include "loader/close_later.h"

#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#define STACK 65536

static unsigned under_way;

void lien_close_later_count(int more)
{
	__atomic_add_fetch(&under_way, more, __ATOMIC_ACQ_REL);
}

bool lien_close_later_busy(void)
{
	return __atomic_load_n(&under_way, __ATOMIC_ACQUIRE);
}

static void *close_now(void *fd)
{
	close((int)(intptr_t)fd);
	lien_close_later_count(-1);
	return NULL;
}

/* Each in a thread of its own: those that wait for the kernel together wait for one grace period.
 */
void lien_close_later(int fd)
{
	pthread_attr_t attr;
	pthread_t thread;
	int err = pthread_attr_init(&attr);

	lien_close_later_count(1);
	if (!err) {
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&attr, STACK);
		err = pthread_create(&thread, &attr, close_now, (void *)(intptr_t)fd);
		pthread_attr_destroy(&attr);
	}
	if (err)
		close_now((void *)(intptr_t)fd);
}
