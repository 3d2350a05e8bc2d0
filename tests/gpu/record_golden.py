#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""How tests/data/pytorch-nccl-2ranks.lien is made, on two GPUs:

    sudo python3 tests/gpu/record_golden.py tests/data/pytorch-nccl-2ranks.lien

Starts an agent, `lien record FILE`, and under `lien run` two ranks of job.py: 4 communicators, each
with all-reduce, all-to-all, all-gather, reduce-scatter, send/recv and broadcast. The recording ends
at a quiet point with the job still alive, so that a replay stops there with all memory in place.
Beside it goes FILE.json: what the agent counted at that point, for tests to compare with.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness
from harness import MIB, Failure, Session, deadline, spawn, wait_for
from observe import mem_bytes, mib

COMMUNICATORS = 4


def start_recorder(session: Session, path: Path) -> subprocess.Popen:
    with open(session.logs / "record.log", "ab") as log:
        recorder = spawn([session.lien.binary, "record", path], env=session.lien.environment,
                         stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    session.processes.append(recorder)

    def begun() -> bool:
        if recorder.poll() is not None:
            raise Failure(f"lien record ended with {recorder.returncode}")
        return path.exists()

    wait_for(f"lien record creates {path}", begun)
    time.sleep(0.5)  # the file may be there before the agent's stream is
    return recorder


def stop_recorder(recorder: subprocess.Popen) -> None:
    recorder.send_signal(signal.SIGINT)
    try:
        code = recorder.wait(30)
    except subprocess.TimeoutExpired:
        raise Failure("lien record has not ended 30 s after SIGINT") from None
    if code:
        raise Failure(f"lien record ended with {code}")


def counts(lien, pids: list) -> dict:
    """By rank, for pids mean nothing on another machine."""
    mem, status = lien.request({"op": "mem"}), lien.request({"op": "status"})
    rows = [{**row, "rank": pids.index(row["pid"])} for row in mem["rows"] if row["pid"] in pids]
    for row in rows:
        del row["pid"]
    return {"ranks": len(pids), "communicators": COMMUNICATORS, "rows": rows,
            "allocations": status["allocations"], "mappings": status["mappings"],
            "events": status["events"], "bytes": mem["bytes"],
            "offload_frees": mem["offload_frees"]}


def make(options, machine: dict) -> None:
    partial = options.file.with_name(options.file.name + ".partial")
    partial.unlink(missing_ok=True)
    environment = dict(pair.split("=", 1) for pair in options.env)
    with Session(options.lien, options.logs, "record") as session:
        lien = session.lien
        lien.start_agent()
        recorder = start_recorder(session, partial)
        job = session.job(env=environment, arguments=["--max-bytes", str(options.max_bytes)])
        job.ask(f"setup {COMMUNICATORS}", 150)
        job.ask("check", 60)
        time.sleep(1)  # whatever is on its way in the ring buffer
        status = lien.request({"op": "status"})
        if status["events_lost"] or status["incomplete"] or status["unmatched_imports"]:
            raise Failure(f"not a good recording: {status}")
        figures = counts(lien, job.pids)
        nccl = [mem_bytes(lien.request({"op": "mem"}), pid, "nccl") for pid in job.pids]
        stop_recorder(recorder)
        job.ask("destroy", 90)
        job.quit()
    partial.rename(options.file)
    note = {"made_with": machine, "kernel": os.uname().release, "max_bytes": options.max_bytes,
            "environment": environment, "at_the_end": figures}
    beside = options.file.with_name(options.file.name + ".json")
    beside.write_text(json.dumps(note, indent=1) + "\n")
    print(f"{options.file}: {options.file.stat().st_size:,} bytes, {figures['events']:,} events, "
          f"{figures['allocations']} allocations, {figures['mappings']} mappings; NCCL's memory: "
          + ", ".join(f"{mib(size)} MiB" for size in nccl))


def main() -> int:
    parser = argparse.ArgumentParser(description="make the golden recording on two GPUs")
    parser.add_argument("file", type=Path)
    parser.add_argument("--lien", type=Path, default=harness.ROOT / "build/lien")
    parser.add_argument("--logs", type=Path, help="keep the logs in this directory")
    parser.add_argument("--max-bytes", type=int, default=32 * MIB, help="of a collective")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE",
                        help="for the job, e.g. NCCL_BUFFSIZE=1048576 for less memory")
    parser.add_argument("--limit", type=float, default=300, help="seconds for all of it")
    options = parser.parse_args()
    if any("=" not in pair for pair in options.env):
        parser.error("--env takes NAME=VALUE")
    harness.end_on_signals()
    machine, reason = harness.probe_gpus(2)
    try:
        if machine is None:
            raise Failure(reason)
        if os.geteuid() != 0:
            raise Failure("eBPF needs root: run it with sudo")
        options.file.parent.mkdir(parents=True, exist_ok=True)
        with deadline(options.limit, "recording"):
            make(options, machine)
    except Failure as failure:
        print(f"record_golden: failed: {failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
