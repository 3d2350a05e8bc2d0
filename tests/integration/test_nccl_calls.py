#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Restores by communicator, and the calls that an NCCL lacks and the control library adds (docs/nccl-calls.md):
ranks that call through ctypes, over stand-ins for NCCL whose ranks really depend on each other.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import os
import random
import socket
import sys
import threading

from lien_test import LIEN, ROOT, SEED, SOFTCUDA, Session, case, check, equal, main, run, wait_for
from nccl_ranks import Caller, away, check_values, communicator, each, groups_of, offloaded, ranks_of, start
from train_job import SYNC

sys.path.append(os.path.join(ROOT, "tools", "python"))
import lien  # noqa: E402


class Rank:
    """A process by its number."""

    def __init__(self, pid):
        self.pid = pid


# Restores by communicator

@case()
def test_restore_by_communicator():
    with Session() as session:
        start(session)
        ranks = ranks_of(session, comms=2)
        check_values(ranks, 0, 1)
        first, second = groups_of(session, ranks[0], 2)
        both = session.ask("offload")["bytes"]
        back = session.ask("restore", "--comm", first)
        equal((back["outcome"], back["bytes"]), ("done", both // 2), "restore of the first")
        equal(away(session, *ranks), both // 2, "still away")
        equal(session.ask("restore", "--comm", first)["outcome"], "nothing to do", "the same again")
        equal(lien.restore(comms=[second], socket=session.socket).bytes, both // 2, "restore of the second, from Python")
        equal(away(session, *ranks), 0, "away")
        check_values(ranks, 0, 1)
        session.refused("restore", "--comm", "0123456789abcdef", code=2, 
                        text="no communicator has the group 0123456789abcdef; known are %s" % sorted((first, second))[0])


@case(long=True)
def test_restore_of_the_rest():
    """They go away one by one; one comes back, and then all that is left."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session, comms=3)
        names = groups_of(session, ranks[0], 3)
        moved = [session.ask("offload", "--comm", name)["bytes"] for name in names]
        equal(session.ask("restore", "--comm", names[1], "--comm", names[1])["bytes"], moved[1], "the second")
        session.stop_agent()
        session.start_agent()
        session.ready(*(rank.pid for rank in ranks))
        equal(session.ask("restore", "--comm", names[0])["bytes"], moved[0], "the first, by another agent")
        equal(session.ask("restore")["bytes"], moved[2], "the rest")
        check_values(ranks, 0, 1, 2)


@case(long=True)
def test_restore_by_communicator_and_tag():
    """Both narrow the selection down, as for an offload: here, and when only the control library knows."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session)
        for tag in "a", "b", "a":
            equal(each(ranks, "tag(%r)" % tag), [0, 0], "tag")
            communicator(ranks)
            equal(each(ranks, "untag()"), [0, 0], "no tag")
        plain, first, other, second = groups_of(session, ranks[0], 4)
        chosen = "--comm", plain, "--comm", first, "--comm", other, "--tag", "a", "--tag", "none"
        one = session.ask("offload", *chosen)["bytes"]
        check(one, "memory of the first")
        equal(session.ask("restore", *chosen)["bytes"], one, "what an offload of the same moved")
        everything = session.ask("offload")["bytes"]
        check(everything >= 4 * one, everything, one)
        equal(session.ask("restore", "--comm", plain, "--tag", "a")["outcome"], "nothing to do", "no such memory")
        equal(session.ask("restore", *chosen)["bytes"], one, "the first")
        session.stop_agent()
        session.start_agent()
        session.ready(*(rank.pid for rank in ranks))
        equal(lien.restore(comms=[second, plain], tags=["a", "b"], socket=session.socket).bytes, one, "the second")
        equal(away(session, *ranks), everything - 2 * one, "still away")
        equal(session.ask("restore")["bytes"], everything - 2 * one, "the rest")
        check_values(ranks, 0, 1, 2, 3)


# Looking the functions up

ADDED = ["ncclPause", "ncclResume", "ncclMemStats", "ncclSetGroupID", "ncclGetGroupID",
         "ncclCommSuspend", "ncclCommResume", "ncclCommMemStats"]
SUCCESS, SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE = 0, 2, 4, 5
SUSPEND, SUSPENDED, PERSIST, TOTAL = range(4)


@case()
def test_lookups():
    """As ctypes does, with and without the control library, and where NCCL is not in the handle's scope."""
    with Session() as session:
        rank = Caller(session, 0)
        equal(rank("[has(name) for name in %r]" % ADDED), [True] * 8, "with it")
        equal(rank("has('ncclNoSuchFunction')"), False, "no such function")
        equal(rank("[hasattr(cuda, name) for name in %r]" % ADDED), [False] * 8, "in another library")
        equal(rank("[hasattr(ctypes.CDLL(None), name) for name in %r]" % ADDED), [True] * 8, "by the program")
        rank = Caller(session, 0, control=False)
        equal(rank("[has(name) for name in %r]" % ADDED), [False] * 8, "without it")


@case()
def test_version():
    with Session() as session:
        equal(Caller(session, 0)("version()"), (SUCCESS, 22809), "NCCL's")
        equal(Caller(session, 0, LIEN_NCCL_VERSION="22907")("version()"), (SUCCESS, 22907), "on request")
        equal(Caller(session, 0, LIEN_NCCL_VERSION="2.29")("version()"), (SUCCESS, 22809), "no number")


# AMem's

@case(long=True)
def test_pause_in_any_order():
    with Session() as session:
        start(session)
        ranks = ranks_of(session, comms=2)
        check_values(ranks, 0, 1)
        for first, second in ((0, 1), (1, 0)):
            equal(ranks[first]("call('ncclPause', None)"), SUCCESS, "pause")
            moved = away(session, *ranks)
            check(moved > 0, "nothing is away")
            equal(ranks[second]("call('ncclPause', None)"), SUCCESS, "pause of the other")
            equal(ranks[second]("call('ncclPause', None)"), SUCCESS, "pause once more")
            equal(away(session, *ranks), moved, "away")
            equal(ranks[first]("call('ncclResume', None)"), SUCCESS, "resume")
            equal(ranks[second]("call('ncclResume', None)"), SUCCESS, "resume of the other")
            equal(ranks[second]("call('ncclResume', None)"), SUCCESS, "resume once more")
            equal(away(session, *ranks), 0, "away")
            check_values(ranks, 0, 1)
        equal(each(ranks, "call('ncclPause', None)"), [SUCCESS] * 2, "pause by all")
        equal(each(ranks, "call('ncclResume', None)"), [SUCCESS] * 2, "resume by all")
        check_values(ranks, 0, 1)


@case(long=True)
def test_a_late_rank():
    """Its turn is over: it undoes nothing."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session)
        for name in ("ncclPause", "ncclResume", "ncclPause"):
            equal(ranks[0]("call(%r, None)" % name), SUCCESS, name)
        moved = away(session, *ranks)
        check(moved > 0, "nothing is away")
        for name in ("ncclPause", "ncclResume", "ncclPause"):
            equal(ranks[1]("call(%r, None)" % name), SUCCESS, name)
            equal(away(session, *ranks), moved, "away after %s of the late one" % name)
        equal(each(ranks, "call('ncclResume', None)"), [SUCCESS] * 2, "resume")
        equal(away(session, *ranks), 0, "away")
        check_values(ranks, 0)


@case()
def test_groups():
    """Communicators belong to the id that was set when they were made; ids never affect each other."""
    with Session(memory="2G") as session:
        start(session)
        ranks = ranks_of(session)
        equal(each(ranks, "group_id()"), [(SUCCESS, 0)] * 2, "group id")
        equal(each(ranks, "call('ncclSetGroupID', 100)"), [SUCCESS] * 2, "set")
        communicator(ranks)
        equal(each(ranks, "group_id()"), [(SUCCESS, 100)] * 2, "group id")
        others = ranks_of(session)  # another job's, with the first id
        names = groups_of(session, ranks[0], 2)

        def offloaded():
            rows = {entry["group"]: entry["offloaded_bytes"] for entry in session.ask("comms")["communicators"]}
            return [rows[name] > 0 for name in names] + [away(session, *others) > 0]
        equal(each(ranks, "call('ncclPause', None)"), [SUCCESS] * 2, "pause of 100")
        equal(offloaded(), [False, True, False], "away")
        equal(each(others, "call('ncclPause', None)"), [SUCCESS] * 2, "pause of another job")
        equal(offloaded(), [False, True, True], "away")
        equal(each(ranks, "call('ncclSetGroupID', 0)"), [SUCCESS] * 2, "set back")
        equal(each(ranks, "call('ncclResume', None)"), [SUCCESS] * 2, "resume of 0, which is not paused")
        equal(offloaded(), [False, True, True], "away")
        equal(each(ranks, "call('ncclPause', None)"), [SUCCESS] * 2, "pause of 0")
        equal(offloaded(), [True, True, True], "away")
        equal(each(others, "call('ncclResume', None)"), [SUCCESS] * 2, "resume of the other job")
        equal(offloaded(), [True, True, False], "away")
        check_values(others, 0)
        equal(each(ranks, "call('ncclResume', None)"), [SUCCESS] * 2, "resume of 0")
        equal(offloaded(), [False, True, False], "away")
        equal(each(ranks, "call('ncclSetGroupID', 100)"), [SUCCESS] * 2, "set")
        equal(each(ranks, "call('ncclResume', None)"), [SUCCESS] * 2, "resume of 100")
        check_values(ranks, 0, 1)
        equal(ranks[0]("[call('ncclSetGroupID', number) for number in range(200)][59:65]"),
              [SUCCESS] + [INVALID_USAGE] * 5, "more ids than there is room for")


@case(long=True)
def test_ranks_of_different_communicators():
    """As with tensor and data parallelism: no rank has the communicators of all."""
    with Session(devices=4, memory="1G") as session:
        start(session)
        ranks = ranks_of(session, 4)
        for pairs in (((0, 1), (2, 3)), ((0, 2), (1, 3))):
            for pair in pairs:
                communicator([ranks[number] for number in pair])
        total = session.ask("mem", "--by", "owner")["bytes"]
        for _ in range(2):
            equal(each(ranks, "call('ncclPause', None)"), [SUCCESS] * 4, "pause")
            check(away(session, *ranks) > 0.9 * total, "away: %d of %d" % (away(session, *ranks), total))
            equal(each(ranks, "call('ncclResume', None)"), [SUCCESS] * 4, "resume")
            equal(away(session, *ranks), 0, "away")
        check_values(ranks, 0)


@case()
def test_mem_stats():
    with Session() as session:
        start(session)
        ranks = ranks_of(session)
        total = session.process(ranks[0].pid)["nccl_bytes"]
        equal(ranks[0]("call('ncclMemStats')"), SUCCESS, "result")
        said = ranks[0].process.said()
        check("lien: groupID:0 pid:%d total allocBytes:%d offloaded:0" % (ranks[0].pid, total) in said, said)
        check("ncclCommInitRank from " in said, said)


# NCCL's

@case()
def test_suspend():
    with Session() as session:
        start(session)
        ranks = ranks_of(session, comms=2)
        statistics = [ranks[0]("statistic(0, %d)" % which) for which in range(4)]
        equal([result for result, _ in statistics], [SUCCESS] * 4, "results")
        check(statistics[TOTAL][1] == statistics[SUSPEND][1] > 0, statistics)
        equal((statistics[SUSPENDED][1], statistics[PERSIST][1]), (0, 0), "statistics")
        for _ in range(2):
            equal(each(ranks, "suspend(0)"), [SUCCESS] * 2, "suspend")
            equal(away(session, ranks[0]), statistics[TOTAL][1], "away")
            equal(ranks[0]("[statistic(0, which)[1] for which in range(4)]"),
                  [statistics[SUSPEND][1], 1, 0, statistics[TOTAL][1]], "statistics")
            equal(ranks[0]("suspend(0)"), INVALID_USAGE, "a second suspend")
            check("ncclCommSuspend: the communicator is already suspended" in ranks[0]("last_error()"),
                  ranks[0]("last_error()"))
            equal(each(ranks, "suspend(1)"), [SUCCESS] * 2, "suspend of the other")
            equal(each(ranks, "resume(0)"), [SUCCESS] * 2, "resume")
            equal(away(session, ranks[0]), statistics[TOTAL][1], "still away: the other's")
            equal(ranks[1]("resume(0)"), INVALID_USAGE, "a second resume")
            equal(each(ranks, "resume(1)"), [SUCCESS] * 2, "resume of the other")
            equal(away(session, *ranks), 0, "away")
            check_values(ranks, 0, 1)


@case()
def test_suspend_arguments():
    with Session() as session:
        start(session)
        rank, = ranks_of(session, 1)
        equal(rank("call('ncclCommSuspend', None, 1)"), INVALID_ARGUMENT, "no communicator")
        equal(rank("call('ncclCommResume', ctypes.c_void_p(0x5580))"), INVALID_ARGUMENT, "another address")
        check("has no communicator at 0x5580" in rank("last_error()"), rank("last_error()"))
        equal(rank("suspend(0, 0)"), SUCCESS, "no flags")
        equal(rank("suspend(0, 6)"), SUCCESS, "other flags")
        equal(rank("statistic(0, 1)"), (SUCCESS, 0), "suspended")
        equal(rank("statistic(0, 4)"), (INVALID_ARGUMENT, 99), "no such statistic")
        equal(rank("call('ncclCommMemStats', comms[0], 0, None)"), INVALID_ARGUMENT, "no place for it")
        equal(rank("suspend(0, -1)"), SUCCESS, "all flags")
        equal(rank("destroy(0)"), SUCCESS, "destroyed while it is suspended")
        equal(away(session, rank), 0, "away")
        communicator([rank])
        equal(rank("suspend(1)"), SUCCESS, "another one, at the same address or not")
        equal(rank("resume(1)"), SUCCESS, "resume")


@case()
def test_used_while_suspended():
    """It comes back, and no rank waits forever."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session)
        equal(each(ranks, "suspend(0)"), [SUCCESS] * 2, "suspend")
        check_values(ranks, 0)
        equal(each(ranks, "resume(0)"), [SUCCESS] * 2, "resume")
        check_values(ranks, 0)


@case()
def test_used_while_paused():
    """It waits until somebody resumes."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session)
        equal(each(ranks, "call('ncclPause', None)"), [SUCCESS] * 2, "pause")
        each(ranks, "in_thread('work', 'all_reduce(0, 5)')")
        wait_for("threads that are held", lambda: len(session.ask("status")["held"]) == 2)
        check(away(session, *ranks) > 0, "it has come back")
        equal(each(ranks, "call('ncclResume', None)"), [SUCCESS] * 2, "resume")
        equal(each(ranks, "joined('work')"), [10, 10], "values")


# Gates by communicator

@case(long=True)
def test_the_others_are_used():
    with Session() as session:
        start(session)
        ranks = ranks_of(session, comms=3)
        names = groups_of(session, ranks[0], 3)
        equal(each(ranks, "suspend(0)"), [SUCCESS] * 2, "suspend")
        check_values(ranks, 1, 2)
        equal(offloaded(session, *ranks), [names[0]], "away")
        equal(each(ranks, "suspend(2)"), [SUCCESS] * 2, "suspend of another one")
        check_values(ranks, 1)
        equal(offloaded(session, *ranks), sorted([names[0], names[2]]), "away")
        equal(each(ranks, "resume(0)"), [SUCCESS] * 2, "resume")
        check_values(ranks, 0, 1)
        equal(offloaded(session, *ranks), [names[2]], "away")
        new = communicator(ranks)
        check_values(ranks, new)
        equal(each(ranks, "destroy(%d)" % new), [SUCCESS] * 2, "destroyed")
        equal(offloaded(session, *ranks), [names[2]], "away")
        equal(session.ask("status")["held"], [], "threads that are held")
        equal(each(ranks, "resume(2)"), [SUCCESS] * 2, "resume")
        check_values(ranks, 0, 1, 2)


@case()
def test_what_is_used_comes_back_alone():
    with Session() as session:
        start(session)
        ranks = ranks_of(session, comms=2)
        names = groups_of(session, ranks[0], 2)
        for number in range(2):
            equal(each(ranks, "suspend(%d)" % number), [SUCCESS] * 2, "suspend")
        check_values(ranks, 1)
        equal(offloaded(session, *ranks), [names[0]], "away")
        equal(each(ranks, "[resume(0), resume(1)]"), [[SUCCESS] * 2] * 2, "resume")


@case(long=True)
def test_one_group_for_several():
    """A group that has begun with a communicator whose memory is there still waits for one whose memory is not."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session, comms=2)
        for _ in range(3):
            equal(each(ranks, "suspend(0)"), [SUCCESS] * 2, "suspend")
            equal(each(ranks, "grouped([1, 0], 4)"), [[8, 8]] * 2, "values")
            equal(offloaded(session, *ranks), [], "away")
            equal(each(ranks, "resume(0)"), [SUCCESS] * 2, "resume")
        check_values(ranks, 0, 1)


@case(long=True)
def test_threads_go_on():
    """They are held before a call on a communicator that does not go away in the end, or is back before others."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session, comms=2)
        names = groups_of(session, ranks[0], 2)
        session.ask("offload")
        each(ranks, "in_thread('work', 'all_reduce(1, 5)')")
        wait_for("threads that are held", lambda: len(session.ask("status")["held"]) == 2)
        session.ask("restore", "--comm", names[1])
        equal(each(ranks, "joined('work')"), [10, 10], "values")
        equal(offloaded(session, *ranks), [names[0]], "away")
        each(ranks, "in_thread('other', 'all_reduce(0, 6)')")
        wait_for("threads that are held", lambda: len(session.ask("status")["held"]) == 2)
        session.ask("restore")
        equal(each(ranks, "joined('other')"), [12, 12], "values")


def is_ahead(session):
    wait_for("a rank waits for another one", lambda: any(
        group["behind"] for group in session.ask("comms")["groups"]))


@case(long=True)
def test_a_rank_lags():
    """It gets to the others on a communicator that is not away, and so the job comes to rest."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session, comms=2)
        equal(each(ranks, "suspend(0)"), [SUCCESS] * 2, "suspend")
        ranks[0]("in_thread('work', 'all_reduce(1, 3)')")
        is_ahead(session)
        ranks[0].begin("suspend(1)")
        wait_for("the offload", lambda: session.ask("status")["transaction"])
        equal(ranks[1]("all_reduce(1, 4)"), 7, "value")
        equal(ranks[0].end(), SUCCESS, "suspend of the first")
        equal((ranks[0]("joined('work')"), ranks[1]("suspend(1)")), (7, SUCCESS), "the other rank")
        equal(each(ranks, "[resume(0), resume(1)]"), [[SUCCESS] * 2] * 2, "resume")
        check_values(ranks, 0, 1)


@case(long=True)
def test_relatives_come_back_together():
    """A communicator may use memory of the one that it was split from: its use brings that back."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session, comms=2)
        equal(each(ranks, "split(0, 0, {})"), [2, 2], "split")
        equal(each(ranks, "suspend(0)"), [SUCCESS] * 2, "suspend")
        check_values(ranks, 1)
        check(away(session, *ranks) > 0, "it has come back")
        check_values(ranks, 2)
        equal(away(session, *ranks), 0, "away")
        equal(each(ranks, "resume(0)"), [SUCCESS] * 2, "resume")


@case(long=True)
def test_memory_that_may_be_anybodys():
    """Small blocks of several communicators lie in one allocation, so all of them are held."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session, comms=2, NCCL_CUMEM_ENABLE="0", LIEN_PLAIN=None)
        equal(each(ranks, "suspend(0)"), [SUCCESS] * 2, "suspend")
        check(away(session, *ranks) > 0, "nothing is away")
        check_values(ranks, 1)
        equal(away(session, *ranks), 0, "away")
        equal(each(ranks, "resume(0)"), [SUCCESS] * 2, "resume")
        check_values(ranks, 0, 1)


@case(long=True)
def test_made_in_the_background():
    """A thread that NCCL made for this communicator allocated the memory."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session)
        ident = ranks[0]("unique()")
        equal(each(ranks, "init_later(%r, 2, {})" % ident), [1, 1], "number")
        names = groups_of(session, ranks[0], 2)
        rows = [entry for entry in session.ask("comms")["communicators"] if entry["group"] == names[1]]
        check(all(row["bytes"] > 0 and not row["inferred_bytes"] for row in rows), rows)
        equal(each(ranks, "suspend(1)"), [SUCCESS] * 2, "suspend")
        check_values(ranks, 0)
        equal(offloaded(session, *ranks), [names[1]], "away")
        equal(each(ranks, "resume(1)"), [SUCCESS] * 2, "resume")


@case(long=True)
def test_traffic_goes_on():
    """Traffic on one communicator goes on while others are suspended and resumed."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session, comms=3)
        steps = 1500
        each(ranks, "in_thread('traffic', 'traffic(0, %d)')" % steps)
        for _ in range(8):
            for number in (1, 2):
                equal(each(ranks, "suspend(%d)" % number), [SUCCESS] * 2, "suspend")
            equal(len(offloaded(session, *ranks)), 2, "away")
            for number in (1, 2):
                equal(each(ranks, "resume(%d)" % number), [SUCCESS] * 2, "resume")
            check_values(ranks, 1, 2)
        for values in each(ranks, "joined('traffic', 60)", 70):
            equal(values, [2 * step for step in range(steps)], "values")


class Communicator:
    """One of several ranks, each of which has a number of its own for it."""

    def __init__(self, ranks):
        self.ranks, self.suspended = ranks, False
        ident = ranks[0]("unique()")
        for place, rank in enumerate(ranks):
            rank.begin("init(%r, %d, %d)" % (ident, len(ranks), place))
        self.numbers = [rank.end() for rank in ranks]
        self.group = None

    def each(self, expression, dice=None):
        """In all ranks at once, or in one after the other."""
        calls = [(rank, expression % number) for rank, number in zip(self.ranks, self.numbers)]
        if dice:
            return [rank(call) for rank, call in dice.sample(calls, len(calls))]
        for rank, call in calls:
            rank.begin(call)
        return [rank.end() for rank, _ in calls]


@case(long=True)
def test_at_random():
    """Any order of suspending, resuming and using, by ranks of different communicators: values are right, and what is
    away is what was suspended and not used since."""
    dice = random.Random(SEED)
    with Session(devices=3, memory="1G") as session:
        start(session)
        ranks = [Caller(session, device) for device in range(3)]
        comms = [Communicator(members) for members in (ranks, ranks, ranks[:2], ranks[1:], ranks[::2])]
        for comm in comms:
            comm.group = groups_of(session, comm.ranks[0], comm.numbers[0] + 1)[-1]
        session.ready(*(rank.pid for rank in ranks))
        expected = set()
        for step in range(80):
            comm, at_once = dice.choice(comms), dice.random() < 0.6
            what = "step %d" % step
            if dice.random() < 0.4:
                equal(comm.each("all_reduce(%d, 7)"), [7 * len(comm.ranks)] * len(comm.ranks), what)
                expected.discard(comm.group)
            elif comm.suspended:
                equal(set(comm.each("resume(%d)", None if at_once else dice)), {SUCCESS}, what)
                comm.suspended = False
                expected.discard(comm.group)
            else:
                equal(set(comm.each("suspend(%d)", None if at_once else dice)), {SUCCESS}, what)
                comm.suspended = True
                expected.add(comm.group)
            equal(offloaded(session, *ranks), sorted(expected), "away after %s" % what)
        session.ask("restore")
        for comm in comms:
            equal(comm.each("all_reduce(%d, 7)"), [7 * len(comm.ranks)] * len(comm.ranks), "in the end")


# Failures

@case()
def test_without_an_agent():
    with Session() as session:
        ranks = ranks_of(session, ready=False)
        rank = ranks[0]
        for expression in ("call('ncclPause', None)", "call('ncclResume', None)", "call('ncclMemStats')",
                           "suspend(0)", "resume(0)", "statistic(0, 3)[0]"):
            equal(rank(expression), SYSTEM_ERROR, expression)
            check("no agent answers at %s" % session.socket in rank("last_error()"), rank("last_error()"))
        check("lien: ncclPause: no agent answers" in rank.process.said(), rank.process.said())
        equal(rank("[call('ncclSetGroupID', 7), group_id()]"), [SUCCESS, (SUCCESS, 7)], "what needs none")
        check_values(ranks, 0)


class Answers:
    """Something at the agent's socket that answers each request with what it is given; None: it hangs up."""

    def __init__(self, path, *answers, user=0):
        self.answers, self.asked = list(answers), []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        os.seteuid(user)  # whose socket it is: listen(2) notes it
        try:
            self.listener.listen(8)
        finally:
            os.seteuid(0)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        for answer in self.answers:
            connection, _ = self.listener.accept()
            try:
                self.asked.append(connection.makefile().readline())
                connection.sendall(answer or b"")
            except BrokenPipeError:
                pass  # it has read as much as it wants
            connection.close()


@case()
def test_answers():
    """Whatever answers, there is a result and a reason."""
    refused = (b'{"progress": {"phase": "drain", "done": 0, "of": 2}}\n{"ok": false, "error": "rank 1 is \\"behind\\"",'
               b' "code": "%s", "process": 7, "holder": null, "remedy": %s}\n')
    answers = [(refused % (b"not-at-rest", b'"try again"'), INVALID_USAGE, 'rank 1 is "behind": try again'),
               (refused % (b"refused", b"null"), INVALID_USAGE, 'rank 1 is "behind"'),
               (refused % (b"host-memory", b"null"), SYSTEM_ERROR, 'rank 1 is "behind"'),
               (refused % (b"invalid", b"null"), INVALID_ARGUMENT, 'rank 1 is "behind"'),
               (None, SYSTEM_ERROR, "the agent has hung up"),
               (b'{"ok": true, "resu', SYSTEM_ERROR, "the agent has hung up"),
               (b"HTTP/1.1 200 OK\n", SYSTEM_ERROR, "not an agent of this version"),
               (b'{"ok": true} {"ok": true}\n', SYSTEM_ERROR, "not an agent of this version"),
               (b"[" * 100 + b"\n", SYSTEM_ERROR, "not an agent of this version"),
               (b'{"ok": false}\n', SYSTEM_ERROR, "not an agent of this version"),
               (b'{"ok": true, "result": {"bytes": 0, "many": [' + b'"x", ' * 1500000 + b'"x"]}}\n', SUCCESS, None),
               (b'{"ok": true, "result": {}}\n', SUCCESS, None)]
    with Session() as session:
        agent = Answers(session.socket, *(answer for answer, _, _ in answers))
        rank = Caller(session, 0)
        for answer, result, why in answers:
            equal(rank("call('ncclPause', None)"), result, "result of %.90r" % answer)
            check(not why or why in rank("last_error()"), "%.90r: %s" % (answer, rank("last_error()")))
        check('"timeout_ms": 30000' in agent.asked[0] and '"together": 1,' in agent.asked[0], agent.asked[0])


@case()
def test_somebody_elses_answers():
    """Only root and the user itself are believed."""
    with Session() as session:
        agent = Answers(session.socket, b'{"ok": true, "result": {}}\n', user=65534)
        rank = Caller(session, 0)
        equal(rank("call('ncclPause', None)"), SYSTEM_ERROR, "result")
        check("refusing to trust it" in rank("last_error()"), rank("last_error()"))
        check(not any(agent.asked), agent.asked)


@case()
def test_time_of_its_own():
    with Session() as session:
        agent = Answers(session.socket, b'{"ok": true, "result": {}}\n')
        equal(Caller(session, 0, LIEN_NCCL_TIMEOUT="3")("call('ncclPause', None)"), SUCCESS, "result")
        check('"timeout_ms": 3000}' in agent.asked[0], agent.asked[0])


@case()
def test_a_rank_that_cannot_take_part():
    with Session() as session:
        start(session, "--no-attach")
        ranks = [Caller(session, 0), Caller(session, 1, control=False)]
        communicator(ranks)
        session.ready(ranks[0].pid)
        for expression in ("call('ncclPause', None)", "suspend(0)"):
            equal(ranks[0](expression), INVALID_USAGE, expression)
            check("process %d" % ranks[1].pid in ranks[0]("last_error()"), ranks[0]("last_error()"))
        check_values(ranks, 0)


@case()
def test_the_agent_dies():
    """In the middle of a call: the call ends, the job goes on, and the next agent moves what is asked for."""
    with Session() as session:
        start(session)
        ranks = ranks_of(session)
        ranks[0]("in_thread('work', 'all_reduce(0, 1)')")  # and the other rank does not
        is_ahead(session)
        ranks[1].begin("call('ncclPause', None)")
        wait_for("the offload", lambda: session.ask("status")["transaction"])
        session.kill_agent()
        equal(ranks[1].end(20), SYSTEM_ERROR, "pause")
        check("hung up" in ranks[1]("last_error()"), ranks[1]("last_error()"))
        equal(ranks[1]("all_reduce(0, 2)", 30), 3, "value")
        equal(ranks[0]("joined('work')", 30), 3, "value")
        session.start_agent()
        session.ready(*(rank.pid for rank in ranks))
        equal(each(ranks, "call('ncclPause', None)"), [SUCCESS] * 2, "pause")
        session.kill_agent()
        equal(ranks[0]("call('ncclResume', None)"), SYSTEM_ERROR, "resume without an agent")
        session.start_agent()
        session.ready(*(rank.pid for rank in ranks))
        equal(each(ranks, "call('ncclResume', None)"), [SUCCESS] * 2, "resume")
        equal(away(session, *ranks), 0, "away")
        check_values(ranks, 0)


@case()
def test_a_forked_child():
    """It has no communicators, and knows of nothing that is suspended."""
    with Session() as session:
        start(session)
        rank, = ranks_of(session, 1)
        equal(rank("suspend(0)"), SUCCESS, "suspend")
        equal(rank("in_child('suspend(0)')"), INVALID_ARGUMENT, "in the child")
        equal(rank("resume(0)"), SUCCESS, "resume")


# An NCCL that has the functions; programs that are linked

def own_nccl(session):
    return session.compile("libnccl.so.2", "nccl_own.c", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2")


@case()
def test_nccls_own_functions():
    with Session() as session:
        library = own_nccl(session)
        calls = ("[call('ncclPause', None), call('ncclCommSuspend', None, 1), call('ncclCommResume', None), "
                 "call('ncclCommMemStats', None, 1, ctypes.byref(ctypes.c_uint64()))]")
        rank = Caller(session, 0, library)
        equal(rank(calls), [60, 70, 80, 90], "NCCL's")
        equal((rank("version()"), rank("last_error()")), ((0, 23007), "NCCL's own"), "NCCL's")
        equal(rank("call('ncclSetGroupID', 3)"), SUCCESS, "one that it lacks")
        rank = Caller(session, 0, library, LIEN_NCCL_SUSPEND="1")
        equal(rank(calls), [60, INVALID_ARGUMENT, INVALID_ARGUMENT, INVALID_ARGUMENT], "ours, on request")
        equal(rank("last_error()"), "lien: ncclCommMemStats: the communicator is NULL", "last error")
        equal(Caller(session, 0, library, LIEN_NCCL_SUSPEND="0")(calls), [60, 70, 80, 90], "not on request")


@case(long=True)
def test_nccl_within_another_library():
    """As in some builds of PyTorch: no file is called libnccl."""
    with Session() as session:
        library = session.compile("libtorch.so", "nccl_own.c", "-shared", "-fPIC", "-Wl,-soname,libtorch.so")
        calls = "[torch.ncclGetVersion(ctypes.byref(ctypes.c_int())), torch.ncclCommSuspend(None, 0), "\
            "torch.ncclSetGroupID(1), version(), call('ncclPause', None)]"
        rank = Caller(session, 0, NCCL_LIBRARY=library)
        equal(rank("globals().update(torch=nccl)"), None, "named")
        equal(rank(calls), [0, 70, 0, (0, 23007), 60], "by the handle")
        program = linked(session, library, "libtorch.so")
        equal(said_by(session, [program])[0], [60, SYSTEM_ERROR, 70, 90, 4243, 80, 23007], "by linking")


def linked(session, library, name="libnccl.so.2"):
    """A program that finds this library where it looks for libnccl.so.2."""
    os.makedirs(session.path("stub"), exist_ok=True)
    stub = session.compile("stub/" + name, "nccl_stub.c", "-shared", "-fPIC", "-Wl,-soname," + name)
    return session.compile("linked", "nccl_linked.c", "-Wl,--no-as-needed", "-I" + ROOT, "-I" + os.path.join(ROOT, "include"), stub,
                           os.path.join(SOFTCUDA, "libcuda.so.1"), "-Wl,-z,lazy",
                           "-Wl,-rpath," + os.path.dirname(library))


def said_by(session, argv, **environment):
    process = session.spawn([LIEN, "run", "--", *argv], **environment)
    equal(process.wait(30), 0, "exit status; %s" % process.said())
    lines = [process.line() for _ in range(8)]
    return [int(line.split()[-1]) for line in lines[:-1]], lines[-1]


@case(long=True)
def test_linked_programs():
    with Session() as session:
        program = linked(session, own_nccl(session))
        equal(said_by(session, [program]), ([60, SYSTEM_ERROR, 70, 90, 4243, 80, 23007],
                                            "lien: ncclResume: no agent answers at %s: No such file or directory "
                                            "(start one, `lien agent`, or name its socket in LIEN_SOCKET)"
                                            % session.socket), "NCCL's where it has them")
        results, error = said_by(session, [program], LIEN_NCCL_SUSPEND="1", LIEN_NCCL_VERSION="22907")
        equal(results, [60, SYSTEM_ERROR] + 2 * [INVALID_ARGUMENT] + [0, INVALID_ARGUMENT, 22907], "ours on request")
        equal(error, "lien: ncclCommResume: the communicator is NULL", "last error")


@case()
def test_a_linked_program_moves():
    with Session() as session:
        program = linked(session, SYNC)
        process = session.spawn([LIEN, "run", "--", program, "1"])
        equal(process.line(30), "ready 0", "ready; %s" % process.said())
        start(session)
        wait_for("the process", lambda: session.process(process.pid))
        equal(process.ask(""), "pause %d" % INVALID_USAGE, "pause of one that is older than the agent")
        check("before its NCCL was watched" in process.said(), process.said())
        process = session.spawn([LIEN, "run", "--", program, "1"])
        equal(process.line(30), "ready 0", "ready; %s" % process.said())
        session.ready(process.pid)
        rank = Rank(process.pid)
        for name, moved in (("pause", True), ("resume", False), ("suspend", True), ("statistics", True)):
            equal(process.ask(""), "%s 0" % name, name)
            equal(away(session, rank) > 0, moved, "away after %s" % name)
        equal(process.ask(""), "value 1", "suspended")
        equal(process.ask(""), "continue 0", "resumed")
        equal(away(session, rank), 0, "away")
        equal(process.ask(""), "version 22809", "version")


@case(long=True)
def test_the_gpu_script():
    """tests/gpu/nccl_calls.py on the software driver."""
    with Session(memory="1G") as session:
        outcome = run([sys.executable, os.path.join(ROOT, "tests", "gpu", "nccl_calls.py"), "--lien", LIEN, "--no-torch",
                       SYNC], 100, session.env(LIEN_PLAIN=None, LIEN_SOCKET=None))
        print("\n".join("   " + line for line in outcome.out.splitlines()))
        equal((outcome.code, outcome.out.splitlines()[-1]), (0, "2 passed, 0 failed"), outcome.text())
        check(outcome.out.count("ncclCommResume of the second: ") == 3, "rounds")


if __name__ == "__main__":
    sys.exit(main())
