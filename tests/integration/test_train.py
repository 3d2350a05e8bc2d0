#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Jobs whose ranks wait for each other (prog_train.c, softnccl_sync.c), and what lien sees of them.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import signal
import sys
import time

from lien_test import MIB, Session, case, check, equal, main, stays, wait_for
from train_job import GONE, SYNC, Train


def undisturbed(nranks, iterations):
    lines = []
    for pace in (0, 500):
        with Session(devices=nranks, memory="512M") as session:
            job = Train(session, nranks, seed=nranks, iterations=iterations, pace=pace,
                        control=False)
            job.finish()
            session.freed()
            lines.append(job)


@case()
def test_two_ranks():
    undisturbed(2, 60)


@case(long=True)
def test_four_ranks():
    undisturbed(4, 30)


@case(long=True)
def test_eight_ranks():
    undisturbed(8, 12)


@case(long=True)
def test_pause_and_stop():
    with Session(devices=4) as session:
        job = Train(session, 4, control=False)
        for _ in range(3):
            job.pause()
            before = job.status()
            stays("it pauses", lambda before=before: job.status() == before, 0.1)
            check(len({tuple(rank[:2]) for rank in before}) == 1, "ranks are level:", before)
            job.go()
            wait_for("it goes on", lambda: job.status()[0][0] > before[0][0])
        job.stop()
        job.finish()


@case()
def test_a_rank_dies():
    with Session(devices=4) as session:
        for victim in (0, 2):
            job = Train(session, 4, control=False)
            wait_for("it is at work", lambda: job.status()[0][0] > 2)
            job.ranks[victim].signal(signal.SIGKILL)
            for number in range(4):
                if number != victim:
                    equal(job.ends(number, 5), GONE, "exit status of rank %d" % number)
                    check("a peer is gone" in job.ranks[number].said(), "what it said")
            wait_for("device memory is free", lambda: not session.used())


@case(long=True)
def test_a_rank_stops():
    """It is busy, and stays so until the other one comes."""
    with Session(devices=2) as session:
        job = Train(session, 2, control=False)
        wait_for("it is at work", lambda: job.status()[0][0] > 2)
        job.ranks[1].signal(signal.SIGSTOP)
        time.sleep(0.3)
        job.ranks[0].send("status")
        before = job.ranks[0].line()
        time.sleep(0.3)
        job.ranks[0].send("status")
        equal(job.ranks[0].line(), before, "status while the other one is stopped")
        job.ranks[1].signal(signal.SIGCONT)
        wait_for("it goes on", lambda: job.status()[0][0] > int(before.split()[1]))
        job.stop()
        job.finish()


@case()
def test_graph():
    with Session(devices=4) as session:
        session.start_agent("--library", SYNC)
        job = Train(session, 4)
        session.ready(*job.pids)
        job.pause()
        graph = session.ask("graph")
        shared = [allocation for allocation in graph["allocations"] if len(
            {mapping["pid"] for mapping in allocation["mappings"]}) == 2]
        # Of world and the second thread's: each rank to each; of halves and pairs: one to one.
        equal(len(shared), 2 * 4 * 3 + 4 + 4, "allocations that two ranks map")
        check(all(a["owner"] == "nccl" and a["bytes"] == 2 * MIB for a in shared), "NCCL's")
        equal(len(graph["communicators"]), 4 * 4, "communicators")
        status = session.ask("status")
        equal([status[name] for name in ("events_lost", "unmatched_imports", "incomplete")],
              [0, 0, []], "status")
        job.go()
        job.stop()
        job.finish()
        session.forgotten(*job.pids)


@case()
def test_offload_while_it_pauses():
    with Session(devices=4) as session:
        session.start_agent("--library", SYNC)
        job = Train(session, 4)
        session.ready(*job.pids)
        for number in range(3):
            job.pause()
            job.mark(number)
            whole = session.ask("offload")
            equal(whole["outcome"], "done", "offload")
            equal(session.ask("restore")["bytes"], whole["bytes"], "restored")
            check(job.check(number) > whole["bytes"], "memory that was compared")
            before = job.status()[0][0]
            job.go()
            wait_for("it goes on", lambda: job.status()[0][0] > before + 2)
        job.stop()
        job.finish()


if __name__ == "__main__":
    sys.exit(main())
