#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Every way to get, share or keep memory, on a real driver: what lien says of it.

    tests/gpu/shapes.py --lien build/lien --prog build/tests/integration/prog_driver

One GPU does. Multicast is left out (it harms shared hosts). What this machine's driver refuses is
printed and skipped. Prints `ok NAME`, `refused NAME: why` or `FAILED NAME: why`, and ends with
`N passed, N failed`; exit status 1 when a step failed.
"""
import argparse
import subprocess
import sys
from pathlib import Path

from harness import ROOT, Failure, Session, check_binary, end, end_on_signals, spawn, wait_for

PIECE = 2 << 20
FD, FABRIC = 1, 8
RW = 3


class Refused(Exception):
    pass


class Shapes:
    """A prog_driver."""

    def __init__(self, program: Path, *prefix):
        self.process = spawn([*prefix, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        if not self.process.stdout.readline().startswith("ready"):
            raise Failure("prog_driver does not start")
        self("init", 0)

    def __call__(self, *words):
        text = " ".join(str(word) for word in words)
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer:
            raise Failure(f"prog_driver ended at '{text}'")
        if answer[0] != "ok":
            raise Refused(f"{text}: {' '.join(answer)}")
        values = [int(value, 0) for value in answer[1:]]
        return values[0] if len(values) == 1 else values

    def show(self, handle, device=0, flags=RW):
        """A new mapping of it."""
        va = self("reserve", PIECE)
        self("map", va, PIECE, handle, 0)
        if flags:
            self("access", va, PIECE, device, flags)
        return va

    def through(self, handle, *command):
        """A command on all of it, by a mapping that exists no longer."""
        va = self.show(handle)
        result = self(command[0], va, PIECE, *command[1:])
        self("unmap", va, PIECE)
        self("free", va, PIECE)
        return result

    def take(self, other, handle):
        fd = other("export", handle)
        mine = self("getfd", other.pid, fd)
        handle = self("import", mine)
        self("close", mine)
        other("close", fd)
        return handle

    def end(self):
        end(self.process)


def require(condition, text):
    if not condition:
        raise Failure(text)


class Tries:
    def __init__(self, lien, program: Path):
        self.lien, self.program = lien, program

    def start(self) -> Shapes:
        made = Shapes(self.program)
        wait_for(f"process {made.pid} is known",
                 lambda: [p for p in self.lien.json("ps")["processes"] if p["pid"] == made.pid])
        return made

    def start_movable(self) -> Shapes:
        made = Shapes(self.program, self.lien.binary, "run", "--")
        wait_for(f"process {made.pid} takes orders",
                 lambda: [p for p in self.lien.json("ps")["processes"]
                          if p["pid"] == made.pid and p["control"] == "ready"])
        return made

    def moved(self, size, *many):
        """All of it goes and comes back, twice."""
        words = [word for one in many for word in ("--pid", one.pid)]
        for _ in range(2):
            result = self.lien.json("offload", "--owner", "all", *words)
            require((result["bytes"], result["left"]) == (size, []), f"offload: {result}")
            self.lien.json("restore")

    def allocations(self, pid: int) -> list:
        return [a for a in self.lien.json("graph")["allocations"]
                if a["pid"] == pid and a["owner"] != "lien-control"]  # the host arena

    def made(self, shapes: Shapes, origin: str, size: int, device=0) -> dict:
        """The one allocation of that origin; it must be as said."""
        found = [a for a in self.allocations(shapes.pid) if a["origin"] == origin]
        require(len(found) == 1, f"{len(found)} allocations of {origin}, want 1: {found}")
        require(found[0]["bytes"] == size, f"{found[0]['bytes']} bytes, want {size}")
        require(found[0]["device"] == device, f"device {found[0]['device']}, want {device}")
        return found[0]

    def kinds(self, shapes: Shapes, va: int) -> list:
        holders = self.lien.json("holders", shapes.pid, hex(va))["holders"]
        return sorted((h["pid"], h["kind"]) for h in holders)

    def nothing_left(self, *many):
        for shapes in many:
            left = self.allocations(shapes.pid)
            require(not left, f"left in the graph: {left[:2]}")
        status = self.lien.json("status")
        incomplete = [shapes.pid for shapes in many if shapes.pid in status["incomplete"]]
        require(not incomplete, f"incomplete: {incomplete}")
        require(not status["events_lost"], f"{status['events_lost']} events lost")

    # The tries

    def plain(self):
        one = self.start()
        va = one("alloc", 5000)
        self.made(one, "cuMemAlloc", 5000)
        one("memfree", va)
        va, pitch = one("pitch", 1000, 64)
        self.made(one, "cuMemAllocPitch", pitch * 64)
        one("memfree", va)
        self.nothing_left(one)

    def managed(self):
        one = self.start()
        va = one("managed", PIECE)
        self.made(one, "cuMemAllocManaged", PIECE)
        one("memfree", va)
        self.nothing_left(one)

    def host(self):
        one = self.start()
        first, second = one("host-alloc", 5000, 1), one("alloc-host", 4096)
        pages = one("pages", 8192)
        one("host-register", pages, 8192, 0)
        found = [(a["origin"], a["bytes"], a["state"]) for a in self.allocations(one.pid)]
        require(sorted(found) == [("cuMemHostAlloc", 4096, "in host memory"),
                                  ("cuMemHostAlloc", 5000, "in host memory"),
                                  ("cuMemHostRegister", 8192, "in host memory")], f"{found}")
        one("host-unregister", pages)
        one("host-free", first)
        one("host-free", second)
        self.nothing_left(one)

    def streams(self):
        one = self.start()
        for how in ("alloc-async", "alloc-async-ptsz"):
            va = one(how, 12345)
            self.made(one, "cuMemAllocAsync", 12345)
            one("free-async" + how[11:], va)
        one("sync")
        self.nothing_left(one)

    def pools(self):
        one, two = self.start(), self.start()
        pool = one("pool", 0, FD)
        va = one("pool-alloc", pool, PIECE)
        self.made(one, "cuMemAllocAsync", PIECE)
        one("sync")
        fd = two("getfd", one.pid, one("pool-export", pool))
        theirs = two("pool-import", fd)
        seen = two("pointer-import", theirs, hex(one("pointer-export", va)))
        kinds = self.kinds(two, seen)
        require(kinds == sorted([(one.pid, "export"), (one.pid, "mapping"), (two.pid, "mapping")]),
                f"holders: {kinds}")
        two("memfree", seen)
        one("memfree", va)
        two("pool-destroy", theirs)
        one("pool-destroy", pool)
        self.nothing_left(one, two)

    def legacy_ipc(self):
        one, two = self.start(), self.start()
        va = one("alloc", PIECE)
        handle = hex(one("ipc-get", va))
        require(hex(one("ipc-get", va)) == handle, "another handle for the same memory")
        seen = two("ipc-open", handle)
        require(two("ipc-open", handle) == seen, "another address for the same handle")
        require((two.pid, "mapping") in self.kinds(one, va), f"{self.kinds(one, va)}")
        two("ipc-close", seen)
        require((two.pid, "mapping") in self.kinds(one, va), "closed once, opened twice")
        two("ipc-close", seen)
        require((two.pid, "mapping") not in self.kinds(one, va), "closed twice")
        one("memfree", va)
        self.nothing_left(one, two)

    def handles(self):
        one, two = self.start(), self.start()
        handle = one("create", 4 * PIECE, 0, FD)
        whole = one("reserve", 8 * PIECE)
        one("map", whole, 4 * PIECE, handle, 0)
        one("access", whole, 4 * PIECE, 0, RW)
        one("map", whole + 4 * PIECE, 4 * PIECE, handle, 0)  # an alias
        one("access", whole + 4 * PIECE, 4 * PIECE, 0, RW)
        require(len(self.made(one, "cuMemCreate", 4 * PIECE)["mappings"]) == 2, "mappings")
        fd = two("getfd", one.pid, one("export", handle))
        theirs = two("import", fd)
        kinds = self.kinds(one, whole)
        require((two.pid, "import") in kinds and (two.pid, "open export") in kinds, f"{kinds}")
        one("release", handle)
        require(one("retain", whole) == handle, "another handle for the same memory")
        one("release", handle)
        two("release", theirs)
        two("close", fd)
        one("unmap", whole, 8 * PIECE)
        one("free", whole, 8 * PIECE)
        self.nothing_left(one, two)

    def short_map(self):
        one = self.start()
        handle = one("create", 4 * PIECE, 0, FD)
        va = one("reserve", PIECE)
        one("map", va, PIECE, handle, 0)
        made = self.made(one, "cuMemCreate", 4 * PIECE)
        require([m["bytes"] for m in made["mappings"]] == [PIECE], f"{made['mappings']}")
        one("unmap", va, PIECE)
        one("release", handle)
        one("free", va, PIECE)
        self.nothing_left(one)

    def host_node(self):
        one = self.start()
        handle = one("create-host", PIECE, 0, 0)
        made = self.made(one, "cuMemCreate", PIECE, None)
        require(made["state"] == "in host memory", made["state"])
        one("release", handle)
        self.nothing_left(one)

    def fabric(self):
        one, two = self.start(), self.start()
        handle = one("create", PIECE, 0, FABRIC)
        theirs = two("fabric-import", hex(one("fabric", handle)))
        require(any(h["pid"] == two.pid and h["imported"]
                    for h in self.made(one, "cuMemCreate", PIECE)["handles"]), "not joined")
        two("release", theirs)
        one("release", handle)
        self.nothing_left(one, two)

    def range_handle(self):
        one = self.start()
        va = one("alloc", PIECE)
        fd = one("range-handle", va, PIECE)
        require((one.pid, "dma-buf") in self.kinds(one, va), f"{self.kinds(one, va)}")
        one("close", fd)
        one("memfree", va)
        self.nothing_left(one)

    def contexts(self):
        one = self.start()
        context = one("ctx", 0)
        one("alloc", PIECE)
        one("ctx-pop")
        kept = one("alloc", 2 * PIECE)
        one("ctx-push", context)
        one("ctx-destroy", context)
        one("device", 0)
        self.made(one, "cuMemAlloc", 2 * PIECE)
        one("memfree", kept)
        self.nothing_left(one)

    # Moved, with mappings of the control library's own

    def moved_handle(self):
        one = self.start_movable()
        handle = one("create", PIECE, 0, FD)
        one.through(handle, "fill", 0x31)
        self.moved(PIECE, one)
        require(not one.through(handle, "check", 0x31), "wrong bytes")
        one("release", handle)
        self.nothing_left(one)

    def moved_read_only(self):
        one = self.start_movable()
        handle = one("create", PIECE, 0, FD)
        one.through(handle, "fill", 0x41)
        bare, read_only = one.show(handle, 0, 0), one.show(handle, 0, 1)
        self.moved(PIECE, one)
        require(not one("check", read_only, PIECE, 0x41), "wrong bytes")
        for va in (bare, read_only):
            one("unmap", va, PIECE)
            one("free", va, PIECE)
        one("release", handle)
        self.nothing_left(one)

    def moved_own_import(self):
        one = self.start_movable()
        handle = one("create", PIECE, 0, FD)
        again = one.take(one, handle)
        va, there = one.show(handle), one.show(again)
        print(f"   created {handle:#x}, imported {again:#x}; retained by the places of each: "
              f"{one('retain', va):#x}, {one('retain', there):#x}")
        one("fill", va, PIECE, 0x51)
        self.moved(PIECE, one)
        require(not one("check", there, PIECE, 0x51), "wrong bytes of the import")
        one("fill", there, PIECE, 0x52)
        require(not one("check", va, PIECE, 0x52), "not an alias any more")
        for place in (va, there):
            one("unmap", place, PIECE)
            one("free", place, PIECE)
        one("release", handle)
        one("release", handle)
        require(not one.through(again, "check", 0x52), "wrong bytes by the import alone")
        one("release", again)
        one("release", again)
        self.nothing_left(one)

    def moved_by_several(self):
        owner, bare, twice = [self.start_movable() for _ in range(3)]
        handle = owner("create", PIECE, 0, FD)
        owner.through(handle, "fill", 0x61)
        handles = [one.take(owner, handle) for one in (bare, twice, twice)]
        places = [twice.show(one) for one in handles[1:]]
        self.moved(PIECE, owner, bare, twice)
        twice("fill", places[0], PIECE, 0x62)
        require(not twice("check", places[1], PIECE, 0x62), "one of two imports is other memory")
        require(not bare.through(handles[0], "check", 0x62), "that of a handle is other memory")
        require(not owner.through(handle, "check", 0x62), "the owner's is other memory")


TRIES = ("plain", "managed", "host", "streams", "pools", "legacy_ipc", "handles", "short_map",
         "host_node", "fabric", "range_handle", "contexts", "moved_handle", "moved_read_only",
         "moved_own_import", "moved_by_several")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lien", type=Path, default=ROOT / "build/lien")
    parser.add_argument("--prog", type=Path, default=ROOT / "build/tests/integration/prog_driver")
    options = parser.parse_args()
    end_on_signals()
    passed = failed = 0
    with Session(check_binary(options.lien), name="shapes") as session:
        session.lien.start_agent()
        tries = Tries(session.lien, options.prog)
        for name in TRIES:
            try:
                getattr(tries, name)()
                print(f"ok {name}", flush=True)
                passed += 1
            except Refused as refused:
                print(f"refused {name}: {refused}", flush=True)
            except Failure as failure:
                print(f"FAILED {name}: {failure}", flush=True)
                failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
