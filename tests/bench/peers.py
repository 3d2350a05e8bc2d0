#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""NCCL's memory off the GPUs and back: by NCCL's own calls, by AMem's, and by lien, in turn in one job.

    tests/bench/peers.py [--communicators N] [--gpus N] [--rounds N] [--json FILE] [LIBRARY...]

Runs one rank per GPU of prog_peers.c over each libnccl.so.2 (default: PyTorch's), under `lien run`, with so many
communicators of all ranks, whose transport buffers all-reduces and sends of several sizes have made. Moves their
memory out and back by each way that there is:

    suspend  ncclCommSuspend and ncclCommResume, of each communicator in turn, if the library has them (2.29.7)
    pause    ncclPause and ncclResume, if the library has them (AMem's patch; it reads AMEM_* of the environment)
    lien     lien offload and lien restore
    lazy     lien offload and lien restore --lazy

Each way has a first round, and --rounds later ones, before the next way has its turn. The values of all operations on all
communicators are checked after each round. Times are the wall time that the caller waits: for NCCL's calls from
the first rank's entry to the last rank's return, for lien that of the command. `freed` is what the driver says
came back, of all GPUs. `first collective`: while lien has the memory, each rank begins one, and waits; the time from
the beginning of the restore until all have its values. A way that fails is reported, and the others go on in a new job.

Prints a Markdown table, and with --json writes all figures. Needs root, and a C compiler or --prog; no PyTorch, no
headers. Ends with "N passed, N failed", of ways.
"""
import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests" / "gpu"))

import harness  # noqa: E402
from harness import MIB, Failure, Late, Session, end_on_signals, place, run_command, spawn  # noqa: E402

START_S, MOVE_S, VALUES_S = 180, 120, 120
WAYS = ("suspend", "pause", "lien", "lazy")
NAMES = {"suspend": "`ncclCommSuspend/Resume`", "pause": "`ncclPause/Resume`", "lien": "**lien**",
         "lazy": "**lien**, `restore --lazy`"}


class Rank:
    """A process of prog_peers.c."""

    def __init__(self, number: int, argv: list, env: dict, log: Path):
        self.number, self.said, self.answers = number, "", queue.Queue()
        with open(log, "ab") as errors:
            self.process = spawn(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                                 bufsize=1, errors="replace")
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.answers.put((time.monotonic(), line.rstrip("\n")))
        self.answers.put((time.monotonic(), None))

    def send(self, line: str) -> None:
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended: the missing answer says so

    def answer(self, word: str, limit_s: float) -> tuple[float, list]:
        """When it came, and its words."""
        until = time.monotonic() + limit_s
        while True:
            try:
                at, line = self.answers.get(timeout=max(0.01, until - time.monotonic()))
            except queue.Empty:
                raise Late(f"rank {self.number} has not answered `{word}` within {limit_s} s") from None
            if line is None:
                raise Failure(f"rank {self.number} ended with status {self.process.wait(10)}"
                              + (f"; NCCL said: {self.said}" if self.said else ""))
            first, _, rest = line.partition(" ")
            if first == "failed":
                raise Failure(f"rank {self.number}: {rest}")
            if first == word:
                return at, rest.split()
            self.said = line.strip()  # NCCL's own


class Job:
    def __init__(self, session: Session, options, library: Path):
        lien = session.lien
        env = {**harness.QUIET_NCCL, "NCCL_DEBUG": "WARN", **lien.environment}
        self.ranks: list[Rank] = []
        session.jobs.append(self)
        self.seed, self.last = 0, options.communicators - 1
        for number in range(options.gpus):
            own = place(number, harness.GPUS)
            self.ranks.append(Rank(number, [lien.binary, "run", "--", options.prog, library, number, options.gpus,
                                            own["LOCAL_RANK"], options.communicators],
                                   {**env, **own}, session.logs / f"rank.{number}.log"))
        _, ids = self.ranks[0].answer("ids", START_S)
        for rank in self.ranks[1:]:
            rank.send(" ".join(ids))
        self.collect("ready", START_S)

    def collect(self, word: str, limit_s: float) -> list:
        return [rank.answer(word, limit_s) for rank in self.ranks]

    def ask(self, line: str, limit_s: float) -> list:
        for rank in self.ranks:
            rank.send(line)
        return self.collect(line.split()[0], limit_s)

    def values(self) -> int:
        """Bytes that were compared in all ranks."""
        self.seed += 1
        return sum(int(words[0]) for _, words in self.ask(f"values {self.seed}", VALUES_S))

    def free(self) -> int:
        """Of all GPUs."""
        seen = {rank.number % (harness.GPUS or len(self.ranks)): int(words[0])
                for rank, (_, words) in zip(self.ranks, self.ask("memory", 30))}
        return sum(seen.values())

    def begin_use(self, lien) -> None:
        """Every rank begins a collective on its last communicator, and waits for its memory."""
        for rank in self.ranks:
            rank.send(f"use {self.last}")
        harness.wait_for("threads that wait for their memory",
                         lambda: len(lien.request({"op": "status"})["held"]) >= len(self.ranks), 30)

    def used(self) -> float:
        """When the last rank had its values."""
        return max(at for at, _ in self.collect("use", MOVE_S))

    def timed(self, line: str) -> float:
        """The ms from the first rank's entry to the last one's return."""
        began = time.monotonic()
        return 1e3 * (max(at for at, _ in self.ask(line, MOVE_S)) - began)

    def finish(self) -> None:
        for rank in self.ranks:
            rank.send("end")
        self.collect("done", 60)
        codes = [rank.process.wait(30) for rank in self.ranks]
        if any(codes):
            raise Failure(f"the ranks ended with {codes}")

    def kill(self) -> None:
        for rank in self.ranks:
            harness.end(rank.process)


# One way

def by_nccl(job: Job, word: str) -> tuple[float, dict]:
    return job.timed(word), {}


def by_lien(lien, *args) -> tuple[float, dict]:
    """The command's wall time, and what it says."""
    outcome = lien.command(*args, "--json", timeout=MOVE_S)
    if outcome.code:
        raise Failure(f"`lien {' '.join(args)}`: {outcome.text()[:600]}")
    result = outcome.json()
    if result["outcome"] != "done":
        raise Failure(f"`lien {' '.join(args)}`: {result['outcome']}")
    return outcome.ms, {"reported_ms": round(result["ms"], 2), "bytes": result["bytes"], "lazy": result.get("lazy")}


def out_and_back(session: Session, job: Job, way: str) -> tuple:
    lien = session.lien
    return {"suspend": (lambda: by_nccl(job, "suspend"), lambda: by_nccl(job, "resume")),
            "pause": (lambda: by_nccl(job, "pause"), lambda: by_nccl(job, "unpause")),
            "lien": (lambda: by_lien(lien, "offload"), lambda: by_lien(lien, "restore")),
            "lazy": (lambda: by_lien(lien, "offload"), lambda: by_lien(lien, "restore", "--lazy"))}[way]


def one_round(session: Session, job: Job, way: str) -> dict:
    out, back = out_and_back(session, job, way)
    before = job.free()
    out_ms, out_more = out()
    away = job.free()
    waits = way in ("lien", "lazy")  # a call on NCCL's or AMem's suspended communicators would be an error
    if waits:
        job.begin_use(session.lien)
    began = time.monotonic()
    back_ms, back_more = back()
    used_ms = 1e3 * (job.used() - began) if waits else None
    after = job.free()
    checked = job.values()
    found = {"out_ms": round(out_ms, 2), "back_ms": round(back_ms, 2), "freed_bytes": away - before,
             "kept_bytes": before - after, "checked_bytes": checked,
             **({"used_ms": round(used_ms, 2)} if waits else {})}
    for name, more in (("out", out_more), ("back", back_more)):
        found.update({f"{name}_{key}": value for key, value in more.items() if value is not None})
    return found


def run_way(session: Session, job: Job, way: str, rounds: int) -> dict:
    found = [one_round(session, job, way) for _ in range(1 + rounds)]
    later = found[1:] or found
    summary = {"first_ms": found[0]["out_ms"],
               "later_ms": spread([one["out_ms"] for one in later]),
               "restore_ms": spread([one["back_ms"] for one in later]),
               "freed_bytes": min(one["freed_bytes"] for one in found),
               "rounds": found}
    if "used_ms" in found[0]:
        summary["first_collective_ms"] = spread([one["used_ms"] for one in later])
    return summary


def spread(values: list) -> dict:
    return {"median": round(statistics.median(values), 1), "min": round(min(values), 1), "max": round(max(values), 1)}


# One library

def functions(options, library: Path) -> tuple[str, list]:
    """Its version, and the ways that there are with it; without lien, which adds functions."""
    outcome = run_command([options.prog, "functions", library], 60)
    word, _, rest = outcome.out.strip().partition(" ")
    if outcome.code or word != "functions":
        raise Failure(rest if word == "failed" else f"status {outcome.code} {outcome.text()}".strip())
    number, suspends, pauses = map(int, rest.split())
    there = {"suspend": suspends, "pause": pauses, "lien": 1, "lazy": options.communicators > 1}
    return version_text(number), [way for way in WAYS if there[way] and way in options.ways]


def version_text(number: int) -> str:
    if number >= 10000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def run_ways(options, library: Path, ways: list, found: dict) -> None:
    """In one job, until one fails; fills in `found`."""
    with Session(options.lien, name="peers") as session:
        session.lien.start_agent(library=library)
        job = Job(session, options, library)
        job.values()
        for way in ways:
            print(f"   {way}", flush=True)
            try:
                found[way] = run_way(session, job, way, options.rounds)
            except Failure as failure:
                found[way] = {"failed": str(failure)}
                return
            session.lien.check_agent()
        job.finish()


def run_library(options, library: Path) -> dict:
    print(f"{library}", flush=True)
    row: dict = {"library": str(library), "ways": {}}
    try:
        row["nccl"], ways = functions(options, library)
    except Failure as failure:
        row["failed"] = f"cannot be loaded: {failure}"
        return row
    while left := [way for way in ways if way not in row["ways"]]:
        before = len(row["ways"])
        try:
            run_ways(options, library, left, row["ways"])
        except Failure as failure:
            if len(row["ways"]) in (before, len(ways)):  # no way's own: the job does not begin, or end
                row["failed"] = str(failure)
                break
    for way, found in row["ways"].items():
        print(f"FAILED {way}: {found['failed']}" if "failed" in found else f"ok {way}", flush=True)
    if "failed" in row:
        print(f"FAILED {library}: {row['failed']}", flush=True)
    return row


# What it says

def range_text(found: dict) -> str:
    low, high = f"{found['min']:,.0f}", f"{found['max']:,.0f}"
    return low if low == high else f"{low}–{high}"


def table(options, rows: list) -> str:
    lines = [f"{options.gpus} ranks, {options.communicators} communicators, {options.rounds} later rounds; wall ms as the "
             "caller waits, values right after every round unless it says otherwise.", "",
             "| NCCL | by | first out | later | back | first collective | MiB freed, all GPUs |",
             "|---|---|---|---|---|---|---|"]
    for row in rows:
        name = row.get("nccl", row["library"])
        if "failed" in row:
            lines.append(f"| {name} | FAILED: {row['failed'][:200]} | | | | | |")
        for way, found in row["ways"].items():
            if "failed" in found:
                lines.append(f"| {name} | {NAMES[way]} | FAILED: {found['failed'][:200]} | | | | |")
                continue
            first = range_text(found["first_collective_ms"]) if "first_collective_ms" in found else ""
            lines.append(f"| {name} | {NAMES[way]} | {found['first_ms']:,.0f} | {range_text(found['later_ms'])} | "
                         f"{range_text(found['restore_ms'])} | {first} | {found['freed_bytes'] / MIB:,.0f} |")
    return "\n".join(lines)


def machine() -> dict:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        said = []
    return {"gpus": said, "kernel": os.uname().release, "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}


def build(directory: Path) -> Path:
    """What was built here comes along to a machine without a compiler."""
    built = ROOT / "build" / "tests" / "bench" / "prog_peers"
    if os.access(built, os.X_OK):
        return built
    program = directory / "prog_peers"
    subprocess.run([os.environ.get("CC") or "cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", f"-I{ROOT}/include", f"-I{ROOT}",
                    ROOT / "tests/bench/prog_peers.c", "-o", program, "-ldl"], check=True)
    return program


def torchs_nccl() -> list:
    """The libnccl.so.2 beside PyTorch, without importing it."""
    return [path for folder in map(Path, filter(None, sys.path)) for path in folder.glob("nvidia/nccl/lib/libnccl.so.2")][:1]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("libraries", nargs="*", type=Path, metavar="LIBRARY", help="a libnccl.so.2; default: PyTorch's")
    parser.add_argument("--communicators", type=int, default=4, metavar="N")
    parser.add_argument("--gpus", type=int, default=2, metavar="N", help="and ranks (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="after the first (default %(default)s)")
    parser.add_argument("--way", dest="ways", action="append", choices=WAYS, help="may be repeated; default: all")
    parser.add_argument("--share", action="store_true", help="all ranks on one GPU, over sockets")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--lien", type=Path, default=ROOT / "build/lien")
    parser.add_argument("--prog", type=Path, help="prog_peers, if it is built elsewhere")
    options = parser.parse_args()
    if not 1 <= options.communicators <= 256 or options.gpus < 1 or options.rounds < 0:
        parser.error("--communicators: 1 to 256; --gpus: at least 1; --rounds: at least 0")
    options.ways = options.ways or list(WAYS)
    return options


def devices(options) -> int:
    outcome = run_command([options.prog, "devices"], 60)
    word, _, rest = outcome.out.strip().partition(" ")
    if word != "devices":
        print(f"skipped: no GPU: {rest or outcome.text()}")
        return 0
    return int(rest)


def main() -> int:
    options = parse()
    end_on_signals()
    with tempfile.TemporaryDirectory(prefix="lien-peers-") as directory:
        options.prog = (options.prog or build(Path(directory))).resolve()
        libraries = [path.absolute() for path in options.libraries] or torchs_nccl()
        there = devices(options)
        if not there or not libraries or os.geteuid() or (there < options.gpus and not options.share):
            print(f"skipped: needs root, {options.gpus} GPUs and a libnccl.so.2\n0 passed, 0 failed")
            return 0
        harness.GPUS = 1 if options.share else options.gpus
        if Path("/proc/driver/nvidia/version").exists():  # its machine's memory may grow as it is touched
            harness.touch_host(2 * options.gpus * options.communicators)
        rows = [run_library(options, library) for library in libraries]
    print("\n" + table(options, rows) + "\n")
    if options.json:
        options.json.write_text(json.dumps({**machine(), "ranks": options.gpus, "communicators": options.communicators,
                                            "rows": rows}, indent=1) + "\n", encoding="utf-8")
    ways = [found for row in rows for found in row["ways"].values()]
    failed = sum("failed" in found for found in ways) + sum("failed" in row for row in rows)
    print(f"{sum('failed' not in found for found in ways)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
