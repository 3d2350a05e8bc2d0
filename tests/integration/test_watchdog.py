#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch's watchdog does not notice the time that memory was away (control/driver/watchdog.c)."""

import os
import sys
import time

from lien_test import LIEN, Session, case, check, equal, main, program, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
AWAY_S = 1


def clocks(job):
    """ms that the watchdog's clock is behind, and the others'"""
    job.send("now")
    return [int(word) for word in job.line().split()]


def right(*behind):
    """Right, except for the time that it takes to compare them."""
    return all(0 <= ms < AWAY_S * 500 for ms in behind)


def away(session, seconds):
    equal(session.ask("offload", "--owner", "all")["outcome"], "done", "offload")
    time.sleep(seconds)
    equal(session.ask("restore")["outcome"], "done", "restore")


@case()
def test_time_away_does_not_count():
    with Session(LIEN_PLAIN="0") as session:
        session.start_agent()
        job = session.spawn([LIEN, "run", "--", sys.executable, os.path.join(HERE, "watched.py"),
                             program("libtorch_cuda.so")])
        equal(job.line(), "ready", "job")
        session.ready(job.pid)
        check(right(*clocks(job)), "before")
        away(session, AWAY_S)
        behind, other = clocks(job)
        check(behind >= AWAY_S * 1000, "the watchdog sees %d ms of %d s" % (behind, AWAY_S))
        check(right(other), "everybody else's clock is %d ms behind" % other)
        away(session, 0)
        more, _ = clocks(job)
        check(more > behind, "%d ms, then %d: both times count" % (behind, more))
        wait_for("all time counts again", lambda: right(*clocks(job)))


if __name__ == "__main__":
    main()
