# SPDX-License-Identifier: BSD-2-Clause
"""Compares logs of prog_same (tests/same/same.h): shared by test_same.py and tests/gpu/same.py."""

import os
import re

# Why an offload may be refused: memory that only contexts of cuCtxCreate reach is not moved; nor is what the other
# process has opened, if it has made no call since it was seen.
REFUSED = ("no device that may reach it has a primary context", "has a CUDA context besides the primary one",
           "its control thread does not run yet", "handed out as a dma-buf, which keeps the old memory")
BEFORE = 10  # lines that are shown before a difference

# What differs on purpose: the call, what it answers natively, what under lien, and the reason, of which
# docs/internals/plain.md says more.
ON_PURPOSE = [
    (r"cuMemPoolGetAttribute\(default\d, [56]\)", r"0 \d+", r"0 \d+",
     "what a pool has reserved is in pieces of the driver's, or in ours"),
    (r"cuMemPoolGetAttribute\(default\d, [78]\)", r"0 \d+", r"0 \d+",
     "when a free in a stream counts is the driver's to choose, or ours"),
    (r"other: cuIpcOpenMemHandle\(a\d+'s, which is freed, \d\) \d", r"\d+.*", r"1",
     "a handle of freed memory may still work, or fails in one of several ways"),
    (r"cuMemPoolGetAttribute\(p\d+, [56]\)", r"0 \d+", r"0 \d+",
     "a pool gives back what it does not need when the control library synchronizes, too"),
    (r"cuMemsetD.*\(a\d+.*", r"1", r"0.*", "sets of another context's memory succeed"),
]

# What is known to be wrong, and goes from here when it is mended. The rest of it is not drawn: known() in prog_same.c.
KNOWN = [
    (r"cuMemGetAccess\(\d, a\d+(\+\d+)?\)", r"1|0 0", r"0.*", "plain memory has access flags"),
    (r"cuMemSetAccess\(\d, a\d+(\+\d+)?\)", r"1", r"0.*", "plain memory has access flags"),
    (r"(cuPointerGet|cuMemGet|cuMemRetain|cuMemAddressFree).*a\d+ freed.*", r"\d+", r"0.*",
     "freed memory that shared a chunk can be asked about"),
    (r"cuPointerSetAttribute\(.*a\d+ freed.*", r"1", r"0|801", "freed memory that shared a chunk can be asked about"),
]


class Difference(Exception):
    """Two logs differ."""

    def __init__(self, before, native, other):
        super().__init__(native, other)
        self.before, self.native, self.other = before, native, other

    def __str__(self):
        return "\n".join([*("    " + line for line in self.before),
                          "    natively: %s" % self.native, "    there:    %s" % self.other])


def lines_of(path):
    with open(path) as log:
        return log.read().splitlines()


def alike(native, other):
    """But for what may differ."""
    if native == other or "freed and used again" in native + other:
        return True  # where the one run has something else by now, and the other one has not
    (call, _, one), (also, _, two) = native.partition(" = "), other.partition(" = ")
    return call == also and any(
        re.fullmatch(r"\d+ t\d " + pattern, call) and re.fullmatch(natively, one) and re.fullmatch(there, two)
        for pattern, natively, there, _ in ON_PURPOSE + ([] if os.environ.get("SAME_ALL") == "1" else KNOWN))


def compare(native, other):
    for number in range(max(len(native), len(other))):
        one, two = (lines[number] if number < len(lines) else "(nothing)" for lines in (native, other))
        if not alike(one, two):
            raise Difference(native[max(0, number - BEFORE):number], one, two)
