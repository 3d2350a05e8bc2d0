// SPDX-License-Identifier: BSD-2-Clause
#include <stddef.h>

#include "agent/graph/graph.h"

const char *lien_process_takes_no_orders(const struct lien_process *process)
{
	switch (process->presence) {
	case LIEN_CONTROL_NONE:
		if (process->detached)
			return "it was detached by `lien detach`: `lien attach` gives it the "
			       "library again";
		return "it has no control library: `lien attach` gives it one";
	case LIEN_CONTROL_LOADED:
		return "its control thread does not run yet: `lien attach` starts it, as does the "
		       "next call that allocates, frees, maps or shares GPU memory";
	case LIEN_CONTROL_OTHER:
		return "its control library is of another version of lien: use the agent of that "
		       "version";
	case LIEN_CONTROL_TAKEN:
		return "it takes orders from another agent on this node: stop that one";
	case LIEN_CONTROL_UNKNOWN:
	case LIEN_CONTROL_READY:
		break;
	}
	return NULL;
}
