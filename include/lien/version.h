/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_VERSION_H
#define LIEN_VERSION_H

#define LIEN_VERSION "0.1"

#endif
