/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_EMPTY_PROGRAM_H
#define LIEN_EMPTY_PROGRAM_H

/* Loads a program for uprobes that does nothing, to try what the kernel takes. `flags`,
 * `attach_type`: .prog_flags and .expected_attach_type of BPF_PROG_LOAD. Returns its fd, or -1 and
 * errno. */
int lien_empty_program(unsigned flags, unsigned attach_type);

#endif
