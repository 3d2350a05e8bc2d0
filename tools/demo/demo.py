#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""make demo: lien on a two-rank PyTorch + NCCL job, from the agent's start to a checked restore.

With two GPUs and PyTorch the job is a real one (tests/gpu/job.py). Else it is the recording of one,
replayed on the software CUDA driver by processes whose driver calls real eBPF sees; the agent, the
control library and every byte moved are real then too. Ends with a line `demo: ok: ...`, or with
`demo: failed: ...` and exit status 1.

Lines that begin with `$` can be pasted into a shell, as root, in the repository's top folder; pids and
addresses are those of this run.
"""
import argparse
import os
import re
import shlex
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/gpu"))
sys.dont_write_bytecode = True

import harness  # noqa: E402
from harness import Failure, Late, Session, deadline, spawn, wait_for  # noqa: E402

RECORDING = ROOT / "tests/data/pytorch-nccl-2ranks.lien"
LINES_SHOWN = 24  # of the output of one command


def say(text: str = "") -> None:
    print(text, flush=True)


def shown(path: Path) -> str:
    return os.path.relpath(path, ROOT) if path.is_relative_to(ROOT) else str(path)


def typed(lien, *arguments) -> str:
    """A command as it is to be pasted."""
    return shlex.join([shown(Path(lien.binary).resolve()), *map(str, arguments)])


def show(lien, *arguments, timeout: float = 60) -> harness.Outcome:
    """Runs a `lien` command as a person would, and shows both."""
    say(f"\n$ {typed(lien, *arguments)}")
    outcome = lien.command(*arguments, timeout=timeout)
    lines = [line for line in outcome.err.splitlines() + outcome.out.splitlines() if line.strip()]
    for line in lines[:LINES_SHOWN]:
        say(line)
    if len(lines) > LINES_SHOWN:
        say(f"... {len(lines) - LINES_SHOWN} more lines")
    if outcome.code:
        raise Failure(f"`{typed(lien, *arguments)}` ended with {outcome.code}")
    return outcome


class RealJob:
    """Two ranks of tests/gpu/job.py."""

    def __init__(self, session: Session):
        say(f"# two ranks of tests/gpu/job.py, each started by `{typed(session.lien, 'run', '--')}`")
        self.job = session.job()
        answers = self.job.ask("setup 4", 120)
        say(f"{len(answers)} ranks, {answers[0]['communicators']} communicators, "
            f"{answers[0]['collectives']} collectives checked value by value")

    def verify(self, lien) -> str:
        answer = self.job.ask("check", 60)[0]
        say(f"\n# the job: {answer['collectives']} collectives on {answer['communicators']} "
            "communicators, checked value by value: right")
        return (f"{lien.request({'op': 'status'})['mappings']} mappings, "
                f"{answer['collectives']} collectives checked")

    def finish(self) -> None:
        self.job.ask("destroy", 60)
        codes = self.job.quit(30)
        if codes != [0] * len(codes):
            raise Failure(f"the ranks ended with {codes}")


class Replay:
    """`lien replay --software --hold FILE`: lines in, lines out."""

    def __init__(self, session: Session, recording: Path):
        arguments = ["replay", "--software", "--hold", shown(recording)]
        say("\n# in a second terminal, since it takes commands:")
        say(f"$ {typed(session.lien, *arguments)}")
        self.lines: list[str] = []
        self.log = session.logs / "replay.log"
        argv = [session.lien.binary, *arguments[:-1], recording]
        with open(self.log, "ab") as log:
            self.process = spawn(argv, env=session.lien.environment, stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1)
        session.processes.append(self.process)
        threading.Thread(target=self._read, daemon=True).start()
        say(self.expect("replay: ready", 60))

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def expect(self, start: str, limit_s: float) -> str:
        """The next line that starts so; `verify: failed`, the like, and an end are failures."""
        def ready():
            while self.lines:
                line = self.lines.pop(0)
                if line.startswith(start):
                    return line
                if re.match(r"\w+: (failed|error)", line):
                    raise Failure(line)
                say(line)
            if self.process.poll() is not None:
                time.sleep(0.2)  # the last lines may still be on their way
                if not self.lines:
                    raise Failure(f"replay ended with {self.process.returncode} instead of "
                                  f"'{start}'")
            return None
        return wait_for(f"replay's '{start}'", ready, limit_s, 0.01)

    def send(self, command: str) -> None:
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Failure(f"replay takes no commands: {error}") from None

    def verify(self, _lien) -> str:
        self.send("verify")
        line = self.expect("verify: ok", 60)
        say(f"\n# `verify` in the second terminal: every byte of every mapping, in every process\n{line}")
        count = re.search(r"(\d+) mappings", line)
        return f"{count[1] if count else '?'} mappings verified"

    def finish(self) -> None:
        self.send("quit")
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            raise Late("replay has not ended 30 s after quit") from None
        if code:
            raise Failure(f"replay ended with {code}")


def shared_buffer(graph: dict) -> tuple[int, str]:
    """The largest buffer that a second process maps too: its owner, and where the owner maps it."""
    best = (0, 0, "")
    able = {p["pid"] for p in graph["processes"] if p["complete"] and p["control"] == "ready"}
    for allocation in graph["allocations"]:
        owner = allocation["pid"]
        own = [m for m in allocation["mappings"] if m["pid"] == owner]
        others = [m for m in allocation["mappings"] if m["pid"] != owner]
        if owner in able and own and others and allocation["bytes"] > best[0]:
            best = (allocation["bytes"], owner, own[0]["address"])
    if not best[0]:
        raise Failure("no buffer is mapped by two processes")
    return best[1], best[2]


def offloaded_bytes(lien) -> int:
    return sum(p["offloaded_bytes"] for p in lien.request({"op": "ps"})["processes"])


def again(lien) -> tuple[dict, dict]:
    """A second round with the host memory at hand; its figures are the ones that count."""
    results = []
    for operation in ("offload", "restore"):
        result = lien.request({"op": operation, "timeout_ms": 30000}, 90)
        if result["outcome"] != "done":
            raise Failure(f"the second {operation}: {result['outcome']}")
        results.append(result)
    return results[0], results[1]


def tour(session: Session, job) -> str:
    lien = session.lien
    show(lien, "ps")
    show(lien, "mem")
    owner, address = shared_buffer(lien.request({"op": "graph"}))
    show(lien, "holders", owner, address)
    job.verify(lien)
    show(lien, "offload", "--timeout", 30000, timeout=90)
    show(lien, "ps")
    moved = offloaded_bytes(lien)
    if not moved:
        raise Failure("nothing was offloaded")
    show(lien, "restore", "--timeout", 30000, timeout=90)
    job.verify(lien)
    out, back = again(lien)
    say(f"\n# once more, the host memory being pinned now: offload {out['ms']:.1f} ms, "
        f"restore {back['ms']:.1f} ms")
    verified = job.verify(lien)
    job.finish()
    return (f"{moved:,} bytes moved to the host and back, offload {out['ms']:.1f} ms, "
            f"restore {back['ms']:.1f} ms, {verified}")


def run_real(options, machine: dict) -> str:
    say(f"# two ranks on real GPUs: PyTorch {machine['torch']}, NCCL {machine['nccl']}, CUDA "
        f"{machine['cuda']}")
    with Session(options.lien, options.logs, "demo") as session:
        start(session)
        return tour(session, RealJob(session))


def run_soft(options, reason: str) -> str:
    say(f"# {reason}: a recording of two PyTorch + NCCL ranks, replayed on the software CUDA "
        "driver")
    if not options.recording.exists():
        raise Failure(f"{options.recording} is not there")
    with Session(options.lien, options.logs, "demo") as session:
        start(session)
        return tour(session, Replay(session, options.recording.resolve()))


def start(session: Session) -> None:
    say(f"\n$ {typed(session.lien, 'agent')} &")
    ms = session.lien.start_agent()
    say(f"# eBPF probes in place and the socket answering after {ms:.0f} ms")


def choose(options) -> tuple[dict | None, str]:
    if options.soft:
        return None, "as asked for"
    return harness.probe_gpus(2)


def main() -> int:
    parser = argparse.ArgumentParser(description="lien from end to end, in under a minute")
    parser.add_argument("--lien", type=Path, default=ROOT / "build/lien")
    parser.add_argument("--recording", type=Path, default=RECORDING)
    parser.add_argument("--soft", action="store_true", help="the recording, even where GPUs are")
    parser.add_argument("--logs", type=Path, help="keep the logs in this directory")
    parser.add_argument("--limit", type=float, default=180, help="seconds for all of it")
    options = parser.parse_args()
    if os.geteuid() != 0:
        say("demo: failed: eBPF needs root: run `sudo make demo`")
        return 1
    harness.end_on_signals()
    began = time.monotonic()
    try:
        with deadline(options.limit, "the demo"):
            machine, reason = choose(options)
            line = run_real(options, machine) if machine else run_soft(options, reason)
    except Failure as failure:
        say(f"\ndemo: failed: {failure}")
        return 1
    except KeyboardInterrupt:
        say("\ndemo: failed: interrupted")
        return 130
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        say(f"\ndemo: failed: {type(error).__name__}: {error}")
        return 1
    say(f"\ndemo: ok: {line}, {time.monotonic() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
