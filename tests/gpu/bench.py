#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The GPU figures of docs/measurements.md, of one run on two GPUs.

Move: one job under `lien run`, offloaded and restored; the first round, which pins the host memory,
stands apart. Cost: two jobs, one under `lien run` and one without, are timed with the agent running
and with none, in turn, in one run: communicator set-up with the first all-reduce, and 1,000 small
all-reduces. Answers: the agent's memory, and the time of `lien mem`.
"""
import argparse
import json
import os
import socket
import statistics
import sys
import time
from pathlib import Path

import harness
from harness import Failure, Session, deadline
from observe import Observer, mem_bytes, mib, phases, table

TARGET_OFFLOAD_MS, TARGET_RESTORE_MS, TARGET_MEM_MS = 150, 220, 50
TARGET_FREED = 0.99
AGENT_WAIT = 60000


def median(values: list) -> float:
    return round(statistics.median(values), 3)


def spread(values: list) -> dict:
    return {"median": median(values), "min": round(min(values), 3), "max": round(max(values), 3),
            "n": len(values)}


def verdict(value: float, target: float, at_least: bool = False) -> str:
    met = value >= target if at_least else value <= target
    return "met" if met else "missed"


# Move

def move(lien, job, observer, rounds: int) -> dict:
    mem = lien.json("mem")
    target = mem_bytes(mem, owner="nccl")
    results = []
    for _ in range(rounds + 1):
        before = observer.used()
        lowest = before - int(target * TARGET_FREED)
        out = lien.json("offload", "--timeout", AGENT_WAIT, timeout=150)
        freed = before - observer.used_once(lambda used: used <= lowest)
        back = lien.json("restore", "--timeout", AGENT_WAIT, timeout=150)
        for result in (out, back):
            if result["outcome"] != "done":
                raise Failure(f"outcome {result['outcome']}")
        results.append({"offload_ms": out["ms"], "restore_ms": back["ms"], "freed_bytes": freed,
                        "bytes": out["bytes"],
                        "mappings": sum(p["mappings"] for p in out["processes"]),
                        "offload_phases_ms": phases(out), "restore_phases_ms": phases(back)})
        job.ask("check", 90)
    return summarise_moves(results, target, len(job.pids))


def summarise_moves(results: list, target: int, ranks: int) -> dict:
    first, warm = results[0], results[1:]
    summary = {"ranks": ranks, "nccl_bytes": target, "moved_bytes": warm[-1]["bytes"],
               "mappings": warm[-1]["mappings"],
               "freed_share": round(min(r["freed_bytes"] for r in results) / target, 4),
               "first": first}
    for kind in ("offload", "restore"):
        summary[f"{kind}_ms"] = spread([r[f"{kind}_ms"] for r in warm])
        names = list(warm[-1][f"{kind}_phases_ms"])
        summary[f"{kind}_phases_ms"] = {
            name: median([r[f"{kind}_phases_ms"].get(name, 0) for r in warm]) for name in names}
    return summary


def print_move(m: dict) -> None:
    print(f"\nOffload and restore: {m['ranks']} ranks, {m['mappings']} mappings, "
          f"{mib(m['nccl_bytes'])} MiB of NCCL's memory; {100 * m['freed_share']:.2f} % freed, as "
          f"NVML says ({verdict(m['freed_share'], TARGET_FREED, True)})")
    rows = []
    for kind, target in (("offload", TARGET_OFFLOAD_MS), ("restore", TARGET_RESTORE_MS)):
        s = m[f"{kind}_ms"]
        rows.append([kind, f"{m['first'][f'{kind}_ms']:.1f}", f"{s['median']:.1f}",
                     f"{s['min']:.1f}", f"{s['max']:.1f}", target, verdict(s["median"], target)])
    print(table(["ms", "first", "later: median", "min", "max", "target", ""], rows))
    for kind in ("offload", "restore"):
        per = m[f"{kind}_phases_ms"]
        print(table([f"{kind}: phase, ms", *per],
                    [["first", *(f"{m['first'][f'{kind}_phases_ms'].get(n, 0):.1f}" for n in per)],
                     ["later, median", *(f"{v:.1f}" for v in per.values())]]))


# Answers

def time_mem_socket(lien, times: int) -> list:
    """On one connection, as a monitor would ask."""
    took = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(30)
        sock.connect(str(lien.socket))
        stream = sock.makefile("rwb")
        for _ in range(times):
            began = time.perf_counter()
            harness.exchange(stream, {"op": "mem"})
            took.append((time.perf_counter() - began) * 1e3)
    return took


def answers(lien, times: int) -> dict:
    status = lien.json("status")
    by_command = [lien.command("mem").ms for _ in range(times)]
    return {"mem_socket_ms": spread(time_mem_socket(lien, times)),
            "mem_command_ms": spread(by_command),
            "agent_rss_bytes": proc_rss(lien.agent.pid),
            "agent_says_rss_bytes": status["rss_bytes"],
            "events": status["events"], "events_lost": status["events_lost"],
            "allocations": status["allocations"], "mappings": status["mappings"]}


def proc_rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0


def print_answers(a: dict) -> None:
    print(f"\nThe agent with that job: RSS {mib(a['agent_rss_bytes'])} MiB, {a['events']:,} events "
          f"({a['events_lost']} lost), {a['allocations']} allocations, {a['mappings']} mappings")
    rows = [[name, f"{a[key]['median']:.2f}", f"{a[key]['max']:.2f}", TARGET_MEM_MS,
             verdict(a[key]["median"], TARGET_MEM_MS)]
            for name, key in (("socket", "mem_socket_ms"), ("lien mem", "mem_command_ms"))]
    times = a["mem_socket_ms"]["n"]
    print(table([f"mem, ms ({times} times)", "median", "max", "target", ""], rows))


# Cost

def time_job(job, communicators: int, allreduces: int) -> dict:
    """The slowest rank of each communicator, and of the small all-reduces."""
    setups = [a["each_ms"] for a in job.ask(f"time-setup {communicators}", 120)]
    each = [max(times) for times in zip(*setups)]
    reduces = job.ask(f"time-allreduce {allreduces}", 60)
    return {"setup_ms": each, "allreduce_us": [max(a["total_ms"] for a in reduces) * 1e3
                                               / allreduces]}


def settle(lien, jobs: dict) -> None:
    """Contexts are followed in a process that has been met only just (agent/processes/watch.c)."""
    for job in jobs.values():
        job.ask("time-allreduce 500", 60)
    pids = {pid for job in jobs.values() for pid in job.pids}
    harness.wait_for("the jobs' contexts need no watching",
                     lambda: not pids & set(lien.json("status")["contexts_followed"] or []))


def cost(session, jobs: dict, repetitions: int, communicators: int, allreduces: int) -> dict:
    """Agent off and on in turn; within each, both jobs in turn."""
    lien = session.lien
    lien.stop_agent()
    samples = {(agent, name): {"setup_ms": [], "allreduce_us": []}
               for agent in ("off", "on") for name in jobs}
    events = []
    for job in jobs.values():  # what is made once per process is not to be timed
        time_job(job, 1, 100)
    for _ in range(repetitions):
        for agent in ("off", "on"):
            if agent == "on":
                lien.start_agent()
                settle(lien, jobs)
            for name, job in jobs.items():
                before = lien.json("status")["events"] if agent == "on" else 0
                result = time_job(job, communicators, allreduces)
                for key, values in result.items():
                    samples[agent, name][key] += values
                if agent == "on":
                    events.append((lien.json("status")["events"] - before) / communicators)
            if agent == "on":
                lien.check_agent()
                lien.stop_agent()
    return summarise_cost(samples, list(jobs), median(events), len(next(iter(jobs.values())).pids))


def summarise_cost(samples: dict, names: list, events: float, ranks: int) -> dict:
    summary: dict = {"jobs": {}, "events_per_communicator": events}
    for name in names:
        entry: dict = {}
        for key in ("setup_ms", "allreduce_us"):
            off, on = (spread(samples[agent, name][key]) for agent in ("off", "on"))
            entry[key] = {"off": off, "on": on,
                          "change_percent": round(100 * (on["median"] / off["median"] - 1), 2)}
        extra = entry["setup_ms"]["on"]["median"] - entry["setup_ms"]["off"]["median"]
        # An event is a call, or the entry of a releasing one; each rank makes its share of them.
        entry["us_per_event"] = round(extra * 1e3 * ranks / events, 2) if events else None
        summary["jobs"][name] = entry
    return summary


def print_cost(c: dict) -> None:
    print("\nThe job with the agent and without, in turn "
          f"({c['events_per_communicator']:.0f} events a communicator, of all ranks, its end "
          "included)")
    rows = []
    for name, entry in c["jobs"].items():
        for key, what in (("setup_ms", "communicator + first all-reduce, ms"),
                          ("allreduce_us", "one small all-reduce, us")):
            e = entry[key]
            rows.append([f"{name}: {what}", f"{e['off']['median']:.2f}", f"{e['on']['median']:.2f}",
                         f"{e['change_percent']:+.1f} %"])
    print(table(["medians", "agent off", "agent on", "change"], rows))
    for name, entry in c["jobs"].items():
        print(f"  {name}: {entry['us_per_event']} us of set-up time per event of a rank")


def run(options, machine: dict) -> dict:
    figures: dict = {"machine": machine, "host": os.uname().release}
    with Session(options.lien, options.logs, "bench") as session:
        lien = session.lien
        figures["agent_start_ms"] = round(lien.start_agent(), 1)
        job = session.job("with-lien")
        observer = Observer(job.ask(f"setup {options.job_communicators}", 150))
        lost = lien.json("status")
        if lost["events_lost"] or lost["incomplete"]:
            raise Failure(f"events lost or a process incomplete: {lost}")
        figures["answers"] = answers(lien, options.times)
        print_answers(figures["answers"])
        figures["move"] = move(lien, job, observer, options.rounds)
        print_move(figures["move"])
        sys.stdout.flush()
        plain = session.job("plain", with_lien=False)
        plain.ask(f"setup {options.job_communicators}", 150)
        figures["cost"] = cost(session, {"plain": plain, "lien run": job}, options.repetitions,
                               options.communicators, options.allreduces)
        print_cost(figures["cost"])
        for each in (job, plain):
            each.ask("destroy", 90)
            each.quit()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="lien's figures on real GPUs")
    parser.add_argument("--lien", type=Path, default=harness.ROOT / "build/lien")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--logs", type=Path, help="keep the logs in this directory")
    parser.add_argument("--job-communicators", type=int, default=4, help="that the job has; 3 make "
                        "966 mappings of 2,604 MiB per GPU with NCCL 2.28")
    parser.add_argument("--rounds", type=int, default=5, help="after the first")
    parser.add_argument("--times", type=int, default=50, help="of lien mem")
    parser.add_argument("--repetitions", type=int, default=3, help="of agent off and on")
    parser.add_argument("--communicators", type=int, default=4, help="in each of them")
    parser.add_argument("--allreduces", type=int, default=1000, help="in each of them")
    parser.add_argument("--touch-host", type=float, default=8, metavar="GIB",
                        help="of host memory to touch first")
    parser.add_argument("--limit", type=float, default=420, help="seconds for all of it")
    options = parser.parse_args()
    harness.end_on_signals()
    machine, reason = harness.probe_gpus(2)
    if machine is None:
        print(f"bench: skipped: {reason}")
        return 0
    if os.geteuid() != 0:
        print("bench: eBPF needs root: run it with sudo")
        return 1
    print(f"PyTorch {machine['torch']}, CUDA {machine['cuda']}, NCCL {machine['nccl']}, "
          f"{machine['gpus']} GPUs", flush=True)
    try:
        with deadline(options.limit, "the benchmark"):
            harness.touch_host(options.touch_host)
            figures = run(options, machine)
    except Failure as failure:
        print(f"bench: failed: {failure}")
        return 1
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    print("bench: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
