// SPDX-License-Identifier: BSD-2-Clause
#include "control/memory/numa.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX 1024 /* upper limit of any kernel */
#define BITS	  (8 * sizeof(unsigned long))

/* In a container there may be no sysfs, and a driver may lack this attribute. */
static int node_of_pci(int domain, int bus, int slot)
{
	char path[96], text[16];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%04x:%02x:%02x.0/numa_node", domain, bus,
		slot);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return -1;
	text[n] = '\0';
	return atoi(text);
}

int lien_numa_node(const struct lien_driver *driver, CUdevice device)
{
	int node = -1, domain, bus, slot;

	if (!driver->cuDeviceGetAttribute)
		return -1;
	if (!driver->cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) &&
		node >= 0)
		return node;
	if (driver->cuDeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device) ||
		driver->cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device) ||
		driver->cuDeviceGetAttribute(&slot, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device))
		return -1;
	return node_of_pci(domain, bus, slot);
}

void lien_numa_prefer(void *memory, size_t bytes, int node)
{
	unsigned long mask[NODES_MAX / BITS] = {0};

	if (node < 0 || node >= NODES_MAX)
		return;
	mask[node / BITS] = 1ul << node % BITS;
	/* Only a hint: seccomp filters of containers forbid it. */
	syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, mask, NODES_MAX + 1, 0);
}
