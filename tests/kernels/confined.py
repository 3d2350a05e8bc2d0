# SPDX-License-Identifier: BSD-2-Clause
"""Runs a program under a seccomp filter that refuses the system call by which return probes report on kernels
from 6.11 on, as the filters of containers do that are older than it.

    confined.py PROGRAM...
"""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))

from container import confine  # noqa: E402

SYS_URETPROBE = 335

confine((SYS_URETPROBE,))
os.execv(sys.argv[1], sys.argv[1:])
