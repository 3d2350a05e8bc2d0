#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Random programs of driver calls (tests/same/) see the same under `lien run` as without it.

    tests/gpu/same.py --lien build/lien [--program build/tests/integration/prog_same] [--seeds N] [--steps M]
                      [--first SEED] [--json FILE]

Each seed is a program with contexts of its own, natively and under `lien run` beside an agent, and another one with
primary contexts only, whose memory is offloaded and restored at its pauses. Prints what differs first for each seed,
what moved, and a summary as JSON. SAME_ALL=1 in the environment draws and compares what is known to differ, too.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import MIB, ROOT, Failure, Lien, end, end_on_signals, spawn

from lien_shared.same import REFUSED, Difference, compare, lines_of

LIMIT_S = 120


class Runs:
    def __init__(self, lien: Lien, program: Path, directory: Path):
        self.lien, self.program, self.directory = lien, program, directory
        self.moved, self.moves, self.refused = 0, 0, 0

    def move(self, pid: int) -> None:
        """All of its memory, to the host and back."""
        offload = self.lien.command("offload", "--json", "--owner", "all", "--pid", str(pid), "--with-closure")
        if offload.code:
            self.refused += 1
            if not any(why in offload.text() for why in REFUSED) and "no process" not in offload.text():
                raise Failure(f"offload: {offload.text()[:600]}")
            return
        self.moved += offload.json()["bytes"]
        self.moves += 1
        self.lien.json("restore")

    def run(self, arguments: list, under_lien: bool, moved: bool = False) -> list:
        """The lines of its log."""
        log = self.directory / "same.log"
        log.unlink(missing_ok=True)
        environment = {**self.lien.environment, "SAME_LOG": str(log), **({"SAME_PAUSE": "1"} if moved else {})}
        argv = [*([self.lien.binary, "run", "--"] if under_lien else []), self.program, *arguments]
        with open(self.directory / "same.err", "wb") as errors:
            job = spawn(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            for _ in job.stdout:
                self.move(job.pid)
                job.stdin.write("go on\n")
                job.stdin.flush()
            code = job.wait(LIMIT_S)
        finally:
            end(job)
        said = (self.directory / "same.err").read_text(errors="replace")[-600:]
        return (lines_of(log) if log.exists() else []) + ([] if code == 0 else [f"ended with {code}: {said}"])

    def differences(self, seed: int, steps: int) -> list:
        found = []
        for contexts, moved in ((4, False), (0, True)):
            arguments = [str(seed), str(steps), "2", str(contexts)]
            try:
                compare(self.run(arguments, False), self.run(arguments, True, moved))
            except Difference as difference:
                found.append(f"{'moved' if moved else 'under lien'}, prog_same {' '.join(arguments)}\n{difference}")
            except Failure as failure:
                found.append(f"prog_same {' '.join(arguments)}: {failure}")
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lien", type=Path, default=ROOT / "build" / "lien")
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "tests" / "integration" / "prog_same")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    end_on_signals()
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        lien = Lien(options.lien, Path(directory), {name: value for name, value in os.environ.items()
                                                    if name != "LIEN_PLAIN"})
        runs = Runs(lien, options.program.resolve(), Path(directory))
        lien.start_agent()
        try:
            for seed in range(options.first, options.first + options.seeds):
                differs = runs.differences(seed, options.steps)
                print(f"{'FAILED' if differs else 'ok'} {seed}", *differs, sep="\n", flush=True)
                if differs:
                    found[seed] = differs
        finally:
            lien.stop_agent()
    summary = {"seeds": options.seeds, "steps": options.steps, "first": options.first, "differ": found,
               "moves": runs.moves, "moved_mib": runs.moved // MIB, "refused": runs.refused}
    if options.json:
        options.json.write_text(json.dumps(summary, indent=1))
    print(json.dumps({**summary, "differ": sorted(found)}))
    print(f"{options.seeds - len(found)} passed, {len(found)} failed")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
