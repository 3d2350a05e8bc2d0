/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory with handles, as prog_random keeps it: an allocation or multicast object in each slot. */
#ifndef RANDOM_SLOTS_H
#define RANDOM_SLOTS_H

#include "random.h"

#define NAMES	    3 /* handles of an allocation: its first, and further imports */
#define PLACES	    3
#define BINDINGS    4
#define TEAM_PIECES 4

struct name {
	CUmemGenericAllocationHandle handle;
	unsigned int references; /* that we hold */
	unsigned int mapped;	 /* mappings made from it keep the name valid without any */
	bool imported;		 /* the driver exports it no more */
};

struct part {
	uint64_t bytes; /* 0: nothing is mapped here */
	unsigned int name;
};

/* A reservation for two mappings side by side. */
struct place {
	CUdeviceptr va; /* 0: none */
	struct part part[2];
};

struct binding {
	uint64_t bytes; /* 0: none */
	uint64_t offset;
	int device;
};

struct slot {
	pthread_mutex_t lock;
	uint64_t bytes; /* 0: nothing here */
	unsigned int types;
	int device; /* -1: in host memory */
	bool multicast;
	unsigned int team; /* multicast: devices, as bits */
	struct binding binding[BINDINGS];
	struct name name[NAMES];
	struct place place[PLACES];
};

/* Any that is free at the moment; NULL: the one that was tried is not. */
struct slot *slot_lock_some(void);
/* One of its names, if it has references. */
struct name *slot_usable(struct slot *slot);
/* It has one reference under its first name, whose handle the caller fills in. */
void slot_begin(struct slot *slot, uint64_t bytes, unsigned int types);

/* --- random_multicast.c --- */
void multicast_create(struct slot *slot);
/* Binds memory of other slots to it, or takes some back. */
void multicast_turn(struct slot *slot);

#endif
