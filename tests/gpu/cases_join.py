# SPDX-License-Identifier: BSD-2-Clause
"""Cases of gpu_check.py about jobs that ran before there was an agent, and without lien."""
import time

from harness import Failure, wait_for
from observe import Observer, mib, table

COMMUNICATORS = 4
STEPS = 1500
ROUNDS = 3
FREED_SHARE = 0.99


def require(condition, text: str) -> None:
    if not condition:
        raise Failure(text)


def attach(lien, job) -> dict:
    """All of the job's processes, while it trains."""
    lien.start_agent()
    wait_for("the job is known", lambda: {p["pid"] for p in lien.json("ps")["processes"]}
             >= set(job.pids), 20)
    before = {p["pid"]: p for p in lien.json("ps")["processes"]}
    require(not any(before[pid]["complete"] for pid in job.pids), f"complete: {before}")
    answer = lien.json("attach", "--all", timeout=200)
    adoption = answer["adoption"]
    rows = [[p["pid"], f"{p['ms']:.1f}", f"{p['pause_ms']:.2f}", p["mappings"], p["new"],
             f"{p['read_ms']:.0f}"] for p in answer["processes"]]
    print(table(["pid", "attach ms", "waited ms", "mappings", "new", "read ms"], rows))
    print(f"  adoption: {adoption}")
    require(adoption and not adoption["error"], f"{answer}")
    require(not answer["refused"], f"{answer}")
    require(adoption["matched"] and not adoption["unmatched"] and not adoption["disputed"],
            f"{adoption}")
    return answer


def move(lien, observer: Observer) -> dict:
    target = lien.json("mem")["offload_frees"]
    before = observer.used()
    out = lien.json("offload", "--owner", "all", "--timeout", 60000, timeout=150)
    lowest = before - int(target * FREED_SHARE)
    freed = before - observer.used_once(lambda used: used <= lowest)
    require(out["outcome"] == "done" and out["bytes"] >= target * FREED_SHARE,
            f"{out['bytes']:,} bytes moved of {target:,}: {out['left']}")
    require(freed >= target * FREED_SHARE, f"{freed:,} bytes freed of {target:,}")
    back = lien.json("restore", "--timeout", 60000, timeout=150)
    require(back["outcome"] == "done", f"{back}")
    return {"bytes": out["bytes"], "freed": freed, "offload_ms": out["ms"],
            "restore_ms": back["ms"], "left": out["left"]}


def rounds(lien, job, observer, graph: bool) -> list:
    done = []
    for _ in range(ROUNDS):
        done.append(move(lien, observer))
        job.ask("check", 90)
        if graph:
            job.ask("graph-replay 3", 60)
    print(table(["", "moved MiB", "NVML freed MiB", "offload ms", "restore ms"],
                [[f"round {n}", mib(r["bytes"]), mib(r["freed"]), f"{r['offload_ms']:.1f}",
                  f"{r['restore_ms']:.1f}"] for n, r in enumerate(done, 1)]))
    for left in done[0]["left"]:
        print(f"  left: {left['allocations']} of {left['pid']}, {mib(left['bytes'])} MiB: "
              f"{left['reason']}")
    return done


def finish(job) -> None:
    job.ask("new-comm", 90)
    job.ask("check", 90)
    job.ask("destroy", 90)
    codes = job.quit()
    require(codes == [0] * len(codes), f"exit statuses: {codes}")


def joined(context) -> dict:
    """A job of four communicators that has run for a while is attached as it trains, and moved."""
    with context.session("joined") as session:
        job = session.job(with_lien=False)
        observer = Observer(job.ask(f"setup {COMMUNICATORS}", 150))
        job.ask("graph-capture", 60)
        job.ask("train 20", 60)
        undisturbed = job.ask(f"train {STEPS}", 120)
        for rank in job.ranks:
            rank.send(f"train {STEPS}")
        answer = attach(session.lien, job)
        disturbed = job.collect(f"train {STEPS}", 120)
        for rank, (was, now) in enumerate(zip(undisturbed, disturbed)):
            require(was["losses"] == now["losses"], f"rank {rank}: the losses are not the same")
        job.ask("check", 90)
        left = session.lien.json("detach", "--all")
        require(not left["refused"], f"detach: {left}")
        job.ask("train 100", 60)
        again = session.lien.json("attach", "--all", timeout=200)
        require(not again["refused"] and again["adoption"] is None, f"attached again: {again}")
        done = rounds(session.lien, job, observer, True)
        finish(job)
        session.lien.check_agent()
        return {"attach": answer, "rounds": done}


def joined_expandable(context) -> dict:
    """The same with PyTorch's expandable segments: the tensors come back unchanged."""
    with context.session("joined_expandable") as session:
        job = session.job(with_lien=False,
                          env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
        observer = Observer(job.ask(f"setup {COMMUNICATORS}", 150))
        filled = job.ask("fill 4", 90)
        time.sleep(1)
        answer = attach(session.lien, job)
        job.ask("verify-fill", 90)
        done = rounds(session.lien, job, observer, False)
        require(done[0]["bytes"] >= sum(f["bytes"] for f in filled),
                f"only {done[0]['bytes']:,} bytes were moved: less than the tensors")
        job.ask("verify-fill", 90)
        job.ask("drop-fill", 90)
        finish(job)
        return {"attach": answer, "rounds": done}


def joined_by_offload(context) -> dict:
    """Nobody attaches: the first offload of a job that ran before the agent does."""
    with context.session("joined_by_offload") as session:
        lien = session.lien
        job = session.job(with_lien=False)
        observer = Observer(job.ask("setup 2", 150))
        lien.start_agent(attach=True)
        began = time.monotonic()
        out = lien.json("offload", "--timeout", 60000, timeout=150)
        took = (time.monotonic() - began) * 1e3
        require(out["outcome"] == "done" and out["bytes"] > 1 << 30, f"{out}")
        print(f"  {mib(out['bytes'])} MiB in {took:.0f} ms with all that attaching takes, "
              f"{out['ms']:.0f} ms of it the offload's; in use then: {mib(observer.used())} MiB")
        require(lien.json("restore", timeout=150)["outcome"] == "done", "restore")
        job.ask("check", 90)
        finish(job)
        return {"ms": took, "offload_ms": out["ms"]}


CASES = {
    "joined_by_offload": (joined_by_offload, 180),
    "joined": (joined, 240),
    "joined_expandable": (joined_expandable, 240),
}
