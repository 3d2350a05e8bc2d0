#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Every driver call that an offload and a restore make fails, and kills its process, once each.

Three processes share memory in every shape (`Job`). First the test counts the calls that the control
library makes in each process; each is a fault point. Then, for each, a transaction meets the fault
(tests/softcuda/fault.h), and the promises are checked: no surviving process has lost a byte, an
address, an access or a reference; what is away comes back; errors name the process and what to do.
"""

import collections
import contextlib
import itertools
import json
import os
import re
import socket
import sys
import time

import faults
from faults import COUNT, DELAY, FAIL, KILL, Faults
from lien_test import (
    IDLE_THREADS, LIEN, MIB, Driver, Failure, Late, Session, alive, brief, came, case, check, equal, main, program,
    start_pairs, wait_for)

PIECE = 2 * MIB
RW, READ = 3, 1
FD = 1
OUT_OF_MEMORY = 2
ROUND_EVERY = 8  # fault points
TRIES = 5  # a drain may take fewer calls than when they were counted
BROKEN_MAX = int(os.environ.get("FAULTS_MAX", "5"))  # so many findings, then it ends
RANGE, MAPPING, HOST_REGISTERED = 2, 3, 12  # enum softcuda_kind


class Rank:
    """A prog_driver that `lien run` started, and its faults."""

    def __init__(self, session, device):
        self.session, self.device = session, device
        self.driver = Driver(session.spawn([LIEN, "run", "--", program("prog_driver")]))
        self.pid, self.take = self.driver.pid, self.driver.take
        self.handles = []  # of what it has not mapped
        self("init", device)
        own = Faults(session, self.driver.inner_pid)
        self.faults = own.record
        self.arm, self.disarm, self.log = own.arm, own.disarm, own.log

    def __call__(self, *words):
        return self.driver(*words)

    def dump(self):
        return json.loads(self.driver.process.ask("dump"))

    def reserve(self, handle, *access):
        """A new mapping of it: access is DEVICE FLAGS, for one device or two."""
        va = self("reserve", PIECE)
        self("map", va, PIECE, handle, 0)
        self("access-two" if len(access) > 2 else "access", va, PIECE, *access)
        return va

    def clear(self):
        """Gives everything back; what is left is none of the program's. What the driver calls a handle is
        not what the program knows it by: that is asked for by address."""
        for handle in self.handles:
            self("release", handle)
        self.handles = []
        for thing in self.dump():
            if thing["kind"] == MAPPING:
                handle = self("retain", thing["va"])
                while self.driver.attempt("release", handle)[0]:
                    pass
                self("unmap", thing["va"], thing["size"])
        for thing in self.dump():
            if thing["kind"] == RANGE:
                self("free", thing["va"], thing["size"])
        left = [thing for thing in self.dump() if thing["kind"] != HOST_REGISTERED]
        equal(left, [], "left in process %d when it gave everything back" % self.pid)


class Job:
    """Three ranks. 0 and 1 export to each other, and so does 0 to 2; 0 maps what it imports twice."""

    def __init__(self, session):
        self.session = session
        self.ranks = [None] * 3
        self.seed = 0
        self.build()

    def build(self):
        for i, rank in enumerate(self.ranks):
            if rank and alive(rank.pid):
                rank.clear()
            else:
                self.ranks[i] = Rank(self.session, min(i, 1))
        self.bytes = {}  # (rank, address): which allocation
        self.owners = {}  # by allocation
        self.fill_ranks()
        self.ready()
        self.before = self.shape()
        self.open = self.descriptors()
        self.refill()

    def fill_ranks(self):
        a, b, c = self.ranks
        mine = a("create", PIECE, 0, FD)  # private, two aliases with different access, 3 references
        first = a.reserve(mine, 0, RW, 1, READ)
        self.bytes[0, first] = self.bytes[0, a.reserve(mine, 0, RW)] = "private of 0"
        a("retain", first)
        a("retain", first)
        shared = a("create", PIECE, 0, FD)  # one export for two, the handle released
        self.bytes[0, a.reserve(shared, 0, RW)] = "shared of 0"
        fd = a("export", shared)
        handle = b.take(a, fd)
        self.bytes[1, b.reserve(handle, 1, RW)] = "shared of 0"
        handle = c.take(a, fd)
        there = c.reserve(handle, 1, RW)
        self.bytes[2, there] = "shared of 0"
        c("retain", there)  # an import with two references
        a("close", fd)
        a("release", shared)
        other = b("create", PIECE, 1, FD)  # access for both devices
        self.bytes[1, b.reserve(other, 1, RW, 0, RW)] = "shared of 1"
        fd = b("export", other)
        handle = a.take(b, fd)  # two aliases of an import, without a handle
        self.bytes[0, a.reserve(handle, 0, RW)] = "shared of 1"
        self.bytes[0, a.reserve(handle, 0, READ)] = "shared of 1"
        a("release", handle)
        b("close", fd)
        alone = c("create", PIECE, 1, FD)  # without a handle
        self.bytes[2, c.reserve(alone, 1, RW)] = "private of 2"
        c("release", alone)
        self.owners = {"private of 0": 0, "shared of 0": 0, "shared of 1": 1, "private of 2": 2}

    def renew(self, warm=True):
        """All anew, whatever has become of them."""
        for rank in self.ranks:
            rank.driver.end()
        self.session.forgotten(*[rank.pid for rank in self.ranks])
        self.build()
        if warm:
            self.round_trip()

    def ready(self):
        def all_ready():
            found = {p["pid"]: p for p in self.ask("ps")["result"]["processes"]}
            late = [rank for rank in self.ranks
                    if rank.pid not in found or found[rank.pid]["control"] != "ready"]
            for rank in late:  # its last call came before the thread could be woken
                rank("free", rank("reserve", PIECE), PIECE)
            return not late
        wait_for("all take orders", all_ready)

    def refill(self):
        """New bytes everywhere, so that old ones show."""
        self.seed += 1
        for number, (name, owner) in enumerate(self.owners.items()):
            va = next(va for (rank, va), what in self.bytes.items()
                      if rank == owner and what == name)
            self.ranks[owner]("fill", va, PIECE, self.value(number))

    def value(self, number):
        return 1 + (self.seed * 5 + number) % 251

    def shape(self, only=None):
        """All that the drivers hold, without what a restore may change: a set of allocations."""
        groups, rest = {}, []
        for i, rank in enumerate(self.ranks):
            if only is not None and i not in only:
                continue
            for thing in rank.dump():
                if thing["kind"] == HOST_REGISTERED:
                    continue
                words = [i, thing["kind"], thing["va"], thing["size"], thing["references"],
                         thing["imported"], thing["location"], thing["access"]]
                if thing["kind"] == RANGE:
                    rest.append(words)
                else:
                    groups.setdefault(thing["number"], []).append(words)
        return sorted(rest), sorted(sorted(group) for group in groups.values())

    def check_bytes(self, lost=()):
        names = list(self.owners)
        for (i, va), name in self.bytes.items():
            if (i, va) in lost or not alive(self.ranks[i].pid):
                continue
            equal(self.ranks[i]("check", va, PIECE, self.value(names.index(name))), 0,
                  "wrong bytes in rank %d at %#x, %s" % (i, va, name))

    def part(self, shape, dead):
        """What survivors have of a shape, by allocation: those of theirs, and those of the dead one."""
        ranges, groups = shape
        own, lost = [], []
        for group in groups:
            rest = [words for words in group if words[0] != dead]
            if rest and len(rest) < len(group) and all(words[5] for words in rest):
                lost.append(rest)  # imported, all of it
            elif rest:
                own.append(rest)
        return [words for words in ranges if words[0] != dead], own, lost

    @staticmethod
    def extra(found, own, lost):
        """What survivors have, and had not."""
        return [group for group in found[1] if group not in own and
                not any(all(words in rest for words in group) for rest in lost)]

    def check_survivors(self, dead, said):
        """All of theirs is there; what the dead one had shared is there, too, or its loss was reported."""
        ranges, own, lost = self.part(self.before, dead)
        left = [i for i in range(3) if i != dead]
        came(lambda: not self.extra(self.shape(left), own, lost), 1)  # a device that is waited for takes memory
        found = self.shape(left)
        equal(found[0], ranges, "reservations of the survivors")
        for group in own:
            check(group in found[1], "survivors have lost", brief(group), "; they have",
                  brief(found[1]))
        gone = set()
        for group in lost:
            for words in group:
                if not any(words in other for other in found[1]):
                    gone.add((words[0], words[2]))
        equal(self.extra(found, own, lost), [], "survivors have what they had not")
        check(not gone or "memory of process %d, which has ended or become another program, is gone for good" %
              self.ranks[dead].pid in said, "lost, and not named:", brief(sorted(gone)), said)
        self.check_bytes(gone)
        return found

    def descriptors(self):
        return [len(os.listdir("/proc/%d/fd" % rank.pid)) for rank in self.ranks]

    def check_whole(self, what):
        came(lambda: self.shape() == self.before, 1)  # references that the driver did not take back at once
        equal(self.shape(), self.before, what)
        equal(self.descriptors(), self.open, "open descriptors " + what)
        self.check_bytes()

    def ask(self, op, **more):
        """The agent's reply."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(self.session.socket)
            connection.sendall((json.dumps({"op": op, **more}) + "\n").encode())
            for line in connection.makefile():
                reply = json.loads(line)
                if "ok" in reply:
                    return reply
        raise Failure("the agent hung up at %s" % op)

    def offload(self):
        return self.ask("offload", owner="all")

    def done(self, op):
        reply = self.ask(op, **({"owner": "all"} if op == "offload" else {}))
        check(reply["ok"] and reply["result"]["outcome"] == "done", "%s: %s" % (op, brief(reply)))
        if op == "offload":
            equal(reply["result"]["left"], [], "left behind by an offload")

    def done_if_any(self, op):
        reply = self.ask(op, **({"owner": "all"} if op == "offload" else {}))
        check(reply["ok"], "%s: %s" % (op, brief(reply)))

    def round_trip(self):
        self.done("offload")
        self.done("restore")
        self.check_whole("after a round")

    def count_once(self):
        found = {}
        for op in ("offload", "restore"):
            for rank in self.ranks:
                rank.arm(COUNT)
            self.done(op)
            for i, rank in enumerate(self.ranks):
                rank.disarm()
                found[i, op] = rank.log()
        self.check_whole("after the count")
        return found

    def count(self, new=False):
        """The calls of each rank in an offload, and in a restore: the fewest of three. A busy machine takes
        some more, since it asks again whether a device is idle. new: the ranks have never been moved."""
        found = []
        for number in range(3):
            if new and number:
                self.renew(warm=False)
            found.append(self.count_once())
        return {key: min((one[key] for one in found), key=len) for key in found[0]}


def open_files(pid):
    """Of what kind they are."""
    found = []
    for fd in os.listdir("/proc/%d/fd" % pid):
        with contextlib.suppress(OSError):
            found.append(os.readlink("/proc/%d/fd/%s" % (pid, fd)).split(":[")[0])
    return sorted(found)


@contextlib.contextmanager
def job(kind=None, memory="64M"):
    with Session(memory=memory) as session:
        faults.folder(session)
        session.start_agent("--no-journal")
        made = (kind or Job)(session)
        before = open_files(session.agent.pid)
        yield made
        try:
            wait_for("the agent has no more open files than at first",
                     lambda: len(open_files(session.agent.pid)) <= len(before) + IDLE_THREADS)
        except Late as late:
            raise Late("%s: at first %s, now %s" % (
                late, before, open_files(session.agent.pid))) from None
        for rank in made.ranks:
            rank.clear()
        session.freed()
        check(session.agent.popen.poll() is None, "the agent died")


class Matrix(Job):
    """Every number of references, aliases, importers and of their references and aliases."""

    def fill_ranks(self):
        a, others = self.ranks[0], self.ranks[1:]
        for references, aliases, access, importers, theirs in itertools.product(
                range(3), range(1, 4), ((0, RW), (0, RW, 1, READ), (0, RW, 1, RW)), range(3),
                range(3)):
            if not importers and theirs:
                continue
            name = str((references, aliases, access, importers, theirs))
            self.owners[name] = 0
            handle = a("create", PIECE, 0, FD)
            for _ in range(aliases):
                first = a.reserve(handle, *access)
                self.bytes[0, first] = name
            for _ in range(references - 1):
                a("retain", first)
            fd = a("export", handle) if importers else None
            if not references:
                a("release", handle)
            for i, rank in enumerate(others[:importers], 1):
                handle = rank.take(a, fd)
                for _ in range(aliases):
                    place = rank.reserve(handle, 1, RW)
                    self.bytes[i, place] = name
                for _ in range(theirs - 1):
                    rank("retain", place)
                if not theirs:
                    rank("release", handle)
            if importers:
                a("close", fd)


class Odd(Job):
    """Memory for which the control library needs mappings of its own: two ranks share some by handles
    alone, and the third one may only read its own."""

    def fill_ranks(self):
        a, b, c = self.ranks
        handle = a("create", PIECE, 0, FD)
        fd = a("export", handle)
        self.unmapped = {0: handle, 1: b.take(a, fd)}
        a("close", fd)
        for i, handle in self.unmapped.items():
            self.ranks[i].handles = [handle]
        self.read_only = c("create", PIECE, 1, FD)
        self.bytes[2, c.reserve(self.read_only, 1, READ)] = "of 2"

    def through(self, number, handle, command, value):
        rank = self.ranks[number]
        return rank.driver.through(handle, PIECE, rank.device, command, self.value(value))

    def refill(self):
        self.seed += 1
        self.through(0, self.unmapped[0], "fill", 0)
        self.through(2, self.read_only, "fill", 1)

    def check_bytes(self, lost=()):
        for i, handle in self.unmapped.items():
            equal(self.through(i, handle, "check", 0), 0, "wrong bytes behind the handle of rank %d" % i)
        for (i, va) in self.bytes:
            equal(self.ranks[i]("check", va, PIECE, self.value(1)), 0,
                  "wrong bytes in rank %d at %#x" % (i, va))


class Points:
    """Fault points, and a whole round after some of them: the next point goes through all calls before it
    as well."""

    def __init__(self, the, warm=True):
        self.the, self.warm = the, warm
        self.total = self.reached = 0
        self.broken = []

    def add(self, what, test):
        """Runs a test at a fault point; it says whether a call was hit."""
        self.total += 1
        began = time.monotonic()
        try:
            hit = test()
            self.reached += bool(hit)
            if not hit:
                print("   %s: no call was hit" % what, flush=True)
            if time.monotonic() - began > 1:
                print("   %s: took %.1f s" % (what, time.monotonic() - began), flush=True)
            if self.warm and self.total % ROUND_EVERY == 0:
                self.the.round_trip()
            return
        except Failure as failure:
            self.broken.append("%s: %s" % (what, failure))
        print("   " + brief(self.broken[-1], 700), flush=True)
        check(len(self.broken) < BROKEN_MAX, "too many to go on")
        self.the.renew(self.warm)

    def end(self):
        print("fault points: %d reached, %d total" % (self.reached, self.total), flush=True)
        equal(self.broken, [], "broken")
        # The last calls of those that were counted may have been made only because the machine was busy.
        check(self.total - self.reached <= max(self.total // 50, 1), "fault points reached: %d of %d" % (
            self.reached, self.total))


def one_line(text, *pids):
    check("\n" not in text, "not one line: %s" % text)
    check(not pids or any("process %d" % pid in text for pid in pids), "names no process: " + text)


def fail_in_offload(the, rank, nth, times):
    for _ in range(TRIES):
        rank.arm(FAIL, nth, times)
        reply = the.offload()
        hit = rank.disarm()
        if hit or not reply["ok"]:
            break
        the.done("restore")
    if not hit and reply["ok"]:
        return False
    check(hit, "no call was hit: %s; %s" % (brief(reply), rank.log()[-3:]))
    if reply["ok"]:
        the.done("restore")
    else:
        one_line(reply["error"], rank.pid)
        if "putting it back failed as well: `lien restore`" in reply["error"]:
            the.done("restore")
        else:
            check(re.search("nothing was moved|everything was put back", reply["error"]),
                  "does not say how it stands: " + reply["error"])
    the.check_whole("after a failed offload (%s)" % (reply.get("error") or "done"))
    return hit


def fail_in_restore(the, rank, nth, times):
    the.done("offload")
    rank.arm(FAIL, nth, times)
    reply = the.ask("restore")
    hit = rank.disarm()
    check(hit, "no call was hit: %s; %s" % (brief(reply), rank.log()[-3:]))
    if not reply["ok"]:
        one_line(reply["error"], rank.pid)
        check("nothing is lost: `lien restore` again" in reply["error"],
              "does not say how to go on: " + reply["error"])
        the.done("restore")
    the.check_whole("after a failed restore (%s)" % (reply.get("error") or "done"))
    return hit


def every_failure(times, name, kind=None, step=1):
    """step: 8 fails every eighth call, which `make check` has time for."""
    with job(kind) as the:
        the.round_trip()  # the first one pins memory
        calls = the.count()
        points = Points(the)
        for (i, op), log in calls.items():
            test = fail_in_offload if op == "offload" else fail_in_restore
            for nth, function in list(enumerate(log, 1))[step // 2::step]:
                what = "rank %d, %s, call %d of %d (%s) fails%s" % (
                    i, op, nth, len(log), function, name)
                points.add(what, lambda i=i, n=nth, t=test: t(the, the.ranks[i], n, times))
                the.refill()
        the.round_trip()
        points.end()


def killed(the, i, op, nth):
    """Rank i dies; how it is afterwards with the others. The rank must be new."""
    rank, left = the.ranks[i], [j for j in range(3) if j != i]
    for _ in range(TRIES):
        if op == "restore":
            the.done("offload")
        rank.arm(KILL, nth)
        reply = the.ask(op, owner="all") if op == "offload" else the.ask(op)
        if rank.disarm() or not reply["ok"]:  # otherwise it took fewer calls than that
            break
        if op == "offload":
            the.done("restore")
    if not rank.faults.hit and reply["ok"]:
        return False
    check(rank.faults.hit, "no call was hit: %s; %s" % (brief(reply), rank.log()[-3:]))
    rank.driver.process.wait(5)
    said = "" if reply["ok"] else reply["error"]
    if said:
        one_line(said, rank.pid)
    # Either all is back already, or this brings it.
    reply = the.ask("restore")
    if not reply["ok"]:
        said += "; restore: " + reply["error"]
        check("is gone for good" in reply["error"], said)
    found = the.check_survivors(i, said)
    the.done_if_any("offload")
    the.done_if_any("restore")
    equal(the.shape(left), found, "what survivors have after another round")
    the.build()
    return rank.faults.hit


def every_death(step):
    with job() as the:
        calls = the.count(new=True)
        the.renew(warm=False)
        points = Points(the, warm=False)
        for (i, op), log in calls.items():
            for nth, function in list(enumerate(log, 1))[step // 2::step]:
                what = "rank %d is killed at call %d of %d of its %s (%s)" % (
                    i, nth, len(log), op, function)
                points.add(what, lambda i=i, op=op, n=nth: killed(the, i, op, n))
                the.refill()
            the.renew(warm=False)
        the.round_trip()
        points.end()


@case(long=True)
def test_every_call_kills():
    every_death(1)


@case()
def test_every_eighth_call_kills():
    every_death(8)


@case()
def test_every_eighth_call_fails_once():
    every_failure(1, "", step=8)


@case(long=True)
def test_every_eighth_call_fails_and_all_after_it():
    every_failure(0, ", and all after it", step=8)


@case(long=True)
def test_every_call_fails_once():
    every_failure(1, "")


@case(long=True)
def test_every_call_fails_and_all_after_it():
    every_failure(0, ", and all after it")


@case(long=True)
def test_every_call_fails_for_mappings_of_our_own():
    every_failure(0, ", and all after it", Odd)


# What is asked for only the first time, when nothing is pinned yet

@case(long=True)
def test_exact_after_a_restore():
    """As the driver has it: references, aliases, access lists, imports, descriptors, bytes."""
    with job(Matrix, "1G") as the:
        for _ in range(2):
            the.refill()
            the.round_trip()


@case()
def test_first_calls_fail():
    with job() as the:
        points = Points(the, warm=False)
        for i in range(3):
            for function, refused in (("cuMemHostRegister_v2", True),
                                      ("cuThreadExchangeStreamCaptureMode", False)):
                def attempt(rank=the.ranks[i], function=function, refused=refused):
                    rank.arm(FAIL, function=function)
                    reply = the.offload()
                    hit = rank.disarm()
                    check(not refused or not reply["ok"], "not refused: " + brief(reply))
                    if not reply["ok"]:
                        one_line(reply["error"], rank.pid)
                        check("nothing was moved" in reply["error"], reply["error"])
                    else:
                        the.done("restore")
                    the.check_whole("after the first offload")
                    return hit
                points.add("rank %d, %s fails" % (i, function), attempt)
                the.renew(warm=False)
        points.end()


# Late

@case(long=True)
def test_delays():
    """Shorter than the limit: nobody notices. Longer: the offload is refused, and the job runs on."""
    with job() as the:
        the.round_trip()
        calls = the.count()
        for (i, op), log in calls.items():
            for nth in range(1, len(log) + 1, 7):
                if op == "restore":
                    the.done("offload")
                the.ranks[i].arm(DELAY, nth, delay_ms=30)
                the.done(op)
                check(the.ranks[i].disarm(), "no call was hit")
                if op == "offload":
                    the.done("restore")
                the.check_whole("after a delay in %s of rank %d" % (log[nth - 1], i))
        for rank in the.ranks:
            rank.arm(DELAY, delay_ms=1500, function="cuCtxSynchronize")
            reply = the.ask("offload", owner="all", timeout_ms=200)
            check(not reply["ok"] and "process %d, drain: the device is still busy" % rank.pid in
                  reply["error"] and "the job runs on" in reply["error"], brief(reply))
            check(rank.disarm(), "no call was hit")
            wait_for("the call that took long has ended", lambda: the.shape() == the.before)
            the.check_whole("after a drain that took too long")
            the.round_trip()


@case()
def test_no_answer():
    """A control library that hangs in a call: it is given up and named, and goes on when it wakes."""
    with job() as the:
        the.round_trip()
        rank = the.ranks[1]
        rank.arm(DELAY, delay_ms=11500, function="cuMemGetAccess")  # the agent waits 10 s
        reply = the.offload()
        check(not reply["ok"] and "process %d did not answer `check`" % rank.pid in reply["error"]
              and "nothing was moved" in reply["error"], brief(reply))
        equal(the.shape(), the.before, "while it hangs")
        check(rank.disarm(), "no call was hit")

        def offloaded():  # its answers to the old orders come before
            reply = the.offload()
            if not reply["ok"]:
                one_line(reply["error"])
            return reply["ok"]
        wait_for("it is moved once it has woken", offloaded, step=0.1)
        the.done("restore")
        the.check_whole("after it has woken")


# No room

def hog_of(session, device, free):
    """Fills a device, except for that many bytes."""
    hog = session.driver(control=False, device=device)
    hog("alloc", hog("info", device)[0] - free)
    return hog


@case()
def test_device_is_filled_meanwhile():
    with job() as the:
        the.round_trip()
        rank = the.ranks[0]
        alone = the.session.driver(device=1)  # another job
        _, place = alone("make", PIECE, 1)
        alone("fill", place, PIECE, 0x5a)
        the.session.ready(alone.pid)
        the.done("offload")
        hog = hog_of(the.session, 0, PIECE)
        for again in range(2):
            reply = the.ask("restore")
            check(not reply["ok"], "a restore without room: " + brief(reply))
            equal(reply["error"],
                  "device 0 of process %d needs 4.0 MiB and has 2.0 MiB free: free 2.0 MiB there; "
                  "nothing is lost: `lien restore` again once that is mended" % rank.pid, "error")
            equal(the.session.used(1), PIECE, "that which has room is back, and nothing else is")
            equal(alone("check", place, PIECE, 0x5a), 0, "wrong bytes of the other job")
        hog.end()
        the.done("restore")
        the.check_whole("when there is room again")
        alone.end()
        the.round_trip()


@case()
def test_device_is_filled_for_several():
    """Each would find room, but not both."""
    with job() as the:
        the.round_trip()
        the.done("offload")
        hog = hog_of(the.session, 1, PIECE)
        reply = the.ask("restore")
        check(re.fullmatch("device 1 of process %d and 1 more needs 4.0 MiB and has 2.0 MiB free: "
                           "free 2.0 MiB there; nothing is lost: .*" % the.ranks[1].pid,
                           reply.get("error", "")), brief(reply))
        equal(the.session.used(0), 0, "made on the other device")
        hog.end()
        the.done("restore")
        the.check_whole("when there is room again")


@case()
def test_out_of_memory_at_create():
    """Somebody else took the room: once, it is tried again; for good, it is reported, and a later restore works."""
    with job() as the:
        the.round_trip()
        for i, rank in enumerate(the.ranks):
            the.done("offload")
            rank.arm(FAIL, function="cuMemCreate", result=OUT_OF_MEMORY)
            the.done("restore")
            check(rank.disarm(), "no call was hit")
            the.check_whole("after it was tried again, rank %d" % i)
            the.done("offload")
            rank.arm(FAIL, times=0, function="cuMemCreate", result=OUT_OF_MEMORY)
            reply = the.ask("restore")
            check(rank.disarm(), "no call was hit")
            check(not reply["ok"] and "process %d, create: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY" %
                  rank.pid in reply["error"] and "nothing is lost" in reply["error"], brief(reply))
            the.done("restore")
            the.check_whole("when there is room again, rank %d" % i)


@case(long=True)
def test_device_is_filled_during_the_restore():
    """There was room when the driver was asked, and there is none when the memory is made."""
    with job() as the:
        the.round_trip()
        the.done("offload")
        rank = the.ranks[0]
        rank.arm(DELAY, delay_ms=1500, function="cuMemCreate")
        with contextlib.ExitStack() as stack:
            client = the.session.spawn([LIEN, "restore"])
            stack.callback(client.end)
            wait_for("it creates", lambda: rank.faults.hit)
            hog = hog_of(the.session, 0, PIECE)
            equal(client.wait(20), 1, "exit status of the restore")
            check("device 0 of process %d needs 2.0 MiB and has 0 free: free 2.0 MiB there; "
                  "nothing is lost" % rank.pid in client.said(), client.said())
        rank.disarm()
        hog.end()
        the.done("restore")
        the.check_whole("when there is room again")
        the.round_trip()


def inner_pid(pid):
    """In the process's own namespace."""
    with open("/proc/%d/status" % pid, encoding="ascii") as status:
        return int(re.search(r"^NSpid:.*\s(\d+)$", status.read(), re.M)[1])


def calls_of_two(pairs):
    """What the control libraries of two ranks call, in an offload and in a restore: how often each."""
    with Session() as session:
        faults.folder(session)
        session.start_agent()
        job = start_pairs(session, pairs)
        session.ready(*job.ranks)
        inner = [inner_pid(pid) for pid in job.ranks]
        found = []
        for operation in ("offload", "restore"):
            records = [Faults(session, pid) for pid in inner]
            for record in records:
                record.arm(COUNT)
            session.ask(operation)
            counted = collections.Counter()
            for record in records:
                record.disarm()
                counted.update(record.log())
            found.append(counted)
        return found


@case(long=True)
def test_calls_for_each_buffer():
    """Of each buffer that one rank shares with the other: what both call for it, and nothing else. Access is set once
    for all devices, and contexts are changed once for all buffers."""
    few, many = calls_of_two(4), calls_of_two(20)
    buffers = 2 * (20 - 4)
    expected = ({"cuMemRetainAllocationHandle": 2, "cuMemGetAddressRange_v2": 2, "cuMemGetAccess": 2,
                 "cuMemGetAllocationPropertiesFromHandle": 1, "cuMemcpyDtoHAsync_v2": 1, "cuMemUnmap": 2,
                 "cuMemRelease": 4},
                {"cuMemCreate": 1, "cuMemMap": 2, "cuMemSetAccess": 2, "cuMemRetainAllocationHandle": 1,
                 "cuMemcpyHtoDAsync_v2": 1, "cuMemExportToShareableHandle": 1,
                 "cuMemImportFromShareableHandle": 1, "cuMemRelease": 1})
    for first, then, calls in zip(few, many, expected):
        # A job may take some rounds more to come to rest: these are a few calls in all.
        grown = {name: (then[name] - first[name]) / buffers for name in then}
        equal({name: count for name, count in grown.items() if abs(count) > 0.9}, calls, "calls of a buffer")


@case()
def test_errors_have_names():
    """A driver that is shutting down has no names for errors, and the process is ending."""
    ending, unnamed = 4, 12345
    with Session() as session:
        faults.folder(session)
        session.start_agent("--no-journal")
        driver = session.driver()
        driver("make", PIECE, 0)
        session.ready(driver.pid)
        fault = Faults(session, driver.pid)
        for function, result, text in (
                ("cuCtxSynchronize", ending, "drain: waiting for the devices: the process is ending"),
                ("cuStreamSynchronize", ending, "save: copy to the host: the process is ending"),
                ("cuCtxSynchronize", unnamed, "drain: waiting for the devices: CUDA error 12345")):
            fault.arm(FAIL, times=0, function=function, result=result)
            session.refused("offload", "--owner", "all", text=text)
            check(fault.disarm(), function, "was not called")
        equal(session.ask("offload", "--owner", "all")["bytes"], PIECE, "moved")
        session.ask("restore")


if __name__ == "__main__":
    sys.exit(main())
