#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Plain memory (cuMemAlloc, cuMemAllocAsync) of processes under `lien run` can be moved, and behaves like the
driver's own."""

import json
import os
import random
import subprocess
import sys

import faults
from lien_test import (LIEN, MIB, ROOT, SEED, SOFTCUDA, SOFTNCCL, Driver, Session, case, check, equal, main, program,
                       wait_for)
from lien_shared import process
from plain import (CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, DESTROYED, INVALID_CONTEXT, INVALID_VALUE, KEPT,
                   NOT_READY, OUT_OF_MEMORY, POOL, Plain, allocations, plain_session, stays)

# CU_MEMPOOL_ATTR_*
INTERNAL_DEPENDENCIES, THRESHOLD, RESERVED_HIGH, USED_HIGH = 3, 4, 6, 8
GLOBAL, THREAD_LOCAL, RELAXED = range(3)  # CU_STREAM_CAPTURE_MODE_*
SYNC_MEMOPS = 6
CONTEXT, BUFFER_ID, ORDINAL, IPC_CAPABLE, START, SIZE, MAPPED, HANDLE_TYPES = 1, 7, 9, 10, 11, 12, 13, 14


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


@case()
def test_alloc_ask_free():
    with plain_session() as session:
        for names in (None, "linked"):
            job = Plain(session, names=names)
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
            equal(session.used(), KEPT, "device memory in use")
            job.end()


@case()
def test_copies_that_always_synchronize():
    with plain_session() as session:
        job = Plain(session)
        one, two = job("alloc", MIB), job("alloc", MIB)
        other = job("create", 0)
        job("sync-memops", one + 5, 7)
        equal([job("attribute", block, SYNC_MEMOPS) for block in (one, two)], [1, 0], "of one block")
        job("current", job.context)
        job("put", one, MIB, 3)
        job.holds(one, MIB, 3)
        job("sync-memops", one, 0)
        equal(job("attribute", one, SYNC_MEMOPS), 0, "cleared")
        equal(job("flags"), 0, "flags of the context")
        job("sync-memops", two, 1)
        for block in (one, two):
            job("free", block)
        equal(job("attribute", job("alloc", MIB), SYNC_MEMOPS), 0, "of the next block there")
        job("destroy", other)
        job.end()


@case()
def test_copies_of_other_contexts():
    """A free waits for them. What the software driver does at once is compared on GPUs alone."""
    names = "HtoD", "DtoH", "any, from the host", "DtoD, from it", "any, to it"
    argv = [sys.executable, os.path.join(ROOT, "tests/lien_shared/copies_of_others.py"), "1", *names]
    with plain_session() as session:
        native, ours = (json.loads(session.spawn([*before, *argv]).line()) for before in ([], [LIEN, "run", "--"]))
        equal(ours, native, "freed while another context copies")
        equal(set(map(tuple, native.values())), {(True, 0, True)}, "the software driver waits, and copies")


@case()
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


@case()
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
            equal(session.used(), 4 * MIB + KEPT, "device memory in use")
            equal(job("range", max(made)), [max(made), made[max(made)][0]], "asked while away")
            equal(session.ask("restore")["outcome"], "done", "restore")
            equal(session.used(), before, "device memory in use after the restore")
            for address, (size, number) in made.items():
                job.holds(address, size, number + value)
                job("fill", address, size, number + value + 1)
        for address in made:
            job("free", address)
        equal(session.used(), 4 * MIB + KEPT, "device memory in use after free")
        equal(session.ask("status")["events_lost"], 0, "events lost")


@case()
def test_who_asked_stays_who_asked():
    """By default only NCCL's plain memory moves: none of its chunks holds anybody else's."""
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
        equal(session.used(), 6 * MIB + KEPT, "device memory in use")
        for value, address in enumerate(mine):
            job("check", address, 3000, value)
        session.ask("restore")
        for value, address in enumerate(mine + theirs):
            job("check", address, 3000, value)


@case()
def test_calls_are_the_applications():
    """Also those that are made many functions deep in the control library: of opened memory, and of a pool's chunks."""
    with plain_session() as session:
        session.start_agent()
        owner, user = Plain(session), Plain(session, device=1)
        follower = session.spawn([LIEN, "events", "-f", "--json"])
        wait_for("it follows", lambda: user("free", user("alloc", 2 * MIB)) is not None and not follower.lines.empty())
        user("ipc-open", owner.handle(owner("alloc", 6 * MIB)))
        owner("alloc-async", 4 * MIB, owner("stream"))
        for job in (owner, user):
            job.process.close_input()
            job.process.wait()
        lines = []
        while sum(line["event"] == "exit" for line in lines) < 2:
            lines.append(json.loads(follower.line()))
        calls = {(line["event"], line["caller"]) for line in lines if line["event"].startswith("cuMem")}
        # libc calls the thread that answers whoever opens a handle.
        equal({caller for _, caller in calls}, {"prog_plain", "c"}, "callers of %s" % sorted(calls))
        check("cuMemImportFromShareableHandle" in {event for event, _ in calls}, "no import: %s" % sorted(calls))


@case(long=True)  # the agent looks every 10 s for files that nobody maps any more
def test_later_jobs_of_one_agent():
    """What the control library keeps for itself is not the job's memory, in later jobs as in the first."""
    def another():
        job = Plain(session)
        address = job("alloc", MIB)
        memory = [(p, m["address"]) for a in session.ask("graph")["allocations"]
                  for p, m in ((m["pid"], m) for m in a["mappings"]) if p == job.pid]
        job.end()
        return memory == [(job.pid, "0x%x" % (address & ~(2 * MIB - 1)))]

    with plain_session(fresh=True) as session:
        session.start_agent()
        process.stays("a job has its own memory alone", another, seconds=13)


@case()
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
        equal(session.used(), KEPT, "memory of a destroyed context")
        job("current", job.context)
        last = job("alloc", 5000)
        job("current", 0)
        equal(job.refused("alloc", 4096), INVALID_CONTEXT, "no context")
        equal(job.refused("range", last), INVALID_CONTEXT, "no context")
        job("free", last)  # needs none
        job("current", job.context)
        equal(job.refused("free", mine), 1, "gone with its context")
        block = job("alloc", 8 * MIB)
        job("primary-reset", 0)
        equal(session.used(), 0, "memory after a reset")
        equal([job.refused(what, size) for what, size in (("alloc", 4096), ("alloc", 4 * MIB))],
              [DESTROYED] * 2, "a context that has ended")
        job("init", 0)
        equal(job.refused("free", block), 1, "gone with the reset")
        job("alloc", 8 * MIB)
        job("primary-release", 0)
        equal(session.used(), 0, "memory after the last release")


@case()
def test_primary_context_ends_while_memory_is_away():
    with plain_session() as session:
        session.start_agent()
        job = Plain(session)
        job("alloc", 64 * MIB)
        session.ready(job.pid)
        for _ in range(2):
            session.ask("offload", "--owner", "all")
            equal(session.used(), KEPT, "memory while it is away")
            job("primary-release", 0)
            session.ask("restore")
            wait_for("nothing is left", lambda: not session.used())
            job("init", 0)
            again = job("alloc", 64 * MIB)
            job("fill", again, 64 * MIB, 3)
            job.holds(again, 64 * MIB, 3)


@case()
def test_copies_between_devices():
    """They need no peer access, whichever device's context is current."""
    for under_lien in False, True:
        with plain_session() as session:
            job = Plain(session, under_lien=under_lien)
            blocks = [job("alloc", 2 * MIB)]
            contexts = [job.context, job("init", 1), job("create", 1)]
            for context in contexts[1:]:
                job("current", context)
                blocks.append(job("alloc", 2 * MIB))
            job("current", job.context)
            blocks.append(job("alloc", 2 * MIB))
            for number, context in enumerate(contexts):
                job("current", context)
                for source, address in enumerate(blocks):
                    value = 16 * number + source + 1
                    job("put", address, MIB, value)
                    job.holds(address, MIB, value)
                    for other in blocks:
                        for copy in "copy", "copy-async":
                            job(copy, other + MIB, address, MIB)
                            job.holds(other + MIB, MIB, value)
                            job("put", other + MIB, MIB, 0)


@case()
def test_copies_between_devices_that_were_restored():
    with plain_session() as session:
        session.start_agent()
        job = Plain(session)
        early = job("alloc", 2 * MIB)
        job("init", 1)
        late = job("alloc", 2 * MIB)
        session.ready(job.pid)
        for value in 1, 2:
            moved = session.ask("offload", "--owner", "all", "--pid", job.pid)
            equal(moved["bytes"], 4 * MIB, "moved: %s" % moved["left"])
            session.ask("restore")
            for source, to in (early, late), (late, early):
                job("put", source, MIB, value)
                job("copy", to, source, MIB)
                job.holds(to, MIB, value)


@case()
def test_peers():
    with plain_session() as session:
        for under_lien in False, True:
            job = Plain(session, under_lien=under_lien)
            mine = job("alloc", 2 * MIB)
            other = job("create", 1)
            job("peer", job.context)
            equal(job.refused("peer", job.context), 704, "enabled twice")
            theirs = job("alloc", 2 * MIB)
            job("fill", theirs, 2 * MIB, 5)
            job("copy", mine, theirs, 2 * MIB)
            job.holds(mine, 2 * MIB, 5)
            job("unpeer", job.context)
            equal(job.refused("unpeer", job.context), 705, "taken back twice")
            job("destroy", other)
            job("current", job.context)
            job.holds(mine, 2 * MIB, 5)


@case()
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
        equal(job("pool", 0), [4 * MIB + 3000, POOL + 2 * MIB], "used and reserved of the pool")
        job("go-on")
        job("free", third)
        equal(job("pool", 0), [3000, 2 * MIB], "used and reserved of the pool")
        equal(session.used(), 2 * MIB, "device memory in use")
        # Plain memory in a stream, and that of the stream without one.
        plain = job("alloc", 6 * MIB)
        job("free-async", plain, one)
        job("free", small)
        job("synchronize", one)
        equal(session.used(), KEPT, "device memory in use")
        # A graph's memory is the driver's.
        job("capture", one, RELAXED)
        job.attempt("alloc-async", 4 * MIB, one)
        job.attempt("capture-end", one)
        last = job("alloc-async", 4 * MIB, one)
        job("fill", last, 4 * MIB, 8)
        result = session.ask("offload", "--owner", "all")
        equal((result["outcome"], result["left"], session.used()), ("done", [], KEPT), "offload")
        equal(session.ask("restore")["outcome"], "done", "restore")
        job.holds(last, 4 * MIB, 8)
        job("free-async", last, one)


@case()
def test_places_of_stream_ordered_memory():
    """They are used again, whatever the size: at once in the stream that freed them, in another one when the
    stream has come to the free, or behind it."""
    draw = random.Random(SEED)
    with plain_session() as session:
        job = Plain(session)
        one, other = job("stream"), job("stream")
        job("pool-set", 0, THRESHOLD, 1 << 40)
        for streams in (one,), (one, other):
            live = []
            for _ in range(300):
                while sum(size for _, size in live) > 20 * MIB:
                    job("free-async", live.pop(draw.randrange(len(live)))[0], draw.choice(streams))
                size = draw.randrange(1, 4 * MIB)
                live.append((job("alloc-async", size, draw.choice(streams)), size))
            for address, _ in live:
                job("free-async", address, one)
            check(job("pool", 0)[1] <= 2 * POOL + 2 * MIB, "reserved", job("pool", 0))
        job("synchronize", one)
        job("pool-set", 0, THRESHOLD, 0)
        job("synchronize-ptsz")
        equal(job("pool", 0), [0, 0], "used and reserved of the pool")
        # Behind the other stream's work.
        block = job("alloc-async", POOL, one)
        job("hold", one)
        job("free-async", block, one)
        job("pool-set", 0, INTERNAL_DEPENDENCIES, 0)
        check(job("alloc-async", POOL, other) != block, "memory that is in use")
        job("pool-set", 0, INTERNAL_DEPENDENCIES, 1)
        equal(job("alloc-async", POOL, other), block, "the place of what the other stream frees")
        equal(job.refused("query", other), NOT_READY, "the stream that has the place")
        job("go-on")
        job("synchronize", other)


@case()
def test_marks_of_a_pool():
    with plain_session() as session:
        job = Plain(session)
        job("free-async", job("alloc-async", 4 * MIB, 0), 0)
        job("synchronize", 0)
        equal([job("pool-get", 0, mark) for mark in (RESERVED_HIGH, USED_HIGH)], [POOL, 4 * MIB], "marks")
        block = job("alloc-async", MIB, 0)
        for mark in RESERVED_HIGH, USED_HIGH:
            job("pool-set", 0, mark, 0)
        equal([job("pool-get", 0, mark) for mark in (RESERVED_HIGH, USED_HIGH)], [POOL, MIB], "marks")
        job("free", block)


@case()
def test_events_of_a_context_that_has_ended():
    """They ended with it, and the application's may have their place."""
    with plain_session(strict=False) as session:
        job = Plain(session)
        for _ in range(3):
            context = job("create", 0)
            stream = job("stream")
            job("free-async", job("alloc-async", 4 * MIB, stream), stream)
            job("destroy", context)
            job("current", job.context)
            events = [job("event") for _ in range(4)]
            stream = job("stream")
            job("free-async", job("alloc-async", 4 * MIB, stream), stream)
            job("synchronize", stream)
            for event in events:
                job("record", event, stream)


@case()
def test_captures():
    """A free ends the captures that the driver's own would end, with the same error, and no others."""
    with plain_session() as session:
        job = Plain(session)
        stream = job("stream")
        for size in (3000, 4 * MIB):
            for mode in (RELAXED, THREAD_LOCAL, GLOBAL):
                block, other = job("alloc", size), job("alloc", size)
                job("capture", stream, mode)
                if mode == RELAXED:
                    job("free", block)
                    job("free", job("alloc", size))
                    job("capture-end", stream)
                else:
                    equal(job.refused("free", block), CAPTURE_UNSUPPORTED, "free in mode %d" % mode)
                    equal(job.refused("capture-end", stream), CAPTURE_INVALIDATED, "mode %d" % mode)
                    job("free", block)
                job("capture", stream, mode)
                if mode != GLOBAL:
                    job("free-in-thread", other, job.context)
                    job("capture-end", stream)
                else:
                    equal(job.refused("free-in-thread", other, job.context), CAPTURE_UNSUPPORTED,
                          "free in another thread")
                    equal(job.refused("capture-end", stream), CAPTURE_INVALIDATED, "mode %d" % mode)
                    job("free", other)
        equal(session.used(), KEPT, "device memory in use")


@case()
def test_captures_of_streams_that_wait_for_the_default_one():
    """A question about the legacy default stream would invalidate them."""
    with plain_session() as session:
        job = Plain(session)
        block, stream = job("alloc", 4 * MIB), job("stream-blocking")
        job("capture", stream, RELAXED)
        job("range", block)
        job("free", job("alloc", 4 * MIB))
        job.attempt("alloc-async", 4 * MIB, stream)  # a graph's memory: the software driver has none
        job("capture-end", stream)


@case()
def test_frees_in_a_stream_beside_a_capture():
    """The driver's ends a capture unless the modes allow it, and so does ours."""
    with plain_session() as session:
        job = Plain(session)
        one, other = job("stream"), job("stream")
        for mode in (THREAD_LOCAL, GLOBAL):
            block = job("alloc-async", 4 * MIB, one)
            job("capture", other, mode)
            equal(job.refused("free-async", block, one), CAPTURE_UNSUPPORTED, "free in mode %d" % mode)
            equal(job.refused("capture-end", other), CAPTURE_INVALIDATED, "mode %d" % mode)
            job("free-async", block, one)
        blocks = [job("alloc-async", 4 * MIB, one) for _ in range(4)]
        job("capture", other, RELAXED)
        for block in blocks:
            job("free-async", block, one)
        job("capture-end", other)


@case()
def test_allocations_beside_a_capture():
    """They end it where the driver's would, with the same error, whether or not there is a free place."""
    with plain_session() as session:
        job = Plain(session)
        one, other = job("stream"), job("stream")
        small = job("alloc", 3000)
        for call in (("alloc", 3000), ("alloc", 4 * MIB), ("alloc-async", 4 * MIB, one), ("alloc-async", 40 * MIB, one)):
            free = ("free-async", one) if call[0] == "alloc-async" else ("free",)
            for mode in (THREAD_LOCAL, GLOBAL):
                job("capture", other, mode)
                equal(job.refused(*call), CAPTURE_UNSUPPORTED, "%s in mode %d" % (call, mode))
                equal(job.refused("capture-end", other), CAPTURE_INVALIDATED, "%s in mode %d" % (call, mode))
                job(free[0], job(*call), *free[1:])
            job("capture", other, RELAXED)
            job(free[0], job(*call), *free[1:])
            job("capture-end", other)
        job("capture", other, GLOBAL)
        equal(job.refused("pitch", 1000, 10, 4), CAPTURE_UNSUPPORTED, "pitch")
        equal(job.refused("capture-end", other), CAPTURE_INVALIDATED, "pitch")
        job("free", small)


@case()
def test_programs_that_lose_the_variable():
    """Their memory is the driver's, although `lien run` started the job: the advice holds for them, too."""
    with plain_session() as session:
        session.start_agent()
        kept = ["%s=%s" % (name, value) for name, value in session.env().items() if name != "LD_PRELOAD"]
        job = Driver(session.spawn([LIEN, "run", "--", "env", "-i", *kept, program("prog_plain")]))
        job("init", 0)
        job("alloc", 4 * MIB)
        equal(stays(session, job.pid), 4 * MIB, "bytes that stay")
        said = " ".join(session.lien("mem").out.split())
        check("and keep the LD_PRELOAD that it sets" in said, said)


@case()
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


@case()
def test_sanitizers():
    """Their functions stand before libc's, and look libc's up by dlsym() before they are ready."""
    found = []
    with Session(LIEN_PLAIN="0") as session:
        session.start_agent()
        for compiler, kinds in {"gcc": ["address", "thread"], "clang": ["address", "thread", "memory"]}.items():
            for kind in kinds:
                try:
                    path = session.compile("%s-%s" % (compiler, kind), "sanitized.c", "-g", "-fsanitize=" + kind, "-I",
                                           os.path.join(ROOT, "include"), "-L", SOFTCUDA, "-l:libcuda.so.1", "-lpthread",
                                           compiler=compiler)
                except (OSError, subprocess.CalledProcessError):
                    continue  # no such compiler, or it lacks that library
                job = session.spawn([LIEN, "run", "--", path], MSAN_OPTIONS="halt_on_error=0")
                equal(job.line(), "ready", "%s %s: %s" % (compiler, kind, job.said()))
                wait_for("its control library is seen", lambda pid=job.pid: (session.process(pid) or {}).get(
                    "control") in ("loaded", "ready"))  # the next call starts its thread, if none has yet
                equal(job.ask("look"), "0", "wrong bytes")
                session.ready(job.pid)
                moved = session.ask("offload", "--owner", "all", "--pid", job.pid)
                equal(moved["bytes"], 2 * MIB, "moved of %s: %s" % (path, moved["left"]))
                session.ask("restore")
                equal(job.ask("look"), "0", "wrong bytes")
                job.close_input()
                equal(job.wait(), 0, "status of %s: %s" % (path, job.said()))
                found.append((compiler, kind))
    print("   ", *("%s %s" % pair for pair in found))
    check(found, "no compiler has a sanitizer")


@case()
def test_compute_sanitizer_checks_the_drivers_own():
    """It sets a variable in the processes that it checks."""
    with Session(LIEN_PLAIN="") as session:
        session.start_agent()
        job = Plain(session, NV_SANITIZER_INJECTION_PORT_BASE="49152")
        job("alloc", 4 * MIB)
        equal(stays(session, job.pid), 4 * MIB, "stays")
        said = subprocess.run([LIEN, "run", "true"], env=session.env(NV_SANITIZER_INJECTION_PORT_BASE="49152"),
                              capture_output=True, text=True, check=True).stderr
        check(said.startswith("lien run: compute-sanitizer: plain memory (cudaMalloc) is left to the driver"), said)
        tool = session.path("compute-sanitizer")
        os.symlink("/bin/true", tool)
        check("compute-sanitizer: plain" in subprocess.run(
            [LIEN, "run", tool], env=session.env(), capture_output=True, text=True, check=True).stderr, "said")


@case()
def test_older_names():
    """Functions that end a context, or open a handle, by their older names."""
    with plain_session() as session:
        job, other = (Plain(session, names="older") for _ in range(2))
        block = job("alloc", 4 * MIB)
        job("fill", block, 4 * MIB, 7)
        opened = other("ipc-open", job.handle(block))
        other.holds(opened, 4 * MIB, 7)
        other("ipc-close", opened)
        other.end()
        job("primary-reset", 0)
        job("init", 0)
        job("alloc", 64 * MIB)
        job("primary-release", 0)
        context = job("create", 0)
        job("alloc", 64 * MIB)
        job("destroy", context)
        equal(session.used(), 0, "device memory in use")


@case()
def test_out_of_memory_in_streams():
    """What was freed in a stream goes to whoever needs it, when the stream is done with it."""
    with plain_session(memory="64M") as session:
        job = Plain(session)
        stream = job("stream")
        for size in (40, 44, 48):
            job("free-async", job("alloc-async", size * MIB, stream), stream)
        job("alloc", 60 * MIB)


@case()
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
        equal(session.used(), KEPT, "device memory in use")


@case()
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
                    record.arm(faults.FAIL, nth, by=faults.BY_APPLICATION)
                    ok, made = job.attempt(*make)
                    hit = record.disarm()
                    if not ok:
                        check(session.used() == used, make, "left memory at fault", nth)
                        made = [job(*make)]
                    record.arm(faults.FAIL, nth, by=faults.BY_APPLICATION)
                    ok, _ = job.attempt(undo, made[0])
                    hit += record.disarm()
                    if not ok:
                        job(undo, made[0])
                    equal(session.used(), used, "device memory after %s, fault %d" % (undo, nth))
                    nth += 1
                check(nth > 4, "no calls were hit")
            owner.holds(held, size, 3)
            owner("free", held)
        equal(session.used(), KEPT, "device memory in use")


@case()
def test_the_next_primary_context_keeps_its_memory():
    """What the one before it had is given back while it allocates."""
    with plain_session(strict=False) as session:
        session.start_agent()
        job = Plain(session)
        for _ in range(200):
            job("alloc", 2 * MIB)
        session.ready(job.pid)
        session.ask("offload", "--owner", "all")
        job("primary-release", 0)
        session.ask("restore")
        job("init", 0)
        blocks = [job("alloc", 2 * MIB) for _ in range(60)]
        for block in blocks:
            job("fill", block, 2 * MIB, 7)
        wait_for("the old ones are gone", lambda: session.used() <= KEPT + 60 * 2 * MIB)
        for block in blocks:
            job.holds(block, 2 * MIB, 7)


@case()
def test_freed_in_a_stream_of_another_context():
    with plain_session() as session:
        for other in (lambda job: job("init", 1), lambda job: job("create", 0), lambda job: job("current", 0)):
            job = Plain(session)
            stream = job("stream")
            block = job("alloc-async", 4 * MIB, stream)
            other(job)
            job("free-async", block, stream)
            job.end()


@case()
def test_reused_while_another_thread_synchronizes():
    """It gives back the same memory, which must not be given out twice."""
    with plain_session(memory="64M") as session:
        job = Plain(session)
        equal(job("reuse", job.context, 36 * MIB, 500), 500, "rounds")


@case()
def test_parked_memory_stays_away():
    """Asking how much is free, or synchronizing, gives back what was freed; not what is away, which would begin a
    restore."""
    with plain_session(strict=False) as session:
        session.start_agent()
        job = Plain(session)
        job("alloc", 4 * MIB)
        stream, other = job("stream"), job("stream")
        job("free-async", job("alloc-async", 8 * MIB, stream), stream)
        session.ready(job.pid)
        session.ask("offload", "--owner", "all", "--on-use", "restore")
        job("info")
        job("synchronize", other)
        equal(session.process(job.pid)["state"], "offloaded", "state")
        session.ask("restore")


@case()
def test_other_contexts_are_not_waited_for():
    """So nothing of the process moves while it has one."""
    with plain_session() as session:
        session.start_agent()
        job = Plain(session)
        other = job("create", 0)
        block = job("alloc", 8 * MIB)
        session.ready(job.pid)
        said = session.lien("offload", "--owner", "all")
        check("besides the primary one" in " ".join((said.out + said.err).split()), said)
        job("free", block)
        job("destroy", other)
        job("current", job.context)
        job("alloc", 8 * MIB)
        equal(session.ask("offload", "--owner", "all")["bytes"], 8 * MIB, "bytes")
        session.ask("restore")


@case()
def test_forks_while_it_is_moved():
    """Another library's handler is held in a call of the driver, and fork() has begun."""
    with plain_session(strict=False) as session:
        session.start_agent()
        job = Plain(session, under_lien=False)
        block = job("virtual", 0, 4 * MIB)
        job("fill", block, 4 * MIB, 3)
        job("forks", job.context, job("virtual", 0, 4 * MIB))
        session.ask("attach", job.pid)
        for _ in range(3):
            equal(session.ask("offload", "--owner", "all")["outcome"], "done", "offload")
            session.ask("restore")
        job.holds(block, 4 * MIB, 3)


@case(long=True)
def test_moved_while_threads_allocate():
    """Wherever between the driver's calls a thread is caught, nothing is lost."""
    with plain_session(strict=False) as session:
        session.start_agent()
        jobs = [Plain(session), Plain(session, device=1)]
        kept = [job("alloc", 2 * MIB) for job in jobs]  # there is always something to move
        for job in jobs:
            job("churn", job.context)
        session.ready(*[job.pid for job in jobs])
        for _ in range(15):
            result = session.ask("offload", "--owner", "all")
            equal((result["outcome"], result["left"]), ("done", []), "offload")
            # A thread that frees, or has just allocated, gets everything back at once.
            equal([row["freed_bytes"] for row in result["processes"]],
                  [row["bytes"] for row in result["processes"]], "freed")
            equal(session.ask("restore")["outcome"], "done", "restore")
            for job in jobs:
                rounds = job("rounds")
                wait_for("the thread goes on", lambda job=job, rounds=rounds: job("rounds") > rounds + 20)
        for job, block in zip(jobs, kept):
            equal(job("churn-stop"), 0, "blocks with wrong contents")
            job("free", block)
        equal(session.used(), 2 * KEPT, "device memory in use")
        equal(session.ask("status")["events_lost"], 0, "events lost")


@case()
def test_freed_while_away():
    with plain_session(strict=False) as session:
        session.start_agent()
        job = Plain(session)
        block, small, kept = job("alloc", 4 * MIB), job("alloc", 3000), job("alloc", 3000)
        job("fill", kept, 3000, 4)
        session.ready(job.pid)
        for freed in (block, small):
            equal(session.ask("offload", "--owner", "all")["outcome"], "done", "offload")
            job.process.send("free %d" % freed)
            session.ask("restore")  # freeing may have started one
            equal(job.process.line(), "ok 0", "free")
        job.holds(kept, 3000, 4)
        job("free", kept)
        equal(session.used(), KEPT, "device memory in use")


@case()
def test_detached():
    """Its memory stays what it is, new memory is the driver's, until lien is back."""
    with plain_session() as session:
        session.start_agent()
        job = Plain(session)
        before = job("alloc", 2 * MIB)
        session.ready(job.pid)
        session.ask("detach", job.pid)
        between = job("alloc", 4 * MIB)
        equal(job("range", before), [before, 2 * MIB], "range")
        session.ask("attach", job.pid)
        after = job("alloc", 6 * MIB)
        equal(stays(session, job.pid), 4 * MIB, "stays")
        for block in (before, between, after):
            job("free", block)
        equal(session.used(), KEPT, "device memory in use")


@case()
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
        equal((result["outcome"], result["left"], session.used()), ("done", [], 2 * KEPT), "offload")
        equal(session.ask("restore")["outcome"], "done", "restore")
        for address, (size, value) in made.items():
            owner.holds(address, size, value)
        user.holds(opened, *made[block])


if __name__ == "__main__":
    sys.exit(main())
