#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The agent sees what processes do: real BPF programs, real processes, the software CUDA driver.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import collections
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

from lien_test import (
    BUILD, CALLS, EVENT_CONTROL, LIEN, MIB, SOFTCUDA, SOFTNCCL, Driver, Session, Stream, alive,
    brief, case, check, equal, main, program, recording, wait_for)
from told import compare, graph_of, nothing_lost, reservations_of

CHURN_CALLS = int(os.environ.get("CHURN_CALLS", "36000"))  # of a round; there are six
CHANNELS = 4
SHARES = int(os.environ.get("SHARES", "1600"))


def churn(session, rounds, calls, *modes, threads=8):
    """Rounds of prog_churn, each compared with the graph; the calls made."""
    job = session.spawn([program("prog_churn"), threads, calls, *modes])
    made = 0
    for number in range(rounds):
        if number:
            job.send("more")
        line = job.line(60)
        check(line, "prog_churn ended:", job.said())
        state = json.loads(line)
        made = state["calls"]
        compare(session, job.pid, state)
    job.close_input()
    equal(job.wait(), 0, "exit status of prog_churn")
    session.forgotten(job.pid)
    return made


@case(long=True)
def test_churn():
    with Session(memory="2G") as session:
        session.start_agent()
        made = churn(session, 3, CHURN_CALLS)
        made += churn(session, 2, CHURN_CALLS, "hints")
        made += churn(session, 1, CHURN_CALLS, "hints", "imports")
        status = nothing_lost(session)
        check(status["events"] > made, "%d events of %d calls" % (status["events"], made))
        if CHURN_CALLS >= 36000:
            check(made >= 200000, "only %d calls" % made)


@case(long=True)
def test_two_churns_at_once():
    with Session(memory="2G") as session:
        session.start_agent()
        jobs = [session.spawn([program("prog_churn"), 4, CHURN_CALLS // 3, "hints", "imports"])
                for _ in range(2)]
        states = [json.loads(job.line(60) or "null") for job in jobs]
        for job, state in zip(jobs, states):
            compare(session, job.pid, state)
        jobs[0].end()
        session.forgotten(jobs[0].pid)
        compare(session, jobs[1].pid, states[1])
        nothing_lost(session)


# Sharing

def shares_of(stream, owner, importer):
    """The owner's handles and the importer's, as the kernel side joined them: a list for each thread that
    imports. (Values are given out again: one names many in turn.)"""
    exported, joined = {}, collections.defaultdict(list)
    for event in stream.events():
        if event.result or event.type not in (CALLS["CU_MEM_EXPORT"], CALLS["CU_MEM_IMPORT"]):
            continue
        handle, number = event.words("QQ")
        if event.type == CALLS["CU_MEM_EXPORT"] and event.pid == owner:
            check(number, "an export without a number: handle %#x" % handle)
            check(number not in exported, "export %d twice" % number)
            exported[number] = handle
        elif event.type == CALLS["CU_MEM_IMPORT"] and event.pid == importer:
            joined[event.tid].append((exported.get(number), handle))
    return list(joined.values())


@case(long=True)
def test_shares_of_reused_files():
    with Session(memory="4G") as session:
        session.start_agent()
        stream = Stream(session)
        job = session.spawn([program("prog_share"), CHANNELS, SHARES])
        state = json.loads(job.line(50) or "null")
        check(state, "prog_share ended:", job.said())
        owner, importer = state["owner"], state["importer"]
        joined = shares_of(stream, owner, importer)
        stream.close()
        equal(len(state["shares"]), SHARES, "shares")
        told = [(here, there) for here, there, _ in state["shares"]]
        each = SHARES // CHANNELS  # of a channel, which is a thread on either side
        channels = sorted(told[i * each:][:each] for i in range(CHANNELS))
        wrong = [pairs for pairs in zip(sorted(joined), channels) if pairs[0] != pairs[1]]
        equal(len(joined), CHANNELS, "threads that imported")
        check(not wrong, "%d of %d channels joined wrongly: %s" % (len(wrong), CHANNELS, brief(wrong)))
        kept = {(here, there) for here, there, va in state["shares"] if va}
        found = set()
        for allocation in session.ask("graph")["allocations"]:
            handles = {h["pid"]: int(h["handle"], 16) for h in allocation["handles"]}
            if owner in handles or importer in handles:
                equal(allocation["pid"], owner, "owner")
                equal(len(allocation["mappings"]), 2, "mappings of %s" % brief(allocation))
                found.add((handles.get(owner), handles.get(importer)))
        equal(sorted(found), sorted(kept), "shared allocations")
        nothing_lost(session)
        for pid in (owner, importer):
            check(session.process(pid)["complete"], "process %d is incomplete" % pid)
        job.end()
        session.forgotten(owner, importer)


@case()
def test_owner_ends_before_importer():
    with Session() as session:
        session.start_agent()
        owner, importer = session.driver(), session.driver()
        handle, va = owner("make", 2 * MIB, 0)
        fd = owner("export", handle)
        there = importer("import", importer("getfd", owner.pid, fd))
        place = importer("show", 2 * MIB, there, 0)
        owner("close", fd)
        held = session.ask("holders", importer.pid, hex(place))
        kinds = sorted((h["pid"], h["kind"]) for h in held["holders"])
        equal(kinds, sorted([(owner.pid, "handle"), (owner.pid, "mapping"), (owner.pid, "export"),
                             (importer.pid, "import"), (importer.pid, "mapping"),
                             (importer.pid, "open export")]), "holders")
        equal(session.ask("holders", owner.pid, hex(va))["allocation"]["id"],
              held["allocation"]["id"], "the same allocation")
        owner.process.signal(signal.SIGKILL)
        owner.process.wait()
        wait_for("the owner is gone", lambda: not session.process(owner.pid))
        held = session.ask("holders", importer.pid, hex(place))["allocation"]
        check(held["alive"] is False and held["pid"] == owner.pid and not held["movable"],
              brief(held))
        left = session.ask("offload", "--owner", "all")
        equal(left["outcome"], "nothing to do", "outcome")
        importer.process.end()
        session.forgotten(owner.pid, importer.pid)


@case()
def test_import_after_the_owner_let_go():
    """An exported descriptor alone keeps memory alive until it is imported."""
    with Session() as session:
        session.start_agent()
        owner, importer = session.driver(), session.driver()
        handle = owner("create", 2 * MIB, 0)
        fd = owner("export", handle)
        owner("release", handle)
        there = importer("import", importer("getfd", owner.pid, fd))
        importer("show", 2 * MIB, there, 0)
        found = [a for a in session.ask("graph")["allocations"]
                 if any(h["pid"] == importer.pid for h in a["handles"])]
        equal(len(found), 1, "allocations of the importer")
        check(found[0]["pid"] == owner.pid and found[0]["bytes"] == 2 * MIB,
              "not joined to its export:", brief(found[0]))


# Calls that fail

@case()
def test_failed_calls_change_nothing():
    with Session(memory="64M") as session:
        session.start_agent()
        driver = session.driver(control=False)
        handle, va = driver("make", 2 * MIB, 0)
        plain = driver("alloc", 1000)
        empty = driver("reserve", 4 * MIB, 0)
        fd = driver("export", handle)

        def seen():
            return graph_of(session, driver.pid), reservations_of(session, driver.pid)
        before = seen()
        driver.refused("create", 1 << 40, 0)
        driver.refused("create", 12345, 0)
        driver.refused("create", 2 * MIB, 9)
        driver.refused("create-bad", 2 * MIB)
        driver.refused("release", handle + 64)
        driver.refused("retain", empty)
        driver.refused("retain", plain)
        driver.refused("reserve", 12345, 0)
        driver.refused("free", va, 2 * MIB)  # still mapped
        driver.refused("free", empty, 2 * MIB)  # half of it
        driver.refused("map", va, 2 * MIB, handle)
        driver.refused("map", empty, 2 * MIB, handle + 64)
        driver.refused("map", empty + 4096, 2 * MIB, handle)
        driver.refused("unmap", empty, 2 * MIB)
        driver.refused("unmap", va, 4 * MIB)
        driver.refused("access", empty, 2 * MIB, 0, 3)
        driver.refused("access", va, 2 * MIB, 7, 3)
        driver.refused("export", handle + 64)
        driver.refused("import", 999)
        driver.refused("import", 0)
        driver.refused("alloc", 1 << 40)
        driver.refused("memfree", va)
        driver.refused("memfree", plain + 256)
        equal(seen(), before, "the graph after calls that failed")
        check(session.process(driver.pid)["complete"], "they made the process incomplete")
        nothing_lost(session)
        driver("release", handle)
        driver("unmap", va, 2 * MIB)
        driver("free", va, 2 * MIB)
        driver("memfree", plain)
        driver("free", empty, 4 * MIB)
        driver("close", fd)
        equal(graph_of(session, driver.pid), ([], []), "the graph after all was given back")
        equal(session.used(), 0, "device memory in use")


# The end of processes

@case()
def test_ends_of_processes():
    with Session() as session:
        session.start_agent()
        ends = {
            "exit": lambda driver: driver("exit", 3),
            "kill": lambda driver: driver.process.signal(signal.SIGKILL),
            "crash": lambda driver: driver.process.signal(signal.SIGSEGV),
            "exec": lambda driver: driver("exec"),
            "end of input": lambda driver: driver.process.close_input(),
        }
        for how, end in ends.items():
            for control in (False, True):
                driver = session.driver(control=control)
                driver("make", 2 * MIB, 0)
                driver("alloc", 4096)
                if control:
                    session.ready(driver.pid)
                equal([p["bytes"] for p in session.ask("ps")["processes"]
                       if p["pid"] == driver.pid], [2 * MIB + 4096], "bytes before " + how)
                end(driver)
                session.forgotten(driver.pid)
                if how == "exec":
                    check(alive(driver.pid), "it is not alive after an exec")
                else:  # the graph knows before the process has gone
                    wait_for("it has ended by " + how, lambda pid=driver.pid: not alive(pid))
                driver.end()
        nothing_lost(session)


@case()
def test_fork():
    with Session() as session:
        session.start_agent()
        parent = session.driver()
        parent("make", 2 * MIB, 0)
        session.ready(parent.pid)
        child = parent("fork")
        equal(session.ask("offload", "--owner", "all", "--pid", parent.pid)["bytes"], 2 * MIB,
              "offloaded with a forked child")
        equal(session.ask("restore")["bytes"], 2 * MIB, "restored with a forked child")
        process = session.process(child)
        check(not process or not process["bytes"], "the child has memory:", brief(process))
        parent.process.signal(signal.SIGKILL)
        parent.process.wait()
        session.forgotten(parent.pid)
        wait_for("the child ends", lambda: not alive(child))
        wait_for("the memory is free", lambda: session.used() == 0)


# Other worlds

@case()
def test_pid_namespace():
    with Session() as session:
        session.start_agent()
        driver = session.driver(prefix=["unshare", "-p", "-f", "--mount-proc"])
        equal(driver.inner_pid, 1, "pid in its own namespace")
        _, va = driver("make", 2 * MIB, 0)
        driver("fill", va, 2 * MIB, 0x5a)
        inside = [p["pid"] for p in session.ask("ps")["processes"] if p["command"] == "prog_driver"]
        equal(len(inside), 1, "processes")
        with open("/proc/%d/status" % inside[0]) as status:
            pids = [line.split()[1:] for line in status if line.startswith("NSpid:")][0]
        equal(pids, [str(inside[0]), "1"], "NSpid of the process that the agent names")
        session.ready(inside[0])
        result = session.ask("offload", "--owner", "all")
        equal([p["pid"] for p in result["processes"]], inside, "offloaded")
        equal(session.used(), 0, "device memory in use")
        session.ask("restore")
        equal(driver("check", va, 2 * MIB, 0x5a), 0, "wrong bytes")
        driver.process.close_input()
        session.forgotten(inside[0])


@case()
def test_agent_in_a_pid_namespace():
    """An agent ignores processes outside its namespace."""
    with Session() as session:
        outside = session.driver()
        session.agent = session.spawn(["unshare", "-p", "-f", "--mount-proc", "--kill-child",
                                       LIEN, "agent", "--no-journal"])
        wait_for("the agent is ready", lambda: " ready: " in session.agent.said())
        agent, session.agent = session.agent, None
        outside("make", 2 * MIB, 0)
        equal(session.ask("ps")["processes"], [], "processes")
        equal(session.ask("status")["pid"], 1, "pid of the agent")
        equal(session.ask("graph")["allocations"], [], "allocations")
        agent.end()


@case()
def test_new_copy_of_the_driver():
    with Session() as session:
        folder = session.path("copy")
        os.mkdir(folder)
        shutil.copy(os.path.join(SOFTCUDA, "libcuda.so.1"), folder)
        session.start_agent()
        paths = [library["path"] for library in session.ask("status")["libraries"]]
        check(os.path.join(folder, "libcuda.so.1") not in paths, "probed before it was used")
        first = session.driver(init=False, LD_LIBRARY_PATH=folder)

        def probed():
            return [library for library in session.ask("status")["libraries"]
                    if library["path"] == os.path.join(folder, "libcuda.so.1")]
        library = wait_for("the copy is probed", probed)[0]
        equal((library["library"], library["missing"]), ("cuda", []), "probes of the copy")
        first("init", 0)
        first("make", 2 * MIB, 0)
        check(session.known(first.pid)["complete"] is False, "the first process is not incomplete")
        check(first.pid in session.ask("status")["incomplete"], "status does not say so")
        second = session.driver(LD_LIBRARY_PATH=folder)
        second("make", 2 * MIB, 0)
        process = session.known(second.pid)
        check(process["complete"] and process["bytes"] == 2 * MIB, brief(process))
        session.ready(first.pid, second.pid)
        session.refused("offload", "--owner", "all", "--pid", first.pid,
                        text="process %d cannot take part: .*before it was watched" % first.pid)
        result = session.ask("offload", "--owner", "all")
        equal([p["pid"] for p in result["processes"]], [second.pid], "offloaded")
        equal([(x["pid"], x["bytes"]) for x in result["left"]], [(first.pid, 2 * MIB)], "left")
        session.ask("restore")


@case()
def test_new_copy_of_nccl():
    """What a process did with NCCL before it was probed is not known, and that is said."""
    with Session() as session:
        copy = session.path("libnccl.so.2")
        shutil.copy(SOFTNCCL, copy)
        session.start_agent()
        for _ in range(2):
            job = session.replay(recording("basic"), LIEN_SOFTNCCL=copy)
            graph = session.ask("graph")
            for pid in job.ranks:
                seen = [c for c in graph["communicators"] if c["pid"] == pid]
                check(seen or not session.process(pid)["complete"],
                      "a communicator of process %d was missed, and it passes for complete" % pid)
            job.end()
        equal(len(graph["communicators"]), 2, "communicators of a second job")
        libraries = [library["library"] for library in session.ask("status")["libraries"]
                     if library["path"] == copy]
        equal(libraries, ["nccl"], "the copy in status")


@case()
def test_library_option():
    with Session() as session:
        copy = session.path("libcuda.so.77")
        shutil.copy(os.path.join(SOFTCUDA, "libcuda.so.1"), copy)
        session.start_agent("--library", copy, LD_LIBRARY_PATH=None)
        paths = [library["path"] for library in session.ask("status")["libraries"]]
        check(copy in paths, "not probed:", paths)
        driver = session.driver(LD_PRELOAD=copy)
        driver("make", 2 * MIB, 0)
        check(session.known(driver.pid)["complete"], "incomplete")
        for wrong in (session.path("libcuda.so.78"), session.folder, "/bin/true"):
            outcome = session.lien("agent", "--socket", session.path("x"), "--library", wrong)
            check(outcome.code == 1 and wrong in outcome.err, outcome)


@case()
def test_agent_comes_late():
    with Session() as session:
        early = session.driver()
        _, old = early("make", 2 * MIB, 0)
        early("fill", old, 2 * MIB, 7)
        session.start_agent()
        early("make", 2 * MIB, 0)
        process = session.known(early.pid)
        check(process["complete"] is False, "not incomplete:", brief(process))
        equal(session.ask("status")["incomplete"], [early.pid], "incomplete")
        session.ready(early.pid)
        session.refused("offload", "--owner", "all", "--pid", early.pid,
                        text="process %d cannot take part: the process may have used CUDA before" %
                        early.pid)
        result = session.ask("offload", "--owner", "all")
        equal((result["outcome"], [(x["pid"], x["read"]) for x in result["unknown"]]),
              ("unknown", [(early.pid, False)]), "outcome")
        equal([x["pid"] for x in result["left"]], [early.pid], "left")
        check("before it was watched" in result["left"][0]["reason"], brief(result))
        early("unmap", old, 2 * MIB)  # known to nobody: no harm
        late = session.driver()
        late("make", 2 * MIB, 0)
        check(session.known(late.pid)["complete"], "a process that came after the agent")
        nothing_lost(session)


MONITOR = """
import ctypes, mmap, os, sys
for library in sys.argv[1:]:
    ctypes.CDLL(library)
if os.path.exists("/dev/nvidia0"):
    kept = mmap.mmap(os.open("/dev/nvidia0", os.O_RDWR), 4096)
print("ready", flush=True)
sys.stdin.read()
"""


@case()
def test_monitors():
    """NVML maps the driver, and calls nothing of it: what DCGM and nvidia-smi do does not count as using CUDA, unless a
    device is mapped, as after cuInit()."""
    device = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /dev && truncate -s 4096 /dev/nvidia0 && "
              "exec \"$@\"", "sh"]
    with Session() as session:
        nvml = session.compile("libnvidia-ml.so.1", "other.c", "-shared", "-fPIC")
        driver = os.path.join(SOFTCUDA, "libcuda.so.1")
        python = [sys.executable, "-c", MONITOR]
        processes = [session.spawn([*prefix, *python, driver, *more])
                     for prefix, more in (([], [nvml]), ([], []), (device, [nvml]))]
        for process in processes:
            equal(process.line(), "ready", process.said())
        session.start_agent()
        equal(sorted(p["pid"] for p in session.ask("ps")["processes"]),
              sorted(process.pid for process in processes[1:]), "processes that may use CUDA")
        for process in processes[1:]:
            process.end()
        session.forgotten(*(process.pid for process in processes[1:]))
        equal(session.ask("offload")["outcome"], "nothing to do", "beside a monitor")


# Who called

@case()
def test_library_of_the_caller():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        driver("nccl", SOFTNCCL)
        driver("make", 4 * MIB, 0)
        driver("alloc", 1000)
        rows = {(row["owner"], row["kind"]): row["bytes"] for row in session.ask("mem")["rows"]
                if row["pid"] == driver.pid}
        equal(rows, {("nccl", "local"): 4 * MIB + 1000, ("prog_driver", "local"): 2 * MIB}, "mem")
        equal(session.process(driver.pid)["nccl_bytes"], 4 * MIB + 1000, "nccl_bytes")
        session.ready(driver.pid)
        equal(session.ask("offload")["bytes"], 4 * MIB, "bytes of an offload of NCCL's memory")
        session.ask("restore")
        equal(session.ask("offload", "--owner", "prog_driver")["bytes"], 2 * MIB, "the program's")
        session.ask("restore")
        equal(session.ask("offload", "--owner", "unknown")["outcome"], "nothing to do", "outcome")


# The control library where it has nothing to do

def run_alone(session, *command, text=None):
    """With the control library and without; the outcomes must be the same."""
    with_it = session.lien("run", "--", *command, text=text)
    without = subprocess.run(command, input=text or "", capture_output=True, text=True,
                             env=session.env(), timeout=30, check=False)
    equal((with_it.code, with_it.out, with_it.err),
          (without.returncode, without.stdout, without.stderr), " ".join(command))
    return with_it


@case()
def test_run_is_harmless():
    with Session() as session:
        session.start_agent()
        for command in (["true"], ["false"], ["sh", "-c", "exit 7"], ["ls", "/"],
                        ["unshare", "-U", "true"], ["unshare", "-Ur", "id", "-u"],
                        ["sh", "-c", "ls / | wc -l; unshare -U true && (exit 3); echo $?"],
                        ["sh", "-c", "ulimit -n 16; ls / | cat"],
                        ["sh", "-c", "ls /proc/self/fd | wc -l"],
                        ["sh", "-c", "ls /proc/self/task | wc -l"],
                        ["sh", "-c", "kill -9 $$"], ["sh", "-c", "kill -TERM $$"],
                        ["env", "-i", "true"],
                        ["setpriv", "--reuid", "65534", "--clear-groups", "id", "-u"],
                        ["sh", "-c", "for i in 1 2 3 4 5; do (exit $i) & done; wait; echo done"],
                        ["cat"]):
            run_alone(session, *command, text="a line\n")
        run_alone(session, sys.executable, "-c", """
import os, signal, subprocess, threading
os.closerange(3, 4096)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
pid = os.fork()
if not pid:
    os._exit(5)
print(os.waitpid(pid, 0)[1], threading.active_count(), len(os.listdir('/proc/self/task')))
print(subprocess.run(['sh', '-c', 'exit 4']).returncode)
""")
        run_alone(session, sys.executable, "-c", """
import signal
taken = []
for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
    signal.signal(number, lambda n, f: taken.append(n))
for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
    signal.raise_signal(number)
print(taken == list(range(signal.SIGRTMIN, signal.SIGRTMAX + 1)))
""")
        equal(session.lien("run", "--", "/nonexistent").code, 127, "no such command")
        equal(session.lien("run", "--", "/etc/passwd").code, 126, "not executable")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            sleeper = session.spawn([LIEN, "run", "--", "sleep", "30"])
            wait_for("it sleeps", lambda s=sleeper: open(
                "/proc/%d/comm" % s.pid).read() == "sleep\n")
            sleeper.signal(number)
            equal(sleeper.wait(5), -number, "end by signal %d" % number)
        equal([p for p in session.ask("ps")["processes"] if p["command"] in ("sleep", "cat")], [],
              "processes without CUDA")


@case()
def test_control_library_in_odd_processes():
    with Session() as session:
        os.chmod(session.folder, 0o755)
        session.start_agent()
        # All signals blocked: never woken, never harmed; woken once it can be.
        masked = session.driver(init=False)
        masked("mask")
        masked("init", 0)
        _, va = masked("make", 2 * MIB, 0)
        for _ in range(20):
            masked("retain", va)
            masked("release", masked("retain", va))
            time.sleep(0.02)
        equal(session.process(masked.pid)["control"], "loaded", "control of a masked process")
        with open("/proc/%d/status" % masked.pid) as status:
            pending = [line.split() for line in status if line.startswith(("SigPnd", "ShdPnd"))]
        equal([int(mask, 16) for _, mask in pending], [0, 0], "signals that wait for it")
        equal(session.ask("offload", "--owner", "all")["outcome"], "nothing to do", "outcome")
        session.refused("offload", "--owner", "all", "--pid", masked.pid, text="control thread")
        masked("unmask")
        wait_for("it is woken", lambda: masked("retain", va) and
                 session.process(masked.pid)["control"] == "ready", step=0.2)
        masked.end()
        # Few descriptors.
        few = session.driver(init=False)
        few("limit", resource.RLIMIT_NOFILE, 64)
        few("init", 0)
        _, va = few("make", 2 * MIB, 0)
        few("fill", va, 2 * MIB, 9)
        session.ready(few.pid)
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "bytes")
        session.ask("restore")
        equal(few("check", va, 2 * MIB, 9), 0, "wrong bytes")
        few.end()
        # No thread may be started: the job runs on.
        bare = session.driver(init=False,
                              prefix=["setpriv", "--reuid", "65534", "--clear-groups"])
        bare("limit", resource.RLIMIT_NPROC, 1)
        bare("init", 0)
        _, va = bare("make", 2 * MIB, 0)
        bare("fill", va, 2 * MIB, 9)
        time.sleep(0.3)
        for _ in range(5):
            bare("retain", va)
        equal(bare("check", va, 2 * MIB, 9), 0, "wrong bytes")
        process = session.process(bare.pid)
        equal((process["uid"], process["control"]), (65534, "loaded"), "uid and control")
        bare.end()


BURST = """
import ctypes, os, sys
forks = int(sys.argv[1])
cuda = None if forks else ctypes.CDLL("libcuda.so.1")
for _ in range(forks):
    if os.fork():
        os.wait()
        sys.exit(0)
cuda = cuda or ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
calls = (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
         cuda.cuCtxSetCurrent(context), cuda.cuMemAlloc_v2(ctypes.byref(address), 2 << 20))
print(os.getpid(), *calls, flush=True)
sys.stdin.read()
"""


@case(long=True)
def test_all_calls_in_one_burst():
    """A program that calls the driver for a millisecond and then never again takes orders."""
    with Session() as session:
        session.start_agent()
        for forks in range(3):
            for _ in range(5):
                burst = session.spawn(
                    [LIEN, "run", "--", sys.executable, "-c", BURST, str(forks)])
                pid, *results = map(int, burst.line().split())
                equal(results, [0, 0, 0, 0], "results")
                session.ready(pid, limit=5)
                burst.end()


@case()
def test_descriptors_closed_by_the_program():
    """A program may close every descriptor it does not know."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        _, va = driver("make", 2 * MIB, 0)
        driver("fill", va, 2 * MIB, 9)
        session.ready(driver.pid)
        calm = session.driver()
        calm("make", 2 * MIB, 0)
        session.ready(calm.pid)
        driver("closeall")
        began = time.monotonic()
        session.lien("offload", "--owner", "all", "--pid", driver.pid, "--timeout", 1000, limit=25)
        check(time.monotonic() - began < 20, "the offload took %g s" % (time.monotonic() - began))
        session.ask("ps", limit=5)  # the agent answers
        equal(session.ask("offload", "--owner", "all", "--pid", calm.pid)["bytes"], 2 * MIB,
              "bytes of another process")
        session.ask("restore", limit=30)
        driver("pid")  # the program runs on


@case()
def test_exec_of_another_program_with_cuda():
    """A pid that becomes another program starts anew."""
    with Session() as session:
        session.start_agent()
        shell = session.spawn(["sh", "-c", "%s; exec %s run -- %s" % (
            program("prog_driver"), LIEN, program("prog_driver"))])
        check(shell.line().startswith("ready"), "no first program")
        equal(shell.ask("init 0"), "ok 0", "init")
        equal(shell.ask("make %d 0" % (2 * MIB)).split()[0], "ok", "make")
        equal(shell.ask("exit 0"), "ok 0", "exit")
        second = Driver(shell)
        second("init", 1)
        second("make", 4 * MIB, 1)
        process = session.known(shell.pid)
        equal((process["bytes"], process["complete"], process["devices"]), (4 * MIB, True, [1]),
              "the second program")
        session.ready(shell.pid)


@case()
def test_control_calls_are_told_apart():
    with Session() as session:
        session.start_agent()
        stream = Stream(session)
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        session.ask("offload", "--owner", "all")
        session.ask("restore")
        kinds = {}
        for event in stream.events():
            if event.pid == driver.pid and event.type in (
                    CALLS["CU_MEM_CREATE"], CALLS["CU_MEM_UNMAP"], CALLS["CU_MEM_MAP"]):
                key = (event.type, bool(event.flags & EVENT_CONTROL))
                kinds[key] = kinds.get(key, 0) + 1
        stream.close()
        equal(kinds, {(CALLS["CU_MEM_CREATE"], False): 1, (CALLS["CU_MEM_CREATE"], True): 1,
                      (CALLS["CU_MEM_MAP"], False): 1, (CALLS["CU_MEM_MAP"], True): 1,
                      (CALLS["CU_MEM_UNMAP"], True): 2}, "calls (entry and return of unmap)")
        rows = [row for row in session.ask("mem")["rows"] if row["pid"] == driver.pid]
        equal([(row["owner"], row["bytes"]) for row in rows], [("prog_driver", 2 * MIB)], "mem")


if __name__ == "__main__":
    check(os.path.isdir(BUILD) or os.path.exists(LIEN), "nothing is built")
    sys.exit(main())
