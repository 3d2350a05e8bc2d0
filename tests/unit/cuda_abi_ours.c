/* SPDX-License-Identifier: BSD-2-Clause */
/* Our side of test_cuda_abi.c. */
#include <lien/cuda_abi.h>

#define FACTS	    our_facts
#define FACTS_COUNT our_count
#include "cuda_abi_facts.h"
