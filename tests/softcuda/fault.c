// SPDX-License-Identifier: BSD-2-Clause
/* Faults on demand: see fault.h. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "fault.h"
#include "softcuda.h"

struct softcuda_faults *soft_faults;

void soft_faults_open(void)
{
	const char *folder = getenv("LIEN_SOFTCUDA_FAULTS");
	char path[4096];
	void *memory;
	int fd;

	if (!folder || !*folder)
		return;
	snprintf(path, sizeof(path), "%s/%d", folder, getpid());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(*soft_faults))) {
		perror(path);
		abort(); /* the test would see no fault, and pass */
	}
	memory = mmap(NULL, sizeof(*soft_faults), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (memory == MAP_FAILED)
		abort();
	soft_faults = memory;
}

/* The control library names its threads. */
static unsigned int caller(void)
{
	char name[16] = "";

	prctl(PR_GET_NAME, name);
	return strncmp(name, "lien-", 5) ? SOFTCUDA_BY_APPLICATION : SOFTCUDA_BY_CONTROL;
}

/* Ends early when the test disarms, or moves `nth` behind the call. */
static void delay(const struct softcuda_faults *faults, uint32_t n)
{
	const struct timespec one = {.tv_nsec = 1000000};
	uint32_t i;

	for (i = 0; i < faults->delay_ms; i++) {
		if (!__atomic_load_n(&faults->armed, __ATOMIC_ACQUIRE) ||
			n < __atomic_load_n(&faults->nth, __ATOMIC_ACQUIRE))
			return;
		nanosleep(&one, NULL);
	}
}

static CUresult strike(const struct softcuda_faults *faults, uint32_t n)
{
	switch (faults->action) {
	case SOFTCUDA_FAIL:
		return faults->result;
	case SOFTCUDA_DELAY:
		delay(faults, n);
		break;
	case SOFTCUDA_KILL:
		kill(getpid(), SIGKILL);
		pause();
	}
	return CUDA_SUCCESS;
}

CUresult soft_fault(const char *function)
{
	struct softcuda_faults *faults = soft_faults;
	uint32_t n;

	if (!__atomic_load_n(&faults->armed, __ATOMIC_ACQUIRE) ||
		(faults->function[0] && strcmp(faults->function, function)) ||
		!(caller() & faults->by))
		return CUDA_SUCCESS;
	n = __atomic_add_fetch(&faults->calls, 1, __ATOMIC_ACQ_REL);
	if (n <= SOFTCUDA_FAULT_LOG)
		snprintf(faults->log[n - 1], SOFTCUDA_FAULT_NAME, "%s", function);
	if (faults->action == SOFTCUDA_COUNT || n < faults->nth ||
		(faults->times && n - faults->nth >= faults->times))
		return CUDA_SUCCESS;
	__atomic_add_fetch(&faults->hit, 1, __ATOMIC_ACQ_REL);
	return strike(faults, n);
}
