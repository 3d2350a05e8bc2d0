/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Links that put one program on many places of a file at once (kernel 6.6), made with the plain
 * bpf() call: Debian's libbpf 1.1 and the headers of older systems lack them.
 */
#ifndef LIEN_UPROBE_MULTI_H
#define LIEN_UPROBE_MULTI_H

#include <stdbool.h>
#include <stdint.h>

/* enum bpf_attach_type: BPF_TRACE_UPROBE_MULTI */
#define LIEN_UPROBE_MULTI_TYPE 48

/* Returns true if the running kernel has them. */
bool lien_uprobe_multi_supported(void);

/* Returns true if a link can be bound to a process. Before 6.10 (and stable releases of that time)
 * such a link saw only one thread. */
bool lien_uprobe_multi_of_process_supported(void);

struct lien_uprobe_multi_how {
	bool at_return;
	uint32_t pid; /* 0: every process */
};

#define LIEN_UPROBE_MULTI_ENTRIES                                                                  \
	(struct lien_uprobe_multi_how)                                                             \
	{                                                                                          \
		0                                                                                  \
	}
#define LIEN_UPROBE_MULTI_RETURNS                                                                  \
	(struct lien_uprobe_multi_how)                                                             \
	{                                                                                          \
		.at_return = true                                                                  \
	}
#define LIEN_UPROBE_MULTI_OF_PROCESS(pid)                                                          \
	(struct lien_uprobe_multi_how)                                                             \
	{                                                                                          \
		false, pid                                                                         \
	}

/* Returns the link's fd, or -errno. Probes the places in the order given. */
int lien_uprobe_multi_attach(int program_fd, const char *path, const uint64_t *offsets,
	const uint64_t *cookies, unsigned count, struct lien_uprobe_multi_how how);

#endif
