// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/gate_kernel.h"

#include <stddef.h>

#include "loader/probes/uprobe_single.h"

const char *lien_gate_kernel_lacks(bool multi)
{
	if (multi)
		return NULL;
	if (!lien_uprobe_single_supported())
		return "its probes cannot outlive the agent: 5.15 is needed";
	/* A call that no program sees is not held. */
	if (!lien_uprobe_single_reliable())
		return "it is preemptible and may skip probes: 6.0 is needed, or preempt=voluntary "
		       "(with debugfs mounted, which shows that)";
	return NULL;
}
