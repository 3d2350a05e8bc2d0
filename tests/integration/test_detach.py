#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien detach`: processes are as they were before they had the control library."""

import contextlib
import os
import random
import re
import signal
import sys

from lien_test import (
    LIEN, MIB, SEED, Session, alive, at_a_moment, case, check, equal, main, program, wait_for)
from inject import has_library, maps, status
from train_job import SYNC, Train

GLIBCS = 3 << 31  # signals 32 and 33: it takes them with a process's first thread
ROUNDS = int(os.environ.get("DETACH_ROUNDS") or 30)


class Before:
    """What a process has that lien could have given it. What glibc keeps of any thread (a cached
    stack, an arena) is not ours to give back."""

    def __init__(self, pid):
        self.threads = sorted(os.listdir("/proc/%d/task" % pid))
        self.names = sorted(status(pid, "Name", int(tid)) for tid in self.threads)
        self.fds = {}
        for fd in os.listdir("/proc/%d/fd" % pid):
            with contextlib.suppress(OSError):
                what = os.readlink("/proc/%d/fd/%s" % (pid, fd))
                if "/devices/" not in what:  # the software driver's memory
                    self.fds[fd] = what
        self.signals = [int(status(pid, field), 16) & ~GLIBCS
                        for field in ("SigCgt", "SigIgn", "SigPnd", "ShdPnd")]
        self.files = {entry[5] for entry in maps(pid)
                      if len(entry) == 6 and not re.search("libdl|libpthread|/softcuda|devices/", entry[5])}
        self.writable_code = [entry for entry in maps(pid) if "w" in entry[1] and "x" in entry[1]]

    def equals(self, after, but=()):
        for what in ("threads", "names", "fds", "signals", "writable_code"):
            equal(getattr(after, what), getattr(self, what), what)
        equal(sorted(after.files - set(but)), sorted(self.files), "mapped files")


def bare(session, bytes_=4 * MIB, keep=False):
    """A process that was started without `lien run`, with memory whose handle it does not keep, so that
    a restore leaves nothing to be translated; and where that is."""
    driver = session.driver(control=False)
    handle, va = driver("make", bytes_, 0)
    if not keep:
        driver("release", handle)
    driver("fill", va, bytes_, 0x61)
    session.known(driver.pid)
    return driver, va


def detached(session, driver):
    process, = session.ask("detach", driver.pid)["processes"]
    equal((process["pid"], process["error"]), (driver.pid, None), "detached")
    equal(session.process(driver.pid)["control"], "none", "control")
    return process


def move(session, driver, va, bytes_=4 * MIB):
    equal(session.ask("offload", "--owner", "all", "--pid", driver.pid)["bytes"], bytes_, "moved")
    equal(driver.process.popen.poll(), None, "exit status")
    session.ask("restore")
    equal(driver("check", va, bytes_, 0x61), 0, "wrong bytes")


def control_files(pid):
    return {entry[5] for entry in maps(pid) if len(entry) == 6 and "liblien-control" in entry[5]}


@case()
def test_injected():
    """Nothing is left but the library's mapping; it can be attached again, and end well."""
    with Session() as session:
        session.start_agent()
        driver, va = bare(session)
        before = Before(driver.pid)
        for _ in range(3):
            equal(session.ask("attach", driver.pid)["attached"], 1, "attached")
            check(has_library(driver.pid), "it has no library")
            check("lien-control" in Before(driver.pid).names, "it has no control thread")
            detached(session, driver)
            before.equals(Before(driver.pid), but=control_files(driver.pid))
        said = session.lien("detach", "--all")
        equal((said.code, said.out), (0, "no process has a control library that takes orders\n"), "again")
        session.ask("attach", driver.pid)
        said = session.lien("detach", driver.pid).out
        check(re.fullmatch(r"%d prog_driver: detached in [\d.]+ \w+\n" % driver.pid, said), said)
        session.ask("attach", driver.pid)
        move(session, driver, va)
        driver.process.close_input()
        equal(driver.process.wait(), 0, "exit status")


@case()
def test_after_an_offload():
    """Its cached driver functions are its own again, and its host memory is given back."""
    with Session() as session:
        session.start_agent()
        driver, va = bare(session)
        before = Before(driver.pid)
        pointers = slots(driver.pid, "libcuda.so")
        check(pointers, "it has called no function of the driver")
        for _ in range(3):
            session.ask("attach", driver.pid)
            move(session, driver, va)
            check(ours(driver.pid), "nothing is translated")
            check(session.process(driver.pid)["arena_bytes"] >= 4 * MIB, "it has no arena")
            detached(session, driver)
            equal(ours(driver.pid), [], "functions of ours")
            now = slots(driver.pid, "libcuda.so")  # more than before: those that were called since
            equal({place: now.get(place) for place in pointers}, pointers, "functions")
            before.equals(Before(driver.pid), but=control_files(driver.pid))
            equal(session.process(driver.pid)["arena_bytes"], 0, "arena")
            equal(pinned(driver.pid), 0, "pinned host memory")
            # And the functions do what they did.
            handle, other = driver("make", 2 * MIB, 0)
            driver("unmap", other, 2 * MIB)
            driver("release", handle)
            equal(driver("check", va, 4 * MIB, 0x61), 0, "wrong bytes")
        driver.process.close_input()
        equal(driver.process.wait(), 0, "exit status")


def slots(pid, library):
    """Words of the program's own data that point into a library's code: its cached functions, by where
    they are."""
    found, code, data = {}, [], []
    for entry in maps(pid):
        first, last = (int(part, 16) for part in entry[0].split("-"))
        name = entry[5] if len(entry) == 6 else ""
        if "x" in entry[1] and library in name:
            code.append((first, last))
        if name.endswith("/prog_driver") and "x" not in entry[1]:
            data.append((first, last))
    with open("/proc/%d/mem" % pid, "rb") as memory:
        for first, last in data:
            memory.seek(first)
            block = memory.read(last - first)
            for at in range(0, len(block), 8):
                word = int.from_bytes(block[at:at + 8], "little")
                if any(low <= word < high for low, high in code):
                    found[first + at] = word
    return found


def ours(pid):
    return sorted(slots(pid, "liblien-control"))


def pinned(pid):
    """Chunks of the arena are multiples of 16 MiB, not inherited by fork() and in huge pages."""
    total = 0
    with open("/proc/%d/smaps" % pid) as file:
        text = file.read()
    for block in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", text):
        flags = re.search(r"VmFlags: (.*)", block)
        if flags and {"dc", "hg"} <= set(flags[1].split()):
            total += int(re.search(r"Size:\s+(\d+)", block)[1]) << 10
    return total


@case()
def test_preloaded():
    """The library does nothing any more; it can be attached again."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        handle, va = driver("make", 4 * MIB, 0)
        driver("release", handle)
        driver("fill", va, 4 * MIB, 0x61)
        session.ready(driver.pid)
        for _ in range(3):
            move(session, driver, va)
            detached(session, driver)
            after = Before(driver.pid)
            check("lien-control" not in after.names, after.names)
            equal([fd for fd in after.fds if int(fd) >= 900], [], "descriptors")
            equal(after.signals[0] >> 33, 0, "handlers of real-time signals")
            equal(pinned(driver.pid), 0, "pinned host memory")
            # It is woken by nothing.
            other, place = driver("make", 2 * MIB, 0)
            driver("unmap", place, 2 * MIB)
            driver("release", other)
            equal(session.process(driver.pid)["control"], "none", "control after a call")
            attached, = session.ask("attach", driver.pid)["processes"]
            equal((attached["error"], attached["present"]), (None, False), "attached")
        move(session, driver, va)


@case()
def test_remembered():
    """A detached process is not attached by an offload."""
    with Session() as session:
        session.start_agent(attach=True)
        driver, va = bare(session)
        equal(session.ask("offload", "--owner", "all")["bytes"], 4 * MIB, "moved by itself")
        session.refused("detach", "--socket", "/nonexistent", driver.pid)
        session.ask("restore")
        detached(session, driver)
        for _ in range(2):
            session.refused("offload", "--owner", "all", "--pid", driver.pid,
                            text="detached by `lien detach`: `lien attach` gives it the library again")
            equal(session.process(driver.pid)["control"], "none", "control")
            # The next agent sees it as well: the library is there, and at its end.
            session.kill_agent()
            session.start_agent(attach=True)
            session.known(driver.pid)
        session.ask("attach", driver.pid)
        move(session, driver, va)
        # Watched all the time.
        check(session.process(driver.pid)["complete"], "it is not complete")


@case()
def test_transaction_under_way():
    """Detach is refused during a transaction, and possible afterwards."""
    with training(TRAIN_BLOCKS_SIGNALS="1") as (session, job):
        session.ready(*job.pids)
        client = session.spawn([LIEN, "offload", "--timeout", "60000"])
        wait_for("it has begun", lambda: session.ask("status")["transaction"])
        session.refused("detach", job.pids[0], text="a transaction is under way: see `lien status`")
        session.refused("detach", "--all", text="a transaction is under way: see `lien status`")
        session.request('{"op": "cancel"}\n')
        equal(client.wait(), 1, "exit status of the offload")
        equal(session.ask("detach", "--all")["detached"], 2, "detached")


@case()
def test_refused():
    with Session() as session:
        session.start_agent()
        driver, va = bare(session)
        session.refused("detach", 999999, code=2, text="process 999999 is not known")
        session.refused("detach", text="--all", code=2)
        session.refused("detach", "--all", driver.pid, text="--all", code=2)
        session.refused("detach", "12x", text="not a process id", code=2)

        def refused(text):
            said = session.lien("detach", driver.pid)
            equal(said.code, 1, "exit status: %s" % said)
            check(re.search(text, said.out) and said.out.count("\n") < 3, said)
        refused("it has no control library")
        session.ask("attach", driver.pid)
        before = Before(driver.pid)
        session.ask("offload", "--owner", "all")
        refused("offloaded: `lien restore` first")
        equal(session.process(driver.pid)["control"], "ready", "control")
        session.ask("restore")
        # A handle that it keeps has another value now.
        handle, kept = driver("make", 2 * MIB, 0)
        session.ask("offload", "--owner", "all")
        session.ask("restore")
        refused("handles from before a restore")
        equal(session.process(driver.pid)["control"], "ready", "control")
        equal(Before(driver.pid).fds, before.fds, "descriptors")
        session.ask("offload", "--owner", "all")
        session.ask("restore")
        driver("unmap", kept, 2 * MIB)
        driver("release", handle)
        detached(session, driver)
        refused("it is detached already")
        equal(driver("check", va, 4 * MIB, 0x61), 0, "wrong bytes")


@case()
def test_of_another_user():
    with Session() as session:
        session.start_agent()
        driver, _ = bare(session)
        session.ask("attach", driver.pid)
        nobody = ["setpriv", "--reuid", "65534", "--clear-groups", "--inh-caps=-all"]
        os.chmod(session.folder, 0o755)
        process = session.spawn([*nobody, LIEN, "detach", driver.pid])
        check(process.wait() == 2 and "is not known to the agent" in process.said(), process.said())
        process = session.spawn([*nobody, LIEN, "detach", "--all"])
        equal(process.line(), "no process of yours has a control library that takes orders", "--all")
        equal(session.process(driver.pid)["control"], "ready", "control")


@case(600 + ROUNDS, long=True)
def test_many_rounds():
    """Nothing grows: DETACH_ROUNDS of them."""
    with Session() as session:
        agent = session.start_agent()
        driver, va = bare(session)

        def figures(pid):
            with open("/proc/%d/maps" % pid) as file:
                count = len(file.readlines())
            return (len(os.listdir("/proc/%d/task" % pid)), len(os.listdir("/proc/%d/fd" % pid)), count,
                    int(status(pid, "VmSize").split()[0]))
        after = []
        for _ in range(3):  # malloc keeps some
            driver("check", va, 4 * MIB, 0x61)
        for number in range(ROUNDS):
            session.ask("attach", driver.pid)
            detached(session, driver)
            after.append((figures(driver.pid), figures(agent.pid), int(status(agent.pid, "VmRSS").split()[0])))
            if number % 10 == 9:
                equal(driver("check", va, 4 * MIB, 0x61), 0, "wrong bytes")
        for what, part in (("process", 0), ("agent", 1)):
            settled, last = after[min(4, ROUNDS - 1)][part], after[-1][part]
            # A stack that is kept for the next thread is two mappings, and 1 MiB in the process, 8 in the agent.
            check(all(now <= then + slack for then, now, slack in zip(
                settled, last, (2, 2, 6, 3200 if what == "process" else 3 * 8200))), what, settled, last)
        print("   after %d rounds: process %s, agent %s, RSS %d KiB; after 5: %s" % (
            ROUNDS, *after[-1], after[min(4, ROUNDS - 1)]))


@contextlib.contextmanager
def training(**options):
    """A job of two ranks that never pauses, whose results must be right at its end."""
    with Session(memory="512M") as session:
        session.start_agent("--library", SYNC)
        job = Train(session, 2, seed=SEED, **options)
        for pid in job.pids:
            session.known(pid)
        wait_for("it is at work", lambda: job.status()[0][0] > 2)
        yield session, job
        job.stop()
        job.finish()


@case(long=True)
def test_any_moment():
    """At random moments of a job that works, whatever its threads do then."""
    dice = random.Random(SEED)
    with training(control=False) as (session, job):
        count = 0
        for _ in range(12):
            session.ask("attach", *job.pids)
            at_a_moment(dice, 0.03)
            for process in session.ask("detach", "--all")["processes"]:
                equal(process["error"], None, "error")
                count += 1
            at_a_moment(dice, 0.03)
        equal(count, 24, "detached")
        session.ask("attach", *job.pids)
        session.ask("offload", "--retry", "20000")
        session.ask("restore")
        for pid in job.pids:
            said = session.lien("detach", pid)
            check(said.code == 0 or "handles from before a restore" in said.out, said)


@case(long=True)
def test_any_moment_of_lien_run():
    dice = random.Random(SEED)
    with training() as (session, job):
        session.ready(*job.pids)
        for _ in range(8):
            for process in session.ask("detach", *job.pids)["processes"]:
                equal(process["error"], None, "error")
            at_a_moment(dice, 0.03)
            session.ask("attach", *job.pids)
            at_a_moment(dice, 0.03)
        session.ready(*job.pids)


@case(long=True)
def test_threads_that_do_not_wait():
    """Those that run all the time do not hold it up."""
    with Session() as session:
        session.start_agent()
        busy = session.spawn([program("prog_churn"), "2", "150000", "simple"])
        session.known(busy.pid)
        for _ in range(8):
            session.ask("attach", busy.pid)
            process, = session.ask("detach", busy.pid)["processes"]
            equal(process["error"], None, "error")
        check(busy.line(60).startswith("{"), busy.said())
        busy.close_input()
        equal(busy.wait(), 0, "exit status")


def attached_again(session, driver):
    """Someone else may finish the detaching after a kill."""
    wait_for("it is attached", lambda: not session.lien("attach", driver.pid).code)


@case(long=True)
def test_deaths_in_the_middle():
    """Of the client, the agent and the process."""
    dice = random.Random(SEED)
    with Session() as session:
        session.start_agent()
        driver, va = bare(session)
        before = Before(driver.pid)
        for number in range(8):
            attached_again(session, driver)
            client = session.spawn([LIEN, "detach", driver.pid])
            at_a_moment(dice, 0.1)
            if number % 2:
                client.signal(signal.SIGKILL)
            else:
                session.kill_agent()
                session.start_agent()
                session.known(driver.pid)
            client.wait()
            equal(driver("check", va, 4 * MIB, 0x61), 0, "wrong bytes")
            wait_for("it is one or the other", lambda: session.process(driver.pid)["control"] in (
                "ready", "none"))
        attached_again(session, driver)
        detached(session, driver)
        after = Before(driver.pid)
        for what in ("names", "fds", "signals"):
            equal(getattr(after, what), getattr(before, what), what)
        for _ in range(6):
            victim = bare(session)[0]
            session.ask("attach", victim.pid)
            client = session.spawn([LIEN, "detach", victim.pid, driver.pid])
            at_a_moment(dice, 0.06)
            victim.end()
            code = client.wait()
            check(code in (0, 1) or (code == 2 and "process %d is not known" % victim.pid in
                                     client.said()), client.said())
            session.forgotten(victim.pid)
        check(alive(driver.pid), "it was harmed")


if __name__ == "__main__":
    sys.exit(main())
