# SPDX-License-Identifier: BSD-2-Clause
"""What the tests of the injection share: processes to inject into, prog_inject, and what is seen of
a process from outside."""

import errno
import os
import re
import signal
import subprocess
import sys
import time

from lien_test import (
    CONTROL, SEED, SOFTCUDA, Failure, Session, check, equal, program, state_of, wait_for)

LIMIT_MS = 10000  # the machine may be busy
LOAD = ["malloc", "malloc", "malloc", "fork", "vfork", "load", "start"]
WAITS = ["nanosleep", "clock", "poll", "ppoll", "select", "futex", "cond", "read", "epoll", "wait",
         "handler", "errno"]
ANY_SIGNAL = 1 << signal.SIGWINCH - 1  # that nobody here blocks for itself
COUNT = int(os.environ.get("INJECT_COUNT") or 100)

# Loads the driver, and modules again and again, in two threads.
PYTHON = """
import ctypes, importlib, sys, threading, time
ctypes.CDLL("libcuda.so.1")
bad = []
def imports(names):
    try:
        while True:
            for name in names:
                for known in [m for m in list(sys.modules) if m.split(".")[0] == name]:
                    del sys.modules[known]
                importlib.import_module(name)
                time.sleep(0.0005)
    except BaseException as error:
        bad.append(repr(error))
def sleeps():
    while True:
        begun = time.monotonic()
        time.sleep(0.03)
        took = time.monotonic() - begun
        if not 0.03 <= took < 2:
            bad.append("slept %g" % took)
for names in (["json", "decimal", "csv"], ["colorsys", "sqlite3", "wave", "bisect"]):
    threading.Thread(target=imports, args=(names,), daemon=True).start()
threading.Thread(target=sleeps, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    print("bad %s" % bad[0] if bad else "ok 1", flush=True)
"""


class Session(Session):  # pylint: disable=function-redefined
    """No agent, so nothing of one to clean."""

    def clean(self):
        return None

    def waits(self, *kinds, **environment):
        """A prog_waits that is ready."""
        return ready(self.spawn([program("prog_waits"), *kinds], **environment))

    def python(self, code=PYTHON):
        return ready(self.spawn([sys.executable, "-c", code]))


def ready(process):
    equal(process.line(), "ready", "the first line of %s: %s" % (process.argv[0], process.said()))
    return process


def content(process, more=0.0):
    """Nothing unexpected has happened to it."""
    time.sleep(more)
    answer = process.ask("")
    check(answer.startswith("ok "), "%s (pid %d) says: %s" % (process.argv, process.pid, answer))
    return int(answer.split()[1])


class Injected:
    def __init__(self, words):
        self.present, self.attempts = words[0] == "1", int(words[1])
        self.pause_us, self.total_us = int(words[2]), int(words[3])


def injector(pid, library=CONTROL, limit_ms=LIMIT_MS, **more):
    return subprocess.Popen([program("prog_inject"), str(pid), library, str(limit_ms)], text=True,
                            stdout=subprocess.PIPE, **more)


def attempt(pid, library=CONTROL, limit_ms=LIMIT_MS, **more):
    """Injected, or (errno, why)."""
    with injector(pid, library, limit_ms, **more) as process:
        said = process.communicate(timeout=60)[0]
    words = said.split(maxsplit=2)
    check(said.count("\n") == 1 and words[0] in ("ok", "error"), "prog_inject said: %s" % said)
    if words[0] == "ok":
        return Injected(said.split()[1:])
    check(str(pid) in words[2], "not named: %s" % said)
    return int(words[1]), words[2].strip()


def inject(pid, **more):
    """A thread that waits for a lock of its libc may have it the next time."""
    for _ in range(100):
        result = attempt(pid, **more)
        if not isinstance(result, tuple) or result[0] != errno.EDEADLK:
            break
    if isinstance(result, tuple):
        raise Failure("not injected: %s" % (result,))
    return result


def refused(pid, number, text, **more):
    result = attempt(pid, **more)
    check(isinstance(result, tuple), "not refused, though: %s" % text)
    check(result[0] == number and re.search(text, result[1]), "refused with %s" % (result,))


# What is seen from outside


def status(pid, field, tid=None):
    with open("/proc/%d/task/%d/status" % (pid, tid or pid)) as file:
        return re.search(r"^%s:\s*(.*)$" % field, file.read(), re.M)[1]


def maps(pid):
    with open("/proc/%d/maps" % pid) as file:
        return [line.rstrip("\n").split(maxsplit=5) for line in file]


def has_library(pid):
    return any(len(entry) == 6 and "liblien-control.so" in entry[5] for entry in maps(pid))


class Seen:
    """A process, but for what the application itself may change meanwhile, and for what a control
    library has for its orders: a thread and two sockets."""

    def __init__(self, pid):
        wait_for("a control thread and its two sockets, or neither", lambda: self.read(pid))

    def read(self, pid):
        """False: the control thread is just being started."""
        self.threads = sorted(os.listdir("/proc/%d/task" % pid))
        control = [tid for tid in self.threads if status(pid, "Name", int(tid)) == "lien-control"]
        check(len(control) <= 1, "control threads:", control)
        self.threads = [tid for tid in self.threads if tid not in control]
        self.fds = {fd: os.readlink("/proc/%d/fd/%s" % (pid, fd))
                    for fd in os.listdir("/proc/%d/fd" % pid)}
        sockets = [fd for fd, what in self.fds.items()
                   if int(fd) >= 900 and what.startswith("socket:")]
        for fd in sockets:
            del self.fds[fd]
        self.blocked = {tid: status(pid, "SigBlk", int(tid)) for tid in self.threads}
        self.caught = int(status(pid, "SigCgt"), 16)
        self.maps = {entry[0]: entry[1:] for entry in maps(pid)}
        return len(sockets) == 2 * len(control)

    def equals(self, other):
        for what in ("fds", "threads", "blocked"):
            equal(getattr(other, what), getattr(self, what), what)

    def added(self, before):
        """Mappings that were not there: (sizes of anonymous ones, files)."""
        sizes, files = [], set()
        for place, entry in self.maps.items():
            if before.maps.get(place) == entry:
                continue
            if len(entry) > 4:
                files.add(os.path.basename(entry[4]))
            else:
                first, last = (int(part, 16) for part in place.split("-"))
                check("x" not in entry[0], "code is left behind: %s %s" % (place, entry))
                sizes.append(last - first)
        return sizes, files


def state_of_library(pid):
    """(magic, version, signal, handler) of lien_control_state."""
    nm = subprocess.run(["nm", "-D", CONTROL], capture_output=True, text=True, check=True).stdout
    offset = int(re.search(r"^(\w+) \w lien_control_state$", nm, re.M)[1], 16)
    base = min(int(entry[0].split("-")[0], 16) for entry in maps(pid)
               if len(entry) == 6 and "liblien-control.so" in entry[5])
    with open("/proc/%d/mem" % pid, "rb") as memory:
        memory.seek(base + offset)
        state = memory.read(56)
    return (int.from_bytes(state[:8], "little"), int.from_bytes(state[8:12], "little"),
            int.from_bytes(state[24:28], "little"), int.from_bytes(state[16:24], "little"))


def settled(pid, begun=True):
    """Seen, once it does not change, and its threads have begun: until then they block all signals.
    Those of a process that is stopped go on doing so, and those of an injection do to their end."""
    def same():
        try:
            before = Seen(pid)
            time.sleep(0.01)
            after = Seen(pid)
        except FileNotFoundError:  # of a thread that has ended
            return None
        beginning = [mask for mask in after.blocked.values() if int(mask, 16) & ANY_SIGNAL]
        if begun and beginning and state_of(pid) not in "Tt":
            return None
        return vars(before) == vars(after) and after
    return wait_for("process %d is as it will be" % pid, same)


def softcuda_env():
    return {"LD_LIBRARY_PATH": SOFTCUDA}


def median(values):
    return sorted(values)[len(values) // 2]


def figures(values):
    return "min %d, median %d, max %d" % (min(values), median(values), max(values))

