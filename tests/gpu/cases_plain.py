# SPDX-License-Identifier: BSD-2-Clause
"""Cases of gpu_check.py about memory of cudaMalloc, cudaMallocAsync and legacy IPC under `lien run`.
One GPU is enough; a job has two ranks."""
import json
import random
import subprocess
import sys
import time

from harness import GIB, HERE, MIB, Failure, run_command, spawn, wait_for
from observe import Observer, mib, table

COMMUNICATORS = 4
FILL_GIB = 2
STEPS = 3000
STEPS_OVER_SOCKETS = 240  # of ranks that share a GPU
MOMENTS = 20
IPC_MOMENTS = 10
COPIED_GIB = 3
TURNS = 10
MOVED_SHARE = 0.99
SLOWER = 1.5
RATE_SHARE = 0.99
FULL_SHARE = 0.99

ROWS = {
    "NCCL_CUMEM_ENABLE=0": {"NCCL_CUMEM_ENABLE": "0"},
    "PyTorch's defaults": {},
    "expandable_segments:True": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "backend:cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}


def require(condition, text: str) -> None:
    if not condition:
        raise Failure(text)


def move(lien, *arguments) -> tuple[dict, dict]:
    out = lien.json("offload", "--timeout", "20000", *arguments, timeout=60)
    back = lien.json("restore", "--timeout", "20000", timeout=60)
    require(out["outcome"] == back["outcome"] == "done", f"{out} {back}")
    return out, back


def moved_row(context, session, name: str, environment: dict) -> dict:
    """One job started that way: how much of its memory moves, and equal losses with 20 offloads."""
    lien = session.lien
    job = session.job(name.split(":")[0].replace("'s ", "-"), env=environment)
    observer = Observer(job.ask(f"setup {COMMUNICATORS}", 150))
    job.ask(f"fill {FILL_GIB}", 60)
    job.ask("graph-capture", 60)
    job.ask("train 20", 60)
    steps = STEPS if context.machine["gpus"] > 1 else STEPS_OVER_SOCKETS
    undisturbed = job.ask(f"train {steps}", 200)
    traced, before = lien.json("mem")["bytes"], observer.used()
    nccl, _ = move(lien)
    lien.json("offload", "--owner", "all", "--timeout", "20000", timeout=60)
    freed = before - observer.used()
    lien.json("restore", "--timeout", "20000", timeout=60)
    out, back = move(lien, "--owner", "all")
    job.ask("verify-fill", 60)
    for rank in job.ranks:
        rank.send(f"train {steps}")
    times = []
    for _ in range(MOMENTS):
        time.sleep(random.random() * 0.1)
        times.append([r["ms"] for r in move(lien, "--owner", "all")])
    disturbed = job.collect(f"train {steps}", 200)
    for rank, (was, now) in enumerate(zip(undisturbed, disturbed)):
        require(was["losses"] == now["losses"], f"{name}: rank {rank}: the losses are not the same")
    job.ask("verify-fill", 60)
    job.ask("graph-replay 3", 60)
    job.ask("check", 90)
    job.ask("drop-fill", 60)
    job.ask("destroy", 90)
    job.quit()
    return {"traced": traced, "moved": out["bytes"], "nccl": nccl["bytes"], "nvml_freed": freed,
            "left": out["left"], "out_ms": out["ms"], "back_ms": back["ms"], "times": times}


def all_memory(context) -> dict:
    """Each way to start a job: the share of its memory that moves, and losses equal bit for bit."""
    with context.session("all_memory") as session:
        session.lien.start_agent()
        found = {name: moved_row(context, session, name, environment) for name, environment in ROWS.items()}
    print(table(["", "traced MiB", "moved MiB", "%", "NVML freed MiB", "NCCL's MiB", "out ms", "back ms"],
                [[name, mib(row["traced"]), mib(row["moved"]), f"{100 * row['moved'] / row['traced']:.2f}",
                  mib(row["nvml_freed"]), mib(row["nccl"]), f"{row['out_ms']:.0f}",
                  f"{row['back_ms']:.0f}"] for name, row in found.items()]))
    for name, row in found.items():
        for left in row["left"]:
            print(f"  {name}: {mib(left['bytes'])} MiB left: {left['reason']}")
    few = {name: row["moved"] / row["traced"] for name, row in found.items()
           if row["moved"] < MOVED_SHARE * row["traced"]}
    require(not few, f"too little was moved: {few}")
    return found


def ipc_tensors(context) -> dict:
    """CUDA tensors that two processes share as PyTorch does, offloaded at random moments."""
    with context.session("ipc_tensors") as session:
        lien = session.lien
        lien.start_agent()
        pair = spawn([lien.binary, "run", "--", sys.executable, HERE / "ipc_pair.py"],
                     env=lien.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                     stderr=open(session.logs / "pair.log", "wb"), text=True)
        session.processes.append(pair)
        line = pair.stdout.readline()
        require(line, "the pair ended")
        pids = json.loads(line)["pids"]
        wait_for("both processes answer orders", lambda: all(
            p["control"] != "none" for p in lien.json("ps")["processes"] if p["pid"] in pids))
        moved = []
        for _ in range(IPC_MOMENTS):
            time.sleep(random.random() * 0.2)
            out, _ = move(lien, "--owner", "all")
            moved.append(out["bytes"])
        traced = lien.json("mem")["bytes"]
        pair.stdin.close()
        answer = json.loads(pair.stdout.readline() or "{}")
        require(answer.get("wrong") == 0 and answer["steps"] > 10, f"{answer}")
        print(f"  {answer['steps']} steps; moved {mib(moved[-1])} of {mib(traced)} MiB")
        for left in out["left"]:
            print(f"  {mib(left['bytes'])} MiB left: {left['reason']}")
        require(moved[-1] >= MOVED_SHARE * traced, f"moved {moved} of {traced}")
        return {"steps": answer["steps"], "traced": traced, "moved": moved}


def long_copies(context) -> dict:
    """Copies to and from pageable memory that take longer than an offload, which comes in their middle."""
    found = {}
    with context.session("long_copies") as session:
        lien = session.lien
        lien.start_agent()
        for way in ("to", "from"):
            job = spawn([lien.binary, "run", "--", sys.executable, HERE / "long_copies.py", way, COPIED_GIB],
                        env=lien.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                        stderr=open(session.logs / f"copies-{way}.log", "wb"), text=True)
            session.processes.append(job)
            require(job.stdout.readline() == "ready\n", "the job ended")
            rest = []
            for _ in range(MOMENTS):
                time.sleep(random.random())
                out, _ = move(lien, "--owner", "all")
                rest.append(out["rest_ms"])
            job.stdin.close()
            answer = json.loads(job.stdout.readline() or "{}")
            require(answer.get("wrong") == 0 and answer["rounds"] > 3, f"{way}: {answer}")
            print(f"  {way} the GPU: {answer['rounds']} copies of {COPIED_GIB} GiB, {MOMENTS} offloads, at rest after "
                  f"{min(rest):.0f} to {max(rest):.0f} ms")
            found[way] = {"rounds": answer["rounds"], "rest_ms": rest}
    return found


# Memory to which both devices have access can be set with either context, where the driver's own cannot.
ON_PURPOSE = ("cuMemsetD8_v2, plain", "cuMemsetD8Async, plain")


def copied(session, turns: int, *options) -> list[dict]:
    """What two_devices.py says at first, after each of so many offloads, and at its end."""
    lien = session.lien
    job = spawn([lien.binary, "run", *options, "--", sys.executable, HERE / "two_devices.py"], env=lien.environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=open(session.logs / f"two-devices{''.join(options)}.log", "wb"), text=True)
    session.processes.append(job)
    found = [json.loads(job.stdout.readline() or "{}")]
    for _ in range(turns):
        move(lien, "--owner", "all")
        job.stdin.write("\n")
        job.stdin.flush()
        found.append(json.loads(job.stdout.readline() or "{}"))
    job.stdin.close()
    return [*found, json.loads(job.stdout.readline() or "{}")]


def two_devices(context) -> dict:
    """Copies within and between two devices, with the context of either current, as without lien."""
    if context.machine["gpus"] < 2:
        return {"skipped": "one GPU"}
    with context.session("two_devices") as session:
        session.lien.start_agent()
        theirs, ours = copied(session, 0, "--plain"), copied(session, 2)
    differ = {}
    for turn, found in enumerate(ours):
        native = theirs[turn == len(ours) - 1]
        require(set(found) == set(native) and found, f"turn {turn}: {found}")
        differ.update({f"{call}, turn {turn}": (native[call], found[call]) for call in found
                       if found[call] != native[call]})
    print(f"  {len(theirs[0])} calls natively, under lien, and after each of 2 offloads; {len(differ)} differ")
    for call, pair in differ.items():
        print(f"  {call}: {pair[0]} natively, {pair[1]} under lien")
    require(not [call for call in differ if not call.startswith(ON_PURPOSE)], "not as without lien")
    return {"calls": len(theirs[0]), "differ": differ}


def copies_of_others(context) -> dict:
    """Memory is freed while another context copies it; copies of memory with SYNC_MEMOPS."""
    if context.machine["gpus"] < 2:
        return {"skipped": "one GPU"}
    with context.session("copies_of_others") as session:
        lien = session.lien
        argv = [sys.executable, HERE.parent / "lien_shared" / "copies_of_others.py", "1"]
        native, ours = (run_command([*before, *argv], 60, lien.environment).json()
                        for before in ([], [lien.binary, "run", "--"]))
    require(ours == native, f"natively {native}, under lien {ours}")
    return {"copies": native}


def calls(lien, what: str, *options) -> dict:
    outcome = run_command([lien.binary, "run", *options, "--", sys.executable, HERE / "plain_calls.py",
                           what], 120, lien.environment)
    require(outcome.code == 0, f"plain_calls.py {what}: {outcome.text()[-500:]}")
    return outcome.json()


def as_fast(context) -> dict:
    """Plain calls under `lien run` beside the driver's own: time, bandwidth, where memory runs out."""
    with context.session("as_fast") as session:
        lien = session.lien
        rounds = [(calls(lien, "speed"), calls(lien, "speed", "--plain")) for _ in range(3)]
        ours, theirs = calls(lien, "full"), calls(lien, "full", "--plain")
    median = lambda values: sorted(values)[len(values) // 2]
    slower = {size: median([ours["pair_us"][size] / theirs["pair_us"][size] for ours, theirs in rounds])
              for size in rounds[0][0]["pair_us"]}
    rates = {name: median([ours[name] / theirs[name] for ours, theirs in rounds])
             for name in ("copy", "memset")}
    print(table(["cudaMalloc + cudaFree", "us", "driver's us", "ratio"],
                [[size, f"{rounds[0][0]['pair_us'][size]:.1f}", f"{rounds[0][1]['pair_us'][size]:.1f}",
                  f"{ratio:.2f}"] for size, ratio in slower.items()]))
    print("  rates, ratio to plain memory: " + ", ".join(f"{k} {v:.3f}" for k, v in rates.items()))
    print(f"  out of memory after {mib(ours['bytes'])} MiB, the driver's own after {mib(theirs['bytes'])}")
    problems = [f"{size}: {ratio:.2f} x" for size, ratio in slower.items() if ratio > SLOWER]
    problems += [f"{name}: {ratio:.3f}" for name, ratio in rates.items() if ratio < RATE_SHARE]
    if ours["bytes"] < FULL_SHARE * theirs["bytes"] or ours["error"] != theirs["error"]:
        problems.append(f"out of memory: {ours}, the driver's own: {theirs}")
    require(not problems, f"{problems}")
    return {"rounds": rounds, "full": [ours, theirs]}


def default_turns(context) -> dict:
    """Two jobs with default settings on the same GPUs take turns, with all their memory."""
    with context.session("default_turns") as session:
        lien = session.lien
        lien.start_agent()
        jobs = [session.job(name) for name in ("training", "inference")]
        observer = None
        for job in jobs:
            observer = Observer(job.ask(f"setup {COMMUNICATORS}", 150))
            job.ask("fill 4", 60)
        pids = [[f"--pid={pid}" for pid in job.pids] for job in jobs]
        lien.json("offload", "--owner", "all", *pids[1], timeout=150)
        used = []
        for turn in range(TURNS):
            here, other = turn % 2, 1 - turn % 2
            jobs[here].ask("verify-fill", 90)
            jobs[here].ask("check", 90)
            used.append(observer.used())
            out = lien.json("offload", "--owner", "all", *pids[here], timeout=150)
            back = lien.json("restore", *pids[other], timeout=150)
            require(out["outcome"] == back["outcome"] == "done", f"{out} {back}")
            require(out["bytes"] > 2 * 4 * GIB, f"moved {out['bytes']}")
        lien.json("restore", timeout=150)
        print("  in use, MiB, at each turn: " + " ".join(mib(u) for u in used))
        require(max(used[2::2]) - min(used[2::2]) < 64 * MIB, f"what stays grows: {used}")
        for job in jobs:
            job.ask("verify-fill", 90)
            job.ask("destroy", 90)
            job.quit()
        return {"used": used}


def windows(context) -> dict:
    """Memory that is registered as a window of NCCL's is moved, used, deregistered and freed."""
    with context.session("windows") as session:
        lien = session.lien
        lien.start_agent()
        job = session.job()
        job.ask("setup 2", 150)
        pooled = job.ask("pool-register 64 window", 60)
        job.ask("pool-use", 60)
        seen = sum(r["window"] for c in lien.json("graph")["communicators"]
                   for r in c["registrations"])
        print(f"  windows: {seen}")
        for owner in ("nccl", "all", "all"):
            out, _ = move(lien, "--owner", owner)
            job.ask("pool-use", 60)
            job.ask("check", 90)
        for left in out["left"]:
            print(f"  {mib(left['bytes'])} MiB left: {left['reason']}")
        job.ask("pool-deregister", 60)
        move(lien, "--owner", "all")
        job.ask("check", 90)
        job.ask("destroy", 90)
        codes = job.quit()
        require(codes == [0] * len(codes), f"exit statuses: {codes}")
        require(not out["left"], "not all was moved")
        return {"windows": seen, "bytes": out["bytes"], "pool": pooled[0]["bytes"]}


# name: steps, so that it takes some seconds
PROGRAMS = {"torch-convolutions": 200, "torch-transformer": 300, "triton-kernel": 30000,
            "jax-training": 4000, "cupy-solvers": 2000}
PROGRAM_MOMENTS = 10


def begin_program(session, name: str, *launcher) -> tuple:
    """Returns the process and its pid, once it has its memory."""
    with open(session.logs / f"{name}.log", "ab") as log:
        process = spawn([*launcher, sys.executable, HERE / "frameworks.py", name, PROGRAMS[name]],
                        env=session.lien.environment, stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE, stderr=log, text=True)
    session.processes.append(process)
    line = process.stdout.readline()
    require(line, f"{name} ended before it began")
    return process, json.loads(line)["pid"]


def moved_program(session, name: str) -> dict:
    """The program alone, and the program offloaded at random moments: equal results."""
    lien = session.lien
    process, _ = begin_program(session, name)
    expected = json.loads(process.stdout.readline() or "{}").get("digest")
    require(expected, f"{name} failed without lien")
    process, pid = begin_program(session, name, lien.binary, "run", "--")
    wait_for(f"{name} takes orders", lambda: [
        p for p in lien.json("ps")["processes"] if p["pid"] == pid and p["control"] == "ready"])
    traced, moved, left = 0, [], []
    for _ in range(PROGRAM_MOMENTS):
        time.sleep(random.random() * 0.2)
        rows = lien.json("mem")["rows"]
        traced = sum(row["bytes"] for row in rows if row["pid"] == pid)
        if not traced or process.poll() is not None:
            break
        out, _ = move(lien, "--owner", "all")
        moved.append(out["bytes"] / traced)
        left = out["left"]
    digest = json.loads(process.stdout.readline() or "{}").get("digest")
    require(digest == expected, f"{name}: its results are not the same ({digest})")
    process.wait(60)
    return {"traced": traced, "moved": moved, "left": left}


def frameworks(context) -> dict:
    """Programs of several frameworks, offloaded at random moments: equal results, all memory moved."""
    found = {}
    with context.session("frameworks") as session:
        session.lien.start_agent()
        for name in PROGRAMS:
            try:
                found[name] = moved_program(session, name)
            except Failure as failure:
                found[name] = str(failure)
                print(f"  {name}: {failure}")
                continue
            row = found[name]
            print(f"  {name}: {len(row['moved'])} offloads, {mib(row['traced'])} MiB, moved "
                  f"{100 * min(row['moved'], default=0):.2f} % at least; left: "
                  f"{[(left['bytes'], left['reason']) for left in row['left']]}")
    bad = [name for name, row in found.items() if isinstance(row, str)
           or len(row["moved"]) < 3 or min(row["moved"]) < MOVED_SHARE]
    require(not bad, f"not all moved, or not equal: {bad}")
    return found


CASES = {
    "all_memory": (all_memory, 500),
    "as_fast": (as_fast, 200),
    "copies_of_others": (copies_of_others, 120),
    "default_turns": (default_turns, 240),
    "frameworks": (frameworks, 400),
    "ipc_tensors": (ipc_tensors, 120),
    "long_copies": (long_copies, 240),
    "two_devices": (two_devices, 200),
    "windows": (windows, 120),
}
