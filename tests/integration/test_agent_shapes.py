#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Every way to get, share or keep memory, seen by a real agent with real BPF on softcuda."""

import json
import sys

from lien_test import Session, case, check, equal, main, wait_for  # noqa: E402
from shapes import allocations, shapes  # noqa: E402

MIB = 1 << 20
PIECE = 2 * MIB
FD, FABRIC = 1, 8
RW, READ = 3, 1
LEGACY = ("cudaMalloc memory shared by legacy IPC cannot be put back at the same address: start the job "
          "with `lien run`, without --plain, and keep the LD_PRELOAD that it sets")


def holders(session, driver, va):
    answer = session.ask("holders", driver.pid, "%#x" % va)
    return answer["allocation"], sorted((found["pid"], found["kind"]) for found in answer["holders"])


def gone(session, driver):
    wait_for("process %d is gone" % driver.pid, lambda: not session.process(driver.pid))


def findings(session):
    return json.loads(session.request('{"op": "check"}\n'))["result"]["findings"]


def clean(session):
    """Nothing is held any more, and everything fitted."""
    status = session.ask("status")
    equal((allocations(session), status["incomplete"], status["events_lost"]), ([], [], 0),
          "what is left")


@case()
def test_plain_kinds():
    with Session() as session:
        session.start_agent()
        driver = shapes(session)
        plain = driver("alloc", 5)
        pitched, pitch = driver("pitch", 1000, 4096)
        managed = driver("managed", 10)
        equal(allocations(session, driver),
              [("cuMemAlloc", 5, 0, "on the device"),
               ("cuMemAllocPitch", pitch * 4096, 0, "on the device"),
               ("cuMemAllocManaged", 10, 0, "on the device")], "allocations")
        fd = driver("range-handle", plain, 4096)
        equal(holders(session, driver, plain)[1],
              [(driver.pid, "dma-buf"), (driver.pid, "mapping")], "holders")
        driver("close", fd)
        for va in (plain, pitched, managed):
            driver("memfree", va)
        clean(session)


@case()
def test_host_memory():
    with Session() as session:
        session.start_agent()
        driver = shapes(session)
        first, second = driver("host-alloc", 5000, 1), driver("alloc-host", 100)
        pages = driver("pages", 8192)
        driver("host-register", pages, 8192, 0)
        equal(allocations(session, driver),
              [("cuMemHostAlloc", 5000, None, "in host memory"),
               ("cuMemHostAlloc", 100, None, "in host memory"),
               ("cuMemHostRegister", 8192, None, "in host memory")], "allocations")
        equal(session.process(driver.pid)["bytes"], 0, "device memory")
        allocation, _ = holders(session, driver, pages + 5000)
        equal((allocation["movable"], allocation["reason"]), (False, "host memory"), "fate")
        driver("host-unregister", pages)
        # The name of before CUDA 6.5.
        driver("host-register-older", pages, 4096, 0)
        equal(allocations(session, driver)[2:], [("cuMemHostRegister", 4096, None, "in host memory")],
              "by the older name")
        driver("host-unregister", pages)
        driver("host-free", first)
        driver("host-free", second)
        driver.refused("host-free", second)
        clean(session)


@case()
def test_shapes_of_handles():
    with Session() as session:
        session.start_agent()
        driver, other = shapes(session), shapes(session)
        handle = driver("create", 4 * PIECE, 0, FD | FABRIC)
        whole = driver("reserve", 8 * PIECE)
        driver("map", whole, 4 * PIECE, handle, 0)
        driver("map", whole + 4 * PIECE, PIECE, handle, 0)  # a short alias
        driver.refused("map", whole + 5 * PIECE, PIECE, handle, PIECE)
        driver("access-two", whole, 4 * PIECE, 0, RW, 1, READ)
        driver("access", whole + 4 * PIECE, PIECE, 1, RW)
        found = session.ask("graph")["allocations"]
        equal(len(found), 1, "allocations")
        equal(sorted((m["address"], m["bytes"], len(m["access"])) for m in found[0]["mappings"]),
              [("%#x" % whole, 4 * PIECE, 2), ("%#x" % (whole + 4 * PIECE), PIECE, 1)], "mappings")
        node = driver("create-host", PIECE, 0, FABRIC)
        equal(allocations(session, driver)[1], ("cuMemCreate", PIECE, None, "in host memory"),
              "memory of a NUMA node")
        driver("release", node)
        imported = other("fabric-import", "%#x" % driver("fabric", handle))
        fd = other("getfd", driver.pid, driver("export", handle))
        again = other("import", fd)
        kinds = holders(session, driver, whole)[1]
        equal([kind for kind in kinds if kind[0] == other.pid],
              [(other.pid, "import"), (other.pid, "import"), (other.pid, "open export")],
              "liens of the importer")
        equal(kinds.count((driver.pid, "export")), 2, "ways of export")
        driver("release", handle)
        equal(driver("retain", whole + 4 * PIECE), handle, "retained handle")
        driver("unmap", whole, 5 * PIECE)
        driver("free", whole, 8 * PIECE)
        driver("release", handle)
        equal(len(allocations(session)), 1, "held by its importer")
        driver.end()
        gone(session, driver)
        equal([row["alive"] for row in session.ask("graph")["allocations"]], [False], "owner alive")
        kinds = [found["kind"] for found in findings(session)]
        check("import not mapped" in kinds and "export not closed" in kinds, "findings: %s" % kinds)
        other("release", imported)
        other("release", again)
        other("close", fd)
        clean(session)


@case()
def test_pools():
    with Session() as session:
        session.start_agent()
        driver, other = shapes(session), shapes(session)
        first, second = driver("alloc-async", 10), driver("alloc-async-ptsz", 20)
        equal(allocations(session, driver), [("cuMemAllocAsync", size, 0, "on the device")
                                             for size in (10, 20)], "allocations")
        driver("free-async", first)
        driver("free-async-ptsz", second)
        driver("sync")
        clean(session)
        pool = driver("pool", 0, FD)
        va, more = driver("pool-alloc", pool, PIECE), driver("pool-alloc-ptsz", pool, PIECE)
        fd = other("getfd", driver.pid, driver("pool-export", pool))
        theirs = other("pool-import", fd)
        seen = other("pointer-import", theirs, "%#x" % driver("pointer-export", va))
        equal(holders(session, other, seen)[1],
              [(driver.pid, "export"), (driver.pid, "mapping"), (other.pid, "mapping")], "holders")
        equal(session.process(other.pid)["imported_bytes"], PIECE, "imported")
        other("memfree", seen)
        equal(session.process(other.pid)["imported_bytes"], 0, "imported")
        other("pool-destroy", theirs)
        driver("pool-destroy", pool)
        driver("memfree", va)
        driver("memfree", more)
        clean(session)


@case()
def test_legacy_ipc():
    with Session() as session:
        session.start_agent()
        owner, opener = shapes(session), shapes(session)
        va = owner("alloc", PIECE)
        handle = "%#x" % owner("ipc-get", va)
        owner.refused("ipc-open", handle)
        equal(owner("ipc-get", va), int(handle, 16), "the same handle again")
        seen = opener("ipc-open", handle)
        opener("ipc-open", handle)
        allocation, kinds = holders(session, opener, seen)
        equal((allocation["pid"], allocation["reason"]), (owner.pid, LEGACY), "allocation")
        equal(kinds, [(owner.pid, "export"), (owner.pid, "mapping"), (opener.pid, "mapping")], "holders")
        owner.process.signal(9)
        owner.process.wait()
        gone(session, owner)
        equal(holders(session, opener, seen)[0]["alive"], False, "owner alive")
        found = [row for row in findings(session)
                 if row["kind"] == "held by the dead"]
        equal([(row["pid"], row["bytes"]) for row in found], [(opener.pid, PIECE)], "finding")
        opener("ipc-close", seen)
        equal(len(allocations(session)), 1, "opened twice")
        opener("ipc-close", seen)
        clean(session)


@case()
def test_multicast():
    with Session() as session:
        session.start_agent()
        driver = shapes(session)
        multicast, memory = driver("mc-create", 1, 4 * PIECE, FD), driver("create", PIECE, 0, FD)
        driver("mc-add", multicast, 0)
        driver("mc-bind", multicast, 0, memory, 0, PIECE)
        va = driver("reserve", PIECE)
        driver("map", va, PIECE, memory, 0)
        driver("mc-bind-addr", multicast, PIECE, va, PIECE)
        allocation, kinds = holders(session, driver, va)
        equal(kinds.count((driver.pid, "multicast object")), 2, "bindings")
        equal(allocation["movable"], False, "movable")
        equal(session.ask("mem")["bytes"], PIECE, "device memory")
        driver("mc-unbind", multicast, 0, PIECE, PIECE)
        driver("unmap", va, PIECE)
        driver("release", memory)
        equal(len(allocations(session)), 2, "the binding holds it")
        driver("release", multicast)
        clean(session)


@case()
def test_registrations_with_cards():
    with Session() as session:
        session.start_agent()
        driver = shapes(session)
        va = driver("alloc", PIECE)
        driver.refused("ibv-reg", 4096, 4096)  # opens the library, which is then probed

        def seen():
            region = driver("ibv-reg", va, PIECE)
            found = holders(session, driver, va)[1].count((driver.pid, "network card"))
            driver("ibv-dereg", region)
            return found
        wait_for("libibverbs is probed", seen)
        fd = driver("range-handle", va, PIECE)
        regions = [driver("ibv-reg", va, PIECE), driver("ibv-reg-iova", va, 4096, 0),
                   driver("ibv-reg-iova2", va, 8192, 0), driver("ibv-reg-dmabuf", fd, 0, PIECE, va)]
        driver.refused("ibv-reg", 4096, 4096)
        driver.refused("ibv-reg-dmabuf", 999, 0, PIECE, va)
        equal(holders(session, driver, va)[1].count((driver.pid, "network card")), 4, "registrations")
        cards = [row["card"] for row in session.ask("holders", driver.pid, "%#x" % va)["holders"]
                 if row["kind"] == "network card"]
        equal(cards, ["soft_7"] * 4, "their card")
        for region in regions[1:]:
            driver("ibv-dereg", region)
        equal(holders(session, driver, va)[1].count((driver.pid, "network card")), 1, "registrations")
        driver("memfree", va)
        found = {row["kind"]: row["level"] for row in findings(session)}
        equal(found.get("registered but freed"), "leak", "finding")
        driver("ibv-dereg", regions[0])


@case()
def test_contexts_and_threads():
    """A call that names no device uses that of the thread's context."""
    with Session() as session:
        session.start_agent()
        driver = shapes(session, init=None)
        session.followed(driver.pid)
        driver("init", 0)
        context = driver("ctx", 1)
        driver("alloc", PIECE)
        driver("ctx-pop")
        kept = driver("alloc", MIB)
        driver("ctx-push", context)
        driver("alloc", 3 * MIB)
        equal([row[1:3] for row in allocations(session, driver)],
              [(PIECE, 1), (MIB, 0), (3 * MIB, 1)], "size and device")
        driver("ctx-destroy", context)
        equal([row[1:3] for row in allocations(session, driver)], [(MIB, 0)], "what is left")
        driver("device", 1)
        driver("memfree", kept)
        driver("threads", 2, PIECE)
        equal(sorted(row[2] for row in allocations(session, driver)), [0, 1], "devices")
        equal(session.process(driver.pid)["devices"], [0, 1], "devices of the process")
        driver("threads-end")
        clean(session)


@case()
def test_death_frees():
    with Session() as session:
        session.start_agent()
        for _ in range(3):
            driver = shapes(session)
            driver("alloc-async", 10)
            driver("host-alloc", 5000, 1)
            driver("managed", 10)
            driver("mc-create", 1, 4 * PIECE, FD)
            driver("ipc-get", driver("alloc", 5))
            driver.process.signal(9)
            driver.process.wait()
            session.forgotten(driver.pid)
        wait_for("nothing is left", lambda: not allocations(session))
        clean(session)


if __name__ == "__main__":
    sys.exit(main())
