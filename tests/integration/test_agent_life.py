#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""How processes begin, change and end, seen by a real agent with real BPF on the software driver."""

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from lien_test import (
    LIEN, MIB, SOFTCUDA, SOFTNCCL, Driver, Session, alive, case, check, equal, main, program, state_of,
    stays, wait_for)
from users import ALICE, Shared


def clean(session):
    equal([session.ask("status")[name] for name in (
        "processes", "allocations", "mappings", "incomplete", "events_lost")],
          [0, 0, 0, [], 0], "what is left")


def seen(session, pid):
    """(complete, bytes) of a process."""
    process = session.known(pid)
    return process["complete"], process["bytes"]


# A program that uses CUDA in each of several processes, and says "PID" for each.
USE = r"""
import ctypes, os, subprocess, sys
def use(size, device=0):
    cuda = ctypes.CDLL("libcuda.so.1")
    context, at = ctypes.c_void_p(), ctypes.c_uint64()
    results = (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
               cuda.cuCtxSetCurrent(context), cuda.cuMemAlloc_v2(ctypes.byref(at), size))
    assert not any(results), results
    os.write(1, b"%d\n" % os.getpid())
    return cuda, at
"""


def python(session, text, *args, prefix=(), **environment):
    return session.spawn([*prefix, sys.executable, "-c", USE + text, *args], **environment)


@case()
def test_forked_children_with_cuda():
    """Each process has what it allocated itself; a child of a process that uses CUDA has none of it."""
    with Session() as session:
        session.start_agent()
        job = python(session, r"""
pids = [os.getpid()]
for size in (1 << 20, 2 << 20, 3 << 20):
    if not os.fork():
        use(size)
        if size == 3 << 20 and not os.fork():  # the driver does not work in it
            os.write(1, b"%d\n" % os.getpid())  # print() may write a line in two
        sys.stdin.read()
        os._exit(0)
use(4 << 20)
sys.stdin.read()
""")
        pids = sorted(int(job.line()) for _ in range(5))
        found = {}
        for process in session.ask("ps")["processes"]:
            found[process["bytes"]] = (process["pid"], process["complete"])
        equal(sorted(found), [size * MIB for size in (1, 2, 3, 4)], "bytes of the processes")
        check(all(complete for _, complete in found.values()), "incomplete: %s" % found)
        idle = set(pids) - {pid for pid, _ in found.values()}
        equal(len(idle), 1, "processes without CUDA")
        os.kill(found[3 * MIB][0], signal.SIGKILL)
        session.forgotten(found[3 * MIB][0])
        check(alive(idle.pop()), "the child of it has ended, too")
        job.end()
        session.forgotten(*pids)
        clean(session)


@case()
def test_programs_started_by_users_of_cuda():
    """fork and exec, vfork, posix_spawn: both are seen right."""
    with Session() as session:
        session.start_agent()
        job = python(session, """
kept = use(1 << 20)
again = [sys.executable, "-c", sys.argv[1]]
children = [subprocess.Popen(again, close_fds=False),  # vfork
            subprocess.Popen(again, preexec_fn=lambda: None)]  # fork
os.posix_spawn(sys.executable, again, os.environ)
sys.stdin.read()
""", USE + "kept = use(2 << 20)\nsys.stdin.read()\n")
        pids = [int(job.line()) for _ in range(4)]
        equal(sorted(seen(session, pid) for pid in pids),
              [(True, MIB)] + 3 * [(True, 2 * MIB)], "complete, and bytes")
        job.end()
        session.forgotten(*pids)
        clean(session)


@case()
def test_exec_of_itself():
    with Session() as session:
        session.start_agent()
        driver = session.driver(control=False)
        driver("make", 2 * MIB, 0)
        pid = driver.pid
        for _ in range(3):
            driver.process.send("become " + program("prog_driver"))  # by its second thread
            driver = Driver(driver.process)
            session.forgotten(pid)
            driver("init", 0)
            driver("make", 4 * MIB, 0)
            equal(seen(session, pid), (True, 4 * MIB), "the same pid after exec")
        session.freed(left=4 * MIB)
        driver.end()
        session.forgotten(pid)
        clean(session)


@case()
def test_first_thread_ends_before_the_others():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        driver("leave")
        wait_for("the first thread has ended", lambda: state_of(driver.pid) == "Z")
        driver("init", 0)
        driver("make", 2 * MIB, 0)
        for _ in range(3):
            equal(seen(session, driver.pid), (True, 4 * MIB), "a process whose first thread ended")
        # The kernel knows no such process by its memory, so there is no gate.
        session.refused("offload", "--owner", "all", text="its first thread has ended")
        driver("make", 2 * MIB, 0)
        # One that the agent hears of only then.
        other = session.driver(init=False, control=False)
        other("leave")
        wait_for("the first thread has ended", lambda: state_of(other.pid) == "Z")
        other("init", 0)
        other("make", 2 * MIB, 0)
        process = session.known(other.pid)
        equal((process["bytes"], process["command"]), (2 * MIB, "prog_driver"), "the other one")
        owners = {row["owner"] for row in session.ask("mem")["rows"] if row["pid"] == other.pid}
        equal(owners, {"prog_driver"}, "owner of its memory")
        other("exit", 0)
        session.forgotten(other.pid)
        driver.end()
        session.forgotten(driver.pid)
        clean(session)


def holder_of(number):
    """Who has that process or thread number, or has it as a group or session."""
    found = []
    for path in glob.glob("/proc/[0-9]*/task/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(path) as stat:
            words = stat.read().split()
            if str(number) in (words[0], words[4], words[5]):
                found.append(" ".join(words[:6]))
    return found


def with_pid(session, pid):
    """A driver process that gets this number. Others take numbers, too: the agent's threads that remove
    probes, which can take seconds."""
    until = time.monotonic() + 15
    while time.monotonic() < until:
        with open("/proc/sys/kernel/ns_last_pid", "w") as last:
            last.write(str(pid - 1))
        process = session.spawn([program("prog_driver")])
        driver = Driver(process)
        if driver.pid == pid:
            return driver
        driver.end()
    check(False, "no process got number %d: %s" % (pid, holder_of(pid)))
    return None


@case(long=True)
def test_pid_is_used_again():
    with Session() as session:
        session.start_agent()
        pid = 20000
        for number in range(5):
            driver = with_pid(session, pid)
            driver("init", number % 2)
            driver("make", 2 * MIB, number % 2)
            driver("alloc", 1000 * (number + 1))
            process = session.known(pid)
            equal((process["complete"], process["bytes"], process["devices"]),
                  (True, 2 * MIB + 1000 * (number + 1), [number % 2]), "process number %d" % number)
            driver.process.signal(signal.SIGKILL)
            driver.process.wait()
        session.forgotten(pid)
        clean(session)


@case()
def test_held_by_the_dead():
    """The owner is named for as long as somebody keeps its memory, its number used again or not."""
    with Session() as session:
        session.start_agent()
        owner, importer = with_pid(session, 21000), session.driver(control=False)
        owner("init", 0)
        owner("nccl", SOFTNCCL)
        handle, _ = owner("make", 6 * MIB, 0)
        kept = importer("import", importer("getfd", owner.pid, owner("export", handle)))
        place = importer("show", 6 * MIB, kept, 0)
        owner.process.signal(signal.SIGKILL)
        owner.process.wait()
        wait_for("the owner is gone", lambda: not session.process(21000))

        def told():
            held = session.ask("holders", importer.pid, hex(place))["allocation"]
            equal((held["pid"], held["owner"], held["bytes"], held["alive"]),
                  (21000, "nccl", 6 * MIB, False), "holders")
            rows = [(r["owner"], r["kind"], r["bytes"], r["offload_frees"])
                    for r in session.ask("mem")["rows"] if r["pid"] == 21000 and r["kind"] == "dead"]
            equal(rows, [("nccl", "dead", 6 * MIB, 0)], "mem")
            mem = session.ask("mem")
            equal(mem["bytes"], sum(r["bytes"] for r in mem["rows"] if r["kind"] != "imported"),
                  "the total of mem")
            equal(session.ask("ps")["dead"], [
                {"pid": 21000, "owner": "nccl", "allocations": 1, "bytes": 6 * MIB}], "ps")
            finding = [f for f in json.loads(session.request('{"op": "check"}\n'))["result"]["findings"]
                       if f["kind"] == "held by the dead"]
            equal([(f["pid"], f["bytes"]) for f in finding], [(importer.pid, 6 * MIB)], "check")
            for words, what in ((("ps",), "held by the dead: 6.0 MiB of process 21000 .nccl."),
                                (("mem",), "21000 +nccl +dead"),
                                (("check",), "whose owner has exited"),
                                (("holders", importer.pid, hex(place)), "which has exited")):
                text = " ".join(session.lien(*words).out.split())
                check(re.search(what, text), "`lien %s`: %s" % (words[0], text))
        told()
        again = with_pid(session, 21000)  # somebody else
        again("init", 1)
        again("make", 2 * MIB, 1)
        equal(seen(session, 21000), (True, 2 * MIB), "the new process of that number")
        told()
        again.end()
        told()
        importer("unmap", place, 6 * MIB)
        importer("release", kept)
        equal(session.ask("ps")["dead"], [], "ps after the last import is gone")
        equal([a for a in session.ask("graph")["allocations"]], [], "allocations")


# Libraries and devices

@case()
def test_library_loaded_again_elsewhere():
    with Session() as session:
        session.start_agent()
        driver = session.driver(control=False)
        rows = {}
        for number in range(1, 5):
            driver("nccl", SOFTNCCL)
            driver("make", 2 * MIB, 0)
            driver("nccl-close", SOFTNCCL)
            driver("make", 4 * MIB, 0)
            rows = {row["owner"]: row["bytes"] for row in session.ask("mem")["rows"]
                    if row["pid"] == driver.pid}
            equal(rows, {"nccl": 2 * MIB * number, "prog_driver": 4 * MIB * number},
                  "by owner, loaded %d times" % number)
        # Another library where it was.
        driver("nccl", SOFTNCCL)
        place = driver("nccl-drop", SOFTNCCL)
        shutil.copy(SOFTNCCL, session.path("libother.so"))
        driver("nccl", session.path("libother.so"))
        driver("alloc", 1000)
        equal(driver("nccl-drop", session.path("libother.so")), place, "where it is")
        rows = {row["owner"]: row["bytes"] for row in session.ask("mem")["rows"]
                if row["pid"] == driver.pid}
        equal(rows, {"nccl": 8 * MIB, "prog_driver": 16 * MIB, "other": 1000}, "by owner")
        equal(seen(session, driver.pid)[0], True, "complete")


@case()
def test_driver_loaded_again():
    """The driver itself goes and comes back; the process stays known."""
    with Session() as session:
        session.start_agent()
        job = python(session, """
import _ctypes
for number in range(1, 4):
    cuda, at = use(number << 20)
    sys.stdin.readline()
    assert not cuda.cuMemFree_v2(at)
    _ctypes.dlclose(cuda._handle)
    print("closed", flush=True)
    sys.stdin.readline()
""")
        for number in range(1, 4):
            pid = int(job.line())
            equal(seen(session, pid), (True, number * MIB), "loaded %d times" % number)
            equal(job.ask(""), "closed", "answer")
            equal(seen(session, pid), (True, 0), "freed, and the driver closed")
            job.send("")


@case()
def test_visible_devices():
    """Devices are those of the process, as it numbers them."""
    with Session(devices=3) as session:
        session.start_agent()
        for visible, device, real in (("2", 0, 2), ("1,0", 1, 0), ("0,2", 1, 2)):
            before = [session.used(number) for number in range(3)]
            driver = session.driver(device=device, control=False, CUDA_VISIBLE_DEVICES=visible)
            driver("make", 2 * MIB, device)
            equal(session.known(driver.pid)["devices"], [device], "device with " + visible)
            grown = [session.used(number) - before[number] for number in range(3)]
            equal(grown[real], 2 * MIB, "on the real device: %s" % grown)
            driver.end()
            session.forgotten(driver.pid)


@case()
def test_capture_on_a_stream_that_is_destroyed():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        for _ in range(3):
            driver("capture", 2)
            session.refused("offload", "--owner", "all", text="captur")
            driver("stream-destroy")
            equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "offloaded")
            session.ask("restore")


# Other users, other worlds

@case()
def test_other_user():
    """A process of another user; one that was root before, and may not be dumped."""
    with Session() as session:
        os.chmod(session.folder, 0o755)
        session.start_agent()
        session.driver(control=False).end()  # makes the devices
        bare = session.driver(control=False, prefix=["setpriv", "--reuid", "65534", "--regid", "65534",
                                                     "--clear-groups", "--no-new-privs"])
        bare("make", 2 * MIB, 0)
        process = session.known(bare.pid)
        equal((process["uid"], process["complete"], process["bytes"]), (65534, True, 2 * MIB), "it")
        job = python(session, """
kept = use(1 << 20)
os.setgid(65534)
os.setuid(65534)  # the kernel lets nobody but root look at it now
more = ctypes.c_uint64()
assert not kept[0].cuMemAlloc_v2(ctypes.byref(more), 1 << 20)
print("more", flush=True)
sys.stdin.read()
""")
        pid = int(job.line())
        equal(job.line(), "more", "answer")
        equal(seen(session, pid), (True, 2 * MIB), "a process that gave up root")
        owners = {row["owner"] for row in session.ask("mem")["rows"] if row["pid"] == pid}
        check("unknown" not in owners, "owners: %s" % owners)


def root_with_driver(session, name):
    """A root directory of its own, with a copy of the driver and of all it needs."""
    root = session.path(name)
    needed = subprocess.run(["ldd", program("prog_driver")], env=session.env(), check=True,
                            capture_output=True, text=True).stdout
    files = [word for word in needed.split() if word.startswith("/")] + [program("prog_driver")]
    for path in files:
        place = root + ("/usr/lib/x86_64-linux-gnu/libcuda.so.1" if "libcuda" in path else path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        shutil.copy(path, place)
    for folder in ("proc", "sys", "dev"):
        os.makedirs(os.path.join(root, folder))
        subprocess.run(["mount", "--rbind", "/" + folder, os.path.join(root, folder)], check=True)
    os.makedirs(root + session.devices)
    os.makedirs(session.devices, exist_ok=True)
    subprocess.run(["mount", "--rbind", session.devices, root + session.devices], check=True)
    return root


def is_probed(session):
    wait_for("the copy of the driver is probed", lambda: any(
        library["path"].endswith("x86_64-linux-gnu/libcuda.so.1") and library["library"] == "cuda"
        for library in session.ask("status")["libraries"]))


def in_root(session, root, *prefix):
    return session.driver(control=False, init=False, prefix=[*prefix, "chroot", root],
                          LD_LIBRARY_PATH="/usr/lib/x86_64-linux-gnu")


# Sent by a terminal that is closed, by limits or by mistake.
HARMLESS = [signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
            signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR, signal.SIGSTKFLT,
            signal.SIGTTIN, signal.SIGTTOU, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGWINCH,
            signal.SIGURG, signal.SIGCONT, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)]


@case()
def test_signals_to_the_agent():
    with Session() as session:
        agent = session.start_agent()
        for number in HARMLESS:
            agent.signal(number)
            session.ask("status")
            check(agent.popen.poll() is None and state_of(agent.pid) in "SR", "after", number)
        for number in (signal.SIGTERM, signal.SIGINT):
            agent.signal(number)
            equal(agent.wait(), 0, "exit status after %s: %s" % (number, agent.said()))
            agent = session.start_agent()


def probed(process):
    """Functions of the driver in whose first byte the process has a breakpoint."""
    path = os.path.realpath(os.path.join(SOFTCUDA, "libcuda.so.1"))
    symbols = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    with open("/proc/%d/maps" % process.pid) as maps:
        base = next(int(line.split("-")[0], 16) for line in maps if path in line)
    with open("/proc/%d/mem" % process.pid, "rb", buffering=0) as memory:
        return [name for at, kind, name in map(str.split, symbols.splitlines())
                if kind == "T" and os.pread(memory.fileno(), 1, base + int(at, 16)) == b"\xcc"]


@case()
def test_killed_while_it_stops():
    """The agent is killed while the kernel takes its probes off: none stays. (Those would belong to no file once
    this one is gone, and break the next file that the kernel keeps in the same place.)"""
    with Session(fresh=True) as session:
        job = session.driver(control=False)
        for delay_us in range(0, 16000, 1000):
            agent = session.start_agent("--on-stop", "detach", keep=False)
            wait_for("it is probed", lambda: probed(job))
            agent.signal(signal.SIGTERM)
            time.sleep(delay_us / 1e6)
            session.kill_agent()
            equal(session.clean(), None, "lien agent --clean")
            wait_for("no probe is left after %d us" % delay_us, lambda: not probed(job), 20)


@case()
def test_terminal_of_the_agent_is_closed():
    """As when the window is closed in which it runs."""
    with Session() as session:
        master, slave = os.openpty()
        session.agent = session.spawn([
            sys.executable, "-c", "import os,sys; os.open(sys.argv[1], os.O_RDWR); "
            "os.execv(sys.argv[2], sys.argv[2:])", os.ttyname(slave), LIEN, "agent", "--no-prepare"])
        wait_for("it is ready", lambda: " ready: " in session.agent.said())
        with open("/proc/%d/stat" % session.agent.pid) as stat:
            check(stat.read().rsplit(")", 1)[1].split()[4] != "0", "it has no controlling terminal")
        os.close(slave)
        os.close(master)
        session.ask("status")
        check(session.agent.popen.poll() is None, "it ended with its terminal")


@case()
def test_other_root_with_its_own_driver():
    with Session() as session:
        os.chmod(session.folder, 0o755)
        root = root_with_driver(session, "root")
        session.start_agent()
        for number in range(2):
            driver = in_root(session, root)
            is_probed(session)
            driver("init", 0)
            driver("make", 2 * MIB, 0)
            complete, size = seen(session, driver.pid)
            equal(size, 2 * MIB, "bytes in another root")
            check(complete or not number, "the second process is incomplete")
            owners = {row["owner"] for row in session.ask("mem")["rows"] if row["pid"] == driver.pid}
            equal(owners, {"prog_driver"}, "owner")
            driver.end()
            session.forgotten(driver.pid)


@case()
def test_like_a_container():
    """Mount, pid and user namespaces of its own, and its own copy of everything."""
    with Session() as session:
        os.chmod(session.folder, 0o755)
        root = root_with_driver(session, "root")
        session.start_agent()
        probe = subprocess.run(["unshare", "-Urmpf", "true"], capture_output=True, check=False)
        check(probe.returncode == 0, "no user namespaces here: %s" % probe.stderr)
        for _ in range(2):
            driver = in_root(session, root, "unshare", "-Urmpf")
            equal(driver.inner_pid, 1, "pid in its own namespace")
            is_probed(session)
            driver("init", 0)
            driver("make", 2 * MIB, 0)
            inside = wait_for("it is known", lambda: [
                p for p in session.ask("ps")["processes"] if p["command"] == "prog_driver"])
            equal([p["bytes"] for p in inside], [2 * MIB], "bytes in a container")
            pid = inside[0]["pid"]
            owners = {row["owner"] for row in session.ask("mem")["rows"] if row["pid"] == pid}
            equal(owners, {"prog_driver"}, "owner")
            driver.process.close_input()
            session.forgotten(pid)
        equal(session.ask("status")["processes"], 0, "processes")
        check(inside[0]["complete"], "the second one is incomplete")


def others(session):
    return session.ask("status")["other_agents"]


@case(long=True)
def test_two_agents():
    """Each names the other one, once, and so does doctor; what an agent forks, cleans up or explains does not count."""
    with Session() as session:
        first = session.start_agent()
        equal(others(session), [], "alone")
        second = session.spawn([LIEN, "agent", "--no-prepare", "--no-attach", "--no-journal", "--socket",
                                session.path("second.sock")])
        wait_for("the second one is ready", lambda: " ready: " in second.said())
        line = "another agent, pid %d, watches the same processes"
        wait_for("the second one's log", lambda: line % first.pid in second.said())
        wait_for("the first one's status", lambda: others(session) == [second.pid])
        said = " ".join(session.lien("status").out.split())
        check("WARNING: another agent, pid %d, watches the same processes: each" % second.pid in said, said)
        doctor = {row["name"]: row for row in json.loads(session.lien("doctor", "--json").out)["checks"]}["agent"]
        equal((doctor["status"], "another one, pid %d" % second.pid in doctor["found"]), ("warn", True), doctor)

        def answers():
            for path in session.socket, session.path("second.sock"):
                equal(session.lien("graph", "--json", "--socket", path).code, 0, "graph")
            return others(session) == [second.pid]
        stays("while copies of both answer", answers, 4)
        second.signal(signal.SIGTERM)
        second.wait()
        wait_for("it is gone", lambda: not others(session))
        check("the other agent, pid %d, has ended" % second.pid in first.said(), first.said())
        equal(first.said().count("another agent, pid"), 1, "lines")
        equal(session.lien("status").out.count("another agent"), 0, "status")


@case(long=True)
def test_that_claim_to_be_agents():
    """Another user's program is not an agent, whatever its name; nor are other commands, or an agent's children."""
    with Shared() as session:
        session.start_agent()
        path = session.path("lien")
        shutil.copy("/bin/sh", path)
        for name in "agent", "events":  # a shell of that name reads them; its child is like itself
            with open(session.path(name), "w", encoding="ascii") as file:
                file.write("(while :; do sleep 1; done) & echo $!; wait\n")
        found = []
        for words in (["agent"], ["agent", "--clean"], ["events"]):
            for uid in 0, ALICE:
                argv = ["/bin/sh", "-c", "cd %s && exec ./lien %s" % (session.folder, " ".join(words))]
                process = session.spawn_as(uid, argv) if uid else session.spawn(argv)
                found.append(process.pid)
                child = int(process.line())
                with open("/proc/%d/cmdline" % child, encoding="ascii") as file:
                    equal(file.read().split("\0")[:-1], ["./lien", *words], "what the child is called")
        wait_for("ours is seen", lambda: found[0] in others(session))
        stays("no other is", lambda: others(session) == found[:1], 4)


if __name__ == "__main__":
    sys.exit(main())
