# SPDX-License-Identifier: BSD-2-Clause
"""Cases with a time limit, a line for each, and namespaces for all that they start.

All of it runs in a pid and mount namespace of its own, so that our agents see our processes only,
and nothing stays behind: test programs may run beside each other. Agents of the namespace that we come
from still see ours, take their answers and wake them: cases wait for such foreign agents to end, and
are run again when one came while they ran and they failed.
"""

import argparse
import contextlib
import ctypes
import inspect
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

from lien_shared.process import Failure, Late, Skipped, brief

MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
# What a test draws follows from it: the same in every `make check`, another one in each `make check-long`.
SEED = int(os.environ.get("LIEN_SEED") or 1)
LONG = bool(os.environ.get("LONG"))  # `make check-long`: the long cases, else the others
FOREIGN_WAIT_S = float(os.environ.get("FOREIGN_WAIT_S", "120"))
NOTHING = 78  # exit status: there is no case of that kind
OUTSIDE = None  # where /proc of the namespace is that we came from


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


def wait_for_foreign():
    end = time.monotonic() + FOREIGN_WAIT_S
    while foreign_agents() and time.monotonic() < end:
        time.sleep(0.1)


# Cases

_cases = []


def case(limit=60, long=False):
    """A test: a function without arguments that raises when it fails. limit: seconds, a guard against hanging.
    long: of `make check-long` (CONTRIBUTING.md says which are). A test program runs its own cases, and not those
    of another one from which it imports."""
    def add(function):
        if inspect.signature(function, follow_wrapped=False).parameters:
            raise TypeError("%s() is no case: cases take no arguments" % function.__name__)
        if function.__module__ == "__main__":
            _cases.append((function.__name__.removeprefix("test_"), function, limit, long))
        return function
    return add


def _without_case():
    """Names of test functions that nothing would run."""
    cases = {function for _, function, _, _ in _cases}
    return sorted(name for name, value in vars(sys.modules["__main__"]).items()
                  if name.startswith("test_") and inspect.isfunction(value) and
                  value.__module__ == "__main__" and value not in cases)


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
    except Skipped:
        raise
    except Exception as error:  # pylint: disable=broad-except
        traceback.print_exc(file=sys.stdout)
        return "%s: %s" % (type(error).__name__, error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def _run_case(name, function, limit):
    """"passed", "failed" or "skipped"."""
    for tries in (1, 2, 3):
        wait_for_foreign()
        began = time.monotonic()
        with _Watch() as watch:
            try:
                why = _attempt(function, limit)
            except Skipped as skipped:
                print("skipped %s: %s" % (name, skipped), flush=True)
                return "skipped"
        took = time.monotonic() - began
        if why is None:
            print("ok %s (%.1f s)" % (name, took), flush=True)
            return "passed"
        if not watch.seen or tries == 3:
            break
        print("   %s: again, another agent ran (pid %s) when it failed: %s" % (
            name, ", ".join(map(str, sorted(watch.seen))), brief(why, 200)), flush=True)
    print("FAILED %s: %s (LIEN_SEED=%d)" % (name, why, SEED), flush=True)
    return "failed"


def _mount(libc, source, target, kind, flags):
    if libc.mount(source, target, kind, flags, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def enter(own=()):
    """Goes on in namespaces of its own; what is left of this process waits, and exits like it. own: folders of
    libraries, of which it has copies in the same places. Probes belong to inodes: those of one test's agent then
    trap in no process of another test, nor wait for each other."""
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
    for number, path in enumerate(own):
        copy = shutil.copytree(path, os.path.join(folder, "own-%d" % number), symlinks=True)
        _mount(libc, copy.encode(), path.encode(), None, MS_BIND)
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


def main(needs=(), agents=True, end=None, own=()):
    """Runs the cases; the exit code. needs: files that must be there. agents: some of them start one. end:
    is called after the last case, and may raise what is wrong then. own: see enter()."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[], metavar="NAME",
                        help="only these cases, long or not; a part of the name will do")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    forgotten = _without_case()
    if forgotten:
        print("without @case: " + ", ".join(forgotten))
        return 1
    chosen = [entry for entry in _cases
              if any(part in entry[0] for part in options.only) or not options.only and entry[3] == LONG]
    if options.list:
        print("\n".join(entry[0] for entry in chosen))
        return 0
    if not chosen:
        return NOTHING
    for path in needs:
        if not os.path.exists(path):
            print("%s is not there: run make" % path)
            return 1
    if agents and os.geteuid():
        print("skipped: the agent needs root")
        return 77
    if agents:
        enter(own)
    results = []
    began = time.monotonic()
    for name, function, limit, _ in chosen:
        results.append(_run_case(name, function, limit))
    passed, failed, skipped = map(results.count, ("passed", "failed", "skipped"))
    try:
        if end:
            end()
    except Failure as failure:
        failed += 1
        print("FAILED the end: %s" % failure)
    print("%.0f s" % (time.monotonic() - began))
    print("%d passed, %d failed%s" % (passed, failed, ", %d skipped" % skipped if skipped else ""))
    return 1 if failed else 0
