# SPDX-License-Identifier: BSD-2-Clause
"""The jobs of chaos.py. All of a kind: they rest, and can then be moved, looked at and damaged."""

import contextlib
import os
import signal

from chaos_run import Lost
from faults import Faults
from lien_test import LIEN, MIB, Driver, Failure, Late, alive, check, equal, program, wait_for
from nccl_rank import unique_id
from nccl_ranks import check_values, ranks_of
from train_job import GONE, SYNC, Train


def threads_of(pid):
    """What each thread waits in, for the report of a hang."""
    found = {}
    for tid in os.listdir("/proc/%d/task" % pid):
        with contextlib.suppress(OSError):
            folder = "/proc/%d/task/%s/" % (pid, tid)
            with open(folder + "wchan") as wchan, open(folder + "syscall") as call:
                found[tid] = (wchan.read(), call.read().split()[:3])
    return found


class Kept:
    """A call that a process makes, which may be held until its memory is back, and what undoes it."""

    def __init__(self, driver, command, undo):
        self.driver, self.command, self.undoing, self.answer = driver, command, undo, None
        driver.process.send(command)

    def answered(self):
        if not self.answer:
            with contextlib.suppress(Late):
                self.answer = self.driver.process.line(0.05).split()
        return self.answer

    def undo(self):
        if self.answer[0] == "ok":  # if not: there is no room for its memory, for instance
            self.driver(self.undoing, self.answer[1])


class Holder:
    """Processes that hold memory: each some of its own, and some that another one maps as well: in a
    circle, or the first one's alone, which imports nothing itself."""
    rests = leaves = True

    def __init__(self, session, rng, nranks):
        self.session, self.rng = session, rng
        self.gone = set()  # they run another program
        path = "%s:%s" % (session.environment["LD_LIBRARY_PATH"], os.path.dirname(program("prog_driver")))  # libibverbs
        self.drivers = [Driver(session.spawn([LIEN, "run", "--", program("prog_driver")], LD_LIBRARY_PATH=path))
                        for _ in range(nranks)]
        self.own = [[] for _ in self.drivers]     # (address, bytes, allocation) of each
        self.theirs = [[] for _ in self.drivers]  # the same, imported
        self.owner, self.value, self.handle = {}, {}, {}  # of an allocation
        for number, driver in enumerate(self.drivers):
            driver("init", number % session.device_count)
            for _ in range(rng.randint(1, 3)):
                self._make(number, rng.randint(1, 2) * 2 * MIB)
        circle = rng.random() < 0.5
        for number in range(nranks):
            if circle or number:
                self._share(number if circle else 0, (number + 1) % nranks if circle else number)
        self.faults = [Faults(session, driver.inner_pid) for driver in self.drivers]
        self.refill()

    def _make(self, number, size):
        handle, address = self.drivers[number]("make", size, number % self.session.device_count)
        key = len(self.owner)
        self.owner[key] = number
        self.own[number].append((address, size, key))
        self.handle[key] = handle
        return handle, key

    def _share(self, number, other):
        giver, taker = self.drivers[number], self.drivers[other]
        handle, key = self._make(number, 2 * MIB)
        fd = giver("export", handle)
        mine = taker("getfd", giver.pid, fd)
        taken = taker("import", mine)
        taker("close", mine)
        giver("close", fd)
        address = taker("show", 2 * MIB, taken, other % self.session.device_count)
        self.theirs[other].append((address, 2 * MIB, key))

    def keep(self):
        number = self.rng.randrange(len(self.drivers))
        address, _, key = self.rng.choice(self.own[number])
        command, undo = self.rng.choice([("export %d" % self.handle[key], "close"),
                                         ("ibv-reg %d 4096" % address, "ibv-dereg"),
                                         ("gdr-pin %d 4096" % address, "gdr-unpin")])
        return Kept(self.drivers[number], command, undo)

    @property
    def pids(self):
        return [driver.pid for driver in self.drivers]

    @property
    def living(self):
        return [pid for pid in self.pids if alive(pid) and pid not in self.gone]

    def refill(self):
        for number, mine in enumerate(self.own):
            for address, size, key in mine:
                self.value[key] = self.rng.randint(1, 255)
                self.drivers[number]("fill", address, size, self.value[key])

    def poke(self):
        """A driver call in each: whoever waits for one wakes."""
        for driver in self.drivers:
            if driver.pid in self.living:
                driver("poke")

    def look(self, lost=()):
        """Bytes that are right; lost: processes whose memory the others may have lost."""
        total = 0
        for number, driver in enumerate(self.drivers):
            if driver.pid not in self.living:
                continue
            places = self.own[number] + [
                place for place in self.theirs[number]
                if self.pids[self.owner[place[2]]] not in lost]
            for address, size, key in places:
                ok, found = driver.attempt("check", address, size, self.value[key])
                if not ok or found != [0]:
                    raise Lost("process %d, %#x: %s of %d bytes are not what they were" % (
                        driver.pid, address, found, size))
                total += size
        return total

    def run(self):
        """Some memory goes, and other memory is made, which gets the handles and addresses of that."""
        for number, driver in enumerate(self.drivers):
            shared = {key for theirs in self.theirs for _, _, key in theirs}
            for place in [place for place in self.own[number] if place[2] not in shared]:
                if self.rng.random() < 0.5:
                    continue
                address, size, key = place
                driver("unmap", address, size)
                driver("free", address, size)
                driver("release", self.handle[key])
                self.own[number].remove(place)
                self._make(number, size)
        self.refill()

    def leave(self, number, how):
        """As the rank itself does it, not knowing that its memory is away."""
        driver = self.drivers[number]
        driver(*(("exit", 0) if how == "exit" else (how,)))
        if how == "exit":
            driver.process.wait(20)
        elif how == "exec":
            self.gone.add(driver.pid)

    def said(self):
        return " | ".join(driver.process.said()[-300:] for driver in self.drivers)

    def kill(self, number):
        self.drivers[number].process.signal(signal.SIGKILL)
        self.drivers[number].process.wait()

    def others_end(self, _limit):
        """Its death is none of theirs."""
        return False

    def stop(self):
        for driver in self.drivers:
            check(alive(driver.pid), "process %d has ended: %s" % (
                driver.pid, driver.process.said()[-300:]))

    def end(self):
        for driver in self.drivers:
            driver.end()


class Background:
    """Ranks whose communicators are made and ended in the background."""
    rests, leaves = True, False

    def __init__(self, session, rng, nranks):
        self.rng, self.number = rng, 0
        self.ranks = [session.spawn([LIEN, "run", "--", program("prog_background"), SYNC,
                                     number % session.device_count]) for number in range(nranks)]
        for rank in self.ranks:
            check((rank.line() or "").startswith("ready"), rank.said())
        self._make()
        self.faults = [Faults(session, rank.pid) for rank in self.ranks]

    def _make(self):
        self.number += 1
        group = unique_id(self.rng.randrange(1 << 30))
        for number, rank in enumerate(self.ranks):
            equal(rank.ask("make %s %d %d" % (group, number, len(self.ranks))), "ok 7", "make")

    def _made(self):
        return all(rank.ask("poll") == "ok 0" for rank in self.ranks)

    @property
    def pids(self):
        return [rank.pid for rank in self.ranks]

    @property
    def living(self):
        return [pid for pid in self.pids if alive(pid)]

    def poke(self):
        for rank in self.ranks:
            if alive(rank.pid):
                rank.ask("poll")

    def look(self, lost=()):
        if lost:
            return 0
        try:
            wait_for("the communicators are made", self._made)
        except Late as late:
            raise Late("%s: %s" % (late, [
                (rank.pid, rank.ask("poll"), threads_of(rank.pid)) for rank in self.ranks])) from None
        for rank in self.ranks:
            rank.send("reduce 1")
        for rank in self.ranks:
            if rank.line() != "ok %d" % len(self.ranks):
                raise Lost("process %d has another sum" % rank.pid)
        return 4 * len(self.ranks)

    def run(self):
        """What follows comes while they are made anew."""
        for rank in self.ranks:
            rank.send("destroy")
        for rank in self.ranks:
            equal(rank.line(), "ok 0", "destroy")
        self._make()

    def said(self):
        return " | ".join(rank.said()[-300:] for rank in self.ranks)

    def kill(self, number):
        self.ranks[number].signal(signal.SIGKILL)
        self.ranks[number].wait()

    def others_end(self, _limit):
        return False

    def stop(self):
        for rank in self.ranks:
            check(alive(rank.pid), "process %d has ended: %s" % (rank.pid, rank.said()[-300:]))

    def end(self):
        for rank in self.ranks:
            rank.end()


class Several(Background):
    """Ranks with several communicators, which can come back one after the other."""

    def __init__(self, session, rng, nranks):
        self.numbers = range(rng.randint(2, 5))
        self.callers = ranks_of(session, nranks, comms=len(self.numbers), ready=False)
        self.ranks = [caller.process for caller in self.callers]
        self.faults = [Faults(session, rank.pid) for rank in self.ranks]

    def poke(self):
        pass

    def look(self, lost=()):
        if lost:
            return 0
        try:
            check_values(self.callers, *self.numbers)
        except Failure as failure:
            raise (Lost if "values of" in str(failure) else Failure)(str(failure)) from None
        return 4 * len(self.ranks) * len(self.numbers)

    def run(self):
        self.look()


class Trainer:
    """A training job that rests between the steps of the test, or never."""
    leaves = False

    def __init__(self, session, rng, nranks, rests=True):
        self.session, self.rng, self.rests = session, rng, rests
        self.job = Train(session, nranks, seed=rng.randrange(1 << 32), pace=rng.choice([0, 200, 1000]))
        self.faults = [Faults(session, rank.pid) for rank in self.job.ranks]
        self.mark = 0
        self.seen = 0
        if rests:
            self._rest()

    def _rest(self):
        self.job.pause()
        self.mark = self.rng.randrange(1 << 32)
        self.job.mark(self.mark)

    @property
    def pids(self):
        return self.job.pids

    @property
    def living(self):
        return [pid for pid in self.pids if alive(pid)]

    def poke(self):
        pass

    def _verified(self):
        total = sum(status[2] for status in self.job.status())
        total, self.seen = total - self.seen, total
        return total

    def look(self, lost=()):
        if lost:
            return 0  # they end, all of them
        try:
            return self.job.check(self.mark) if self.rests else self._verified()
        except Failure as failure:
            raise (Lost if "wrong: " in str(failure) else Failure)(str(failure)) from None

    def run(self):
        """Some iterations, at least one."""
        if self.rests:
            before = self.job.status()[0][0]
            self.job.go()
            wait_for("the job goes on", lambda: self.job.status()[0][0] > before)
            self._rest()
            return
        before = min(status[0] for status in self.job.status())
        wait_for("all ranks go on", lambda: min(
            status[0] for status in self.job.status()) > before)

    def said(self):
        return self.job.said()

    def kill(self, number):
        self.job.ranks[number].signal(signal.SIGKILL)
        self.job.ranks[number].wait()

    def others_end(self, limit):
        """The watchdogs of the others say that a peer is gone."""
        for number, rank in enumerate(self.job.ranks):
            code = self.job.ends(number, limit)
            check(code in (GONE, -signal.SIGKILL), "rank %d ended with %s: %s" % (
                number, code, rank.said()[-300:]))
        return True

    def stop(self):
        """To its end: all results of its life are what they must be."""
        if self.rests:
            self.job.go()
        self.job.stop()
        self.job.finish(60)

    def end(self):
        self.job.end()


def any_job(session, rng, lively=False):
    nranks = rng.choice([2, 2, 2, 3, 4, 4, 8])
    if lively:
        return Trainer(session, rng, min(nranks, 4), rests=False)
    kind = rng.random()
    if kind < 0.6:
        return Holder(session, rng, nranks)
    if kind < 0.7:
        return Background(session, rng, min(nranks, 4))
    if kind < 0.8:
        return Several(session, rng, min(nranks, 3))
    return Trainer(session, rng, nranks if rng.random() < 0.3 else min(nranks, 3))
