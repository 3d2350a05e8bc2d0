# SPDX-License-Identifier: BSD-2-Clause
"""How long it takes to attach all probes, at the agent's start and to one more copy of the driver, and
to detach them."""

import json
import os
import shutil
import signal
import statistics
import time

from lien_test import LIEN, SOFTCUDA, Session, equal, wait_for

from traced import NCCL, Calls

METHODS = {"uprobe-multi": (), "perf": ("--no-uprobe-multi",)}
STEP = 0.001


def elapsed_ms(began):
    return (time.monotonic() - began) * 1e3


def libraries(session):
    return json.loads(session.request('{"op": "status"}\n'))["result"]["libraries"]


def second_copy(session):
    """ms from the start of a process that maps a copy of the driver until the copy is probed."""
    folder = session.path("copy")
    os.makedirs(folder, exist_ok=True)
    shutil.copy(os.path.join(SOFTCUDA, "libcuda.so.1"), folder)
    known = len(libraries(session))
    began = time.monotonic()
    calls = Calls(session, 0, LD_LIBRARY_PATH=folder)
    wait_for("the copy is probed", lambda: len(libraries(session)) > known, 30, STEP)
    took = elapsed_ms(began)
    calls.process.end()
    return took


def once(method, count):
    with Session() as session:
        calls = Calls(session, count)
        began = time.monotonic()
        session.agent = session.spawn(
            [LIEN, "agent", "--library", NCCL, *METHODS[method]])
        wait_for("the agent is ready", lambda: " ready: " in session.agent.said(), 60, STEP)
        found = {"attach_ms": elapsed_ms(began)}
        equal(session.ask("status")["attach"], method, "attach")
        found["files"] = len(libraries(session))
        found["calls"] = sum(library["calls"] for library in libraries(session))
        if count:
            found["ns"] = calls.round()
        found["copy_ms"] = second_copy(session)
        began = time.monotonic()
        session.agent.signal(signal.SIGTERM)
        equal(session.agent.wait(120), 0, "exit status of the agent")
        found["detach_ms"] = elapsed_ms(began)
        session.agent = None
        return found


def attaching(tries, count):
    """By the way of attaching: median times; with one probe each also what a call costs then."""
    found = {"perf": once("perf", count)}
    runs = [once("uprobe-multi", 0) for _ in range(tries)]
    found["uprobe-multi"] = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return found
