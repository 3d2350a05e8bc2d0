# SPDX-License-Identifier: BSD-2-Clause
"""Ranks that call NCCL through ctypes (nccl_caller.py), over the stand-in whose ranks really depend on each other."""

import ast
import os
import sys

from lien_test import GUARD, LIEN, SOFTCUDA, brief, check, equal
from train_job import SYNC

CALLER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nccl_caller.py")


class Caller:
    """An nccl_caller.py."""

    def __init__(self, session, device, library=SYNC, control=True, **environment):
        path = "%s:%s" % (os.path.dirname(library), SOFTCUDA)
        self.process = session.spawn([*([LIEN, "run", "--"] if control else []), sys.executable, CALLER, device],
                                     LD_LIBRARY_PATH=path, **environment)
        equal(self.process.line(30), "ready", "rank; %s" % self.process.said())
        self.pid = self.process.pid

    def begin(self, expression):
        self.process.send(expression)

    def end(self, limit=GUARD):
        """The value of what was begun."""
        line = self.process.line(limit)
        check(line and line.startswith("ok "), "rank %d: %s; %s" % (self.pid, line, brief(self.process.said())))
        return ast.literal_eval(line[3:])

    def __call__(self, expression, limit=GUARD):
        self.begin(expression)
        return self.end(limit)


def each(ranks, expression, limit=GUARD):
    """Begins it in all ranks; {} is the rank."""
    for number, rank in enumerate(ranks):
        rank.begin(expression.format(number))
    return [rank.end(limit) for rank in ranks]


def ranks_of(session, nranks=2, comms=1, ready=True, **more):
    """Ranks with so many communicators of all of them."""
    ranks = [Caller(session, number % session.device_count, **more) for number in range(nranks)]
    for _ in range(comms):
        communicator(ranks)
    if ready:
        session.ready(*(rank.pid for rank in ranks))
    return ranks


def communicator(ranks):
    ident = ranks[0]("unique()")
    numbers = each(ranks, "init(%r, %d, {})" % (ident, len(ranks)))
    equal(len(set(numbers)), 1, "number of the communicator")
    return numbers[0]


def start(session, *args):
    """An agent that knows the stand-in, and so sees all that is done with it."""
    session.start_agent("--library", SYNC, *args)


def check_values(ranks, *numbers):
    for number in numbers:
        equal(each(ranks, "all_reduce(%d, 10 + {})" % number), [sum(range(10, 10 + len(ranks)))] * len(ranks),
              "values of communicator %d" % number)


def groups_of(session, rank, count):
    """Names of its communicators' groups, by number."""
    found = {int(entry["address"], 16): entry["group"] for entry in session.ask("comms")["communicators"]
             if entry["pid"] == rank.pid}
    return [found[rank("address(%d)" % number)] for number in range(count)]


def away(session, *ranks):
    """Bytes that are offloaded, of these processes."""
    return sum(session.process(rank.pid)["offloaded_bytes"] for rank in ranks)


def offloaded(session, *ranks):
    """Groups that have memory away in these processes."""
    pids = [rank.pid for rank in ranks]
    return sorted({entry["group"] for entry in session.ask("comms")["communicators"]
                   if entry["pid"] in pids and entry["offloaded_bytes"]})
