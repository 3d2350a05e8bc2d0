/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Maps and links that outlive the agent: names in a folder of a BPF file system that only root may
 * enter. An open folder is locked (flock), so that two agents that would use the same one do not
 * disturb each other.
 */
#ifndef LIEN_PINS_H
#define LIEN_PINS_H

#include <stdbool.h>

struct lien_pins;

/*
 * Opens the folder of the agent with that socket: /sys/fs/bpf/lien/NAME, with a NAME made from the
 * socket's path and its file system. With `make`, mounts /sys/fs/bpf and makes the folder if
 * missing. -ENOENT: there is none; -EBUSY: another process has it locked; or -errno.
 */
int lien_pins_open(struct lien_pins **out, const char *socket, bool make);
/* Unlocks the folder; the pins stay. pins may be NULL. */
void lien_pins_close(struct lien_pins *pins);
/* Removes all pins. */
void lien_pins_clear(struct lien_pins *pins);
/* Removes all pins and the folder, and closes it. */
void lien_pins_remove(struct lien_pins *pins);

const char *lien_pins_folder(const struct lien_pins *pins);

/* Names must not contain dots or slashes. Returns 0 or -errno. */
int lien_pins_put(struct lien_pins *pins, const char *name, int fd);
/* Returns an fd of the map or link, which the caller closes; -ENOENT. */
int lien_pins_get(const struct lien_pins *pins, const char *name);
bool lien_pins_has(const struct lien_pins *pins, const char *name);
/* Removes the name. A link that nobody else has open is detached a little later, by a kernel thread
 * (loader/probes/uprobe_close.h). */
void lien_pins_drop(struct lien_pins *pins, const char *name);
/* Calls fn, which may drop that name, for each name. */
void lien_pins_each(
	struct lien_pins *pins, void (*fn)(void *context, const char *name), void *context);

#endif
