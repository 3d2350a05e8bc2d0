/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Releases and takes references to handles so that the application finds as many as it left. A
 * failed call is repeated once. References that the driver refuses to take back are remembered, and
 * released again before each later order, and periodically between them. The same goes for
 * addresses that we have reserved.
 */
#ifndef LIEN_CONTROL_HANDLES_H
#define LIEN_CONTROL_HANDLES_H

#include "control/driver/driver.h"

CUresult lien_handle_retain(
	const struct lien_driver *driver, CUmemGenericAllocationHandle *handle, uint64_t va);
/* On failure the reference is remembered: the caller no longer owns it. */
CUresult lien_handle_release(const struct lien_driver *driver, CUmemGenericAllocationHandle handle);
struct lien_scratch {
	uint64_t va, bytes;
	int mapped;
};
/* Unmaps a place of ours, if it is mapped, and frees its addresses. */
void lien_scratch_free(const struct lien_driver *driver, struct lien_scratch place);

/* Releases the remembered references and places. Stops at the first refusal. */
void lien_handles_release_owed(const struct lien_driver *driver);
int lien_handles_owed(void);

#endif
