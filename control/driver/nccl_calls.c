// SPDX-License-Identifier: BSD-2-Clause
#include "control/driver/nccl_calls.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "control/driver/genuine.h"
#include "control/driver/interpose.h"

enum whose { NCCLS, SUSPEND, VERSION, OURS };

/* Defined in control/nccl/, exported below. */
#define DECLARE(name, whose)                                                                       \
	__attribute__((visibility("hidden"))) extern char lien_##name[], lien_export_##name[];
LIEN_NCCL_CALLS(DECLARE)
#undef DECLARE

static const struct call {
	const char *name;
	void *ours, *exported;
	enum whose whose;
} calls[] = {
#define ROW(name, whose) {#name, lien_##name, lien_export_##name, whose},
	LIEN_NCCL_CALLS(ROW)
#undef ROW
};

/* Every NCCL has it. */
static const char any_nccls[] = "ncclGetUniqueId";

static const struct call *find(const char *name)
{
	unsigned i;

	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (lien_same(calls[i].name, name))
			return &calls[i];
	return NULL;
}

/* NCCL is linked into other libraries at times. */
void *lien_nccl_genuine(const char *name)
{
	const struct call *call = find(name);
	const void *ours = call ? call->exported : NULL;
	void *found = lien_genuine_of("libnccl.so", name, ours);

	return found ? found : lien_genuine_of("", name, ours);
}

int lien_nccl_is_call(const char *name)
{
	return find(name) != NULL;
}

static int is_set(const char *name)
{
	const char *value = getenv(name);

	return value && value[0] && strcmp(value, "0");
}

/* Ours, although NCCL has it? */
static int is_ours(const struct call *call)
{
	switch (call->whose) {
	case NCCLS:
		return 0;
	case SUSPEND:
		return is_set("LIEN_NCCL_SUSPEND");
	case VERSION:
		return is_set("LIEN_NCCL_VERSION");
	case OURS:
		break;
	}
	return 1;
}

int lien_nccl_lookup(void *handle, const char *name, void **value)
{
	const struct call *call = find(name);
	void *found;

	if (handle == RTLD_NEXT)
		return 0;
	/* The exported one is found first. Without NCCL nobody has such a function. */
	if (handle == RTLD_DEFAULT) {
		*value = NULL;
		return !lien_nccl_genuine(any_nccls) &&
		       !(*value = lien_genuine_dlsym(RTLD_NEXT, name));
	}
	found = lien_genuine_dlsym(handle, name);
	*value = found && (found == call->exported || !is_ours(call)) ? found : call->ours;
	/* The successful lookup comes last, so that dlerror() reports nothing. */
	return found || lien_genuine_dlsym(handle, any_nccls);
}

/* Called by the exported functions: what to jump to. */
__attribute__((used, visibility("hidden"))) void *lien_nccl_target(const char *name)
{
	const struct call *call = find(name);
	void *genuine = is_ours(call) ? NULL : lien_nccl_genuine(name);

	return genuine ? genuine : call->ours;
}

/* clang-format off */
/* Arguments and stack are the caller's at the jump. No function has more than three arguments. */
#define EXPORT(name, whose)                                                                        \
	"	.p2align 4\n"                                                                      \
	"	.globl " #name "\n"                                                                \
	"	.globl lien_export_" #name "\n"                                                    \
	"	.hidden lien_export_" #name "\n"                                                   \
	"	.type " #name ", @function\n"                                                      \
	#name ":\n"                                                                                \
	"lien_export_" #name ":\n"                                                                 \
	"	.cfi_startproc\n"                                                                  \
	"	endbr64\n"                                                                         \
	LIEN_KEEP_ARGUMENTS                                                                        \
	"	lea 1f(%rip), %rdi\n"                                                              \
	"	call lien_nccl_target\n"                                                           \
	LIEN_GIVE_ARGUMENTS_BACK                                                                   \
	"	jmp *%rax\n"                                                                       \
	"1:	.asciz \"" #name "\"\n"                                                           \
	"	.cfi_endproc\n"                                                                    \
	"	.size " #name ", . - " #name "\n"

__asm__("	.pushsection .text\n"
	LIEN_NCCL_CALLS(EXPORT)
	"	.popsection\n");
/* clang-format on */
