#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What an importer may still need stays exportable until it has it back, however long the agent is away.

Memory is shared one way: the owner imports nothing, so nothing of its own is away when the agent is killed
or stopped before the drop. After 5 s without orders (control/driver/gate.h) the owner's threads go on. A test
waits for that by the owner's next write, which is held until then. See lien_test.py for what else this
needs.
"""

import contextlib
import itertools
import signal
import sys

import faults
from faults import COUNT, DELAY, FAIL, KILL, Faults
from held import Held
from lien_test import (
    GUARD, LIEN, MIB, Session, case, check, equal, main, program, state_of, wait_for)

SIZE = 4 * MIB
LEASE_S = 5  # LIEN_GATE_LEASE_MS


class OneWay:
    """An owner, and importers of its memory."""

    def __init__(self, session, importers=1):
        self.session = session
        self.owner = session.driver(device=0)
        self.importers = [session.driver(device=1) for _ in range(importers)]
        self.handle, self.va = self.owner("make", SIZE, 0)
        fd = self.owner("export", self.handle)
        self.taken = [importer.take(self.owner, fd) for importer in self.importers]
        self.there = [importer("show", SIZE, handle, 1)
                      for importer, handle in zip(self.importers, self.taken)]
        self.owner("close", fd)
        self.write(0x11)
        self.ready()

    @property
    def importer(self):
        return self.importers[0]

    @property
    def pids(self):
        return [driver.pid for driver in [self.owner, *self.importers]]

    def ready(self):
        self.session.ready(*self.pids)

    def write(self, value):
        self.value = value
        self.owner("fill", self.va, SIZE, value)

    def begin_to_write(self, value):
        """It is done when the owner's threads go on."""
        self.value = value
        self.owner.process.send("fill %d %d %d" % (self.va, SIZE, value))

    def end_to_write(self, limit=GUARD):
        equal(self.owner.process.line(limit), "ok 0", "the owner's write")

    def check_importers(self):
        for importer, va in zip(self.importers, self.there):
            equal(importer("check", va, SIZE, self.value), 0, "wrong bytes in process %d" % importer.pid)

    def check(self):
        equal(self.owner("check", self.va, SIZE, self.value), 0, "wrong bytes in the owner")
        self.check_importers()

    def runs(self):
        for pid in self.pids:
            process = self.session.process(pid)
            equal((process["state"], process["offloaded_bytes"]), ("running", 0), "state of %d" % pid)
        equal(self.session.ask("restore")["outcome"], "nothing to do", "another restore")

    def restore(self):
        self.session.ask("restore")
        self.check()
        self.runs()

    def round_trip(self, moved=SIZE):
        answer = self.session.ask("offload", "--owner", "all")
        equal(answer["bytes"], moved, "moved: %s" % answer)
        self.restore()


@contextlib.contextmanager
def one_way(importers=1):
    with Session() as session:
        faults.folder(session)
        session.start_agent()
        yield session, OneWay(session, importers)


@contextlib.contextmanager
def held_at(session, driver, phase, op="offload"):
    """A client whose transaction waits for that process, which is about to answer the order."""
    holds = Held(driver.pid)
    try:
        more = ["--owner", "all"] if op == "offload" else []
        client = session.spawn([LIEN, op, *more])
        holds.until(phase, True)
        yield client
    finally:
        holds.let_go()


def put_back(client):
    equal(client.wait(30), 1, "exit status of the offload")
    said = client.said()
    check("the agent was silent for too long" in said, said)
    check("everything was put back" in said or "nothing was moved" in said, said)


def killed(phase, value):
    """The next agent is there long after the owner's threads went on."""
    with one_way() as (session, job):
        with held_at(session, job.owner if phase == "save" else job.importer, phase):
            job.begin_to_write(value)
            session.kill_agent()
        job.end_to_write()
        job.write(value + 1)
        session.start_agent()
        job.ready()
        said = session.lien("offload", "--owner", "all")
        check("`lien restore` first" in said.out + said.err, said)
        job.restore()
        job.round_trip()


@case(long=True)
def test_agent_killed_before_the_drop():
    killed("unmap", 0x21)


@case()
def test_agent_killed_before_the_unmap():
    killed("save", 0x23)


@case()
def test_restore_long_after_the_next_agent():
    """That agent starts at once, and is asked for a restore long after the lease has ended."""
    with one_way(importers=2) as (session, job):
        with held_at(session, job.importer, "unmap"):
            job.begin_to_write(0x31)
            session.kill_agent()
        session.start_agent()
        job.ready()
        job.end_to_write()
        session.kill_agent()  # what the owner lent outlives this one as well
        session.start_agent()
        job.ready()
        job.write(0x32)
        job.restore()
        job.round_trip()


@case()
def test_stranger_that_has_not_been_heard():
    """It cannot hold what this agent moves, so nothing is lent on its account."""
    with one_way() as (session, job):
        stranger = session.driver(device=0)
        stranger("make", SIZE, 0)
        session.ready(stranger.pid)
        session.kill_agent()
        stranger.process.signal(signal.SIGSTOP)
        session.start_agent()
        job.ready()
        equal(session.process(stranger.pid)["control"], "loaded", "the stranger")
        offload = ["offload", "--owner", "all", "--pid", str(job.owner.pid), "--pid", str(job.importer.pid)]
        for value in (0x13, 0x14):
            equal(session.ask(*offload)["bytes"], SIZE, "moved")
            job.restore()
            job.write(value)
        stranger.process.signal(signal.SIGCONT)


def stopped(phase, value):
    """The agent goes on where it was, and finds that the job did as well."""
    with one_way() as (session, job):
        with held_at(session, job.owner if phase == "save" else job.importer, phase) as client:
            job.begin_to_write(value)
            session.agent.signal(signal.SIGSTOP)
            wait_for("it is stopped", lambda: state_of(session.agent.pid) == "T")
        job.end_to_write()
        job.write(value + 1)
        session.agent.signal(signal.SIGCONT)
        put_back(client)
        job.check()
        job.runs()
        job.round_trip()


@case()
def test_agent_stopped_before_the_drop():
    stopped("unmap", 0x41)


@case(long=True)
def test_agent_stopped_before_the_unmap():
    stopped("save", 0x43)


def free_and_use_again(job, value):
    """The owner gives its memory back, and has other memory at the same address."""
    owner = job.owner
    owner("unmap", job.va, SIZE)
    owner("release", job.handle)
    handle = owner("create", SIZE, 0)
    owner("map", job.va, SIZE, handle)
    owner("access", job.va, SIZE, 0, 3)
    owner("fill", job.va, SIZE, value)


@case(long=True)
def test_owner_frees_what_it_lent():
    """The importer gets the memory that was shared, not what lies at its address since."""
    with one_way(importers=2) as (session, job):
        with held_at(session, job.importer, "unmap"):
            job.begin_to_write(0x51)
            session.kill_agent()
        job.end_to_write()
        free_and_use_again(job, 0x52)
        session.start_agent()
        job.ready()
        session.ask("restore")
        job.check_importers()
        equal(job.owner("check", job.va, SIZE, 0x52), 0, "wrong bytes in the owner's other memory")
        job.runs()
        for importer in job.importers:  # nobody holds it any more but they
            importer.end()
        session.forgotten(*[importer.pid for importer in job.importers])
        wait_for("the memory is free", lambda: session.used(0) == SIZE)


@case()
def test_owner_frees_while_an_import_fails():
    """The same after a restore that could not give it to the importer."""
    with one_way() as (session, job):
        importer = Faults(session, job.importer.inner_pid)
        session.ask("offload", "--owner", "all")
        importer.arm(FAIL, times=0, function="cuMemImportFromShareableHandle")
        session.refused("restore", text="cuMemImportFromShareableHandle.*nothing is lost")
        check(importer.disarm(), "no call was hit")
        job.write(0x61)  # all of the owner's is there: it goes on
        free_and_use_again(job, 0x62)
        session.kill_agent()
        session.start_agent()
        job.ready()
        session.ask("restore")
        job.check_importers()
        equal(job.owner("check", job.va, SIZE, 0x62), 0, "wrong bytes in the owner's other memory")
        job.runs()


def lend(session, job):
    """The agent is killed before the drop; the next one finds nothing of the owner's away."""
    with held_at(session, job.importer, "unmap"):
        session.kill_agent()
    session.start_agent()
    job.ready()


@case(long=True)
def test_each_call_fails_when_lent_memory_is_brought_back():
    """Once, or until the restore has failed: then the next one succeeds, with all counts right."""
    with one_way() as (session, job):
        drivers = [job.owner, job.importer]
        armed = [Faults(session, driver.inner_pid) for driver in drivers]
        counts = []
        for _ in range(3):  # a busy machine takes some more: the fewest
            lend(session, job)
            for fault in armed:
                fault.arm(COUNT)
            session.ask("restore")
            # Before the job makes calls: while the gate's probes are removed they may pass for the library's.
            counts.append([fault.log() for fault in armed if not fault.disarm()])
            job.check()
            job.runs()
        logs = [min(found, key=len) for found in zip(*counts)]
        check("cuMemExportToShareableHandle" in logs[0] and "cuMemRelease" in logs[0], logs)
        check("cuMemMap" in logs[1], logs)
        for number, nth, times in itertools.product((0, 1), range(1, 99), (1, 0)):
            if nth > len(logs[number]):
                continue
            what = "call %d of %s of process %d" % (nth, logs[number], drivers[number].pid)
            lend(session, job)
            job.write(nth + 100 * times)
            armed[number].arm(FAIL, nth, times)
            outcome = session.lien("restore")
            check(armed[number].disarm(), what, "was not made")
            check(outcome.code == 0 or "nothing is lost: `lien restore` again" in outcome.err, what, outcome)
            session.ask("restore")
            job.check()
            job.runs()
        print("   %d calls failed, once and for good" % sum(map(len, logs)))
        job.owner("unmap", job.va, SIZE)
        job.owner("release", job.handle)
        job.importer.end()
        wait_for("the memory is free", lambda: not session.used())


@case(long=True)
def test_each_call_kills_when_lent_memory_is_brought_back():
    """The other process runs on, and what it has lost is named."""
    points = [(0, nth) for nth in (1, 2)] + [(1, nth) for nth in (1, 2, 3)]
    with Session() as session:
        faults.folder(session)
        session.start_agent()
        for number, nth in points:
            job = OneWay(session)
            victim, other = [job.owner, job.importer][::-1 if number else 1]
            lend(session, job)
            fault = Faults(session, victim.inner_pid)
            fault.arm(KILL, nth)
            session.lien("restore")
            victim.process.wait()
            equal(fault.record.hit, 1, "calls hit")
            wait_for("it is seen to be gone", lambda v=victim: not session.process(v.pid))
            outcome = session.lien("restore")
            check(outcome.code == 0 or "gone for good" in outcome.err, outcome)
            equal(session.ask("restore")["outcome"], "nothing to do", "another restore")
            _, va = other("make", SIZE, 1 - number)  # it is not held
            other("fill", va, SIZE, 0x91)
            if number:
                equal(other("check", job.va, SIZE, job.value), 0, "wrong bytes in the owner")
            other.end()
            wait_for("the memory is free", lambda: not session.used())


@case(long=True)
def test_undo_that_outlasts_the_lease():
    """A process that waits for the others is not let go meanwhile, and loses nothing if an import fails."""
    with one_way(importers=2) as (session, job):
        slow, other = job.importers
        _, own = slow("make", SIZE, 1)
        slow("fill", own, SIZE, 0x71)
        job.ready()
        armed = [Faults(session, driver.inner_pid) for driver in (job.owner, slow, other)]
        armed[0].arm(FAIL, times=0, function="cuMemUnmap")  # the drop
        armed[1].arm(DELAY, times=0, function="cuMemCreate", delay_ms=1000 * (LEASE_S + 2))
        armed[2].arm(FAIL, times=0, function="cuMemImportFromShareableHandle")
        client = session.spawn([LIEN, "offload", "--owner", "all"])
        wait_for("the undo waits", lambda: armed[1].record.hit)
        job.begin_to_write(0x72)
        job.end_to_write(30)
        equal(session.used(1), SIZE, "the owner went on, and what the others had on their device is there")
        equal(client.wait(30), 1, "exit status of the offload")
        check("cuMemUnmap" in client.said() and "putting it back failed as well" in client.said(),
              client.said())
        equal(slow("check", own, SIZE, 0x71), 0, "wrong bytes in the slow one")
        check(all([fault.disarm() for fault in armed]), "no call was hit")
        job.restore()
        job.round_trip(2 * SIZE)


@case(long=True)
def test_undo_without_an_agent():
    """It is killed in the undo; a restore after the lease does the rest."""
    with one_way() as (session, job):
        owner = Faults(session, job.owner.inner_pid)
        owner.arm(FAIL, times=0, function="cuMemUnmap")
        with held_at(session, job.importer, "create"):
            owner.disarm()
            job.begin_to_write(0x75)
            session.kill_agent()
        job.end_to_write()
        session.start_agent()
        job.ready()
        job.restore()
        job.round_trip()


@case(long=True)
def test_importer_that_was_not_heard():
    """The next agent restores the owner while the importer does not say what it lacks."""
    with one_way() as (session, job):
        session.ask("offload", "--owner", "all")
        session.kill_agent()
        session.clean()  # the next one knows nothing
        job.importer.process.signal(signal.SIGSTOP)
        wait_for("it is stopped", lambda: state_of(job.importer.pid) == "T")
        session.start_agent()
        session.ready(job.owner.pid)
        session.lien("restore")
        job.importer.process.signal(signal.SIGCONT)
        job.ready()
        job.restore()


@case()
def test_importer_closes_its_sockets_in_a_restore():
    """It lives, and takes no orders for a while: what it lacks can be exported once more."""
    with one_way() as (session, job):
        session.ask("offload", "--owner", "all")
        with held_at(session, job.importer, "create", "restore") as client:
            job.importer("closeall")
            wait_for("it takes no orders", lambda: session.process(job.importer.pid)["control"] != "ready")
        equal(client.wait(20), 1, "exit status of the restore")
        check("process %d takes no orders any more" % job.importer.pid in client.said(), client.said())
        job.write(0x78)
        calls = []

        def takes_orders():  # a call starts its thread again, and is held then
            calls.append(job.importer.process.send("reserve %d 0" % SIZE))
            return session.process(job.importer.pid)["control"] == "ready"
        wait_for("it takes orders again", takes_orders, step=0.2)
        session.ask("restore")
        for _ in calls:
            check(job.importer.process.line().startswith("ok "), "it is held still")
        job.check()
        job.runs()


@case()
def test_importer_waits_for_the_bytes():
    """The owner's copies do not complete: who maps that memory must not read it yet."""
    with one_way() as (session, job):
        owner = Faults(session, job.owner.inner_pid)
        session.ask("offload", "--owner", "all")
        job.importer.process.send("check %d %d %d" % (job.there[0], SIZE, job.value))
        wait_for("it is held", lambda: session.ask("status")["held"])
        owner.arm(FAIL, times=0, function="cuStreamSynchronize")
        session.refused("restore", text="copies to the device did not complete")
        check(owner.disarm(), "no call was hit")
        equal([thread["pid"] for thread in session.ask("status")["held"]], [job.importer.pid], "held")
        session.ask("restore")
        equal(job.importer.process.line(), "ok 0", "wrong bytes in the importer")
        job.check()
        job.runs()
        job.round_trip()


@case(long=True)
def test_owner_becomes_another_program_and_nobody_hears_of_it():
    """The record of that was lost. Its pid and start time are what they were."""
    with Session(memory="2G") as session:
        session.start_agent("--ring", "1")
        job = OneWay(session)
        burst = session.spawn([LIEN, "run", "--", program("prog_burst"), "4", "100000"])
        equal(burst.line(), "ready", "prog_burst")
        session.ready(burst.pid)
        session.ask("offload", "--owner", "all", "--with-closure", "--pid", job.owner.pid)
        session.agent.signal(signal.SIGSTOP)
        try:
            burst.ask("go", 100)
            job.owner("exec-bare")
        finally:
            session.agent.signal(signal.SIGCONT)
        wait_for("it is seen to be gone", lambda: not session.process(job.owner.pid))
        outcome = session.lien("restore")
        check(outcome.code == 1 and "memory of process %d, which has ended or become another program" %
              job.owner.pid in outcome.err, outcome)
        _, va = job.importer("make", SIZE, 1)  # it is not held
        job.importer("fill", va, SIZE, 0x95)


class Nested:
    """A process that imports from two owners, whose memory goes away in two offloads."""

    def __init__(self, session):
        self.session = session
        self.first, self.second = session.driver(device=0), session.driver(device=0)
        self.user = session.driver(device=1)
        self.places = []  # (owner, its address, the user's)
        for number, owner in enumerate([self.first, self.second]):
            handle, va = owner("make", SIZE, 0)
            fd = owner("export", handle)
            self.places.append((owner, va, self.user("show", SIZE, self.user.take(owner, fd), 1)))
            owner("close", fd)
            owner("fill", va, SIZE, 0x81 + number)
        _, self.own = self.user("make", SIZE, 1)
        self.user("fill", self.own, SIZE, 0x83)
        session.ready(self.first.pid, self.second.pid, self.user.pid)

    def offload(self, *drivers):
        words = [word for driver in drivers for word in ("--pid", driver.pid)]
        return self.session.lien("offload", "--owner", "all", "--with-closure", *words)


@case()
def test_owner_dies_in_the_undo_of_the_second_offload():
    """What the first offload moved has an owner who lives, and comes back."""
    with Session() as session:
        faults.folder(session)
        session.start_agent()
        job = Nested(session)
        equal(job.offload(job.first).code, 0, "exit status of the first offload")
        user, second = Faults(session, job.user.inner_pid), Faults(session, job.second.inner_pid)
        user.arm(FAIL, nth=2, times=2, function="cuMemUnmap")  # the drop of its own, after the import
        second.arm(KILL, function="cuMemCreate")
        outcome = job.offload(job.second, job.user)
        equal(user.disarm(), 2, "calls hit")
        check(outcome.code == 1 and "cuMemUnmap" in outcome.err, outcome)
        check("memory of process %d, which has ended" % job.second.pid in outcome.err,
              outcome)
        wait_for("it is seen to be gone", lambda: not session.process(job.second.pid))
        session.ask("restore")
        _, va, there = job.places[0]
        equal(job.first("check", va, SIZE, 0x81), 0, "wrong bytes in the first owner")
        equal(job.user("check", there, SIZE, 0x81), 0, "wrong bytes of the first owner in the importer")
        equal(job.user("check", job.own, SIZE, 0x83), 0, "wrong bytes of the importer's own")
        equal(session.ask("restore")["outcome"], "nothing to do", "another restore")


@case()
def test_one_owner_is_dead_and_one_cannot_export():
    """The dead owner's memory is given up, whatever else is missing; the other's is not."""
    with Session() as session:
        faults.folder(session)
        session.start_agent()
        job = Nested(session)
        first = Faults(session, job.first.inner_pid)
        equal(job.offload(job.first, job.second).code, 0, "exit status of the offload")
        job.second.end()
        wait_for("it is seen to be gone", lambda: not session.process(job.second.pid))
        first.arm(FAIL, times=0, function="cuMemExportToShareableHandle")
        outcome = session.lien("restore")
        check(first.disarm(), "no call was hit")
        check(outcome.code == 1 and "cuMemExportToShareableHandle" in outcome.err, outcome)
        check("memory of process %d, which has ended" % job.second.pid in outcome.err,
              outcome)
        session.ask("restore")
        equal(job.user("check", job.places[0][2], SIZE, 0x81), 0, "wrong bytes of the first owner")
        equal(session.ask("restore")["outcome"], "nothing to do", "another restore")


@case()
def test_file_where_an_exported_one_was():
    """The kernel gives the address of a closed file to the next one, here to that by which an importer has
    the memory: it is no descriptor that is still open."""
    with one_way() as (session, job):
        owner, importer = job.owner, job.importer
        importer("unmap", job.there[0], SIZE)
        importer("release", job.taken[0])
        for last in [False] * 8 + [True]:
            fds = [owner("export", job.handle) for _ in range(2)]
            taken = [importer("getfd", owner.pid, fd) for fd in fds]
            for fd in fds:
                owner("close", fd)
            importer("release", importer("import", taken[0]))
            importer("close", taken[0])
            handle = importer("import", taken[1])
            importer("close", taken[1])
            if not last:
                importer("release", handle)
        job.there = [importer("show", SIZE, handle, 1)]
        job.round_trip()


if __name__ == "__main__":
    sys.exit(main())
