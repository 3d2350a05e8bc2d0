#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Memory that a process has by a handle alone, by several, or without a mapping that can copy all of it:
the control library maps it while it is moved. See lien_test.py for what this needs.
"""

import os
import resource
import sys

from lien_test import MIB, Session, case, check, equal, main, wait_for
from move import shape
from shapes import shapes

SIZE = 2 * MIB
RW, READ = 3, 1
FD, FABRIC = 1, 8


def moved(session, ranks, size, rounds=2):
    """All of it goes and comes back, and nothing else is left of that."""
    pids = [rank.pid for rank in ranks]
    session.ready(*pids)
    before, used = shape(session, *pids), session.used()
    mappings = set()  # the first offload pins host memory
    for _ in range(rounds):
        result = session.ask("offload", "--owner", "all")
        equal((result["outcome"], result["left"], result["bytes"]), ("done", [], size), "offload")
        equal(session.used(), used - size, "device memory in use while it is away")
        session.ask("restore")
        equal(session.used(), used, "device memory in use")
        equal(shape(session, *pids), before, "the graph")
        mappings.add(session.ask("status")["mappings"])
    equal(len(mappings), 1, "numbers of mappings in the graph")
    equal([session.process(pid)["complete"] for pid in pids], [True] * len(pids), "complete")


@case()
def test_handle_without_a_mapping():
    with Session() as session:
        session.start_agent()
        rank = session.driver()
        handle = rank("create", SIZE, 0)
        rank.through(handle, SIZE, 0, "fill", 0x31)
        moved(session, [rank], SIZE)
        equal(rank.through(handle, SIZE, 0, "check", 0x31), 0, "wrong bytes")
        # With more references than one, which only a mapping gives.
        va = rank("show", SIZE, handle, 0)
        equal(rank("retain", va), handle, "retained")
        rank("unmap", va, SIZE)
        rank("free", va, SIZE)
        moved(session, [rank], SIZE)
        equal(rank.through(handle, SIZE, 0, "check", 0x31), 0, "wrong bytes")
        rank("release", handle)
        rank("release", handle)
        rank.refused("release", handle)
        session.freed()


@case()
def test_mappings_that_do_not_do():
    """Read-only ones, ones without any access, ones of a part."""
    with Session(memory="16M") as session:
        session.start_agent()
        rank = session.driver()
        read_only, bare = (rank("create", SIZE, 0) for _ in range(2))
        part = rank("create", 2 * SIZE, 0)
        rank.through(read_only, SIZE, 0, "fill", 0x41)
        rank.through(bare, SIZE, 0, "fill", 0x42)
        whole = rank("show", 2 * SIZE, part, 0)
        rank("fill", whole, 2 * SIZE, 0x43)
        rank("unmap", whole, 2 * SIZE)
        place = rank("show", SIZE, read_only, 0)
        rank("access", place, SIZE, 0, READ)
        rank("map", rank("reserve", SIZE), SIZE, bare)
        there = rank("reserve", SIZE)
        rank("map", there, SIZE, part)
        moved(session, [rank], 4 * SIZE)
        equal(rank("check", place, SIZE, 0x41), 0, "wrong bytes")
        rank.refused("fill", place, SIZE, 1)
        equal(rank.through(bare, SIZE, 0, "check", 0x42), 0, "wrong bytes")
        rank("map", whole, 2 * SIZE, part)
        rank("access", whole, 2 * SIZE, 0, RW)
        equal(rank("check", whole, 2 * SIZE, 0x43), 0, "wrong bytes of what was mapped in part")


@case()
def test_imports_that_nobody_may_access():
    """Mapped and no more, alone or beside a mapping that a device may read."""
    with Session() as session:
        session.start_agent()
        owner, bare, both = ranks = [session.driver() for _ in range(3)]
        handle, va = owner("make", SIZE, 0)
        owner("fill", va, SIZE, 0x45)
        fd = owner("export", handle)
        handles = [rank.take(owner, fd) for rank in (bare, both)]
        owner("close", fd)
        bare("map", bare("reserve", SIZE), SIZE, handles[0])
        view = both("show", SIZE, handles[1], 0)
        both("map", both("reserve", SIZE), SIZE, handles[1])
        moved(session, ranks, SIZE)
        equal(bare.through(handles[0], SIZE, 0, "check", 0x45), 0, "wrong bytes")
        equal(both("check", view, SIZE, 0x45), 0, "wrong bytes")


@case()
def test_own_import():
    """Both handles mean the memory after a restore, and it lives as long as one of them does."""
    with Session() as session:
        session.start_agent()
        rank = session.driver()
        handle, va = rank("make", SIZE, 0)
        rank("retain", va)
        fd = rank("export", handle)
        again = rank("import", fd)
        rank("close", fd)
        check(again != handle, "the driver gave one handle for both")
        there = rank("show", SIZE, again, 0)
        rank("fill", va, SIZE, 0x51)
        moved(session, [rank], SIZE)
        equal(rank("check", there, SIZE, 0x51), 0, "wrong bytes of the import")
        rank("fill", there, SIZE, 0x52)
        equal(rank("check", va, SIZE, 0x52), 0, "not an alias any more")
        rank("unmap", va, SIZE)
        rank("unmap", there, SIZE)
        rank("release", handle)
        rank("release", handle)
        equal(rank.through(again, SIZE, 0, "check", 0x52), 0, "wrong bytes by the import alone")
        moved(session, [rank], SIZE)
        equal(rank.through(again, SIZE, 0, "check", 0x52), 0, "wrong bytes by the import alone")
        rank("release", again)
        rank.refused("release", again)
        session.freed()


@case()
def test_handles_of_several_processes():
    """Owner and importers, of which some have mappings, one has only a handle, and one has two."""
    with Session() as session:
        session.start_agent()
        for owner_maps in (False, True):
            owner, mapped, bare, twice = ranks = [session.driver() for _ in range(4)]
            handle = owner("create", SIZE, 0)
            owner.through(handle, SIZE, 0, "fill", 0x61)
            if owner_maps:
                owner("show", SIZE, handle, 0)
            fd = owner("export", handle)
            handles = [rank.take(owner, fd) for rank in (mapped, bare, twice, twice)]
            owner("close", fd)
            va = mapped("show", SIZE, handles[0], 0)
            places = [twice("show", SIZE, one, 0) for one in handles[2:]]
            moved(session, ranks, SIZE)
            equal(mapped("check", va, SIZE, 0x61), 0, "wrong bytes")
            mapped("fill", va, SIZE, 0x62)
            equal(owner.through(handle, SIZE, 0, "check", 0x62), 0, "the owner's is other memory")
            equal(bare.through(handles[1], SIZE, 0, "check", 0x62), 0, "that of a handle is other memory")
            for place in places:
                equal(twice("check", place, SIZE, 0x62), 0, "one of two imports is other memory")
            for rank in ranks:
                rank.end()
            session.forgotten(*[rank.pid for rank in ranks])
            session.freed()


@case()
def test_another_agent_restores():
    """It knows nothing of what the first one did but what the processes tell it."""
    with Session() as session:
        for journal in ((), ("--no-journal",)):
            session.start_agent(*journal)
            owner, other = ranks = [session.driver() for _ in range(2)]
            handle = owner("create", SIZE, 0)
            owner.through(handle, SIZE, 0, "fill", 0x71)
            fd = owner("export", handle)
            import_ = other.take(owner, fd)
            owner("close", fd)
            session.ready(owner.pid, other.pid)
            equal(session.ask("offload", "--owner", "all")["bytes"], SIZE, "bytes")
            session.kill_agent()
            session.start_agent(*journal)
            equal(session.ask("restore")["bytes"], SIZE, "bytes")
            equal(owner.through(handle, SIZE, 0, "check", 0x71), 0, "wrong bytes")
            equal(other.through(import_, SIZE, 0, "check", 0x71), 0, "wrong bytes of the import")
            for rank in ranks:
                equal(session.process(rank.pid)["state"], "running", "state")
                rank.end()
            session.forgotten(owner.pid, other.pid)
            session.kill_agent()


class Member:
    """A rank of a team, with memory of its own that is bound to the team's multicast object."""

    def __init__(self, session, device):
        self.driver = shapes(session, init=device, control=True)
        self.pid, self.take, self.device = self.driver.pid, self.driver.take, device
        self.memory = self("create", 2 * SIZE, device, FD)
        self.va = self("show", 2 * SIZE, self.memory, device)
        self("fill", self.va, 2 * SIZE, 0x90 + device)

    def __call__(self, *words):
        return self.driver(*words)

    def bind(self, offset):
        self("mc-bind", self.object, offset, self.memory, 0, SIZE)

    def bound(self):
        """What the driver says: a place is taken or free."""
        taken = []
        for offset in (0, SIZE):
            spare = self("create", SIZE, self.device, FD)
            if self.driver.attempt("mc-bind", self.object, offset, spare, 0, SIZE)[0]:
                self("mc-unbind", self.object, self.device, offset, SIZE)
            else:
                taken.append(offset)
            self("release", spare)
        return taken


def team(session):
    """Two ranks on two GPUs, whose object has memory of both."""
    first, second = members = [Member(session, device) for device in range(2)]
    first.object = first("mc-create", 2, 2 * SIZE, FD)
    fd = first("export", first.object)
    second.object = second.take(first, fd)
    first("close", fd)
    for member in members:
        member("mc-add", member.object, member.device)
    for member in members:
        member.bind(0)
        member.view = member("show", 2 * SIZE, member.object, member.device)
    return members


def reasons(session, *words):
    return {row["reason"] for row in session.ask("offload", "--owner", "all", "--dry-run", *words)["left"]}


@case()
def test_multicast():
    """Bound memory goes with the bindings and comes back with them, on request alone."""
    with Session() as session:
        session.start_agent()
        members = team(session)
        pids = [member.pid for member in members]
        session.ready(*pids)
        check(["see --multicast" in reason for reason in reasons(session)] == [True], reasons(session))
        for number in range(3):
            result = session.ask("offload", "--owner", "all", "--multicast")
            equal((result["bytes"], result["left"]), (4 * SIZE, []), "offload")
            equal(session.used(), 0, "device memory in use")
            session.ask("restore")
            for member in members:
                equal(member("check", member.va, 2 * SIZE, 0x90 + member.device), 0, "wrong bytes")
                equal(member.bound(), [0], "places of the object that are taken")
                answer = session.ask("holders", member.pid, "%#x" % member.va)["holders"]
                equal([row["bytes"] for row in answer if row["kind"] == "multicast object"], [SIZE],
                      "bindings in the graph")
        # By address, and twice: unbound by the program afterwards.
        members[0]("mc-bind-addr", members[0].object, SIZE, members[0].va + SIZE, SIZE)
        equal(session.ask("offload", "--owner", "all", "--multicast")["bytes"], 4 * SIZE, "bytes")
        session.ask("restore")
        equal(members[0].bound(), [0, SIZE], "places of the object that are taken")
        for member in members:
            for offset in member.bound():
                member("mc-unbind", member.object, member.device, offset, SIZE)
        equal(session.ask("offload", "--owner", "all")["bytes"], 4 * SIZE, "moved like any other")
        session.ask("restore")
        equal([session.process(pid)["complete"] for pid in pids], [True] * 2, "complete")


@case()
def test_multicast_stays_together():
    """All memory of an object moves, or none."""
    with Session() as session:
        session.start_agent()
        first, second = team(session)
        third = session.driver()
        session.ready(first.pid, second.pid)
        check(any("together with memory that stays" in reason for reason in reasons(
            session, "--multicast", "--pid", first.pid)), "a part of the team")
        fd = second("range-handle", second.va, SIZE)
        found = reasons(session, "--multicast")
        check(any("dma-buf" in reason for reason in found) and
              any("together with memory that stays" in reason for reason in found), found)
        equal(session.ask("offload", "--owner", "all", "--multicast")["bytes"], 0, "bytes")
        second("close", fd)
        fd = first("export", first.object)
        found = reasons(session, "--multicast")
        check(any("may be imported yet" in reason for reason in found), found)
        third.take(first, fd)
        first("close", fd)
        found = reasons(session, "--multicast")
        check(any("no memory in it" in reason for reason in found), found)
        third.end()
        session.forgotten(third.pid)


@case()
def test_multicast_comes_back_together():
    """A request for a part brings back the team; nobody touches the object meanwhile."""
    with Session() as session:
        session.start_agent()
        members = team(session)
        first, second = members
        session.ready(first.pid, second.pid)
        equal(session.ask("offload", "--owner", "all", "--multicast")["bytes"], 4 * SIZE, "bytes")
        equal(session.ask("restore", "--pid", first.pid)["bytes"], 4 * SIZE, "restored for one of them")
        for command in (("fill", second.view, SIZE, 1), ("mc-unbind", second.object, 1, 0, SIZE)):
            session.ask("offload", "--owner", "all", "--multicast")
            second.driver.process.send(" ".join(str(word) for word in command))
            wait_for("it is held", lambda: session.ask("status")["held"])
            session.ask("restore")
            check(second.driver.process.line(10).startswith("ok"), "after the restore: %s" % (command,))
        equal((first.bound(), second.bound()), ([0], []), "places of the object that are taken")


@case()
def test_fabric_handles():
    with Session() as session:
        session.start_agent()
        owner, other = [shapes(session, init=0, control=True) for _ in range(2)]
        handle = owner("create", SIZE, 0, FABRIC)
        va = owner("show", SIZE, handle, 0)
        owner("fill", va, SIZE, 0xa1)
        view = other("show", SIZE, other("fabric-import", "%#x" % owner("fabric", handle)), 0)
        session.ready(owner.pid, other.pid)
        check(["see --multicast" in reason for reason in reasons(session)] == [True], reasons(session))
        before = shape(session, owner.pid, other.pid)
        for number in range(3):
            equal(session.ask("offload", "--owner", "all", "--multicast")["bytes"], SIZE, "bytes")
            equal(session.used(), 0, "device memory in use")
            session.ask("restore")
            equal(shape(session, owner.pid, other.pid), before, "the graph")
            equal(other("check", view, SIZE, 0xa1 + number), 0, "wrong bytes of the import")
            other("fill", view, SIZE, 0xa2 + number)
            equal(owner("check", va, SIZE, 0xa2 + number), 0, "not the same memory any more")
        key = owner("fabric", handle)  # nobody has imported this one
        check(any("not imported by anybody yet" in reason for reason in reasons(session, "--multicast")),
              reasons(session, "--multicast"))
        other("fabric-import", "%#x" % key)


def limit_files(pid, free, hard=None):
    """The process can open that many more descriptors; hard: it cannot raise that itself. Returns the earlier
    limits."""
    used = {int(fd) for fd in os.listdir("/proc/%d/fd" % pid)}
    unused = [fd for fd in range(len(used) + free + 1) if fd not in used]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (unused[free], unused[free] if hard else before[1]))
    return before


@case()
def test_importer_without_descriptors():
    """Shared memory comes back although the program has no descriptor left; where its limit is hard, the restore says
    so."""
    with Session() as session:
        session.start_agent()
        owner, importer = session.driver(), session.driver()
        places = []
        for value in range(1, 9):
            handle, va = owner("make", SIZE, 0)
            fd = owner("export", handle)
            places.append((va, importer("show", SIZE, importer.take(owner, fd), 0), value))
            owner("close", fd)
            owner("fill", va, SIZE, value)
        session.ready(owner.pid, importer.pid)
        for free, hard in (4, False), (0, False), (4, True):
            session.ask("offload", "--owner", "all")
            limits = limit_files(importer.pid, free, hard)
            if hard:
                session.refused("restore", text="too few free file descriptors: raise their number")
                break
            session.ask("restore")
            equal(resource.prlimit(importer.pid, resource.RLIMIT_NOFILE)[1], limits[1], "its hard limit")
            check(resource.prlimit(importer.pid, resource.RLIMIT_NOFILE)[0] < limits[0], "its soft limit was raised")
            resource.prlimit(importer.pid, resource.RLIMIT_NOFILE, limits)
            for va, there, value in places:
                equal((owner("check", va, SIZE, value), importer("check", there, SIZE, value)), (0, 0), "wrong bytes")


if __name__ == "__main__":
    sys.exit(main())
