// SPDX-License-Identifier: BSD-2-Clause
#include <pthread.h>

#include "control/orders/control.h"
#include "control/fork.h"
#include "control/driver/gate.h"
#include "control/memory/handles.h"
#include "control/driver/names.h"
#include "control/driver/translate.h"
#include "control/driver/watchdog.h"
#include "control/nccl/nccl.h"
#include "control/plain/plain.h"
#include "control/tag/tag.h"
#include "control/tms/tms.h"

static void after_in_child(void)
{
	lien_names_forked();
	lien_translate_forked();
	lien_gate_forked();
	lien_watchdog_forked();
	lien_handles_forked();
	lien_plain_forked();
	lien_tag_forked();
	lien_tms_forked();
	lien_nccl_forked();
	lien_control_forked();
}

void lien_fork_prepare(void)
{
	pthread_atfork(NULL, NULL, after_in_child);
}
