#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Which folder may include which. A folder includes itself and those before it, so there is no circle;
and the pure ones neither BPF nor CUDA. A new folder is put where it belongs.

Within a folder, files call those below them: no circle of calls either. The objects of $BUILD say who calls whom;
`make check` has just made them, and files that have none yet are passed over."""

import os
import pathlib
import re
import subprocess
import sys

PURE = ["agent/graph", "agent/journal", "agent/nodes", "agent/reread", "agent/plan", "agent/transaction", "agent/ras",
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


def calls(folder):
    """For each file of the folder: the files of the folder whose symbols it uses, and one symbol of each."""
    objects = {}
    for source in pathlib.Path(folder).glob("*.c"):
        for kind in ("obj", "obj/pic"):
            path = pathlib.Path(os.environ.get("BUILD", "build"), kind, source.with_suffix(".o"))
            if path.exists():
                objects[str(path)] = str(source)
    defined, used = {}, []
    listing = subprocess.run(["nm", "-A"] + sorted(objects), stdout=subprocess.PIPE, universal_newlines=True,
                             check=True).stdout if objects else ""
    for line in listing.splitlines():
        path, symbol = line.split(":", 1)
        kind, name = symbol.split()[-2:]
        if kind == "U":
            used.append((objects[path], name))
        elif kind.isupper():
            defined.setdefault(name, set()).add(objects[path])
    edges = {}
    for source, name in sorted(used):
        for target in defined.get(name, set()) - {source}:
            edges.setdefault(source, {})[target] = name
    return edges


def circle(edges):
    """The files of one circle, in the order of their calls; None: there is none."""
    done = set()

    def walk(source, way):
        if source in way:
            return way[way.index(source):] + [source]
        if source in done:
            return None
        for target in edges.get(source, {}):
            found = walk(target, way + [source])
            if found:
                return found
        done.add(source)
        return None

    return next(filter(None, (walk(source, []) for source in edges)), None)


def circles():
    for folder in sum(ORDERS, []):
        edges = calls(folder)
        found = circle(edges)
        if found:
            yield "%s: a circle of calls: %s" % (folder, ", ".join(
                "%s calls %s() of %s" % (pathlib.Path(a).name, edges[a][b], pathlib.Path(b).name)
                for a, b in zip(found, found[1:])))


def main():
    found = list(problems()) + list(circles())
    print("\n".join(found + ["0 passed, 1 failed" if found else "1 passed, 0 failed"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
