#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The calls that lien adds to NCCL's (docs/nccl-calls.md), with a real NCCL that lacks them.

    tests/gpu/nccl_calls.py [--lien PATH] [--no-torch] [LIBRARY]

LIBRARY is a libnccl.so.2, such as 2.28.9's; default: PyTorch's. Two ranks on two GPUs, under `lien run`:

- ctypes callers in the manner of pynccl (tests/integration/nccl_caller.py) pause and resume all, and suspend and
  resume one of two communicators while they use the other one. Checked: results, the values of all-reduces
  after each step, what comes off each GPU according to the driver, and that what is used comes back alone.
- PyTorch's backend.suspend() and resume() (2.12 and later), if the installed one has them.

Prints what each call took and freed. Needs root. Ends with "N passed, N failed[, N skipped]".
"""
import argparse
import ast
import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import harness
from harness import MIB, ROOT, Failure, Session, deadline, end_on_signals, free_port, place, run_command, spawn

CALLER = ROOT / "tests/integration/nccl_caller.py"
RANKS, ROUNDS, CASE_S = 2, 3, 300

TORCH = r"""
import os, time, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
backend = dist.group.WORLD._get_backend(torch.device("cuda", rank))
if not hasattr(backend, "suspend"):
    print("skipped: PyTorch %s has no backend.suspend()" % torch.__version__)
    raise SystemExit(0)

def check():
    data = torch.full((1 << 20,), float(rank + 1), device="cuda")
    dist.all_reduce(data)
    torch.cuda.synchronize()
    assert bool((data == 3).all()), data

check()
for turn in range(3):
    before = torch.cuda.mem_get_info()[0]
    began = time.monotonic()
    backend.suspend()
    out = time.monotonic() - began
    freed = torch.cuda.mem_get_info()[0] - before
    began = time.monotonic()
    backend.resume()
    back = time.monotonic() - began
    check()
    print("rank %d, turn %d: suspend %.1f ms, %.0f MiB, resume %.1f ms" % (
        rank, turn, 1e3 * out, freed / 2**20, 1e3 * back), flush=True)
    assert freed > 0
dist.destroy_process_group()
"""


class Caller:
    def __init__(self, session: Session, number: int, library: Path):
        own = place(number, harness.GPUS)
        env = {**harness.QUIET_NCCL, **session.lien.environment, **own, "NCCL_LIBRARY": str(library)}
        log = open(session.logs / f"rank.{number}.log", "ab")
        self.number, self.process = number, spawn(
            [session.lien.binary, "run", "--", sys.executable, CALLER, own["LOCAL_RANK"]], env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1)
        session.processes.append(self.process)
        log.close()
        self.expect("ready")

    def expect(self, word: str) -> str:
        for line in self.process.stdout:
            first, _, rest = line.rstrip("\n").partition(" ")
            if first == word:
                return rest
            if first == "error":
                raise Failure(f"rank {self.number}: {rest}")
        raise Failure(f"rank {self.number} ended with {self.process.wait(10)}")

    def begin(self, expression: str) -> None:
        self.process.stdin.write(expression + "\n")

    def end(self):
        return ast.literal_eval(self.expect("ok"))


def each(ranks: list, expression: str) -> list:
    """Begins it in all; {} is the rank."""
    for rank in ranks:
        rank.begin(expression.format(rank.number))
    return [rank.end() for rank in ranks]


def equal(found, expected, what: str) -> None:
    if found != expected:
        raise Failure(f"{what}: {found}, and not {expected}")


def communicator(ranks: list) -> int:
    ranks[0].begin("unique()")
    return each(ranks, f"init({ranks[0].end()!r}, {RANKS}, {{}})")[0]


def check_values(ranks: list, *numbers) -> None:
    for number in numbers:
        equal(each(ranks, f"all_reduce({number}, 10 + {{}})"), [21] * RANKS, f"values of communicator {number}")


def timed(ranks: list, expression: str, what: str) -> None:
    """A call of all ranks that must succeed; prints its time and what it freed."""
    before, began = each(ranks, "free_bytes()"), time.monotonic()
    equal(each(ranks, expression), [0] * RANKS, what)
    took = time.monotonic() - began
    freed = [after - at for after, at in zip(each(ranks, "free_bytes()"), before)]
    print(f"     {what}: {1e3 * took:.1f} ms, {', '.join(f'{size / MIB:+.0f}' for size in freed)} MiB free",
          flush=True)


def offloaded(session: Session) -> dict:
    """By group: bytes that are away."""
    sums: dict = {}
    for entry in session.lien.json("comms")["communicators"]:
        sums[entry["group"]] = sums.get(entry["group"], 0) + entry["offloaded_bytes"]
    return sums


def names_of(session: Session, ranks: list, count: int) -> list:
    entries = {(entry["pid"], int(entry["address"], 16)): entry["group"]
               for entry in session.lien.json("comms")["communicators"]}
    ranks[0].begin(f"[os.getpid()] + [address(number) for number in range({count})]")
    pid, *addresses = ranks[0].end()
    return [entries[pid, address] for address in addresses]


def pause(session: Session, ranks: list) -> None:
    for _ in range(ROUNDS):
        timed(ranks, "call('ncclPause', None)", "ncclPause")
        if not sum(offloaded(session).values()):
            raise Failure("nothing is offloaded after ncclPause")
        timed(ranks, "call('ncclResume', None)", "ncclResume")
        check_values(ranks, 0, 1)
    equal(each(ranks, "call('ncclMemStats')"), [0] * RANKS, "ncclMemStats")


def suspend(session: Session, ranks: list) -> None:
    first, second = names_of(session, ranks, 2)
    inferred = {entry["group"]: entry["inferred_bytes"] for entry in session.lien.json("comms")["communicators"]}
    print(f"     inferred: {inferred[first] / MIB:.0f} and {inferred[second] / MIB:.0f} MiB", flush=True)
    for _ in range(ROUNDS):
        timed(ranks, "suspend(0)", "ncclCommSuspend of the first")
        equal(each(ranks, "statistic(0, 1)"), [(0, 1)] * RANKS, "suspended")
        equal(each(ranks, "suspend(0)"), [5] * RANKS, "a second suspend")
        check_values(ranks, 1)
        away = offloaded(session)
        if not inferred[first] and not away[first]:
            raise Failure("the first has come back because the second was used")
        if not away[first]:
            print("     the second was used, and so the first came back: whose memory it is was not certain")
        timed(ranks, "suspend(1)", "ncclCommSuspend of the second")
        timed(ranks, "resume(0)", "ncclCommResume of the first")
        check_values(ranks, 0)
        timed(ranks, "resume(1)", "ncclCommResume of the second")
        check_values(ranks, 0, 1)
    equal(sum(offloaded(session).values()), 0, "away in the end")


def ctypes_case(options, case) -> None:
    with Session(options.lien, name="calls") as session:
        session.lien.start_agent(library=options.library)
        ranks = [Caller(session, number, options.library) for number in range(RANKS)]
        communicator(ranks)
        communicator(ranks)
        check_values(ranks, 0, 1)
        ranks[0].begin("version()[1]")
        print(f"     NCCL {ranks[0].end()}, {'without' if lacks(options.library) else 'WITH'} functions of its own",
              flush=True)
        case(session, ranks)
        session.lien.check_agent()


def lacks(library: Path) -> bool:
    return not hasattr(ctypes.CDLL(str(library)), "ncclCommSuspend")


def torch_case(options) -> str | None:
    """Why it was skipped."""
    with Session(options.lien, name="torch") as session:
        session.lien.start_agent(library=options.library)
        program = session.temporary / "suspend.py"
        program.write_text(TORCH)
        env = {**harness.QUIET_NCCL, **session.lien.environment, "LIEN_NCCL_SUSPEND": "1"}
        outcome = run_command([session.lien.binary, "run", "--", sys.executable, "-m", "torch.distributed.run",
                               "--nproc-per-node", RANKS, "--master-port", free_port(), program], CASE_S, env)
        print("\n".join("     " + line for line in outcome.out.splitlines()), flush=True)
        if outcome.code:
            raise Failure(outcome.text()[-2000:])
        return next((line for line in outcome.out.splitlines() if line.startswith("skipped: ")), None)


def torchs_nccl() -> Path | None:
    """The libnccl.so.2 beside PyTorch."""
    for folder in map(Path, sys.path):
        for path in folder.glob("nvidia/nccl/lib/libnccl.so.2"):
            return path
    return None


def gpus() -> int:
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(f"skipped: no GPU: {error}")
        return 0
    return 0 if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) else count.value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", nargs="?", type=Path, metavar="LIBRARY", help="a libnccl.so.2")
    parser.add_argument("--lien", type=Path, default=ROOT / "build/lien")
    parser.add_argument("--no-torch", action="store_true")
    options = parser.parse_args()
    options.library = options.library or torchs_nccl()
    end_on_signals()
    if gpus() < RANKS or not options.library or os.geteuid():
        print(f"skipped: needs root, {RANKS} GPUs and a libnccl.so.2\n0 passed, 0 failed")
        return 0
    options.library = options.library.absolute()
    harness.GPUS = RANKS
    cases = [("pause", lambda: ctypes_case(options, pause)), ("suspend", lambda: ctypes_case(options, suspend))]
    if not options.no_torch:
        cases.append(("torch", lambda: torch_case(options)))
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name, case in cases:
        print(f"   {name}", flush=True)
        try:
            with deadline(CASE_S, name):
                skipped = case()
        except Failure as failure:
            print(f"FAILED {name}: {failure}", flush=True)
            counts["failed"] += 1
        else:
            print(f"{'skipped' if skipped else 'ok'} {name}", flush=True)
            counts["skipped" if skipped else "passed"] += 1
    print(f"{counts['passed']} passed, {counts['failed']} failed"
          + (f", {counts['skipped']} skipped" if counts["skipped"] else ""))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
