#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The agent, a rank, all ranks or the client are killed in every phase of an offload and a restore;
another agent follows. No byte is lost that had an owner, and the job goes on.

A phase is held by stopping a rank's control thread (held.py). See lien_test.py for what else this needs.
"""

import json
import os
import signal
import sys

import faults
from faults import DELAY, Faults
from held import Held
from lien_test import (
    LIEN, MIB, Session, alive, case, check, equal, main, program, wait_for)

OFFLOAD = ["stage", "drain", "check", "save", "unmap", "drop"]
RESTORE = ["list", "create", "export", "import", "finish"]


class Pair:
    """Two ranks with memory of their own, and some that each has exported to the other."""

    def __init__(self, session):
        self.session = session
        self.ranks = [session.driver(device=0), session.driver(device=1)]
        self.places = []  # of a rank: (address, bytes, value, owner)
        for number, rank in enumerate(self.ranks):
            own = rank("make", 2 * MIB, number)[1]
            handle, shared = rank("make", 4 * MIB, number)
            other = self.ranks[1 - number]
            fd = rank("export", handle)
            there = other("show", 4 * MIB, other.take(rank, fd), 1 - number)
            rank("close", fd)
            self.places += [(rank, own, 2 * MIB, 0x10 + number, rank),
                            (rank, shared, 4 * MIB, 0x20 + number, rank),
                            (other, there, 4 * MIB, 0x20 + number, rank)]
            rank("fill", own, 2 * MIB, 0x10 + number)
            rank("fill", shared, 4 * MIB, 0x20 + number)
        self.ready()

    @property
    def pids(self):
        return [rank.pid for rank in self.ranks]

    def ready(self, *dead):
        self.session.ready(*[pid for pid in self.pids if pid not in dead])

    def verify(self, *dead):
        """What is owned by those who live."""
        for rank, va, size, value, owner in self.places:
            if rank.pid not in dead and owner.pid not in dead:
                equal(rank("check", va, size, value), 0, "wrong bytes at %#x of %d" % (
                    va, rank.pid))

    def end(self):
        for rank in self.ranks:
            rank.end()
        self.session.forgotten(*self.pids)


def transfer(session, kind):
    more = ["--owner", "all"] if kind == "offload" else []
    return session.spawn([LIEN, kind, *more])


def at_phase(session, pair, phase, answered, rank=1):
    """A client whose offload or restore is held in that phase, and what holds it."""
    if phase in RESTORE:
        session.ask("offload", "--owner", "all")
    held = Held(pair.pids[rank])
    try:
        client = transfer(session, "restore" if phase in RESTORE else "offload")
        held.until(phase, answered)
        shown = session.ask("status")["transaction"]
        check(shown, "no transaction is shown")
        if phase not in RESTORE:  # whose phases are each process's own
            equal(shown["phase"], phase, "the phase that status shows")
    except BaseException:
        held.let_go()
        raise
    return client, held


def whole_again(session, pair, *dead):
    """A restore puts back whatever is left of it."""
    pair.ready(*dead)
    outcome = session.lien("restore")
    check(outcome.code == 0 or (dead and "is gone for good" in outcome.err), outcome)
    equal(session.ask("restore")["outcome"], "nothing to do", "a second restore")
    pair.verify(*dead)
    for pid in pair.pids:
        if pid not in dead:
            process = session.process(pid)
            equal((process["state"], process["offloaded_bytes"]), ("running", 0), "state")


def agent_killed(phases):
    with Session() as session:
        session.start_agent()
        pair = Pair(session)
        used = session.used()
        for number, phase in enumerate(phases):
            for answered in (False, True):
                client, held = at_phase(session, pair, phase, answered, number % 2)
                try:
                    session.kill_agent()
                finally:
                    held.let_go()
                equal(client.wait(10), 1, "exit status of the client")
                session.start_agent()
                pair.ready()
                shown = [session.process(pid) for pid in pair.pids]
                if phase == "drop" and answered or phase == "list":
                    check(any(p["offloaded_bytes"] for p in shown), "%s: not shown: %s" % (
                        phase, shown))
                if phase in ("stage", "drain", "check", "save"):
                    equal([p["state"] for p in shown], ["running"] * 2, "states")
                whole_again(session, pair)
                equal(session.used(), used, "device memory in use after %s" % phase)
        equal(session.ask("offload", "--owner", "all")["bytes"], 12 * MIB, "moved at the end")
        whole_again(session, pair)


@case(long=True)
def test_agent_killed_in_each_phase_of_an_offload():
    agent_killed(OFFLOAD)


@case(long=True)
def test_agent_killed_in_each_phase_of_a_restore():
    agent_killed(RESTORE)


@case()
def test_rank_killed_in_each_phase():
    """The one that is held, or the other one: in turn."""
    with Session() as session:
        session.start_agent()
        for number, phase in enumerate(OFFLOAD + RESTORE):
            pair = Pair(session)
            client, held = at_phase(session, pair, phase, number % 3 == 0)
            victim = pair.ranks[1 - number % 2]
            try:
                victim.process.signal(signal.SIGKILL)
                wait_for("it is seen to be gone", lambda v=victim: not alive(v.pid) or v.pid == held.pid)
            finally:
                held.let_go()
            client.wait(20)
            wait_for("the transaction ends", lambda: session.ask("status")["transaction"] is None)
            wait_for("it is forgotten", lambda v=victim: not session.process(v.pid))
            whole_again(session, pair, victim.pid)
            pair.end()
            wait_for("no device memory is in use after %s" % phase, lambda: not session.used())


@case(long=True)
def test_all_ranks_killed_in_each_phase():
    with Session() as session:
        session.start_agent()
        for number, phase in enumerate(OFFLOAD + RESTORE):
            pair = Pair(session)
            client, held = at_phase(session, pair, phase, number % 2 == 0)
            try:
                for rank in pair.ranks:
                    rank.process.signal(signal.SIGKILL)
            finally:
                held.let_go()
            client.wait(20)
            wait_for("the transaction ends", lambda: session.ask("status")["transaction"] is None)
            pair.end()
            wait_for("no device memory is in use after %s" % phase, lambda: not session.used())
            equal(session.ask("restore")["outcome"], "nothing to do", "restore")


@case()
def test_client_killed_in_each_phase():
    with Session() as session:
        session.start_agent()
        pair = Pair(session)
        used = session.used()
        for number, phase in enumerate(OFFLOAD + RESTORE):
            client, held = at_phase(session, pair, phase, number % 2 == 0)
            client.signal(signal.SIGKILL)
            client.wait()
            held.let_go()
            wait_for("the transaction ends", lambda: session.ask("status")["transaction"] is None)
            whole_again(session, pair)
            equal(session.used(), used, "device memory in use after %s" % phase)


def runs(pid):
    """Which program a process runs; None in the midst of exec()."""
    try:
        return os.readlink("/proc/%d/exe" % pid)
    except FileNotFoundError:
        return None


@case()
def test_owner_starts_another_program():
    """exec keeps the process's number and start time; what the old program had is gone all the same.
    Its importers are told so, and get everything else back, before an agent's end and after it."""
    for program_name, agent_ends in ((program("prog_driver"), False), ("/bin/cat", True)):
        with Session(devices=1) as session:
            session.start_agent()
            owner, importer = session.driver(), session.driver()
            handle, _ = owner("make", 2 * MIB, 0)
            _, own = importer("make", 2 * MIB, 0)
            importer("fill", own, 2 * MIB, 7)
            shared = owner("export", handle)
            importer("show", 2 * MIB, importer.take(owner, shared), 0)
            owner("close", shared)
            session.ready(owner.pid, importer.pid)
            equal(session.ask("offload", "--owner", "all")["bytes"], 4 * MIB, "moved")
            owner.process.send("become " + program_name)
            wait_for("it is another program", lambda: runs(owner.pid) == os.path.realpath(program_name))
            if program_name != "/bin/cat":
                check((owner.process.line() or "").startswith("ready"), "no other program")
                owner("init", 0)
                owner("make", 2 * MIB, 0)
                session.ready(owner.pid)
            if agent_ends:
                session.kill_agent()
                session.start_agent()
                session.ready(importer.pid)
            said = session.lien("restore")
            check("memory of process %d" % owner.pid in said.err and
                  "is gone for good" in said.err, said)
            equal(importer("check", own, 2 * MIB, 7), 0, "wrong bytes")
            equal(session.process(importer.pid)["state"], "running", "the importer")
            session.ask("offload", "--owner", "all")
            session.ask("restore")
            equal(importer("check", own, 2 * MIB, 7), 0, "wrong bytes")


@case(long=True)
def test_owner_becomes_another_program_in_a_restore():
    """What was done in that restore was not done to the program that has the pid since, which has the
    control library, too: no later restore waits for it, or asks it for anything."""
    with Session(devices=1) as session:
        faults.folder(session)
        session.start_agent()
        owner, importer, other = [session.driver() for _ in range(3)]
        handle, _ = owner("make", 2 * MIB, 0)
        shared = owner("export", handle)
        importer("show", 2 * MIB, importer.take(owner, shared), 0)
        owner("close", shared)
        _, va = other("make", 2 * MIB, 0)
        other("fill", va, 2 * MIB, 7)
        session.ready(owner.pid, importer.pid, other.pid)
        equal(session.ask("offload", "--owner", "all")["bytes"], 4 * MIB, "moved")
        slow = [Faults(session, driver.inner_pid) for driver in (owner, other)]
        for fault in slow:
            fault.arm(DELAY, function="cuMemCreate", delay_ms=3000)
        restore = session.spawn([LIEN, "restore"])
        wait_for("both create memory", lambda: all(fault.record.hit for fault in slow))
        owner("exec")

        def is_another():
            with open("/proc/%d/comm" % owner.pid) as comm, open("/proc/%d/maps" % owner.pid) as maps:
                return comm.read() == "cat\n" and "liblien-control" in maps.read()
        wait_for("it is another program", is_another)
        check(alive(restore.pid), "the restore has ended before: %s" % restore.said())
        equal(restore.wait(30), 1, "exit status")
        check("process %d ended in `create`" % owner.pid in restore.said(), restore.said())
        equal(other("check", va, 2 * MIB, 7), 0, "wrong bytes")
        again = session.lien("restore")
        equal(again.code, 0, "another restore: %s" % again.err)


def another_build(session):
    """What the agent left was left by one of another build."""
    path = session.socket + ".state"
    with open(path) as file:
        state = json.load(file)
    state["build"] = "another"
    with open(path, "w") as file:
        json.dump(state, file)


@case(long=True)
def test_upgrade():
    """SIGTERM and another agent: under a job that runs, one that is offloaded, and in the middle."""
    with Session() as session:
        session.start_agent()
        pair = Pair(session)
        session.stop_agent()
        another_build(session)
        session.start_agent()
        pair.ready()
        equal(session.ask("offload", "--owner", "all")["bytes"], 12 * MIB, "offload")
        session.stop_agent()
        another_build(session)
        session.start_agent()
        pair.ready()
        equal([session.process(pid)["state"] for pid in pair.pids], ["offloaded"] * 2, "states")
        whole_again(session, pair)
        for phase in ("save", "drop", "create", "import"):
            client, held = at_phase(session, pair, phase, False)
            session.agent.signal(signal.SIGTERM)
            held.let_go()
            equal(client.wait(10), 0, "exit status of the client: it goes to its end")
            equal(session.agent.wait(10), 0, "exit status of the agent")
            session.agent = None
            session.start_agent()
            whole_again(session, pair)


if __name__ == "__main__":
    sys.exit(main())
