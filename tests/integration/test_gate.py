#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Offloads of a job that never pauses and knows nothing of lien (prog_train.c): it is brought to rest
by holding its threads at NCCL's calls, those that are behind let in until all ranks are level."""

import json
import os
import random
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from lien_test import Session, case, check, equal, main, wait_for  # noqa: E402
from train_job import SYNC, Train  # noqa: E402

SEED = int(os.environ.get("LIEN_SEED") or random.randrange(1 << 32))


def at_work(session, job):
    session.ready(*job.pids)
    wait_for("it is at work", lambda: job.status()[0][0] > 2)


def goes_on(job):
    before = job.status()
    wait_for("the job goes on", lambda: all(
        now[0] > then[0] for now, then in zip(job.status(), before)), 20)


def rounds(nranks, count, pause=0.1):
    """Of `count` offloads at any moment: how many succeeded. The others were refused cleanly."""
    done, said = 0, []
    moments = random.Random(SEED)
    with Session(devices=nranks, memory="512M") as session:
        session.start_agent("--library", SYNC)
        job = Train(session, nranks)
        at_work(session, job)
        for _ in range(count):
            time.sleep(moments.random() * pause)
            outcome = session.lien("offload", "--json", "--timeout", "3000")
            if outcome.code == 0:
                check(json.loads(outcome.out)["bytes"] > 0, "nothing was moved")
                done += 1
                session.ask("restore")
            else:
                check("the job runs on" in outcome.err, outcome)
                said.append(outcome.err.strip())
            goes_on(job)
        job.stop()
        job.finish()
        equal(session.ask("status")["incomplete"], [], "incomplete")
    print("   LIEN_SEED=%d: %d of %d offloads succeeded%s" % (
        SEED, done, count, "".join("\n   " + line for line in sorted(set(said)))))
    return done


@case(120)
def test_two_ranks_never_pause():
    check(rounds(2, 20) >= 16, "too few offloads succeeded")


@case(120)
def test_four_ranks_never_pause():
    check(rounds(4, 12) >= 9, "too few offloads succeeded")


@case(60)
def test_use_while_away():
    """It waits, all of it, and goes on after the restore."""
    with Session(devices=2, memory="512M") as session:
        session.start_agent("--library", SYNC)
        job = Train(session, 2)
        at_work(session, job)
        session.ask("offload", "--retry", "20000")
        before = job.status()
        time.sleep(0.5)
        equal(job.status(), before, "a job whose memory is away went on")
        session.ask("restore")
        goes_on(job)
        job.stop()
        job.finish()


@case(60)
def test_on_use_restore():
    with Session(devices=2, memory="512M") as session:
        session.start_agent("--library", SYNC)
        job = Train(session, 2)
        at_work(session, job)
        session.ask("offload", "--retry", "20000", "--on-use", "restore")
        goes_on(job)
        equal({session.process(pid)["state"] for pid in job.pids}, {"running"}, "states")
        job.stop()
        job.finish()


@case(60)
def test_on_use_fail():
    with Session(devices=2, memory="512M") as session:
        session.start_agent("--library", SYNC)
        job = Train(session, 2)
        at_work(session, job)
        session.ask("offload", "--retry", "20000", "--on-use", "fail")
        wait_for("a rank was ended", lambda: any(
            rank.popen.poll() == -signal.SIGABRT for rank in job.ranks), 10)
        job.end()
        session.forgotten(*job.pids)
    with Session() as session:
        session.start_agent()
        session.refused("offload", "--on-use", "panic", text="wait")


@case(90)
def test_agent_dies():
    """Shut while something is away, whoever looks after it; open when nothing is."""
    with Session(devices=2, memory="512M") as session:
        session.start_agent("--library", SYNC)
        job = Train(session, 2)
        at_work(session, job)
        session.ask("offload", "--retry", "20000")
        before = job.status()
        session.kill_agent()
        time.sleep(0.5)
        equal(job.status(), before, "a job whose memory is away went on without an agent")
        session.start_agent("--library", SYNC)
        session.ready(*job.pids)
        equal(job.status(), before, "and with the next one")
        session.ask("restore")
        goes_on(job)
        job.stop()
        job.finish()


if __name__ == "__main__":
    print("LIEN_SEED=%d" % SEED)
    sys.exit(main())
