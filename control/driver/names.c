// SPDX-License-Identifier: BSD-2-Clause
#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "control/driver/names.h"
#include "control/driver/thread.h"

/* The application gets one of these if a new handle's value is a name of something else. */
#define FRESH_NAMES 0x4c69656e00000000ull
/* Limit of spent names kept. */
#define SPENT_MAX 16384

struct name {
	RB_ENTRY(name) by_name, by_target;
	TAILQ_ENTRY(name) of_spent;
	uint64_t name;
	uint64_t target; /* the real handle, or the token */
	uint64_t was;	 /* while parked: the handle before */
	uint32_t parked;
	uint32_t references; /* 0: spent */
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
RB_GENERATE_INTERNAL(names, name, by_name, compare_name, static __attribute__((unused)))
RB_GENERATE_INTERNAL(targets, name, by_target, compare_target, static __attribute__((unused)))

/* The handles are the parent's in a child. */
static pthread_mutex_t lock LIEN_ZERO_IN_CHILD;
static struct names names LIEN_ZERO_IN_CHILD;
static struct targets targets LIEN_ZERO_IN_CHILD;
static TAILQ_HEAD(, name) spent LIEN_ZERO_IN_CHILD; /* oldest first */
static unsigned count LIEN_ZERO_IN_CHILD, spent_count LIEN_ZERO_IN_CHILD;
static uint64_t fresh;

/* Safe without the lock: park() adds a name before the memory is given back, and until then the
 * driver does not reuse the handle's value. */
static int none(void)
{
	return !__atomic_load_n(&count, __ATOMIC_ACQUIRE);
}

static struct name *find(uint64_t value)
{
	struct name key = {.name = value};

	return RB_FIND(names, &names, &key);
}

/* Returns the first name of a target; its other names follow it. */
static struct name *find_target(uint32_t parked, uint64_t target)
{
	struct name key = {.parked = parked, .target = target}, *name;

	name = RB_NFIND(targets, &targets, &key);
	return name && name->parked == parked && name->target == target ? name : NULL;
}

static int is_only(const struct name *name)
{
	struct name *next = RB_NEXT(targets, &targets, (struct name *)name);

	return find_target(name->parked, name->target) == name &&
	       (!next || next->parked != name->parked || next->target != name->target);
}

static void retarget(struct name *name, uint32_t parked, uint64_t target)
{
	name->was = name->target;
	RB_REMOVE(targets, &targets, name);
	name->parked = parked;
	name->target = target;
	RB_INSERT(targets, &targets, name);
}

static void forget(struct name *name)
{
	if (!name->references) {
		TAILQ_REMOVE(&spent, name, of_spent);
		spent_count--;
	}
	RB_REMOVE(names, &names, name);
	RB_REMOVE(targets, &targets, name);
	free(name);
	__atomic_fetch_sub(&count, 1, __ATOMIC_RELEASE);
}

static void spend(struct name *name)
{
	if (!spent_count)
		TAILQ_INIT(&spent);
	TAILQ_INSERT_TAIL(&spent, name, of_spent);
	if (++spent_count > SPENT_MAX)
		forget(TAILQ_FIRST(&spent));
}

static void add_references(struct name *name, uint32_t references)
{
	if (!name->references && references) {
		TAILQ_REMOVE(&spent, name, of_spent);
		spent_count--;
	}
	name->references += references;
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
	RB_INSERT(names, &names, name);
	RB_INSERT(targets, &targets, name);
	__atomic_fetch_add(&count, 1, __ATOMIC_RELEASE);
	if (!references)
		spend(name);
	return name;
}

/* Returns true if the value of a new handle can be given to the application. Forgets a spent name
 * of that value. */
static int is_free(uint64_t value)
{
	struct name *name = find(value);

	if (name && name->references)
		return 0;
	if (name)
		forget(name);
	return 1;
}

/* References that no name of the handle accounts for are known by the driver's own value: the
 * driver returned it without us. Returns 0; -EEXIST: that value is a name of something else;
 * -ENOMEM. */
static int name_the_rest(uint64_t real, uint32_t references)
{
	struct name *name = find_target(0, real), *own;
	const int named = name != NULL;

	for (; name && !name->parked && name->target == real;
		name = RB_NEXT(targets, &targets, name))
		references -= name->references < references ? name->references : references;
	if (named && !references)
		return 0;
	own = find(real);
	if (own && !own->parked && own->target == real)
		add_references(own, references);
	else if (!is_free(real))
		return references ? -EEXIST : 0;
	else if (!add(real, 0, real, references))
		return -ENOMEM;
	return 0;
}

int lien_names_park(const struct lien_wire_handle *reals, unsigned count, uint64_t token)
{
	struct name *name;
	unsigned i;
	int err = 0;

	pthread_mutex_lock(&lock);
	for (i = 0; i < count && !err; i++)
		err = name_the_rest(reals[i].value, reals[i].references);
	for (i = 0; i < count && !err; i++)
		while ((name = find_target(0, reals[i].value)))
			retarget(name, 1, token);
	pthread_mutex_unlock(&lock);
	return err;
}

void lien_names_revive(uint64_t token, uint64_t real)
{
	struct name *name;
	uint64_t handle;

	pthread_mutex_lock(&lock);
	while ((name = find_target(1, token))) {
		handle = real ? real : name->was;
		if (name->name == handle && is_only(name) && !find_target(0, handle))
			forget(name); /* it equals its handle again */
		else
			retarget(name, 0, handle);
	}
	pthread_mutex_unlock(&lock);
}

uint64_t lien_names_real(uint64_t value, int releasing)
{
	struct name *name;

	if (none())
		return value;
	pthread_mutex_lock(&lock);
	name = find(value);
	if (name && (name->references || releasing))
		value = name->parked ? 0 : name->target; /* the driver refuses 0 */
	pthread_mutex_unlock(&lock);
	return value;
}

/* Returns a value that means nothing else; 0: out of memory. */
static uint64_t name_for(uint64_t real)
{
	uint64_t value = real;

	if (is_free(real))
		return real;
	do
		value = FRESH_NAMES + ++fresh;
	while (find(value));
	return add(value, 0, real, 1) ? value : 0;
}

uint64_t lien_names_made(uint64_t real)
{
	struct name *name;

	if (none())
		return real;
	pthread_mutex_lock(&lock);
	/* Names of an earlier handle with this value were released without us. */
	while ((name = find_target(0, real)))
		forget(name);
	real = name_for(real);
	pthread_mutex_unlock(&lock);
	return real;
}

uint64_t lien_names_retained(uint64_t real)
{
	struct name *name;

	if (none())
		return real;
	pthread_mutex_lock(&lock);
	name = find_target(0, real);
	if (name) {
		add_references(name, 1);
		real = name->name;
	} else {
		real = name_for(real);
	}
	pthread_mutex_unlock(&lock);
	return real;
}

int lien_names_clash(uint64_t real, int certain)
{
	struct name *name;
	int clash;

	if (none())
		return 0;
	pthread_mutex_lock(&lock);
	name = find(real);
	clash = !is_free(real) && (name->parked || name->target != real) &&
		(certain || !find_target(0, real));
	pthread_mutex_unlock(&lock);
	return clash;
}

unsigned lien_names_renamed(void)
{
	struct name *name;
	unsigned renamed = 0;

	pthread_mutex_lock(&lock);
	RB_FOREACH (name, names, &names)
		renamed += name->references && (name->parked || name->name != name->target);
	pthread_mutex_unlock(&lock);
	return renamed;
}

void lien_names_released(uint64_t value)
{
	struct name *name;

	if (none())
		return;
	pthread_mutex_lock(&lock);
	name = find(value);
	if (name && name->references && !name->parked && !--name->references)
		spend(name);
	pthread_mutex_unlock(&lock);
}

void lien_names_clear(void)
{
	struct name *name;

	pthread_mutex_lock(&lock);
	while ((name = RB_ROOT(&names)))
		forget(name);
	pthread_mutex_unlock(&lock);
}
