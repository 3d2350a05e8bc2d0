/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The C functions of torch_memory_saver's hook library, so that its Python package works with this
 * library in place of the hook (docs/torch-memory-saver.md). A region is a tag: that of the region,
 * or, without a backup, that and LIEN_TMS_DROPPED behind it. Pausing is an offload by tag of the
 * calling process, which the agent carries out; resuming is a restore by tag.
 *
 * The interface is that of torch_memory_saver 4a43c97 (2026-08-20): names, arguments and results of
 * its csrc/entrypoint.cpp, as its binary_wrapper.py uses them. Unlike the hook, these functions
 * never end the process: what fails is one line on stderr and a result other than 0.
 */
#ifndef LIEN_CONTROL_TMS_H
#define LIEN_CONTROL_TMS_H

/* What such memory held is not saved. */
#define LIEN_TMS_DROPPED ":no-backup"

#endif
