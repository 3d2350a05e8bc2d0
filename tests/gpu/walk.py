#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Walks on a real driver: what control/orders/walk.c relies on, whether `lien check --deep` finds a job as
tracing knows it, and what that costs.

    tests/gpu/walk.py --lien build/lien [--no-job]

One GPU does for all but the job (PyTorch, two GPUs). Needs root and a C compiler, or --prog with
prog_walk built elsewhere. Prints figures; exit status 1 when a walk and the graph differ.
"""
import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import (
    ROOT, Failure, Session, check_binary, end, end_on_signals, probe_gpus, spawn, wait_for)

ROUNDS = 5


def build(directory: Path) -> Path:
    program = directory / "prog_walk"
    driver = subprocess.run("ldconfig -p | awk '/libcuda.so.1 .*x86-64/ {print $NF; exit}'",
                            shell=True, capture_output=True, text=True, check=True).stdout.strip()
    driver = os.environ.get("LIBCUDA") or driver
    if not driver:
        raise Failure("no libcuda.so.1: set LIBCUDA to its path")
    subprocess.run([os.environ.get("CC") or "cc", "-O2", "-D_GNU_SOURCE", f"-I{ROOT}/include",
                    str(ROOT / "tests/gpu/prog_walk.c"), "-o", str(program), driver], check=True)
    return program


def deep(lien, *arguments) -> dict:
    outcome = lien.command("check", "--deep", "--json", *arguments)
    if outcome.code not in (0, 1):
        raise Failure(outcome.text())
    return outcome.json()


def walk_rounds(lien, pids: list, name: str) -> bool:
    """Figures of some walks; whether none found a difference."""
    good = True
    for number in range(ROUNDS):
        result = deep(lien, *(word for pid in pids for word in ("--pid", pid)))
        for process in result["processes"]:
            print(f"{name} round {number}: pid {process['pid']}: {process['mappings']} mappings, "
                  f"{process['ms']:.1f} ms, {process['walk_ms']:.1f} ms of them in the process, "
                  f"{process['orders']} orders, {len(process['differences'])} differences"
                  f"{', ' + process['error'] if process['error'] else ''}", flush=True)
            for difference in process["differences"][:10]:
                print("   ", difference)
            good &= not process["error"] and not process["differences"]
    return good


def held(session, program: Path, count: int) -> bool:
    lien = session.lien
    process = spawn([lien.binary, "run", "--", program, "hold", count],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline().strip()
        if line != "ready":
            raise Failure(f"prog_walk hold: {line}")

        def ready():
            found = {p["pid"]: p for p in lien.json("ps")["processes"]}
            return found.get(process.pid, {}).get("control") == "ready"
        wait_for(f"process {process.pid} takes orders", ready, 20)
        return walk_rounds(lien, [process.pid], f"{count} mappings")
    finally:
        end(process)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lien", type=Path, default=ROOT / "build" / "lien")
    parser.add_argument("--prog", type=Path, help="prog_walk, if it is built already")
    parser.add_argument("--no-job", action="store_true", help="without PyTorch")
    options = parser.parse_args()
    end_on_signals()
    binary = check_binary(options.lien)
    good = True
    with tempfile.TemporaryDirectory() as directory:
        program = options.prog or build(Path(directory))
        for what in ("facts", "over"):
            run = subprocess.run([program, what], capture_output=True, text=True, timeout=120)
            print(run.stdout, end="")
            print(f"prog_walk {what}: exit status {run.returncode}", flush=True)
        with Session(binary, name="walk") as session:
            session.lien.start_agent()
            for count in (1000, 10000):
                good &= held(session, program, count)
            gpus, why = probe_gpus() if not options.no_job else (None, "--no-job")
            if not gpus:
                print(f"no job: {why}")
            else:
                job = session.job()
                job.ask("setup 4", 180)
                good &= walk_rounds(session.lien, job.pids, "job")
                job.quit()
    print("no difference" if good else "DIFFERENT")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
