#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Offload and restore: the agent, the control library and every byte are real, the GPUs are not.

The job is the golden recording of a real one (tests/data), or a small one made up for a case. See
lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import gzip
import json
import os
import resource
import signal
import socket
import struct
import sys
import time

from lien_test import (
    GOLDEN, LIEN, MIB, Failure, Session, alive, brief, case, check, equal, main,
    program, recording, start_pairs, state_of, wait_for)

from shapes import shapes

PAIRS = 24  # exported buffers of 2 MiB of each of two ranks
WHOLE = {"allocations": 2 * PAIRS, "bytes": 4 * PAIRS * MIB}


def shape(session, *pids):
    """The graph without what a restore may change: handle values and numbers of allocations."""
    found = []
    for allocation in session.ask("graph")["allocations"]:
        if allocation["owner"] == "lien-control":
            continue  # the host arena
        if allocation["pid"] not in pids:
            continue
        found.append([
            allocation["pid"], allocation["bytes"], allocation["owner"], allocation["exports"],
            allocation["state"],
            sorted([h["pid"], h["references"], h["imported"]] for h in allocation["handles"]),
            sorted([m["pid"], m["address"], m["bytes"], json.dumps(m["access"])]
                   for m in allocation["mappings"])])
    return sorted(found, key=json.dumps)


def rss_anon(pid):
    with open("/proc/%d/status" % pid) as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def open_files(session):
    """Those of the agent that stay: the contexts of a process are followed for a time only, by a
    link each."""
    folder, count = "/proc/%d/fd" % session.agent.pid, 0
    for name in os.listdir(folder):
        try:
            count += os.readlink(os.path.join(folder, name)) != "anon_inode:bpf_link"
        except FileNotFoundError:
            pass
    return count


def runs_as_before(session, job):
    """The job is whole, on the device, and can be moved."""
    equal(job.verify()[0], 4 * PAIRS, "mappings verified")
    equal(session.used(), WHOLE["bytes"], "device memory in use")
    for pid in job.ranks:
        equal(session.process(pid)["state"], "running", "state of %d" % pid)


def round_trip(session, job):
    result = session.ask("offload")
    equal((result["outcome"], result["bytes"]), ("done", WHOLE["bytes"]), "offload")
    equal(session.used(), 0, "device memory in use after the offload")
    result = session.ask("restore")
    equal((result["outcome"], result["bytes"]), ("done", WHOLE["bytes"]), "restore")
    runs_as_before(session, job)


# The golden recording

def check_counts(session, job, expected):
    """What the agent shows of the job is what it was when it was recorded."""
    mem = session.ask("mem")
    found = {}
    for row in mem["rows"]:
        check(row["pid"] in job.ranks, "a row of another process:", brief(row))
        owner = "nccl" if row["owner"] == "nccl" else "job"
        found[job.ranks.index(row["pid"]), owner, row["kind"]] = [
            row["allocations"], row["mappings"], row["bytes"], row["offload_frees"]]
    # A replay pins no host memory.
    made = [row for row in expected["rows"] if row["kind"] != "pinned host"]
    unmade = {name: sum(row[name] for row in expected["rows"] if row not in made)
              for name in ("allocations", "mappings")}
    wanted = {(row["rank"], "nccl" if row["owner"] == "nccl" else "job", row["kind"]):
              [row["allocations"], row["mappings"], row["bytes"], row["offload_frees"]]
              for row in made}
    equal(sorted(found.items()), sorted(wanted.items()), "rows of mem")
    equal((mem["bytes"], mem["offload_frees"]), (expected["bytes"], expected["offload_frees"]),
          "bytes in all, and that an offload frees")
    status = session.ask("status")
    equal([status[name] for name in ("allocations", "mappings", "events_lost", "unmatched_imports",
                                     "incomplete")],
          [expected["allocations"] - unmade["allocations"],
           expected["mappings"] - unmade["mappings"], 0, 0, []], "status")
    shared = sum(row["allocations"] for row in expected["rows"] if row["kind"] == "imported")
    two = [a for a in session.ask("graph")["allocations"]
           if {m["pid"] for m in a["mappings"]} == set(job.ranks)]
    equal(len(two), shared, "allocations that both ranks map")
    communicators = session.ask("graph")["communicators"]
    equal(len(communicators), expected["communicators"] * expected["ranks"], "communicators")
    for rank, pid in enumerate(job.ranks):
        equal([entry["rank"] for entry in session.process(pid)["ranks"]],
              [rank] * expected["communicators"], "ranks of %d" % pid)


@case(200)
def test_golden_three_rounds():
    with open(GOLDEN + ".json") as file:
        expected = json.load(file)["at_the_end"]
    with Session(memory="6G", LIEN_SOFTCUDA_STRICT="1") as session:
        session.start_agent()
        observer = session.driver(control=False)
        job = session.replay(GOLDEN)
        session.ready(*job.ranks)
        check(not session.process(observer.pid) or not session.process(observer.pid)["bytes"],
              "the observer has memory")
        check_counts(session, job, expected)
        before = shape(session, *job.ranks)
        mappings, size = job.verify()
        free = [observer("info", device)[0] for device in range(2)]
        files = open_files(session)
        moved, left = expected["offload_frees"], expected["bytes"] - expected["offload_frees"]
        for number in range(3):
            result = session.ask("offload")
            equal((result["outcome"], result["bytes"]), ("done", moved), "offload")
            equal(sorted(p["freed_bytes"] for p in result["processes"]),
                  sorted(p["bytes"] for p in result["processes"]), "freed_bytes and bytes")
            equal(result["left"], [], "left behind")
            equal(sum(observer("info", device)[0] - free[device] for device in range(2)), moved,
                  "freed, as cuMemGetInfo says in another process")
            equal(session.used(), left, "device memory in use")
            for pid in job.ranks:
                process = session.process(pid)
                equal((process["nccl_bytes"], process["imported_bytes"]), (0, 0), "on the device")
                check(rss_anon(pid) >= process["offloaded_bytes"] > 0,
                      "host memory of rank %d: %d" % (pid, rss_anon(pid)))
            equal(session.ask("offload")["outcome"], "nothing to do", "a second offload")
            result = session.ask("restore")
            equal((result["outcome"], result["bytes"]), ("done", moved), "restore")
            equal([observer("info", device)[0] for device in range(2)], free, "free memory")
            equal(shape(session, *job.ranks), before, "the graph after the restore")
            equal(job.verify(), (mappings, size), "verified")
            job.change(number + 7)
        equal(session.ask("restore")["outcome"], "nothing to do", "a second restore")
        equal(job.verify(), (mappings, size), "verified after the last change")
        equal(open_files(session), files, "open files of the agent")
        job.free()
        equal([row for row in session.ask("mem")["rows"] if row["bytes"]], [], "mem after free")
        equal(session.used(), 0, "device memory in use after free")
        job.quit()
        session.forgotten(*job.ranks)
        equal(session.ask("status")["events_lost"], 0, "events lost")


# What is put back

@case(60)
def test_synthetic_job_with_the_odd_cases():
    """Aliases, released handles, two imports of one export, windows: recording `basic`."""
    with Session(LIEN_SOFTCUDA_STRICT="1") as session:
        session.start_agent()
        job = session.replay(recording("basic"))
        session.ready(*job.ranks)
        before = shape(session, *job.ranks)
        verified = job.verify()
        mem = session.ask("mem")
        dry = session.ask("offload", "--dry-run")
        for seed in range(3):
            result = session.ask("offload")
            equal(result["outcome"], "done", "outcome")
            equal((result["bytes"], result["left"]), (dry["bytes"], dry["left"]),
                  "as the dry run said")
            equal(sorted((x["allocations"], x["reason"].split()[0]) for x in result["left"]),
                  [(1, "exported,"), (1, "registered"), (2, "imported")], "left")
            equal(session.used(), sum(-(-a["bytes"] // (2 * MIB)) * 2 * MIB
                                      for a in session.ask("graph")["allocations"]
                                      if a["state"] == "on the device"), "device memory in use")
            session.ask("restore")
            equal(shape(session, *job.ranks), before, "the graph")
            equal(job.verify(), verified, "verified")
            job.change(seed + 1)
        equal({**session.ask("mem"), "arena_bytes": 0}, {**mem, "arena_bytes": 0}, "mem")
        job.free()
        equal(session.used(), 0, "device memory in use after free")
        job.quit()


@case(40)
def test_aliases_references_and_released_handles():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        plan = {}  # first address: (references that the program holds, addresses)
        for references in range(4):
            handle, first = driver("make", 2 * MIB, 0)
            second = driver("show", 2 * MIB, handle, 0)
            for _ in range(references - 1):
                equal(driver("retain", second), handle, "retained handle")
            if not references:
                driver("release", handle)
            driver("fill", first, 2 * MIB, 0x30 + references)
            plan[first] = references, second
        read_only = driver("make", 2 * MIB, 0)[1]
        driver("fill", read_only, 2 * MIB, 0x77)
        half = driver("reserve", 8 * MIB, 0)  # a mapping in the middle of a reservation
        driver("map", half + 4 * MIB, 2 * MIB, driver("create", 2 * MIB, 1))
        driver("access", half + 4 * MIB, 2 * MIB, 1, 3)
        driver("info", 1)  # makes device 1 current
        driver("fill", half + 4 * MIB, 2 * MIB, 0x66)
        driver("info", 0)
        session.ready(driver.pid)
        before = shape(session, driver.pid)
        for _ in range(2):
            equal(session.ask("offload", "--owner", "all")["bytes"], 12 * MIB, "bytes")
            equal(session.used(), 0, "device memory in use")
            session.ask("restore")
            equal(shape(session, driver.pid), before, "the graph")
        for first, (references, second) in plan.items():
            equal(driver("check", first, 2 * MIB, 0x30 + references), 0, "wrong bytes")
            equal(driver("check", second, 2 * MIB, 0x30 + references), 0, "wrong bytes of an alias")
            driver("fill", second, 2 * MIB, 0x40 + references)
            equal(driver("check", first, 2 * MIB, 0x40 + references), 0, "not an alias any more")
            handle = driver("retain", first)
            for _ in range(references + 1):
                driver("release", handle)
            driver.refused("release", handle)
            driver("unmap", first, 2 * MIB)
            driver("unmap", second, 2 * MIB)
        equal(driver("check", read_only, 2 * MIB, 0x77), 0, "wrong bytes")
        driver("info", 1)
        equal(driver("check", half + 4 * MIB, 2 * MIB, 0x66), 0, "wrong bytes on device 1")
        equal([session.used(0), session.used(1)], [2 * MIB, 2 * MIB], "device memory in use")
        check(session.process(driver.pid)["complete"], "the process has become incomplete")


@case(40)
def test_calls_that_are_bound_after_the_offload():
    """The linker looks a function up when it is first called, here not before memory has gone."""
    with Session() as session:
        session.start_agent()
        driver = shapes(session, control=True)
        handle = driver("create", 2 * MIB, 0, 1)
        va = driver("reserve", 2 * MIB)
        driver("map", va, 2 * MIB, handle, 0)
        driver("access", va, 2 * MIB, 0, 3)
        session.ready(driver.pid)
        session.ask("offload", "--owner", "all")
        other = driver("create", 2 * MIB, 0, 1)
        session.ask("restore")
        fd = driver("export", handle)
        driver("release", driver("import", fd))
        driver("close", fd)
        driver("unmap", va, 2 * MIB)
        equal(session.used(), 4 * MIB, "device memory in use")
        driver("release", handle)
        equal(session.used(), 2 * MIB, "device memory in use without the first")
        driver("release", other)
        equal(session.used(), 0, "device memory in use at the end")


@case(40)
def test_two_devices_in_one_process():
    with Session() as session:
        session.start_agent()
        driver = session.driver(device=0)
        driver("init", 1)
        made = [(device, 2 * MIB * (1 + i % 3), i) for i, device in enumerate([0, 1] * 6)]
        places = [(driver("make", size, device)[1], size, i) for device, size, i in made]
        for va, size, i in places:
            driver("init", i % 2)  # makes that device's context current
            driver("fill", va, size, 0x30 + i)
        session.ready(driver.pid)
        equal(session.process(driver.pid)["devices"], [0, 1], "devices")
        for _ in range(2):
            result = session.ask("offload", "--owner", "all")
            equal(result["bytes"], sum(size for _, size, _ in made), "moved")
            equal(session.used(), 0, "device memory in use")
            session.ask("restore")
            for va, size, i in places:
                driver("init", i % 2)
                equal(driver("check", va, size, 0x30 + i), 0, "wrong bytes of %d" % i)


@case(40)
def test_what_cannot_be_moved_stays():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        plain = driver("alloc", 3 * MIB)
        unmapped = driver("create", 2 * MIB, 0)
        handle, _ = driver("make", 2 * MIB, 0)
        fd = driver("export", handle)
        again = driver("import", fd)  # its own memory, imported
        driver("close", fd)
        read_only = driver("create", 2 * MIB, 0)
        place = driver("show", 2 * MIB, read_only, 0)
        driver("access", place, 2 * MIB, 0, 1)
        driver("fill", plain, 3 * MIB, 1)
        session.ready(driver.pid)
        used = session.used()
        dry = session.ask("offload", "--owner", "all", "--dry-run")
        result = session.ask("offload", "--owner", "all")
        equal((result["bytes"], result["left"]), (dry["bytes"], dry["left"]), "as the dry run said")
        equal(result["bytes"], 2 * MIB, "moved")
        reasons = {x["reason"]: (x["allocations"], x["bytes"]) for x in result["left"]}
        equal(sorted(reasons.values()), [(1, 2 * MIB)] * 3 + [(1, 3 * MIB)], "left")
        for word in ("cudaMalloc", "without mapping it", "imported by its own", "be copied"):
            check(any(word in reason for reason in reasons), "no reason with '%s': %s" % (
                word, brief(reasons)))
        equal(session.used(), used - 2 * MIB, "device memory in use")
        equal(driver("check", plain, 3 * MIB, 1), 0, "wrong bytes of what stayed")
        session.ask("restore")
        equal(session.used(), used, "device memory in use")
        driver("release", unmapped)
        driver("release", again)


@case(40)
def test_what_keeps_the_old_memory_stays():
    """Network cards, dma-bufs and multicast objects: named, left behind, and refused with --strict."""
    with Session() as session:
        session.start_agent()
        driver = shapes(session, control=True)

        def made():
            handle, va = driver("create", 2 * MIB, 0, 1), driver("reserve", 2 * MIB)
            driver("map", va, 2 * MIB, handle, 0)
            driver("access", va, 2 * MIB, 0, 3)
            driver("fill", va, 2 * MIB, 0x51)
            return handle, va
        _, free = made()
        driver.refused("ibv-reg", 4096, 4096)  # opens the library, which is then probed
        wait_for("libibverbs is probed", lambda: any(
            row["library"] == "ibverbs" for row in session.ask("status")["libraries"]))
        _, on_card = made()
        region = driver("ibv-reg", on_card, 4096)
        _, as_buffer = made()
        fd = driver("range-handle", as_buffer, 2 * MIB)
        bound, in_multicast = made()
        multicast = driver("mc-create", 1, 4 * MIB, 1)
        driver("mc-add", multicast, 0)
        driver("mc-bind", multicast, 0, bound, 0, 2 * MIB)
        session.ready(driver.pid)
        stay = {"network card": on_card, "dma-buf": as_buffer, "bound to a multicast": in_multicast}
        session.refused("offload", "--owner", "all", "--strict",
                        text="network card|dma-buf|bound to a multicast")
        result = session.ask("offload", "--owner", "all")
        equal(result["bytes"], 2 * MIB, "moved")
        for word in stay:
            found = [row for row in result["left"] if word in row["reason"]]
            equal([(row["allocations"], row["bytes"]) for row in found], [(1, 2 * MIB)], word)
        for va in stay.values():
            equal(driver("check", va, 2 * MIB, 0x51), 0, "wrong bytes of what stayed")
        session.ask("restore")
        equal(driver("check", free, 2 * MIB, 0x51), 0, "wrong bytes")
        driver("ibv-dereg", region)
        driver("mc-unbind", multicast, 0, 0, 2 * MIB)
        result = session.ask("offload", "--owner", "all")
        equal(result["bytes"], 6 * MIB, "moved when the card and the object have let go")
        session.ask("restore")
        driver("close", fd)


@case()
def test_open_files_that_cannot_be_read():
    """Exported memory may still be open somewhere: who cannot find out refuses."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        handle, va = driver("make", 2 * MIB, 0)
        driver("export", handle)
        driver("fill", va, 2 * MIB, 0x51)
        session.ready(driver.pid)
        taken = {int(fd) for fd in os.listdir("/proc/%d/fd" % session.agent.pid)}
        _, second = [fd for fd in range(len(taken) + 2) if fd not in taken][:2]
        before = resource.prlimit(session.agent.pid, resource.RLIMIT_NOFILE)
        # One is left, for the connection.
        resource.prlimit(session.agent.pid, resource.RLIMIT_NOFILE, (second, before[1]))
        session.refused("offload", "--owner", "all", text="still open somewhere: Too many open files")
        resource.prlimit(session.agent.pid, resource.RLIMIT_NOFILE, before)
        session.ask("offload", "--owner", "all")
        session.ask("restore")
        equal(driver("check", va, 2 * MIB, 0x51), 0, "wrong bytes")


# Who takes part

@case(60)
def test_closure():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        first, second = job.ranks
        for pid, other in ((first, second), (second, first)):
            for more in ([], ["--dry-run"]):
                session.refused("offload", "--pid", pid, *more,
                                text="mapped by process %d at 0x[0-9a-f]+, which is not selected" %
                                other)
        runs_as_before(session, job)
        result = session.ask("offload", "--pid", first, "--with-closure")
        equal((result["outcome"], result["bytes"]), ("done", WHOLE["bytes"] // 2), "with closure")
        equal(sorted(p["pid"] for p in result["processes"]), sorted(job.ranks), "processes")
        equal(session.process(first)["state"], "partly offloaded", "state of the owner")
        equal(session.used(0), 0, "device 0")
        equal(session.used(1), WHOLE["bytes"] // 2, "device 1")
        session.ask("restore", "--pid", second)  # those who share are restored together
        runs_as_before(session, job)
        result = session.ask("offload", "--pid", first, "--pid", second)
        equal(result["bytes"], WHOLE["bytes"], "both")
        session.ask("restore", "--pid", first)
        runs_as_before(session, job)
        job.quit()


@case(40)
def test_dry_run_and_strict():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        before = session.ask("graph")
        dry = session.ask("offload", "--dry-run")
        equal((dry["outcome"], dry["bytes"]), ("dry run", WHOLE["bytes"]), "dry run")
        equal([p["freed_bytes"] for p in dry["processes"]], [None, None], "freed_bytes")
        equal([p["mappings"] for p in dry["processes"]], [2 * PAIRS] * 2, "mappings")
        equal(session.ask("graph"), before, "the graph after a dry run")
        runs_as_before(session, job)
        other = session.driver()
        va = other("alloc", 3 * MIB)
        other("fill", va, 3 * MIB, 5)
        other("make", 2 * MIB, 0)
        session.ready(other.pid)
        for more in ([], ["--dry-run"]):
            session.refused("offload", "--owner", "all", "--strict", *more,
                            text=r"%d bytes of process %d at 0x[0-9a-f]+ would be left behind: cudaMalloc" % (
                                3 * MIB, other.pid))
        equal(session.used(), WHOLE["bytes"] + 6 * MIB, "device memory in use")
        equal(session.ask("offload", "--strict")["bytes"], WHOLE["bytes"], "all of NCCL's memory")
        session.ask("restore")
        equal(other("check", va, 3 * MIB, 5), 0, "wrong bytes")
        other.end()
        runs_as_before(session, job)


@case(40)
def test_nothing_to_do():
    with Session() as session:
        session.start_agent()
        for command in (["offload"], ["offload", "--owner", "all"], ["offload", "--strict"],
                        ["restore"], ["offload", "--owner", "nobody"]):
            equal(session.ask(*command)["outcome"], "nothing to do", " ".join(command))
            equal(session.lien(*command).code, 0, " ".join(command))
        job = start_pairs(session, PAIRS)
        equal(session.ask("restore")["outcome"], "nothing to do", "nothing is offloaded")
        equal(session.ask("restore", "--pid", job.ranks[0])["outcome"], "nothing to do", "--pid")
        session.ask("offload")
        for _ in range(2):
            equal(session.ask("offload")["outcome"], "nothing to do", "a second offload")
        equal(session.ask("offload", "--pid", job.ranks[1])["outcome"], "nothing to do", "--pid")
        session.ask("restore")
        equal(session.ask("restore")["outcome"], "nothing to do", "a second restore")
        runs_as_before(session, job)


@case(40)
def test_holder_without_control_library():
    with Session() as session:
        session.start_agent()
        owner = session.driver()
        bare = session.driver(control=False)
        handle, va = owner("make", 2 * MIB, 0)
        owner("fill", va, 2 * MIB, 3)
        fd = owner("export", handle)
        taken = bare("getfd", owner.pid, fd)
        place = bare("show", 2 * MIB, bare("import", taken), 0)
        owner("close", fd)
        bare("close", taken)
        session.ready(owner.pid)
        for more in ([], ["--with-closure", "--pid", owner.pid], ["--dry-run"]):
            session.refused("offload", "--owner", "all", *more, text="mapped by process %d at %s, "
                            "which cannot take part: .*no control library" % (bare.pid, hex(place)))
        equal(session.process(bare.pid)["control"], "none", "control")
        equal(bare("check", place, 2 * MIB, 3), 0, "wrong bytes")
        bare.end()
        session.forgotten(bare.pid)
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "bytes")
        session.ask("restore")
        equal(owner("check", va, 2 * MIB, 3), 0, "wrong bytes")


@case(40)
def test_processes_without_control_library():
    with Session() as session:
        session.start_agent()
        job = session.replay(recording("pairs", PAIRS), "--no-control")
        dry = session.ask("offload")
        equal(dry["outcome"], "nothing to do", "outcome")
        equal(sorted(x["pid"] for x in dry["left"]), sorted(job.ranks), "left")
        check("lien attach" in dry["left"][0]["reason"], brief(dry))
        session.refused("offload", "--pid", job.ranks[0], text="no control library")
        runs_as_before(session, job)


# Not quiet

@case(60)
def test_busy_device():
    busy = None
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS)
        open(busy, "w").close()
        began = time.monotonic()
        said = session.refused("offload", "--timeout", 600, text="process (%d|%d), drain: " % (
            job.ranks[0], job.ranks[1]))
        took = time.monotonic() - began
        check("busy" in said, said)
        check(0.5 <= took < 5, "refused after %.1f s" % took)
        equal(session.used(), WHOLE["bytes"], "device memory in use")
        said = session.refused("offload", "--timeout", 300, text="busy")
        os.unlink(busy)
        runs_as_before(session, job)
        round_trip(session, job)
        job.quit()


@case(60)
def test_capture_under_way():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        driver = session.driver()
        handle, va = driver("make", 2 * MIB, 0)
        driver("fill", va, 2 * MIB, 8)
        session.ready(driver.pid)
        for mode in (0, 1, 2):  # global, thread-local, relaxed
            driver("capture", mode)
            session.refused("offload", "--owner", "all",
                            text="process %d is capturing a CUDA graph" % driver.pid)
            equal(session.ask("offload", "--owner", "all", "--pid", *[job.ranks[0]], "--pid",
                              job.ranks[1])["bytes"], WHOLE["bytes"], "of the others")
            session.ask("restore")
            driver("capture-end")  # fails when the capture was spoilt
            check(session.process(driver.pid)["complete"], "incomplete after a capture")
            equal(session.ask("offload", "--owner", "all")["bytes"], WHOLE["bytes"] + 2 * MIB,
                  "after the capture")
            session.ask("restore")
            equal(driver("check", va, 2 * MIB, 8), 0, "wrong bytes")
        job.verify()


@case(90)
def test_stopped_rank():
    """A process that does not answer is waited for with a limit, and named."""
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        os.kill(job.ranks[1], signal.SIGSTOP)
        wait_for("it is stopped", lambda: state_of(job.ranks[1]) == "T")
        began = time.monotonic()
        session.refused("offload", "--timeout", 1000, text="process %d did not answer" %
                        job.ranks[1], limit=40)
        took = time.monotonic() - began
        check(took < 15, "refused after %.1f s" % took)
        equal(session.used(), WHOLE["bytes"], "device memory in use")
        session.ask("ps", limit=5)
        os.kill(job.ranks[1], signal.SIGCONT)
        runs_as_before(session, job)
        round_trip(session, job)
        job.quit()


# Death

def offload_in_drain(session, busy):
    """An offload that waits for a busy device; its client."""
    open(busy, "w").close()
    client = session.spawn([LIEN, "offload", "--json", "--timeout", "20000"])

    def draining():
        transaction = session.ask("status")["transaction"]
        return transaction and transaction["phase"] == "drain"
    wait_for("the offload drains", draining)
    return client


@case(60)
def test_rank_killed_in_the_middle_of_an_offload():
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS, "--keep-going")
        client = offload_in_drain(session, busy)
        os.kill(job.ranks[1], signal.SIGKILL)
        wait_for("it is dead", lambda: not alive(job.ranks[1]))
        time.sleep(0.3)
        check(session.agent.popen.poll() is None, "the agent died with %s" %
              session.agent.popen.poll())
        os.unlink(busy)
        equal(client.wait(20), 1, "exit status of the offload")
        check("process %d ended" % job.ranks[1] in client.said(), client.said())
        equal(job.verify()[0], 2 * PAIRS, "mappings of the other rank")
        check(session.process(job.ranks[1]) is None, "the dead one is still there")
        equal(session.process(job.ranks[0])["state"], "running", "state")
        equal(session.ask("offload")["bytes"], WHOLE["bytes"] // 2, "the other one's own memory")
        session.ask("restore")
        equal(job.verify()[0], 2 * PAIRS, "mappings of the other rank")


@case(60)
def test_job_ends_in_the_middle_of_an_offload():
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        for end in ("quit", "kill") * 4:
            job = start_pairs(session, PAIRS)
            client = offload_in_drain(session, busy)
            if end == "quit":
                job.process.send("quit")
            else:
                job.end()
            session.ask("ps", limit=5)
            wait_for("the ranks are dead", lambda j=job: not any(map(alive, j.ranks)))
            os.unlink(busy)
            equal(client.wait(30), 1, "exit status of the offload when the job did " + end)
            session.ask("ps", limit=5)
            job.end()
            session.forgotten(*job.ranks)
        equal(session.used(), 0, "device memory in use")


@case(60)
def test_rank_killed_while_offloaded():
    with Session() as session:
        session.start_agent()
        owner, other = session.driver(device=0), session.driver(device=1)
        handle, theirs = other("make", 4 * MIB, 1)
        _, mine = owner("make", 2 * MIB, 0)
        owner("fill", mine, 2 * MIB, 0x21)
        fd = other("export", handle)
        place = owner("show", 4 * MIB, owner.take(other, fd), 0)
        other("fill", theirs, 4 * MIB, 0x22)
        other("close", fd)
        session.ready(owner.pid, other.pid)
        equal(session.ask("offload", "--owner", "all")["bytes"], 6 * MIB, "bytes")
        other.process.signal(signal.SIGKILL)
        other.process.wait()
        wait_for("it is forgotten", lambda: not session.process(other.pid))
        outcome = session.lien("restore")
        session.ask("ps", limit=5)
        equal(owner("check", mine, 2 * MIB, 0x21), 0, "wrong bytes of the survivor's own memory")
        # The imported memory is gone for good: that has to be said.
        check(outcome.code == 1, "a restore that lost memory succeeded: %s" % outcome)
        check("nothing is lost" not in outcome.err, "memory is lost: %s" % outcome)
        check(str(other.pid) in outcome.err or hex(place) in outcome.err,
              "the damage is not named: %s" % outcome)


@case(60)
def test_survivor_can_be_moved_again():
    """After its peer died while both were offloaded, a rank goes on with what it has."""
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS, "--keep-going")
        session.ask("offload")
        os.kill(job.ranks[1], signal.SIGKILL)
        wait_for("it is forgotten", lambda: not session.process(job.ranks[1]))
        session.lien("restore")
        equal(session.used(0), WHOLE["bytes"] // 2, "device memory of the survivor")
        result = session.ask("offload")
        equal(result["bytes"], WHOLE["bytes"] // 2, "moved again")
        session.lien("restore")
        equal(session.used(0), WHOLE["bytes"] // 2, "device memory of the survivor")


@case(60)
def test_agent_killed_while_offloaded():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        for seed in (1, 2):
            if seed == 1:
                session.ask("offload")
            else:  # only a new job is known from its beginning
                job.quit()
                job = start_pairs(session, PAIRS)
                session.ask("offload")
            equal(session.used(), 0, "device memory in use")
            session.kill_agent()
            equal(session.used(), 0, "device memory in use")
            session.start_agent()
            session.ready(*job.ranks)
            if seed == 1:
                result = session.ask("restore")
                equal((result["outcome"], result["bytes"]), ("done", WHOLE["bytes"]), "restore")
            else:
                session.ask("restore", "--pid", job.ranks[0])
            equal(session.used(), WHOLE["bytes"], "device memory in use")
            equal(job.verify()[0], 4 * PAIRS, "mappings verified")
            job.change(seed)
            equal(job.verify()[0], 4 * PAIRS, "mappings verified")
            equal(session.ask("restore")["outcome"], "nothing to do", "a second restore")


@case(120)
def test_agent_ended_while_offloaded():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        session.ask("offload")
        session.stop_agent()
        session.start_agent("--no-uprobe-multi")
        session.ready(*job.ranks)
        equal(session.ask("restore")["bytes"], WHOLE["bytes"], "restore")
        equal(job.verify()[0], 4 * PAIRS, "mappings verified")


@case(40)
def test_new_agent_shows_what_is_offloaded():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        session.ask("offload")
        session.kill_agent()
        session.start_agent()
        session.ready(*job.ranks)
        for pid in job.ranks:
            process = session.process(pid)
            check(process["state"] != "running" and process["offloaded_bytes"], brief(process))


@case(60)
def test_agent_killed_in_the_middle_of_an_offload():
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS)
        client = offload_in_drain(session, busy)
        session.kill_agent()
        equal(client.wait(10), 1, "exit status of the client")
        os.unlink(busy)
        equal(job.verify()[0], 4 * PAIRS, "mappings verified")
        session.start_agent()
        session.ready(*job.ranks)
        equal(session.ask("restore")["outcome"], "nothing to do", "restore")
        equal(job.verify()[0], 4 * PAIRS, "mappings verified")
        job.free()
        job.quit()


@case(60)
def test_client_killed_in_the_middle_of_an_offload():
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS)
        client = offload_in_drain(session, busy)
        client.signal(signal.SIGKILL)
        client.wait()
        session.refused("offload", text="another transaction is under way")
        session.refused("restore", text="another transaction is under way")
        os.unlink(busy)
        wait_for("the transaction ends", lambda: session.ask("status")["transaction"] is None)
        session.ask("restore")
        runs_as_before(session, job)
        round_trip(session, job)


# No room

@case(60)
def test_device_filled_while_offloaded():
    with Session(memory="256M") as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        session.ask("offload")
        hog = session.driver(control=False)
        taken = [hog("alloc", 230 * MIB)]
        for _ in range(2):
            session.refused("restore", text="device 0 of process %d needs 48.0 MiB and has 26.0 "
                            "MiB free: free 22.0 MiB there; nothing is lost: `lien restore` again"
                            % job.ranks[0])
            equal(session.used(1), 0, "device memory of the other, for which there is room")
        hog("memfree", taken.pop())
        result = session.ask("restore")
        equal(result["outcome"], "done", "outcome")
        runs_as_before(session, job)
        hog.end()
        round_trip(session, job)
        job.free()
        job.quit()


@case(60)
def test_no_host_memory():
    with Session(memory="2G") as session:
        session.start_agent()
        driver = session.driver()
        handle, va = driver("make", 512 * MIB, 0)
        driver("fill", va, 512 * MIB, 4)
        small = driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        with open("/proc/%d/statm" % driver.pid) as statm:
            size = int(statm.read().split()[0]) * resource.getpagesize()
        driver("limit", resource.RLIMIT_AS, size + 128 * MIB)
        session.refused("offload", "--owner", "all",
                        text="process %d, save: no pinned host memory" % driver.pid)
        equal(session.used(), 514 * MIB, "device memory in use")
        equal(driver("check", va + 500 * MIB, MIB, 4), 0, "wrong bytes")
        driver("release", handle)
        driver("unmap", va, 512 * MIB)
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "what there is room for")
        session.ask("restore")
        check(driver("retain", small[1]), "not restored")


# Changed behind the agent's back

@case(40)
def test_job_changes_between_offload_and_restore():
    """Calls of the program while its memory is away are the program's fault, and harm no other."""
    with Session() as session:
        session.start_agent()
        driver, other = session.driver(), session.driver()
        places = {}
        for each in (driver, other):
            _, places[each] = each("make", 2 * MIB, 0)
            each("fill", places[each], 2 * MIB, 6)
        session.ready(driver.pid, other.pid)
        session.ask("offload", "--owner", "all")
        new = driver("make", 2 * MIB, 0)  # new memory meanwhile
        driver("fill", new[1], 2 * MIB, 7)
        equal(session.process(driver.pid)["state"], "partly offloaded", "state")
        outcome = session.lien("offload", "--owner", "all")  # moved too, or refused with a remedy
        check(outcome.code == 0 or outcome.code == 1 and "restore" in outcome.err, outcome)
        session.ask("restore")
        equal(driver("check", new[1], 2 * MIB, 7), 0, "wrong bytes")
        for each, va in places.items():
            equal(each("check", va, 2 * MIB, 6), 0, "wrong bytes of what went first")
        equal(session.used(), 6 * MIB, "device memory in use")


# Agents

@case(40)
def test_second_agent():
    with Session() as session:
        agent = session.start_agent()
        outcome = session.lien("agent")
        check(outcome.code == 1 and "listens on %s already" % session.socket in outcome.err,
              outcome)
        equal(len(outcome.err.splitlines()), 1, "lines: %s" % outcome)
        session.ask("ps")
        session.kill_agent()
        check(os.path.exists(session.socket), "no socket is left by a killed agent")
        session.refused("ps", text="start one with `lien agent`")
        check(session.start_agent().pid != agent.pid, "the same agent")
        session.ask("ps")
        session.stop_agent()
        check(not os.path.exists(session.socket), "the socket is left by an agent that ended")


@case(60)
def test_second_agent_with_another_socket():
    """One per node: the second one refuses, or at least takes nothing from the first one."""
    with Session() as session:
        session.start_agent()
        second = session.spawn([LIEN, "agent", "--no-journal", "--socket",
                                session.path("other.sock")])
        wait_for("it is ready or ended", lambda: second.popen.poll() is not None or
                 " ready: " in second.said(), 15)
        job = session.replay(recording("pairs", PAIRS))
        sockets = [session.socket, session.path("other.sock")]

        def controls(pid):
            answers = [session.lien("ps", "--json", "--socket", path) for path in sockets]
            return sorted(p["control"] for answer in answers
                          for p in json.loads(answer.out)["processes"] if p["pid"] == pid)
        try:
            for pid in job.ranks:
                wait_for("one agent has the process", lambda p=pid:
                         controls(p) == ["ready", "taken"])
            outcomes = [session.lien("offload", "--pid", job.ranks[0], "--with-closure",
                                     "--dry-run", "--socket", path) for path in sockets]
            check(1 in [o.code for o in outcomes], "both agents would move it")
            check("another agent" in outcomes[0].err + outcomes[1].err,
                  "no reason: %s" % (outcomes[0].err + outcomes[1].err))
            for path in sockets:
                session.lien("offload", "--socket", path)
            for path in sockets:
                session.lien("restore", "--socket", path)
            equal(job.verify()[0], 4 * PAIRS, "mappings verified")
        finally:
            second.end()


@case(40)
def test_agent_without_rights():
    with Session() as session:
        os.chmod(session.folder, 0o777)
        for prefix, words in (
                (["setpriv", "--reuid", "65534", "--clear-groups"], "CAP_BPF, CAP_PERFMON"),
                (["su", "-s", "/bin/sh", "nobody", "-c", 'exec "$0" "$@"', "--"], "CAP_BPF"),
                (["setpriv", "--bounding-set", "-bpf,-sys_admin", "--inh-caps", "-all"], "CAP_BPF"),
                (["setpriv", "--bounding-set", "-perfmon,-sys_admin"], "CAP_PERFMON"),
                (["setpriv", "--bounding-set", "-sys_ptrace"], "CAP_SYS_PTRACE")):
            agent = session.spawn([*prefix, LIEN, "agent", "--socket", session.path("x.sock")])
            try:
                code = agent.wait(10)
            except Failure:
                raise Failure("runs on: %s; %s" % (" ".join(prefix), agent.said())) from None
            lines = [line for line in agent.said().splitlines() if line.strip()]
            check(code == 1, "%s: exit status %d: %s" % (" ".join(prefix), code, lines))
            check(len(lines) == 1, "%s: not one line: %s" % (" ".join(prefix), lines))
            check(words in lines[0], "%s: no %s: %s" % (" ".join(prefix), words, lines))
            check("run as root" in lines[0], "no remedy: %s" % lines)
            check(not os.path.exists(session.path("x.sock")), "a socket is left behind")


@case(40)
def test_wrong_input():
    with Session() as session:
        session.refused("ps", text="no agent listens on .* start one with `lien agent`")
        session.start_agent()
        driver = session.driver()
        _, va = driver("make", 2 * MIB, 0)
        pid = driver.pid
        dead = session.driver()
        dead.end()
        wait_for("the dead one is forgotten", lambda: not session.process(dead.pid))
        for number in (dead.pid, os.getpid(), 4000000):
            for command in (["offload", "--pid", number], ["restore", "--pid", number],
                            ["offload", "--dry-run", "--pid", number],
                            ["offload", "--pid", pid, "--pid", number],
                            ["holders", number, "0x1000"]):
                session.refused(*command, text="process %d is not known to the agent" % number)
        for address in ("0x1000", "0", hex(va - 1), hex(va + 2 * MIB), "0xffffffffffffffff"):
            session.refused("holders", pid, address, text="no GPU memory is known at")
        session.ask("holders", pid, hex(va + 2 * MIB - 1))
        for command in (["holders", pid], ["holders", pid, "zzz"], ["holders", "-1", "0x10"],
                        ["holders", pid, "0x1" + "0" * 20], ["offload", "--pid", "x"],
                        ["offload", "--pid", "0"], ["offload", "--timeout", "0"],
                        ["offload", "--timeout", "-1"], ["offload", "--timeout", "1e9"],
                        ["offload", "--nonsense"], ["offload", "extra"], ["restore", "--strict"],
                        ["graph", "--format", "png"], ["mem", "--pid", "0x"], ["nonsense"], [],
                        ["run"], ["record"], ["replay"]):
            outcome = session.lien(*command)
            check(outcome.code == 2 and outcome.err and not outcome.out,
                  "not refused as wrong usage: %s" % outcome)
        outcome = session.lien("mem", "--json", "--pid", dead.pid)
        check(outcome.code in (0, 1), outcome)
        session.refused("graph", "--output", session.path("no/such/folder"), text="No such file")
        equal(session.process(pid)["bytes"], 2 * MIB, "bytes")


@case(40)
def test_wrong_requests():
    with Session() as session:
        session.start_agent()
        for line in ("", "{}", "[]", "null", "nonsense", "{\"op\": 1}", "{\"op\": \"nonsense\"}",
                     "{\"op\": \"ps\", \"pid\": 1}", "{\"op\": \"ps\", \"op\": \"mem\"}",
                     "{\"op\": \"offload\", \"owner\": 1}", "{\"op\": \"offload\", \"pids\": 1}",
                     "{\"op\": \"offload\", \"pids\": [\"1\"]}",
                     "{\"op\": \"offload\", \"pids\": [0]}",
                     "{\"op\": \"offload\", \"pids\": [-5]}",
                     "{\"op\": \"offload\", \"timeout_ms\": 0}",
                     "{\"op\": \"offload\", \"timeout_ms\": \"1\"}",
                     "{\"op\": \"offload\", \"timeout_ms\": 1e300}",
                     "{\"op\": \"offload\", \"strict\": 1}",
                     "{\"op\": \"restore\", \"strict\": true}",
                     "{\"op\": \"holders\"}", "{\"op\": \"holders\", \"pid\": 1}",
                     "{\"op\": \"holders\", \"pid\": 1, \"address\": 4096}",
                     "{\"op\": \"holders\", \"pid\": 1, \"address\": \"0x\"}",
                     "{\"op\": \"holders\", \"pid\": 1, \"address\": \"0xzz\"}",
                     "{\"op\": \"holders\", \"pid\": -1, \"address\": \"0x10\"}",
                     "{\"op\": \"ps\"} x", "{\"op\": \"\\ud800\"}", "\0", "[" * 5000,
                     "{\"op\": \"" + "x" * 100000 + "\"}"):
            answer = session.request(line + "\n")
            try:
                reply = json.loads(answer)
            except ValueError:
                raise Failure("no JSON for %s: %s" % (brief(line), brief(answer))) from None
            check(reply["ok"] is False and reply["error"] and "\n" not in reply["error"],
                  "%s: %s" % (brief(line), brief(answer)))
        answer = session.request(b"\xff\xfe{\"op\": \"ps\"}\n")
        equal(json.loads(answer)["ok"], False, "not UTF-8")
        # A request without end, many at once, half of one, and those who hang up early.
        check("longer than 1 MiB" in session.request(b"x" * (1 << 20)), "a long line was taken")
        answers = session.request("{\"op\": \"status\"}\n" * 50)
        check(answers.count("\n") >= 1 and "\"ok\": true" in answers.replace("\":true", "\": true"),
              brief(answers))
        files = "/proc/%d/fd" % session.agent.pid
        before, connections = len(os.listdir(files)), []
        for number in range(100):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(session.socket)
            connection.sendall([b"{\"op\": \"graph\"}\n", b"{\"op\":", b"", b"\n\n\n",
                                b"{\"op\": \"record\"}\n"][number % 5])
            connections.append(connection)
        session.ask("ps", limit=5)
        for connection in connections:
            connection.close()
        session.ask("ps", limit=5)
        wait_for("connections are closed", lambda: len(os.listdir(files)) < before + 10)


# Recordings

def mappings_of(state):
    """Of a program that said its state."""
    return sum(len(a["mappings"]) for a in state["allocations"]) + len(state["plain"])


@case(90)
def test_record_and_replay():
    with Session(memory="2G") as session:
        session.start_agent()
        path = session.path("churn.lien")
        outcome = session.lien("record", "--json", path, "--", program("prog_churn"), 4, 6000,
                               "hints", "imports", text="")
        check(outcome.code == 0, outcome)
        lines = outcome.out.split("\n", 1)
        state, summary = json.loads(lines[0]), json.loads(lines[1])
        check(summary["processes"] == 1 and summary["events"] > 6000, brief(summary))
        replayed = session.lien("replay", "--verify", "--json", path, limit=60)
        check(replayed.code == 0, replayed)
        result = json.loads(replayed.out)
        equal((result["ok"], result["lost"], sum(result["skipped"].values())), (True, 0, 0),
              "ok, lost, skipped")
        equal([(worker["mappings"], worker["ended"]) for worker in result["workers"]],
              [(mappings_of(state), True)], "mappings at its end")


@case(60)
def test_record_from_the_middle():
    """The state of then, and what comes after, replayed."""
    with Session(memory="2G") as session:
        session.start_agent()
        job = session.spawn([program("prog_churn"), 4, 6000, "hints", "simple"])
        json.loads(job.line() or "null")
        middle = session.path("middle.lien")
        recorder = session.spawn([LIEN, "record", middle, "--json"])
        wait_for("the recorder is there", lambda: os.path.exists(middle))
        time.sleep(0.5)
        job.send("more")
        state = json.loads(job.line() or "null")
        time.sleep(0.5)
        recorder.signal(signal.SIGINT)
        equal(recorder.wait(10), 0, "exit status of record")
        held = session.replay(middle)
        mappings = mappings_of(state)
        equal(sum(held.mappings.values()), mappings, "mappings at the end; " +
              brief(held.process.said()))
        held.verify()
        job.end()
        rows = [row for row in session.ask("mem")["rows"] if row["pid"] == held.ranks[0]]
        equal(sum(row["mappings"] for row in rows), mappings, "mappings that the agent sees")
        held.free()
        held.quit()


def snapshot_replayed(session, *drivers):
    """What a recording has that begins and ends now, by replaying it."""
    path = session.path("now.lien")
    outcome = session.lien("record", path, "--seconds", 1)
    check(outcome.code == 0, outcome)
    for driver in drivers:
        driver.end()
    return session.replay(path)


def holders_of(session, pid):
    return sorted([a["bytes"], sorted(h["references"] for h in a["handles"]), len(a["mappings"])]
                  for a in session.ask("graph")["allocations"] if a["pid"] == pid)


@case(30)
def test_record_of_references():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        handle, va = driver("make", 2 * MIB, 0)
        driver("retain", va)
        driver("retain", va)
        _, va = driver("make", 4 * MIB, 0)
        driver("release", driver("retain", va))
        driver("release", driver("retain", va))
        before = holders_of(session, driver.pid)
        equal(before, [[2 * MIB, [3], 1], [4 * MIB, [1], 1]], "holders")
        held = snapshot_replayed(session, driver)
        equal(holders_of(session, held.ranks[0]), before, "holders in the replay")


@case(30)
def test_record_of_an_import_of_its_own():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        handle, _ = driver("make", 2 * MIB, 0)
        fd = driver("export", handle)
        driver("show", 2 * MIB, driver("import", fd), 0)
        driver("close", fd)
        before = holders_of(session, driver.pid)
        equal(before, [[2 * MIB, [1, 1], 2]], "holders")
        held = snapshot_replayed(session, driver)
        equal(holders_of(session, held.ranks[0]), before, "holders in the replay")


@case(60)
def test_record_of_an_offloaded_job():
    """A recording made while memory is away is of the job, not of what lien did to it."""
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        session.ask("offload")
        path = session.path("away.lien")
        outcome = session.lien("record", path, "--seconds", 1)
        check(outcome.code == 0, outcome)
        session.ask("restore")
        job.quit()
        outcome = session.lien("replay", "--verify", "--json", path)
        check(outcome.code == 0, outcome)
        equal(json.loads(outcome.out)["verify"]["mappings"], 4 * PAIRS, "mappings")


@case(60)
def test_damaged_recordings():
    with Session() as session:
        good = recording("pairs", 4)
        with gzip.open(good) as file:
            data = file.read()

        def attempt(name, content, packed=True):
            path = session.path(name)
            with (gzip.open(path, "wb") if packed else open(path, "wb")) as file:
                file.write(content)
            outcome = session.lien("replay", "--verify", path, limit=30)
            check(outcome.code == 1, "%s: exit status %d: %s" % (name, outcome.code, outcome))
            check("replay: " in outcome.err and len(outcome.err) < 2000, outcome)
            return outcome.err
        check("not a recording" in attempt("text", b"hello\n" * 100, packed=False), "text")
        check("not a recording" in attempt("other gzip", b"hello\n" * 100), "another gzip")
        attempt("empty", b"", packed=False)
        second = 24 + struct.unpack_from("<I", data, 24)[0]  # behind the header and a record
        for name, at, value in (("size", second, b"\xff\xff\xff\xff"),
                                ("size of 0", second, b"\0\0\0\0"),
                                ("short size", second, b"\x40\0\0\0"),
                                ("type", second + 4, b"\xee\xee"), ("version", 8, b"\x63")):
            attempt("bad " + name, data[:at] + value + data[at + len(value):])
        with open(good, "rb") as file:
            packed = bytearray(file.read())
        packed[len(packed) // 2] ^= 0x55
        outcome_text = attempt("flipped", bytes(packed), packed=False)
        check("damaged" in outcome_text or "cut short" in outcome_text, outcome_text)
        session.refused("replay", session.path("nowhere"), text="No such file")
        session.refused("replay", session.folder, text="replay: ")
        cut = session.path("cut")
        with gzip.open(cut, "wb") as file:
            file.write(data[:len(data) // 2])
        outcome = session.lien("replay", "--verify", cut)
        check("cut short" in outcome.err, outcome)
        equal(session.used(), 0, "device memory in use")


if __name__ == "__main__":
    sys.exit(main())
