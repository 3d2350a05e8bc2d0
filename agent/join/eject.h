/* SPDX-License-Identifier: BSD-2-Clause */
/* Has control libraries that are at their end taken away from their processes, by the worker that
 * also puts them there: the two never meet. */
#ifndef LIEN_EJECT_H
#define LIEN_EJECT_H

#include "agent/core/agent.h"
#include "loader/inject/inject.h"

/* 0: lien_detach_ejected() will be called; or -errno. */
int lien_eject_submit(struct lien_agent *agent, const struct lien_process *process,
	const struct lien_inject_library *library);

#endif
