/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Maps and links that outlive the agent: names in a folder of a BPF file system, which only root
 * may enter. The folder is held (flock) for as long as it is open, so that two agents that would
 * have the same one do not disturb each other.
 */
#ifndef LIEN_PINS_H
#define LIEN_PINS_H

#include <stdbool.h>

struct lien_pins;

/*
 * Opens the folder of the agent with that socket: /sys/fs/bpf/lien/NAME, the name being made from
 * the socket's path and its file system. With `make`, mounts /sys/fs/bpf and makes the folder where
 * they are missing. -ENOENT: there is none; -EBUSY: another process holds it; or -errno.
 */
int lien_pins_open(struct lien_pins **out, const char *socket, bool make);
/* Lets go of the folder; what is pinned stays. NULL will do. */
void lien_pins_close(struct lien_pins *pins);
/* Removes all pins and the folder, and closes it. */
void lien_pins_remove(struct lien_pins *pins);

const char *lien_pins_folder(const struct lien_pins *pins);

/* Names have no dots and no slashes. 0 or -errno. */
int lien_pins_put(struct lien_pins *pins, const char *name, int fd);
/* The map or link, -ENOENT. The caller closes it. */
int lien_pins_get(const struct lien_pins *pins, const char *name);
bool lien_pins_has(const struct lien_pins *pins, const char *name);
/* Removes the name: the map or link, which the caller closes, or -errno. */
int lien_pins_take(struct lien_pins *pins, const char *name);
/* Of a link that nobody else has open: it is detached when this returns. */
void lien_pins_drop(struct lien_pins *pins, const char *name);
/* Calls fn for each name until it returns false; it may drop that one. */
void lien_pins_each(
	struct lien_pins *pins, bool (*fn)(void *context, const char *name), void *context);

#endif
