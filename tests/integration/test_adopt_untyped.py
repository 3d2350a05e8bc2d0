#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Adoption of memory that was made without types of handles. The driver reports none for imports either:
memory is its process's own only if nobody else can have it."""

import socket
import sys

from lien_test import MIB, Session, case, check, equal, main, wait_for

SIZE = 2 * MIB
WHO = "`lien attach --all` looks again"


def own(driver, value, size=SIZE):
    """Memory that cannot be exported."""
    va = driver("show", size, driver("create", size, 0, 0), 0)
    driver("fill", va, size, value)
    return va


def started(session, *drivers):
    session.start_agent()
    for driver in drivers:
        wait_for("%d is known" % driver.pid, lambda pid=driver.pid: session.process(pid))


def attach(session, **expected):
    adoption = session.ask("attach", "--all")["adoption"]
    expected = dict({"error": None, "outsider": None, "disputed": 0}, **expected)
    equal({name: adoption[name] for name in expected}, expected, "adoption")


def offload(session, moved, *left):
    """left: bytes and a part of the reason. Nothing stays away."""
    answer = session.ask("offload", "--owner", "all")
    equal((answer["bytes"], [row["bytes"] for row in answer["left"]]), (moved, [row[0] for row in left]),
          answer["left"])
    for row, (_, reason) in zip(answer["left"], left):
        check(reason in row["reason"], row)
    used = session.used()
    session.ask("restore")
    return used


def same(*places):
    for driver, va, value in places:
        equal(driver("check", va, SIZE, value), 0, "wrong bytes of %d" % driver.pid)


def shared(first, second):
    """What one writes, the other reads."""
    (driver, va), (other, view) = first, second
    for writes, at, reads, there, value in ((driver, va, other, view, 0x71), (other, view, driver, va, 0x72)):
        writes("fill", at, SIZE, value)
        equal(reads("check", there, SIZE, value), 0, "not shared any more")


def orphan(session, *importers, keep=False):
    """Memory imported from a process that has exited; a descriptor of it, if the last one is to keep one."""
    gone = session.driver(control=False)
    handle, va = gone("make", SIZE, 0)
    gone("fill", va, SIZE, 0x51)
    fd = gone("export", handle)
    views = [importer("show", SIZE, importer.take(gone, fd), 0) for importer in importers]
    kept = importers[-1]("getfd", gone.pid, fd) if keep else None
    gone.end()
    return (*views, kept) if keep else views


@case()
def test_of_several():
    """All of it moves, as often as asked, with its aliases and references."""
    for count in 2, 3:
        with Session() as session:
            drivers = [session.driver(control=False) for _ in range(count)]
            places = [(driver, own(driver, 0x40 + i), 0x40 + i) for i, driver in enumerate(drivers)]
            first = drivers[0]
            handle = first("retain", places[0][1])
            alias = first("show", SIZE, handle, 0)
            started(session, *drivers)
            attach(session, matched=0, unmatched=0)
            rows = {row["pid"]: (row["bytes"], row["owner"], row["kind"]) for row in session.ask("mem")["rows"]}
            equal(rows, {driver.pid: (SIZE, "unknown", "local") for driver in drivers}, "mem")
            equal([(row["complete"], row["movable"], row["bytes"]) for row in
                   (session.process(driver.pid) for driver in drivers)], [(True, True, SIZE)] * count, "ps")
            for _ in range(2):
                equal(offload(session, count * SIZE), 0, "device memory in use")
                same(*places, (first, alias, 0x40))
            equal(session.ask("status")["unmatched_imports"], 0, "imports without an owner")
            equal(session.ask("attach", "--all")["adoption"], None, "nothing is left to find out")
            for _ in range(2):  # made, and retained
                first("release", handle)
            first("unmap", alias, SIZE)
            first("unmap", places[0][1], SIZE)
            equal(session.used(), (count - 1) * SIZE, "device memory in use")


@case()
def test_beside_what_is_shared():
    """An import of another process's memory moves with it, and both stay one memory."""
    with Session() as session:
        owner, importer = (session.driver(control=False) for _ in range(2))
        places = [(owner, own(owner, 0x41), 0x41), (importer, own(importer, 0x42), 0x42)]
        handle, va = owner("make", SIZE, 0)
        fd = owner("export", handle)
        view = importer("show", SIZE, importer.take(owner, fd), 0)
        owner("close", fd)
        owner("fill", va, SIZE, 0x43)
        started(session, owner, importer)
        attach(session, matched=1, unmatched=0, marked=1)
        for _ in range(2):
            equal(offload(session, 3 * SIZE), 0, "device memory in use")
            same(*places, (owner, va, 0x43), (importer, view, 0x43))
        equal(session.ask("holders", importer.pid, hex(view))["allocation"]["pid"], owner.pid, "owner")
        shared((owner, va), (importer, view))


@case()
def test_two_that_imported_it():
    """Nobody owns what they have: it stays, and the rest moves."""
    with Session() as session:
        drivers = [session.driver(control=False) for _ in range(2)]
        places = [(driver, own(driver, 0x41), 0x41) for driver in drivers]
        views = orphan(session, *drivers)
        # One process that imported it twice.
        twice = orphan(session, drivers[0], drivers[0])
        started(session, *drivers)
        attach(session, matched=0, unmatched=4)
        for _ in range(2):
            equal(offload(session, 2 * SIZE, (4 * SIZE, WHO)), 2 * SIZE, "device memory in use")
            same(*places, *((driver, view, 0x51) for driver, view in zip(drivers, views)))
            shared(*zip(drivers, views))
            shared(*((drivers[0], view) for view in twice))
            for driver, view in (*zip(drivers, views), (drivers[0], twice[0])):
                driver("fill", view, SIZE, 0x51)
            attach(session, matched=0, unmatched=4)


@case()
def test_a_process_that_is_not_attached():
    """It may be the one that the memory was imported from."""
    with Session() as session:
        first, second, other = (session.driver(control=False) for _ in range(3))
        places = [(driver, own(driver, 0x41), 0x41) for driver in (first, second, other)]
        started(session, first, second, other)
        outcome = session.lien("attach", first.pid, second.pid)
        check("owners were not looked for" in outcome.out, outcome)
        offload(session, 0, (2 * SIZE, WHO))
        same(*places)
        attach(session, unmatched=0)
        equal(offload(session, 3 * SIZE), 0, "device memory in use")
        same(*places)


@case()
def test_a_service_that_keeps_memory():
    """It has a handle and maps nothing; who imported the memory shares it with whoever comes next."""
    with Session() as session:
        service, importer, other = (session.driver(control=False) for _ in range(3))
        handle = service("create", SIZE, 0, 1)
        fd = service("export", handle)
        view = importer("show", SIZE, importer.take(service, fd), 0)
        service("close", fd)
        importer("fill", view, SIZE, 0x51)
        place = (other, own(other, 0x41), 0x41)
        started(session, service, importer, other)
        attach(session, matched=0, unmatched=2)
        offload(session, 0, (2 * SIZE, WHO))
        same(place, (importer, view, 0x51))
        service("fill", service("show", SIZE, handle, 0), SIZE, 0x52)
        same((importer, view, 0x52))


@case()
def test_an_open_descriptor():
    """Who imports it later has the same memory."""
    with Session() as session:
        drivers = importer, other = [session.driver(control=False) for _ in range(2)]
        place = (other, own(other, 0x41), 0x41)
        view, fd = orphan(session, importer, keep=True)
        started(session, *drivers)
        attach(session, matched=0, unmatched=1, open=1)
        equal(offload(session, SIZE, (SIZE, "a descriptor")), SIZE, "device memory in use")
        later = other.take(importer, fd)
        seen = other("show", SIZE, later, 0)
        same(place, (importer, view, 0x51), (other, seen, 0x51))
        shared((importer, view), (other, seen))
        other("unmap", seen, SIZE)
        other("release", later)
        importer("fill", view, SIZE, 0x51)
        importer("close", fd)
        attach(session, unmatched=0, open=0)
        equal(offload(session, 2 * SIZE), 0, "device memory in use")
        same(place, (importer, view, 0x51))


@case()
def test_a_descriptor_on_its_way():
    """It is in no process's table, but in a socket that a process will read."""
    ends = socket.socketpair()
    with Session() as session:
        drivers = importer, other = [
            session.driver(control=False, pass_fds=[end.fileno()]) for end in ends]
        here, there = (end.fileno() for end in ends)
        place = (other, own(other, 0x41), 0x41)
        view, fd = orphan(session, importer, keep=True)
        importer("send", here, fd)
        importer("close", fd)
        for end in ends:
            end.close()
        started(session, *drivers)
        attach(session, matched=0, unmatched=2, open=0)
        offload(session, 0, (2 * SIZE, "no descriptor is on its way"))
        fd = other("receive", there)
        handle = other("import", fd)
        seen = other("show", SIZE, handle, 0)
        shared((importer, view), (other, seen))
        other("unmap", seen, SIZE)
        other("release", handle)
        other("close", fd)
        importer("fill", view, SIZE, 0x51)
        attach(session, unmatched=0)
        equal(offload(session, 2 * SIZE), 0, "device memory in use")
        same(place, (importer, view, 0x51))


@case()
def test_memory_that_cannot_be_compared():
    """Another process has memory that no device may access: that may be the same."""
    with Session() as session:
        drivers = importer, other = [session.driver(control=False) for _ in range(2)]
        view, = orphan(session, importer)
        hidden = other("reserve", SIZE)
        other("map", hidden, SIZE, other("create", SIZE, 0, 0))
        started(session, *drivers)
        attach(session, matched=0, unmatched=1)
        offload(session, 0, (2 * SIZE, WHO))
        other("access", hidden, SIZE, 0, 3)
        attach(session, unmatched=0)
        equal(offload(session, 2 * SIZE), 0, "device memory in use")
        same((importer, view, 0x51))


@case()
def test_fabric_handles():
    """It may have come from another node, by a channel that the process can use."""
    channel = ("unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /dev && mkdir /dev/nvidia-caps-imex-channels && "
               "mknod /dev/null c 1 3 && mknod /dev/urandom c 1 9 && exec \"$@\"", "sh")
    with Session() as session:
        first, second = session.driver(control=False, prefix=channel), session.driver(control=False)
        places = [(driver, own(driver, 0x41), 0x41) for driver in (first, second)]
        started(session, first, second)
        attach(session, unmatched=1)
        offload(session, SIZE, (SIZE, "fabric handles"))
        same(*places)


if __name__ == "__main__":
    sys.exit(main())
