# SPDX-License-Identifier: BSD-2-Clause
"""What all tests share: failures, waiting for a condition, commands and what they leave, processes that
are talked to by lines.

Every wait has a limit, which guards against hanging and is not what is tested; what it waited for is in the
Failure. Everything that is started has a process group of its own.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time


GUARD = 300.0  # seconds


class Failure(Exception):
    """A test's reason to fail, in words."""


class Skipped(Exception):
    """Why a case cannot run here."""


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


def wait_for(what, condition, limit=GUARD, step=0.02):
    """The first true value of condition(). The longer it takes, the less often that is asked: what asks may be
    what keeps the machine busy."""
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        if waited > limit:
            raise Late("not within %g s: %s" % (limit, what))
        time.sleep(max(step, waited / 10))


def came(condition, seconds):
    """Whether condition() becomes true within so many seconds."""
    with contextlib.suppress(Late):
        wait_for("it", condition, seconds)
        return True
    return False


def stays(what, condition, seconds=0.5):
    """The condition is true, and nothing changes that for a while: where nothing is to happen, there is
    nothing to wait for."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not condition():
            raise Failure("no longer: %s" % what)
        time.sleep(0.05)


def at_a_moment(dice, within):
    """What follows is to happen at any moment of the next so many seconds."""
    time.sleep(dice.random() * within)


def state_of(pid):
    """The letter of /proc/PID/stat, or None when there is no such process."""
    try:
        with open("/proc/%d/stat" % pid) as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def alive(pid):
    return state_of(pid) not in (None, "Z", "X")


def children_of(pid):
    found = []
    for tid in os.listdir("/proc/%d/task" % pid):
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended
            with open("/proc/%d/task/%s/children" % (pid, tid)) as file:
                found += map(int, file.read().split())
    return found


# Commands

def kill_group(process, sig=signal.SIGKILL):
    """The group outlives its leader as long as a member lives, so a dead leader is no reason not to
    signal it; Popen.pid is not reused before wait()."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, sig)


def end(process, sig=signal.SIGKILL, wait_s=5):
    """Signals the process's group, kills it when that is not enough; returns the exit status."""
    kill_group(process, sig)
    for _ in range(2):
        try:
            process.wait(wait_s)
            break
        except subprocess.TimeoutExpired:
            kill_group(process)
    return process.returncode


class Outcome:
    """What a finished command left."""

    def __init__(self, argv, code, out, err, ms=0.0):
        self.argv, self.code, self.out, self.err, self.ms = argv, code, out, err, ms

    def __str__(self):
        return "`%s` ended with %d: %s%s" % (
            " ".join(self.argv), self.code, brief(self.out), brief(self.err))

    def text(self):
        """All it said, on one line."""
        return " ".join((self.err + "\n" + self.out).split())

    def json(self):
        """Of stdout, which holds one object, perhaps after lines of progress."""
        with contextlib.suppress(ValueError):
            return json.loads(self.out)
        for line in reversed(self.out.splitlines()):
            with contextlib.suppress(ValueError):
                return json.loads(line)
        raise Failure("`%s` printed no JSON: %s" % (" ".join(self.argv), self.text()[:600]))


def run(argv, limit, env=None, text=None, errors="replace", **options):
    """Runs a command to its end. text: what it reads."""
    argv = [str(word) for word in argv]
    began = time.monotonic()
    process = subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **options)
    try:
        out, err = process.communicate(text.encode() if text is not None else None, limit)
    except subprocess.TimeoutExpired:
        kill_group(process)
        out, err = process.communicate(timeout=10)
        said = " ".join((err + b" " + out).decode(errors="replace").split())[-600:]
        raise Late("`%s` did not end within %g s; it said: %s" % (
            " ".join(argv), limit, said)) from None
    except BaseException:
        end(process)
        raise
    return Outcome(argv, process.returncode, out.decode(errors=errors), err.decode(errors=errors),
                   (time.monotonic() - began) * 1e3)


class Process:
    """A process in a group of its own, its output read by lines."""

    def __init__(self, argv, env=None, log=None, **more):
        self.argv = [str(word) for word in argv]
        self.log = log
        self.log_from = 0  # what it said before is no longer of interest
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
                file.seek(self.log_from)
                return file.read()
        return ""

    def line(self, limit=GUARD):
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

    def ask(self, text, limit=GUARD):
        self.send(text)
        answer = self.line(limit)
        if answer is None:
            raise Failure("%s (pid %d) ended at '%s': %s" % (
                self.argv[0], self.pid, text, brief(self.said())))
        return answer

    def close_input(self):
        with contextlib.suppress(OSError):
            self.popen.stdin.close()

    def wait(self, limit=GUARD):
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
        kill_group(self.popen)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(10)
        self.close_input()
