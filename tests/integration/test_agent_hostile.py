#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Hostile processes: whatever they do, the agent never dies, never blocks, and says what it missed.

prog_hostile.c calls libraries that do nothing (hostile.c), so that any arguments can succeed.
"""

import fcntl
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

from lien_test import (
    CALLS, EVENT_ENTRY, GUARD, IDLE_THREADS, MIB, SEED, SOFTCUDA, STATES, Late, Session, Skipped, Stream, brief, case,
    check, equal, main, program, wait_for)

HOSTILE = os.path.abspath(os.path.join(os.environ["TEST_BIN"], "hostile"))
CUDA, CUDART, NCCL, VERBS = (os.path.join(HOSTILE, name) for name in (
    "libcuda.so.1", "libcudart.so.12", "libnccl.so.2", "libibverbs.so.1"))
ALL = (CUDA, CUDART, NCCL, VERBS)
F_SETLEASE = 1024


class Hostile:
    """prog_hostile, with these libraries; cuInit was called unless init is False."""

    def __init__(self, session, *libraries, init=True, prefix=()):
        self.process = session.spawn([*prefix, program("prog_hostile")])
        check(self.process.line().startswith("ready "), "prog_hostile: " + self.process.said())
        self.pid = self.process.pid
        for path in libraries:
            self("open", path)
        if init:
            self("call", "cuInit", 0)

    def __call__(self, *words, limit=GUARD):
        answer = self.process.ask(" ".join(map(str, words)), limit)
        check(answer.startswith("ok "), "%s: %s" % (" ".join(map(str, words)), answer))
        return int(answer.split()[1], 0)

    def end(self):
        self.process.end()


def start(session, *args):
    """An agent that knows all of them before anybody maps one."""
    session.start_agent("--no-journal", *args, LD_LIBRARY_PATH="%s:%s" % (HOSTILE, SOFTCUDA))


def views(session):
    """Each view answers, in JSON and as text."""
    for command in ("ps", "mem", "status", "check", "graph"):
        session.ask(command) if command != "check" else session.request('{"op": "check"}\n')
        outcome = session.lien(command)
        check(outcome.code in (0, 1) and "Traceback" not in outcome.err, outcome)


def status_of(session, *names):
    status = session.ask("status")
    return tuple(status[name] for name in names)


def still_served(session):
    """Another process is seen as if nothing had been."""
    driver = session.driver(control=False)
    driver("make", 2 * MIB, 0)
    process = session.known(driver.pid)
    equal((process["complete"], process["bytes"]), (True, 2 * MIB), "another process")
    driver.end()
    session.forgotten(driver.pid)


# Arguments

PLACES = ("null", "unmapped", "half", "none", "eof", "kernel", "nowhere", "top", "user")

# A call and where it has its pointers: P is the place that cannot be read.
POINTERS = (
    ("cuMemCreate", "P", 2 * MIB, "good"), ("cuMemCreate", "good", 2 * MIB, "P"),
    ("cuMemRetainAllocationHandle", "P", 0), ("cuMemAddressReserve", "P", 2 * MIB, 0),
    ("cuMemSetAccess", 2 * MIB, 2 * MIB, "P", 1), ("cuMemSetAccess", 2 * MIB, 2 * MIB, "P", 1 << 40),
    ("cuMemAlloc_v2", "P", 100), ("cuMemAllocPitch_v2", "good", "P", 100, 100, 4),
    ("cuMemImportFromShareableHandle", "P", 3, 1), ("cuMemImportFromShareableHandle", "P", "P", 8),
    ("cuMemPoolCreate", "P", "P"), ("cuMemPoolImportPointer", "P", 1, "P"),
    ("cuMulticastCreate", "P", "P"), ("cuDevicePrimaryCtxRetain", "P", 0),
    ("cuIpcOpenMemHandle_v2", "P"),
    ("ncclCommInitAll", "P", 10 ** 9, "P"), ("ncclCommInitAll", "P", 2, 0),
    ("ncclCommInitRankScalable", "P", 2, 0, 10 ** 9, "P"), ("ncclCommInitRank", "P", 2, 0),
    ("ncclCommShrink", 5, "P", 1 << 40, "P"), ("ncclCommShrink", 5, "P", -1, "P"),
    ("ncclCommShrink", 5, "P", 31, "P"), ("ncclCommSplit", 5, 1, 1, "P"),
    ("ncclCommRegister", 5, "P", 1 << 62, "P"))


@case(long=True)
def test_pointers_that_cannot_be_read():
    """They are counted; a call that the driver refused has no effect, any other makes the process incomplete."""
    with Session() as session:
        start(session)
        for result, complete in ((1, True), (0, False)):
            for call in POINTERS:
                hostile = Hostile(session, *ALL)
                hostile("result", result)
                before, = status_of(session, "unreadable")
                for place in PLACES:
                    hostile("call", *[place if word == "P" else word for word in call])
                found, = status_of(session, "unreadable")
                check(found >= before + len(PLACES), "%s: %d of %d counted" % (
                    call[0], found - before, len(PLACES)))
                equal(session.known(hostile.pid)["complete"], complete,
                      "%s with result %d: complete" % (call, result))
                hostile.end()
        equal(status_of(session, "processes", "allocations", "mappings", "events_lost"),
              (0, 0, 0, 0), "what is left")
        still_served(session)


@case()
def test_counts_that_are_huge():
    """The memory can be read, but the count is false."""
    with Session() as session:
        start(session)
        hostile = Hostile(session, *ALL)
        hostile("result", 1)
        for call in (("cuMemSetAccess", 2 * MIB, 2 * MIB, "good", 1 << 40),
                     ("cuMemSetAccess", -1, -1, "good", -1),
                     ("ncclCommInitAll", "good", 10 ** 9, "good"),
                     ("ncclCommShrink", 5, "good", 1 << 40, "good"),
                     ("cuMemCreate", "good", -1, "good"), ("cuMemMap", -4096, -1, -1, 0),
                     ("ibv_reg_mr", 0, -1, -1), ("ibv_reg_dmabuf_mr", 0, -1, -1, -1, -1)):
            hostile("call", *call)
        hostile("result", 0)  # NULL: no region
        hostile("call", "ibv_reg_mr", 0, 0x1000, 0x1000)
        equal(session.known(hostile.pid)["complete"], True, "complete after refused calls")
        equal(status_of(session, "allocations", "mappings", "events_lost"), (0, 0, 0), "the graph")
        hostile("call", "ncclCommInitAll", "good", 10 ** 9, "good")
        hostile("call", "cuMemSetAccess", 2 * MIB, 2 * MIB, "good", 1 << 40)
        equal(session.known(hostile.pid)["complete"], False, "complete after they succeeded")
        views(session)
        hostile.end()
        session.forgotten(hostile.pid)
        still_served(session)


@case()
def test_network_cards():
    """libibverbs called with nonsense that succeeds; and by a process that does not use CUDA."""
    with Session() as session:
        start(session)
        hostile = Hostile(session, *ALL)
        hostile("result", 77)  # one region for all
        for _ in range(3):
            hostile("call", "ibv_reg_mr", 0, -1, -1)
            hostile("call", "ibv_reg_mr_iova2", 0, 0, 1 << 63)
            hostile("call", "ibv_reg_dmabuf_mr", -1, 1 << 63, 1 << 63, 1 << 63, -1)
        hostile("result", 0)
        hostile("call", "ibv_dereg_mr", 77)
        hostile("call", "ibv_dereg_mr", 77)
        hostile("call", "ibv_dereg_mr", "null")
        views(session)
        hostile.end()
        session.forgotten(hostile.pid)
        stream = Stream(session)
        stranger = Hostile(session, VERBS, init=False)
        stranger("call", "ibv_reg_mr", 0, 0x1000, 0x1000)
        wait_for("it has mapped the library", lambda: any(
            event.pid == stranger.pid for event in stream.events(0.05)))
        stranger.end()
        stream.close()
        stream = Stream(session)
        equal([e for e in stream.events(0.1) if e.pid == stranger.pid], [],
              "left of a process that does not use CUDA")
        stream.close()


@case()
def test_names():
    """A process and a folder whose names are not text."""
    with Session() as session:
        folder = session.path("a\nb").encode() + b"\xff\x1b[2J"
        os.mkdir(folder)
        copy = os.path.join(folder, b"libcuda.so.1")
        shutil.copy(CUDA, copy)
        link = session.path("link.so")  # the name is the file's own, not the link's
        os.symlink(copy, link)
        start(session)
        hostile = Hostile(session, CUDA, init=False)
        hostile("name")
        hostile("call", "cuInit", 0)
        process = session.known(hostile.pid)
        check(process["command"].isprintable() and process["command"].isascii() and
              len(process["command"]) == 15, "command %r" % process["command"])
        hostile("open", link)
        libraries = wait_for("the copy is probed", lambda: [
            library["path"] for library in session.ask("status")["libraries"]
            if session.folder in library["path"]])
        equal(len(libraries), 1, "copies")
        check(libraries[0].isprintable() and libraries[0].isascii(), repr(libraries))
        views(session)


# Calls that do not come back, or in another order

def calls_of(stream, pid, *names):
    wanted = [CALLS[name] for name in names]
    stream.last = time.monotonic()  # quiet from now on
    return [event for event in stream.events(0.2)
            if event.pid == pid and event.type in wanted and not event.flags & EVENT_ENTRY]


@case()
def test_calls_inside_of_calls():
    with Session() as session:
        start(session)
        stream = Stream(session)
        hostile = Hostile(session, *ALL)
        hostile("result", 1)  # refused: told, and nothing follows
        equal(hostile("nest", 3, "cuMemAlloc_v2", "cuMemAlloc_v2"), -1, "nesting")
        calls = calls_of(stream, hostile.pid, "CU_MEM_ALLOC")
        equal([event.words("QQ")[1] for event in calls], [1, 2, 3, 0], "four deep, inside out")
        equal(session.known(hostile.pid)["complete"], True, "complete")
        # Deeper than there is room for: the outer ones are still told, the rest is lost, and said.
        hostile("nest", 40, "cuMemAlloc_v2", "cuMemAlloc_v2")
        calls = calls_of(stream, hostile.pid, "CU_MEM_ALLOC")[4:]
        equal([event.words("QQ")[1] for event in calls], [38, 39, 40, 0], "the outer ones")
        wait_for("37 are lost", lambda: status_of(session, "events_lost") == (37,))
        equal(session.process(hostile.pid)["complete"], False, "complete")
        hostile.end()
        # Frames that tell of nothing lose nothing.
        hostile = Hostile(session, *ALL)
        hostile("nest", 40, "cudaMalloc", "cudaMalloc")
        hostile("call", "cuMemAlloc_v2", "good", 100)
        equal(session.known(hostile.pid)["complete"], True, "complete")
        equal(status_of(session, "events_lost"), (37,), "events lost")
        stream.close()


@case(long=True)
def test_jumps_out_of_calls():
    with Session() as session:
        start(session)
        stream = Stream(session)
        hostile = Hostile(session, *ALL)
        hostile("result", 1)
        # A frame of the runtime: the driver's call after it is not taken for one inside of it.
        hostile("jump", 5, "cudaMalloc", "cuMemAlloc_v2")
        calls = calls_of(stream, hostile.pid, "CU_MEM_ALLOC")
        equal([event.outer for event in calls], [CALLS["CU_MEM_ALLOC"]] * 5, "outermost calls")
        equal(session.known(hostile.pid)["complete"], True, "complete")
        equal(status_of(session, "events_lost"), (0,), "events lost")
        # Whether the driver freed it nobody knows.
        hostile("jump", 5, "cuMemFree_v2", "cuMemAlloc_v2")
        wait_for("counted", lambda: status_of(session, "events_lost") == (5,))
        equal(session.process(hostile.pid)["complete"], False, "complete")
        calls = calls_of(stream, hostile.pid, "CU_MEM_ALLOC")
        equal([event.outer for event in calls], [CALLS["CU_MEM_ALLOC"]] * 10, "outermost calls")
        stream.close()
        hostile.end()
        session.forgotten(hostile.pid)
        # Releases that never return are not kept for ever.
        hostile = Hostile(session, *ALL)
        hostile("jump", 5000, "cuMemFree_v2", "cuMemGetHandleForAddressRange")
        before, = status_of(session, "rss_bytes")
        hostile("jump", 50000, "cuMemFree_v2", "cuMemGetHandleForAddressRange", limit=40)
        after, = status_of(session, "rss_bytes")
        check(after < before + 6 * MIB, "grew from %d to %d bytes" % (before, after))


@case()
def test_threads_that_end_in_a_call():
    with Session() as session:
        start(session)
        hostile = Hostile(session, *ALL)
        hostile("die", 20, "cudaMalloc")
        equal(session.known(hostile.pid)["complete"], True, "complete")
        hostile("die", 20, "cuMemFree_v2")
        wait_for("counted", lambda: status_of(session, "events_lost") == (20,))
        equal(session.process(hostile.pid)["complete"], False, "complete")
        hostile.end()
        session.forgotten(hostile.pid)
        # The end of the process is no loss.
        hostile = Hostile(session, *ALL)
        hostile.process.send("nest 1000000 cuMemAlloc_v2 cudaMalloc")
        hostile.process.signal(signal.SIGKILL)
        hostile.process.wait()
        session.forgotten(hostile.pid)
        equal(status_of(session, "events_lost", "processes"), (20, 0), "lost, and left")


@case()
def test_signals_in_calls():
    with Session() as session:
        start(session)
        stream = Stream(session)
        hostile = Hostile(session, *ALL)
        hostile("result", 1)
        for _ in range(10):
            hostile("signal", "cuMemAlloc_v2", "cuMemAlloc_v2")
            hostile("signal", "cuMemFree_v2", "cuMemFree_v2")
        calls = calls_of(stream, hostile.pid, "CU_MEM_ALLOC")
        equal([event.words("QQ")[1] for event in calls], [0x2000, 0x1000] * 10, "allocations")
        equal(len(calls_of(stream, hostile.pid, "CU_MEM_FREE")), 20, "frees")
        equal(session.known(hostile.pid)["complete"], True, "complete")
        stream.close()


@case(long=True)
def test_anything():
    """Any call with anything, and all of it succeeds: the agent takes it, answers, and forgets."""
    with Session() as session:
        start(session)
        for number in range(4):
            jobs = [Hostile(session, *ALL) for _ in range(3)]
            for job in jobs:
                job.process.send("random %d %d" % (SEED + number * 3 + jobs.index(job), 4000))
            for job in jobs:
                equal(job.process.line(60), "ok 4000", "random calls")
            views(session)
            for job in jobs:
                job.end()
            session.forgotten(*[job.pid for job in jobs])
        equal(status_of(session, "processes", "allocations", "mappings"), (0, 0, 0), "what is left")
        still_served(session)


# Files

def elf(machine=62, bits=2, order=1, kind=3):
    """The header of a library, and nothing else."""
    ident = b"\x7fELF" + bytes([bits, order, 1]) + bytes(9)
    if bits == 1:
        return ident + struct.pack("<HHIIIIIHHHHHH", kind, machine, 1, 0, 52, 0, 0, 52, 32, 0, 40, 0, 0)
    return ident + struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, 0, 64, 0, 0)


def odd_files(session):
    """(path, what is said of it) of files called like the driver."""
    with open(os.path.join(SOFTCUDA, "libcuda.so.1"), "rb") as file:
        whole = file.read()
    noise = random.Random(1).randbytes(8192)
    contents = {
        "i386": (elf(3, 1) + noise, "not a library of x86-64"),
        "aarch64": (elf(183) + noise, "not a library of x86-64"),
        "big-endian": (elf(order=2) + noise, "not a library of x86-64"),
        "object": (elf(kind=1) + noise, "not a library of x86-64"),
        "noise": (noise, "not a library of x86-64"),
        "empty": (b"", "not a library of x86-64"),
        "short": (whole[:20], "damaged: cut off"),
        "cut": (whole[:len(whole) // 2], "damaged: cut off"),
        "header": (whole[:64] + noise, "damaged: cut off"),
        "bare": (elf() + noise, "exports none of the calls"),
    }
    for name, (content, why) in contents.items():
        os.mkdir(session.path(name))
        path = session.path(name + "/libcuda.so.1")
        with open(path, "wb") as file:
            file.write(content)
        yield path, why


def skipped(session):
    return {file["path"]: file["reason"] for file in session.ask("status")["skipped"]}


def said_once(session, paths):
    said = session.agent.said()
    for path in paths:
        equal(said.count("cannot probe " + path), 1, "lines about " + path)


@case()
def test_odd_files_in_the_way():
    """Where the agent looks for libraries when it starts."""
    with Session() as session:
        files = dict(odd_files(session))
        os.mkdir(session.path("folder"))
        os.mkdir(session.path("folder/libcuda.so.1"))
        os.mkdir(session.path("pipe"))
        os.mkfifo(session.path("pipe/libcuda.so.1"))
        os.mkdir(session.path("leased"))
        leased = session.path("leased/libcuda.so.1")
        shutil.copy(CUDA, leased)
        files[session.path("folder/libcuda.so.1")] = "not a regular file"
        files[session.path("pipe/libcuda.so.1")] = "not a regular file"
        files[leased] = "a process holds a lease on it"
        os.mkdir(session.path("loop"))
        os.symlink("libcuda.so.1", session.path("loop/libcuda.so.1"))
        folders = ":".join(os.path.dirname(path) for path in files)
        fd = os.open(leased, os.O_RDWR)
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fcntl.fcntl(fd, F_SETLEASE, fcntl.F_WRLCK)
        session.start_agent(LD_LIBRARY_PATH="%s:%s:%s" % (folders, session.path("loop"), SOFTCUDA))
        os.close(fd)
        found = skipped(session)
        for path, why in files.items():
            check(why in found.get(path, ""), "%s: %s" % (path, found.get(path)))
        said_once(session, files)
        text = session.lien("status").out
        check(text.count("not probed:") >= len(files), text)
        still_served(session)
        for path in (session.path("pipe/libcuda.so.1"), session.path("empty/libcuda.so.1")):
            session.refused("agent", "--socket", session.path("x"), "--library", path, text=path)


@case(long=True)
def test_odd_files_are_mapped():
    """By processes, while the agent runs; each is reported once."""
    with Session() as session:
        session.start_agent()
        files = {path: why for path, why in odd_files(session) if os.path.getsize(path)}
        for _ in range(3):
            hostile = Hostile(session, init=False)
            for path in files:
                hostile("map", path)
            wait_for("all are skipped", lambda: set(skipped(session)) >= set(files))
            hostile.end()
            session.forgotten(hostile.pid)
        for path, why in files.items():
            check(why in skipped(session)[path], "%s: %s" % (path, skipped(session)[path]))
        said_once(session, files)
        # More of them than are worth a line: counted.
        hostile = Hostile(session, init=False)
        for number in range(200):
            path = session.path("libcuda.so.%d" % number)
            shutil.copy(next(iter(files)), path)
            hostile("map", path)
        wait_for("all are counted", lambda: status_of(
            session, "skipped_files")[0] >= 200 + len(files))
        equal(len(skipped(session)), 64, "files that are listed")
        check("more files" in session.lien("status").out, "the text does not say how many")
        check(session.agent.said().count("cannot probe") <= 64, "lines in the log")
        still_served(session)


@case()
def test_stripped_libraries():
    with Session() as session:
        whole = os.path.join(SOFTCUDA, "libcuda.so.1")
        session.start_agent(LD_LIBRARY_PATH=None)
        for name, options in (("stripped", ["--strip-all"]), ("debug", ["--strip-debug"])):
            os.mkdir(session.path(name))
            subprocess.run(["strip", *options, "-o", session.path(name + "/libcuda.so.1"), whole],
                           check=True)
            for _ in range(2):
                driver = session.driver(control=False, LD_LIBRARY_PATH=session.path(name))
                driver("make", 2 * MIB, 0)
                process = session.known(driver.pid)  # the first one is, too
                driver.end()
            equal((process["complete"], process["bytes"]), (True, 2 * MIB),
                  "the second process with a library that is " + name)
        # Some calls are not exported at all.
        os.mkdir(session.path("few"))
        few = session.path("few/libcuda.so.1")
        session.compile("few/libcuda.so.1", "few_calls.c", "-shared", "-fPIC", "-s",
                        "-Wl,-soname,libcuda.so.1")
        hostile = Hostile(session, few)
        hostile("call", "cuMemRelease", 3)
        library = wait_for("it is probed", lambda: [
            entry for entry in session.ask("status")["libraries"] if entry["path"] == few])[0]
        equal(library["calls"], 2, "calls of it")
        check("cuMemCreate" in library["missing"], brief(library))
        # Without section headers there are no symbols to be found.
        with open(whole, "rb") as file:
            data = bytearray(file.read())
        struct.pack_into("<Q", data, 40, 0)
        struct.pack_into("<HHH", data, 58, 64, 0, 0)
        os.mkdir(session.path("bare"))
        with open(session.path("bare/libcuda.so.1"), "wb") as file:
            file.write(data)
        driver = session.driver(control=False, LD_LIBRARY_PATH=session.path("bare"))
        wait_for("it is skipped", lambda: session.path("bare/libcuda.so.1") in skipped(session))
        driver("make", 2 * MIB, 0)
        check(session.agent.popen.poll() is None, "the agent has died")


@case()
def test_library_deleted_while_mapped():
    with Session() as session:
        os.mkdir(session.path("lib"))
        path = session.path("lib/libcuda.so.1")
        shutil.copy(os.path.join(SOFTCUDA, "libcuda.so.1"), path)
        session.start_agent("--no-journal", "--library", path)
        first = session.driver(control=False, LD_LIBRARY_PATH=session.path("lib"))
        os.unlink(path)
        first("make", 2 * MIB, 0)  # still probed
        process = session.known(first.pid)
        equal((process["complete"], process["bytes"]), (True, 2 * MIB), "the file is deleted")
        shutil.copy(os.path.join(SOFTCUDA, "libcuda.so.1"), path)  # another one under its name
        for _ in range(2):
            other = session.driver(control=False, LD_LIBRARY_PATH=session.path("lib"))
            wait_for("both are probed", lambda: len([
                entry for entry in session.ask("status")["libraries"]
                if entry["path"].startswith(path)]) == 2)
            other("make", 4 * MIB, 0)
            process = session.known(other.pid)
            equal(process["bytes"], 4 * MIB, "with the new file")
        check(process["complete"], "the second process with the new file is not complete")
        first("make", 2 * MIB, 0)
        equal(session.process(first.pid)["bytes"], 4 * MIB, "the first process")
        # Mapped, deleted, and only then is there an agent.
        os.unlink(path)
        session.stop_agent()
        session.start_agent("--no-journal")
        first("make", 2 * MIB, 0)
        equal((session.known(first.pid)["complete"], session.process(first.pid)["bytes"]),
              (False, 2 * MIB), "a process that ran before the agent, its library deleted")


# Copies of libraries

USER = 54323
AS_USER = ("setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups")
OF_USER = 64  # agent/processes/probing.c
NONE_UNPROBED = {"users": [], "processes": [], "rewritten": []}


def copies(session, name, count):
    """That many files called like the driver."""
    folder = session.path(name)
    os.mkdir(folder)
    paths = []
    for number in range(count):
        os.mkdir("%s/%d" % (folder, number))
        paths.append("%s/%d/libcuda.so.1" % (folder, number))
        shutil.copy(CUDA, paths[-1])
    return paths


def probed_below(session, folder):
    return sorted(library["path"] for library in session.ask("status")["libraries"]
                  if library["path"].startswith(session.path(folder) + "/"))


def pins(session):
    return len(os.listdir(session.ask("status")["journal"]["pinned"]))


@case(long=True)
def test_many_copies_of_the_driver():
    """A user maps any number of files that are called libcuda.so.1: others are not harmed, and all goes
    when nobody maps them any more."""
    with Session() as session:
        os.chmod(session.folder, 0o755)
        session.start_agent(LD_LIBRARY_PATH="%s:%s" % (HOSTILE, SOFTCUDA))
        before = agent_fds(session), pins(session), len(session.ask("status")["libraries"])
        hostile = Hostile(session, init=False, prefix=AS_USER)
        for path in copies(session, "many", 3 * OF_USER):
            hostile("map", path)
        # Another user's, mapped while those wait.
        own = Hostile(session, *copies(session, "own", 1))
        wait_for("another user's is probed", lambda: len(probed_below(session, "own")) == 1)
        expected = [{"uid": USER, "probed": OF_USER, "limit": OF_USER, "others": 2 * OF_USER}]
        try:
            wait_for("they are counted", lambda: session.ask("status")["unprobed"][
                "users"] == expected)
        except Late:
            status = session.ask("status")
            equal(status["unprobed"]["users"], expected, "users with too many; skipped: %s" % status["skipped"])
        equal(len(probed_below(session, "many")), OF_USER, "that are probed")
        equal(session.ask("status")["unprobed"]["processes"], [hostile.pid], "who is incomplete")
        process = session.process(hostile.pid)
        check(process and not process["complete"], "the process: %s" % process)
        text = " ".join(session.lien("status").out.split())
        check("user %d maps %d more copies" % (USER, 2 * OF_USER) in text, text)
        check("incomplete because of that: %d:" % hostile.pid in text, text)
        # The next agent begins with as many.
        session.stop_agent()
        session.start_agent(LD_LIBRARY_PATH="%s:%s" % (HOSTILE, SOFTCUDA))
        equal(len(probed_below(session, "many")), OF_USER, "that are probed by the next agent")
        wait_for("it says so, too", lambda: session.ask("status")["unprobed"]["users"])
        # They go, and there is room for others.
        hostile.end()
        wait_for("they are probed no longer", lambda: not probed_below(session, "many"))
        shutil.rmtree(session.path("many"))
        own.end()
        wait_for("nor is the other one", lambda: not probed_below(session, "own"))
        wait_for("nothing of them is left", lambda: (
            agent_fds(session) <= before[0], pins(session), len(
                session.ask("status")["libraries"])) == (True, *before[1:]))
        with open(session.socket + ".state") as state:
            check(session.path("many") not in state.read(), "the state file names them")
        equal(session.ask("status")["unprobed"], NONE_UNPROBED, "unprobed")
        later = Hostile(session, init=False, prefix=AS_USER)
        path, = copies(session, "later", 1)
        later("map", path)
        wait_for("a later one is probed", lambda: probed_below(session, "later"))
        later.end()


@case()
def test_second_driver_that_cannot_be_probed():
    """A complete process maps another file that is called like the driver, whose calls are not seen."""
    with Session() as session:
        start(session)
        hostile = Hostile(session, *ALL)
        equal(session.known(hostile.pid)["complete"], True, "complete")
        bare = session.path("libcuda.so.1")
        with open(bare, "wb") as file:
            file.write(elf() + bytes(8192))
        hostile("map", bare)
        wait_for("it is incomplete", lambda: not session.process(hostile.pid)["complete"])


@case(long=True)
def test_room_for_another_copy():
    """A process that was incomplete for want of room is attached to once there is some."""
    with Session() as session:
        os.chmod(session.folder, 0o755)
        session.start_agent("--no-journal", LD_LIBRARY_PATH="%s:%s" % (HOSTILE, SOFTCUDA))
        first = Hostile(session, init=False, prefix=AS_USER)
        for path in copies(session, "first", OF_USER):
            first("map", path)
        wait_for("all are probed", lambda: len(probed_below(session, "first")) == OF_USER)
        second = Hostile(session, init=False, prefix=AS_USER)
        path, = copies(session, "second", 1)
        second("map", path)
        wait_for("it is not", lambda: session.ask("status")["unprobed"]["processes"] == [second.pid])
        first.end()
        wait_for("it is", lambda: probed_below(session, "second") == [path])
        wait_for("it is told no more", lambda: session.ask("status")["unprobed"] == NONE_UNPROBED)
        second.end()


# File systems of users


def fuse(session, *how):
    """A process of USER that holds up whoever looks at it (prog_fuse.c)."""
    place = session.path("fuse-" + how[0])
    os.makedirs(place, exist_ok=True)
    os.chmod(session.folder, 0o755)
    os.chown(place, USER, USER)
    process = session.spawn([program("prog_fuse"), place, USER, *how])
    equal(process.line(), "ready", "prog_fuse: " + process.said())
    return process


def no_fuse():
    """Why there is none here, or None."""
    with open("/proc/filesystems") as known:
        return None if "\tfuse\n" in known.read() else "the kernel has no FUSE"


def moved(session, driver, va):
    """Others are served as ever."""
    session.ready(driver.pid)
    for kind in ("offload", "restore"):
        more = ["--owner", "all", "--pid", driver.pid] if kind == "offload" else []
        equal(session.ask(kind, *more)["bytes"], 2 * MIB, kind)
    equal(driver("check", va, 2 * MIB, 0x5c), 0, "wrong bytes")


@case(long=True)
def test_memory_that_a_user_serves():
    """The page where the control library says how to reach it is never delivered."""
    if no_fuse():
        raise Skipped(no_fuse())
    with Session() as session:
        os.mkdir(session.path("lib"))
        library = session.path("lib/liblien-control.so")
        session.compile("lib/liblien-control.so", "control_page.c", "-shared", "-fPIC")
        for before in (False, True):  # the agent
            if not before:
                start(session)
            hostile = [fuse(session, "state", library, CUDA) for _ in range(6)]
            if not before:
                for process in hostile:
                    session.known(process.pid)
            if before:
                start(session)
            driver = session.driver()
            _, va = driver("make", 2 * MIB, 0)
            driver("fill", va, 2 * MIB, 0x5c)
            moved(session, driver, va)
            outcome = session.lien("attach", hostile[0].pid)
            check(outcome.code == 1, outcome)
            views(session)
            moved(session, driver, va)
            for process in hostile:
                process.end()
            session.forgotten(*[process.pid for process in hostile])
            driver.end()
            session.stop_agent()


# Many processes

STORM = """
import ctypes, os, random, signal, sys
own = random.Random(int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    pid = os.fork()
    if pid:
        if own.random() < 0.3:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        continue
    cuda = ctypes.CDLL("libcuda.so.1")
    context, at, kept = ctypes.c_void_p(), ctypes.c_uint64(), own.randrange(6)
    for step in range(kept + 1):
        if step == 0: cuda.cuInit(0)
        if step == 1: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        if step == 2: cuda.cuCtxSetCurrent(context)
        if step > 2: cuda.cuMemAlloc_v2(ctypes.byref(at), 4096)
    if own.random() < 0.5:
        os.kill(os.getpid(), own.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)))
    os._exit(0)
print("done", flush=True)
"""


def storm(session, jobs, count, seed):
    running = [session.spawn([sys.executable, "-c", STORM, seed + job, count],
                             LD_LIBRARY_PATH=SOFTCUDA) for job in range(jobs)]
    for job in running:
        equal(job.line(150), "done", "storm: " + job.said())
        job.wait()


def agent_heap(session):
    """Bytes of memory of its own, without the ring, of which it maps more and more pages until it has mapped all."""
    with open("/proc/%d/status" % session.agent.pid) as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))


def agent_fds(session):
    return len(os.listdir("/proc/%d/fd" % session.agent.pid))


@case(long=True)
def test_storm_of_processes():
    """1,000 processes that use CUDA and end, many of them killed: nothing of them is left."""
    count = int(os.environ.get("STORM", "125"))
    with Session(memory="256M") as session:
        session.start_agent()
        storm(session, 8, 25, 1000)  # as many at once as below: the heap has its size
        wait_for("all are gone", lambda: status_of(session, "processes") == (0,))
        fds, heap = agent_fds(session), agent_heap(session)
        storm(session, 8, count, 1)
        wait_for("all are gone", lambda: status_of(session, "processes") == (0,))
        equal(status_of(session, "allocations", "mappings", "events_lost", "unreadable"),
              (0, 0, 0, 0), "what is left")
        wait_for("no more descriptors than before", lambda: agent_fds(session) <= fds + IDLE_THREADS)
        grown = agent_heap(session) - heap
        check(grown < 2 * MIB, "the agent grew by %d bytes" % grown)
        graph = session.ask("graph")
        equal([graph[part] for part in ("processes", "allocations", "communicators")], [[], [], []],
              "graph")
        equal(map_entries(session) or {},
              {"threads": 0, "processes": 0, "controls": 0, "lost": 0} if shutil.which("bpftool")
              else {}, "entries of the kernel side's maps")
        still_served(session)


def map_entries(session):
    """How many entries the kernel side holds of processes, by map; None without bpftool."""
    if not shutil.which("bpftool"):
        return None
    found, fds = {}, "/proc/%d/fdinfo" % session.agent.pid
    for fd in os.listdir(fds):
        try:
            with open(os.path.join(fds, fd)) as info:
                words = info.read().split()
        except FileNotFoundError:
            continue  # a link of one whose contexts were followed: closed a little later
        if "map_id:" not in words:
            continue
        number = words[words.index("map_id:") + 1]
        shown = json.loads(subprocess.run(["bpftool", "--json", "map", "show", "id", number],
                                          capture_output=True, text=True, check=True).stdout)
        if shown.get("name") in ("threads", "processes", "controls", "lost"):
            dump = subprocess.run(["bpftool", "--json", "map", "dump", "id", number],
                                  capture_output=True, text=True, check=True)
            found[shown["name"]] = len(json.loads(dump.stdout))
    return found


@case(long=True)
def test_end_that_was_lost():
    """A full ring loses the ends of processes, too: they are found gone."""
    with Session() as session:
        start(session, "--ring", "1")
        jobs = [Hostile(session, *ALL) for _ in range(4)]
        for job in jobs:
            job("call", "cuMemAlloc_v2", "good", 4096)
        flood = Hostile(session, *ALL)
        equal(status_of(session, "processes"), (5,), "processes")
        session.agent.signal(signal.SIGSTOP)
        for _ in range(3):  # more than the ring has room for
            flood("random", 1, 30000, limit=30)
        for job in jobs:
            job.end()
        session.agent.signal(signal.SIGCONT)
        wait_for("events were lost", lambda: status_of(session, "events_lost")[0] > 0)
        session.forgotten(*[job.pid for job in jobs], limit=15)
        equal(session.process(flood.pid)["complete"], False, "complete")
        flood.end()
        session.forgotten(flood.pid)
        equal(status_of(session, "processes"), (0,), "processes")
        stream = Stream(session)
        equal([event.type for event in stream.events(0.1)], [STATES["end"]], "what a recorder would be told")
        stream.close()


if __name__ == "__main__":
    sys.exit(main())
