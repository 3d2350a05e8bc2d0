// SPDX-License-Identifier: BSD-2-Clause
#include "tools/replay/op.h"

static const char *const call_names[LIEN_CALL_MAX] = {
#define CALL_NAME(name, number, lib, symbol, flags, kind) [number] = (symbol),
	LIEN_CALLS(CALL_NAME)
#undef CALL_NAME
};

const char *lien_replay_call_name(unsigned int call)
{
	return call < LIEN_CALL_MAX && call_names[call] ? call_names[call] : "unknown call";
}
