#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Adoption: memory that was there before the agent is moved like any other once `lien attach` has found
out which references are held to it and who imported it from whom."""

import os
import random
import signal
import sys

import faults
from faults import COUNT, DELAY, FAIL, KILL, Faults
from lien_test import (
    LIEN, MIB, SEED, SOFTNCCL, Session, alive, case, check, equal, main, program, stays,
    wait_for)

SIZE = 2 * MIB


class Pair:
    """An owner and an importer that have shared memory before there is an agent."""

    def __init__(self, session, count=3):
        self.session = session
        self.owner, self.importer = (session.driver(control=False) for _ in range(2))
        self.handles, self.places, self.taken, self.views = [], [], [], []
        for i in range(count):
            handle, va = self.owner("make", SIZE, 0)
            self.owner("fill", va, SIZE, 0x40 + i)
            fd = self.owner("export", handle)
            taken = self.importer.take(self.owner, fd)
            self.owner("close", fd)
            self.handles.append(handle)
            self.places.append(va)
            self.taken.append(taken)
            self.views.append(self.importer("show", SIZE, taken, 0))

    @property
    def pids(self):
        return [self.owner.pid, self.importer.pid]

    def verify(self):
        for i, (va, view) in enumerate(zip(self.places, self.views)):
            equal(self.owner("check", va, SIZE, 0x40 + i), 0, "wrong bytes at the owner, %d" % i)
            equal(self.importer("check", view, SIZE, 0x40 + i), 0, "wrong bytes at the importer, %d" % i)

    def shared(self):
        """What one writes, the other reads."""
        for i, (va, view) in enumerate(zip(self.places, self.views)):
            self.importer("fill", view, SIZE, 0x70 + i)
            equal(self.owner("check", va, SIZE, 0x70 + i), 0, "not shared any more, %d" % i)
            self.owner("fill", va, SIZE, 0x40 + i)
        self.verify()


def known(session, *pids):
    for pid in pids:
        wait_for("%d is known" % pid, lambda pid=pid: session.process(pid))


def references(driver, handle):
    """How many can be given back."""
    count = 0
    while count < 20 and driver.attempt("release", handle)[0]:
        count += 1
    return count


def rounds(session, pair, count=3, moved=3 * SIZE):
    for _ in range(count):
        answer = session.ask("offload", "--owner", "all")
        equal((answer["bytes"], answer["left"]), (moved, []), "moved")
        equal(session.used(), 0, "device memory in use")
        session.ask("restore")
        pair.verify()


@case()
def test_owners_are_found():
    with Session() as session:
        pair = Pair(session)
        session.start_agent()
        known(session, *pair.pids)
        answer = session.ask("attach", "--all")
        adoption = answer["adoption"]
        equal((adoption["error"], adoption["matched"], adoption["unmatched"], adoption["marked"],
               adoption["disputed"], adoption["outsider"]), (None, 3, 0, 3, 0, None), "adoption")
        check(adoption["pause_ms"] > 0, adoption)
        equal([(p["complete"], p["error"], p["mappings"]) for p in answer["processes"]],
              [(True, None, 3)] * 2, "processes")
        pair.verify()  # the marks are gone
        for va, view in zip(pair.places, pair.views):
            holders = session.ask("holders", pair.importer.pid, hex(view))
            equal(holders["allocation"]["pid"], pair.owner.pid, "owner")
        rounds(session, pair)
        pair.shared()
        check("info: adoption: 2 processes in " in session.agent.said(), session.agent.said())
        again = session.ask("attach", "--all")
        equal((again["processes"], again["adoption"]), ([], None), "a second time")
        check("nothing to attach: 2 processes that use CUDA have" in session.lien("attach", "--all").out, "words")
        said = session.lien("offload").out  # NCCL's
        check("6.0 MiB in 3 allocations, all movable" in said and "--owner unknown" in said, said)
        equal(session.ask("offload", "--owner", "unknown")["bytes"], 3 * SIZE, "by no name")
        session.ask("restore")


@case()
def test_access_for_a_device_that_is_not_used():
    """As ncclMemAlloc() gives it: to all devices, of which a rank has a context on its own alone."""
    with Session() as session:
        owner, importer = (session.driver(control=False, device=1) for _ in range(2))
        handle, va = owner("make", SIZE, 1)
        fd = owner("export", handle)
        taken = importer.take(owner, fd)
        owner("close", fd)
        view = importer("show", SIZE, taken, 1)
        for driver, address in (owner, va), (importer, view):
            driver("access-two", address, SIZE, 0, 3, 1, 3)
        owner("fill", va, SIZE, 0x40)
        session.start_agent()
        known(session, owner.pid, importer.pid)
        adoption = session.ask("attach", "--all")["adoption"]
        equal((adoption["error"], adoption["matched"], adoption["unmatched"]), (None, 1, 0), "adoption")
        answer = session.ask("offload", "--owner", "all")
        equal((answer["bytes"], answer["left"], session.used()), (SIZE, [], 0), "moved")
        session.ask("restore")
        for driver, address in (owner, va), (importer, view):
            equal(driver("check", address, SIZE, 0x40), 0, "wrong bytes")


@case()
def test_by_the_first_offload():
    """Nobody has to attach: an offload does, and brings the job back to where it was."""
    with Session() as session:
        pair = Pair(session)
        session.start_agent(attach=True)
        known(session, *pair.pids)
        equal([session.process(pid)["control"] for pid in pair.pids], ["none"] * 2, "control")
        rounds(session, pair, 2)
        equal([session.process(pid)["complete"] for pid in pair.pids], [True] * 2, "complete")
        session.lien("detach", "--all")
        pair.shared()


@case()
def test_offload_cancelled_before_it_begins():
    """While it still attaches and looks for owners."""
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        pair = Pair(session)
        session.start_agent(attach=True)
        known(session, *pair.pids)
        open(busy, "w").close()
        offload = session.spawn([LIEN, "offload", "--owner", "all"])
        wait_for("it looks for owners", lambda: (session.ask("status")["transaction"] or {}).get(
            "kind") == "adoption")
        offload.signal(signal.SIGINT)
        wait_for("it is said", lambda: "cancelling;" in offload.said())
        os.unlink(busy)
        equal(offload.wait(30), 1, "exit status")
        check(offload.said().endswith("lien offload: cancelled; nothing was moved, the job runs on\n"), offload.said())
        pair.verify()
        rounds(session, pair, 1)


@case()
def test_while_it_works():
    """Beside processes that never rest: whether or not they rest long enough to be read, nobody is harmed."""
    with Session() as session:
        pair = Pair(session, 2)
        churn = [session.spawn([program("prog_churn"), 2, 100000000, *more]) for more in ([], ["imports"])]
        session.start_agent()
        known(session, *pair.pids, *[process.pid for process in churn])
        for _ in range(6):
            print(session.lien("attach", "--all").out, flush=True)
            pair.verify()
            for process in churn:
                check(process.popen.poll() is None, process.said())
        print(session.lien("ps").out)
        for process in churn:
            process.end()
        session.ask("attach", "--all")
        rounds(session, pair, 2, 2 * SIZE)


@case()
def test_references_are_counted():
    """As many as before can be given back after a restore, and no more."""
    with Session() as session:
        pair = Pair(session, 4)
        pair.owner("retain", pair.places[1])
        pair.owner("retain", pair.places[1])
        pair.owner("release", pair.handles[2])
        pair.importer("release", pair.taken[2])
        pair.importer("retain", pair.views[3])
        session.start_agent()
        known(session, *pair.pids)
        adoption = session.ask("attach", "--all")["adoption"]
        equal((adoption["error"], adoption["counted"], adoption["matched"]), (None, 8, 4), "adoption")
        rounds(session, pair, 1, 4 * SIZE)
        for driver, places, want in ((pair.owner, pair.places, (1, 3, 0, 1)),
                                     (pair.importer, pair.views, (1, 1, 0, 2))):
            for va, expected in zip(places, want):
                handle = driver("retain", va)
                equal(references(driver, handle) - 1, expected, "references")
        pair.verify()
        for va in pair.places:
            pair.owner("unmap", va, SIZE)
        for va in pair.views:
            pair.importer("unmap", va, SIZE)
        equal(session.used(), 0, "device memory in use")


@case()
def test_one_rank_is_not_enough():
    """A process that was not read may have imported exportable memory: that stays, and the process is named."""
    with Session() as session:
        pair = Pair(session)
        private = session.driver(control=False)
        session.start_agent()
        known(session, *pair.pids)
        said = session.lien("attach", pair.owner.pid).out
        check("owners were not looked for" in said, said)
        answer = session.ask("offload", "--owner", "all")
        equal(answer["bytes"], 0, "moved")
        check([left for left in answer["left"] if left["holder"] in (pair.importer.pid, private.pid) and
               "lien attach" in left["reason"]], answer["left"])
        pair.verify()
        # What it makes from now on is its own business.
        _, va = pair.owner("make", SIZE, 0)
        pair.owner("fill", va, SIZE, 0x11)
        equal(session.ask("offload", "--owner", "all")["bytes"], SIZE, "moved")
        session.ask("restore")
        equal(pair.owner("check", va, SIZE, 0x11), 0, "wrong bytes")
        adoption = session.ask("attach", "--all")["adoption"]
        equal((adoption["matched"], adoption["outsider"]), (3, None), "all of them")
        rounds(session, pair, 1, 4 * SIZE)
        pair.shared()


@case()
def test_what_nobody_owns():
    """What two processes imported from an owner that has exited stays, and nothing else does."""
    with Session() as session:
        pair, gone = Pair(session), session.driver(control=False)
        handle, _ = gone("make", SIZE, 0)
        fd = gone("export", handle)
        orphans = [(driver, driver("show", SIZE, driver.take(gone, fd), 0)) for driver in (pair.owner, pair.importer)]
        pair.importer("fill", orphans[1][1], SIZE, 0x66)
        gone.end()
        session.start_agent()
        known(session, *pair.pids)
        answer = session.ask("attach", "--all")
        equal((answer["adoption"]["matched"], answer["adoption"]["unmatched"]), (3, 2), "adoption")
        said = session.lien("mem").out
        check("unknown" in said, said)
        for _ in range(2):
            answer = session.ask("offload", "--owner", "all")
            equal((answer["bytes"], [(left["bytes"], left["reason"].split(",")[0]) for left in answer["left"]]),
                  (3 * SIZE, [(2 * SIZE, "its owner is not known")]), "moved")
            equal(session.used(), SIZE, "device memory in use")
            for driver, va in orphans:
                equal(driver("check", va, SIZE, 0x66), 0, "wrong bytes of nobody's")
            session.ask("restore")
            pair.verify()


@case()
def test_plain_memory_is_shown():
    """cuMemAlloc memory is shown with its place, size and device; it stays."""
    with Session() as session:
        driver = session.driver(control=False)
        sizes = 100, 3 * SIZE, 5000, 700
        places = [driver("alloc", size) for size in sizes]
        _, va = driver("make", SIZE, 0)
        session.start_agent()
        known(session, driver.pid)
        session.ask("attach", "--all")
        found = {int(m["address"], 16): a["bytes"] for a in session.ask("graph", "--format", "json")[
            "allocations"] for m in a["mappings"]}
        equal({place: found.get(place, 0) >= size for place, size in zip(places, sizes)},
              dict.fromkeys(places, True), "found")
        equal(len(found), 5, "mappings")
        answer = session.ask("offload", "--owner", "all")
        equal((answer["bytes"], [left["allocations"] for left in answer["left"]]), (SIZE, [4]), "moved")
        session.ask("restore")
        for place in places:
            driver("memfree", place)
        driver("unmap", va, SIZE)
        wait_for("it is freed", lambda: sum(a["device"] == 0 for a in session.ask(
            "graph", "--format", "json")["allocations"]) == 1)


@case()
def test_nccl_may_have_bound_it():
    """Where NCCL may use multicast (NVLS), bound memory cannot be told from other memory."""
    for variables, moved in (({}, 0), ({"NCCL_NVLS_ENABLE": "0"}, SIZE)):
        with Session() as session:
            driver = session.driver(control=False, **variables)
            driver("nccl", SOFTNCCL)
            _, va = driver("make", SIZE, 0)
            driver("fill", va, SIZE, 0x31)
            session.start_agent()
            known(session, driver.pid)
            equal(session.ask("attach", "--all")["adoption"]["error"], None, "adoption")
            answer = session.ask("offload", "--owner", "all")
            equal(answer["bytes"], moved, "moved")
            check(moved or "NVLS" in answer["left"][0]["reason"], answer["left"])
            if not moved:  # some is selected, and stays
                said = session.lien("offload", "--owner", "all").out
                check("nothing to offload" not in said and "not movable:" in said, said)
            session.ask("restore")
            equal(driver("check", va, SIZE, 0x31), 0, "wrong bytes")


@case()
def test_what_cannot_be_bound():
    """Objects that processes share have only memory that can be exported; a process's own has any."""
    fd = 1
    for name, types, moved in (("NCCL may have made some", None, SIZE), ("it shares one", fd, SIZE),
                               ("it has one to itself", 0, 0)):
        with Session() as session:
            driver = session.driver(control=False)
            driver("nccl", SOFTNCCL)
            if types is not None:
                made = driver("mc-create", 1, 2 * SIZE, types)
                driver("mc-add", made, 0)
                driver("mc-bind", made, 0, driver("create", SIZE, 0, fd), 0, SIZE)
                driver("show", 2 * SIZE, made, 0)
            _, shareable = driver("make", SIZE, 0)
            private = driver("show", SIZE, driver("create", SIZE, 0, 0), 0)
            for va in (shareable, private):
                driver("fill", va, SIZE, 0x31)
            session.start_agent()
            known(session, driver.pid)
            equal(session.ask("attach", "--all")["adoption"]["error"], None, "adoption")
            answer = session.ask("offload", "--owner", "all")
            equal(answer["bytes"], moved, name)
            check(all("NVLS" in left["reason"] for left in answer["left"]), answer["left"])
            equal(sum(left["bytes"] for left in answer["left"]), 2 * SIZE - moved, name)
            session.ask("restore")
            for va in (shareable, private):
                equal(driver("check", va, SIZE, 0x31), 0, "wrong bytes")


@case()
def test_mapped_in_part():
    """The driver does not tell how large it is, only how much of it is mapped: it stays."""
    with Session() as session:
        driver = session.driver(control=False)
        handle, va = driver("make", 3 * SIZE, 0)
        driver("fill", va, 3 * SIZE, 0x51)
        driver("unmap", va, 3 * SIZE)
        part = driver("show", SIZE, handle, 0)
        whole, other = driver("make", SIZE, 0)
        session.start_agent()
        known(session, driver.pid)
        session.ask("attach", "--all")
        answer = session.ask("offload", "--owner", "all")
        equal((answer["bytes"], [left["reason"] for left in answer["left"]]),
              (SIZE, ["only a part of it was mapped when it was adopted"]), "moved")
        session.ask("restore")
        driver("unmap", part, SIZE)
        again = driver("show", 3 * SIZE, handle, 0)
        equal(driver("check", again, 3 * SIZE, 0x51), 0, "wrong bytes")
        driver("release", whole)
        driver("unmap", other, SIZE)


@case(long=True)
def test_imported_later():
    """Exported before the agent came, imported after: found out by the next `lien attach`."""
    with Session() as session:
        pair = Pair(session, 1)
        handle, va = pair.owner("make", SIZE, 0)
        pair.owner("fill", va, SIZE, 0x21)
        large, _ = pair.owner("make", 5 * SIZE, 0)
        fd, other = pair.owner("export", handle), pair.owner("export", large)
        session.start_agent()
        known(session, *pair.pids)
        adoption = session.ask("attach", "--all")["adoption"]
        equal((adoption["matched"], adoption["open"]), (1, 2), "matched, and open")
        answer = session.ask("offload", "--owner", "all")
        equal((answer["bytes"], [left["bytes"] for left in answer["left"]]), (SIZE, [6 * SIZE]), "moved")
        check("a descriptor" in answer["left"][0]["reason"], answer["left"])
        session.ask("restore")
        pair.owner("check", va, SIZE, 0x21)
        pair.owner("close", other)
        taken = pair.importer.take(pair.owner, fd)
        view = pair.importer("show", SIZE, taken, 0)
        wait_for("the import is seen", lambda: session.ask("status")["unmatched_imports"])
        answer = session.ask("offload", "--owner", "all")
        equal(answer["bytes"], 0, "moved: which of the two it is, is not known")
        pair.verify()
        adoption = session.ask("attach", "--all")["adoption"]
        equal((adoption["matched"], adoption["unmatched"]), (1, 0), "adoption")
        equal(session.ask("offload", "--owner", "all")["bytes"], 6 * SIZE,
              "the descriptor is open still")
        session.ask("restore")
        pair.owner("close", fd)
        equal(session.ask("attach", "--all")["adoption"]["open"], 0, "open")
        rounds(session, pair, 2, 7 * SIZE)
        equal(pair.importer("check", view, SIZE, 0x21), 0, "wrong bytes")


@case(long=True)
def test_imported_without_access():
    """An import that cannot be read is not compared: memory that it may belong to stays, and is found out later."""
    with Session() as session:
        pair = Pair(session, 1)
        handle, va = pair.owner("make", SIZE, 0)
        pair.owner("fill", va, SIZE, 0x21)
        fd = pair.owner("export", handle)
        taken = pair.importer.take(pair.owner, fd)
        pair.owner("close", fd)
        view = pair.importer("reserve", SIZE, 0)
        pair.importer("map", view, SIZE, taken)
        session.start_agent()
        known(session, *pair.pids)
        equal(session.ask("attach", "--all")["adoption"]["matched"], 1, "matched")
        equal(session.ask("offload", "--owner", "all")["bytes"], 0, "moved")
        pair.importer("access", view, SIZE, 0, 3)
        equal(pair.importer("check", view, SIZE, 0x21), 0, "wrong bytes")
        equal(session.ask("attach", "--all")["adoption"]["matched"], 1, "matched")
        rounds(session, pair, 1, 2 * SIZE)
        equal(pair.importer("check", view, SIZE, 0x21), 0, "wrong bytes")


@case()
def test_imported_and_not_mapped():
    """Exported before the agent came; imported after, and mapped when it suits."""
    with Session() as session:
        pair = Pair(session, 1)
        handle, va = pair.owner("make", SIZE, 0)
        pair.owner("fill", va, SIZE, 0x21)
        fd = pair.owner("export", handle)
        session.start_agent()
        known(session, *pair.pids)
        equal(session.ask("attach", "--all")["adoption"]["matched"], 1, "matched")
        taken = pair.importer.take(pair.owner, fd)
        pair.owner("close", fd)
        wait_for("the import is seen", lambda: session.ask("status")["unmatched_imports"])
        equal(session.ask("offload", "--owner", "all")["bytes"], 0, "moved")
        view = pair.importer("show", SIZE, taken, 0)
        equal(pair.importer("check", view, SIZE, 0x21), 0, "wrong bytes")


@case()
def test_the_next_agent_knows():
    with Session() as session:
        pair = Pair(session)
        session.start_agent()
        known(session, *pair.pids)
        session.ask("attach", "--all")
        session.kill_agent()
        session.start_agent()
        session.ready(*pair.pids)
        equal([session.process(pid)["complete"] for pid in pair.pids], [True] * 2, "complete")
        rounds(session, pair, 2)
        session.stop_agent()
        session.start_agent()
        session.ready(*pair.pids)
        rounds(session, pair, 1)
        pair.shared()


def fresh_agent(session, pair):
    """One that knows nothing of what was found out before."""
    session.stop_agent()
    session.clean()
    session.start_agent("--no-journal")
    session.ready(*pair.pids)


@case(long=True)
def test_calls_fail():
    """Whatever call of the control library fails: no byte and no reference is lost, nobody waits forever, and the next
    try succeeds. ADOPT_STEP=1 tries every call."""
    step = int(os.environ.get("ADOPT_STEP", "5"))
    first = random.Random(SEED).randrange(step)
    print("from the call %d on, every %d" % (first, step))
    with Session() as session:
        faults.folder(session)
        pair = Pair(session, 2)
        pair.owner("retain", pair.places[0])
        points = [Faults(session, driver.inner_pid) for driver in (pair.owner, pair.importer)]
        session.start_agent("--no-journal")
        known(session, *pair.pids)
        for point in points:
            point.arm(COUNT)
        equal(session.ask("attach", "--all")["adoption"]["matched"], 2, "matched")
        # From the first one at rest on; what fails while a process is read is read once more.
        logs = [point.log() for point in points]
        calls = [(log.index("cuMemFree_v2") + 1, len(log)) for log in logs]
        failed = 0
        for point, (nth, count) in zip(points, calls):
            check(count - nth > 15, logs)
            again, nth = True, nth + first
            while nth <= count:
                if again:
                    fresh_agent(session, pair)
                point.arm(FAIL, nth)
                outcome = session.lien("attach", "--all")
                hit = point.disarm()
                again = outcome.code == 0
                failed += not again
                check(again or "not adopted" in outcome.out or "refused" in outcome.out, outcome)
                pair.verify()
                nth += step if hit else count
        check(failed > 10 / step, "only %d failed" % failed)
        if not again:
            equal(session.lien("attach", "--all").code, 0, "without a fault")
        pair.shared()
        for driver, places, want in ((pair.owner, pair.places, (2, 1)),
                                     (pair.importer, pair.views, (1, 1))):
            for va, expected in zip(places, want):
                equal(references(driver, driver("retain", va)) - 1, expected, "references")


@case(long=True)
def test_death_while_marks_are_there():
    """If the owner dies, importers put back what was there; if an importer dies, the owner does."""
    for victim, function, nth in ((0, b"cuMemcpyHtoDAsync_v2", 1), (0, b"cuMemcpyHtoDAsync_v2", 2),
                                  (0, b"cuMemcpyDtoHAsync_v2", 6), (1, b"cuMemcpyDtoHAsync_v2", 3),
                                  (1, b"cuMemcpyDtoHAsync_v2", 5), (1, b"cuMemcpyDtoHAsync_v2", 6), (0, b"cuMemRelease", 1)):
        with Session() as session:
            faults.folder(session)
            pair = Pair(session, 2)
            session.start_agent()
            known(session, *pair.pids)
            drivers = pair.owner, pair.importer
            point = Faults(session, drivers[victim].inner_pid)
            point.arm(KILL, nth, function=function.decode())
            outcome = session.lien("attach", "--all")
            equal((outcome.code, point.record.hit), (1, 1), "%s: %s" % (function, outcome))
            check(not alive(drivers[victim].pid), "it lives")
            for i, place in enumerate(pair.views if victim == 0 else pair.places):
                equal(drivers[1 - victim]("check", place, SIZE, 0x40 + i), 0,
                      "wrong bytes after %s, %d" % (function, nth))


@case()
def test_the_agent_dies_while_marks_are_there():
    with Session() as session:
        faults.folder(session)
        pair = Pair(session, 2)
        session.start_agent()
        known(session, *pair.pids)
        owner, importer = (Faults(session, d.inner_pid) for d in (pair.owner, pair.importer))
        owner.arm(COUNT, function="cuMemcpyHtoDAsync_v2")
        importer.arm(DELAY, 5, function="cuMemcpyDtoHAsync_v2", delay_ms=3000)  # when it looks for them
        client = session.spawn([os.environ.get("LIEN", "build/lien"), "attach", "--all"])
        wait_for("the marks are written", lambda: owner.record.calls == 2)
        wait_for("they are looked at", lambda: importer.record.hit)
        session.kill_agent()
        client.wait()
        importer.arm(COUNT, function="cuMemcpyHtoDAsync_v2")
        # By either of them: each waits until the agent has been silent for as long.
        wait_for("they are put back", lambda: owner.record.calls + importer.record.calls >= 4)
        pair.verify()  # which waits until the gate is open
        session.start_agent()
        session.ready(*pair.pids)
        equal(session.ask("attach", "--all")["adoption"]["matched"], 2, "matched by the next agent")
        rounds(session, pair, 1, 2 * SIZE)


@case(long=True)
def test_too_late_to_mark():
    """An owner that was stopped until the others were let go writes no mark any more."""
    with Session() as session:
        faults.folder(session)
        pair = Pair(session, 2)
        session.start_agent()
        known(session, *pair.pids)
        owner = Faults(session, pair.owner.inner_pid)
        owner.arm(DELAY, 3, function="cuMemcpyDtoHAsync_v2", delay_ms=10800)  # the agent waits 10 s
        outcome = session.lien("attach", "--all", limit=60)
        check(outcome.code == 1 and "did not answer `mark`" in outcome.out, outcome)
        stays("no mark is seen", lambda: not any(
            pair.importer("check", view, SIZE, 0x40 + i) for i, view in enumerate(pair.views)), 2)
        owner.disarm()
        pair.verify()


if __name__ == "__main__":
    sys.exit(main())
