# SPDX-License-Identifier: BSD-2-Clause
"""What the tests of the agent share: sessions with an agent of their own and processes on the
software CUDA driver, cases with a time limit, and a line for each.

LIEN names the program (default $BUILD/lien, build/lien), SOFTCUDA the driver's folder.
liblien-control.so and replay/ lie beside lien. Root is needed: the BPF programs are real.

All of it runs in a pid and mount namespace of its own, so that our agents see our processes only,
and nothing stays behind: test programs may run beside each other. Agents of the namespace that we come
from still see ours, take their answers and wake them: cases wait for such foreign agents to end, and
are run again when one came while they ran and they failed.
"""

import argparse
import contextlib
import ctypes
import json
import os
import queue
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("BUILD") or os.path.join(ROOT, "build"))
LIEN = os.path.abspath(os.environ.get("LIEN") or os.path.join(BUILD, "lien"))
SOFTCUDA = os.path.abspath(os.environ.get("SOFTCUDA") or os.path.join(BUILD, "softcuda"))
CONTROL = os.path.abspath(os.environ.get("CONTROL") or
                          os.path.join(os.path.dirname(LIEN), "liblien-control.so"))
SOFTNCCL = os.path.join(os.path.dirname(LIEN), "replay", "libnccl.so.2")
os.environ.setdefault("TEST_BIN", os.path.join(os.path.dirname(LIEN), "tests", "integration"))
DATA = os.path.join(ROOT, "tests", "data")
GOLDEN = os.path.join(DATA, "pytorch-nccl-2ranks.lien")
MIB = 1 << 20
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
FOREIGN_WAIT_S = float(os.environ.get("FOREIGN_WAIT_S", "120"))
OUTSIDE = None  # where /proc of the namespace is that we came from


class Failure(Exception):
    """A case's reason to fail, in words."""


class Late(Failure):
    """Something took longer than its limit."""


def check(condition, *why):
    if not condition:
        raise Failure(" ".join(str(word) for word in why) or "not as it should be")


def equal(found, expected, what):
    if found != expected:
        raise Failure("%s: found %s, expected %s" % (what, brief(found), brief(expected)))


def brief(value, limit=600):
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
    except TypeError:  # keys that JSON has not
        text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


def wait_for(what, condition, limit=10.0, step=0.02):
    """The first true value of condition()."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Late("not within %g s: %s" % (limit, what))
        time.sleep(step)


def state_of(pid):
    """The letter of /proc/PID/stat, or None when there is no such process."""
    try:
        with open("/proc/%d/stat" % pid) as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def alive(pid):
    return state_of(pid) not in (None, "Z", "X")


def foreign_agents():
    """Agents that see our processes, by their pids: those of the pid namespace that we came from. Those
    of other tests, in namespaces beside ours, do not."""
    found = []
    for entry in filter(str.isdigit, os.listdir(OUTSIDE)) if OUTSIDE else ():
        try:
            # Its name first: a process can keep readers of its command line waiting.
            with open("%s/%s/comm" % (OUTSIDE, entry), "rb") as file:
                if file.read() != b"lien\n":
                    continue
            with open("%s/%s/cmdline" % (OUTSIDE, entry), "rb") as file:
                words = file.read().split(b"\0")
            if len(words) < 2 or os.path.basename(words[0]) != b"lien" or words[1] != b"agent":
                continue
            with open("%s/%s/status" % (OUTSIDE, entry)) as status:
                pids = [line.split()[1:] for line in status if line.startswith("NSpid:")][0]
            if len(pids) == 1:
                found.append(int(entry))
        except OSError:
            continue
    return found


class Process:
    """A process in a group of its own, its output read by lines."""

    def __init__(self, argv, env=None, log=None, **more):
        self.argv = [str(word) for word in argv]
        self.log = log
        stderr = open(log, "ab") if log else subprocess.DEVNULL
        self.popen = subprocess.Popen(self.argv, env=env, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=stderr, text=True,
                                      start_new_session=True, **more)
        if log:
            stderr.close()
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self):
        return self.popen.pid

    def _read(self):
        for line in self.popen.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def said(self):
        with contextlib.suppress(OSError, TypeError):
            with open(self.log, errors="replace") as file:
                return file.read()
        return ""

    def line(self, limit=20.0):
        """Its next line; None at the end of its output."""
        try:
            return self.lines.get(timeout=limit)
        except queue.Empty:
            raise Late("no line within %g s from %s" % (limit, self.argv[0])) from None

    def send(self, text):
        try:
            self.popen.stdin.write(text + "\n")
            self.popen.stdin.flush()
        except OSError as error:
            raise Failure("%s (pid %d) does not read: %s; %s" % (
                self.argv[0], self.pid, error, brief(self.said()))) from None

    def ask(self, text, limit=20.0):
        self.send(text)
        answer = self.line(limit)
        if answer is None:
            raise Failure("%s (pid %d) ended at '%s': %s" % (
                self.argv[0], self.pid, text, brief(self.said())))
        return answer

    def close_input(self):
        with contextlib.suppress(OSError):
            self.popen.stdin.close()

    def wait(self, limit=20.0):
        try:
            return self.popen.wait(limit)
        except subprocess.TimeoutExpired:
            raise Late("%s (pid %d) has not ended within %g s" % (
                self.argv[0], self.pid, limit)) from None

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self):
        """Its whole group goes, stopped or not."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(10)
        self.close_input()


class Driver:
    """A process that makes the driver calls it is told to (prog_driver.c)."""

    def __init__(self, process, limit=20.0):
        self.process = process
        ready = process.line(limit)
        check(ready and ready.startswith("ready "), "prog_driver: %s" % (ready or process.said()))
        self.inner_pid = int(ready.split()[1])
        self.pid = process.pid

    def attempt(self, command, *args, limit=20.0):
        """(ok, values or error)"""
        answer = self.process.ask(" ".join([command] + [str(arg) for arg in args]), limit)
        words = answer.split()
        if words[0] == "ok":
            return True, [int(word, 0) for word in words[1:]]
        return False, answer

    def __call__(self, command, *args, limit=20.0):
        ok, values = self.attempt(command, *args, limit=limit)
        check(ok, "driver: %s %s: %s" % (command, args, values))
        return values[0] if len(values) == 1 else values

    def take(self, owner, fd):
        """Imports what another one has exported; the handle."""
        taken = self("getfd", owner.pid, fd)
        handle = self("import", taken)
        self("close", taken)
        return handle

    def refused(self, command, *args):
        ok, values = self.attempt(command, *args)
        check(not ok, "driver: %s %s was not refused: %s" % (command, args, values))
        return int(values.split()[1])

    def end(self):
        self.process.end()


class Replay:
    """`lien replay --hold`."""

    def __init__(self, session, path, *args, limit=90.0, **environment):
        self.process = session.spawn([LIEN, "replay", "--hold", *args, path], **environment)
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

    def verify(self, limit=60.0):
        """(mappings, bytes)"""
        line = self.process.ask("verify", limit)
        match = re.fullmatch(r"verify: ok (\d+) mappings, (\d+) bytes", line)
        check(match, "verify said: %s" % line)
        return int(match[1]), int(match[2])

    def change(self, seed, limit=60.0):
        equal(self.process.ask("change %d" % seed, limit), "change: ok %d" % seed, "change")

    def free(self, limit=60.0):
        equal(self.process.ask("free", limit), "free: ok", "free")

    def quit(self, code=0):
        self.process.send("quit")
        found = self.process.wait(30)
        check(found == code, "replay ended with %s: %s" % (found, brief(self.process.said())))

    def end(self):
        self.process.end()


class Outcome:
    def __init__(self, argv, code, out, err):
        self.argv, self.code, self.out, self.err = argv, code, out, err

    def __str__(self):
        return "`%s` ended with %d: %s%s" % (
            " ".join(str(word) for word in self.argv), self.code, brief(self.out), brief(self.err))


class Session:
    """A folder, devices, at most one agent, and processes. All of it goes at the end."""

    def __init__(self, devices=2, memory="1G", **environment):
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
            LIEN_SOFTCUDA_QUIET="1", LIEN_CONTROL=CONTROL)
        self.environment.update(environment)

    def __enter__(self):
        return self

    def __exit__(self, kind, _value, _trace):
        try:
            problem = self.stop_agent(quiet=True)
        finally:
            left = self.clean()
            self.close()
        problem = problem or left
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

    def spawn(self, argv, env=None, **environment):
        self.count += 1
        log = self.path("%d-%s.log" % (self.count, os.path.basename(str(argv[0]))))
        process = Process(argv, env if env is not None else self.env(**environment), log)
        self.processes.append(process)
        return process

    # The agent

    def start_agent(self, *args, limit=20.0, prepare=False, attach=False, keep=True, **environment):
        """Starts it and waits until it answers. It knows the driver, by LD_LIBRARY_PATH, and the
        stand-in libnccl: the first job that maps one it does not know is incomplete. keep: when it
        is stopped, the next one goes on."""
        wait_for_foreign()
        if keep and "--no-journal" not in args:
            args += ("--on-stop", "keep")
        if not prepare:
            args += ("--no-prepare",)
        if not attach:
            args += ("--no-attach",)
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

    def stop_agent(self, quiet=False):
        """Ends it in good order; says what was wrong with that."""
        agent, self.agent = self.agent, None
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
        outcome = self.lien("agent", "--clean")
        return None if outcome.code == 0 else str(outcome)

    def kill_agent(self):
        self.agent.signal(signal.SIGKILL)
        self.agent.wait()
        self.agent = None

    # The command line

    def lien(self, *args, limit=60.0, env=None, text=None, **environment):
        argv = [LIEN, *[str(arg) for arg in args]]
        process = subprocess.Popen(argv, env=env or self.env(**environment),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            out, err = process.communicate(text, limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise Late("`%s` took more than %g s" % (" ".join(argv), limit)) from None
        return Outcome(argv, process.returncode, out, err)

    def ask(self, *args, limit=60.0):
        """The result of a command that must succeed."""
        outcome = self.lien(args[0], "--json", *args[1:], limit=limit)
        check(outcome.code == 0, outcome)
        try:
            return json.loads(outcome.out)
        except ValueError:
            raise Failure("no JSON: %s" % outcome) from None

    def refused(self, *args, text="", code=1, limit=60.0, **environment):
        """A command that must fail with one line that holds text (a regular expression)."""
        outcome = self.lien(*args, limit=limit, **environment)
        check(outcome.code == code, "expected exit status %d: %s" % (code, outcome))
        check(re.search(text, outcome.err), "no '%s': %s" % (text, outcome))
        return outcome.err

    def request(self, text, limit=20.0):
        """A line to the socket, as it is; the answering line."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(limit)
            connection.connect(self.socket)
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

    def known(self, pid, limit=10.0):
        return wait_for("process %d is known" % pid, lambda: self.process(pid), limit)

    def followed(self, pid):
        """Waits until it is seen which context is current in the process's threads: tens of ms after
        it has mapped the driver, which takes longer than that to make a context on a GPU."""
        def is_so():
            pids = self.ask("status")["contexts_followed"]
            return pids is None or pid in pids
        wait_for("contexts of %d are followed" % pid, is_so, 30)

    def ready(self, *pids, limit=10.0):
        """Waits until their control threads take orders."""
        for pid in pids:
            def is_ready(pid=pid):
                process = self.process(pid)
                return process and process["control"] == "ready"
            try:
                wait_for("process %d takes orders" % pid, is_ready, limit)
            except Late as late:
                raise Late("%s; ps: %s" % (late, brief(self.process(pid)))) from None

    def forgotten(self, *pids, limit=5.0):
        """Waits until nothing of these processes is left in the graph."""
        def rest():
            graph = self.ask("graph")
            return [p["pid"] for p in graph["processes"] if p["pid"] in pids] + [
                a for a in graph["allocations"] if a["pid"] in pids or
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

    def driver(self, *, control=True, device=0, init=True, prefix=(), **environment):
        """A prog_driver, started by `lien run` or alone."""
        argv = [*prefix, *([LIEN, "run", "--"] if control else []), program("prog_driver")]
        driver = Driver(self.spawn(argv, **environment))
        if init:
            driver("init", device)
        return driver

    def replay(self, path, *args, **more):
        return Replay(self, path, *args, **more)

    def close(self):
        for process in reversed(self.processes):
            process.end()
        unmount_below(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)


def wait_for_foreign():
    end = time.monotonic() + FOREIGN_WAIT_S
    while foreign_agents() and time.monotonic() < end:
        time.sleep(0.1)


def start_pairs(session, pairs, *args, **environment):
    """Two ranks, each with so many exported buffers of 2 MiB, ready for orders. What made its last driver
    call before its control thread could be woken is started anew."""
    for last in (False, False, True):
        job = session.replay(recording("pairs", pairs), *args, **environment)
        try:
            session.ready(*job.ranks, limit=3)
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


# The stream of `record`: struct lien_event (include/lien/event.h)

HEADER = struct.Struct("<IHHIIQQQiIQQ")
CALLS = {}
with open(os.path.join(ROOT, "include", "lien", "calls.h")) as _calls:
    for _match in re.finditer(r"X\((\w+),\s*(\d+),", _calls.read()):
        CALLS[_match[1]] = int(_match[2])
STATES = {}
with open(os.path.join(ROOT, "include", "lien", "state.h")) as _states:
    for _match in re.finditer(r"X\((\w+),\s*(\d+),", _states.read()):
        STATES[_match[1]] = int(_match[2])
FORMAT = 3
EVENT_ENTRY, EVENT_CONTROL, EVENT_PARTIAL = 1, 2, 4


class Event:
    def __init__(self, record):
        (self.size, self.type, self.flags, self.pid, self.tid, self.start, self.t_entry,
         self.t_return, self.result, self.outer, self.caller, self.scope) = HEADER.unpack_from(record)
        self.body = record[HEADER.size:]

    def words(self, layout):
        return struct.unpack_from("<" + layout, self.body)


class Stream:
    """A connection that records, read in a thread."""

    def __init__(self, session):
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(20)
        self.connection.connect(session.socket)
        self.connection.sendall(b'{"op": "record"}\n')
        self.bytes = bytearray()
        while b"\n" not in self.bytes:
            piece = self.connection.recv(1 << 20)
            check(piece, "the agent hung up")
            self.bytes += piece
        reply, _, rest = bytes(self.bytes).partition(b"\n")
        equal(json.loads(reply), {"ok": True, "result": {"format": FORMAT}}, "reply to record")
        self.bytes = bytearray(rest)
        self.last = time.monotonic()
        self.connection.settimeout(None)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with contextlib.suppress(OSError):
            while True:
                piece = self.connection.recv(1 << 20)
                if not piece:
                    break
                self.bytes += piece
                self.last = time.monotonic()

    def events(self, quiet=0.3, limit=20.0):
        """All so far, once none has come for a while."""
        wait_for("the stream is quiet", lambda: time.monotonic() - self.last > quiet, limit)
        data, at, found = bytes(self.bytes), 0, []
        while at + HEADER.size <= len(data):
            size = struct.unpack_from("<I", data, at)[0]
            check(HEADER.size <= size <= 232, "a record of %d bytes" % size)
            found.append(Event(data[at:at + size]))
            at += size
        return found

    def close(self):
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


# Cases

_cases = []


def case(limit=60):
    """A test: a function without arguments that raises when it fails. limit: seconds."""
    def add(function):
        _cases.append((function.__name__.removeprefix("test_"), function, limit))
        return function
    return add


class _Watch:
    """Notes whether a foreign agent ran meanwhile."""

    def __init__(self):
        self.seen = set()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.over.wait(0.25):
            self.seen.update(foreign_agents())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def _expired(_number, _frame):
    raise Late("the case's time limit is over")


def _attempt(function, limit):
    """None, or why it failed."""
    signal.signal(signal.SIGALRM, _expired)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        function()
    except Failure as failure:
        frame = traceback.extract_tb(failure.__traceback__)
        line = [f.lineno for f in frame if f.filename == function.__code__.co_filename]
        return "%s (line %s)" % (failure, ", ".join(map(str, line)))
    except Exception as error:  # pylint: disable=broad-except
        traceback.print_exc(file=sys.stdout)
        return "%s: %s" % (type(error).__name__, error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def _run_case(name, function, limit):
    for tries in (1, 2, 3):
        wait_for_foreign()
        began = time.monotonic()
        with _Watch() as watch:
            why = _attempt(function, limit)
        took = time.monotonic() - began
        if why is None:
            print("ok %s (%.1f s)" % (name, took), flush=True)
            return True
        if not watch.seen or tries == 3:
            break
        print("   %s: again, another agent ran (pid %s) when it failed: %s" % (
            name, ", ".join(map(str, sorted(watch.seen))), brief(why, 200)), flush=True)
    print("FAILED %s: %s" % (name, why), flush=True)
    return False


def _mount(libc, source, target, kind, flags):
    if libc.mount(source, target, kind, flags, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def enter():
    """Goes on in namespaces of its own; what is left of this process waits, and exits like it."""
    global OUTSIDE
    libc = ctypes.CDLL(None, use_errno=True)
    folder = tempfile.mkdtemp(prefix="lien-test-")
    os.chmod(folder, 0o755)  # for processes of other users
    outside = os.path.join(folder, "proc")
    os.mkdir(outside)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))
    _mount(libc, None, b"/", None, MS_REC | MS_PRIVATE)
    _mount(libc, b"/proc", outside.encode(), None, MS_BIND | MS_REC)
    first = os.fork()
    if first:  # outside
        def stop(number, _frame):
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, stop)
        _, status = os.waitpid(first, 0)
        libc.umount2(outside.encode(), MNT_DETACH)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _mount(libc, b"proc", b"/proc", b"proc", 0)
    with contextlib.suppress(OSError):  # what is pinned goes with the namespace
        _mount(libc, b"bpf", b"/sys/fs/bpf", b"bpf", 0)
    inner = os.fork()
    if inner:  # pid 1: buries the orphans
        while True:
            pid, status = os.wait()
            if pid == inner:
                os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)
    OUTSIDE = outside
    tempfile.tempdir = folder  # all that we leave in files goes with it


def main(agents=True):
    """Runs the cases; the exit code. agents: some of them start one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[], metavar="NAME",
                        help="only these cases; a part of the name will do")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = [entry for entry in _cases
              if not options.only or any(part in entry[0] for part in options.only)]
    if options.list:
        print("\n".join(entry[0] for entry in chosen))
        return 0
    for path in (LIEN, CONTROL, os.path.join(SOFTCUDA, "libcuda.so.1")) if agents else (LIEN,):
        if not os.path.exists(path):
            print("%s is not there: run make" % path)
            return 1
    if agents and os.geteuid():
        print("skipped: the agent needs root")
        return 77
    if agents:
        enter()
    passed = 0
    began = time.monotonic()
    for name, function, limit in chosen:
        passed += _run_case(name, function, limit)
    print("%.0f s" % (time.monotonic() - began))
    print("%d passed, %d failed" % (passed, len(chosen) - passed))
    return 0 if passed == len(chosen) else 1
