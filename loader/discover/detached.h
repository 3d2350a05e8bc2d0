/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_DETACHED_H
#define LIEN_DETACHED_H

#include <pthread.h>
#include <stddef.h>

/* Starts a detached thread with a stack of that size. Returns 0, or an error number. */
static inline int lien_detached_start(size_t stack, void *(*run)(void *arg), void *arg)
{
	pthread_attr_t attr;
	pthread_t thread;
	int err = pthread_attr_init(&attr);

	if (err)
		return err;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, stack);
	err = pthread_create(&thread, &attr, run, arg);
	pthread_attr_destroy(&attr);
	return err;
}

#endif
