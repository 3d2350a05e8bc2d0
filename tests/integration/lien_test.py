# SPDX-License-Identifier: BSD-2-Clause
"""What the tests of the agent share: sessions with an agent of their own and processes on the
software CUDA driver. tests/lien_shared has what all tests share: processes, cases, namespaces.

LIEN names the program (default $BUILD/lien, build/lien), SOFTCUDA the driver's folder.
liblien-control.so and replay/ lie beside lien. Root is needed: the BPF programs are real.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Python looks in the folder of the program that it runs, which imports this file; tests/lien_shared is beside
# that folder. Here, and in tests/gpu/harness.py, so that no test has to say it.
sys.path.append(os.path.join(ROOT, "tests"))

from lien_shared import runner  # noqa: E402
from lien_shared.process import (  # noqa: E402,F401
    GUARD, Failure, Late, Outcome, Process, Skipped, alive, at_a_moment, brief, came, check, children_of, equal, run,
    state_of, stays, wait_for)
from lien_shared.runner import LONG, MNT_DETACH, NOTHING, SEED, case  # noqa: E402,F401
from stream import (  # noqa: E402,F401
    CALLS, EVENT_CONTROL, EVENT_ENTRY, EVENT_PARTIAL, FORMAT, HEADER, RECORDING_HEADER, STATES, Event, Stream)

BUILD = os.path.abspath(os.environ.get("BUILD") or os.path.join(ROOT, "build"))
LIEN = os.path.abspath(os.environ.get("LIEN") or os.path.join(BUILD, "lien"))
SOFTCUDA = os.path.abspath(os.environ.get("SOFTCUDA") or os.path.join(BUILD, "softcuda"))
CONTROL = os.path.abspath(os.environ.get("CONTROL") or
                          os.path.join(os.path.dirname(LIEN), "liblien-control.so"))
# Folders with libraries that agents probe.
PROBED = [SOFTCUDA, os.path.join(os.path.dirname(LIEN), "replay"),
          *(os.path.join(BUILD, "tests", "integration", name) for name in ("alone", "sync", "sync-2.19", "next", "hostile"))]
SOFTNCCL = os.path.join(BUILD, "tests", "integration", "alone", "libnccl.so.2")
THREADS = 1024  # that agents of tests can follow
IDLE_THREADS = 2  # kept by an agent for what may be slow, an open file each: IDLE_MAX, loader/discover/timeout.c
# Further options of every agent: other ways to attach probes (CONTRIBUTING.md).
AGENT_OPTIONS = os.environ.get("AGENT_OPTIONS", "").split()
os.environ.setdefault("TEST_BIN", os.path.join(os.path.dirname(LIEN), "tests", "integration"))
FIXTURES = os.path.join(ROOT, "tests", "integration", "fixtures")
DATA = os.path.join(ROOT, "tests", "data")
GOLDEN = os.path.join(DATA, "pytorch-nccl-2ranks.lien")
GOLDEN_GIB = 15  # of memory, for the recorded job and its offload
MIB = 1 << 20


@contextlib.contextmanager
def golden_memory():
    """For whoever replays GOLDEN: one at a time, and only if the machine has the memory."""
    with open(GOLDEN, "rb") as recording, open("/proc/meminfo", encoding="ascii") as meminfo:
        fcntl.flock(recording, fcntl.LOCK_EX)
        free = int(re.search(r"MemAvailable: *(\d+)", meminfo.read())[1]) >> 20
        if free < GOLDEN_GIB:
            raise Skipped("%d GiB of memory are free, not %d" % (free, GOLDEN_GIB))
        yield


class Driver:
    """A process that makes the driver calls it is told to (prog_driver.c)."""

    def __init__(self, process, limit=GUARD):
        self.process = process
        ready = process.line(limit)
        check(ready and ready.startswith("ready "), "prog_driver: %s" % (ready or process.said()))
        self.inner_pid = int(ready.split()[1])
        self.pid = process.pid

    def attempt(self, command, *args, limit=GUARD):
        """(ok, values or error)"""
        answer = self.process.ask(" ".join([command] + [str(arg) for arg in args]), limit)
        words = answer.split()
        if words[0] == "ok":
            return True, [int(word, 0) for word in words[1:]]
        return False, answer

    def __call__(self, command, *args, limit=GUARD):
        ok, values = self.attempt(command, *args, limit=limit)
        check(ok, "driver: %s %s: %s" % (command, args, values))
        return values[0] if len(values) == 1 else values

    def take(self, owner, fd):
        """Imports what another one has exported; the handle."""
        taken = self("getfd", owner.pid, fd)
        handle = self("import", taken)
        self("close", taken)
        return handle

    def through(self, handle, size, device, command, *args):
        """A command on all of it, by a mapping that exists no longer."""
        va = self("show", size, handle, device)
        result = self(command, va, size, *args)
        self("unmap", va, size)
        self("free", va, size)
        return result

    def refused(self, command, *args):
        ok, values = self.attempt(command, *args)
        check(not ok, "driver: %s %s was not refused: %s" % (command, args, values))
        return int(values.split()[1])

    def end(self):
        self.process.end()


class Replay:
    """`lien replay --hold`; under: what starts it."""

    def __init__(self, session, path, *args, under=(), limit=GUARD, **environment):
        environment.setdefault("LIEN_SOFTNCCL", SOFTNCCL)  # which the agent probes before
        self.process = session.spawn([*under, LIEN, "replay", "--hold", *args, path], **environment)
        self.pids, self.mappings = {}, {}
        while True:
            line = self.process.line(limit)
            check(line is not None, "replay ended: %s" % brief(self.process.said()))
            match = re.match(r"recorded pid (\d+) -> pid (\d+): (\d+) mappings(.*)", line)
            if match and "ended" not in match[4]:
                self.pids[int(match[1])] = int(match[2])
                self.mappings[int(match[1])] = int(match[3])
            if line == "replay: ready":
                break

    @property
    def ranks(self):
        return [self.pids[recorded] for recorded in sorted(self.pids)]

    def verify(self, limit=GUARD):
        """(mappings, bytes)"""
        line = self.process.ask("verify", limit)
        match = re.fullmatch(r"verify: ok (\d+) mappings, (\d+) bytes", line)
        check(match, "verify said: %s" % line)
        return int(match[1]), int(match[2])

    def change(self, seed, limit=GUARD):
        equal(self.process.ask("change %d" % seed, limit), "change: ok %d" % seed, "change")

    def free(self, limit=GUARD):
        equal(self.process.ask("free", limit), "free: ok", "free")

    def quit(self, code=0):
        self.process.send("quit")
        found = self.process.wait(30)
        check(found == code, "replay ended with %s: %s" % (found, brief(self.process.said())))

    def end(self):
        self.process.end()


class SharedAgent:
    """The agent of the sessions of a test program that ask for one like it: to start one and to clean up after
    it takes half a second of processor time."""

    def __init__(self):
        self.session = Session(fresh=True)
        os.chmod(self.session.folder, 0o755)  # other users' sessions, too
        self.process = self.session.start_agent()
        self.taken = False

    def take(self):
        self.taken = True
        self.process.log_from = os.path.getsize(self.process.log)

    def give_back(self):
        """Nothing is left of the session that had it."""
        check(self.process.popen.poll() is None, "the agent died: %s" % brief(self.process.said()[-600:]))
        self.session.forgotten()
        self.taken = False


_shared = None


class Session:
    """A folder, devices, at most one agent, and processes. All of it goes at the end, but for an agent that started
    as most do: the next session goes on with it. fresh: the agent is this session's alone."""

    def __init__(self, devices=2, memory="1G", fresh=False, **environment):
        self.fresh = fresh
        self.lender = None  # the session of an agent that was shared
        self.folder = tempfile.mkdtemp(prefix="lien-test-")
        self.devices = os.path.join(self.folder, "devices")
        self.socket = os.path.join(self.folder, "agent.sock")
        self.device_count = devices
        self.processes = []
        self.agent = None
        self.count = 0
        self.environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("LIEN_", "CUDA_")) and name not in ("LD_PRELOAD", "MAKEFLAGS")}
        self.environment.update(
            LD_LIBRARY_PATH=SOFTCUDA, LIEN_SOCKET=self.socket, LIEN_SOFTCUDA_DIR=self.devices,
            LIEN_SOFTCUDA_DEVICES=str(devices), LIEN_SOFTCUDA_MEMORY=str(memory),
            LIEN_SOFTCUDA_QUIET="1", LIEN_CONTROL=CONTROL,
            LIEN_PLAIN="1")  # what cuMemAlloc makes stays the driver's, but in test_plain.py
        self.environment.update(environment)

    def __enter__(self):
        return self

    def __exit__(self, kind, _value, _trace):
        problem = None
        if _shared and self.agent is _shared.process and not kind:
            try:
                self.leave_agent()
                return
            except Failure as failure:
                problem = str(failure)
        try:
            stopped = self.stop_agent(quiet=True)
        finally:
            self.clean_later()
        problem = problem or stopped
        if problem and not kind:
            raise Failure(problem)
        if problem:
            sys.stdout.write("   (%s)\n" % problem)

    def env(self, **more):
        env = dict(self.environment)
        for name, value in more.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = str(value)
        return env

    def path(self, name):
        return os.path.join(self.folder, name)

    def spawn(self, argv, env=None, pass_fds=(), **environment):
        self.count += 1
        log = self.path("%d-%s.log" % (self.count, os.path.basename(str(argv[0]))))
        process = Process(argv, env if env is not None else self.env(**environment), log, pass_fds=pass_fds)
        self.processes.append(process)
        return process

    # The agent

    def start_agent(self, *args, limit=GUARD, prepare=False, attach=False, keep=True, **environment):
        """Starts it and waits until it answers. It knows the driver, by LD_LIBRARY_PATH, and the
        stand-in libnccl: the first job that maps one it does not know is incomplete. keep: when it
        is stopped, the next one goes on."""
        taken = _shared and _shared.taken
        if keep and not (self.fresh or taken or args or prepare or attach or environment or self.processes):
            return self.share_agent()
        end_shared()  # two agents would take each other's answers
        args += tuple(AGENT_OPTIONS)
        if keep and "--no-journal" not in args:
            args += ("--on-stop", "keep")
        if not prepare:
            args += ("--no-prepare",)
        elif prepare is True and "--prepare" not in args:
            args += ("--prepare", "25")  # the tests may run in a memory cgroup with a limit
        if not attach:
            args += ("--no-attach",)
        if "--threads" not in args:
            args += ("--threads", str(THREADS))  # half the time that an agent takes to start is for the room
        if "--library" not in args and os.path.exists(SOFTNCCL):
            args += ("--library", SOFTNCCL)
        self.agent = self.spawn([LIEN, "agent", *args], **environment)
        agent = self.agent

        def answers():
            check(agent.popen.poll() is None, "the agent ended with %s: %s" % (
                agent.popen.poll(), brief(agent.said())))
            return " ready: " in agent.said()
        wait_for("the agent is ready", answers, limit)
        return agent

    def share_agent(self):
        global _shared
        _shared = _shared or SharedAgent()
        _shared.take()
        self.agent, self.socket = _shared.process, _shared.session.socket
        self.environment["LIEN_SOCKET"] = self.socket
        return self.agent

    def own_agent(self):
        """It is this session's from now on: the next one gets another."""
        global _shared
        agent, self.agent = self.agent, None
        if _shared and agent is _shared.process:
            self.lender, _shared = _shared.session, None
        return agent

    def leave_agent(self):
        """To the next session; all else goes."""
        for process in reversed(self.processes):
            process.end()
        _shared.give_back()
        self.close()

    def stop_agent(self, quiet=False):
        """Ends it in good order; says what was wrong with that."""
        agent = self.own_agent()
        if not agent:
            return None
        code = agent.popen.poll()
        problem = None
        if code is not None:
            problem = "the agent died with %d: %s" % (code, brief(agent.said()[-600:]))
        else:
            agent.signal(signal.SIGTERM)
            try:
                code = agent.wait(60)  # single probes: the kernel takes 0.1 s to detach each
                if code:
                    problem = "the agent ended with %d at SIGTERM: %s" % (
                        code, brief(agent.said()[-600:]))
            except Late as late:
                problem = str(late)
        agent.end()
        if problem and not quiet:
            raise Failure(problem)
        return problem

    def clean(self):
        """Removes what the agents left for the next one; says what was wrong with that."""
        outcome = self.lien("agent", "--clean", "--force")
        return None if outcome.code == 0 else str(outcome)

    def kill_agent(self):
        agent = self.own_agent()
        agent.signal(signal.SIGKILL)
        agent.wait()

    # The command line

    def lien(self, *args, limit=GUARD, env=None, text=None, **environment):
        return run([LIEN, *args], limit, env or self.env(**environment), text)

    def ask(self, *args, limit=GUARD):
        """The result of a command that must succeed, or have nothing that it can move. The commands that tests repeat
        until something is so print what the agent says as it is; they are asked without the command line, which takes
        ten times as long."""
        if args in (("ps",), ("graph",), ("status",), ("comms",)) and os.path.exists(self.socket):
            answer = json.loads(self.request(json.dumps({"op": args[0]}) + "\n", limit))
            check(answer["ok"], args[0], answer)
            return answer["result"]
        outcome = self.lien(args[0], "--json", *args[1:], limit=limit)
        check(outcome.code == 0 or "nothing was moved" in outcome.err, outcome)
        try:
            return json.loads(outcome.out)
        except ValueError:
            raise Failure("no JSON: %s" % outcome) from None

    def adopt(self):
        """`lien attach --all`, which must succeed with all of them; None: there was nothing to adopt."""
        outcome = self.lien("attach", "--json", "--all")
        check(outcome.out.startswith("{"), outcome)
        answer = json.loads(outcome.out)
        equal([(p["pid"], p["error"]) for p in answer["processes"] if p["error"]], [], "refused")
        adoption = answer["adoption"]
        if adoption:
            equal((adoption["error"], adoption["disputed"], adoption["outsider"]), (None, 0, None),
                  "adoption")
        return adoption

    def refused(self, *args, text="", code=1, limit=GUARD, **environment):
        """A command that must fail with one line that holds text (a regular expression)."""
        outcome = self.lien(*args, limit=limit, **environment)
        check(outcome.code == code, "expected exit status %d: %s" % (code, outcome))
        check(re.search(text, outcome.err), "no '%s': %s" % (text, outcome))
        return outcome.err

    def request(self, text, limit=GUARD):
        """A line to the socket, as it is; the answering line."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.socket)  # waits for room in the queue, which it would not with a limit
            connection.settimeout(limit)
            connection.sendall(text if isinstance(text, bytes) else text.encode())
            answer = b""
            while not answer.endswith(b"\n"):
                piece = connection.recv(1 << 20)
                if not piece:
                    break
                answer += piece
        return answer.decode(errors="replace")

    # What the agent says

    def process(self, pid):
        for process in self.ask("ps")["processes"]:
            if process["pid"] == pid:
                return process
        return None

    def known(self, pid, limit=GUARD):
        return wait_for("process %d is known" % pid, lambda: self.process(pid), limit)

    def followed(self, pid):
        """Waits until it is seen which context is current in the process's threads: tens of ms after
        it has mapped the driver, which takes longer than that to make a context on a GPU."""
        def is_so():
            pids = self.ask("status")["contexts_followed"]
            return pids is None or pid in pids
        wait_for("contexts of %d are followed" % pid, is_so)

    def ready(self, *pids, limit=GUARD):
        """Waits until their control threads take orders."""
        for pid in pids:
            def is_ready(pid=pid):
                process = self.process(pid)
                return process and process["control"] == "ready"
            try:
                wait_for("process %d takes orders" % pid, is_ready, limit)
            except Late as late:
                raise Late("%s; ps: %s" % (late, brief(self.process(pid)))) from None

    def forgotten(self, *pids, limit=GUARD):
        """Waits until nothing of these processes, or of any if none is named, is left in the graph."""
        def rest():
            graph = self.ask("graph")
            return [p["pid"] for p in graph["processes"] if not pids or p["pid"] in pids] + [
                a for a in graph["allocations"] if not pids or a["pid"] in pids or
                any(m["pid"] in pids for m in a["mappings"] + a["handles"])]
        try:
            wait_for("forgotten", lambda: not rest(), limit)
        except Late:
            raise Failure("still in the graph: %s" % brief(rest())) from None

    # The devices

    def used(self, device=None):
        """Bytes of a device that are in use, or of all, as the file systems say."""
        total = 0
        for number in range(self.device_count) if device is None else [device]:
            place = os.path.join(self.devices, str(number))
            if os.path.ismount(place):
                fs = os.statvfs(place)
                total += (fs.f_blocks - fs.f_bfree) * fs.f_frsize
        return total

    def freed(self, left=0):
        """Waits until only so much is in use. What a process had mapped can outlive it for a moment: the
        kernel holds its memory while it changes probes."""
        wait_for("%d bytes are in use, and no more" % left, lambda: self.used() == left)

    def driver(self, *, control=True, device=0, init=True, prefix=(), **environment):
        """A prog_driver, started by `lien run` or alone."""
        argv = [*prefix, *([LIEN, "run", "--"] if control else []), program("prog_driver")]
        driver = Driver(self.spawn(argv, **environment))
        if init:
            driver("init", device)
        return driver

    def compile(self, name, source, *flags, compiler=os.environ.get("CC") or "cc"):
        """The path of a program or library made of a file of fixtures/."""
        path = self.path(name)
        subprocess.run([compiler, "-D_GNU_SOURCE", *flags, os.path.join(FIXTURES, source),
                        "-o", path], check=True, timeout=60)
        return path

    def replay(self, path, *args, **more):
        return Replay(self, path, *args, **more)

    def clean_later(self):
        """Ends all processes. The kernel takes half a second to remove the probes that are left; meanwhile
        other cases run."""
        for process in reversed(self.processes):
            process.end()
        unmount_below(self.folder)
        _cleaning.append((self, self.spawn([LIEN, "agent", "--clean", "--force"])))
        cleaned(CLEANING_MAX)

    def close(self):
        for process in reversed(self.processes):
            process.end()
        unmount_below(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.lender:
            self.lender.close()


CLEANING_MAX = 4
_cleaning = []  # sessions that have ended, and their `lien agent --clean`


def cleaned(left=0):
    """Waits until no more than so many are being cleaned. Returns or raises what was wrong."""
    while len(_cleaning) > left:
        session, process = _cleaning.pop(0)
        try:
            code, said = process.wait(300), process.said()  # 0.1 s and more for each single probe
        finally:
            session.close()
        check(code == 0, "lien agent --clean ended with %s: %s" % (code, brief(said)))


def end_shared():
    global _shared
    if _shared and not _shared.taken:
        last, _shared = _shared, None
        with last.session:
            pass


def finish():
    """After the last case."""
    end_shared()
    cleaned()


def start_pairs(session, pairs, *args, **environment):
    """Two ranks, each with so many exported buffers of 2 MiB, ready for orders. What made its last driver
    call before its control thread could be woken is started anew."""
    for last in (False, False, True):
        job = session.replay(recording("pairs", pairs), *args, **environment)
        try:
            session.ready(*job.ranks, limit=GUARD if last else 3)
            break
        except Late:
            if last:
                raise
            job.end()
            session.forgotten(*job.ranks)
    return job


def unmount_below(folder):
    libc = ctypes.CDLL(None, use_errno=True)
    points = []
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split()[4])
            if point.startswith(folder + "/"):
                points.append(point)
    for point in sorted(points, reverse=True):
        if libc.umount2(point.encode(), MNT_DETACH):
            sys.stdout.write("cannot unmount %s: %s\n" % (point, os.strerror(ctypes.get_errno())))


# Programs and recordings, made once

_programs = {}


def program(name, folder="tests/integration"):
    """The path of a test's C program: from $TEST_BIN, or built when it is first asked for."""
    if name not in _programs:
        built = os.path.join(os.path.abspath(os.environ.get("TEST_BIN") or "/nonexistent"), name)
        if os.path.exists(built):
            _programs[name] = built
            return built
        path = os.path.join(tempfile.gettempdir(), name)
        subprocess.run(
            [os.environ.get("CC") or "cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall",
             "-Wextra", "-Werror", "-pthread", "-Iinclude", "-I.", "%s/%s.c" % (folder, name),
             "-o", path, "-L" + SOFTCUDA, "-l:libcuda.so.1", "-ldl"],
            cwd=ROOT, check=True, timeout=60)
        _programs[name] = path
    return _programs[name]


def recording(kind, *args):
    """A synthetic recording (make_recording.c)."""
    maker = os.environ.get("MAKE_RECORDING")
    if not maker:
        maker = _programs.get("make_recording")
    if not maker:
        maker = os.path.join(tempfile.gettempdir(), "make_recording")
        subprocess.run(
            [os.environ.get("CC") or "cc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Iinclude", "-I.",
             "tests/integration/make_recording.c", "agent/journal/recording.c", "agent/graph/event_check.c",
             "-o", maker, "-lz"], cwd=ROOT, check=True, timeout=60)
        _programs["make_recording"] = maker
    path = os.path.join(tempfile.gettempdir(), "-".join([kind, *map(str, args)]) + ".lien")
    if not os.path.exists(path):
        subprocess.run([maker, kind, path, *map(str, args)], check=True, timeout=60)
    return path


def enter():
    runner.enter([path for path in PROBED if os.path.isdir(path)])


def main(agents=True):
    """Runs the cases; the exit code. agents: some of them start one."""
    return runner.main(
        (LIEN, CONTROL, os.path.join(SOFTCUDA, "libcuda.so.1")) if agents else (LIEN,), enter if agents else None,
        finish)
