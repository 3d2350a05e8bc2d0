#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Which versions of NCCL lien moves the memory of.

    tests/gpu/nccl_versions.py [--mode run|attach]... [--cumem 1|0]... LIBRARY...

Runs two ranks of prog_nccl_versions.c over each libnccl.so.2: NCCL_CUMEM_ENABLE=1 and 0, started by
`lien run` and joined by `lien attach`. The job checks the values of all-reduce, all-to-all,
all-gather and send/receive all the while, on plain, registered and window memory (what the version
has), and is offloaded and restored three times at random moments; then it makes another communicator
and ends.

Prints a table, version by setting: what moved, or that it failed, and why below. After `lien attach`
with NCCL_CUMEM_ENABLE=0 all memory may stay, for cudaMalloc's cannot be put back at its address; the
job must go on all the same. Needs root and a C compiler, or --prog with prog_nccl_versions built
elsewhere; no PyTorch. On one GPU, or with --share, the ranks share it and talk over sockets. Ends
with "N passed, N failed"; a library that cannot be loaded counts as one that failed.
"""
import argparse
import itertools
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import harness
from harness import (
    MIB, ROOT, Failure, Late, Session, deadline, end, end_on_signals, place, run_command, spawn, wait_for)
from lien_shared.process import at_a_moment

RANKS = 2
OFFLOADS = 3
STEPS = 3  # that begin and end between two offloads
START_S = 120
STEPS_S = 60
CASE_S = 300
MODES = ("run", "attach")
CUMEM = {1: "cuMem on", 0: "cuMem off"}


class Rank:
    """One process of prog_nccl_versions.c."""

    def __init__(self, number: int, argv: list, env: dict, log: Path):
        self.number = number
        self.steps, self.said = 0, ""
        self.id = self.ready = self.done = self.failed = None
        with open(log, "ab") as errors:
            self.process = spawn(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                 text=True, bufsize=1, errors="replace")
        self.pid = self.process.pid
        self.log = log
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "step":
                self.steps = int(rest)
            elif word in ("id", "ready", "done", "failed"):
                setattr(self, word, rest)
            else:  # NCCL's own
                self.said = line.strip()
                with open(self.log, "a", encoding="utf-8") as log:
                    log.write(line)

    def send(self, line: str) -> None:
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended: check() says so

    def check(self) -> None:
        ended = self.process.poll() is not None
        if ended:
            self.reader.join(10)  # its last words
        if self.failed or (ended and self.done is None):
            why = self.failed or f"ended with status {end(self.process)}"
            raise Failure(f"rank {self.number}: {why}" + (f"; NCCL said: {self.said}" if self.said else ""))


class Job:
    def __init__(self, session: Session, program: Path, library: Path, cumem: int, launcher: list):
        env = {**harness.QUIET_NCCL, "NCCL_DEBUG": "WARN", **session.lien.environment,
               "NCCL_CUMEM_ENABLE": str(cumem)}
        self.ranks: list[Rank] = []
        session.jobs.append(self)
        for number in range(RANKS):
            own = place(number, harness.GPUS)
            self.ranks.append(Rank(number, [*launcher, program, library, number, RANKS, own["LOCAL_RANK"]],
                                   {**env, **own}, session.logs / f"rank.{number}.log"))
        identity = self.wait("rank 0 names its communicator", lambda: self.ranks[0].id, START_S)
        for rank in self.ranks[1:]:
            rank.send(identity)
        self.wait("the ranks are ready", lambda: all(rank.ready for rank in self.ranks), START_S)

    def wait(self, what: str, condition, limit_s: float):
        def holds():
            for rank in self.ranks:
                rank.check()
            return condition()
        try:
            return wait_for(what, holds, limit_s)
        except Late as late:
            raise Late(f"{late}; steps {[rank.steps for rank in self.ranks]}") from None

    def go_on(self) -> None:
        """Until each rank has begun and ended some more steps."""
        until = [rank.steps + STEPS + 1 for rank in self.ranks]

        def there():
            if any(rank.done for rank in self.ranks):
                raise Failure("the job has ended, and nobody asked it to: does its broadcast work?")
            return all(rank.steps >= steps for rank, steps in zip(self.ranks, until))
        self.wait(f"{STEPS} more steps", there, STEPS_S)

    def finish(self) -> int:
        """The bytes that were checked in all ranks."""
        self.ranks[0].send("stop")
        self.wait("the job ends", lambda: all(rank.done for rank in self.ranks), STEPS_S)
        try:
            codes = [rank.process.wait(30) for rank in self.ranks]
        except subprocess.TimeoutExpired as late:
            raise Late(f"a rank is done, and has not ended after {late.timeout:g} s") from None
        if any(codes):
            raise Failure(f"the ranks ended with {codes}")
        return sum(int(rank.done.split()[1]) for rank in self.ranks)

    def kill(self) -> None:
        for rank in self.ranks:
            end(rank.process)


def attach(lien) -> None:
    began = time.monotonic()
    outcome = lien.command("attach", "--json", "--all", timeout=200)
    answer = outcome.json()
    adoption = answer["adoption"] or {}
    errors = [f"process {p['pid']}: {p['error']}" for p in answer["processes"] if p["error"]]
    errors += [f"adoption: {adoption['error']}"] if adoption.get("error") else []
    if outcome.code or errors:
        raise Failure(f"lien attach: {'; '.join(errors) or outcome.text()}")
    print(f"     attached in {1e3 * (time.monotonic() - began):.0f} ms", flush=True)


def why_left(out: dict) -> str:
    """By reason, of both ranks."""
    reasons: dict[str, int] = {}
    for left in out["left"]:
        reasons[left["reason"]] = reasons.get(left["reason"], 0) + left["bytes"]
    return "; ".join(f"{size / MIB:.0f} MiB stay: {reason}" for reason, size in reasons.items())


def offload_and_restore(lien, dice, may_stay: bool) -> tuple[int, int]:
    """Bytes moved, and left."""
    at_a_moment(dice, 0.3)
    outcome = lien.command("offload", "--json", "--owner", "all", timeout=120)
    if outcome.code and not (may_stay and outcome.out):
        raise Failure(f"lien offload: {outcome.text()[:1000]}")
    out = outcome.json()
    left = sum(left["bytes"] for left in out["left"])
    if outcome.code:
        if out["outcome"] != "nothing to do" or not left:
            raise Failure(f"lien offload: {outcome.text()[:1000]}")
        print(f"     {out['outcome']}: {why_left(out)}", flush=True)
        return 0, left
    at_a_moment(dice, 0.1)
    back = lien.json("restore", timeout=120)
    if (back["outcome"], back["bytes"]) != ("done", out["bytes"]):
        raise Failure(f"restore: {back['outcome']}, {back['bytes']:,} bytes of {out['bytes']:,}")
    print(f"     {out['bytes'] / MIB:.0f} MiB offloaded in {out['ms']:.0f} ms, restored in {back['ms']:.0f} ms"
          + (f"; {why_left(out)}" if left else ""), flush=True)
    return out["bytes"], left


def check_running(lien, pids: list, watched: bool) -> None:
    """What lien knows of the ranks in the end. watched: all the time."""
    seen = {p["pid"]: p for p in lien.json("ps")["processes"]}
    for pid in pids:
        process = seen.get(pid, {})
        if process.get("state") != "running" or (watched and not process["complete"]):
            raise Failure(f"lien ps: process {pid} is {process.get('state', 'not there')}"
                          + (", and incomplete" if process and not process["complete"] else ""))


def run_one(session, options, library: Path, mode: str, cumem: int) -> dict:
    lien, dice = session.lien, random.Random(options.seed)
    if mode == "run":
        lien.start_agent(library=library)
    job = Job(session, options.prog, library, cumem, [lien.binary, "run", "--"] if mode == "run" else [])
    job.go_on()
    if mode == "attach":
        lien.start_agent(library=library)
        attach(lien)
    moves = []
    for _ in range(OFFLOADS):
        moves.append(offload_and_restore(lien, dice, mode == "attach" and not cumem))
        job.go_on()
    check_running(lien, [rank.pid for rank in job.ranks], mode == "run")
    checked = job.finish()
    lien.check_agent()
    print(f"     {job.ranks[0].done.split()[0]} steps, {checked / MIB:.0f} MiB checked", flush=True)
    _, all_to_all, memory = job.ranks[0].ready.split()
    return {"moved": max(moved for moved, _ in moves), "left": max(left for _, left in moves),
            "all_to_all": all_to_all, "memory": memory}


def run_setting(options, library: Path, number: str, mode: str, cumem: int) -> dict:
    name = f"{number}, {mode}, {CUMEM[cumem]}"
    print(f"   {name}", flush=True)
    try:
        with deadline(CASE_S, name), Session(options.lien, name="nccl") as session:
            result = run_one(session, options, library, mode, cumem)
    except Failure as failure:
        print(f"FAILED {name}: {failure}", flush=True)
        return {"failed": str(failure)}
    print(f"ok {name}", flush=True)
    return result


def version_text(number: int) -> str:
    """NCCL counts 2.9 and later in other steps than those before."""
    if number >= 10000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def ask(options, *arguments) -> str:
    """What the program answers to a question; Failure with its own words."""
    outcome = run_command([options.prog, *arguments], 60)
    word, _, rest = outcome.out.strip().partition(" ")
    if outcome.code or word != arguments[0]:
        raise Failure(rest if word == "failed" else f"status {outcome.code} {outcome.text()}".strip())
    return rest


def run_library(options, library: Path) -> dict:
    """A row of the table."""
    print(f"{library}", flush=True)
    try:
        number = version_text(int(ask(options, "version", library)))
    except Failure as failure:
        print(f"FAILED {library}: cannot be loaded: {failure}", flush=True)
        return {"version": str(library), "cells": {}, "failed": f"cannot be loaded: {failure}"}
    cells = {setting: run_setting(options, library, number, *setting) for setting in options.settings}
    return {"version": number, "cells": cells}


def cell_text(cell: dict | None) -> str:
    if cell is None:
        return "not loaded"
    if "failed" in cell:
        return "FAILED"
    return f"passed, {cell['moved'] / MIB:,.0f} MiB" + (
        f" ({cell['left'] / MIB:,.0f} stay)" if cell["left"] else "")


def print_table(rows: list, settings: list) -> None:
    print("\n| NCCL | " + " | ".join(f"{mode}, {CUMEM[cumem]}" for mode, cumem in settings)
          + " | all-to-all by | memory |\n" + "|---" * (len(settings) + 3) + "|")
    for row in rows:
        known = [cell for cell in row["cells"].values() if "memory" in cell]
        memory = max((cell["memory"] for cell in known), key=lambda text: "window" in text, default="-")
        print(f"| {row['version']} | "
              + " | ".join(cell_text(row["cells"].get(setting)) for setting in settings)
              + f" | {known[0]['all_to_all'] if known else '-'} | {memory.replace(',', ', ')} |")
    print()
    for name, why in failures(rows):
        print(f"{name}: {why[:500]}")


def failures(rows: list):
    for row in rows:
        if "failed" in row:
            yield row["version"], row["failed"]
        for (mode, cumem), cell in row["cells"].items():
            if "failed" in cell:
                yield f"{row['version']}, {mode}, {CUMEM[cumem]}", cell["failed"]


def build(directory: Path) -> Path:
    program = directory / "prog_nccl_versions"
    subprocess.run([os.environ.get("CC") or "cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-pthread",
                    f"-I{ROOT}/include", f"-I{ROOT}", ROOT / "tests/gpu/prog_nccl_versions.c", "-o", program,
                    "-ldl"], check=True)
    return program


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="+", type=Path, metavar="LIBRARY", help="a libnccl.so.2")
    parser.add_argument("--lien", type=Path, default=ROOT / "build/lien")
    parser.add_argument("--prog", type=Path, help="prog_nccl_versions, if it is built already")
    parser.add_argument("--mode", action="append", choices=MODES, help="may be repeated; default: both")
    parser.add_argument("--cumem", action="append", type=int, choices=list(CUMEM),
                        help="NCCL_CUMEM_ENABLE; may be repeated; default: both")
    parser.add_argument("--share", action="store_true", help="both ranks on one GPU, over sockets")
    parser.add_argument("--seed", type=int, default=5, help="of the moments of the offloads")
    options = parser.parse_args()
    options.settings = list(itertools.product(options.mode or MODES, options.cumem or CUMEM))
    return options


def main() -> int:
    options = parse()
    end_on_signals()
    with tempfile.TemporaryDirectory(prefix="lien-nccl-") as directory:
        options.prog = (options.prog or build(Path(directory))).resolve()
        try:
            devices = int(ask(options, "devices"))
        except Failure as failure:
            print(f"skipped: no GPU: {failure}\n0 passed, 0 failed")
            return 0
        harness.GPUS = 1 if options.share else min(devices, RANKS)
        print(f"{devices} GPUs" + (", of which the ranks share one" if harness.GPUS < RANKS else ""))
        rows = [run_library(options, library.absolute()) for library in options.libraries]
    print_table(rows, options.settings)
    failed = len(list(failures(rows)))
    passed = sum("failed" not in cell for row in rows for cell in row["cells"].values())
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
