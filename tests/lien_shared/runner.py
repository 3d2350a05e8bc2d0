# SPDX-License-Identifier: BSD-2-Clause
"""Cases with a time limit, a line for each, and namespaces for all that they start.

All of it runs in a pid and mount namespace of its own, so that our agents see our processes only,
and nothing stays behind: test programs may run beside each other. An agent of the machine would see our
processes as well, take their answers and wake them: beside one no test begins.
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
import time
import traceback

from lien_shared.process import Failure, Late, Skipped

MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
# What a test draws follows from it: the same in every `make check`, another one in each `make check-long`.
SEED = int(os.environ.get("LIEN_SEED") or 1)
LONG = bool(os.environ.get("LONG"))  # `make check-long`: the long cases, else the others
NOTHING = 78  # exit status: there is no case of that kind


def agents_of_the_machine():
    """The pids of agents that would see our processes. Those of other tests, in namespaces beside ours, would not."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            # Its name first: a process can keep readers of its command line waiting.
            with open("/proc/%s/comm" % entry, "rb") as file:
                if file.read() != b"lien\n":
                    continue
            with open("/proc/%s/cmdline" % entry, "rb") as file:
                words = file.read().split(b"\0")
            with open("/proc/%s/status" % entry) as status:
                pids = [line.split()[1:] for line in status if line.startswith("NSpid:")][0]
        except OSError:
            continue
        if words[1:2] == [b"agent"] and len(pids) == 1:
            found.append(int(entry))
    return found


# Cases

_cases = []


def case(limit=600, long=False):
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
    began = time.monotonic()
    try:
        why = _attempt(function, limit)
    except Skipped as skipped:
        print("skipped %s: %s" % (name, skipped), flush=True)
        return "skipped"
    if why is None:
        print("ok %s (%.1f s)" % (name, time.monotonic() - began), flush=True)
        return "passed"
    print("FAILED %s: %s (LIEN_SEED=%d)" % (name, why, SEED), flush=True)
    return "failed"


def _mount(libc, source, target, kind, flags):
    if libc.mount(source, target, kind, flags, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def enter(own=()):
    """Goes on in namespaces of its own; what is left of this process waits, and exits like it. own: folders of
    libraries, of which it has copies in the same places. Probes belong to inodes: those of one test's agent then
    trap in no process of another test, nor wait for each other."""
    others = agents_of_the_machine()
    if others:
        sys.exit("an agent runs on this machine (process %s) and would take part: stop it first" %
                 ", ".join(map(str, others)))
    libc = ctypes.CDLL(None, use_errno=True)
    folder = tempfile.mkdtemp(prefix="lien-test-")
    os.chmod(folder, 0o755)  # for processes of other users
    if libc.unshare(CLONE_NEWNS | CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))
    if libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        sys.exit("mounts cannot be kept apart here (%s): in a chroot, its folder must be a mount point (`mount --bind "
                 "DIR DIR` before `chroot DIR`)" % os.strerror(ctypes.get_errno()))
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
    tempfile.tempdir = folder  # all that we leave in files goes with it


def main(needs=(), begin=enter, end=None):
    """Runs the cases; the exit code. needs: files that must be there. begin: is called before the first case, as
    root; None: the cases need neither root nor an agent. end: is called after the last case, and may raise what
    is wrong then."""
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
    if begin and os.geteuid():
        print("skipped: the agent needs root")
        return 77
    if begin:
        begin()
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
