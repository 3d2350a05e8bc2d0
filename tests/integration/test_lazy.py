#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Restores in parts (lien restore --lazy, --on-use restore): a communicator is used before the rest is back.

It asserts the order, never a time: copies of a rank are held back until the test lets them go.
See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import contextlib
import json
import os
import random
import signal
import sys

import faults
from faults import COUNT, DELAY, FAIL, Faults
from lien_test import (
    GUARD, LIEN, ROOT, SEED, Session, at_a_moment, case, check, equal, main, stays, wait_for)
from nccl_ranks import Caller, away, check_values, communicator, each, groups_of, offloaded, ranks_of, start

sys.path.append(os.path.join(ROOT, "tools", "python"))
import lien  # noqa: E402

COPY = "cuMemcpyHtoDAsync_v2"
LONG_MS = 60000  # at most: a test that has failed ends


class Job:
    """Two ranks, some communicators; copies to one rank's device can be held back."""

    def __init__(self, session, comms=3, **environment):
        faults.folder(session)
        start(session)
        self.session = session
        self.ranks = ranks_of(session, comms=comms, **environment)
        self.numbers = list(range(comms))
        check_values(self.ranks, *self.numbers)
        self.names = groups_of(session, self.ranks[0], comms)
        self.faults = [Faults(session, rank.pid) for rank in self.ranks]

    def copies(self):
        """That bring back a communicator, in the first rank; they all have as much."""
        self.session.ask("offload")
        self.faults[0].arm(COUNT, function=COPY)
        self.session.ask("restore", "--comm", self.names[0])
        count = self.faults[0].record.calls
        self.faults[0].disarm()
        self.session.ask("restore")
        check(count > 0, "no copies")
        return count

    @contextlib.contextmanager
    def held_back(self, part, copies):
        """No copies arrive in the first rank from this part on, from 0, if each is of one communicator."""
        self.faults[0].arm(DELAY, nth=part * copies + 1, times=0, function=COPY, delay_ms=LONG_MS)
        yield self.faults[0]
        self.faults[0].disarm()

    def lazily(self, *args):
        """Begins it."""
        return self.session.spawn([LIEN, "restore", "--lazy", "--json=line", *args])

    def result(self, process, limit=GUARD):
        equal(process.wait(limit), 0, "exit status; %s" % process.said())
        return json.loads(process.line())

    def held(self):
        return sorted(entry["pid"] for entry in self.session.ask("status")["held"])

    def restoring(self):
        return bool(self.session.ask("status")["transaction"])

    def in_thread(self, number, value=5):
        """Each rank waits in a collective."""
        before = len(self.held())
        each(self.ranks, "in_thread('work%d', 'apart(%d, %d)')" % (number, number, value))
        wait_for("threads that are held", lambda: len(self.held()) == before + 2)

    def joined(self, number, value=5):
        equal(each(self.ranks, "joined('work%d')" % number), [2 * value] * 2, "values of communicator %d" % number)

    def all_right(self):
        equal(away(self.session, *self.ranks), 0, "away")
        equal(self.held(), [], "threads that are held")
        check_values(self.ranks, *self.numbers)


@case(long=True)
def test_used_before_the_rest():
    """A collective on one communicator runs while the others' copies are under way; those wait."""
    with Session() as session:
        job = Job(session)
        copies = job.copies()
        moved = session.ask("offload")["bytes"]
        with job.held_back(1, copies) as fault:
            process = job.lazily()
            wait_for("a copy of the second part", lambda: fault.record.hit)
            equal(len(offloaded(session, *job.ranks)), 2, "groups that are away")
            there, = set(job.names) - set(offloaded(session, *job.ranks))
            number = job.names.index(there)
            for _ in range(3):
                check_values(job.ranks, number)
            new = communicator(job.ranks)
            check_values(job.ranks, new)
            others = [other for other in job.numbers if other != number]
            for other in others:
                job.in_thread(other)
            stays("held", lambda: len(job.held()) == 4)
            check_values(job.ranks, number)
            check(process.popen.poll() is None and job.restoring(), "the restore has ended")
        result = job.result(process)
        for other in others:
            job.joined(other)
        equal((result["outcome"], result["bytes"], result["lazy"]["undivided"]), ("done", moved, None), "result")
        check(result["lazy"]["parts"] == 3 and 0 < result["lazy"]["first_ms"] < result["ms"], result)
        job.all_right()


@case(long=True)
def test_the_order_of_need():
    """Those for which threads wait come first, the longest wait first."""
    with Session() as session:
        job = Job(session, comms=4)
        copies = job.copies()
        for first, second in ((3, 1), (0, 2)):
            session.ask("offload")
            job.in_thread(first)
            job.in_thread(second)
            for part, number in enumerate((first, second)):
                if part:
                    continue
                with job.held_back(1, copies) as fault:
                    process = job.lazily()
                    job.joined(number)
                    wait_for("a copy of the second part", lambda: fault.record.hit)
                    equal(offloaded(session, *job.ranks),
                          sorted(name for name in job.names if name != job.names[number]), "away")
                    equal(len(job.held()), 2, "threads that wait for the second")
            equal(job.result(process)["lazy"]["undivided"], None, "result")
            job.joined(second)
            job.all_right()


@case()
def test_one_that_is_needed_meanwhile():
    """A thread that begins to wait while another part comes is served next."""
    with Session() as session:
        job = Job(session, comms=4)
        copies = job.copies()
        session.ask("offload")
        job.in_thread(1)
        with job.held_back(1, copies) as fault:
            process = job.lazily()
            job.joined(1)
            wait_for("a copy of the second part", lambda: fault.record.hit)
            last = max(number for number in job.numbers if number != 1)
            job.in_thread(last)
            fault.record.nth = 3 * copies + 1  # lets the second part arrive, and the third
            job.joined(last)
            wait_for("a copy of the last part", lambda: fault.record.calls > 3 * copies)
            # The other rank may be in the one before.
            wait_for("one group is away", lambda: len(offloaded(session, *job.ranks)) == 1)
        job.result(process)
        job.all_right()


@case()
def test_on_use():
    """What a thread waits for comes first, and the rest follows by itself; but only what the offload was for."""
    with Session() as session:
        job = Job(session)
        copies = job.copies()
        for number in (2, 0):
            session.ask("offload", "--on-use", "restore")
            with job.held_back(1, copies) as fault:
                each(job.ranks, "in_thread('work%d', 'apart(%d, 5)')" % (number, number))
                job.joined(number)
                wait_for("a copy of the second part", lambda: fault.record.hit)
                equal(len(offloaded(session, *job.ranks)), 2, "groups that are away")
                check_values(job.ranks, number)
                check(job.restoring(), "the restore has ended")
            wait_for("the rest", lambda: not away(session, *job.ranks))
            wait_for("the end", lambda: not job.restoring())
            job.all_right()
        for name in job.names[:2]:
            session.ask("offload", "--on-use", "restore", "--comm", name)
        check_values(job.ranks, 1)
        equal(offloaded(session, *job.ranks), [job.names[0]], "away")
        session.ask("restore")
        job.all_right()


@case()
def test_chosen():
    """Only of chosen communicators; from Python, too."""
    with Session() as session:
        job = Job(session)
        session.ask("offload")
        result = session.ask("restore", "--lazy", "--comm", job.names[0], "--comm", job.names[2])
        equal(result["lazy"]["parts"], 2, "parts")
        equal(offloaded(session, *job.ranks), [job.names[1]], "away")
        check_values(job.ranks, 0, 2)
        equal(session.ask("restore", "--lazy", "--comm", job.names[1])["lazy"]["parts"], 1, "parts of one")
        equal(session.ask("restore", "--lazy")["outcome"], "nothing to do", "the same again")
        job.all_right()
        moved = session.ask("offload")["bytes"]
        equal(lien.restore(lazy=True, socket=session.socket).bytes, moved, "from Python")
        job.all_right()
        equal(session.ask("restore")["lazy"] if away(session, *job.ranks) else None, None, "not lazily")
        session.refused("restore", "--lazy", "--tag", "x", code=2, text="cannot be combined")
        answer = session.request('{"op": "restore", "lazy": true, "tags": ["x"]}\n')
        check("excludes tags" in answer, answer)


@case(long=True)
def test_relatives_come_together():
    """Communicators that were split from each other are one part: the gate opens for all of them."""
    with Session() as session:
        job = Job(session, comms=2)
        equal(each(job.ranks, "split(0, 0, {})"), [2, 2], "split")
        equal(each(job.ranks, "split(2, 0, {})"), [3, 3], "split of that")
        check_values(job.ranks, 2, 3)
        names = groups_of(session, job.ranks[0], 4)
        session.ask("offload")
        equal(offloaded(session, *job.ranks), sorted(names), "away")
        each(job.ranks, "in_thread('work', 'apart(3, 5)')")
        wait_for("threads that are held", lambda: len(job.held()) == 2)
        job.faults[0].arm(DELAY, nth=1, times=0, function=COPY, delay_ms=LONG_MS)
        process = job.lazily()
        wait_for("a copy", lambda: job.faults[0].record.hit)
        job.faults[0].disarm()
        result = job.result(process)
        equal(each(job.ranks, "joined('work')"), [10, 10], "values")
        equal(result["lazy"]["parts"], 2, "parts")
        job.numbers = [0, 1, 2, 3]
        job.all_right()


@case(long=True)
def test_where_communicators_cannot_be_told_apart():
    """All of it comes at once, and the result says why."""
    with Session() as session:
        job = Job(session, comms=2)
        session.ask("offload")
        session.stop_agent()
        session.start_agent()
        session.ready(*(rank.pid for rank in job.ranks))
        result = session.ask("restore", "--lazy")
        check("an earlier agent" in result["lazy"]["undivided"] and result["lazy"]["parts"] == 1, result["lazy"])
        job.all_right()
        session.ask("offload", "--on-use", "ignore")
        result = session.ask("restore", "--lazy")
        check("are not held" in result["lazy"]["undivided"], result["lazy"])
        job.all_right()
        said = session.lien("offload").out
        said = session.lien("restore", "--lazy").out
        check("parts; the first could be used after" in said, said)
    for environment, args, why in (({"NCCL_CUMEM_ENABLE": "0", "LIEN_PLAIN": None}, [], "memory is away"),
                                   ({"LIEN_PLAIN": None}, ["--owner", "all"], "memory is away")):
        with Session() as session:
            job = Job(session, comms=2, **environment)
            session.ask("offload", *args)
            result = session.ask("restore", "--lazy")
            check(why in (result["lazy"]["undivided"] or ""), "%s: %s" % (why, result["lazy"]))
            equal(result["lazy"]["parts"], 1, why)
            job.all_right()
            session.ask("offload", *args)
            said = session.lien("restore", "--lazy").out
            check("all came at once: process" in said and why.split()[0] in said, said)
            job.all_right()


@case()
def test_failures():
    """Any call fails in any part: what is left comes back at once, or stays for the next restore."""
    with Session() as session:
        job = Job(session)
        copies = job.copies()
        fault = job.faults[0]
        for function, nth in ((COPY, 1), (COPY, copies + 1), (COPY, 2 * copies + 1), ("cuMemCreate", copies + 1),
                              ("cuMemMap", copies + 1), ("cuMemSetAccess", copies + 1),
                              ("cuMemExportToShareableHandle", 2)):
            session.ask("offload")
            fault.arm(FAIL, nth=nth, times=3, function=function)  # once more than it is tried
            outcome = session.lien("restore", "--lazy", "--json")
            check(fault.disarm(), "%s has not been called" % function)
            if outcome.code:
                check("process %d" % job.ranks[0].pid in outcome.err, outcome.text())
                session.ask("restore")
            job.all_right()
            session.ask("offload")
            fault.arm(FAIL, nth=nth, times=0, function=function)
            outcome = session.lien("restore", "--lazy", "--json")
            check(fault.disarm(), "%s has not been called" % function)
            check(outcome.code, "%s: it has succeeded" % function)
            check("process %d" % job.ranks[0].pid in outcome.err, outcome.text())
            session.ask("restore")
            job.all_right()


@case()
def test_the_agent_dies():
    """In the middle of a part: what is back can be used, and the next agent brings the rest."""
    with Session() as session:
        job = Job(session)
        copies = job.copies()
        for part in (0, 1):
            session.ask("offload")
            job.in_thread(1)
            with job.held_back(part, copies) as fault:
                process = job.lazily()
                wait_for("a copy of part %d" % part, lambda: fault.record.hit)
                if part:
                    job.joined(1)
                session.kill_agent()
                check(process.wait(20), "the command has succeeded")
                if part:
                    check_values(job.ranks, 1)
            session.start_agent()
            session.ready(*(rank.pid for rank in job.ranks))
            session.ask("restore")
            if not part:
                job.joined(1)
            job.all_right()


def a_rank_dies(part):
    """In the first part (0) or in the second one: the others get back all that is still somewhere."""
    with Session(devices=4) as session:
        faults.folder(session)
        start(session)
        ranks = [Caller(session, number) for number in range(4)]
        for pair in (ranks[:2], ranks[2:]):
            communicator(pair)
            communicator(pair)
            check_values(pair, 0, 1)
        session.ready(*(rank.pid for rank in ranks))
        fault = Faults(session, ranks[0].pid)
        session.ask("offload")
        each(ranks[:2], "in_thread('work', 'apart(1, 5)')")
        wait_for("threads that are held", lambda: len(session.ask("status")["held"]) == 2)
        fault.arm(COUNT, function=COPY)
        session.ask("restore", "--comm", groups_of(session, ranks[0], 2)[1])
        copies = fault.record.calls
        equal(each(ranks[:2], "joined('work')"), [10, 10], "values")
        session.ask("offload")
        each(ranks[:2], "in_thread('work', 'apart(1, 5)')")
        wait_for("threads that are held", lambda: len(session.ask("status")["held"]) == 2)
        fault.arm(DELAY, nth=part * copies + 1, times=0, function=COPY, delay_ms=LONG_MS)
        process = session.spawn([LIEN, "restore", "--lazy", "--json=line"])
        wait_for("a copy of part %d" % part, lambda: fault.record.hit)
        if part:
            equal(each(ranks[:2], "joined('work')"), [10, 10], "values of the first part")
        ranks[0].process.signal(signal.SIGKILL)
        check(process.wait(30), "the restore has succeeded")
        check("process %d" % ranks[0].pid in process.said(), process.said())
        check_values(ranks[2:], 0, 1)
        session.lien("restore")
        equal(away(session, *ranks[1:]), 0, "away in the others")
        check_values(ranks[2:], 0, 1)


@case()
def test_a_rank_dies():
    a_rank_dies(1)


@case(long=True)
def test_a_rank_dies_in_the_first_part():
    a_rank_dies(0)


@case(long=True)
def test_at_random():
    """Whatever fails, at any moment, whoever waits: all memory comes back, and no value is wrong."""
    dice = random.Random(SEED)
    functions = [COPY, "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemExportToShareableHandle",
                 "cuMemImportFromShareableHandle", "cuStreamSynchronize", ""]
    with Session() as session:
        job = Job(session, comms=5)
        parts = 0
        for step in range(30):
            chosen = dice.sample(job.names, dice.randint(1, 5))
            use = dice.random() < 0.3
            session.ask("offload", "--on-use", "restore" if use else "wait",
                        *(word for name in chosen for word in ("--comm", name)))
            fault, kind = dice.choice(job.faults), dice.random()
            if kind < 0.4:
                fault.arm(FAIL, nth=dice.randint(1, 40), times=dice.choice([1, 2, 3, 10]), function=dice.choice(functions))
            elif kind < 0.6:
                fault.arm(DELAY, nth=dice.randint(1, 40), times=3, function=dice.choice(functions), delay_ms=20)
            used = dice.sample(job.numbers, dice.randint(0, 2))
            for number in used:
                each(job.ranks, "in_thread('work%d', 'apart(%d, %d)')" % (number, number, step))
            process = job.lazily(*(("--comm", dice.choice(chosen)) if dice.random() < 0.2 else ()))
            if dice.random() < 0.2:
                at_a_moment(dice, 0.05)
                session.kill_agent()
                process.wait(60)
                session.start_agent()
                session.ready(*(rank.pid for rank in job.ranks))
            if process.wait(60) == 0:
                parts += (json.loads(process.line()).get("lazy") or {"parts": 1})["parts"] > 1
            fault.disarm()
            wait_for("all of it is back", lambda: session.lien("restore", "--json").code == 0
                     and not away(session, *job.ranks))
            for number in used:
                equal(each(job.ranks, "joined('work%d')" % number), [2 * step] * 2, "values, step %d" % step)
            job.all_right()
        check(parts > 3, "only %d restores had parts" % parts)


if __name__ == "__main__":
    sys.exit(main())
