#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""How an offload and a restore grow with the ranks and communicators of a job, on the software driver.

Each communicator has as many buffers as NCCL makes (tests/integration/make_recording.c), of 4 and 20 KiB instead of 2
and 10 MiB: what is measured is the work for each mapping, not the copies. Ratios within one run count: what twice as
much takes, for each mapping.
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))

from lien_test import Session, case, main, recording

SMALL = 4096
ROUNDS = 3
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
PHASES = {"offload": ("drain", "check", "save", "unmap", "drop"), "restore": ("create", "export", "import", "finish")}


def cpu_ms(pid):
    """User and system time of a process."""
    with open("/proc/%d/stat" % pid, encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_MS


def moved(session, operation):
    before, ranks = cpu_ms(session.agent.pid), 0
    result = session.ask(operation, "--timeout", 60000, limit=300)
    agent = cpu_ms(session.agent.pid) - before
    if result["outcome"] != "done":
        raise SystemExit("%s: %s" % (operation, result["outcome"]))
    ranks = [part["ms"] for part in result["processes"]]
    return {"ms": result["ms"], "agent_ms": agent, "bytes": result["bytes"],
            "gate_ms": result["gate_ms"], "rest_ms": result["rest_ms"],
            "phases": {phase: max(ms[phase] for ms in ranks) for phase in PHASES[operation]}}


def measure(ranks, comms):
    with Session(devices=ranks, memory="2G", LIEN_SOFTCUDA_GRANULARITY=str(SMALL)) as session:
        session.start_agent()
        job = session.replay(recording("ranks", ranks, comms, SMALL), limit=600)
        session.ready(*job.ranks, limit=60)
        dry = session.ask("offload", "--dry-run", limit=60)
        rounds = [{operation: moved(session, operation) for operation in PHASES} for _ in range(ROUNDS)]
        job.verify(limit=300)
        status = session.ask("status")
        found = {operation: min((each[operation] for each in rounds), key=lambda entry: entry["ms"])
                 for operation in PHASES}
        job.end()
        return {"ranks": ranks, "comms": comms, "mappings": sum(part["mappings"] for part in dry["processes"]),
                "first": rounds[0], "longest_turn_ms": status["loop"]["longest_turn_ms"], **found}


def header():
    print("%5s %5s %8s | %-10s %8s %8s %8s %9s  %s" % (
        "ranks", "comms", "mappings", "", "ms", "agent", "rest", "us/mapping", "slowest rank, ms"))


def show(each):
    for operation, phases in PHASES.items():
        entry = each[operation]
        print("%5d %5d %8d | %-10s %8.0f %8.0f %8.0f %9.1f  %s" % (
            each["ranks"], each["comms"], each["mappings"], operation, entry["ms"], entry["agent_ms"],
            entry["rest_ms"] or 0, entry["ms"] * 1e3 / each["mappings"],
            ", ".join("%s %.0f" % (phase, entry["phases"][phase]) for phase in phases)), flush=True)


@case(3000)
def ranks():
    found = []
    header()
    for size in SIZES:
        found.append(measure(*size))
        show(found[-1])
    if ARGUMENTS.json:
        with open(ARGUMENTS.json, "w", encoding="ascii") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="2x8,2x16,2x32,4x8,4x16,4x32,8x8,8x16,8x32", help="RANKSxCOMMUNICATORS,...")
    parser.add_argument("--json", metavar="FILE", help="the figures")
    ARGUMENTS = parser.parse_args()
    SIZES = [tuple(int(n) for n in size.split("x")) for size in ARGUMENTS.sizes.split(",")]
    del sys.argv[1:]
    sys.exit(main())
