#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Every run on GPUs, the most valuable first, as far as the time goes.

    tests/gpu/all.sh [--minutes N] [--continue FILE] [--only NAME]... [--list]

Writes one JSON file (--json, default $OUT/all.json, else build/gpu/all.json), anew after each step, so that a call
that is ended has written what it found. The next call goes on: --continue FILE takes what is done from such a file.
Without it, a file that --json names and that is there already is continued.

Of each run the file says its state:

    passed, failed   it is done; "last" is its last line, "parts" has each of its cases
    partly           some of its parts are done, the next call makes the others: there was no time, or this machine
                     cannot run them
    cut              it has no parts, and there was no time for its end: the next call begins it anew. After the second
                     time it has failed
    pending          not begun: the time that was left was less than it takes
    skipped          this machine cannot run it, and "why"; another may
    missing          there is no such program or case yet

Exit status 0 when nothing has failed.
"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from harness import ROOT, end, end_on_signals, spawn

GPU_TESTS = Path(__file__).resolve().parent
END_S = 10    # what is left for the last writing
TRIES = 2     # of a run that has no parts
TAIL = 4000   # characters of its output
PART = re.compile(r"^(ok|FAILED|skipped) ([\w.-]+)(?: \([\d.]+ s\))?(?:: (.*))?$")
LAST = re.compile(r"^\d+ passed, \d+ failed|^bench: ")
STATES = {"ok": "passed", "FAILED": "failed", "skipped": "skipped"}
DONE = ("passed", "failed", "missing")


def say(text: str) -> None:
    print(text, flush=True)


# What there is to run. Words of a command: {json} is the file for its figures, {minutes} the time that it may take.
# seconds: what it takes, without which it is not begun. gpus: at least. part: the option that selects one of its
# parts, which it reports as `ok NAME`, `FAILED NAME: why` or `skipped NAME: why`. missing: why it cannot be run yet.

def nccl_libraries() -> list:
    """PyTorch's own, found without importing it."""
    found = []
    for folder in sys.path:
        found += sorted(Path(folder).glob("nvidia/nccl/lib/libnccl.so.2")) if folder else []
    return [str(path) for path in found[:1]]


def peers(libraries: list) -> list:
    program = ROOT / "tests" / "bench" / "peers.py"
    cases = (("peers-4-on-2", 4, 2, 100), ("peers-16-on-2", 16, 2, 200), ("peers-4-on-4", 4, 4, 120))
    if not libraries:
        return [{"name": name, "missing": "no libnccl.so.2 beside PyTorch, and --nccl names none", "gpus": gpus}
                for name, _, gpus, _ in cases]
    return [{"name": name, "command": [sys.executable, str(program), "--communicators", str(communicators), "--gpus",
                                       str(gpus), "--json", "{json}", *libraries],
             "seconds": seconds * len(libraries), "gpus": gpus}
            for name, communicators, gpus, seconds in cases]


def saver() -> dict:
    """torch_memory_saver's own examples; its Python files have to be brought along."""
    import torch_saver
    checkout = Path(os.environ.get("TORCH_MEMORY_SAVER") or ROOT / "shared" / "torch_memory_saver")
    if not (checkout / "torch_memory_saver" / "binary_wrapper.py").exists():
        return {"name": "torch_saver", "gpus": 1,
                "missing": f"{checkout} is no checkout of torch_memory_saver: TORCH_MEMORY_SAVER names one"}
    return {"name": "torch_saver", "command": [sys.executable, str(GPU_TESTS / "torch_saver.py"), str(checkout)],
            "seconds": 300, "gpus": 1, "part": "--only",
            "parts": [case for case, (*_, counts) in torch_saver.cases().items() if counts]}


def runs(libraries: list) -> list:
    """libraries: of NCCL, beside PyTorch's own."""
    import gpu_check
    import rest
    program = {name: str(GPU_TESTS / f"{name}.py") for name in ("gpu_check", "rl", "nccl_calls", "nccl_versions", "rest", "bench")}
    libraries = nccl_libraries() + libraries
    versions = {"command": [sys.executable, program["nccl_versions"], *libraries],
                "seconds": 120 * len(libraries)} if libraries else {
        "missing": "no libnccl.so.2 beside PyTorch: tests/gpu/nccl_versions.py needs one to be named"}
    at_rest = [{"name": f"rest-{job}", "command": [sys.executable, program["rest"], "--offloads", "30", "--job", job],
                "seconds": 150, "gpus": 2} for job in rest.JOBS]
    return [
        {"name": "gpu_check", "command": [sys.executable, program["gpu_check"], "--figures", "{json}"], "seconds": 90,
         "gpus": 2, "parts": list(gpu_check.CASES), "part": "--only"},
        {"name": "rl", "command": [sys.executable, program["rl"], "--minutes", "{minutes}", "--json", "{json}"],
         "seconds": 270, "gpus": 2},
        {"name": "nccl_versions", "gpus": 2, **versions},
        {"name": "nccl_calls", "command": [sys.executable, program["nccl_calls"]], "seconds": 120, "gpus": 2},
        saver(),
        *peers(libraries),
        *at_rest,
        {"name": "rest-groups-of-2", "gpus": 4, "missing": "tests/gpu/train.py has no jobs whose ranks have different "
         "groups (tensor or pipeline parallel × data parallel), and rest.py no jobs of four ranks"},
        {"name": "bench", "command": [sys.executable, program["bench"], "--json", "{json}"], "seconds": 240, "gpus": 2},
        {"name": "malloc-traced", "missing": "nothing times 10,000 cudaMalloc and cudaFree with the agent off and on"},
    ]


# The file

class Record:
    """What all calls have found so far; written after each change."""

    def __init__(self, path: Path, earlier: dict | None):
        self.path = path
        earlier = earlier or {}
        self.calls = earlier.get("calls", [])
        self.runs = earlier.get("runs", {})

    def begin(self, minutes: float, gpus: int) -> None:
        self.calls.append({"began": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()), "minutes": minutes,
                           "gpus": gpu_names() or gpus, "lien": digest(ROOT / "build" / "lien")})

    def of(self, name: str) -> dict:
        return self.runs.setdefault(name, {"state": "pending"})

    def write(self, names: list) -> None:
        """In their order; those of earlier calls that this one does not know come last."""
        order = [*names, *(name for name in self.runs if name not in names)]
        whole = {"calls": self.calls, "runs": {name: self.runs[name] for name in order if name in self.runs}}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        beside.replace(self.path)


def read_record(path: Path) -> dict:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"all.sh: {path} cannot be continued: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("runs"), dict):
        raise SystemExit(f"all.sh: {path} was not written by all.sh: it has no \"runs\"")
    return found


def digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def gpu_names() -> list:
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                              text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return [path.name for path in Path("/proc/driver/nvidia/gpus").glob("*")]
    return said.stdout.split("\n")[:-1]


# One run

def parts_left(run: dict, record: dict) -> list:
    parts = record.setdefault("parts", {})
    return [name for name in run.get("parts", ()) if parts.get(name, {}).get("state") not in DONE]


def command_of(run: dict, left: list, figures: Path, seconds: float) -> list:
    words = [word.replace("{json}", str(figures)).replace("{minutes}", f"{seconds / 60:.2f}")
             for word in run["command"]]
    return words + [word for name in left for word in (run["part"], name)] if "part" in run else words


class Running:
    """A program; what it says is printed as it comes, and its parts are noted."""

    def __init__(self, command: list, names: list, parts: dict, noted):
        """parts: where it notes those that have one of the names."""
        self.lines, self.names, self.parts, self.noted = [], names, parts, noted
        self.process = spawn(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, errors="replace", cwd=ROOT)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            say("   " + line.rstrip("\n")[:300])
            self.lines.append(line)
            match = PART.match(line.rstrip("\n"))
            if match and match[2] in self.names:
                self.parts[match[2]] = {"state": STATES[match[1]], **({"why": match[3][:600]} if match[3] else {})}
                self.noted()

    def wait(self, seconds: float) -> bool:
        """Did it end by itself?"""
        try:
            self.process.wait(seconds)
            ended = True
        except subprocess.TimeoutExpired:
            end(self.process, 15, 5)
            ended = False
        self.thread.join(5)
        return ended

    @property
    def last(self) -> str | None:
        found = [line.strip() for line in self.lines if LAST.match(line)]
        return found[-1] if found else None


def verdict(run: dict, record: dict, running: Running, ended: bool, seconds: float) -> None:
    """The state of a run that has ended, or was ended."""
    if "parts" in run:
        record["parts"] = {name: record["parts"][name] for name in run["parts"] if name in record["parts"]}
        states = [record["parts"].get(name, {}).get("state") for name in run["parts"]]
        if all(states):
            record["state"] = ("skipped" if set(states) == {"skipped"} else "partly" if "skipped" in states else
                               "failed" if "failed" in states else "passed")
        elif ended:
            record.update(state="failed", why=f"it ended with {running.process.returncode}, and said nothing of "
                          + ", ".join(name for name, state in zip(run["parts"], states) if not state))
        else:
            record["state"] = "partly"
        return
    if not ended:
        again = record["tries"] < TRIES
        record.update(state="cut" if again else "failed", why=f"not done after {seconds:.0f} s"
                      + ("" if again else f", {record['tries']} times"))
        return
    nothing = running.last and re.match(r"0 passed, 0 failed$", running.last)
    skipped = [line for line in running.lines if line.startswith("skipped: ")]
    if running.process.returncode:
        record.update(state="failed", why=running.last or f"it ended with {running.process.returncode}")
    elif nothing or "bench: skipped" in (running.last or ""):
        record.update(state="skipped", why=(skipped or [running.last])[-1].strip())
    elif not running.last:
        record.update(state="failed", why="it said nothing of what passed")
    else:
        record["state"] = "passed"


def run_one(run: dict, record: dict, figures: Path, seconds: float, noted) -> None:
    began = time.monotonic()
    left = parts_left(run, record)
    # Ended from outside while it runs, it is found as what it is now.
    record.pop("why", None)
    record["tries"] = record.get("tries", 0) + 1
    record.update(state="partly" if left else "cut" if record["tries"] < TRIES else "failed",
                  **({} if left else {"why": "the call was ended meanwhile"}))
    noted()
    command = command_of(run, left, figures, seconds)
    say(f"{run['name']}: {' '.join(command)}")
    running = Running(command, left, record.setdefault("parts", {}), noted)
    try:
        ended = running.wait(seconds)
    finally:
        end(running.process, 9, 5)
    record.pop("why", None)
    record["seconds"] = round(record.get("seconds", 0) + time.monotonic() - began, 1)
    record["tail"] = "".join(running.lines)[-TAIL:]
    if running.last:
        record["last"] = running.last
    try:
        record.setdefault("figures", []).append(json.loads(figures.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        pass  # it has none, or was ended
    verdict(run, record, running, ended, seconds)
    if not record["parts"]:
        del record["parts"]
    say(f"{run['name']}: {record['state']}" + (f": {record['why']}" if "why" in record else ""))


def call(todo: list, record: Record, ends: float, gpus: int) -> None:
    names = [run["name"] for run in todo]
    figures = record.path.with_name(record.path.name + ".figures")
    for run in todo:
        entry = record.of(run["name"])
        entry["call"] = entry.get("call", len(record.calls))
        if entry["state"] in ("passed", "failed"):
            continue
        seconds = ends - time.monotonic()
        if "missing" in run:
            entry.update(state="missing", why=run["missing"])
        elif run.get("gpus", 1) > gpus:
            if entry["state"] in ("pending", "skipped", "missing"):  # else another machine has begun it
                entry.update(state="skipped", why=f"needs {run['gpus']} GPUs, and here are {gpus}")
        elif seconds < run["seconds"]:
            if entry["state"] in ("pending", "skipped", "missing"):
                entry.update(state="pending", why=f"takes about {run['seconds']} s, and {max(seconds, 0):.0f} s "
                             "were left")
        else:
            entry["call"] = len(record.calls)
            figures.unlink(missing_ok=True)
            run_one(run, entry, figures, seconds, lambda: record.write(names))
        record.write(names)
    figures.unlink(missing_ok=True)
    record.write(names)


def summary(record: Record) -> int:
    """Prints it; the exit status."""
    for name, run in record.runs.items():
        parts = [part["state"] for part in run.get("parts", {}).values()]
        counts = ", ".join(f"{parts.count(state)} {state}" for state in STATES.values() if state in parts)
        detail = "; ".join(filter(None, (counts, run.get("last") if not counts else None, run.get("why"))))
        say(f"{run['state']:8} {name}" + (f": {detail}" if detail else ""))
        for part, found in run.get("parts", {}).items():
            if found["state"] == "failed":
                say(f"         {part}: {found.get('why', '')[:300]}")
    return 1 if any("failed" in (run["state"], *(part["state"] for part in run.get("parts", {}).values()))
                    for run in record.runs.values()) else 0


def main() -> int:
    ends = time.monotonic()
    parser = argparse.ArgumentParser(prog="tests/gpu/all.sh", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=__doc__)
    parser.add_argument("--minutes", type=float, default=9, help="for all of it (default %(default)s)")
    parser.add_argument("--continue", dest="earlier", type=Path, metavar="FILE", help="an earlier call's file")
    parser.add_argument("--json", type=Path, help="default $OUT/all.json, without OUT build/gpu/all.json")
    parser.add_argument("--only", action="append", metavar="NAME", help="only these runs; may be repeated")
    parser.add_argument("--again", action="append", default=[], metavar="NAME", help="though it is done; may be repeated")
    parser.add_argument("--list", action="store_true", help="say what there is to run, and run nothing")
    parser.add_argument("--nccl", action="append", default=[], metavar="FILE", help="another libnccl.so.2 for "
                        "nccl_versions.py and peers.py; may be repeated")
    parser.add_argument("--gpus", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=Path, help=argparse.SUPPRESS)  # another list of runs, as JSON
    options = parser.parse_args()
    if options.minutes <= 0:
        parser.error(f"--minutes {options.minutes}: must be more than 0")
    end_on_signals()
    todo = json.loads(options.runs.read_text(encoding="utf-8")) if options.runs else runs(options.nccl)
    for name in (options.only or []) + options.again:
        if name not in [run["name"] for run in todo]:
            parser.error(f"there is no run {name}: --list shows them")
    todo = [run for run in todo if not options.only or run["name"] in options.only]
    if options.list:
        for run in todo:
            say(f"{run['name']}: " + (f"missing: {run['missing']}" if "missing" in run else " ".join(run["command"])))
        return 0
    out = os.environ.get("OUT")
    path = options.json or (Path(out) if out else ROOT / "build" / "gpu") / "all.json"
    earlier = options.earlier or (path if path.exists() else None)
    record = Record(path, read_record(earlier) if earlier else None)
    for name in options.again:
        record.runs.pop(name, None)
    gpus = options.gpus if options.gpus is not None else len(gpu_names())
    record.begin(options.minutes, gpus)
    call(todo, record, ends + 60 * options.minutes - END_S, gpus)
    code = summary(record)
    say(f"written to {path}")
    return code


if __name__ == "__main__":
    sys.exit(main())
