#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""prog_driver, which other tests drive, does what it is told: every way to get, share and keep memory.

No agent. BUILD names the folder of the build (default build), where prog_driver and libibverbs.so.1 are.
"""

import json
import os
import sys

from lien_test import SOFTCUDA, Driver, Session, case, check, equal, main, program

MIB = 1 << 20
PIECE = 2 * MIB
FD, FABRIC = 1, 8
RW, READ = 3, 1
INVALID_VALUE, INVALID_CONTEXT = 1, 201
HANDLE, MAPPING, PLAIN, ASYNC, ASYNC_IMPORT, IPC, POOL = 1, 3, 4, 7, 8, 9, 10
HOST, HOST_REGISTERED, MULTICAST, BINDING = 11, 12, 13, 14


def shapes(session, init=0, **environment):
    path = SOFTCUDA + ":" + os.path.abspath(os.environ["TEST_BIN"])
    made = Driver(session.spawn([program("prog_driver")], LD_LIBRARY_PATH=path, **environment))
    if init is not None:
        made("init", init)
    return made


def dump(driver, kind=None):
    objects = json.loads(driver.process.ask("dump"))
    return [found for found in objects if kind in (None, found["kind"])]


def used(driver):
    free, total = driver("info")
    return total - free


@case()
def test_plain_kinds():
    with Session() as session:
        driver = shapes(session)
        plain = driver("alloc", 5)
        pitched, pitch = driver("pitch", 1000, 4096)
        managed = driver("managed", 10)
        equal(pitch, 1024, "pitch")
        equal(used(driver), 4 * PIECE, "device memory")
        driver("fill", pitched, pitch * 4096, 7)
        equal(driver("check", pitched, pitch * 4096, 7), 0, "wrong bytes")
        equal(driver("check", pitched, 10, 8), 10, "wrong bytes")
        fd = driver("range-handle", plain, 4096)
        driver("close", fd)
        for va in (plain, pitched, managed):
            driver("memfree", va)
        equal(driver.refused("memfree", plain), INVALID_VALUE, "error")
        equal(used(driver), 0, "device memory")


@case()
def test_host_memory():
    with Session() as session:
        driver = shapes(session)
        first, second = driver("host-alloc", 5000, 1), driver("alloc-host", 100)
        pages = driver("pages", 8192)
        driver("host-register", pages, 8192, 0)
        equal([found["va"] for found in dump(driver, HOST_REGISTERED)], [pages], "registered")
        equal({found["va"] for found in dump(driver, HOST)}, {first, second}, "pinned")
        driver("host-unregister", pages)
        driver("host-free", first)
        driver("host-free", second)
        driver.refused("host-free", second)
        equal(used(driver), 0, "device memory")


@case()
def test_shapes_of_handles():
    with Session() as session:
        driver = shapes(session)
        handle = driver("create", 4 * PIECE, 0, FD | FABRIC)
        whole = driver("reserve", 8 * PIECE)
        driver("map", whole, 4 * PIECE, handle, 0)
        driver("map", whole + 4 * PIECE, PIECE, handle, 0)  # a short alias
        equal(driver.refused("map", whole + 5 * PIECE, PIECE, handle, PIECE), INVALID_VALUE, "error")
        driver("access-two", whole, 4 * PIECE, 0, RW, 1, READ)
        driver("access", whole + 4 * PIECE, PIECE, 1, RW)
        equal({tuple(found["access"][:2]) for found in dump(driver, MAPPING)}, {(RW, READ), (0, RW)},
              "access")
        driver("release", handle)
        equal(driver("retain", whole + 4 * PIECE), handle, "retained handle")
        node = driver("create-host", PIECE, 0, FABRIC)
        equal(used(driver), 4 * PIECE, "device memory")
        driver("release", node)
        other = shapes(session)
        imported = other("fabric-import", "%#x" % driver("fabric", handle))
        fd = other("getfd", driver.pid, driver("export", handle))
        again = other("import", fd)
        numbers = {found["number"] for found in dump(other, HANDLE) + dump(driver, HANDLE)}
        equal(len(numbers), 1, "allocations")
        driver("unmap", whole, 5 * PIECE)
        driver("free", whole, 8 * PIECE)
        driver("release", handle)
        other("release", imported)
        other("release", again)
        driver.end()
        other("close", fd)
        equal(used(other), 0, "device memory")


@case()
def test_pools():
    with Session() as session:
        driver, other = shapes(session), shapes(session)
        first, second = driver("alloc-async", 10), driver("alloc-async-ptsz", 20)
        default = driver("pool-default", 0)
        equal(driver("pool-state", default), [2 * PIECE, 30], "the pool")
        driver("free-async", first)
        driver("free-async-ptsz", second)
        driver("pool-threshold", default, PIECE)
        driver("sync")
        equal(driver("pool-state", default), [PIECE, 0], "the pool")
        driver("pool-trim", default, 0)
        equal(used(driver), 0, "device memory")
        pool = driver("pool", 0, FD)
        driver("pool-use", pool, 0)
        driver("pool-access", pool, 1, RW)
        va, more = driver("pool-alloc", pool, PIECE), driver("pool-alloc-ptsz", pool, PIECE)
        driver("fill", va, PIECE, 9)
        fd = other("getfd", driver.pid, driver("pool-export", pool))
        theirs = other("pool-import", fd)
        seen = other("pointer-import", theirs, "%#x" % driver("pointer-export", va))
        equal(other("check", seen, PIECE, 9), 0, "wrong bytes")
        equal([found["number"] for found in dump(other, ASYNC_IMPORT)],
              [found["number"] for found in dump(driver, ASYNC) if found["va"] == va], "the allocation")
        equal(dump(other, POOL)[0]["number"],
              [found["number"] for found in dump(driver, POOL) if found["value"] == pool][0], "the pool")
        other("memfree", seen)
        other("pool-destroy", theirs)
        driver("pool-destroy", pool)
        driver("memfree", va)
        driver("memfree", more)
        equal(used(other), 0, "device memory")


@case()
def test_ipc():
    with Session() as session:
        owner, opener = shapes(session), shapes(session)
        va = owner("alloc", PIECE)
        owner("fill", va, PIECE, 3)
        handle = "%#x" % owner("ipc-get", va)
        equal(owner.refused("ipc-open", handle), INVALID_CONTEXT, "error")
        seen = opener("ipc-open", handle)
        equal(opener("ipc-open", handle), seen, "second address")
        equal(opener("check", seen, PIECE, 3), 0, "wrong bytes")
        equal(dump(opener, IPC)[0]["number"], dump(owner, PLAIN)[0]["number"], "the allocation")
        owner.process.signal(9)
        owner.process.wait()
        opener("ipc-close", seen)
        equal(used(opener), PIECE, "device memory")
        opener("ipc-close", seen)
        equal(used(opener), 0, "device memory")
        opener.refused("ipc-close", seen)


@case()
def test_multicast():
    with Session() as session:
        driver = shapes(session)
        multicast, memory = driver("mc-create", 1, 4 * PIECE, FD), driver("create", PIECE, 0, FD)
        driver("mc-add", multicast, 0)
        driver.refused("mc-add", multicast, 1)
        driver("mc-bind", multicast, 0, memory, 0, PIECE)
        va = driver("reserve", PIECE)
        driver("map", va, PIECE, memory, 0)
        driver("mc-bind-addr", multicast, PIECE, va, PIECE)
        equal(len(dump(driver, BINDING)), 2, "bindings")
        driver("mc-unbind", multicast, 0, PIECE, PIECE)
        driver.refused("mc-unbind", multicast, 0, PIECE, PIECE)
        driver("unmap", va, PIECE)
        driver("release", memory)
        equal(used(driver), PIECE, "device memory")
        equal(len(dump(driver, MULTICAST)), 1, "objects")
        driver("release", multicast)
        equal(used(driver), 0, "device memory")


@case()
def test_registrations():
    with Session() as session:
        driver = shapes(session)
        va = driver("alloc", PIECE)
        fd = driver("range-handle", va, PIECE)
        regions = [driver("ibv-reg", va, PIECE), driver("ibv-reg-iova", va, 4096, 0),
                   driver("ibv-reg-iova2", va, 4096, 0), driver("ibv-reg-dmabuf", fd, 0, PIECE, va)]
        equal(len(set(regions)), 4, "regions")
        equal(driver.refused("ibv-reg", 4096, 4096), 14, "errno")
        equal(driver.refused("ibv-reg", va, 0), 22, "errno")
        equal(driver.refused("ibv-reg-iova2", 0, 4096, 0), 14, "errno")
        equal(driver.refused("ibv-reg-dmabuf", 999, 0, PIECE, va), 9, "errno")
        for region in regions:
            driver("ibv-dereg", region)
        equal(driver.refused("ibv-dereg", regions[0]), 22, "errno")
        equal(driver.refused("ibv-dereg", 0), 22, "errno")


@case()
def test_contexts_and_threads():
    with Session() as session:
        driver = shapes(session)
        context = driver("ctx", 1)
        va = driver("alloc", PIECE)
        equal(used(driver), PIECE, "memory of device 1")
        driver("ctx-pop")
        equal(used(driver), 0, "memory of device 0")
        driver("ctx-push", context)
        equal(used(driver), PIECE, "memory of device 1")
        equal([found["location"][1] for found in dump(driver, PLAIN)], [1], "device")
        driver("ctx-destroy", context)
        driver.refused("ctx-set", context)
        equal(dump(driver, PLAIN), [], "memory of a context that is gone")
        driver.refused("memfree", va)
        driver("device", 1)
        equal(used(driver), 0, "memory of device 1")
        addresses = driver("threads", 2, PIECE)
        equal({found["va"]: found["location"][1] for found in dump(driver, PLAIN)},
              {addresses[0]: 0, addresses[1]: 1}, "devices")
        driver("threads-end")
        equal(dump(driver), [], "objects")


@case()
def test_uuids():
    with Session() as session:
        driver = shapes(session)
        first, second = driver("uuid", 0), driver("uuid", 1)
        check(first != second, "one UUID for two devices")
        text = "%032x" % second
        name = "GPU-%s-%s-%s-%s-%s" % (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        only = shapes(session, CUDA_VISIBLE_DEVICES=name)
        equal(only("uuid", 0), second, "UUID")
        only.refused("uuid", 1)


if __name__ == "__main__":
    sys.exit(main())
