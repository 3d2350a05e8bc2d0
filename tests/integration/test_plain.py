#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Plain memory (cuMemAlloc, legacy IPC) of processes under `lien run`: it can be moved, and behaves as the driver's own."""

import random
import sys

import faults
from lien_test import LIEN, MIB, SOFTNCCL, Driver, Session, case, check, equal, main, program, wait_for

ANY_FREE = 1  # CUDA_ERROR_INVALID_VALUE
OUT_OF_MEMORY, INVALID_CONTEXT, INVALID_HANDLE = 2, 201, 400
CONTEXT, BUFFER_ID, ORDINAL, IPC_CAPABLE, START, SIZE, MAPPED, HANDLE_TYPES = 1, 7, 9, 10, 11, 12, 13, 14


class Plain(Driver):
    """prog_plain under `lien run`."""

    def __init__(self, session, device=0, plain=False, linked=False, under_lien=True, **environment):
        argv = ([LIEN, "run", *(["--plain"] if plain else []), "--"] if under_lien else []) + [
            program("prog_plain")] + (["linked"] if linked else [])
        super().__init__(session.spawn(argv, **environment))
        self.context = self("init", device)

    def holds(self, address, size, value):
        equal(self("check", address, size, value), 1, "contents at %#x" % address)

    def handle(self, address):
        """What cuIpcGetMemHandle says, as a word."""
        return "0x%0128x" % self("ipc-get", address)


def plain_session(**more):
    return Session(LIEN_PLAIN="0", **more)


def stays(session, pid):
    """Bytes of the process that an offload does not free."""
    return sum(row["bytes"] - row["offload_frees"] for row in session.ask("mem")["rows"]
               if row["pid"] == pid and row["owner"] != "lien-control")


def check_as_plain(job, address, size, again):
    equal(job("range", address + size - 1), [address, size], "range")
    equal([job("attribute", address + size // 2, number)
           for number in (CONTEXT, ORDINAL, IPC_CAPABLE, START, SIZE, MAPPED, HANDLE_TYPES)],
          [job.context, 0, 1, address, size, 1, 0], "attributes")
    check(job("attribute", address, BUFFER_ID) != job("attribute", again, BUFFER_ID),
          "two blocks have one buffer id")
    equal(job("attributes", address), [address, size, 1, 0], "attributes in one call")
    equal(job.refused("retain", address), 1, "plain memory has no handle")
    equal(address % 512, 0, "alignment")


def allocations(job):
    """Blocks of many sizes, each with contents: {address: (size, value)}"""
    made = {}
    for number, size in enumerate((1, 513, 70000, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 20 * MIB)):
        address = job("alloc", size)
        job("fill", address, size, number + 1)
        made[address] = size, number + 1
    return made


@case(60)
def test_alloc_ask_free():
    with plain_session() as session:
        for linked in (False, True):
            job = Plain(session, linked=linked)
            made = allocations(job)
            last = max(made)
            for address, (size, _) in made.items():
                if address != last:
                    check_as_plain(job, address, size, last)
            row, pitch = job("pitch", 1000, 30, 4)
            equal((pitch, job("range", row)), (1024, [row, 1024 * 30]), "pitched")
            for address, (size, value) in made.items():
                job.holds(address, size, value)
            equal(job.refused("alloc", 0), 1, "no bytes")
            equal(job.refused("pitch", 10, 10, 3), 1, "a strange element")
            equal(job.refused("alloc", 1 << 50), OUT_OF_MEMORY, "too much")
            equal(job.refused("free", last + 512), 1, "an address inside")
            job("free", 0)
            for address in list(made) + [row]:
                job("free", address)
                equal(job.refused("free", address), 1, "twice")
            equal(session.used(), 0, "device memory in use")
            job.end()


@case(60)
def test_out_of_memory_at_the_same_point():
    with plain_session(memory="256M") as session:
        most = []
        for plain in (True, False):
            job = Plain(session, plain=plain)
            blocks = []
            while True:
                ok, values = job.attempt("alloc", 6 * MIB)
                if not ok:
                    equal(int(values.split()[1]), OUT_OF_MEMORY, "error")
                    break
                blocks.append(values[0])
            most.append(len(blocks))
            job("free", blocks.pop())
            job("alloc", 6 * MIB)
            job.end()
            wait_for("the memory is free", lambda: not session.used())
        equal(most[0], most[1], "blocks until there is no more")


@case(60)
def test_all_of_it_moves():
    """Every block goes to the host and comes back, where it was; `--plain` leaves them alone."""
    with plain_session() as session:
        session.start_agent()
        job, left = Plain(session), Plain(session, plain=True)
        made = allocations(job)
        left("alloc", 4 * MIB)
        session.ready(job.pid)
        equal((stays(session, left.pid), stays(session, job.pid)), (4 * MIB, 0), "stays")
        before = session.used()
        for value in range(3):
            result = session.ask("offload", "--owner", "all", "--pid", str(job.pid))
            equal(result["outcome"], "done", "offload")
            equal(session.used(), 4 * MIB, "device memory in use")
            equal(job("range", max(made)), [max(made), made[max(made)][0]], "asked while away")
            equal(session.ask("restore")["outcome"], "done", "restore")
            equal(session.used(), before, "device memory in use after the restore")
            for address, (size, number) in made.items():
                job.holds(address, size, number + value)
                job("fill", address, size, number + value + 1)
        for address in made:
            job("free", address)
        equal(session.used(), 4 * MIB, "device memory in use after free")
        equal(session.ask("status")["events_lost"], 0, "events lost")


@case(60)
def test_who_asked_stays_who_asked():
    """NCCL's plain memory alone moves by default: none of its chunks holds anybody else's."""
    with plain_session() as session:
        session.start_agent()
        job = session.driver()
        mine = [job("alloc", size) for size in (3000, 4 * MIB)]
        job("nccl", SOFTNCCL)
        theirs = [job("alloc", size) for size in (3000, 4 * MIB)]
        for value, address in enumerate(mine + theirs):
            job("fill", address, 3000, value)
        session.ready(job.pid)
        owners = {row["owner"]: row["bytes"] for row in session.ask("mem")["rows"] if row["bytes"]}
        equal((owners["nccl"], owners["prog_driver"]), (6 * MIB, 6 * MIB), "owners")
        result = session.ask("offload")
        equal((result["outcome"], result["bytes"]), ("done", 6 * MIB), "offload of NCCL's")
        equal(session.used(), 6 * MIB, "device memory in use")
        for value, address in enumerate(mine):
            job("check", address, 3000, value)
        session.ask("restore")
        for value, address in enumerate(mine + theirs):
            job("check", address, 3000, value)


@case(60)
def test_other_threads_and_contexts():
    with plain_session() as session:
        job = Plain(session)
        first = job("alloc", 3 * MIB)
        small = job("alloc", 3000)
        other = job("create", 0)
        mine = job("alloc", 5 * MIB)
        equal((job("attribute", first, CONTEXT), job("attribute", mine, CONTEXT)),
              (job.context, other), "contexts")
        job("free", first)  # of another context
        job("free-in-thread", small, other)
        job("alloc", 300)
        job("destroy", other)
        equal(session.used(), 0, "memory of a destroyed context")
        job("current", 0)
        equal(job.refused("alloc", 4096), INVALID_CONTEXT, "no context")
        job("current", job.context)
        equal(job.refused("free", mine), 1, "gone with its context")
        block = job("alloc", 8 * MIB)
        job("primary-reset", 0)
        equal(session.used(), 0, "memory after a reset")
        job("init", 0)
        equal(job.refused("free", block), 1, "gone with the reset")
        job("alloc", 8 * MIB)
        job("primary-release", 0)
        equal(session.used(), 0, "memory after the last release")


@case(60)
def test_peers():
    with plain_session() as session:
        job = Plain(session)
        before = job("alloc", 2 * MIB)
        other = job("create", 1)
        equal(job("access", before, 1), 0, "access of the peer, not enabled")
        job("peer", job.context)
        equal(job("access", before, 1), 3, "access to what was there")
        equal(job.refused("peer", job.context), 704, "enabled twice")
        job("current", job.context)
        after = job("alloc", 2 * MIB)
        equal(job("access", after, 1), 3, "access to what came later")
        job("current", other)
        job("unpeer", job.context)
        equal((job("access", before, 1), job("access", after, 1)), (0, 0), "access taken back")
        equal(job.refused("unpeer", job.context), 705, "taken back twice")
        job("current", job.context)
        equal(job("access", job("alloc", 2 * MIB), 1), 0, "access of a former peer")


@case(60)
def test_stream_ordered():
    with plain_session() as session:
        session.start_agent()
        job = Plain(session)
        one, other = job("stream"), job("stream")
        block = job("alloc-async", 4 * MIB, one)
        small = job("alloc-async", 3000, one)
        job("fill", block, 4 * MIB, 1)
        session.ready(job.pid)
        equal(stays(session, job.pid), 0, "stays")
        equal(job("pool", 0)[0], 4 * MIB + 3000, "used of the pool")
        equal([job("attribute", block, number) for number in (CONTEXT, IPC_CAPABLE, START, SIZE)],
              [0, 0, block, 4 * MIB], "attributes")
        job.refused("ipc-get", block)
        # Freed while the stream has work: nobody gets it but the same stream.
        job("hold", one)
        job("free-async", block, one)
        job.refused("free", block)
        job.refused("free-async", block, one)
        third = job("alloc-async", 4 * MIB, other)
        check(third != block, "another stream got memory that is in use")
        equal(job("alloc-async", 4 * MIB, one), block, "the same stream gets it again")
        job("free-async", block, one)
        equal(job("pool", 0), [4 * MIB + 3000, 8 * MIB + 3000], "used and reserved of the pool")
        job("go-on")
        job("synchronize", one)
        equal(job("pool", 0), [4 * MIB + 3000] * 2, "used and reserved of the pool")
        job("free", third)
        equal(session.used(), 2 * MIB, "device memory in use")
        # Plain memory in a stream, and that of the stream without one.
        plain = job("alloc", 6 * MIB)
        job("free-async", plain, one)
        job("free", small)
        job("synchronize", one)
        equal(session.used(), 0, "device memory in use")
        # A graph's memory is the driver's.
        job("capture", one)
        job.attempt("alloc-async", 4 * MIB, one)
        job.attempt("capture-end", one)
        last = job("alloc-async", 4 * MIB, one)
        job("fill", last, 4 * MIB, 8)
        result = session.ask("offload", "--owner", "all")
        equal((result["outcome"], result["left"], session.used()), ("done", [], 0), "offload")
        equal(session.ask("restore")["outcome"], "done", "restore")
        job.holds(last, 4 * MIB, 8)
        job("free-async", last, one)


@case(60)
def test_pools_that_other_devices_use():
    """Existing memory of ours gets the access, later memory is the driver's."""
    with plain_session() as session:
        session.start_agent()
        job, early = Plain(session), Plain(session)
        early("pool-peer", 0, 1)
        early("alloc-async", 2 * MIB, 0)
        block = job("alloc-async", 4 * MIB, 0)
        equal(job("access", block, 1), 0, "access of the other device")
        job("pool-peer", 0, 1)
        equal(job("access", block, 1), 3, "access of the other device")
        job("alloc-async", 6 * MIB, 0)
        equal((stays(session, early.pid), stays(session, job.pid)), (2 * MIB, 6 * MIB), "stays")


@case(60)
def test_out_of_memory_in_streams():
    """What was freed in a stream is given to who needs it, when the stream is done with it."""
    with plain_session(memory="64M") as session:
        job = Plain(session)
        stream = job("stream")
        for size in (40, 44, 48):
            job("free-async", job("alloc-async", size * MIB, stream), stream)
        job("alloc", 60 * MIB)


@case(60)
def test_fork():
    with plain_session() as session:
        job = Plain(session)
        block = job("alloc", 4 * MIB)
        small = job("alloc", 4000)
        job("fill", block, 4 * MIB, 7)
        job.handle(small)
        equal(job("fork", block), 3, "what the child may not do")
        job.holds(block, 4 * MIB, 7)
        job("free", block)
        job("free", small)
        equal(session.used(), 0, "device memory in use")


@case(120)
def test_ipc():
    with plain_session() as session:
        owner, user = Plain(session), Plain(session, device=1)
        big, a, b = owner("alloc", 6 * MIB), owner("alloc", 3000), owner("alloc", 5000)
        for value, (block, size) in enumerate(((big, 6 * MIB), (a, 3000), (b, 5000))):
            owner("fill", block, size, value + 1)
        handles = [owner.handle(block) for block in (big, a, b)]
        equal(owner.handle(big), handles[0], "the handle of the same block")
        equal(owner.refused("ipc-open", handles[0]), INVALID_CONTEXT, "opened in the owner")
        opened = [user("ipc-open", handle) for handle in handles]
        equal(user("ipc-open", handles[1]), opened[1], "opened twice")
        for value, (block, size) in enumerate(zip(opened, (6 * MIB, 3000, 5000))):
            user.holds(block, size, value + 1)
            equal(user("range", block + size - 1), [block, size], "range of opened memory")
        user("fill", opened[2], 5000, 77)
        owner.holds(b, 5000, 77)
        owner.holds(a, 3000, 2)
        equal(user.refused("ipc-close", opened[0] + 512), 1, "an address inside")
        equal(user.refused("free", opened[0]), 1, "freed instead of closed")
        user("ipc-close", opened[1])
        user.holds(opened[1], 3000, 2)
        user("ipc-close", opened[1])
        equal(user.refused("ipc-close", opened[1]), 1, "closed once too often")
        user.holds(opened[2], 5000, 77)
        # The owner frees first: who has it open keeps it.
        owner("free", big)
        equal(user.attempt("ipc-open", handles[1])[0], True, "opened again")
        user.holds(opened[0], 6 * MIB, 1)
        other = Plain(session)
        equal(other.refused("ipc-open", handles[0]), INVALID_HANDLE, "freed by its owner")
        user("ipc-close", opened[0])
        user("ipc-close", user("ipc-open", handles[1]))
        again = owner("alloc", 6 * MIB)
        check(owner.handle(again) != handles[0], "a new block has the handle of the old one")
        # The owner dies.
        owner.end()
        user.holds(opened[2], 5000, 77)
        equal(other.refused("ipc-open", handles[2]), INVALID_HANDLE, "its owner is dead")
        user("ipc-close", opened[2])
        user("ipc-close", opened[1])
        equal(session.used(), 0, "device memory in use")


@case(60)
def test_ipc_of_a_process_that_closes_its_descriptors():
    with plain_session() as session:
        owner, user = Plain(session), Plain(session)
        block = owner("alloc", 2 * MIB)
        owner("fill", block, 2 * MIB, 9)
        owner.handle(block)
        owner("closeall")

        def opened():
            ok, values = user.attempt("ipc-open", owner.handle(block))
            return ok and values[0]
        user.holds(wait_for("a handle of a new socket", opened), 2 * MIB, 9)


@case(60)
def test_ipc_with_a_process_without_lien():
    """What they exchange are the driver's handles, or it is refused."""
    with plain_session() as session:
        ours, without = Plain(session), Plain(session, under_lien=False)
        theirs = without("alloc", 2 * MIB)
        without("fill", theirs, 2 * MIB, 5)
        opened = ours("ipc-open", without.handle(theirs))
        ours.holds(opened, 2 * MIB, 5)
        ours("ipc-close", opened)
        equal(without.refused("ipc-open", ours.handle(ours("alloc", 2 * MIB))), INVALID_HANDLE,
              "a handle of ours")
        plain = Plain(session, plain=True)
        block = plain("alloc", 2 * MIB)
        without("ipc-close", without("ipc-open", plain.handle(block)))


@case(120)
def test_ipc_moves():
    """Shared memory is moved in both processes, and can be opened while it is away."""
    with plain_session() as session:
        session.start_agent()
        owner, user, late = Plain(session), Plain(session, device=1), Plain(session)
        blocks = [(owner("alloc", size), size) for size in (6 * MIB, 3000, 5000)]
        for value, (block, size) in enumerate(blocks):
            owner("fill", block, size, value + 1)
        handles = [owner.handle(block) for block, _ in blocks]
        opened = [user("ipc-open", handle) for handle in handles]
        late("alloc", 2 * MIB)
        session.ready(owner.pid, user.pid, late.pid)
        before = session.used()
        for _ in range(3):
            result = session.ask("offload", "--owner", "all")
            equal((result["outcome"], result["left"]), ("done", []), "offload")
            equal(session.used(), 0, "device memory in use")
            equal(session.ask("restore")["outcome"], "done", "restore")
            equal(session.used(), before, "device memory in use after the restore")
            for value, (address, (block, size)) in enumerate(zip(opened, blocks)):
                user.holds(address, size, value + 1)
                owner.holds(block, size, value + 1)
        session.ask("offload", "--owner", "all")
        late.process.send("ipc-open %s" % handles[0])
        equal(session.ask("restore")["outcome"], "done", "restore")
        answer = late.process.line()
        check(answer.startswith("ok "), "opened while it was away:", answer)
        late.holds(int(answer.split()[1], 0), 6 * MIB, 1)
        result = session.ask("offload", "--owner", "all")
        equal((result["outcome"], result["left"], session.used()), ("done", [], 0), "offload")
        session.ask("restore")
        equal(session.ask("status")["events_lost"], 0, "events lost")


@case(120)
def test_every_driver_call_fails_once():
    """An error leaves everything as it was: the same call can be made again."""
    with plain_session() as session:
        faults.folder(session)
        owner, user = Plain(session), Plain(session)
        owner_faults = faults.Faults(session, owner.inner_pid)
        user_faults = faults.Faults(session, user.inner_pid)
        for size in (3000, 4 * MIB):
            held = owner("alloc", size)
            handle = owner.handle(held)
            owner("fill", held, size, 3)
            for job, record, make, undo in (
                    (owner, owner_faults, ("alloc", size), "free"),
                    (user, user_faults, ("ipc-open", handle), "ipc-close")):
                nth, hit = 1, 1
                while hit:
                    used = session.used()
                    record.arm(faults.FAIL, nth)
                    ok, made = job.attempt(*make)
                    hit = record.disarm()
                    if not ok:
                        check(session.used() == used, make, "left memory at fault", nth)
                        made = [job(*make)]
                    record.arm(faults.FAIL, nth)
                    ok, _ = job.attempt(undo, made[0])
                    hit += record.disarm()
                    if not ok:
                        job(undo, made[0])
                    equal(session.used(), used, "device memory after %s, fault %d" % (undo, nth))
                    nth += 1
                check(nth > 5, "no calls were hit")
            owner.holds(held, size, 3)
            owner("free", held)
        equal(session.used(), 0, "device memory in use")


@case(200)
def test_moved_while_threads_allocate():
    """Wherever a thread is caught between the driver's calls, nothing is lost."""
    with plain_session() as session:
        session.start_agent()
        jobs = [Plain(session), Plain(session, device=1)]
        for job in jobs:
            job("churn", job.context)
        session.ready(*[job.pid for job in jobs])
        for _ in range(15):
            equal(session.ask("offload", "--owner", "all")["outcome"], "done", "offload")
            equal(session.ask("restore")["outcome"], "done", "restore")
            for job in jobs:
                rounds = job("rounds")
                wait_for("the thread goes on", lambda job=job, rounds=rounds: job("rounds") > rounds + 20)
        for job in jobs:
            equal(job("churn-stop"), 0, "blocks with wrong contents")
        equal(session.used(), 0, "device memory in use")
        equal(session.ask("status")["events_lost"], 0, "events lost")


@case(60)
def test_freed_while_away():
    with plain_session() as session:
        session.start_agent()
        job = Plain(session)
        block, small, kept = job("alloc", 4 * MIB), job("alloc", 3000), job("alloc", 3000)
        job("fill", kept, 3000, 4)
        session.ready(job.pid)
        for freed in (block, small):
            equal(session.ask("offload", "--owner", "all")["outcome"], "done", "offload")
            job.process.send("free %d" % freed)
            equal(session.ask("restore")["outcome"], "done", "restore")
            equal(job.process.line(), "ok 0", "free")
        job.holds(kept, 3000, 4)
        job("free", kept)
        equal(session.used(), 0, "device memory in use")


@case(60)
def test_an_agent_that_comes_later():
    """It finds the memory of a process that `lien run` started before there was an agent."""
    with plain_session() as session:
        owner, user = Plain(session), Plain(session, device=1)
        made = allocations(owner)
        block = max(made)
        opened = user("ipc-open", owner.handle(block))
        session.start_agent(attach=True)
        for job in (owner, user):
            job("alloc", 2 * MIB)  # a call that wakes the control library
        session.ready(owner.pid, user.pid)
        session.ask("attach", owner.pid, user.pid)
        result = session.ask("offload", "--owner", "all")
        equal((result["outcome"], result["left"], session.used()), ("done", [], 0), "offload")
        equal(session.ask("restore")["outcome"], "done", "restore")
        for address, (size, value) in made.items():
            owner.holds(address, size, value)
        user.holds(opened, *made[block])


# --- random jobs ----------------------------------------------------------------------------------

ORPHANS = {"no mapping through which all of it can be copied", "its owner has exited"}


class Block:
    def __init__(self, address, size, value):
        self.address, self.size, self.value = address, size, value
        self.reused = self.pooled = False


class Job:
    """A process, its blocks, and what it has opened of others' blocks."""

    def __init__(self, session, number):
        self.driver = Plain(session, device=number % 2)
        self.blocks, self.opened = [], {}  # address: [block, how often]

    def holds(self):
        for block in self.blocks:
            self.driver.holds(block.address, block.size, block.value)
        for address, (block, _) in self.opened.items():
            if not block.reused:
                self.driver.holds(address, block.size, block.value)


class Jobs:
    def __init__(self, session, seed):
        self.session, self.random = session, random.Random(seed)
        self.jobs = [Job(session, number) for number in range(4)]

    def alloc(self, job):
        size = self.random.choice((self.random.randint(1, 5000), self.random.randint(1, 3 * MIB)))
        pooled, value = self.random.random() < 0.25, self.random.randrange(256)
        address = job.driver("alloc-async", size, 0) if pooled else job.driver("alloc", size)
        job.driver("fill", address, size, value)
        job.blocks.append(Block(address, size, value))
        job.blocks[-1].pooled = pooled

    def free(self, job):
        if job.blocks:
            block = job.blocks.pop(self.random.randrange(len(job.blocks)))
            if self.random.random() < 0.25:
                job.driver("free-async", block.address, 0)
            else:
                job.driver("free", block.address)
            block.reused = block.size < 2 * MIB  # its place in a shared chunk

    def open(self, job):
        owner = self.random.choice(self.jobs)
        blocks = [block for block in owner.blocks if not block.pooled]
        if owner is job or not blocks:
            return
        block = self.random.choice(blocks)
        address = job.driver("ipc-open", owner.driver.handle(block.address))
        entry = job.opened.setdefault(address, [block, 0])
        if entry[0] is block:
            entry[1] += 1
        else:
            check(entry[0].reused, "two blocks at %#x" % address)
            job.driver("ipc-close", address)

    def close(self, job):
        if job.opened:
            address = self.random.choice(sorted(job.opened))
            job.driver("ipc-close", address)
            job.opened[address][1] -= 1
            if not job.opened[address][1]:
                del job.opened[address]

    def fill(self, job):
        places = [(block.address, block) for block in job.blocks]
        places += [(address, entry[0]) for address, entry in job.opened.items()
                   if not entry[0].reused]
        if places:
            address, block = self.random.choice(places)
            block.value = self.random.randrange(256)
            job.driver("fill", address, block.size, block.value)

    def fork(self, job):
        if job.blocks:
            equal(job.driver("fork", job.blocks[0].address), 3, "what a child may not do")

    def kill(self, job):
        """Who has its memory open keeps it. Another process takes its place."""
        number = self.jobs.index(job)
        pid = job.driver.pid
        job.driver.end()
        wait_for("%d is gone" % pid, lambda: not self.session.process(pid))
        self.jobs[number] = Job(self.session, number)
        self.alloc(self.jobs[number])
        self.session.ready(self.jobs[number].driver.pid)

    def step(self):
        step = self.random.choices((self.alloc, self.free, self.open, self.close, self.fill,
                                    self.fork, self.kill), (30, 20, 20, 15, 20, 2, 1))[0]
        step(self.random.choice(self.jobs))

    def move(self):
        """To the host and back; a process allocates meanwhile, at once or when all is back."""
        result = self.session.ask("offload", "--owner", "all")
        check(result["outcome"] in ("done", "nothing to do"), "offload:", result)
        # What its owner has freed, or left by dying, has nobody to keep it on the host.
        equal({left["reason"] for left in result["left"]} - ORPHANS, set(), "left")
        equal(self.session.used(), sum(left["bytes"] for left in result["left"]),
              "device memory in use")
        job = self.random.choice(self.jobs)
        job.driver.process.send("alloc 4096")
        check(self.session.ask("restore")["outcome"] in ("done", "nothing to do"), "restore")
        answer = job.driver.process.line().split()
        equal(answer[0], "ok", "alloc")
        job.driver("free", int(answer[1], 0))
        for job in self.jobs:
            job.holds()


@case(200)
def test_random_jobs():
    """Against a model: every byte of every block, in its owner and in all who have it open."""
    for seed in (1, 3, 12):
        with plain_session() as session:
            session.start_agent()
            random_jobs(session, seed)


def random_jobs(session, seed):
    jobs = Jobs(session, seed)
    for job in jobs.jobs:
        jobs.alloc(job)
        job.driver("free", job.driver("alloc", 2 * MIB))  # a call that wakes the control library
    session.ready(*[job.driver.pid for job in jobs.jobs])
    for _ in range(8):
        for _ in range(40):
            jobs.step()
        jobs.move()
    for job in jobs.jobs:
        while job.opened:
            jobs.close(job)
    for job in jobs.jobs:
        while job.blocks:
            jobs.free(job)
        job.driver("synchronize", 0)
    equal(session.used(), 0, "device memory in use")
    equal(session.ask("status")["events_lost"], 0, "events lost")


if __name__ == "__main__":
    sys.exit(main())
