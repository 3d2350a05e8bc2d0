# SPDX-License-Identifier: BSD-2-Clause
"""What one traced call costs: the same process makes the same calls without probes, with lien's and
with bpftrace's, in turn."""

import contextlib
import ctypes
import os
import shutil
import signal
import statistics
import struct
import time

from lien_test import LIEN, ROOT, SOFTCUDA, Session, equal, program, wait_for

KINDS = ("create", "retain", "release", "context", "collective", "endbr", "sub")
NCCL = os.path.join(os.path.abspath(os.environ.get("BUILD") or "build"), "tests/bench/libnccl.so.2")
CUDA = os.path.join(SOFTCUDA, "libcuda.so.1")
PARTS = 5  # of each round's calls: the median counts
SYS_BPF, BPF_ENABLE_STATS, BPF_STATS_RUN_TIME = 321, 32, 0  # x86-64; enum bpf_cmd, bpf_stats_type
BPF_PROG_TYPE_KPROBE = 2


class Calls:
    """A process that makes calls (prog_calls.c)."""

    def __init__(self, session, count, **environment):
        self.count = count
        self.process = session.spawn([program("prog_calls", "tests/bench"), NCCL], **environment)
        self.measure("context", 1)  # it has begun

    def measure(self, kind, count):
        return float(self.process.ask("%s %d" % (kind, count), 120))

    def round(self):
        """{kind: ns of a call}"""
        for kind in KINDS:
            self.measure(kind, 200)
        return {kind: statistics.median(self.measure(kind, self.count) for _ in range(PARTS))
                for kind in KINDS}


@contextlib.contextmanager
def untraced(_session, _calls, _notes):
    yield


@contextlib.contextmanager
def agent(session, _calls, notes, *options):
    session.start_agent("--library", NCCL, *options)
    notes["attach"] = session.ask("status")["attach"]
    yield
    notes["lost"] = notes.get("lost", 0) + session.ask("status")["events_lost"]
    session.stop_agent()


@contextlib.contextmanager
def recorder(session, calls, notes):
    with agent(session, calls, notes):
        path = session.path("calls.lien")
        record = session.spawn([LIEN, "record", path])
        wait_for("the recording has begun", lambda: os.path.exists(path))
        time.sleep(0.3)  # for its first events: it writes them in blocks
        yield
        record.signal(signal.SIGINT)
        equal(record.wait(), 0, "exit status of lien record")
        os.unlink(path)


def bpftrace(script):
    @contextlib.contextmanager
    def mode(session, calls, notes):
        with open(os.path.join(ROOT, "tests/bench", script)) as file:
            text = file.read().replace("CUDA:", CUDA + ":").replace("NCCL:", NCCL + ":")
        out = session.path(script + ".out")
        bare = calls.measure("create", 2000)
        process = session.spawn(["bpftrace", "-o", out, "-e", text])
        wait_for("bpftrace has attached",
                 lambda: min(calls.measure("create", 2000) for _ in range(3)) > bare + 500, 30)
        yield
        process.signal(signal.SIGINT)
        process.wait(120)
        with open(out, errors="replace") as file:
            for line in file:
                words = line.split()
                if words[:1] == ["Lost"]:
                    notes["lost"] = notes.get("lost", 0) + int(words[1])
    return mode


MODES = {"off": untraced, "lien": agent, "lien, recording": recorder,
         "bpftrace": bpftrace("same.bt"), "empty probes": bpftrace("empty.bt")}


@contextlib.contextmanager
def statistics_of_programs():
    """The kernel counts the runs of BPF programs and their time while this lasts."""
    libc = ctypes.CDLL(None, use_errno=True)
    attr = ctypes.create_string_buffer(struct.pack("I", BPF_STATS_RUN_TIME), 128)
    fd = libc.syscall(SYS_BPF, BPF_ENABLE_STATS, attr, 128)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "BPF_ENABLE_STATS")
    try:
        yield
    finally:
        os.close(fd)


def runs_of(pid):
    """{program's number: (runs, ns)} of a process's programs that serve probes."""
    found = {}
    for fd in os.listdir("/proc/%d/fdinfo" % pid):
        with contextlib.suppress(OSError):
            with open("/proc/%d/fdinfo/%s" % (pid, fd)) as file:
                info = dict(line.split(":", 1) for line in file if ":" in line)
            if int(info.get("prog_type", 0)) == BPF_PROG_TYPE_KPROBE and "run_cnt" in info:
                found[int(info["prog_id"])] = int(info["run_cnt"]), int(info["run_time_ns"])
    return found


def programs(count, *, recording=False):
    """{kind: [ns of a run at entry, ns of a run at return or None]}"""
    found = {}
    with Session() as session, statistics_of_programs():
        calls = Calls(session, count)
        with (recorder if recording else agent)(session, calls, {}):
            pid = session.agent.pid
            entry = None  # the program that sees cuCtxSetCurrent
            for kind in sorted(KINDS, key=lambda kind: kind != "context"):
                calls.measure(kind, 200)
                before = runs_of(pid)
                calls.measure(kind, count)
                after = runs_of(pid)
                each = {number: (after[number][1] - ns) / (after[number][0] - runs)
                        for number, (runs, ns) in before.items() if after[number][0] > runs}
                if entry is None:
                    equal(len(each), 1, "programs that see cuCtxSetCurrent")
                    entry, = each
                found[kind] = [each.pop(entry), each.popitem()[1] if each else None]
    return found


def cost(count, rounds):
    """{mode: {kind: ns, "lost": records}}: the least of the rounds, which other programs on the machine
    make longer only."""
    modes = dict(MODES)
    if not shutil.which("bpftrace"):
        del modes["bpftrace"], modes["empty probes"]
    found = {name: [] for name in modes}
    notes = {name: {} for name in modes}
    with Session() as session:
        calls = Calls(session, count)
        for _ in range(rounds):
            for name, mode in modes.items():
                with mode(session, calls, notes[name]):
                    found[name].append(calls.round())
    return {name: {**{kind: min(r[kind] for r in rounds_) for kind in KINDS},
                   **notes[name]} for name, rounds_ in found.items()}
