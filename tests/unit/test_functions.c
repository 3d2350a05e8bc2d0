// SPDX-License-Identifier: BSD-2-Clause
/*
 * Which functions of the driver and of NCCL the gate holds: tests/data/NAME.gated has the functions
 * that CUDA 13.0's libcuda and NCCL 2.30 export, and what was decided of each (free, all, nccl);
 * cuda-13.3.gated those that cuda.h of 13.3 has besides.
 */
#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "control/driver/interpose.h"
#include "loader/discover/elf_symbols.h"
/* For its tables. */
#include "loader/probes/functions.c"

static enum lien_touches touches;

static const char *const decided[] = {
	[LIEN_GATING_NONE] = "free", [LIEN_GATING_ALL] = "all", [LIEN_GATING_NCCL] = "nccl"};

static void each(const char *path, void (*fn)(const char *symbol, const char *decision))
{
	FILE *file = fopen(path, "re");
	char symbol[128], decision[16];
	unsigned n = 0;

	assert_non_null(file);
	while (fscanf(file, "%127s %15s", symbol, decision) == 2) {
		fn(symbol, decision);
		n++;
	}
	fclose(file);
	assert_true(n > 30);
}

static void is_decided_in_cuda(const char *symbol, const char *decision)
{
	if (strcmp(decided[lien_function_gating(LIEN_LIB_CUDA, symbol, &touches)], decision))
		fail_msg("%s is not %s", symbol, decision);
}

static void is_decided_in_nccl(const char *symbol, const char *decision)
{
	if (strcmp(decided[lien_function_gating(LIEN_LIB_NCCL, symbol, &touches)], decision))
		fail_msg("%s is not %s", symbol, decision);
}

static void as_decided(void **state)
{
	(void)state;
	each("tests/data/cuda-13.0.gated", is_decided_in_cuda);
	each("tests/data/nccl-2.30.gated", is_decided_in_nccl);
	each("tests/data/nccl-2.32.gated", is_decided_in_nccl);
}

/* What a later CUDA or NCCL may add. */
static void unknown_functions_are_held(void **state)
{
	(void)state;
	assert_int_equal(
		lien_function_gating(LIEN_LIB_CUDA, "cuMemcpySideways", &touches), LIEN_GATING_ALL);
	assert_int_equal(touches, LIEN_TOUCHES_ANY);
	assert_int_equal(
		lien_function_gating(LIEN_LIB_CUDA, "cuDeviceGetMuch", &touches), LIEN_GATING_ALL);
	assert_int_equal(
		lien_function_gating(LIEN_LIB_NCCL, "ncclAllShuffle", &touches), LIEN_GATING_NCCL);
	assert_int_equal(
		lien_function_gating(LIEN_LIB_NCCL, "pncclAllShuffle", &touches), LIEN_GATING_NCCL);
	/* Its arguments may be others. */
	assert_int_equal(
		lien_function_gating(LIEN_LIB_CUDA, "cuMemcpyHtoD_v3", &touches), LIEN_GATING_ALL);
	assert_int_equal(touches, LIEN_TOUCHES_ANY);
	lien_function_gating(LIEN_LIB_CUDA, "cuMemcpyHtoD_v2_ptds", &touches);
	assert_int_equal(touches, LIEN_TOUCHES_COPY);
}

static void what_is_no_interface_is_free(void **state)
{
	(void)state;
	assert_int_equal(lien_function_gating(LIEN_LIB_CUDA, "custom", &touches), LIEN_GATING_NONE);
	assert_int_equal(lien_function_gating(LIEN_LIB_CUDA, "_init", &touches), LIEN_GATING_NONE);
	assert_int_equal(
		lien_function_gating(LIEN_LIB_NCCL, "nccl_socket", &touches), LIEN_GATING_NONE);
	assert_int_equal(
		lien_function_gating(LIEN_LIB_CUDART, "cudaMemcpy", &touches), LIEN_GATING_NONE);
}

static void registrations_are_held(void **state)
{
	(void)state;
	assert_int_equal(
		lien_function_gating(LIEN_LIB_IBVERBS, "ibv_reg_mr", &touches), LIEN_GATING_ALL);
	assert_int_equal(touches, LIEN_TOUCHES_RANGE_1);
	assert_int_equal(
		lien_function_gating(LIEN_LIB_IBVERBS, "ibv_reg_mr_ex", &touches), LIEN_GATING_ALL);
	assert_int_equal(touches, LIEN_TOUCHES_ANY);
	assert_int_equal(lien_function_gating(LIEN_LIB_IBVERBS, "ibv_exp_reg_mr", &touches),
		LIEN_GATING_ALL);
	assert_int_equal(lien_function_gating(LIEN_LIB_MLX5, "mlx5dv_devx_umem_reg", &touches),
		LIEN_GATING_ALL);
	assert_int_equal(
		lien_function_gating(LIEN_LIB_GDRAPI, "gdr_pin_buffer", &touches), LIEN_GATING_ALL);
	assert_int_equal(
		lien_function_gating(LIEN_LIB_IBVERBS, "ibv_dereg_mr", &touches), LIEN_GATING_NONE);
	assert_int_equal(lien_function_gating(LIEN_LIB_IBVERBS, "ibv_open_device", &touches),
		LIEN_GATING_NONE);
	assert_int_equal(
		lien_function_gating(LIEN_LIB_IBVERBS, "verbs_init", &touches), LIEN_GATING_NONE);
	assert_int_equal(
		lien_function_gating(LIEN_LIB_GDRAPI, "gdr_map", &touches), LIEN_GATING_NONE);
}

static const char *const translated[] = {
#define NAME(name) #name,
	LIEN_INTERPOSED_HANDLES(NAME)
#undef NAME
};

#define TRANSLATED (sizeof(translated) / sizeof(translated[0]))

static bool has_name(const char *const *names, unsigned count, const char *name)
{
	for (unsigned i = 0; i < count; i++)
		if (!strcmp(names[i], name))
			return true;
	return false;
}

/* The control library waits before it calls the driver for the application
 * (control/driver/translate.c), which must not be held there then; but for those that name no
 * memory by handle. */
static void what_is_translated_has_waited(void **state)
{
	static const char *const by_none[] = {"cuMemCreate", "cuMemRetainAllocationHandle",
		"cuMemImportFromShareableHandle", "cuMulticastCreate", "cuMulticastBindAddr",
		"cuMulticastBindAddr_v2"};
	(void)state;
	for (unsigned i = 0; i < TRANSLATED; i++) {
		lien_function_gating(LIEN_LIB_CUDA, translated[i], &touches);
		if ((touches >= LIEN_TOUCHES_HANDLE_0) ==
			has_name(by_none, sizeof(by_none) / sizeof(by_none[0]), translated[i]))
			fail_msg("%s: %u", translated[i], touches);
	}
}

static bool found;
static const char *wanted;

static void compare(const char *symbol, const char *decision)
{
	size_t length = strlen(wanted);

	(void)decision;
	if (!strncmp(symbol, wanted, length) && (!symbol[length] || symbol[length] == '_'))
		found = true;
}

/* They may have memory held, or are in no header. */
static const char *const may_hold[] = {"cuEGLStreamProducerPresentFrame", "cuMemGetAttribute",
	"cuMemGetAttribute_v2", "cuLogicalEndpointBindAddr", "cuLogicalEndpointBindMem",
	"cuStreamBeginCaptureToCig", "cuStreamBeginRecaptureToGraph", "cuStreamEndCaptureToCig",
	"ibv_rereg_mr"};

/* The tables decide of each function whether memory may be held by it. */
static void holds_as_decided(enum lien_library library, const char *symbol)
{
	if (lien_function_may_hold(library, symbol) !=
		has_name(may_hold, sizeof(may_hold) / sizeof(may_hold[0]), symbol))
		fail_msg("%s may have memory held", symbol);
}

static void holds_in_cuda(const char *symbol, const char *decision)
{
	(void)decision;
	holds_as_decided(LIEN_LIB_CUDA, symbol);
}

static void holds_in_nccl(const char *symbol, const char *decision)
{
	(void)decision;
	holds_as_decided(LIEN_LIB_NCCL, symbol);
}

static void holds_in_rdma(const char *symbol, const char *library)
{
	holds_as_decided(!strcmp(library, "ibverbs") ? LIEN_LIB_IBVERBS
			 : !strcmp(library, "mlx5")  ? LIEN_LIB_MLX5
						     : LIEN_LIB_GDRAPI,
		symbol);
}

static void begins(const char *symbol, const char *library)
{
	const size_t length = strlen(wanted) - 1;

	(void)library;
	found |= wanted[length] == '*' ? !strncmp(symbol, wanted, length) : !strcmp(symbol, wanted);
}

/* Returns the names in the tables by index, NULL after the last. Those of network cards and GDRCopy
 * are in one table; an asterisk at the end stands for anything. */
static const char *listed(enum lien_library library, unsigned index)
{
	const char *const *name;
	unsigned i;

	for (i = 0; i < COUNT(reasons); i++)
		for (name = reasons[i].names; is_about(&reasons[i], library) && *name; name++)
			if (!index--)
				return *name;
	return library == LIEN_LIB_CUDA && index < COUNT(touching) ? touching[index].name : NULL;
}

/* A misspelt name in a table would be no use, and nobody would see it. */
static void are_listed(enum lien_library library, const char *const *paths,
	void (*compare_with)(const char *symbol, const char *decision))
{
	/* AMem's, a patched NCCL. */
	static const char *const amem[] = {
		"ncclMemStats", "ncclPause", "ncclResume", "ncclSetGroupID"};
	unsigned i, n;

	for (i = 0; (wanted = listed(library, i)); i++) {
		/* Those are in some cuda.h (test_cuda_handles.c). */
		found = has_name(translated, TRANSLATED, wanted) ||
			has_name(amem, sizeof(amem) / sizeof(amem[0]), wanted);
		for (n = 0; paths[n]; n++)
			each(paths[n], compare_with);
		if (!found)
			fail_msg("%s has no %s", paths[0], wanted);
	}
	assert_true(i > 20);
}

static void holders_are_known(void **state)
{
	static const char *const cuda[] = {
		"tests/data/cuda-13.0.gated", "tests/data/cuda-13.3.gated", NULL};
	static const char *const nccl[] = {
		"tests/data/nccl-2.30.gated", "tests/data/nccl-2.32.gated", NULL};
	static const char *const rdma[] = {"tests/data/rdma-core-65.exports", NULL};

	(void)state;
	each(cuda[0], holds_in_cuda);
	each(cuda[1], holds_in_cuda);
	each(nccl[0], holds_in_nccl);
	each(nccl[1], holds_in_nccl);
	each(rdma[0], holds_in_rdma);
	are_listed(LIEN_LIB_CUDA, cuda, compare);
	are_listed(LIEN_LIB_NCCL, nccl, compare);
	are_listed(LIEN_LIB_IBVERBS, rdma, begins);
	assert_true(lien_function_may_hold(LIEN_LIB_CUDA, "cuFutureBind"));
	assert_true(
		lien_function_may_hold(LIEN_LIB_CUDA, "cuMemCreate_v2")); /* not the one traced */
	assert_false(lien_function_may_hold(LIEN_LIB_CUDA, "cuMemcpyDtoH_v3"));
	assert_false(lien_function_may_hold(LIEN_LIB_CUDA, "cudbgApiInit"));
	assert_true(lien_function_may_hold(LIEN_LIB_NCCL, "ncclFutureRegister"));
	assert_false(lien_function_may_hold(LIEN_LIB_NCCL, "pncclAllReduce"));
	assert_false(lien_function_may_hold(LIEN_LIB_NCCL, "ncclPause")); /* AMem's */
	assert_true(lien_function_may_hold(LIEN_LIB_IBVERBS, "ibv_exp_reg_mr"));
	assert_false(lien_function_may_hold(LIEN_LIB_IBVERBS, "ibv_cmd_reg_mr"));
	assert_true(lien_function_may_hold(LIEN_LIB_MLX5, "mlx5dv_future_reg"));
	assert_true(lien_function_may_hold(LIEN_LIB_GDRAPI, "gdr_future_pin"));
}

static int is_decided(void *context, const struct lien_elf_export *export)
{
	if (export->function && lien_function_may_hold(LIEN_LIB_NCCL, export->name))
		fail_msg("nobody has decided of %s in %s", export->name, (const char *)context);
	return 0;
}

/* Of those that this machine has: no function that the tables neither count nor explain. */
static void installed_libraries_are_decided(void **state)
{
	static const char *const places[] = {"/usr/local/cuda*/lib*/libnccl.so.2",
		"/usr/lib/*/libnccl.so.2",
		"/usr/local/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2"};
	glob_t found;
	unsigned p, i;
	int fd;

	(void)state;
	for (p = 0; p < sizeof(places) / sizeof(places[0]); p++) {
		if (glob(places[p], 0, NULL, &found))
			continue;
		for (i = 0; i < found.gl_pathc; i++) {
			fd = open(found.gl_pathv[i], O_RDONLY | O_CLOEXEC);
			assert_true(fd >= 0);
			assert_int_equal(lien_elf_exports(fd, is_decided, found.gl_pathv[i]), 0);
			close(fd);
		}
		globfree(&found);
	}
}

static void numbers_are_names(void **state)
{
	unsigned number = lien_function_number("cuMemcpy3D_v2");

	(void)state;
	assert_in_range(number, LIEN_CALL_GATED_FIRST, LIEN_CALL_GATED_LAST);
	assert_int_equal(number, lien_function_number("cuMemcpy3D_v2"));
	assert_int_not_equal(number, lien_function_number("cuMemcpy2D_v2"));
	assert_string_equal(lien_calls_name(number), "cuMemcpy3D_v2");
	assert_int_equal(lien_function_number("cuInit"), LIEN_CALL_CU_INIT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_decided),
		cmocka_unit_test(unknown_functions_are_held),
		cmocka_unit_test(what_is_no_interface_is_free),
		cmocka_unit_test(registrations_are_held),
		cmocka_unit_test(what_is_translated_has_waited),
		cmocka_unit_test(holders_are_known),
		cmocka_unit_test(installed_libraries_are_decided),
		cmocka_unit_test(numbers_are_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
