/* SPDX-License-Identifier: BSD-2-Clause */
/* LIEN_LOCKED(&mutex): holds the mutex until the end of the enclosing block, however it is left. */
#ifndef LIEN_LOCKED_H
#define LIEN_LOCKED_H

#include <pthread.h>

static inline pthread_mutex_t *lien_locked_begin(pthread_mutex_t *mutex)
{
	pthread_mutex_lock(mutex);
	return mutex;
}

static inline void lien_locked_end(pthread_mutex_t **mutex)
{
	pthread_mutex_unlock(*mutex);
}

#define LIEN_LOCKED(mutex)                                                                         \
	pthread_mutex_t *lien_locked __attribute__((cleanup(lien_locked_end), unused)) =           \
		lien_locked_begin(mutex)

#endif
