/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * References to handles, given back and taken so that the application finds as many as it left. A
 * call that fails is made once more. A reference that the driver does not take back is remembered,
 * and offered to it again before each later order, and from time to time between them.
 */
#ifndef LIEN_CONTROL_HANDLES_H
#define LIEN_CONTROL_HANDLES_H

#include "control/driver/driver.h"

CUresult lien_handle_retain(
	const struct lien_driver *driver, CUmemGenericAllocationHandle *handle, uint64_t va);
/* On failure the reference is remembered: it is no longer the caller's to give back. */
CUresult lien_handle_release(const struct lien_driver *driver, CUmemGenericAllocationHandle handle);
/* Offers what is remembered once more. Stops at the first refusal. */
void lien_handles_release_owed(const struct lien_driver *driver);
int lien_handles_owed(void);
/* In a child of fork(): they are the parent's. */
void lien_handles_forked(void);

#endif
