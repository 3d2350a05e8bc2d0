// SPDX-License-Identifier: BSD-2-Clause
#include <bsd/sys/tree.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "control/names.h"

/* Told to the application when a new handle's value is a name that still means something else. */
#define FRESH_NAMES 0x4c69656e00000000ull

struct name {
	RB_ENTRY(name) by_name, by_target;
	uint64_t name;
	uint64_t target; /* the real handle, or the token */
	uint32_t parked;
	uint32_t references;
};

static int compare_name(const struct name *a, const struct name *b)
{
	return a->name < b->name ? -1 : a->name > b->name;
}

static int compare_target(const struct name *a, const struct name *b)
{
	if (a->parked != b->parked)
		return a->parked < b->parked ? -1 : 1;
	if (a->target != b->target)
		return a->target < b->target ? -1 : 1;
	return compare_name(a, b);
}

RB_HEAD(names, name);
RB_HEAD(targets, name);
RB_PROTOTYPE(names, name, by_name, compare_name);
RB_PROTOTYPE(targets, name, by_target, compare_target);
RB_GENERATE(names, name, by_name, compare_name)
RB_GENERATE(targets, name, by_target, compare_target)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct names names = RB_INITIALIZER(&names);
static struct targets targets = RB_INITIALIZER(&targets);
static uint64_t fresh;

static struct name *find(uint64_t value)
{
	struct name key = {.name = value};

	return RB_FIND(names, &names, &key);
}

/* The first name of a target; its others follow it. */
static struct name *find_target(uint32_t parked, uint64_t target)
{
	struct name key = {.parked = parked, .target = target}, *name;

	name = RB_NFIND(targets, &targets, &key);
	return name && name->parked == parked && name->target == target ? name : NULL;
}

static void retarget(struct name *name, uint32_t parked, uint64_t target)
{
	RB_REMOVE(targets, &targets, name);
	name->parked = parked;
	name->target = target;
	RB_INSERT(targets, &targets, name);
}

static void forget(struct name *name)
{
	RB_REMOVE(names, &names, name);
	RB_REMOVE(targets, &targets, name);
	free(name);
}

static struct name *add(uint64_t value, uint32_t parked, uint64_t target, uint32_t references)
{
	struct name *name = calloc(1, sizeof(*name));

	if (!name)
		return NULL;
	name->name = value;
	name->parked = parked;
	name->target = target;
	name->references = references;
	if (RB_INSERT(names, &names, name)) {
		free(name);
		return NULL;
	}
	RB_INSERT(targets, &targets, name);
	return name;
}

int lien_names_park(uint64_t real, uint64_t token, uint32_t references)
{
	struct name *name;
	int err = 0;

	pthread_mutex_lock(&lock);
	if (!find_target(0, real)) {
		/* Known by the driver's own value until now. */
		if (references && !find(real) && !add(real, 1, token, references))
			err = -ENOMEM;
	} else {
		while ((name = find_target(0, real)))
			retarget(name, 1, token);
	}
	pthread_mutex_unlock(&lock);
	return err;
}

void lien_names_revive(uint64_t token, uint64_t real)
{
	struct name *name;

	pthread_mutex_lock(&lock);
	while ((name = find_target(1, token)))
		retarget(name, 0, real);
	pthread_mutex_unlock(&lock);
}

uint64_t lien_names_real(uint64_t value)
{
	struct name *name;

	pthread_mutex_lock(&lock);
	name = find(value);
	if (name) /* what is away has no handle: the driver refuses 0 */
		value = name->parked ? 0 : name->target;
	pthread_mutex_unlock(&lock);
	return value;
}

/* A value that means nothing else. With the lock held. */
static uint64_t tell(uint64_t real)
{
	uint64_t value = real;

	if (!find(real))
		return real;
	do
		value = FRESH_NAMES + ++fresh;
	while (find(value));
	return add(value, 0, real, 1) ? value : real;
}

uint64_t lien_names_made(uint64_t real)
{
	struct name *name;

	pthread_mutex_lock(&lock);
	/* Names that meant an earlier handle of this value were given back behind our back. */
	while ((name = find_target(0, real)))
		forget(name);
	real = tell(real);
	pthread_mutex_unlock(&lock);
	return real;
}

uint64_t lien_names_retained(uint64_t real)
{
	struct name *name;

	pthread_mutex_lock(&lock);
	name = find_target(0, real);
	if (name) {
		name->references++;
		real = name->name;
	} else {
		real = tell(real);
	}
	pthread_mutex_unlock(&lock);
	return real;
}

unsigned lien_names_renamed(void)
{
	struct name *name;
	unsigned count = 0;

	pthread_mutex_lock(&lock);
	RB_FOREACH (name, names, &names)
		count += name->parked || name->name != name->target;
	pthread_mutex_unlock(&lock);
	return count;
}

void lien_names_released(uint64_t value)
{
	struct name *name;

	pthread_mutex_lock(&lock);
	name = find(value);
	if (name && !name->parked && !--name->references)
		forget(name);
	pthread_mutex_unlock(&lock);
}
