# SPDX-License-Identifier: BSD-2-Clause
"""Cases of gpu_check.py about jobs that do not pause for an offload."""
import random
import time

from harness import Failure
from observe import Observer, mem_bytes, mib

COMMUNICATORS = 4
MOMENTS = 50
SUCCESSES = 40
STEPS = 6000
TURNS = 10
WATCHDOG_S = 15
AWAY_S = 22


def require(condition, text: str) -> None:
    if not condition:
        raise Failure(text)


def never_pauses(context) -> dict:
    """Offloads and restores from outside, at any moment of a training loop that never pauses."""
    with context.session("never_pauses") as session:
        lien = session.lien
        lien.start_agent()
        job = session.job()
        job.ask(f"setup {COMMUNICATORS}", 150)
        job.ask("train 20", 60)
        began = time.monotonic()
        undisturbed = job.ask(f"train {STEPS}", 200)
        took = time.monotonic() - began
        for rank in job.ranks:
            rank.send(f"train {STEPS}")
        began = time.monotonic()
        done, refused, stopped = 0, [], []
        for _ in range(MOMENTS):
            time.sleep(random.random() * 0.1)
            outcome = lien.command("offload", "--json", "--timeout", "3000")
            if outcome.code == 0:
                out = outcome.json()
                back = lien.json("restore")
                require(out["bytes"] > 3 << 30 and back["outcome"] == "done", f"{out} {back}")
                done += 1
                stopped.append(out["ms"] + back["ms"])
            else:
                require("the job runs on" in outcome.text(), outcome.text())
                refused.append(outcome.text()[-200:])
        moved_for = time.monotonic() - began
        disturbed = job.collect(f"train {STEPS}", 200)
        for rank, (was, now) in enumerate(zip(undisturbed, disturbed)):
            require(was["losses"] == now["losses"], f"rank {rank}: the losses are not the same")
        print(f"  {done} of {MOMENTS} offloads succeeded in {moved_for:.1f} s; the loop took "
              f"{took:.1f} s undisturbed; offload + restore {sorted(stopped)[len(stopped) // 2]:.0f}"
              f" ms (median)")
        for text in sorted(set(refused)):
            print(f"  refused: {text}")
        require(done >= SUCCESSES, f"only {done} of {MOMENTS} offloads succeeded: {refused[:3]}")
        job.ask("check", 90)
        job.ask("destroy", 90)
        job.quit()
        return {"succeeded": done, "moments": MOMENTS, "refused": refused, "seconds": took,
                "ms": stopped}


def turns(context) -> dict:
    """Two jobs on the same GPUs take turns: one is away while the other works."""
    with context.session("turns") as session:
        lien = session.lien
        lien.start_agent()
        expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        jobs = [session.job(name, env=expandable) for name in ("training", "inference")]
        observer = None
        for number, job in enumerate(jobs):
            observer = Observer(job.ask(f"setup {COMMUNICATORS}", 150))
            job.ask("fill 4", 60)
        away = [pid for pid in jobs[1].pids]
        lien.json("offload", "--owner", "all", *[f"--pid={pid}" for pid in away], timeout=150)
        used = []
        for turn in range(TURNS):
            here, other = jobs[turn % 2], jobs[(turn + 1) % 2]
            here.ask("verify-fill", 90)
            here.ask("check", 90)
            used.append(observer.used())
            out = lien.json("offload", "--owner", "all",
                            *[f"--pid={pid}" for pid in here.pids], timeout=150)
            back = lien.json("restore", *[f"--pid={pid}" for pid in other.pids], timeout=150)
            require(out["outcome"] == back["outcome"] == "done", f"{out} {back}")
            require(out["bytes"] > 14 << 30, f"moved {out['bytes']}")
        lien.json("restore", timeout=150)
        print("  in use, MiB, at each turn: " + " ".join(mib(u) for u in used))
        same = used[2::2] if TURNS > 4 else used
        require(max(same) - min(same) < 64 << 20, f"what stays grows: {used}")
        for job in jobs:
            job.ask("verify-fill", 90)
            job.ask("check", 90)
            job.ask("destroy", 90)
            job.quit()
        require(not mem_bytes(lien.json("mem")), "memory left")
        return {"used": used}


def graphs_and_ends(context) -> dict:
    """A CUDA graph with an all-reduce that is replayed without a pause; communicators that are
    destroyed while their memory is away."""
    with context.session("graphs_and_ends") as session:
        lien = session.lien
        lien.start_agent()
        job = session.job()
        job.ask(f"setup {COMMUNICATORS}", 150)
        job.ask("graph-capture", 60)
        for rank in job.ranks:
            rank.send("graph-replay 3000")
        done, refused = 0, []
        for _ in range(10):
            time.sleep(random.random() * 0.1)
            outcome = lien.command("offload", "--json", "--timeout", "3000", "--retry", "3000")
            if outcome.code == 0:
                lien.json("restore")
                done += 1
            else:
                require("the job runs on" in outcome.text(), outcome.text())
                refused.append(outcome.text()[-200:])
        job.collect("graph-replay 3000", 120)  # each replay's values are compared
        print(f"  {done} of 10 offloads succeeded {refused[:2]}")
        require(done >= 8, f"only {done}: {refused}")
        require(lien.json("offload")["outcome"] == "done", "offload")
        job.ask("destroy", 90)
        codes = job.quit()
        require(codes == [0] * len(codes), f"exit statuses: {codes}")
        return {"succeeded": done}


def watchdog(context) -> dict:
    """A training loop that is away for longer than its process groups' time limit goes on."""
    with context.session("watchdog") as session:
        lien = session.lien
        lien.start_agent()
        job = session.job(arguments=["--timeout", str(WATCHDOG_S)])
        job.ask(f"setup {COMMUNICATORS}", 150)
        undisturbed = job.ask(f"train {STEPS}", 200)
        for rank in job.ranks:
            rank.send(f"train {STEPS}")
        time.sleep(random.random())
        out = lien.json("offload", "--owner", "all", "--timeout", "3000", "--retry", "10000")
        require(out["outcome"] == "done", str(out))
        time.sleep(AWAY_S)
        lien.json("restore")
        disturbed = job.collect(f"train {STEPS}", 200)
        for rank, (was, now) in enumerate(zip(undisturbed, disturbed)):
            require(was["losses"] == now["losses"], f"rank {rank}: the losses are not the same")
        job.ask("check", 90)
        codes = job.quit()
        require(codes == [0] * len(codes), f"exit statuses: {codes}")
        return {"limit_s": WATCHDOG_S, "away_s": AWAY_S, "bytes": out["bytes"]}


CASES = {
    "graphs_and_ends": (graphs_and_ends, 180),
    "never_pauses": (never_pauses, 300),
    "turns": (turns, 240),
    "watchdog": (watchdog, 300),
}
