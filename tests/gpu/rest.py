#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""How long jobs as users write them take to come to rest, and whether they notice.

    tests/gpu/rest.py [--job NAME]... [--mode run|attach]... [--offloads N]

Each job (tests/gpu/train.py) is offloaded and restored N times at random moments, started by `lien run`
or attached to while it trains; at the end all jobs run once more undisturbed, and their losses are
compared bit by bit. Prints the times from the request to the rest (gate and drain), against the goal of
one step and 20 ms in the median and two steps and 50 ms at worst; how long the steps took in which
offloads fell; and the times of the offloads and restores as their caller waits. A job counts as passed
if each offload succeeds and the losses are equal: times are reported, not judged.

Job `nonblocking` is ddp with communicators that do not block. With `stopped` one rank of ddp is stopped
before each offload: it must be refused by a line that names the process, and succeed once that goes on.

On one GPU the two ranks share it, and talk over sockets. Ends with "N passed, N failed".
"""
import argparse
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import harness
from harness import Failure, Session, end, end_on_signals, free_port, place, spawn, wait_for

TRAIN = Path(__file__).resolve().parent / "train.py"
ALIKE = {"nonblocking": "ddp", "stopped": "ddp"}  # jobs that train.py knows by another name
JOBS = ("ddp", "fsdp2", "fsdp2_prefetch", "tensor", "flags", "threads", "pipeline", "moe", "graph", "long",
        "nonblocking", "stopped", "stall", "compute")
FOREVER = 1000000  # steps
RANKS = 2
MODES = ("run", "attach")
SLOW = ("compute", "stall")  # an eighth of the offloads


class Rank:
    def __init__(self, number, argv, env, log):
        with open(log, "ab") as errors:
            self.process = spawn(argv, env={**env, "RANK": str(number), **place(number, harness.GPUS)},
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.pid = self.process.pid
        self.losses, self.times, self.ended = [], [], False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            words = line.split()
            if words[:1] == ["step"]:
                self.losses.append(words[2])
                self.times.append(time.monotonic())
            self.ended |= words == ["end"]


class Job:
    def __init__(self, name, steps, directory, launcher=()):
        env = {**harness.QUIET_NCCL, **os.environ, "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "4",
               "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
               "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # moves after `attach`, too
        if name == "nonblocking":
            env["TORCH_NCCL_USE_COMM_NONBLOCKING"] = "1"
        if name == "threads":  # streams that share a hardware queue would wait for each other
            env["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
        self.name = name
        argv = [*launcher, sys.executable, "-u", TRAIN, ALIKE.get(name, name), str(steps)]
        self.ranks = [Rank(number, argv, env, directory / f"{name}.{number}.log")
                      for number in range(RANKS)]

    def until(self, step, limit_s=120):
        def there():
            for rank in self.ranks:
                if rank.process.poll() is not None:
                    rank.reader.join(10)  # its last words
                if rank.process.returncode is not None and not rank.ended:
                    raise Failure(f"a rank has ended with {rank.process.returncode} "
                                  f"after {len(rank.losses)} steps")
            return all(rank.ended or len(rank.losses) >= step for rank in self.ranks)
        wait_for(f"step {step}", there, limit_s)

    def losses(self):
        return [list(rank.losses) for rank in self.ranks]

    def steps(self):
        """(when it began, ms) of each step of the first rank but the first ones."""
        times = self.ranks[0].times[1 if self.name in SLOW else 3:]
        return [(began, 1e3 * (ended - began)) for began, ended in zip(times, times[1:])]

    def end(self):
        for rank in self.ranks:
            end(rank.process)


def spread(values):
    return f"{statistics.median(values):.0f} ms median, {max(values):.0f} worst" if values else "none"


def refused_while_stopped(session, job):
    """Returns None, or what was wrong."""
    rank = job.ranks[-1]
    os.kill(rank.pid, signal.SIGSTOP)
    try:
        outcome = session.lien.refused("offload", "--owner", "all", timeout=60)
    except Failure as failure:
        return str(failure)
    finally:
        os.kill(rank.pid, signal.SIGCONT)
    return None if str(rank.pid) in outcome.text() else f"refused without the process: {outcome.text()}"


class Offloads:
    """Of one job, and its restores, in ms as the caller waits."""

    def __init__(self):
        self.took, self.restores, self.results, self.wrong = [], [], [], []
        self.moments = []  # when each began, and its restore ended

    def once(self, session):
        began = time.monotonic()
        try:
            result = session.lien.json("offload", "--owner", "all", timeout=120)
        except Failure as failure:
            self.wrong.append(str(failure).splitlines()[-1][:300])
            return
        between = time.monotonic()
        if result["outcome"] != "done":
            self.wrong.append(f"nothing to do: {result['left'][:1]}")
            return
        session.lien.json("restore", timeout=120)
        ended = time.monotonic()
        self.took.append(1e3 * (between - began))
        self.restores.append(1e3 * (ended - between))
        self.results.append(result)
        self.moments.append((began, ended))

    def often(self, session, job, count, rng):
        for _ in range(count):
            time.sleep(rng.uniform(0.05, 0.35))
            wrong = refused_while_stopped(session, job) if job.name == "stopped" else None
            if wrong:
                self.wrong.append(wrong)
            self.once(session)

    def steps(self, job):
        """Returns the ms of the steps apart from all offloads, and of those in which one fell."""
        apart, during = [], []
        for began, ms in job.steps():
            ended = began + ms / 1e3
            fell = any(a < ended and b > began for a, b in self.moments)
            (during if fell else apart).append(ms)
        return apart, during


def disturbed(session, name, mode, count):
    """Returns how it went, and the losses of both ranks."""
    launcher = [session.lien.binary, "run", "--"] if mode == "run" else []
    if mode == "run":
        session.lien.start_agent()
    job, offloads = Job(name, FOREVER, session.logs, launcher), Offloads()
    try:
        job.until(3 if name in SLOW else 8)
        if mode == "attach":
            session.lien.start_agent()
            began = time.monotonic()
            session.lien.json("attach", "--all", timeout=200)
            print(f"   attached in {1e3 * (time.monotonic() - began):.0f} ms", flush=True)
        offloads.often(session, job, count, random.Random(5))
        job.until(len(job.ranks[0].losses) + 3)
    finally:
        job.end()
        session.lien.stop_agent()
    report(name, mode, offloads, job, count)
    return not offloads.wrong, job.losses()


def report(name, mode, offloads, job, count):
    apart, during = offloads.steps(job)
    step = statistics.median(apart) if apart else float("nan")
    gates = [result["gate_ms"] for result in offloads.results]
    rests = [result["rest_ms"] for result in offloads.results]
    missed = [] if rests else ["no offload"]
    if rests and statistics.median(rests) > step + 20:
        missed.append("median")
    if rests and max(rests) > 2 * step + 50:
        missed.append("worst")
    moved = max((result["bytes"] for result in offloads.results), default=0)
    print(f"{name}, {mode}: {len(rests)} of {count}; step {step:.0f} ms; at rest after {spread(rests)}"
          f"{' (goal missed: ' + ', '.join(missed) + ')' if missed else ''} (gate {spread(gates)}); offload {spread(offloads.took)}; "
          f"restore {spread(offloads.restores)}; the step meanwhile {spread(during)}; "
          f"{moved / 2 ** 20:.0f} MiB", flush=True)
    if rests:
        worst = offloads.results[rests.index(max(rests))]
        print(f"   at the worst: {worst['let_in']} let in, {worst['guesses']} by guess;",
              [process["ms"] for process in worst["processes"]], flush=True)
    for text in offloads.wrong[:3]:
        print(f"   {text}", flush=True)


def undisturbed(session, steps):
    """All jobs at once. steps: by name. Returns the losses by name; none of those that failed."""
    jobs, losses = {name: Job(name, count, session.logs) for name, count in steps.items()}, {}
    try:
        for name, job in jobs.items():
            try:
                job.until(steps[name], 400)
                losses[name] = job.losses()
            except Failure as failure:
                print(f"FAILED {name}, undisturbed: {failure}", flush=True)
    finally:
        for job in jobs.values():
            job.end()
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lien", type=Path, action="append", help="may be repeated, to compare")
    parser.add_argument("--job", action="append", choices=list(JOBS))
    parser.add_argument("--mode", action="append", choices=("run", "attach"))
    parser.add_argument("--offloads", type=int, default=30)
    options = parser.parse_args()
    end_on_signals()
    machine, reason = harness.probe_gpus(2)
    if machine is None:
        machine, reason = harness.probe_gpus(1)
    harness.GPUS = machine["gpus"] if machine else 0
    if not machine:
        print(f"skipped: {reason}\n0 passed, 0 failed")
        return 0
    binaries = options.lien or [harness.ROOT / "build/lien"]
    passed, got, steps = {}, {}, {}
    for name, lien, mode in itertools.product(options.job or JOBS, binaries, options.mode or MODES):
        what = f"{name}, {mode}" + (f", {lien}" if len(binaries) > 1 else "")
        count = max(options.offloads // 8, 1) if name in SLOW else options.offloads
        with Session(lien, name="rest") as session:
            try:
                passed[what], losses = disturbed(session, name, mode, count)
                got[what] = name, losses
                steps[name] = max(steps.get(name, 0), *map(len, losses))
            except Failure as failure:
                print(f"FAILED {what}: {failure}\n{session.tails()[-3000:]}", flush=True)
                passed[what] = False
    with Session(binaries[0], name="rest") as session:
        wanted = undisturbed(session, steps)
    for what, (name, losses) in got.items():
        equal = name in wanted and all(want[:len(have)] == have for want, have in zip(wanted[name], losses))
        print(f"{what}: losses of {min(map(len, losses))} steps {'equal' if equal else 'DIFFER'}", flush=True)
        passed[what] &= equal
    failed = len(passed) - sum(passed.values())
    print(f"{sum(passed.values())} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
