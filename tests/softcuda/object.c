/* SPDX-License-Identifier: BSD-2-Clause */
/* The set of all live objects that callers know by pointer. */
#include "softcuda.h"

RB_HEAD(soft_objects, soft_object);

static struct soft_objects objects = RB_INITIALIZER(&objects);

static int compare(struct soft_object *a, struct soft_object *b)
{
	return a < b ? -1 : a > b;
}

SOFT_TREE(soft_objects, soft_object, node, compare)

void soft_object_add(struct soft_object *object, enum soft_kind kind, CUcontext context)
{
	object->kind = kind;
	object->context = context;
	RB_INSERT(soft_objects, &objects, object);
}

void soft_object_remove(struct soft_object *object)
{
	RB_REMOVE(soft_objects, &objects, object);
}

bool soft_object_is(const void *pointer, enum soft_kind kind)
{
	struct soft_object *found = RB_FIND(soft_objects, &objects, (struct soft_object *)pointer);

	return found && found->kind == kind;
}

struct soft_object *soft_object_first(void)
{
	return RB_MIN(soft_objects, &objects);
}

struct soft_object *soft_object_after(struct soft_object *object)
{
	return RB_NEXT(soft_objects, &objects, object);
}
