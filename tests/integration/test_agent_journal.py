#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""An agent that is back after a stop, a kill or an upgrade knows everything again, including
what happened meanwhile: real BPF programs, real processes, the software CUDA driver.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
LIEN_SEED repeats the random moments of a run.
"""

import ctypes
import fcntl
import functools
import json
import mmap
import os
import random
import shutil
import signal
import struct
import sys

from told import compare
import lien_test
from lien_test import (
    CALLS, LIEN, MIB, SEED, SOFTCUDA, SOFTNCCL, Failure, Stream, at_a_moment, brief, came, case,
    check, equal, main, program, recording, start_pairs, wait_for)

Session = functools.partial(lien_test.Session, fresh=True)  # their agents are what is tested
PINS = "/sys/fs/bpf/lien"
SYS_BPF, BPF_OBJ_GET = 321, 7
SHARE_SIZE = 88  # of a record of an export by descriptor, include/lien/event.h


def normal(graph):
    """A graph without what differs between agents: numbers of allocations, order, links."""
    text = json.dumps
    del graph["gpus"], graph["nvml"]
    for process in graph["processes"]:
        for told in ("control", "movable", "reason", "arena_bytes", "arena_used_bytes"):  # to one agent
            del process[told]
    for allocation in graph["allocations"]:
        del allocation["id"]
        for list_of in ("handles", "mappings"):
            allocation[list_of].sort(key=text)
    graph["allocations"].sort(key=text)
    return graph


class Witness:
    """An agent that runs all along, and keeps no journal."""

    def __init__(self, session):
        self.session = session
        self.socket = session.path("witness.sock")
        self.process = session.spawn([LIEN, "agent", "--no-journal", "--socket", self.socket,
                                      "--library", SOFTNCCL])
        wait_for("the witness is ready", lambda: " ready: " in self.process.said())

    def graph(self):
        outcome = self.session.lien("graph", "--format", "json", "--socket", self.socket)
        check(outcome.code == 0, outcome)
        return normal(json.loads(outcome.out))

    def differences(self, but):
        found, expected = normal(self.session.ask("graph", "--format", "json")), self.graph()
        for graph in (found, expected):
            graph["processes"] = [p for p in graph["processes"] if p["pid"] not in but]
            # Whose making was missed, because the driver was not probed yet, is nobody's.
            graph["allocations"] = [
                a for a in graph["allocations"] if a["pid"] not in but and
                not (a["pid"] is None and {m["pid"] for m in a["mappings"]} & set(but))]
        check(found["allocations"], "nothing to compare")
        for part in expected:
            only = [x for x in found[part] if x not in expected[part]]
            missing = [x for x in expected[part] if x not in found[part]]
            if only or missing:
                return "%s: only in the new agent's graph: %s; missing: %s" % (part, brief(only), brief(missing))
        return None

    def agrees(self, *but):
        """Its graph is the agent's, except for what these processes have. They are asked one after the other, and jobs
        go on meanwhile: what came in between is in both when they are asked again."""
        if not came(lambda: not self.differences(but), 60):
            raise Failure(self.differences(but))

    def stop(self):
        self.process.signal(signal.SIGTERM)
        self.process.wait()


def journal(session):
    return session.ask("status")["journal"]


def taken_over(session):
    """Events; the agent goes on with what one before it left."""
    status = session.ask("status")["journal"]
    check(status["path"] and status["pinned"] and not status["problem"], brief(status))
    check("goes on with" in session.agent.said(), session.agent.said())
    return status["taken_over"]


def pins_of(session):
    """What is pinned for the session's agents; None: not even a folder."""
    for name in os.listdir(PINS) if os.path.isdir(PINS) else []:
        if os.path.basename(session.folder) in name:
            return sorted(os.listdir(os.path.join(PINS, name)))
    return None


def edit_state(session, **values):
    path = session.socket + ".state"
    with open(path) as file:
        state = json.load(file)
    state.update(values)
    with open(path, "w") as file:
        json.dump(state, file)
    return state


def interrupted(session, how, *args):
    """Things happen before, while no agent runs, and after; the graph is a witness's. An agent runs, and no job."""
    folder = session.path("copy")
    os.mkdir(folder)
    shutil.copy(os.path.join(SOFTCUDA, "libcuda.so.1"), folder)
    witness = Witness(session)
    a, b, ends, mapped = (session.driver(control=False) for _ in range(4))
    waits = session.driver(control=False, init=False)
    job = session.replay(recording("basic"))
    first, va = a("make", 2 * MIB, 0)
    early, early_va = a("make", 4 * MIB, 1)
    fd = a("export", first)
    plain = a("alloc", 3 * MIB)
    kept, _ = ends("make", 2 * MIB, 0)
    kept_fd = ends("export", kept)
    held = b("import", b("getfd", ends.pid, kept_fd))
    witness.agrees()
    calls = session.ask("status")["events"]

    how()
    a("unmap", early_va, 4 * MIB)
    a("free", early_va, 4 * MIB)
    a("release", early)
    a("memfree", plain)
    place = b("show", 2 * MIB, held, 1)
    there = b("import", b("getfd", a.pid, fd))  # exported before, imported now
    b("show", 2 * MIB, there, 0)
    other, _ = a("make", 6 * MIB, 0)
    other_fd = a("export", other)  # exported now, imported later
    ends.process.signal(signal.SIGKILL)
    ends.process.wait()
    new = session.driver(control=False)
    new("make", 2 * MIB, 1)
    brief_one = session.driver(control=False)  # comes and goes
    b("import", b("getfd", brief_one.pid, brief_one("export", brief_one("make", MIB * 2, 0)[0])))
    brief_one.process.signal(signal.SIGKILL)
    brief_one.process.wait()
    copy = session.driver(control=False, LD_LIBRARY_PATH=folder)
    copy("make", 2 * MIB, 0)
    mapped("make", 2 * MIB, 0)
    session.start_agent(*args)

    check(taken_over(session) >= calls, "%d events taken over of %d" % (
        journal(session)["taken_over"], calls))
    # Where the calls came from of a process that is gone, and mapped its program unseen, cannot
    # be found out any more.
    unlike = (copy.pid, brief_one.pid)
    witness.agrees(*unlike)
    b("import", b("getfd", a.pid, other_fd))
    b("unmap", place, 2 * MIB)
    waits("init", 0)
    waits("make", 2 * MIB, 0)
    late = session.driver(control=False)
    late("make", 2 * MIB, 0)
    job.verify()
    witness.agrees(*unlike)
    for driver in (a, b, new, mapped, waits, late):
        check(session.known(driver.pid)["complete"], "incomplete:",
              brief(session.process(driver.pid)))
    check(session.known(copy.pid)["complete"] is False, "calls to an unprobed driver were missed")
    found = [x for x in session.ask("graph")["allocations"] if x["pid"] == ends.pid]
    check(len(found) == 1 and not found[0]["alive"], "held by the dead:", brief(found))
    dead = [x for x in session.ask("graph")["allocations"] if x["pid"] == brief_one.pid]
    check(len(dead) == 1 and not dead[0]["alive"], "of one that came and went:", brief(dead))
    status = session.ask("status")
    equal((status["events_lost"], status["unmatched_imports"]), (0, 0), "lost and unmatched")
    again = session.driver(control=False, LD_LIBRARY_PATH=folder)
    check(session.known(again.pid)["complete"], "the copy of the driver is not probed")
    witness.stop()


@case()
def test_killed():
    with Session() as session:
        session.start_agent()
        interrupted(session, session.kill_agent)


@case(long=True)
def test_stopped():
    with Session() as session:
        session.start_agent()
        interrupted(session, session.stop_agent)


@case()
def test_upgraded():
    """The next agent is of another build: its probes replace the old ones."""
    with Session() as session:
        def upgrade():
            session.stop_agent()
            edit_state(session, build="another")
        session.start_agent()
        interrupted(session, upgrade)


@case(long=True)
def test_call_under_way_at_an_upgrade():
    with Session() as session:
        session.start_agent()
        session.driver(control=False).end()  # makes the devices
        other = session.driver(control=False)
        driver = session.driver(control=False, init=False)
        with open(os.path.join(session.devices, "lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            driver.process.send("init 0")  # waits for the lock, in cuInit
            session.known(driver.pid)
            check(session.process(driver.pid)["complete"], "incomplete at once")
            session.kill_agent()
            session.start_agent()  # the same build sees the call return
            check(session.process(driver.pid)["complete"], "incomplete after a restart")
            session.kill_agent()
            edit_state(session, build="another")
            session.start_agent()
            wait_for("the call is noted", lambda: "process %d was in a call" % driver.pid in
                     session.agent.said())
        check(driver.process.line().startswith("ok"), "init failed")
        check(session.process(driver.pid)["complete"] is False, "it passes for complete")
        check(session.process(other.pid)["complete"], "another became incomplete")
        stream = Stream(session)
        driver("make", 2 * MIB, 0)
        driver("cuinit", 0)
        made = [e for e in stream.events() if e.pid == driver.pid and e.type == CALLS["CU_MEM_CREATE"]]
        stream.close()
        equal([e.outer for e in made], [CALLS["CU_MEM_CREATE"]], "outermost calls")
        session.refused("offload", "--owner", "all", "--pid", driver.pid, text="cannot take part")


def next_round(job, number):
    if number:
        job.send("more")


@case(long=True)
def test_killed_at_any_moment():
    """kill -9 under load, again and again: no event is lost, none applied twice. The journal is
    kept so short that snapshots are part of it. A round has fewer events than the ring has room."""
    moments = random.Random(SEED)
    with Session(memory="2G") as session:
        args = ("--journal-size", "1")
        session.start_agent(*args)
        job = session.spawn([program("prog_churn"), 4, 40000, "hints", "imports"])
        kills = 0
        for number in range(10):
            next_round(job, number)
            at_a_moment(moments, 0.1)
            while True:
                session.kill_agent()
                at_a_moment(moments, 0.05)
                session.start_agent(*args)
                taken_over(session)
                kills += 1
                if not job.lines.empty():
                    break
            line = job.line()
            check(line, "prog_churn ended:", job.said())
            status = session.ask("status")
            equal((status["events_lost"], status["unmatched_imports"], status["incomplete"]),
                  (0, 0, []), "lost, unmatched, incomplete; round %d" % number)
            compare(session, job.pid, json.loads(line))
            check(journal(session)["bytes"] < 8 * MIB, "the journal grows:", journal(session))
        check(kills >= 10, "only %d kills" % kills)


def rewind_ring(session, size):
    """Puts back what was taken last from the ring: a record of so many bytes."""
    folder = [os.path.join(PINS, name) for name in os.listdir(PINS)
              if os.path.basename(session.folder) in name][0]
    path = ctypes.create_string_buffer(os.path.join(folder, "map-events").encode())
    attributes = struct.pack("=QII", ctypes.addressof(path), 0, 0)
    ring = ctypes.CDLL(None, use_errno=True).syscall(SYS_BPF, BPF_OBJ_GET, attributes,
                                                     len(attributes))
    check(ring >= 0, "no ring:", os.strerror(ctypes.get_errno()))
    with mmap.mmap(ring, mmap.PAGESIZE) as page:
        taken = struct.unpack_from("=Q", page)[0]
        struct.pack_into("=Q", page, 0, taken - size - 8)
    os.close(ring)


@case()
def test_killed_between_journal_and_ring():
    """The record that the agent was about to take from the ring is in its journal already."""
    with Session() as session:
        session.start_agent()
        driver = session.driver(control=False)
        handle, _ = driver("make", 2 * MIB, 0)
        driver("export", handle)
        events = session.ask("status")["events"]
        session.kill_agent()
        rewind_ring(session, SHARE_SIZE)
        driver("export", handle)
        session.start_agent()
        equal(taken_over(session), events, "events taken over")
        equal(session.ask("status")["events"], events + 1, "events")
        equal([a["exports"] for a in session.ask("graph")["allocations"]], [2], "exports")
        check(session.process(driver.pid)["complete"], "incomplete")


@case(long=True)
def test_upgraded_under_load():
    """An upgrade says what it missed; everything else is exact."""
    with Session(memory="2G") as session:
        session.start_agent()
        for _ in range(3):
            job = session.spawn([program("prog_churn"), 4, 8000, "hints"])
            while job.lines.empty():
                session.kill_agent()
                edit_state(session, build="another")
                session.start_agent()
                taken_over(session)
            state = json.loads(job.line(60))
            if session.known(job.pid)["complete"]:
                compare(session, job.pid, state)
            job.close_input()
            job.wait()
        # Nothing under way: all goes on.
        job = session.spawn([program("prog_churn"), 4, 8000, "hints", "imports"])
        for number in range(3):
            next_round(job, number)
            compare(session, job.pid, json.loads(job.line(60)))
            session.stop_agent()
            edit_state(session, build="another")
            session.start_agent()


@case(long=True)
def test_processes_of_a_snapshot():
    """A snapshot says everything that was known of a process."""
    with Session(memory="2G") as session:
        session.start_agent("--journal-size", "1")
        witness = Witness(session)
        a, b = session.driver(control=False), session.driver(control=False)
        handle, _ = a("make", 2 * MIB, 0)
        b("show", 2 * MIB, b("import", b("getfd", a.pid, a("export", handle))), 0)
        flying = a("export", a("make", 2 * MIB, 0)[0])
        b("alloc", MIB)
        a("capture", 0)
        silent = session.driver(control=False, init=False)
        churn = session.spawn([program("prog_churn"), 4, 20000])
        check(churn.line(60), "prog_churn ended:", churn.said())
        churn.close_input()
        churn.wait()
        events, status = session.ask("status")["events"], journal(session)
        session.kill_agent()
        session.start_agent("--journal-size", "1")
        check(taken_over(session) < events, "no snapshot: %s" % brief(status))
        witness.agrees()
        b("import", b("getfd", a.pid, flying))
        silent("init", 0)
        silent("make", 2 * MIB, 0)
        witness.agrees()
        for driver in (a, b, silent):
            check(session.known(driver.pid)["complete"], brief(session.process(driver.pid)))
        witness.stop()


@case(long=True)
def test_no_snapshot_while_a_job_is_held():
    """It would take a while: the journal may grow on. Once nothing else is to be done, it is replaced, without
    another record."""
    with Session(memory="2G") as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent("--journal-size", "1")
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        path = journal(session)["path"]
        before = os.stat(path).st_ino
        with open(busy, "w", encoding="ascii"):
            pass
        offload = session.spawn([LIEN, "offload", "--owner", "all", "--timeout", "60000"])
        wait_for("the offload", lambda: session.ask("status")["transaction"])
        while journal(session)["bytes"] < 1.2 * MIB:
            burst = session.spawn([program("prog_burst"), 1, 2000])
            equal(burst.line(30), "ready", burst.said())
            check(burst.ask(""), burst.said())
            burst.end()
        equal(os.stat(path).st_ino, before, "the file, during the offload")
        check(session.ask("status")["transaction"], "the offload has ended: %s" % offload.said())
        os.unlink(busy)
        equal(offload.wait(30), 0, "the offload; %s" % offload.said())
        wait_for("a snapshot", lambda: os.stat(path).st_ino != before)
        check(journal(session)["bytes"] < MIB, journal(session))
        session.kill_agent()
        session.start_agent("--journal-size", "1")
        session.ready(driver.pid)
        check(session.ask("restore")["bytes"] > 0, "nothing restored")


@case(long=True)
def test_ring_overflow_while_stopped():
    with Session(memory="2G") as session:
        session.start_agent()
        job = session.spawn([LIEN, "run", "--", program("prog_churn"), 4, 1000])
        check(job.line(60), "prog_churn ended:", job.said())
        quiet = session.driver(control=False)
        quiet("make", 2 * MIB, 0)
        gone = session.driver(control=False)
        gone("make", 2 * MIB, 0)
        check(session.process(job.pid)["complete"], "incomplete before")
        session.kill_agent()
        for _ in range(6):
            job.send("more")  # as many again each time
            job.line(60)
        other = session.spawn([program("prog_churn"), 4, 200000])
        check(other.line(80), "prog_churn ended:", other.said())
        job.send("more")
        check(job.line(60), "prog_churn ended:", job.said())
        gone.process.signal(signal.SIGKILL)  # nothing tells of that
        gone.process.wait()
        session.start_agent()
        taken_over(session)
        session.forgotten(gone.pid)
        status = session.ask("status")
        check(status["events_lost"] > 0, "no event was lost: make the test longer")
        for pid in (job.pid, other.pid):
            check(session.process(pid)["complete"] is False, "%d passes for complete" % pid)
        check(session.process(quiet.pid)["complete"], "one that did nothing became incomplete")
        session.refused("offload", "--owner", "all", "--pid", job.pid,
                        text="process %d cannot take part: .*lost" % job.pid)
        session.kill_agent()
        session.start_agent()
        check(session.process(job.pid)["complete"] is False, "forgotten by the next agent")
        check(session.process(quiet.pid)["complete"], "incomplete by the next agent")


@case()
def test_no_room_for_the_journal():
    with Session(memory="2G") as session:
        small = session.path("small")
        os.mkdir(small)
        equal(ctypes.CDLL(None).mount(b"none", small.encode(), b"tmpfs", 0, b"size=3m"), 0, "mount")
        session.socket = session.environment["LIEN_SOCKET"] = os.path.join(small, "agent.sock")
        session.start_agent()
        check(journal(session)["bytes"], "no journal")
        job = session.spawn([program("prog_churn"), 4, 40000])
        state = json.loads(job.line(60))
        compare(session, job.pid, state)
        status = journal(session)
        check(not status["path"] and "No space left" in status["problem"], brief(status))
        equal(session.agent.said().count("no journal is kept"), 1, "warnings")
        out = session.lien("status").out
        check("journal      none: " in out, out)
        check(not os.path.exists(session.socket + ".journal"), "its room is still taken")
        session.kill_agent()
        session.start_agent()
        check(session.process(job.pid)["complete"] is False, "it passes for complete")
        equal(journal(session)["taken_over"], 0, "events taken over")
        check(journal(session)["path"], "no new journal")
        new = session.driver(control=False)
        session.kill_agent()
        session.start_agent()
        taken_over(session)
        check(session.process(new.pid)["complete"], "incomplete")
        # So little room that it cannot be begun.
        session.stop_agent()
        equal(session.clean(), None, "--clean")
        with open(os.path.join(small, "filler"), "wb") as filler:
            filler.write(b"x" * (5 << 19))
        session.start_agent()
        check("No space left" in journal(session)["problem"], brief(journal(session)))
        check(session.driver(control=False).pid, "driver")
        session.stop_agent()
        equal(pins_of(session), None, "pins of an agent that leaves nothing")


@case(long=True)
def test_not_taken_over():
    """After a reboot, from another pid namespace, with other maps, or with a foreign or damaged journal, all begins
    anew: running processes may have a past."""
    with Session() as session:
        session.start_agent()
        driver = session.driver(control=False)
        changes = [
            (lambda: edit_state(session, boot="d3b07384-d9a0-4c9b-8f0e-000000000000"),
             "was started again"),
            (lambda: edit_state(session, pid_namespace="0" * 16), "pid namespace"),
            (lambda: edit_state(session, layout="0" * 16), "records are different"),
            (lambda: edit_state(session, journal="0" * 16), "journal is another one"),
            (lambda: open(session.socket + ".state", "w").close(), "state file is damaged"),
            (lambda: open(session.socket + ".journal", "r+b").write(b"garbage"), "it is damaged"),
            (lambda: os.unlink(session.socket + ".journal"), None),
            (lambda: os.unlink(session.socket + ".state"), None)]
        for change, why in changes:
            driver("make", 2 * MIB, 0)
            check(session.known(driver.pid)["complete"], "incomplete before")
            session.kill_agent()
            change()
            session.start_agent()
            check(why is None or why in session.agent.said(), "no '%s': %s" % (
                why, session.agent.said()))
            process = session.known(driver.pid)
            equal((process["complete"], process["bytes"]), (False, 0), "process after '%s'" % why)
            equal(journal(session)["taken_over"], 0, "events taken over")
            driver.end()
            driver = session.driver(control=False)
            number = max(int(pin.split("-")[1]) for pin in pins_of(session) if "link" in pin)
            check(number < 30, "old links are left:", pins_of(session))


@case()
def test_pins_that_are_gone():
    """A link that is not pinned any more is made anew, and its processes are not trusted."""
    for gone in ((0,), (1,), (0, 1)):  # returns, entries
        without_pins(gone)


def without_pins(gone):
    with Session() as session:
        session.start_agent()
        driver = session.driver(control=False)
        driver("make", 2 * MIB, 0)
        session.kill_agent()
        with open(session.socket + ".state") as file:
            state = json.load(file)
        number = [x["number"] for x in state["attached"] if x["path"].startswith(SOFTCUDA)][0]
        folder = [os.path.join(PINS, name) for name in os.listdir(PINS)
                  if os.path.basename(session.folder) in name][0]
        for index in gone:
            os.unlink("%s/link-%d-%d" % (folder, number, index))
        driver("make", 2 * MIB, 0)
        session.start_agent()
        taken_over(session)
        check(session.process(driver.pid)["complete"] is False, "it passes for complete")
        new = session.driver(control=False)
        new("make", 2 * MIB, 0)
        process = session.process(new.pid)
        equal((process["complete"], process["bytes"]), (True, 2 * MIB), "a new process")


@case()
def test_clean():
    with Session() as session:
        files = [session.socket + end for end in (".journal", ".state")]
        equal(session.lien("agent", "--clean").code, 0, "--clean with nothing there")
        session.start_agent()
        driver = session.driver(control=False)
        check(pins_of(session) and all(map(os.path.exists, files)), "nothing is kept")
        equal([os.stat(file).st_mode & 0o777 for file in files], [0o600] * 2, "modes")
        folder = [name for name in os.listdir(PINS) if os.path.basename(session.folder) in name][0]
        equal(os.stat(os.path.join(PINS, folder)).st_mode & 0o777, 0o700, "mode of the folder")
        session.refused("agent", "--clean", text="an agent runs on .*: stop it first")
        driver("make", 2 * MIB, 0)
        equal(session.process(driver.pid)["bytes"], 2 * MIB, "bytes")
        session.stop_agent()
        check(pins_of(session) and all(map(os.path.exists, files)), "nothing is left")
        equal(os.path.getsize(files[0]) % MIB != 0, True, "the journal keeps its room")
        equal(session.clean(), None, "--clean")
        equal((pins_of(session), list(map(os.path.exists, files))), (None, [False] * 2), "left")
        session.start_agent()
        check(session.process(driver.pid)["complete"] is False, "it knows")
        session.stop_agent()
        session.start_agent("--no-journal")  # leaves nothing, nor what there was
        equal((pins_of(session), list(map(os.path.exists, files))), (None, [False] * 2), "left")
        status = journal(session)
        check(not status["path"] and "--no-journal" in status["problem"], brief(status))
        session.stop_agent()
        equal((pins_of(session), list(map(os.path.exists, files))), (None, [False] * 2), "left")


@case()
def test_stopped_by_default():
    """A restart costs nobody anything; where nobody uses CUDA, nothing is left."""
    with Session() as session:
        files = [session.socket + ".journal", session.socket + ".state"]
        session.start_agent(keep=False)
        session.stop_agent()
        equal((pins_of(session), list(map(os.path.exists, files))), (None, [False] * 2), "left of nothing")
        session.start_agent(keep=False)
        job = start_pairs(session, 4)

        def answers():
            return [session.ask(*words) for words in (["mem"], ["graph"], ["offload", "--dry-run"])]
        before, agent = answers(), session.agent
        session.stop_agent()
        named = "processes %d, %d" % tuple(job.ranks)
        check("probes stay in %s for the next agent" % named in agent.said(), agent.said())
        session.start_agent(keep=False)
        session.ready(*job.ranks)
        equal(answers(), before, "what it knows")
        equal(session.ask("offload")["bytes"], 16 * MIB, "moved")
        session.stop_agent()
        session.refused("agent", "--clean", text="memory of %s is offloaded.*--force" % named)
        session.start_agent(keep=False)
        session.ask("restore")
        equal(job.verify()[0], 16, "mappings verified")
        session.stop_agent()
        session.refused("agent", "--clean", text="what is known of %s is lost.*--force" % named)
        check(pins_of(session) and all(map(os.path.exists, files)), "it was removed")
        equal(session.lien("agent", "--clean", "--force").code, 0, "--clean --force")
        equal((pins_of(session), list(map(os.path.exists, files))), (None, [False] * 2), "left")
        session.refused("agent", "--force", text="--force needs --clean", code=2)
        job.quit()


@case()
def test_on_stop_detach():
    """Nothing is left in the kernel for jobs to pay for, and it says what that costs."""
    with Session() as session:
        files = [session.socket + ".journal", session.socket + ".state"]
        session.start_agent("--on-stop", "detach", keep=False)
        driver = session.driver()
        handle, va = driver("make", 2 * MIB, 0)
        driver("fill", va, 2 * MIB, 0x42)
        session.ready(driver.pid)
        check(pins_of(session) and all(map(os.path.exists, files)), "nothing is kept for a crash")
        agent = session.agent
        session.stop_agent()
        check("what is known of process %d is lost" % driver.pid in agent.said(), agent.said())
        equal((pins_of(session), list(map(os.path.exists, files))), (None, [False] * 2), "left")
        for _ in range(1000):
            driver("unmap", va, 2 * MIB)
            va = driver("show", 2 * MIB, handle, 0)
        driver("fill", va, 2 * MIB, 0x43)
        session.start_agent("--on-stop", "detach", keep=False)
        session.known(driver.pid)
        check(not session.process(driver.pid)["complete"], "it knows calls that nobody saw")
        equal(session.ask("status")["events_lost"], 0, "events lost")
        session.ask("attach", driver.pid)
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "moved")
        # What is away needs the journal, and gates: these stay.
        agent = session.agent
        session.stop_agent()
        check("memory is offloaded: probes stay" in agent.said(), agent.said())
        check(pins_of(session) and all(map(os.path.exists, files)), "the journal is gone")
        session.start_agent("--on-stop", "detach", keep=False)
        session.ask("restore")
        equal(driver("check", va, 2 * MIB, 0x43), 0, "wrong bytes")
        session.stop_agent()
        equal((pins_of(session), list(map(os.path.exists, files))), (None, [False] * 2), "left")


@case()
def test_on_stop_keep():
    with Session() as session:
        session.start_agent("--on-stop", "keep", keep=False)
        driver = session.driver(control=False)
        session.known(driver.pid)
        session.stop_agent()
        driver("make", 2 * MIB, 0)
        session.start_agent("--on-stop", "keep", keep=False)
        taken_over(session)
        process = session.process(driver.pid)
        equal((process["complete"], process["bytes"]), (True, 2 * MIB), "what it knows")
        for args, text in ((["keep", "--no-journal"], "cannot be combined"),
                           (["never"], "is not one of detach, keep")):
            outcome = session.lien("agent", "--on-stop", *args)
            check(outcome.code == 2 and text in outcome.err, outcome)


@case()
def test_no_bpffs():
    """Where nothing can be pinned the agent does without, and says so."""
    with Session() as session:
        script = 'mount -t tmpfs -o ro none /sys/fs/bpf && exec "$@"'
        drop = ["unshare", "-m", "sh", "-c", script, "sh"]
        # It may not mount either: setpriv takes CAP_SYS_ADMIN, but BPF needs it not.
        agent = session.spawn([*drop, "setpriv", "--bounding-set=-sys_admin",
                               "--inh-caps=-sys_admin", LIEN, "agent"])
        session.agent = agent
        wait_for("the agent is ready or ends", lambda: " ready: " in agent.said() or
                 agent.popen.poll() is not None)
        check(" ready: " in agent.said(), agent.said())
        status = journal(session)
        check(not status["path"] and not status["pinned"] and "/sys/fs/bpf" in status["problem"],
              brief(status))
        equal(agent.said().count("no journal is kept"), 1, "warnings")
        driver = session.driver(control=False)
        check(session.known(driver.pid)["complete"], "incomplete")


@case()
def test_two_agents():
    """Each has pins of its own."""
    with Session() as session:
        second = session.path("second.sock")
        session.start_agent()
        first = session.socket
        driver = session.driver(control=False)
        one = session.agent

        def at(socket):
            session.socket = session.environment["LIEN_SOCKET"] = socket

        at(second)
        session.start_agent()
        two = session.agent
        driver("make", 2 * MIB, 0)
        late = session.driver(control=False)
        equal(session.lien("agent").code, 1, "a third agent on the second one's socket")
        session.kill_agent()
        driver("make", 2 * MIB, 0)
        at(first)
        session.agent = one
        equal(session.process(driver.pid)["bytes"], 4 * MIB, "bytes for the first")
        session.kill_agent()
        late("make", 2 * MIB, 0)
        session.start_agent()
        taken_over(session)
        equal([session.process(pid)["complete"] for pid in (driver.pid, late.pid)], [True] * 2,
              "complete for the first")
        session.stop_agent()
        equal(session.clean(), None, "--clean for the first")
        at(second)
        session.start_agent()
        taken_over(session)
        check(session.agent.pid != two.pid, "the same agent")
        process = session.process(late.pid)
        equal((process["complete"], process["bytes"]), (True, 2 * MIB), "for the second")


@case()
def test_offloaded():
    """What was offloaded by an agent that was killed is shown, restored, and moved again."""
    with Session() as session:
        session.start_agent()
        job = session.replay(recording("pairs", 20))
        session.ready(*job.ranks)
        whole = session.used()
        moved = session.ask("offload")["bytes"]
        left = session.used()
        check(moved and left < whole, "nothing was moved")
        before = normal(session.ask("graph", "--format", "json"))
        session.kill_agent()
        session.start_agent()
        taken_over(session)
        session.ready(*job.ranks)
        found = normal(session.ask("graph", "--format", "json"))
        equal(found["allocations"], before["allocations"], "allocations")
        equal(sum(p["offloaded_bytes"] for p in found["processes"]), moved, "offloaded")
        for pid in job.ranks:
            check(session.process(pid)["complete"], "incomplete:", brief(session.process(pid)))
        equal(session.ask("restore")["bytes"], moved, "restored")
        equal(session.used(), whole, "device memory")
        job.verify()
        session.stop_agent()
        session.start_agent()
        session.ready(*job.ranks)
        equal(session.ask("offload")["bytes"], moved, "offloaded again")
        equal(session.used(), left, "device memory")
        session.ask("restore")
        job.verify()
        job.free()
        job.quit()


@case()
def test_killed_in_the_middle_of_an_offload():
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = session.replay(recording("pairs", 20))
        session.ready(*job.ranks)
        with open(busy, "w"):
            client = session.spawn([LIEN, "offload", "--timeout", "20000"])
            wait_for("it drains", lambda: (session.ask("status")["transaction"] or {}).get(
                "phase") == "drain")
        session.kill_agent()
        client.wait(10)
        os.unlink(busy)
        session.start_agent()
        taken_over(session)
        session.ready(*job.ranks)
        equal(session.ask("restore")["outcome"], "nothing to do", "restore")
        moved = session.ask("offload")
        check(moved["outcome"] == "done" and moved["bytes"], brief(moved))
        session.ask("restore")
        job.verify()
        job.free()
        job.quit()


@case()
def test_replay_of_a_journal():
    with Session() as session:
        session.start_agent()
        driver = session.driver(control=False)
        handle, _ = driver("make", 2 * MIB, 0)
        driver("export", handle)
        session.stop_agent()
        outcome = session.lien("replay", session.socket + ".journal")
        check(outcome.code == 0 and "ok 1 mappings" in outcome.out, outcome)


if __name__ == "__main__":
    sys.exit(main())
