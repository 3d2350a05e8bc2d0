// SPDX-License-Identifier: BSD-2-Clause
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <lien/sanitizer.h>

#include "control/driver/genuine.h"
#include "control/driver/interpose.h"
#include "control/driver/translate.h"

/* The first two are exported as dlsym and dlvsym. The last one asks no library behind this one. */
__attribute__((visibility("hidden"))) extern char lien_dlsym[], lien_dlvsym[], lien_own_dlsym[];

static const char *const names[] = {"dlsym", "dlvsym"};

LIEN_INTERPOSED_ROW(dlsym) = {LIEN_GLIBCS, &names[0], lien_own_dlsym, lien_dlsym, NULL};
LIEN_INTERPOSED_ROW(dlvsym) = {LIEN_GLIBCS, &names[1], lien_dlvsym, lien_dlvsym, NULL};

static int is_off(void)
{
	const char *off = getenv("LIEN_PLAIN");

	if (off && *off)
		return *off != '0';
	return getenv(LIEN_SANITIZER_VARIABLE) != NULL;
}

int lien_interpose_has_plain(void)
{
	static enum { UNDECIDED, NO, YES } decision;
	int has = __atomic_load_n(&decision, __ATOMIC_RELAXED);

	if (has == UNDECIDED) {
		/* A library that dlopen() brought is too late for memory that is there already. */
		has = !is_off() && lien_genuine_is_preloaded() ? YES : NO;
		__atomic_store_n(&decision, has, __ATOMIC_RELAXED);
	}
	return has == YES;
}

static void *genuine_dlvsym(void *handle, const char *name, const char *version)
{
	void *(*dlvsym)(void *, const char *, const char *) = lien_genuine(LIEN_GENUINE_DLVSYM);

	return dlvsym ? dlvsym(handle, name, version) : NULL;
}

void *lien_interposed_real(const struct lien_interposed *interposed)
{
	const struct lien_driver *driver = lien_driver_found();

	if (interposed->kind == LIEN_GLIBCS)
		return lien_genuine(interposed->exported == lien_dlsym ? LIEN_GENUINE_DLSYM
								       : LIEN_GENUINE_DLVSYM);
	return driver ? lien_driver_real(driver, interposed->name)
		      : lien_driver_symbol(*interposed->name);
}

void *lien_interposed_given(const struct lien_interposed *interposed)
{
	return lien_genuine_behind(*interposed->name) ? interposed->ours : interposed->exported;
}

static int is_drivers(const struct lien_interposed *interposed)
{
	return interposed->kind == LIEN_IN_EVERY_PROCESS || interposed->kind == LIEN_FROM_START;
}

static int is_replaced(const struct lien_interposed *interposed)
{
	return interposed->kind != LIEN_FROM_START || lien_interpose_has_plain();
}

static const struct lien_interposed *find(const char *name)
{
	const struct lien_interposed *row;

	for (row = __start_lien_interposed; row < __stop_lien_interposed; row++)
		if (lien_same(*row->name, name))
			return is_replaced(row) ? row : NULL;
	return NULL;
}

/* --- dlsym() and dlvsym() --------------------------------------------------------------------- */

/* The caller gets `value`, or, if `pass_on` is set, the result of that function. The assembly jumps
 * to it, because glibc begins its search at the object that contains its return address. */
struct answer {
	void *pass_on, *value;
};

static void *ask(void *handle, const char *name, const char *version)
{
	return version ? genuine_dlvsym(handle, name, version) : lien_genuine_dlsym(handle, name);
}

/* glibc found ours, but there is no driver: report that nothing was found. */
static void *not_there(const char *name)
{
	return lien_genuine_dlsym(RTLD_NEXT, name);
}

static int is_searched(const void *handle)
{
	return handle == RTLD_DEFAULT || handle == RTLD_NEXT;
}

/*
 * Returns what a search finds in place of the genuine function; NULL: glibc decides.
 *
 * If ours and the driver's are the only ones, it does not matter where a search begins: every
 * caller gets ours, even if the driver was loaded with RTLD_LOCAL. Otherwise the caller may be a
 * library that hooks the function, and looks for the next one. The successful lookup comes last, so
 * that dlerror() reports nothing.
 */
static void *searched(void *handle, const struct lien_interposed *interposed, const void *real,
	const char *version, const void *caller)
{
	const void *next = ask(RTLD_NEXT, *interposed->name, version),
		   *first = ask(RTLD_DEFAULT, *interposed->name, version);
	void *after;

	if (!first)
		return NULL;
	if ((first == interposed->exported || first == real) && (!next || next == real))
		return lien_interposed_given(interposed);
	if (handle != RTLD_NEXT)
		return NULL;
	after = lien_genuine_after(caller, *interposed->name);
	if (after && after == real)
		return lien_interposed_given(interposed);
	return after == interposed->exported ? after : NULL;
}

/* --- NCCL's functions ------------------------------------------------------------------------- */

/* Every NCCL has it. */
static const char any_nccls[] = "ncclGetUniqueId";

/* Ours, although NCCL has it? */
static int is_ours(const struct lien_interposed *call)
{
	const char *value = call->variable ? getenv(call->variable) : "1";

	return value && value[0] && strcmp(value, "0");
}

/* Returns true if a lookup of it is to find *value (NULL: nothing), and not what glibc's dlsym()
 * finds. */
static int nccl_lookup(void *handle, const struct lien_interposed *call, void **value)
{
	const char *name = *call->name;
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
__attribute__((used)) static void *lien_nccl_target(const char *name)
{
	const struct lien_interposed *call = find(name);
	void *genuine = is_ours(call) ? NULL : lien_nccl_genuine(name);

	return genuine ? genuine : call->ours;
}

#define ROW(name, variable, ...)                                                                   \
	LIEN_EXPORTED_DECLARE(name)                                                                \
	static const char *const lien_name_##name = #name;                                         \
	LIEN_INTERPOSED_ROW(name) = {                                                              \
		LIEN_NCCLS, &lien_name_##name, lien_##name, LIEN_EXPORTED(name), variable};        \
	LIEN_EXPORT_AS(name, lien_##name, lien_nccl_target);
LIEN_NCCL_CALLS(ROW)
#undef ROW

/* --- the answers ------------------------------------------------------------------------------ */

/* Called by the assembly below. */
__attribute__((used)) static struct answer lien_interpose_own_answer(
	void *handle, const char *name, const char *version, const void *caller)
{
	struct answer answer = {
		lien_genuine(version ? LIEN_GENUINE_DLVSYM : LIEN_GENUINE_DLSYM), NULL};
	const struct lien_interposed *interposed = name ? find(name) : NULL;
	const void *real;

	if (!interposed || !answer.pass_on)
		return answer;
	if (interposed->kind == LIEN_NCCLS) {
		if (!version && nccl_lookup(handle, interposed, &answer.value))
			answer.pass_on = NULL;
		return answer;
	}
	real = lien_interposed_real(interposed);
	if (is_searched(handle)) {
		answer.value = searched(handle, interposed, real, version, caller);
		if (!answer.value)
			return answer;
	} else {
		answer.value = ask(handle, name, version);
		if (real && answer.value == real)
			answer.value = lien_interposed_given(interposed);
	}
	answer.pass_on = NULL;
	if (!real && (answer.value == interposed->ours || answer.value == interposed->exported))
		answer.value = not_there(name);
	return answer;
}

/* Same, for dlsym() alone. A library behind this one that exports dlsym() is asked. Most ask ours
 * in turn; some know glibc's. */
__attribute__((used)) static struct answer lien_interpose_answer(
	void *handle, const char *name, const char *version, const void *caller)
{
	void *(*behind)(void *, const char *) = lien_genuine_behind("dlsym");
	const struct lien_interposed *interposed = name ? find(name) : NULL;
	struct answer answer = {behind, NULL};

	if (!behind || !name || (interposed && interposed->kind == LIEN_NCCLS))
		return lien_interpose_own_answer(handle, name, version, caller);
	if (!interposed || !is_drivers(interposed) || is_searched(handle))
		return answer;
	answer.value = behind(handle, name);
	answer.pass_on = NULL;
	if (answer.value && answer.value == lien_interposed_real(interposed))
		answer.value = lien_interposed_given(interposed);
	return answer;
}

/* clang-format off */
/* Keep the caller's first three arguments around a decision, with the stack aligned for a call. */
#define KEEP(reg) "	push %" reg "\n	.cfi_adjust_cfa_offset 8\n"
#define GIVE_BACK(reg) "	pop %" reg "\n	.cfi_adjust_cfa_offset -8\n"
#define KEEP_ARGUMENTS KEEP("rdi") KEEP("rsi") KEEP("rdx")
#define GIVE_ARGUMENTS_BACK GIVE_BACK("rdx") GIVE_BACK("rsi") GIVE_BACK("rdi")
#define EXPORTED(name)                                                                     \
	"	.globl " name "\n"                                                         \
	"	.type " name ", @function\n"                                               \
	name ":\n"
#define LOOKUP(name, exported, version, answer)                                            \
	"	.p2align 4\n"                                                              \
	"	.globl " name "\n"                                                         \
	"	.hidden " name "\n"                                                        \
	"	.type " name ", @function\n"                                               \
	exported                                                                           \
	name ":\n"                                                                         \
	"	.cfi_startproc\n"                                                          \
	"	endbr64\n"                                                                 \
	KEEP_ARGUMENTS                                                                     \
	version                                                                            \
	"	mov 24(%rsp), %rcx\n" /* the return address */                             \
	"	call " answer "\n"                                                         \
	"	mov %rdx, %rcx\n"                                                          \
	GIVE_ARGUMENTS_BACK                                                                \
	"	test %rax, %rax\n"                                                         \
	"	jz 1f\n"                                                                   \
	"	jmp *%rax\n"                                                               \
	"1:	mov %rcx, %rax\n"                                                          \
	"	ret\n"                                                                     \
	"	.cfi_endproc\n"                                                            \
	"	.size " name ", . - " name "\n"
#define NO_VERSION "	xor %edx, %edx\n"

/* At the jump to another function, arguments and stack are the caller's. */
__asm__("	.pushsection .text\n"
	LOOKUP("lien_dlsym", EXPORTED("dlsym"), NO_VERSION, "lien_interpose_answer")
	"	.size dlsym, . - dlsym\n"
	LOOKUP("lien_own_dlsym", "", NO_VERSION, "lien_interpose_own_answer")
	LOOKUP("lien_dlvsym", EXPORTED("dlvsym"), "", "lien_interpose_own_answer")
	"	.size dlvsym, . - dlvsym\n"
	"	.popsection\n");
/* clang-format on */

/* --- cuGetProcAddress() ----------------------------------------------------------------------- */

/* Returns ours if the exported name is the requested one, with or without a version suffix;
 * otherwise `function`. */
static void *ours_of(const char *symbol, void *function)
{
	const struct lien_interposed *row;
	size_t length = strlen(symbol);

	for (row = __start_lien_interposed; row < __stop_lien_interposed; row++)
		if (!strncmp(*row->name, symbol, length) && is_drivers(row) && is_replaced(row) &&
			lien_interposed_real(row) == function)
			return lien_interposed_given(row);
	return function;
}

static CUresult lien_get_proc_address_v2(const char *symbol, void **pfn, int version,
	uint64_t flags, CUdriverProcAddressQueryResult *status)
{
	__typeof__(cuGetProcAddress_v2) *real = lien_interposed_real(find("cuGetProcAddress_v2"));
	CUresult result =
		real ? real(symbol, pfn, version, flags, status) : CUDA_ERROR_NOT_INITIALIZED;

	if (!result && *pfn)
		*pfn = ours_of(symbol, *pfn);
	return result;
}

static CUresult lien_get_proc_address(const char *symbol, void **pfn, int version, uint64_t flags)
{
	__typeof__(cuGetProcAddress) *real = lien_interposed_real(find("cuGetProcAddress"));
	CUresult result = real ? real(symbol, pfn, version, flags) : CUDA_ERROR_NOT_INITIALIZED;

	if (!result && *pfn)
		*pfn = ours_of(symbol, *pfn);
	return result;
}

LIEN_INTERPOSE(LIEN_IN_EVERY_PROCESS, cuGetProcAddress, lien_get_proc_address);
LIEN_INTERPOSE(LIEN_IN_EVERY_PROCESS, cuGetProcAddress_v2, lien_get_proc_address_v2);
