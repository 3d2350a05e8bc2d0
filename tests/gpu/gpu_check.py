#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""make gpu-check: lien on a real PyTorch + NCCL job, on two GPUs.

Prints `ok NAME` or `FAILED NAME: why` for each case, with the figures seen on the way, and ends
with `N passed, N failed` (`, N skipped` where there are no two GPUs or no PyTorch). Nothing else
may use the GPUs meanwhile.
"""
import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import cases_join
import cases_move
import cases_plain
import cases_see
import harness
import observe
from harness import MIB, Failure, Session, deadline, wait_for
from observe import Observer, mem_bytes, mib, phases, table

COMMUNICATORS = 4
ROUNDS = 3
FREED_SHARE = 0.99
FILL_GIB = 8
# Of a wait in the agent, ms. The first offload also pins the host memory.
AGENT_WAIT = 60000


@dataclass
class Context:
    binary: Path
    logs: Path | None
    machine: dict
    figures: dict = field(default_factory=dict)

    def session(self, name: str) -> Session:
        return Session(self.binary, self.logs, name)


def require(condition, text: str) -> None:
    if not condition:
        raise Failure(text)


def say(text: str) -> None:
    print(text, flush=True)


# What several cases ask

def processes(lien, pids: list) -> dict[int, dict]:
    """`lien ps` of the job's processes; all must be there."""
    seen = {p["pid"]: p for p in lien.json("ps")["processes"]}
    missing = [pid for pid in pids if pid not in seen]
    require(not missing, f"lien ps does not show {missing}, only {sorted(seen)}")
    return {pid: seen[pid] for pid in pids}


# A process whose PyTorch memory stays on the device may well be called partly offloaded.
STATES = {"running": ("running",), "offloaded": ("offloaded", "partly offloaded")}


def require_state(lien, pids: list, state: str) -> dict[int, dict]:
    seen = processes(lien, pids)
    wrong = {pid: p["state"] for pid, p in seen.items() if p["state"] not in STATES[state]}
    require(not wrong, f"lien ps: {wrong}, want all {state}")
    return seen


def start_agent(lien) -> None:
    """`lien offload` without --pid moves every process it knows, so there may be no other."""
    lien.start_agent()
    others = [p for p in lien.json("ps")["processes"] if p["bytes"] or p["control"] != "none"]
    require(not others, "other processes use CUDA here, and this test would offload them: "
            + ", ".join(f"{p['pid']} ({p['command']})" for p in others))


def require_watched(lien, pids: list) -> dict[int, dict]:
    """Seen from the start, and able to take orders."""
    seen = processes(lien, pids)
    for pid, process in seen.items():
        require(process["complete"], f"process {pid} is incomplete: {process}")
        require(process["control"] != "none",
                f"process {pid} has no control library: {process}")
    status = lien.json("status")
    require(status["events_lost"] == 0, f"{status['events_lost']} events lost")
    require(status["unmatched_imports"] == 0, f"{status['unmatched_imports']} imports unmatched")
    return seen


def offload(lien, *arguments) -> dict:
    lien.check_agent()
    return lien.json("offload", "--timeout", AGENT_WAIT, *arguments, timeout=150)


def restore(lien, *arguments) -> dict:
    lien.check_agent()
    return lien.json("restore", "--timeout", AGENT_WAIT, *arguments, timeout=150)


def move_round(lien, job, observer, owner: str | None) -> dict:
    """Offload and restore once with all that must hold in between; the figures of the round."""
    arguments = ["--owner", owner] if owner else []
    mem = lien.json("mem")
    target = mem_bytes(mem, owner=None if owner == "all" else "nccl")
    if owner == "all":
        target = mem["offload_frees"]
    before = observer.used()
    out = offload(lien, *arguments)
    require(out["outcome"] == "done", f"offload: outcome {out['outcome']}")
    lowest = before - int(target * FREED_SHARE)
    freed = before - observer.used_once(lambda used: used <= lowest)
    driver = sum(p["freed_bytes"] or 0 for p in out["processes"])
    seen = require_state(lien, job.pids, "offloaded")
    held = sum(p["offloaded_bytes"] for p in seen.values())
    for what, size in (("NVML", freed), ("the driver, by lien's report,", driver),
                       ("lien's count of bytes moved", out["bytes"]),
                       ("lien ps's offloaded_bytes", held)):
        require(size >= target * FREED_SHARE, f"{what}: {size:,} bytes freed of {target:,} "
                f"({100 * size / max(target, 1):.2f} %)")
    back = restore(lien)
    require(back["outcome"] == "done", f"restore: outcome {back['outcome']}")
    require_state(lien, job.pids, "running")
    after = lien.json("mem")
    for key in ("allocations", "mappings", "bytes"):
        was, now = (sum(row[key] for row in m["rows"]) for m in (mem, after))
        require(was == now, f"lien mem: {was:,} {key} before the offload, {now:,} after")
    return {"bytes": out["bytes"], "target_bytes": target, "nvml_freed_bytes": freed,
            "driver_freed_bytes": driver, "nvml_back_bytes": observer.used() - (before - freed),
            "mappings": sum(p["mappings"] for p in out["processes"]),
            "offload_ms": out["ms"], "restore_ms": back["ms"],
            "offload_phases_ms": phases(out), "restore_phases_ms": phases(back),
            "left": out.get("left", [])}


def print_rounds(rounds: list) -> None:
    rows = []
    for number, r in enumerate(rounds, 1):
        rows.append([f"round {number}", r["mappings"], mib(r["target_bytes"]), mib(r["bytes"]),
                     mib(r["nvml_freed_bytes"]), f"{r['offload_ms']:.1f}",
                     f"{r['restore_ms']:.1f}"])
    say(table(["", "mappings", "target MiB", "moved MiB", "NVML freed MiB", "offload ms",
               "restore ms"], rows))
    for name in ("offload_phases_ms", "restore_phases_ms"):
        head = list(rounds[-1][name])
        say(table([name.split("_")[0] + ", ms", *head],
                  [[f"round {n}", *(f"{r[name].get(p, 0):.1f}" for p in head)]
                   for n, r in enumerate(rounds, 1)]))
    for entry in rounds[0]["left"]:
        say(f"  left behind: pid {entry['pid']}: {entry['allocations']} allocations, "
            f"{mib(entry['bytes'])} MiB: {entry['reason']}")


def finish(lien, job) -> None:
    """A clean end: destroy, exit status 0, and nothing of the job left in the agent's graph."""
    job.ask("destroy", 90)
    codes = job.quit()
    require(codes == [0] * len(codes), f"exit statuses after destroy: {codes}")
    wait_for("the job's processes leave lien ps",
             lambda: not [p for p in lien.json("ps")["processes"] if p["pid"] in job.pids])
    rows = lien.json("mem")["rows"]
    require(not rows, f"lien mem after the job's end: {rows[:3]}")
    lien.check_agent()


# Cases

def nccl_rounds(context: Context) -> dict:
    """Four communicators, three rounds, a captured graph, a late communicator, a clean end."""
    with context.session("nccl_rounds") as session:
        lien = session.lien
        start_agent(lien)
        job = session.job()
        answers = job.ask(f"setup {COMMUNICATORS}", 150)
        observer = Observer(answers)
        job.ask("graph-capture", 60)
        seen = require_watched(lien, job.pids)
        for pid, process in seen.items():
            groups = {r["group"] for r in process["ranks"]}
            require(len(groups) == COMMUNICATORS, f"lien ps: process {pid} is in {len(groups)} "
                    f"groups, want {COMMUNICATORS}: {process['ranks']}")
            require(all(r["nranks"] == len(job.pids) for r in process["ranks"]),
                    f"lien ps: {process['ranks']}")
        mem = lien.json("mem")
        say(table(["pid", "owner", "kind", "allocations", "mappings", "MiB"],
                  [[r["pid"], r["owner"], r["kind"], r["allocations"], r["mappings"],
                    mib(r["bytes"])] for r in mem["rows"]]))
        rounds = []
        for _ in range(ROUNDS):
            job.ask("check", 90)
            rounds.append(move_round(lien, job, observer, None))
            job.ask("graph-replay 3", 60)
            checked = job.ask("check", 90)
        print_rounds(rounds)
        job.ask("new-comm", 90)
        job.ask("check", 90)
        rounds.append(move_round(lien, job, observer, None))  # with the late one
        job.ask("graph-replay 3", 60)
        job.ask("check", 90)
        finish(lien, job)
        return {"setup_ms": max(a["ms"] for a in answers), "rounds": rounds,
                "nccl_bytes_per_process": mem_bytes(mem, job.pids[0], "nccl"),
                "collectives_per_check": checked[0]["collectives"]}


def expandable(context: Context) -> dict:
    """PyTorch's own memory too: 8 GiB of tensors per GPU come back unchanged."""
    with context.session("expandable") as session:
        lien = session.lien
        start_agent(lien)
        job = session.job(env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
        observer = Observer(job.ask(f"setup {COMMUNICATORS}", 150))
        filled = job.ask(f"fill {FILL_GIB}", 90)
        require_watched(lien, job.pids)
        rounds = []
        for _ in range(ROUNDS):
            rounds.append(move_round(lien, job, observer, "all"))
            require(rounds[-1]["bytes"] >= sum(a["bytes"] for a in filled),
                    f"only {rounds[-1]['bytes']:,} bytes were moved: less than the tensors")
            job.ask("verify-fill", 90)
            job.ask("check", 90)
        print_rounds(rounds)
        before = lien.json("mem")["bytes"]
        dropped = job.ask("drop-fill", 90)
        require(all(d["freed"] >= f["bytes"] for d, f in zip(dropped, filled)),
                f"torch.cuda.empty_cache() after the rounds freed {dropped}")
        gone = before - lien.json("mem")["bytes"]
        require(gone >= sum(f["bytes"] for f in filled),
                f"lien mem fell by {gone:,} bytes only when the tensors were freed")
        job.ask("fill 1", 90)
        rounds.append(move_round(lien, job, observer, "all"))
        job.ask("verify-fill", 90)
        finish(lien, job)
        return {"tensor_bytes_per_process": filled[0]["bytes"], "rounds": rounds}


def compare_with_log(lien, pid: int, log: Path) -> dict:
    """lien's NCCL allocations of a process against those that NCCL logged, by address."""
    logged = observe.parse_nccl_log(log.read_text(errors="replace"))
    require(logged, f"{log} holds no allocation: has NCCL changed the lines it logs?\n"
            + harness.tail(log, 5))
    known: dict[int, int] = {}
    for allocation in lien.json("graph")["allocations"]:
        device = allocation["device"]
        if allocation["pid"] != pid or allocation["owner"] != "nccl" or device is None:
            continue
        if device < 0:
            continue  # host memory
        own = [int(m["address"], 16) for m in allocation["mappings"] if m["pid"] == pid]
        known[own[0] if own else -allocation["id"]] = allocation["bytes"]
    result = {"lien_bytes": mem_bytes(lien.json("mem"), pid, "nccl"),
              "logged_bytes": sum(logged.values()),
              "lien_allocations": len(known), "logged_allocations": len(logged),
              "not_logged": {hex(a): b for a, b in known.items() if a not in logged},
              "only_logged": {hex(a): b for a, b in logged.items() if a not in known},
              "other_size": {hex(a): [b, logged[a]] for a, b in known.items()
                             if a in logged and logged[a] != b}}
    return result


def require_log_agrees(pid: int, result: dict) -> None:
    """NCCL logs no frees, so what only its log has may have been freed since: up to 1 %."""
    require(not result["other_size"], f"pid {pid}: sizes differ (address: lien, NCCL's log): "
            f"{dict(list(result['other_size'].items())[:5])}")
    for key in ("not_logged", "only_logged"):
        size = sum(result[key].values())
        require(size <= 0.01 * result["logged_bytes"],
                f"pid {pid}: {len(result[key])} allocations, {size:,} bytes, are {key}: "
                f"{dict(list(result[key].items())[:5])}; lien {result['lien_bytes']:,}, NCCL's log "
                f"{result['logged_bytes']:,} bytes")
    difference = abs(result["lien_bytes"] - result["logged_bytes"])
    require(difference <= 0.01 * result["logged_bytes"], f"pid {pid}: lien mem says "
            f"{result['lien_bytes']:,} bytes, NCCL's log {result['logged_bytes']:,}")


def accounting(context: Context) -> dict:
    """`lien mem` against NCCL's log of its allocations, and against NVML."""
    with context.session("accounting") as session:
        lien = session.lien
        start_agent(lien)
        job = session.job(env=observe.nccl_logging(session.logs))
        info = job.ask("init-cuda", 90)
        observer = Observer(info)
        start = measure(lien, observer, info)
        job.ask(f"setup {COMMUNICATORS}", 150)
        now = measure(lien, observer, info)
        require_watched(lien, job.pids)
        figures, rows = [], []
        for rank, pid in enumerate(job.pids):
            logged = compare_with_log(lien, pid, session.logs / f"nccl.{pid}.log")
            seen = {"context_bytes": start[rank]["nvml"] - start[rank]["lien"],
                    "traced_bytes": now[rank]["lien"], "nvml_bytes": now[rank]["nvml"],
                    "nvml_per_process": now[rank]["per_process"]}
            rows.append([pid, mib(logged["lien_bytes"]), mib(logged["logged_bytes"]),
                         logged["lien_allocations"], logged["logged_allocations"],
                         mib(seen["traced_bytes"]), mib(seen["context_bytes"]),
                         mib(seen["nvml_bytes"]),
                         mib(seen["nvml_bytes"] - seen["context_bytes"] - seen["traced_bytes"])])
            figures.append({**seen, **{k: len(v) if isinstance(v, dict) else v
                                       for k, v in logged.items()}, "log": logged})
        say(table(["pid", "NCCL MiB, lien", "NCCL's log", "allocations", "logged", "traced MiB",
                   "context MiB", "NVML MiB", "rest MiB"], rows))
        if not now[0]["per_process"]:
            say("  NVML gives no figure per process here: its device-wide one was taken")
        for pid, f in zip(job.pids, figures):
            require_log_agrees(pid, f.pop("log"))
            require(f["traced_bytes"] + f["context_bytes"] <= f["nvml_bytes"] + 4 * MIB,
                    f"pid {pid}: traced {f['traced_bytes']:,} + context {f['context_bytes']:,} is "
                    f"more than NVML's {f['nvml_bytes']:,}")
            require(f["lien_bytes"] == processes(lien, [pid])[pid]["nccl_bytes"],
                    f"pid {pid}: lien ps and lien mem differ in NCCL's bytes")
        finish(lien, job)
        return {"processes": figures}


def measure(lien, observer: Observer, info: list) -> list:
    """Per rank: NVML's figure (of the process, else of its device) and lien's traced bytes."""
    mem = lien.json("mem")
    result = []
    for rank in info:
        used = observer.process(rank["device"], rank["pid"])
        result.append({"per_process": used is not None,
                       "nvml": observer.used_on(rank["device"]) if used is None else used,
                       "lien": mem_bytes(mem, rank["pid"])})
    return result


def refusals(context: Context) -> dict:
    """What can't be done is refused with a reason and leaves the job running."""
    with context.session("refusals") as session:
        lien = session.lien
        start_agent(lien)
        job = session.job()
        observer = Observer(job.ask(f"setup {COMMUNICATORS}", 150))
        require_watched(lien, job.pids)
        told = {}
        steps = (("dead pid", refuse_dead_pid), ("unknown address", refuse_address),
                 ("nothing to restore", nothing_to_restore), ("dry run", dry_run),
                 ("offloaded twice", offload_twice), ("capture", refuse_capture),
                 ("busy", refuse_busy))
        for name, step in steps:
            try:
                told[name] = step(lien, job, observer)
            except Failure as failure:
                raise Failure(f"{name}: {failure}") from None
            say(f"  {name}: {told[name][:300]}")
            require_state(lien, job.pids, "running")
            job.ask("check", 90)
        round_after = move_round(lien, job, observer, None)
        job.ask("check", 90)
        finish(lien, job)
        return {"told": told, "round_after": round_after}


def refuse_dead_pid(lien, _job, _observer) -> str:
    gone = subprocess.Popen(["true"])
    gone.wait(10)
    outcome = lien.refused("offload", "--pid", gone.pid)
    require(str(gone.pid) in outcome.text(), f"the reason does not name {gone.pid}: "
            f"{outcome.text()}")
    return outcome.text()


def refuse_address(lien, job, _observer) -> str:
    return lien.refused("holders", job.pids[0], "0x1000").text()


def nothing_to_restore(lien, _job, _observer) -> str:
    outcome = restore(lien)["outcome"]
    require(outcome == "nothing to do", f"restore with nothing offloaded: {outcome}")
    return outcome


def dry_run(lien, job, observer) -> str:
    before = observer.used()
    result = offload(lien, "--dry-run")
    require(result["outcome"] == "dry run", f"outcome {result['outcome']}")
    require_state(lien, job.pids, "running")
    moved = before - observer.used()
    require(abs(moved) < 16 * MIB, f"a dry run changed the used memory by {moved:,} bytes")
    planned = sum(p["bytes"] for p in result["processes"])
    want = mem_bytes(lien.json("mem"), owner="nccl")
    require(planned >= FREED_SHARE * want, f"plans {planned:,} bytes of NCCL's {want:,}")
    return f"{result['outcome']}, {planned:,} bytes"


def offload_twice(lien, job, observer) -> str:
    require(offload(lien)["outcome"] == "done", "the first offload moved nothing")
    used = observer.used()
    outcome = offload(lien)["outcome"]
    require(outcome == "nothing to do", f"the second offload: {outcome}")
    require_state(lien, job.pids, "offloaded")
    require(abs(observer.used() - used) < 16 * MIB, "the second offload changed the used memory")
    require(restore(lien)["outcome"] == "done", "the restore put nothing back")
    again = restore(lien)["outcome"]
    require(again == "nothing to do", f"the second restore: {again}")
    return outcome


def refuse_capture(lien, job, observer) -> str:
    """The capture is of the strictest mode: a driver call in the job that it forbids breaks it."""
    job.ask("capture-hold global", 60, ranks=[0])
    time.sleep(1)
    try:
        job.ask("capture-release", 60, ranks=[0])
    except Failure as failure:
        raise Failure(f"a held capture breaks without any order of lien's too: {failure}") from None
    before = observer.used()
    job.ask("capture-hold global", 60, ranks=[0])
    try:
        outcome = lien.refused("offload")
    finally:
        job.ask("capture-release", 60, ranks=[0])
    require("captur" in outcome.text().lower() and str(job.pids[0]) in outcome.text(),
            f"the reason names no capture in {job.pids[0]}: {outcome.text()}")
    require(before - observer.used() < 16 * MIB, "memory was freed all the same")
    return outcome.text()


def refuse_busy(lien, job, observer) -> str:
    before = observer.used()
    job.ask("busy 8", 30, ranks=[1])
    began = time.monotonic()
    outcome = lien.refused("offload", "--timeout", 500)
    took = time.monotonic() - began
    job.ask("sync", 90, ranks=[1])
    require(str(job.pids[1]) in outcome.text(),
            f"the reason does not name {job.pids[1]}: {outcome.text()}")
    require(took < 6, f"the refusal took {took:.1f} s with --timeout 500")
    require(before - observer.used() < 16 * MIB, "memory was freed all the same")
    return f"{outcome.text()} (after {took * 1e3:.0f} ms)"


# name: (case, limit in seconds)
CASES = {
    "nccl_rounds": (nccl_rounds, 240),
    "expandable": (expandable, 300),
    "accounting": (accounting, 180),
    "refusals": (refusals, 240),
    **cases_see.CASES,
    **cases_move.CASES,
    **cases_join.CASES,
    **cases_plain.CASES,
}
ONE_GPU = cases_plain.CASES  # the others need two


def run_case(context: Context, name: str) -> str | None:
    """None when all is well, else why not."""
    case, limit_s = CASES[name]
    say(f"{name}: {' '.join((case.__doc__ or '').split())}")
    began = time.monotonic()
    try:
        with deadline(limit_s, name):
            context.figures[name] = case(context)
    except Failure as failure:
        return fail(name, str(failure))
    except Exception as error:  # a bug here or an answer of another form: the other cases go on
        traceback.print_exc(file=sys.stdout)
        return fail(name, f"{type(error).__name__}: {error}")
    say(f"ok {name} ({time.monotonic() - began:.1f} s)")
    return None


def fail(name: str, why: str) -> str:
    say(f"FAILED {name}: {why}")
    return why


def main() -> int:
    parser = argparse.ArgumentParser(description="lien's tests on real GPUs")
    parser.add_argument("--lien", type=Path, default=harness.ROOT / "build/lien")
    parser.add_argument("--only", action="append", choices=list(CASES), metavar="NAME",
                        help=f"one of {', '.join(CASES)}; may be repeated")
    parser.add_argument("--share", action="store_true",
                        help="run the cases that need two GPUs on one: their ranks talk over sockets, and "
                        "share no memory")
    parser.add_argument("--figures", type=Path, help="write what was measured here, as JSON")
    parser.add_argument("--logs", type=Path, help="keep the logs in this directory")
    options = parser.parse_args()
    harness.end_on_signals()
    names = options.only or list(CASES)
    skipped = []
    machine, reason = harness.probe_gpus(2)
    if machine is None:
        machine, _ = harness.probe_gpus(1)
        skipped = [name for name in names
                   if machine is None or not (options.share or name in ONE_GPU)]
        harness.GPUS = 1
    for name in skipped:
        say(f"skipped {name}: {reason}")
    names = [name for name in names if name not in skipped]
    if not names:
        say(f"0 passed, 0 failed, {len(skipped)} skipped")
        return 0
    if os.geteuid() != 0:
        say("FAILED: eBPF needs root: sudo make gpu-check")
        say(f"0 passed, {len(names)} failed")
        return 1
    say(f"PyTorch {machine['torch']}, CUDA {machine['cuda']}, NCCL {machine['nccl']}, "
        f"{machine['gpus']} GPUs")
    context = Context(options.lien, options.logs, machine)
    results = {name: run_case(context, name) for name in names}
    failed = {name: why for name, why in results.items() if why is not None}
    if options.figures:
        options.figures.parent.mkdir(parents=True, exist_ok=True)
        options.figures.write_text(json.dumps({"machine": machine, "cases": context.figures},
                                              indent=1) + "\n")
    if failed and len(results) > 1:
        say("\n# again, for the output above may be long:")
        for name, why in failed.items():
            say(f"#   {name}: {why[:500]}")
    say(f"{len(results) - len(failed)} passed, {len(failed)} failed"
        + (f", {len(skipped)} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
