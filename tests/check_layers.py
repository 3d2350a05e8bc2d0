#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Which folder may include which. A folder includes itself and those before it, so there is no circle;
and the pure ones neither BPF nor CUDA. A new folder is put where it belongs."""

import pathlib
import re
import sys

PURE = ["agent/graph", "agent/journal", "agent/nodes", "agent/reread", "agent/offload", "agent/ras",
        "agent/targets", "agent/views"]
PRODUCT = PURE + [
    "loader", "loader/discover", "loader/probes", "loader/inject",
    "agent/core", "agent/server", "agent/link", "agent/quiesce", "agent/orders", "agent/join",
    "agent/processes", "agent/daemon", "tools/text", "tools/picture", "tools/top", "tools/cli", "tools/exporter", "tools/replay", "tools/python"]
# Each is a program of its own, or goes into one: they know nothing of the others.
ORDERS = [PRODUCT, ["control/driver", "control/memory", "control/tag", "control/ask", "control/plain", "control/nccl", "control/orders", "control/tms", "control"]]
TOPS = ["agent", "loader", "control", "tools/cli", "tools/exporter", "tools/picture", "tools/text", "tools/top",
        "tools/replay", "tools/python"]
NOT_PURE = re.compile(r'#include [<"](bpf/|cuda|nccl|.*\.skel\.h)')
INCLUDE = re.compile(r'#include "([^"]+)/[^"/]+"')


def problems():
    for top in TOPS:
        for path in sorted(pathlib.Path(top).rglob("*.[ch]")):
            folder = str(path.parent)
            order = next((order for order in ORDERS if folder in order), None)
            if not order:
                yield "%s: its folder has no place in tests/check_layers.py" % path
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                found = INCLUDE.match(line)
                if found and found[1] in order and order.index(found[1]) > order.index(folder):
                    yield "%s:%d: %s must not know %s" % (path, number, folder, found[1])
                if found and found[1] not in order and any(found[1] in other for other in ORDERS):
                    yield "%s:%d: %s must not know %s" % (path, number, folder, found[1])
                if folder in PURE and NOT_PURE.match(line):
                    yield "%s:%d: %s is pure: %s" % (path, number, folder, line)


def main():
    found = list(problems())
    print("\n".join(found + ["0 passed, 1 failed" if found else "1 passed, 0 failed"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
