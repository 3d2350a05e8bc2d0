#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What a gate costs a process that has none, by the way in which probes are attached: the same process
makes the same calls with an agent, and then while the memory of another process is away. Also the time
that the gate takes to make, and that the agent takes to end, when it removes all its probes. And how soon the gate
of a job stands, by its ranks: alone on its node they share links, beside another process each has its own.

    make all integration-tests build/tests/bench/libnccl.so.2 && python3 tests/bench/gates.py
"""

import os
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))

from lien_test import MIB, Session
from traced import PARTS, Calls
from train_job import SYNC, Train

MODES = {"bound to the process": (), "shared": ("--no-process-probes",),
         "shared, one by one": ("--no-uprobe-multi",)}
KINDS = {"properties": "held by gates, not traced", "retain": "held by gates, traced",
         "create": "not held by gates, traced"}
CALLS, ROUNDS = 20000, 5
RANKS, OFFLOADS, PAUSE_S = (2, 4, 8), 9, 1.0  # for the kernel to remove the probes of the one before


def round_of(calls):
    for kind in KINDS:
        calls.measure(kind, 200)
    return {kind: statistics.median(calls.measure(kind, CALLS) for _ in range(PARTS)) for kind in KINDS}


def least(rounds):
    return {kind: min(each[kind] for each in rounds) for kind in KINDS}


def ms_of(session, *args):
    began = time.monotonic()
    session.ask(*args)
    return (time.monotonic() - began) * 1e3


def measure(options):
    with Session() as session:
        calls = Calls(session, CALLS)
        session.start_agent(*options, keep=False)
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        without = least([round_of(calls) for _ in range(ROUNDS)])
        first = ms_of(session, "offload", "--owner", "all", "--pid=%d" % driver.pid)
        away = least([round_of(calls) for _ in range(ROUNDS)])
        session.ask("restore")
        later = []
        for _ in range(3):
            later.append(ms_of(session, "offload", "--owner", "all", "--pid=%d" % driver.pid))
            session.ask("restore")
        began = time.monotonic()
        session.agent.signal(signal.SIGTERM)
        session.agent.wait(300)
        ended = time.monotonic() - began
        session.agent = None
        return without, away, first, statistics.median(later), ended


def of_job(ranks):
    """Milliseconds from the request until the job's calls can be held: {alone on its node: median}"""
    with Session(devices=4, memory="4G") as session:
        session.start_agent("--library", SYNC)
        job = Train(session, ranks)
        session.ready(*job.pids)
        found = {}
        for alone in (True, False):
            if not alone:
                other = session.driver()
                session.known(other.pid)
            found[alone] = []
            for _ in range(OFFLOADS):
                time.sleep(PAUSE_S)
                found[alone].append(session.ask("offload", *["--pid=%d" % pid for pid in job.pids], "--owner",
                                                "all", "--retry", "20000")["gate_ms"])
                session.ask("restore")
        job.stop()
        job.finish()
        return {alone: statistics.median(times) for alone, times in found.items()}


def main():
    for ranks in RANKS:
        times = of_job(ranks)
        print("%d ranks: the gate stands after %.1f ms alone, %.1f ms beside another process" % (
            ranks, times[True], times[False]), flush=True)
    for name, options in MODES.items():
        without, away, first, later, ended = measure(options)
        print(name)
        for kind, what in KINDS.items():
            print("  %-26s %6.0f ns, while another process is held %6.0f ns" % (
                what, without[kind], away[kind]))
        print("  offload of 2 MiB: first %.0f ms, later %.0f ms; the agent's end %.1f s" % (
            first, later, ended), flush=True)


if __name__ == "__main__":
    main()
