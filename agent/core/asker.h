/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_ASKER_H
#define LIEN_ASKER_H

#include <stdint.h>

/* The module that gives an order and gets the replies. */
enum lien_asker {
	LIEN_ASK_NOBODY,
	LIEN_ASK_HELLO,	  /* the first question */
	LIEN_ASK_GATE,	  /* opens what an earlier agent has shut */
	LIEN_ASK_WALK,	  /* walks.c */
	LIEN_ASK_PREPARE, /* prepare.c */
	/* The next two wait for the order under way: */
	LIEN_ASK_END, /* detach.c */
	LIEN_ASK_TRANSACTION,
	LIEN_ASK_COUNT,
};

/* Where a control library's code and state are in its process's memory. */
struct lien_control_place {
	uint64_t text, text_end; /* its code */
	uint64_t state;		 /* address of lien_control_state; 0: the library is not ours */
};

#endif
