/* SPDX-License-Identifier: BSD-2-Clause */
/* The software CUDA driver's tests; the cases are in test_softcuda_*.c. Needs root, no GPU. */
#include <sys/resource.h>

#include "test_softcuda.h"

static int play_role(const char *name, int sock)
{
	const struct role *const sets[] = {device_roles, load_roles, share_roles, stream_roles,
		peer_roles, multicast_roles, dump_roles, shape_roles};

	for (size_t i = 0; i < COUNT(sets); i++) {
		for (const struct role *role = sets[i]; role->name; role++) {
			if (strcmp(role->name, name))
				continue;
			role->run(sock);
			return 0;
		}
	}
	fprintf(stderr, "no role %s\n", name);
	return 2;
}

int main(int argc, char **argv)
{
	struct rlimit limit;
	char dir[96];
	int failed;

	if (readlink("/proc/self/exe", test_self, sizeof(test_self) - 1) < 0)
		return 1;
	test_is_role = argc == 3;
	if (test_is_role)
		return play_role(argv[1], atoi(argv[2]));
	if (geteuid()) {
		print_message("skipped: the devices are mounted by root\n");
		return 77;
	}
	snprintf(test_dir, sizeof(test_dir), "/tmp/test_softcuda.XXXXXX");
	if (!mkdtemp(test_dir))
		return 1;
	snprintf(dir, sizeof(dir), "%s/devices", test_dir);
	setenv("LIEN_SOFTCUDA_DIR", dir, 1);
	setenv("LIEN_SOFTCUDA_MEMORY", "256M", 1);
	unsetenv("LIEN_SOFTCUDA_DEVICES");
	unsetenv("LIEN_SOFTCUDA_STRICT");
	unsetenv("CUDA_VISIBLE_DEVICES");
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max < 1024 ? limit.rlim_max : 1024;
	setrlimit(RLIMIT_NOFILE, &limit);
	CHECK(!cuInit(0));
	use_device(0);
	failed = device_tests();
	failed += symbol_tests();
	failed += vmm_tests();
	failed += access_tests();
	failed += load_tests();
	failed += share_tests();
	failed += stream_tests();
	failed += work_tests();
	failed += row_tests();
	failed += alloc_tests();
	failed += pool_tests();
	failed += peer_tests();
	failed += multicast_tests();
	failed += shape_tests();
	failed += dump_tests();
	unmount_all();
	return failed ? 1 : 0;
}
