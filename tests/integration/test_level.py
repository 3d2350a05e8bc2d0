#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A rank that is far behind the others comes level with them at full speed (agent/targets/targets.h):
nobody asks the agent for each of its calls. See lien_test.py for what this needs.
"""

import contextlib
import ctypes
import json
import sys
import time

from lag_ranks import spawned
from lien_test import LIEN, MIB, Session, brief, case, check, equal, main, wait_for
from nccl_ranks import each, ranks_of, start
from train_job import SYNC

AHEAD, MORE, LATE, STEPS = 60, 40, 32, 600
SYS_TGKILL = 234


def pair(session):
    ranks = spawned(session, LIEN, "run", "--")
    session.ready(*[rank.pid for rank in ranks])
    return ranks


@contextlib.contextmanager
def watched():
    """Both ranks, by an agent that was there first."""
    with Session(devices=2, memory="64M") as session:
        session.start_agent("--library", SYNC)
        yield session, pair(session)


def one_is_refused(ranks):
    ranks[0].send("refused 1")
    equal(ranks[0].line(20), "refused", "rank 0: " + ranks[0].said())


def waits_for_the_other(pid):
    """And not for its next command."""
    with open("/proc/%d/syscall" % pid) as file:
        return file.read().split()[0] not in ("0", "running")


def status_of(pid, field):
    with open("/proc/%d/status" % pid) as file:
        found = [line for line in file if line.startswith(field)]
    return int(found[0].split()[1], 16)


def phase(session):
    transaction = session.ask("status")["transaction"]
    return transaction and transaction["phase"]


def offload_while_behind(session, ranks, *options):
    """The offload's result: rank 1 begins nothing until it is under way, and then more than it must."""
    ranks[0].send("step %d" % AHEAD)
    equal(ranks[0].line(20), "stepped", "rank 0")
    offload = session.spawn([LIEN, "offload", "--json", "--timeout", "30000", *options])
    wait_for("it is brought to rest", lambda: phase(session) == "drain")
    ranks[1].send("step %d" % (AHEAD + MORE))
    text = "".join(iter(lambda: offload.line(40), None))
    equal(offload.wait(20), 0, "the offload: " + offload.said())
    return json.loads(text)


def go_on(session, ranks):
    """Both do the same number of steps in the end."""
    session.ask("restore")
    equal(ranks[1].line(20), "stepped", "rank 1")
    ranks[0].send("step %d" % MORE)
    equal(ranks[0].line(20), "stepped", "rank 0")
    for rank in ranks:
        rank.send("finish")
    equal([rank.line(20) for rank in ranks], ["finished 0"] * 2, "both, and the sums are right")


def begun(session):
    """Collectives of each rank, including one that is held."""
    return [comm["calls"].get("ncclAllReduce", 0) for comm in session.ask("comms")["communicators"]]


@case()
def test_at_full_speed():
    """Of about 120 calls in which it might be held, it is let into a few, one at a time."""
    with watched() as (session, ranks):
        total = 0
        for _ in range(3):
            total += AHEAD
            result = offload_while_behind(session, ranks, "--owner", "all")
            check(result["bytes"] >= 4 * MIB, "bytes: %s" % result)
            check(0 < result["gate_ms"] < result["rest_ms"] <= result["ms"], "at rest: %s" % result)
            equal(result["guesses"], 0, "guesses: all is counted")
            check(result["let_in"] <= 12, "let in one at a time: %s" % result)
            # Rank 1 is as far as the other, and perhaps held before the next.
            equal([calls in (total, total + number) for number, calls in enumerate(begun(session))],
                  [True] * 2, "both have begun %d: %s" % (total, begun(session)))
            total += MORE
            go_on(session, ranks)


def attached(session):
    """Ranks that have run for a while before there was an agent."""
    ranks = spawned(session, NCCL_NVLS_ENABLE="0")
    for rank in ranks:
        rank.send("step 5")
    for rank in ranks:
        equal(rank.line(20), "stepped", "a rank")
    session.start_agent("--library", SYNC)
    session.ask("attach", "--all", limit=60)
    session.ready(*[rank.pid for rank in ranks])
    return ranks


@case()
def test_late_and_not_counted():
    """In an attached job nobody knows who is behind: a rank that comes when all is already held still goes on to its
    collectives at full speed, not one memset at a time."""
    with Session(devices=2, memory="64M") as session:
        ranks = attached(session)
        ranks[0].send("step %d" % LATE)
        equal(ranks[0].line(20), "stepped", "rank 0")
        offload = session.spawn([LIEN, "offload", "--json", "--owner", "all", "--timeout", "30000"])
        wait_for("it is brought to rest", lambda: phase(session) == "drain")
        time.sleep(0.3)  # all is held by now
        ranks[1].send("step %d" % LATE)
        result = json.loads("".join(iter(lambda: offload.line(40), None)))
        equal(offload.wait(20), 0, "the offload: " + offload.said())
        # Its collectives on suspicion, one at a time. The memsets before them are held once or twice.
        check(LATE // 2 < result["let_in"] <= LATE + LATE // 4, "let in: %s" % result)
        session.ask("restore")
        equal(ranks[1].line(20), "stepped", "rank 1")
        for rank in ranks:
            rank.send("finish")
        equal([rank.line(20) for rank in ranks], ["finished 0"] * 2, "both, and the sums are right")


@case()
def test_a_refused_call():
    """A call that NCCL refuses is counted, and no other rank makes it: all counts of the rank are one too high, and its
    peer is let in one call too far each time."""
    with watched() as (session, ranks):
        one_is_refused(ranks)
        for rank in ranks:
            rank.send("groups 1000000")
        for _ in range(2):
            result = session.ask("offload", "--timeout", "6000", limit=60)
            equal(result["outcome"], "done", result)
            session.ask("restore")


@case(long=True)
def test_a_refused_call_and_nobody_waits():
    """The same where ranks do not wait for what they have begun: by their counts both are level, all are held, and
    one device is busy with a collective that the other rank has yet to make."""
    with watched() as (session, ranks):
        one_is_refused(ranks)
        for rank in ranks:
            rank.send("captures 1")  # devices are asked so that nobody is kept from launching
        equal([rank.line(20) for rank in ranks], ["captured"] * 2, "both")
        for _ in range(2):
            ranks[1].send("queue %d" % AHEAD)
            equal(ranks[1].line(20), "queued", "rank 1")
            offload = session.spawn([LIEN, "offload", "--json", "--timeout", "8000"])
            wait_for("it is brought to rest", lambda: phase(session) == "drain")
            ranks[0].send("queue %d" % (AHEAD + MORE))
            text = "".join(iter(lambda: offload.line(40), None))
            equal(offload.wait(20), 0, "the offload: %s; %s" % (text, offload.said()))
            session.ask("restore")
            equal(ranks[0].line(20), "queued", "rank 0")
            ranks[1].send("queue %d" % MORE)
            equal(ranks[1].line(20), "queued", "rank 1")
        for rank in ranks:
            rank.send("groups 1")
        equal([rank.line(20) for rank in ranks], ["grouped"] * 2, "both")


@case(long=True)
def test_a_refused_call_of_each():
    """By their counts both ranks are level, and each waits for a thread of the other's that is held. An offload may fail.
    The job goes on: asking a device keeps nobody from launching."""
    with Session(devices=2) as session:
        start(session)
        ranks = ranks_of(session, comms=2)
        for number, rank in enumerate(ranks):
            check(rank("refused(%d)" % number), "it was not refused")
        for number in range(2):
            each(ranks, "in_thread('work%d', 'traffic(%d, %d)')" % (number, number, STEPS))
        for _ in range(3):
            outcome = session.lien("offload", "--timeout", "1000", limit=60)
            check(outcome.code == 0 or "the job runs on" in outcome.err, str(outcome))
            session.ask("restore")
        for number in range(2):
            values = each(ranks, "joined('work%d', 80)" % number, 90)
            check(values == [[2 * step for step in range(STEPS)]] * 2, "communicator %d:" % number, brief(str(values)))


@case()
def test_meeting_where_nothing_is_counted():
    """One rank is in a call that waits for the other, which has begun all that is counted. Its thread is known to be
    in no group."""
    with Session(devices=2) as session:
        start(session)
        ranks = ranks_of(session, comms=2)
        ranks[0]("in_thread('window', 'window(0)')")
        ranks[0].begin("grouped([1], 1)")
        time.sleep(0.5)  # it waits in both
        offload = session.spawn([LIEN, "offload", "--json", "--timeout", "20000"])
        wait_for("it is brought to rest", lambda: phase(session) == "drain")
        ranks[1].begin("[grouped([1], 1), window(0)]")
        began = time.monotonic()
        text = "".join(iter(lambda: offload.line(40), None))
        equal(offload.wait(20), 0, "the offload: %s; %s" % (text, offload.said()))
        check(time.monotonic() - began < 6, "not on the last chance, after half of the timeout: %s" % text)
        session.ask("restore")
        equal([ranks[0].end(), ranks[1].end()], [[2], [[2], [0, 0]]], "both")
        equal(ranks[0]("joined('window', 20)"), [0, 0], "the window")


@case(long=True)
def test_groups_while_the_gate_is_made():
    """A group whose end had no probe yet when its beginning had one is not open forever."""
    with watched() as (session, ranks):
        for rank in ranks:
            rank.send("groups 4000")
        for _ in range(60):
            session.ask("offload", "--timeout", "4000")
            session.ask("restore")
        equal([rank.line(60) for rank in ranks], ["grouped"] * 2, "both")


@case()
def test_signal_that_comes_late():
    """A thread that an earlier gate has signalled waits for the present one, which has not seen it. It is
    let in: the other rank waits for it. (Here we are the earlier gate.)"""
    with watched() as (session, ranks):
        ranks[0].send("meet")
        first = ranks[0].line(20)
        wait_for("it is in the call", lambda: waits_for_the_other(ranks[0].pid))
        offload = session.spawn([LIEN, "offload", "--json", "--timeout", "15000"])
        wait_for("it is brought to rest", lambda: phase(session) == "drain")
        number = status_of(ranks[0].pid, "SigCgt").bit_length()  # the control library's: the highest
        ctypes.CDLL(None).syscall(SYS_TGKILL, ranks[0].pid, ranks[0].pid, number)
        wait_for("it is handled", lambda: not status_of(ranks[0].pid, "SigPnd") >> number - 1)
        ranks[1].send("meet")
        ranks[1].send(first[3:])
        equal(offload.wait(30), 0, "the offload: " + offload.said())
        session.ask("restore")
        equal([rank.line(20) for rank in ranks], ["met"] * 2, "both")


@case(long=True)
def test_captures_all_the_while():
    """Devices are asked in a way that would spoil them: none begins meanwhile."""
    with watched() as (session, ranks):
        done = refused = 0
        for rank in ranks:
            rank.send("captures 2500")
            rank.send("groups 2500")
        while done < 30 and refused < 300:
            offload = session.lien("offload", "--json", "--timeout", "4000")
            done += offload.code == 0
            refused += offload.code != 0
            check(not offload.code or "is capturing a CUDA graph" in offload.err, str(offload))
            session.ask("restore")
        check(done >= 30, "only %d offloads succeeded" % done)
        equal([{rank.line(60), rank.line(60)} for rank in ranks], [{"captured", "grouped"}] * 2,
              "none was spoilt")


@case()
def test_captures_while_away():
    """They may begin when nothing but NCCL's memory is away, and not while other memory is."""
    with watched() as (session, ranks):
        session.ask("offload")
        ranks[0].send("captures 10")
        equal(ranks[0].line(20), "captured", "NCCL's memory is away")
        session.ask("restore")
        session.ask("offload", "--owner", "all")
        ranks[0].send("captures 10")
        wait_for("it is held", lambda: session.ask("status")["held"])
        session.ask("restore")
        equal(ranks[0].line(20), "captured", "all is back")


if __name__ == "__main__":
    sys.exit(main())
