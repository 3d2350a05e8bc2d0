# SPDX-License-Identifier: BSD-2-Clause
"""Compares logs of prog_same (tests/same/same.h): shared by test_same.py and tests/gpu/same.py."""

import os
import re

# Why an offload may be refused: a program without a primary context on any device that reaches some memory keeps it.
REFUSED = ("no device that may reach it has a primary context", "has a CUDA context besides the primary one")
BEFORE = 10  # lines that are shown before a difference

# What differs on purpose: a line that matches is compared after this was cut out of it. Reasons: what
# docs/internals/plain.md says, "Limits" above all.
ON_PURPOSE = [
    (re.compile(r"cuMemPoolGetAttribute\(default\d, [56]\) = 0 "), re.compile(r" = .*"),
     "what is reserved is in pieces of the driver's, or in ours"),
    (re.compile(r"freed and used again"), re.compile(r".*"), "addresses are the driver's to choose"),
]

# What is known to be wrong, and goes from here when it is mended.
KNOWN = [
    (re.compile(r"cuMemFree(_v2|Async|Async_ptsz)\(([\w-]+, )?a\d+\+\d+\) = (1|201|709)$"), re.compile(r" = .*"),
     "an address inside a block is INVALID_VALUE even without a context"),
    (re.compile(r"cuMem[GS]etAccess\(\d, a\d+(\+\d+)?\)"), re.compile(r" = .*"), "plain memory has access flags"),
    (re.compile(r"cuMemPoolGetAttribute\(default\d, 8\)"), re.compile(r" = .*"), "the highest sum is not the sum of the highest"),
    (re.compile(r"(cuPointerGet|cuMemGet|cuMemRetain|cuMemAddressFree).*a\d+ freed"), re.compile(r" = .*"), "what shared a chunk with others can be asked about"),
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


def alike(one, two):
    """But for what may differ."""
    for pattern, cut, _ in ON_PURPOSE + ([] if os.environ.get("SAME_ALL") == "1" else KNOWN):
        if pattern.search(one) or pattern.search(two):
            one, two = cut.sub("", one), cut.sub("", two)
    return one == two


def compare(native, other):
    for number in range(max(len(native), len(other))):
        one, two = (lines[number] if number < len(lines) else "(nothing)" for lines in (native, other))
        if one != two and not alike(one, two):
            raise Difference(native[max(0, number - BEFORE):number], one, two)
