#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What an offload refuses or leaves behind, and the reason that it gives.

See lien_test.py for what else this needs.
"""

import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import socket
import stat
import sys
import time

import faults
import held
from faults import Faults
from lien_test import (
    LIEN, MIB, Failure, Session, brief, case, check, equal, main, recording, start_pairs, state_of, wait_for)
from move import PAIRS, WHOLE, runs_as_before, round_trip
from shapes import shapes


@case()
def test_what_cannot_be_moved_stays():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        plain = driver("alloc", 3 * MIB)
        exported = driver("export", driver("make", 2 * MIB, 0)[0])
        handle, _ = driver("make", 2 * MIB, 0)
        fd = driver("export", handle)
        imports = [driver("import", fd) for _ in range(4)]  # its own memory
        driver("close", fd)
        driver("fill", plain, 3 * MIB, 1)
        session.ready(driver.pid)
        used = session.used()
        dry = session.ask("offload", "--owner", "all", "--dry-run")
        result = session.ask("offload", "--owner", "all")
        equal((result["bytes"], result["left"]), (dry["bytes"], dry["left"]), "as the dry run said")
        equal(result["bytes"], 2 * MIB, "moved")
        reasons = {x["reason"]: (x["allocations"], x["bytes"]) for x in result["left"]}
        equal(sorted(reasons.values()), [(1, 2 * MIB)] * 2 + [(1, 3 * MIB)], "left")
        for word in ("cudaMalloc", "not imported by anybody", "imported more often"):
            check(any(word in reason for reason in reasons), "no reason with '%s': %s" % (
                word, brief(reasons)))
        equal(session.used(), used - 2 * MIB, "device memory in use")
        equal(driver("check", plain, 3 * MIB, 1), 0, "wrong bytes of what stayed")
        session.ask("restore")
        equal(session.used(), used, "device memory in use")
        driver("close", exported)
        for again in imports:
            driver("release", again)


@case()
def test_without_a_primary_context():
    """There is none to copy in: its memory stays, and all other moves. Once it has one, its memory moves, too."""
    with Session() as session:
        session.start_agent()
        never, ended, other = session.driver(init=False), session.driver(init=False), session.driver()
        never("cuinit", 0)
        ended("cuinit", 0)
        context = ended("ctx", 0)
        places = [driver("make", 2 * MIB, 0)[1] for driver in (never, ended, other)]
        ended("ctx-destroy", context)
        session.ready(*(driver.pid for driver in (never, ended, other)))
        for _ in range(2):
            result = session.ask("offload", "--owner", "all")
            equal((result["outcome"], result["bytes"]), ("done", 2 * MIB), "moved")
            equal(sorted(x["pid"] for x in result["left"]), sorted((never.pid, ended.pid)), "left")
            check(all("no primary context" in x["reason"] for x in result["left"]), result["left"])
            session.ask("restore")
        said = " ".join(session.lien("mem").out.split())
        check("--owner all 2.0 MiB" in said and "no primary context" in said, said)
        never("device", 0)
        never("fill", places[0], 2 * MIB, 0x35)
        equal(session.ask("offload", "--owner", "all")["bytes"], 4 * MIB, "moved")
        session.ask("restore")
        equal(never("check", places[0], 2 * MIB, 0x35), 0, "wrong bytes")


@case()
def test_nothing_but_memory_without_a_primary_context():
    with Session() as session:
        session.start_agent()
        driver = session.driver(init=False)
        driver("cuinit", 0)
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        for _ in range(2):
            answer = session.ask("offload", "--owner", "all")
            equal((answer["outcome"], answer["bytes"], [x["pid"] for x in answer["left"]], answer["transaction"]),
                  ("nothing to do", 0, [driver.pid], None), "answer")
            check("no primary context" in answer["left"][0]["reason"], answer["left"])


SIZE = 2 * MIB
PIDFD_GETFD = 438


def take(pid, fd):
    """The process's descriptor, as one of this process."""
    process = os.pidfd_open(pid)
    try:
        taken = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, fd, 0)
        check(taken >= 0, "pidfd_getfd:", os.strerror(ctypes.get_errno()))
        return taken
    finally:
        os.close(process)


@case()
def test_exports_that_were_closed():
    """Nobody can import them any more, whether or not somebody has. One that is in a socket may still be imported."""
    with Session() as session:
        session.start_agent()
        owner, other, late = [session.driver() for _ in range(3)]
        handle, va = owner("make", SIZE, 0)
        owner("fill", va, SIZE, 1)
        fd = owner("export", handle)
        session.ready(owner.pid, other.pid, late.pid)

        def left():
            result = session.ask("offload", "--owner", "all")
            if result["bytes"]:
                session.ask("restore")
            return [row["reason"] for row in result["left"]]

        check("not imported by anybody" in left()[0], "open, and not imported")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            taken = take(owner.pid, fd)
            socket.send_fds(ours, [b"x"], [taken])
            os.close(taken)
            view = other("show", SIZE, other.take(owner, fd), 0)
            owner("close", fd)
            check("on its way to another process" in left()[0], "imported once, and in a socket")
            found = session.ask("check")["findings"]
            check("export on its way" in [row["kind"] for row in found], "findings:", found)
            holders = session.ask("holders", owner.pid, "%#x" % va)["holders"]
            check("export on its way" in [row["kind"] for row in holders], "holders:", holders)
            received = socket.recv_fds(theirs, 1, 1)[1][0]
            check("still open" in left()[0], "received")
            mine = late("getfd", os.getpid(), received)
            os.close(received)
            there = late("show", SIZE, late("import", mine), 0)
            late("close", mine)
        equal(left(), [], "what is left when all are closed")
        owner("fill", va, SIZE, 2)
        equal((other("check", view, SIZE, 2), late("check", there, SIZE, 2)), (0, 0), "one memory for all three")
        owner("close", owner("export", owner("make", SIZE, 0)[0]))
        equal(left(), [], "closed, and never imported")


@case()
def test_memory_that_does_not_come_free():
    """The driver's own figures reveal a holder that nothing else shows."""
    with Session() as session:
        session.start_agent()
        jobs = [session.driver(), session.driver(device=1)]
        handle, va = jobs[0]("make", 2 * SIZE, 0)
        jobs[1]("make", SIZE, 1)
        fd = jobs[0]("export", handle)
        session.ready(*[job.pid for job in jobs])
        with open("/proc/%d/fd/%d" % (jobs[0].pid, fd), "rb"):  # the same memory by another file, which nobody traces
            jobs[0]("close", fd)
            equal(session.ask("status")["short"], None, "before")
            result = session.ask("offload", "--owner", "all")
            row = {"pid": jobs[0].pid, "processes": 1, "dropped_bytes": 2 * SIZE, "missing_bytes": 2 * SIZE}
            equal((result["bytes"], result["short"]), (3 * SIZE, [row]), "short")
            equal(session.ask("status")["short"]["rows"], [row], "in the status")
            check("did not come free" in session.lien("status").out, "in the status, for people")
            session.ask("restore")
        said = session.lien("offload", "--owner", "all", "--json")
        equal(json.loads(said.out)["short"], [], "without the holder")
        session.ask("restore")
        equal(jobs[0]("check", va, 2 * SIZE, 0), 0, "wrong bytes")


@case()
def test_bound_by_newer_functions():
    """cuMulticastBindMem_v2 and cuMulticastBindAddr_v2, of CUDA 13.1 on."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        handle, other = driver("create", 2 * MIB, 0, 1), driver("create", 2 * MIB, 0, 1)
        driver("show", 2 * MIB, handle, 0)
        va = driver("show", 2 * MIB, other, 0)
        multicast = driver("mc-create", 1, 4 * MIB, 1)
        driver("mc-add", multicast, 0)
        driver.refused("mc-bind-v2", multicast, 1, 0, handle, 0, 2 * MIB)
        driver("mc-bind-v2", multicast, 0, 0, handle, 0, 2 * MIB)
        driver("mc-bind-addr-v2", multicast, 0, 2 * MIB, va, 2 * MIB)
        session.ready(driver.pid)
        result = session.ask("offload", "--owner", "all")
        equal([(row["allocations"], row["bytes"]) for row in result["left"] if "multicast" in row["reason"]],
              [(2, 4 * MIB)], result)
        equal(result["bytes"], 0, "moved")
        for offset in (0, 2 * MIB):
            driver("mc-unbind", multicast, 0, offset, 2 * MIB)
        equal(session.ask("offload", "--owner", "all")["bytes"], 4 * MIB, "moved when it is bound no more")
        session.ask("restore")


@case()
def test_what_keeps_the_old_memory_stays():
    """Network cards, dma-bufs and multicast objects: named, left behind, and refused with --strict."""
    with Session() as session:
        session.start_agent()
        driver = shapes(session, control=True)

        def made():
            handle, va = driver("create", 2 * MIB, 0, 1), driver("reserve", 2 * MIB)
            driver("map", va, 2 * MIB, handle, 0)
            driver("access", va, 2 * MIB, 0, 3)
            driver("fill", va, 2 * MIB, 0x51)
            return handle, va
        _, free = made()
        driver.refused("ibv-reg", 4096, 4096)  # opens the library, which is then probed
        wait_for("libibverbs is probed", lambda: any(
            row["library"] == "ibverbs" and "tests/integration" in row["path"]  # the machine has one, too
            for row in session.ask("status")["libraries"]))
        _, on_card = made()
        region = driver("ibv-reg", on_card, 4096)
        _, as_buffer = made()
        fd = driver("range-handle", as_buffer, 2 * MIB)
        bound, in_multicast = made()
        multicast = driver("mc-create", 1, 4 * MIB, 1)
        driver("mc-add", multicast, 0)
        driver("mc-bind", multicast, 0, bound, 0, 2 * MIB)
        session.ready(driver.pid)
        stay = {"network card soft_7": on_card, "dma-buf": as_buffer, "bound to a multicast": in_multicast}
        session.refused("offload", "--owner", "all", "--strict",
                        text="network card|dma-buf|bound to a multicast")
        result = session.ask("offload", "--owner", "all")
        equal(result["bytes"], 2 * MIB, "moved")
        for word in stay:
            found = [row for row in result["left"] if word in row["reason"]]
            equal([(row["allocations"], row["bytes"]) for row in found], [(1, 2 * MIB)], word)
        for va in stay.values():
            equal(driver("check", va, 2 * MIB, 0x51), 0, "wrong bytes of what stayed")
        session.ask("restore")
        equal(driver("check", free, 2 * MIB, 0x51), 0, "wrong bytes")
        driver("ibv-dereg", region)
        driver("mc-unbind", multicast, 0, 0, 2 * MIB)
        result = session.ask("offload", "--owner", "all")
        equal(result["bytes"], 6 * MIB, "moved when the card and the object have let go")
        session.ask("restore")
        driver("close", fd)


@case()
def test_pinned_by_other_libraries():
    """libmlx5 and GDRCopy keep memory pinned, as libibverbs does, until they let go of it."""
    with Session() as session:
        session.start_agent()
        driver = shapes(session, init=0, control=True)
        for name, opens in (("ibverbs", "ibv-reg"), ("mlx5", "umem-reg"), ("gdrapi", "gdr-pin")):
            driver.refused(opens, 4096, 4096)  # opens the library, which is then probed
            wait_for("%s is probed" % name, lambda name=name: any(
                row["library"] == name and "tests/integration" in row["path"]
                for row in session.ask("status")["libraries"]))
        _, free = driver("make", SIZE, 0)
        driver("fill", free, SIZE, 1)
        session.ready(driver.pid)
        for pin, unpin, by in (("ibv-reg-ex", "ibv-dereg", "network card soft_7"),
                               ("umem-reg", "umem-dereg", "network card soft_7"),
                               ("umem-reg-ex", "umem-dereg", "network card soft_7"),
                               ("gdr-pin", "gdr-unpin", "GDRCopy"), ("gdr-pin-v2", "gdr-unpin", "GDRCopy")):
            handle, va = driver("make", SIZE, 0)
            driver("fill", va, SIZE, 2)
            pinned = driver(pin, va, SIZE)
            result = session.ask("offload", "--owner", "all")
            check(result["bytes"] == SIZE and [by in row["reason"] for row in result["left"]] == [True],
                  "%s: %s" % (pin, result["left"]))
            session.ask("restore")
            driver(unpin, pinned)
            result = session.ask("offload", "--owner", "all")
            equal((result["bytes"], result["left"]), (2 * SIZE, []), "after %s" % unpin)
            session.ask("restore")
            equal((driver("check", free, SIZE, 1), driver("check", va, SIZE, 2)), (0, 0), "wrong bytes")
            driver("unmap", va, SIZE)
            driver("release", handle)
        region = driver("ibv-reg", free, SIZE)
        driver("ibv-rereg", region, free, SIZE)  # in no table of the agent's
        driver("ibv-dereg", region)
        check(["RDMA that this lien does not know" in row["reason"]
               for row in session.ask("offload", "--owner", "all")["left"]] == [True], "an unknown function")


@case()
def test_gpudirect_storage():
    """A process that has its driver open may have memory pinned by it, even if libcufile is linked in."""
    with Session() as session:
        session.start_agent()
        device = session.path("nvidia-fs0")
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        jobs = [session.driver(prefix=prefix) for prefix in (
            (), ("sh", "-c", "exec 9<%s; exec \"$@\"" % device, "sh"))]
        for job in jobs:
            job("make", SIZE, 0)
        session.ready(*[job.pid for job in jobs])
        result = session.ask("offload", "--owner", "all")
        equal([(row["pid"], "GPUDirect Storage" in row["reason"]) for row in result["left"]],
              [(jobs[1].pid, True)], "left")
        equal(result["bytes"], SIZE, "moved")
        session.ask("restore")


@case()
def test_open_files_that_cannot_be_read():
    """Exported memory may still be open somewhere: if lien cannot find out, it refuses."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        handle, va = driver("make", 2 * MIB, 0)
        driver("export", handle)
        driver("fill", va, 2 * MIB, 0x51)
        session.ready(driver.pid)
        before = resource.prlimit(session.agent.pid, resource.RLIMIT_NOFILE)

        def refused():  # not if the agent has just closed one that it had
            taken = {int(fd) for fd in os.listdir("/proc/%d/fd" % session.agent.pid)}
            _, second = [fd for fd in range(len(taken) + 2) if fd not in taken][:2]
            # One is left, for the connection.
            resource.prlimit(session.agent.pid, resource.RLIMIT_NOFILE, (second, before[1]))
            outcome = session.lien("offload", "--owner", "all")
            resource.prlimit(session.agent.pid, resource.RLIMIT_NOFILE, before)
            return outcome.code == 1 and "still open somewhere: Too many open files" in outcome.err
        wait_for("it is refused", refused)
        session.ask("offload", "--owner", "all")
        session.ask("restore")
        equal(driver("check", va, 2 * MIB, 0x51), 0, "wrong bytes")


@case()
def test_holder_without_control_library():
    with Session() as session:
        session.start_agent()
        owner = session.driver()
        bare = session.driver(control=False)
        handle, va = owner("make", 2 * MIB, 0)
        owner("fill", va, 2 * MIB, 3)
        fd = owner("export", handle)
        taken = bare("getfd", owner.pid, fd)
        place = bare("show", 2 * MIB, bare("import", taken), 0)
        owner("close", fd)
        bare("close", taken)
        session.ready(owner.pid)
        for more in ([], ["--with-closure", "--pid", owner.pid], ["--dry-run"]):
            session.refused("offload", "--owner", "all", *more, text="mapped by process %d at %s, "
                            "which cannot take part: .*no control library" % (bare.pid, hex(place)))
        equal(session.process(bare.pid)["control"], "none", "control")
        equal(bare("check", place, 2 * MIB, 3), 0, "wrong bytes")
        bare.end()
        session.forgotten(bare.pid)
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "bytes")
        session.ask("restore")
        equal(owner("check", va, 2 * MIB, 3), 0, "wrong bytes")


@case()
def test_processes_without_control_library():
    with Session() as session:
        session.start_agent()
        job = session.replay(recording("pairs", PAIRS), "--no-control")
        dry = session.ask("offload")
        equal(dry["outcome"], "nothing to do", "outcome")
        equal(sorted(x["pid"] for x in dry["left"]), sorted(job.ranks), "left")
        check("lien attach" in dry["left"][0]["reason"], brief(dry))
        session.refused("offload", "--pid", job.ranks[0], text="no control library")
        runs_as_before(session, job)


@case()
def test_busy_device():
    busy = None
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS)
        open(busy, "w").close()
        began = time.monotonic()
        said = session.refused("offload", "--timeout", 600, text="process (%d|%d), drain: " % (
            job.ranks[0], job.ranks[1]))
        took = time.monotonic() - began
        check("busy" in said, said)
        check(0.5 <= took < 5, "refused after %.1f s" % took)
        said = session.refused("offload", "--timeout", 300, text="busy")
        os.unlink(busy)
        runs_as_before(session, job)
        round_trip(session, job)
        job.quit()


@case()
def test_capture_under_way():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        driver = session.driver()
        handle, va = driver("make", 2 * MIB, 0)
        driver("fill", va, 2 * MIB, 8)
        session.ready(driver.pid)
        for mode in (0, 1, 2):  # global, thread-local, relaxed
            driver("capture", mode)
            session.refused("offload", "--owner", "all",
                            text="process %d is capturing a CUDA graph" % driver.pid)
            equal(session.ask("offload", "--owner", "all", "--pid", *[job.ranks[0]], "--pid",
                              job.ranks[1])["bytes"], WHOLE["bytes"], "of the others")
            session.ask("restore")
            driver("capture-end")  # fails when the capture was spoilt
            check(session.process(driver.pid)["complete"], "incomplete after a capture")
            equal(session.ask("offload", "--owner", "all")["bytes"], WHOLE["bytes"] + 2 * MIB,
                  "after the capture")
            session.ask("restore")
            equal(driver("check", va, 2 * MIB, 8), 0, "wrong bytes")
        job.verify()


@case(long=True)
def test_capture_that_begins_while_devices_are_busy():
    """Calls that are not NCCL's are not held: the wait for the devices must not spoil what they begin."""
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS)
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        for mode in (0, 1, 2):
            open(busy, "w").close()
            offload = session.spawn([LIEN, "offload", "--timeout", "20000"])
            wait_for("it waits for the devices", lambda: session.ask("status")["transaction"])
            driver("capture", mode)
            os.unlink(busy)
            offload.wait(20)
            driver("capture-end")  # fails when the capture was spoilt
            session.ask("restore")
        job.verify()


@case()
def test_stopped_rank():
    """It is refused before anything is touched; one that stops in the middle is waited for with a
    limit, and named."""
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS)
        os.kill(job.ranks[1], signal.SIGSTOP)
        wait_for("it is stopped", lambda: state_of(job.ranks[1]) == "T")
        for command in ("offload", "--dry-run"), ("offload",):
            session.refused(*command, text="process %d is stopped: let it go on first" % job.ranks[1])
            equal(session.ask("status")["transaction"], None, "transaction")
        equal(session.used(), WHOLE["bytes"], "device memory in use")
        os.kill(job.ranks[1], signal.SIGCONT)
        runs_as_before(session, job)
        open(busy, "w").close()
        offload = session.spawn([LIEN, "offload", "--timeout", "1000"])
        wait_for("it waits for the devices", lambda: session.ask("status")["transaction"])
        os.kill(job.ranks[1], signal.SIGSTOP)
        equal(offload.wait(40), 1, "its exit code")
        named = re.search(r"process %d did not answer `\w+` within (\d+) ms: it is stopped, and goes on after kill "
                          r"-CONT" % job.ranks[1], offload.said())
        check(named and int(named[1]) < 3000, offload.said())  # one that goes on has 2 s more to answer
        session.ask("ps", limit=5)
        os.unlink(busy)
        os.kill(job.ranks[1], signal.SIGCONT)
        runs_as_before(session, job)
        round_trip(session, job)
        job.quit()


@contextlib.contextmanager
def in_a_debugger(pid):
    """It has stopped all threads."""
    threads = [int(tid) for tid in os.listdir("/proc/%d/task" % pid)]
    for tid in threads:
        held.ptrace(held.PTRACE_SEIZE, tid)
        held.ptrace(held.PTRACE_INTERRUPT, tid)
        os.waitpid(tid, held.WALL)
    yield
    for tid in threads:
        held.ptrace(held.PTRACE_DETACH, tid)


@case()
def test_stopped_process():
    """Whatever needs an answer from it is refused before anything is touched, not after a time limit."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        va = driver("make", 2 * MIB, 0)[1]
        driver("fill", va, 2 * MIB, 0x35)
        session.ready(driver.pid)

        def refused(*command, text="process %d is stopped: let it go on first" % driver.pid):
            driver.process.signal(signal.SIGSTOP)
            wait_for("it is stopped", lambda: state_of(driver.pid) == "T")
            outcome = session.lien(*command, limit=5)
            check(outcome.code == 1 and text in outcome.out + outcome.err, outcome)
            equal(session.ask("status")["transaction"], None, "transaction")
            driver.process.signal(signal.SIGCONT)

        refused("offload", "--owner", "all")
        session.ask("offload", "--owner", "all")
        refused("restore")
        refused("restore", "--pid", driver.pid)
        session.ask("restore")
        equal(driver("check", va, 2 * MIB, 0x35), 0, "wrong bytes")
        refused("arena", "--release")
        check(session.ask("arena", "--release")["released_bytes"], "it had host memory")
        with in_a_debugger(driver.pid):
            session.refused("offload", "--owner", "all", limit=5,
                            text=r"process %d is stopped: let it go on first \(debugger: process %d\)" % (
                                driver.pid, os.getpid()))
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "moved")
        with in_a_debugger(driver.pid):
            session.refused("restore", limit=5, text=r"let it go on first \(debugger: process %d\)" % os.getpid())
        session.ask("restore")
        refused("detach", driver.pid, text="refused: it is stopped: let it go on first")
        equal(session.process(driver.pid)["control"], "ready", "it was not detached")
        equal(session.ask("detach", driver.pid)["detached"], 1, "detached")


@case()
def test_restore_beside_a_stopped_process():
    """Only what it may share stays, and is named; the rest comes back."""
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        driver = session.driver()
        va = driver("make", 2 * MIB, 0)[1]
        driver("fill", va, 2 * MIB, 0x35)
        session.ready(driver.pid)

        def states():
            return [session.process(pid)["state"] for pid in (*job.ranks, driver.pid)]

        def refused(*command, text, pid):
            os.kill(pid, signal.SIGSTOP)
            wait_for("it is stopped", lambda: state_of(pid) == "T")
            answer = json.loads(session.lien(*command, "--json", limit=20).out)
            check(text in answer["error"] and "(kill -CONT %d)" % pid in answer["error"], answer)
            os.kill(pid, signal.SIGCONT)

        session.ask("offload", "--owner", "all")
        refused("restore", pid=driver.pid, text="process %d is stopped (kill -CONT %d) and stays offloaded; all else is "
                "back; nothing is lost: `lien restore` again" % (driver.pid, driver.pid))
        equal(states(), ["running", "running", "offloaded"], "states")
        equal(session.ask("restore")["bytes"], 2 * MIB, "the rest")
        session.ask("offload", "--owner", "all")
        refused("restore", pid=job.ranks[1], text="stays offloaded with 1 other process; all else is back")
        equal(states(), ["offloaded", "offloaded", "running"], "states")
        for named in ("--pid", job.ranks[0]), ():
            refused("restore", *named, pid=job.ranks[1], text="let it go on first (kill -CONT %d); 1 other process may "
                    "share memory with it" % job.ranks[1])
        equal(states(), ["offloaded", "offloaded", "running"], "states")
        # What was offloaded before the agent came may be shared by anybody.
        session.ask("offload", "--owner", "all")
        session.kill_agent()
        session.start_agent()
        session.ready(driver.pid, *job.ranks)
        refused("restore", pid=driver.pid, text="let it go on first (kill -CONT %d); 2 other processes may share memory "
                "with it" % driver.pid)
        equal(states(), ["offloaded"] * 3, "states")
        session.ask("restore")
        equal(driver("check", va, 2 * MIB, 0x35), 0, "wrong bytes")
        job.verify()


@case(long=True)
def test_device_filled_while_offloaded():
    with Session(memory="256M") as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        session.ask("offload")
        hog = session.driver(control=False)
        taken = [hog("alloc", 230 * MIB)]
        for _ in range(2):
            session.refused("restore", text="device 0 of process %d needs 48.0 MiB and has 26.0 "
                            "MiB free: free 22.0 MiB there; nothing is lost: `lien restore` again"
                            % job.ranks[0])
            equal(session.used(1), 0, "device memory of the other, for which there is room")
        hog("memfree", taken.pop())
        result = session.ask("restore")
        equal(result["outcome"], "done", "outcome")
        runs_as_before(session, job)
        hog.end()
        round_trip(session, job)
        job.free()
        job.quit()


@case()
def test_no_host_memory():
    with Session(memory="2G") as session:
        session.start_agent()
        driver = session.driver()
        handle, va = driver("make", 512 * MIB, 0)
        driver("fill", va, 512 * MIB, 4)
        small = driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        with open("/proc/%d/statm" % driver.pid) as statm:
            size = int(statm.read().split()[0]) * resource.getpagesize()
        driver("limit", resource.RLIMIT_AS, size + 128 * MIB)
        session.refused("offload", "--owner", "all",
                        text="process %d, save: no pinned host memory" % driver.pid)
        equal(session.used(), 514 * MIB, "device memory in use")
        equal(driver("check", va + 500 * MIB, MIB, 4), 0, "wrong bytes")
        driver("release", handle)
        driver("unmap", va, 512 * MIB)
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "what there is room for")
        session.ask("restore")
        check(driver("retain", small[1]), "not restored")


@case()
def test_second_agent():
    with Session() as session:
        agent = session.start_agent()
        outcome = session.lien("agent")
        check(outcome.code == 1 and "listens on %s already" % session.socket in outcome.err,
              outcome)
        equal(len(outcome.err.splitlines()), 1, "lines: %s" % outcome)
        session.ask("ps")
        session.kill_agent()
        check(os.path.exists(session.socket), "no socket is left by a killed agent")
        session.refused("ps", text="start one with `lien agent`")
        check(session.start_agent().pid != agent.pid, "the same agent")
        session.ask("ps")
        session.stop_agent()
        check(not os.path.exists(session.socket), "the socket is left by an agent that ended")


@case(long=True)
def test_second_agent_with_another_socket():
    """One agent per node: the second one refuses, or at least takes nothing from the first."""
    with Session() as session:
        session.start_agent()
        second = session.spawn([LIEN, "agent", "--no-journal", "--socket",
                                session.path("other.sock")])
        wait_for("it is ready or ended", lambda: second.popen.poll() is not None or
                 " ready: " in second.said())
        job = session.replay(recording("pairs", PAIRS))
        sockets = [session.socket, session.path("other.sock")]

        def controls(pid):
            answers = [session.lien("ps", "--json", "--socket", path) for path in sockets]
            return sorted(p["control"] for answer in answers
                          for p in json.loads(answer.out)["processes"] if p["pid"] == pid)
        try:
            for pid in job.ranks:
                wait_for("one agent has the process", lambda p=pid:
                         controls(p) == ["ready", "taken"])
            outcomes = [session.lien("offload", "--pid", job.ranks[0], "--with-closure",
                                     "--dry-run", "--socket", path) for path in sockets]
            check(1 in [o.code for o in outcomes], "both agents would move it")
            check("another agent" in outcomes[0].err + outcomes[1].err,
                  "no reason: %s" % (outcomes[0].err + outcomes[1].err))
            for path in sockets:
                session.lien("offload", "--socket", path)
            for path in sockets:
                session.lien("restore", "--socket", path)
            equal(job.verify()[0], 4 * PAIRS, "mappings verified")
        finally:
            second.end()


@case()
def test_agent_without_rights():
    with Session() as session:
        os.chmod(session.folder, 0o777)
        for prefix, words in (
                (["setpriv", "--reuid", "65534", "--clear-groups"], "CAP_BPF, CAP_PERFMON"),
                (["su", "-s", "/bin/sh", "nobody", "-c", 'exec "$0" "$@"', "--"], "CAP_BPF"),
                (["setpriv", "--bounding-set", "-bpf,-sys_admin", "--inh-caps", "-all"], "CAP_BPF"),
                (["setpriv", "--bounding-set", "-perfmon,-sys_admin"], "CAP_PERFMON"),
                (["setpriv", "--bounding-set", "-sys_ptrace"], "CAP_SYS_PTRACE")):
            agent = session.spawn([*prefix, LIEN, "agent", "--socket", session.path("x.sock")])
            try:
                code = agent.wait(10)
            except Failure:
                raise Failure("runs on: %s; %s" % (" ".join(prefix), agent.said())) from None
            lines = [line for line in agent.said().splitlines() if line.strip()]
            check(code == 1, "%s: exit status %d: %s" % (" ".join(prefix), code, lines))
            check(len(lines) == 1, "%s: not one line: %s" % (" ".join(prefix), lines))
            check(words in lines[0], "%s: no %s: %s" % (" ".join(prefix), words, lines))
            check("run as root" in lines[0], "no remedy: %s" % lines)
            check(not os.path.exists(session.path("x.sock")), "a socket is left behind")


def interrupted(process):
    """The exit code after Ctrl-C, and all that was said, on one line."""
    code = process.wait(30)
    return code, " ".join(process.said().split())


@case()
def test_interrupted_on_the_way_to_rest():
    """Ctrl-C cancels: nothing is moved, and it says so."""
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS)
        open(busy, "w").close()
        for number in (signal.SIGINT, signal.SIGTERM):
            offload = session.spawn([LIEN, "offload", "--timeout", "60000", "--retry", "60000"])
            wait_for("it drains", lambda: (session.ask("status")["transaction"] or {}).get("phase") == "drain")
            offload.signal(number)
            code, said = interrupted(offload)
            check(code == 1 and "cancelling; Ctrl-C again leaves it to the agent" in said and
                  said.endswith("lien offload: cancelled; nothing was moved, the job runs on"), code, said)
            equal(session.ask("status")["transaction"], None, "transaction")
        os.unlink(busy)
        runs_as_before(session, job)


@case()
def test_interrupted_while_it_moves():
    """Ctrl-C puts back what was moved; a second one leaves at once, and the agent finishes that. A restore goes
    on in any case."""
    with Session() as session:
        faults.folder(session)
        session.start_agent()
        driver = session.driver()
        va = driver("make", 2 * MIB, 0)[1]
        driver("fill", va, 2 * MIB, 0x35)
        session.ready(driver.pid)
        slow = Faults(session, driver.inner_pid)

        def slowed(function, *command):
            slow.arm(faults.DELAY, function=function, delay_ms=2000)
            process = session.spawn([LIEN, *command])
            wait_for("it is slow", lambda: slow.record.hit)
            return process
        for times in (1, 2):
            process = slowed("cuMemUnmap", "offload", "--owner", "all")
            process.signal(signal.SIGINT)
            wait_for("it is said", lambda process=process: "cancelling;" in process.said())
            if times == 2:
                process.signal(signal.SIGINT)
            code, said = interrupted(process)
            words = ("cancelled; everything was put back, the job runs on" if times == 1 else
                     "lien offload: no longer waiting: the agent finishes the cancellation")
            check(code == 1 and words in said, code, said)
            wait_for("it ends", lambda: not session.ask("status")["transaction"])
            equal((session.process(driver.pid)["state"], session.used()), ("running", 2 * MIB), "state")
            equal(driver("check", va, 2 * MIB, 0x35), 0, "wrong bytes")
        session.ask("offload", "--owner", "all")
        process = slowed("cuMemCreate", "restore")
        process.signal(signal.SIGINT)
        wait_for("it is said", lambda: "a restore cannot be cancelled" in process.said())
        process.signal(signal.SIGINT)
        code, said = interrupted(process)
        check(code == 1 and "lien restore: no longer waiting: the agent finishes the restore" in said, code, said)
        wait_for("it is back", lambda: session.process(driver.pid)["state"] == "running")
        equal(driver("check", va, 2 * MIB, 0x35), 0, "wrong bytes")


@case()
def test_names_that_nothing_has():
    """Every command says what does exist, and exits with 2."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        session.refused("offload", "--owner", "ncll", code=2, text="there is none of any owner")
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        known = r"known are %d \(prog_driver\) \(see `lien ps`\)" % driver.pid
        for command in (["mem", "--pid", 77], ["mem", "--by", "owner", "--pid", 77], ["comms", "--pid", 77],
                        ["holders", 77, "0x1000"], ["events", "--pid", 77], ["attach", 77], ["detach", 77],
                        ["arena", "--release", "--pid", 77], ["check", "--deep", "--pid", 77],
                        ["restore", "--pid", 77], ["offload", "--pid", 77], ["offload", "--dry-run", "--pid", 77]):
            for more in ([], ["--json"]):
                outcome = session.lien(*command, *more)
                check(outcome.code == 2 and re.search("process 77 is not known to the agent: .*" + known,
                                                      outcome.err), outcome)
        owner, = [row["owner"] for row in session.ask("mem")["rows"]]
        for options in (["--owner", "ncll"], ["--discard", "ncll"], ["--discard", "unknown,ncll"]):
            for more in ([], ["--dry-run"]):
                session.refused("offload", *options, *more, code=2, text="no GPU memory belongs to owner ncll; "
                                "there is memory of %s .see `lien mem`" % owner)
        session.refused("offload", "--on-use", "bogus", code=2, text="not one of wait, restore, ignore")
        session.refused("mem", "--by", "bogus", code=2, text="not one of owner, rank, comm, device, callsite, tag")
        session.refused("comms", "--group", "77", code=2, text="no communicator has the group 77; none is known")
        session.ask("offload", "--owner", owner)
        session.ask("restore")


@case()
def test_wrong_input():
    with Session() as session:
        session.refused("ps", text="no agent listens on .* start one with `lien agent`")
        session.start_agent()
        driver = session.driver()
        _, va = driver("make", 2 * MIB, 0)
        pid = driver.pid
        dead = session.driver()
        dead.end()
        wait_for("the dead one is forgotten", lambda: not session.process(dead.pid))
        for number in (dead.pid, os.getpid(), 4000000):
            for command in (["offload", "--pid", number], ["restore", "--pid", number],
                            ["offload", "--dry-run", "--pid", number],
                            ["offload", "--pid", pid, "--pid", number],
                            ["holders", number, "0x1000"]):
                session.refused(*command, code=2, text="process %d is not known to the agent" % number)
        for address in ("0x1000", "0", hex(va - 1), hex(va + 2 * MIB), "0xffffffffffffffff"):
            session.refused("holders", pid, address, code=2, text="no GPU memory is known at")
        session.ask("holders", pid, hex(va + 2 * MIB - 1))
        for command in (["holders", pid], ["holders", pid, "zzz"], ["holders", "-1", "0x10"],
                        ["holders", pid, "0x1" + "0" * 20], ["offload", "--pid", "x"],
                        ["offload", "--pid", "0"], ["offload", "--timeout", "0"],
                        ["offload", "--timeout", "-1"], ["offload", "--timeout", "1e9"],
                        ["offload", "--nonsense"], ["offload", "extra"], ["restore", "--strict"],
                        ["graph", "--format", "png"], ["mem", "--pid", "0x"], ["nonsense"], [],
                        ["run"], ["record"], ["replay"]):
            outcome = session.lien(*command)
            check(outcome.code == 2 and outcome.err and not outcome.out,
                  "not refused as wrong usage: %s" % outcome)
        session.refused("mem", "--json", "--pid", dead.pid, code=2, text="is not known")
        session.refused("graph", "--output", session.path("no/such/folder"), text="No such file")
        equal(session.process(pid)["bytes"], 2 * MIB, "bytes")


@case()
def test_wrong_requests():
    with Session() as session:
        session.start_agent()
        for line in ("", "{}", "[]", "null", "nonsense", "{\"op\": 1}", "{\"op\": \"nonsense\"}",
                     "{\"op\": \"ps\", \"pid\": 1}", "{\"op\": \"ps\", \"op\": \"mem\"}",
                     "{\"op\": \"offload\", \"owner\": 1}", "{\"op\": \"offload\", \"pids\": 1}",
                     "{\"op\": \"offload\", \"pids\": [\"1\"]}",
                     "{\"op\": \"offload\", \"pids\": []}", "{\"op\": \"restore\", \"pids\": []}",
                     "{\"op\": \"offload\", \"pids\": [0]}",
                     "{\"op\": \"offload\", \"pids\": [-5]}",
                     "{\"op\": \"offload\", \"timeout_ms\": 0}",
                     "{\"op\": \"offload\", \"timeout_ms\": \"1\"}",
                     "{\"op\": \"offload\", \"timeout_ms\": 1e300}",
                     "{\"op\": \"offload\", \"strict\": 1}",
                     "{\"op\": \"restore\", \"strict\": true}",
                     "{\"op\": \"holders\"}", "{\"op\": \"holders\", \"pid\": 1}",
                     "{\"op\": \"holders\", \"pid\": 1, \"address\": 4096}",
                     "{\"op\": \"holders\", \"pid\": 1, \"address\": \"0x\"}",
                     "{\"op\": \"holders\", \"pid\": 1, \"address\": \"0xzz\"}",
                     "{\"op\": \"holders\", \"pid\": -1, \"address\": \"0x10\"}",
                     "{\"op\": \"ps\"} x", "{\"op\": \"\\ud800\"}", "\0", "[" * 5000,
                     "{\"op\": \"" + "x" * 100000 + "\"}"):
            answer = session.request(line + "\n")
            try:
                reply = json.loads(answer)
            except ValueError:
                raise Failure("no JSON for %s: %s" % (brief(line), brief(answer))) from None
            check(reply["ok"] is False and reply["error"] and "\n" not in reply["error"],
                  "%s: %s" % (brief(line), brief(answer)))
        answer = session.request(b"\xff\xfe{\"op\": \"ps\"}\n")
        equal(json.loads(answer)["ok"], False, "not UTF-8")
        # A request without end, many at once, half of one, and those who hang up early.
        check("longer than 1 MiB" in session.request(b"x" * (1 << 20)), "a long line was taken")
        answers = session.request("{\"op\": \"status\"}\n" * 50)
        check(answers.count("\n") >= 1 and "\"ok\": true" in answers.replace("\":true", "\": true"),
              brief(answers))
        files = "/proc/%d/fd" % session.agent.pid
        before, connections = len(os.listdir(files)), []
        for number in range(100):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(session.socket)
            connection.sendall([b"{\"op\": \"graph\"}\n", b"{\"op\":", b"", b"\n\n\n",
                                b"{\"op\": \"record\"}\n"][number % 5])
            connections.append(connection)
        session.ask("ps", limit=5)
        for connection in connections:
            connection.close()
        session.ask("ps", limit=5)
        wait_for("connections are closed", lambda: len(os.listdir(files)) < before + 10)


if __name__ == "__main__":
    sys.exit(main())
