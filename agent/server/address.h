/* SPDX-License-Identifier: BSD-2-Clause */
/* Where the agent listens: a path that nobody else can put a socket at. */
#ifndef LIEN_SERVER_ADDRESS_H
#define LIEN_SERVER_ADDRESS_H

/*
 * Makes the directories, checks everybody's rights to them, replaces a socket that a killed agent
 * has left, and listens. *fd does not block. 0, or -errno after a message. The path fits a struct
 * sockaddr_un afterwards.
 */
int lien_address_listen(const char *path, int *fd);

#endif
