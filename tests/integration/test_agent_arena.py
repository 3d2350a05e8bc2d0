#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The host arena: its bounds, its preparation, how it is given back; what is not saved (--discard),
and what is compared (--verify). The agent, the control library and every byte are real.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import contextlib
import os
import re
import signal
import sys
import time

from lien_test import MIB, SOFTNCCL, Session, case, check, equal, main, start_pairs, stays, wait_for

PAIRS = 24  # exported buffers of 2 MiB of each of two ranks
RANK = 2 * PAIRS * MIB
STEP = 16 * MIB  # of the arena


def runs_as_before(session, job):
    equal(job.verify()[0], 4 * PAIRS, "mappings verified")
    equal(session.used(), 2 * RANK, "device memory in use")
    for pid in job.ranks:
        equal(session.process(pid)["state"], "running", "state of %d" % pid)


def arena(session, pid):
    """(held, used) bytes, as `ps` says; `arena` has to say the same."""
    found = None

    def same():
        nonlocal found
        process = session.process(pid)
        found = process["arena_bytes"], process["arena_used_bytes"]
        rows = {row["pid"]: row for row in session.ask("arena")["processes"]}
        row = rows.get(pid, {"held_bytes": 0, "used_bytes": 0})
        return (row["held_bytes"], row["used_bytes"]) == found

    wait_for("lien arena and lien ps say the same", same)  # it may grow between the two
    return found


def rounded(size):
    return -(-size // STEP) * STEP


def arena_places(session, pid):
    """Where the arena's chunks are in a process: [(address, bytes)], the first one first."""
    found = []
    for allocation in session.ask("graph")["allocations"]:
        if allocation["pid"] == pid and allocation["owner"] == "lien-control":
            found += [(allocation["id"], int(m["address"], 16), m["bytes"])
                      for m in allocation["mappings"]]
    return [(va, size) for _, va, size in sorted(found)]


def flip(pid, address):
    """Changes one byte of a process behind everybody's back."""
    with open("/proc/%d/mem" % pid, "r+b", buffering=0) as memory:
        memory.seek(address)
        byte = memory.read(1)
        memory.seek(address)
        memory.write(bytes([byte[0] ^ 0x40]))


# Bounds

@case()
def test_host_limit():
    with Session() as session:
        session.start_agent("--host-limit", "64M")
        job = start_pairs(session, PAIRS)
        words = ("host memory: 96.0 MiB is to be moved, which needs 96.0 MiB more than the 0 held "
                 "now, and 64.0 MiB is allowed .--host-limit.")
        for more in ([], ["--host-limit", "1G"], ["--dry-run"]):  # the agent's limit counts
            session.refused("offload", *more, text=words)
        equal([arena(session, pid) for pid in job.ranks], [(0, 0)] * 2, "nothing was touched")
        runs_as_before(session, job)
        one = ["offload", "--pid", job.ranks[0], "--with-closure"]
        session.refused(*one, "--host-limit", "47M", text="and 47.0 MiB is allowed")
        session.refused(*one, "--host-limit", "47M", "--dry-run", text="and 47.0 MiB is allowed")
        session.refused(*one, "--host-limit", str(48 * MIB - 1), text="is allowed")
        equal(session.ask(*one, "--host-limit", "48M")["bytes"], RANK, "within the limit")
        equal(arena(session, job.ranks[0]), (RANK, RANK), "arena of the first rank")
        session.refused("offload", text="48.0 MiB is to be moved, which needs 48.0 MiB more than the "
                        "48.0 MiB held now, and 64.0 MiB is allowed")
        session.ask("restore")
        runs_as_before(session, job)
        # What is held already counts, even if no more is needed.
        session.refused(*one, "--host-limit", "47M", text="which needs 0 more than the 48.0 MiB "
                        "held now, and 47.0 MiB is allowed")
        # What one holds and does not use is in the other's way until it is given back.
        session.refused("offload", "--pid", job.ranks[1], "--with-closure",
                        text="more than the 48.0 MiB held now")
        for pid, held in zip(job.ranks, (RANK, 0)):
            for question in (["mem"], ["mem", "--by", "owner"]):
                equal(session.ask(*question, "--pid", pid)["arena_bytes"], held, "arena of %d" % pid)
        check("lien keeps 48.0 MiB of the host's memory pinned for offloads: see `lien arena`" in
              session.lien("mem", "--pid", job.ranks[0]).out, session.lien("mem"))
        equal(session.ask("arena", "--release")["released_bytes"], RANK, "given back")
        equal(session.ask("offload", "--pid", job.ranks[1], "--with-closure")["bytes"], RANK, "now")
        session.ask("restore")
        runs_as_before(session, job)
        status = session.ask("status")["host"]
        equal((status["limit_bytes"], status["held_bytes"], status["used_bytes"]),
              (64 * MIB, RANK, 0), "status")
        check("48.0 MiB held for offloads, 0 in use, 64.0 MiB allowed" in
              session.lien("status").out, session.lien("status"))


def memory_cgroup(session, limit):
    """A cgroup below ours with a limit: its folder, or None where that is not possible."""
    with contextlib.suppress(OSError):
        with open("/proc/self/cgroup") as file:
            for line in file:
                number, names, path = line.rstrip("\n").split(":", 2)
                if "memory" in names.split(","):
                    mount, knob = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
                elif number == "0" and not names:
                    mount, knob = "/sys/fs/cgroup", "memory.max"
                else:
                    continue
                folder = os.path.join(mount + path, "lien-test-%d" % session.agent.pid)
                os.mkdir(folder)
                try:
                    with open(os.path.join(folder, knob), "w") as file_limit:
                        file_limit.write(str(limit))
                    return folder
                except OSError:
                    os.rmdir(folder)
    return None


@case()
def test_cgroup_limit():
    with Session(memory="1G") as session:
        session.start_agent()
        group = memory_cgroup(session, 400 * MIB)
        if not group:
            print("   (no memory cgroup can be made here)")
            return
        driver = session.driver()
        try:
            driver("tag", "big")
            big = driver("make", 512 * MIB, 0)[1]
            driver("untag")
            driver("fill", big, MIB, 7)
            small = driver("make", 2 * MIB, 0)[1]
            driver("fill", small, 2 * MIB, 8)
            session.ready(driver.pid)
            with open(os.path.join(group, "cgroup.procs"), "w") as file:
                file.write(str(driver.pid))
            session.refused("offload", "--owner", "all", text="host memory: 528.0 MiB more is "
                            "needed, the memory cgroup .*lien-test-%d has [34][0-9][0-9][.][0-9] MiB left"
                            % session.agent.pid)
            equal(arena(session, driver.pid), (0, 0), "nothing was touched")
            equal(driver("check", big, MIB, 7), 0, "wrong bytes")
            result = session.ask("offload", "--owner", "unknown", "--discard", "tag:big")
            equal((result["bytes"], result["discarded_bytes"]), (0, 512 * MIB), "needs no memory")
            # What the software driver's devices take is charged to the process, too.
            with open(os.path.join(os.path.dirname(group), "cgroup.procs"), "w") as file:
                file.write(str(driver.pid))
            session.ask("restore")
            equal(driver("check", small, 2 * MIB, 8), 0, "wrong bytes")
        finally:
            driver.end()
            wait_for("the cgroup is empty", lambda: removed(group))


def removed(folder):
    try:
        os.rmdir(folder)
        return True
    except OSError:
        return False


# Preparation: of a process that has been calm for a second

def others_are_looked_at(session):
    """Waits until the agent has prepared a process that came now: it has looked at all others, too."""
    driver = session.driver()
    driver("nccl", SOFTNCCL)
    driver("make", 2 * MIB, 0)
    session.ready(driver.pid)
    wait_for("one more is prepared", lambda: session.process(driver.pid)["arena_bytes"])
    driver.end()
    session.forgotten(driver.pid)


@case()
def test_prepared_before_the_first_offload():
    with Session() as session:
        session.start_agent(prepare=True)
        job = start_pairs(session, PAIRS)
        for pid in job.ranks:
            wait_for("the arena of %d is prepared" % pid,
                     lambda pid=pid: session.process(pid)["arena_bytes"])
            equal(arena(session, pid), (rounded(RANK), 0), "prepared for %d" % pid)
        runs_as_before(session, job)
        equal(session.ask("status")["events_lost"], 0, "events lost")
        places = [arena_places(session, pid) for pid in job.ranks]
        equal(session.ask("offload")["bytes"], 2 * RANK, "offload")
        equal([arena_places(session, pid) for pid in job.ranks], places, "no more was pinned")
        equal([arena(session, pid) for pid in job.ranks], [(rounded(RANK), RANK)] * 2, "in use")
        session.ask("restore")
        runs_as_before(session, job)
        others_are_looked_at(session)
        equal([arena(session, pid) for pid in job.ranks], [(rounded(RANK), 0)] * 2, "kept")
        # What is given back on request is not pinned again, until it was of use again.
        session.ask("arena", "--release")
        others_are_looked_at(session)
        equal([arena(session, pid) for pid in job.ranks], [(0, 0)] * 2, "stays given back")
        session.ask("offload")
        session.ask("restore")
        runs_as_before(session, job)


@case(long=True)
def test_preparation_grows_and_waits_for_captures():
    with Session() as session:
        session.start_agent(prepare=True)
        driver = session.driver()
        driver("nccl", SOFTNCCL)  # from now on it is NCCL that asks for memory

        def held():
            return session.process(driver.pid)["arena_bytes"]
        driver("make", 20 * MIB, 0)
        session.ready(driver.pid)
        wait_for("prepared", lambda: held() == rounded(20 * MIB))
        driver("make", 300 * MIB, 0)  # more than one order's worth
        wait_for("it has grown", lambda: held() == rounded(320 * MIB))
        for mode in (0, 1, 2):  # global, thread-local, relaxed
            before = held()
            driver("make", 20 * MIB, 0)
            driver("capture", mode)
            others_are_looked_at(session)
            equal(held(), before, "during a capture")
            driver("capture-end")  # fails when the capture was spoilt
            wait_for("it goes on", lambda before=before: held() > before)
        equal(session.ask("offload")["bytes"], 380 * MIB, "offload")
        equal(held(), rounded(380 * MIB), "no more was pinned")
        session.ask("restore")


@case(long=True)
def test_offload_while_it_is_prepared():
    """An order to pin memory is short, and an offload waits for it."""
    with Session(memory="2G") as session:
        session.start_agent(prepare=True)
        driver = session.driver()
        driver("nccl", SOFTNCCL)
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        size = 2 * MIB
        for number in range(3):
            held = session.process(driver.pid)["arena_bytes"]
            va = driver("make", 360 * MIB, 0)[1]  # more than one order's worth
            size += 360 * MIB
            driver("fill", va + 350 * MIB, 2 * MIB, 0x30 + number)
            wait_for("it is being prepared", lambda held=held: session.process(
                driver.pid)["arena_bytes"] > held, step=0)
            equal(session.ask("offload", "--verify")["bytes"], size, "offload")
            equal(session.ask("restore")["verified_bytes"], size, "restore")
            equal(driver("check", va + 350 * MIB, 2 * MIB, 0x30 + number), 0, "wrong bytes")


@case(long=True)
def test_preparation_is_for_what_can_be_offloaded():
    with Session() as session:
        session.start_agent(prepare=True)
        other = session.driver()  # nothing of NCCL's in it
        other("make", 64 * MIB, 0)
        plain = session.driver()
        plain("alloc", 64 * MIB)
        bare = session.driver(control=False)
        bare("make", 64 * MIB, 0)
        session.ready(other.pid, plain.pid)
        others_are_looked_at(session)
        for pid in (plain.pid, bare.pid):
            equal(arena(session, pid), (0, 0), "arena of %d" % pid)
        wait_for("its arena is prepared", lambda: arena(session, other.pid) == (64 * MIB, 0))
        row, = [row for row in session.ask("arena")["processes"] if row["pid"] == other.pid]
        equal((row["offload_bytes"], row["missing_bytes"]), (64 * MIB, 0), "plan")


@case(long=True)
def test_preparation_leaves_most_memory_alone():
    """Only the given share of the available memory is pinned, even if more could be offloaded."""
    with open("/proc/meminfo") as meminfo:
        available = next(int(line.split()[1]) << 10 for line in meminfo if line.startswith("MemAvailable"))
    size = available // 100 * 2 // (2 * MIB) * 2 * MIB
    with Session(memory="%dM" % (size // MIB + 64)) as session:
        session.start_agent("--prepare", "1", prepare=True)
        job = session.driver()
        job("make", size, 0)
        session.ready(job.pid)
        wait_for("some is prepared", lambda: arena(session, job.pid)[0])
        held = wait_for("no more is prepared", lambda: stays_at(session, job.pid))
        check(size // 4 < held < size * 3 // 4, "prepared", held, "of", size)
        row, = session.ask("arena")["processes"]
        check(row["missing_bytes"] >= size - held, "missing", row)


def stays_at(session, pid):
    """What it holds, if that is the same after a while."""
    before = arena(session, pid)[0]
    time.sleep(1)  # an order for a chunk takes less
    return before if arena(session, pid)[0] == before else 0


@case()
def test_no_prepare():
    with Session() as session:
        session.start_agent("--no-prepare")
        job = start_pairs(session, PAIRS)
        equal(session.ask("status")["host"]["prepare"], False, "status")
        stays("nothing is prepared", lambda: [arena(session, pid) for pid in job.ranks] ==
              [(0, 0)] * 2, 2.5)
        session.ask("offload")
        session.ask("restore")
        runs_as_before(session, job)


@case(long=True)
def test_preparation_in_a_cgroup_with_a_limit():
    """What is pinned in advance counts towards the job's cgroup, so it is pinned only on request."""
    for options, held in (([], 0), (["--prepare", "25"], 64 * MIB)):
        with Session() as session:
            session.start_agent(*options, prepare="as by default")
            group = memory_cgroup(session, 1024 * MIB)
            if not group:
                print("   (no memory cgroup can be made here)")
                return
            try:
                driver = session.driver()
                with open(os.path.join(group, "cgroup.procs"), "w") as file:
                    file.write(str(driver.pid))
                driver("make", 64 * MIB, 0)
                session.ready(driver.pid)
                if held:
                    wait_for("it is prepared", lambda: arena(session, driver.pid)[0] == held)
                else:
                    stays("nothing is prepared", lambda: arena(session, driver.pid)[0] == 0, 3)
                row, = session.ask("arena")["processes"]
                equal((row["cgroup_limited"], row["missing_bytes"]), (not held, 64 * MIB - held), "arena")
                said = " ".join(session.lien("arena").out.split())
                equal("in a memory cgroup with a limit, where nothing is pinned in advance unless `lien agent "
                      "--prepare` is given: %d" % driver.pid in said, not held, said)
                said = " ".join(session.lien("ps").out.split())
                equal("lien keeps 64.0 MiB of host memory pinned in these processes for offloads, 0 of it in use: "
                      "see `lien arena`" in said, held > 0, said)
                equal(session.ask("offload", "--owner", "all")["bytes"], 64 * MIB, "an offload works in any case")
                session.ask("restore")
            finally:
                driver.end()
                wait_for("the cgroup is empty", lambda group=group: removed(group))


@case(long=True)
def test_preparation_keeps_the_limit():
    with Session() as session:
        session.start_agent("--host-limit", "50M", prepare=True)
        job = start_pairs(session, PAIRS)

        def held():
            return [arena(session, pid)[0] for pid in job.ranks]
        wait_for("it is prepared", lambda: rounded(RANK) in held())
        stays("one of them fits", lambda: sorted(held()) == [0, rounded(RANK)], 2)
        runs_as_before(session, job)
        session.refused("offload", text="more than the 48.0 MiB held now, and 50.0 MiB is allowed")


@case(long=True)
def test_killed_while_prepared():
    """A new agent knows what its predecessor had pinned; a rank that ends does not crash it."""
    with Session() as session:
        session.start_agent(prepare=True)
        job = start_pairs(session, PAIRS)
        session.kill_agent()
        session.start_agent(prepare=True)
        session.ready(*job.ranks)
        for pid in job.ranks:
            wait_for("prepared", lambda pid=pid: session.process(pid)["arena_bytes"])
        session.kill_agent()
        session.start_agent("--no-journal", "--no-prepare")
        session.ready(*job.ranks)
        wait_for("the new agent knows", lambda: all(
            arena(session, pid) == (rounded(RANK), 0) for pid in job.ranks))
        os.kill(job.ranks[0], signal.SIGKILL)
        session.forgotten(job.ranks[0])
        session.ask("arena", "--release")
        equal(session.ask("status")["host"]["held_bytes"], 0, "held")


# Given back

@case()
def test_release():
    with Session() as session:
        session.start_agent()
        check("0 held" in session.lien("arena").out, session.lien("arena"))
        equal(session.ask("arena", "--release")["released_bytes"], 0, "nothing to give back")
        job = start_pairs(session, PAIRS)
        first, second = job.ranks
        session.ask("offload")
        equal(arena(session, first), (rounded(RANK), RANK), "arena")
        session.refused("arena", "--release", text="all host memory that is held, 96.0 MiB, is in "
                        "use: `lien restore` first")
        session.refused("arena", "--release", "--pid", first, text="48.0 MiB, is in use")
        session.ask("restore")
        runs_as_before(session, job)
        places = arena_places(session, first)
        result = session.ask("arena", "--release", "--pid", first)
        equal(result["released_bytes"], rounded(RANK), "given back by one")
        equal((arena(session, first), arena(session, second)), ((0, 0), (rounded(RANK), 0)), "arenas")
        with open("/proc/%d/maps" % first) as maps:
            check(not any(line.startswith("%x-" % places[0][0]) for line in maps), "still mapped")
        equal(arena_places(session, first), [], "not in the graph any more")
        outcome = session.lien("arena", "--release")
        check(outcome.code == 0 and "48.0 MiB given back, 0 held" in outcome.out, outcome)
        round_trip_bytes = session.ask("offload")["bytes"]
        equal(round_trip_bytes, 2 * RANK, "offload afterwards")
        session.ask("restore")
        runs_as_before(session, job)
        session.refused("arena", "--release", "--pid", 999999, code=2, text="process 999999 is not known")
        session.refused("arena", "--pid", first, code=2, text="--pid needs --release")


@case(long=True)
def test_release_of_a_part():
    """What lies behind all that is in use goes; the rest stays and is restored from."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        places = [driver("make", 8 * MIB, 0)[1]]
        driver("tag", "big")
        places.append(driver("make", 200 * MIB, 0)[1])
        for number, va in enumerate(places):
            driver("fill", va, 8 * MIB, 0x21 + number)
        session.ready(driver.pid)
        session.ask("offload", "--owner", "all")
        session.ask("restore")
        equal(arena(session, driver.pid), (208 * MIB, 0), "arena")
        session.ask("offload", "--owner", "unknown", "--discard", "tag:big")
        equal(arena(session, driver.pid), (208 * MIB, 0), "nothing was saved")
        session.ask("offload", "--owner", "all")
        equal(arena(session, driver.pid), (208 * MIB, 8 * MIB), "the small one")
        equal(session.ask("arena", "--release")["released_bytes"], 80 * MIB, "behind it")
        equal(arena(session, driver.pid), (128 * MIB, 8 * MIB), "its chunk stays")
        session.ask("restore")
        equal(driver("check", places[0], 8 * MIB, 0x21), 0, "wrong bytes")
        equal(driver("check", places[1], 8 * MIB, 0), 0, "not cleared")


@case(long=True)
def test_numa_node():
    for node, policy in (("0", True), ("-1", False), ("63", None)):
        with Session(LIEN_SOFTCUDA_NUMA_NODE=node) as session:
            session.start_agent()
            driver = session.driver()
            va = driver("make", 2 * MIB, 0)[1]
            driver("fill", va, 2 * MIB, 9)
            session.ready(driver.pid)
            equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "node " + node)
            start = arena_places(session, driver.pid)[0][0]
            with open("/proc/%d/numa_maps" % driver.pid) as maps:
                words = [line.split()[1] for line in maps if line.startswith("%x " % start)]
            check(len(words) == 1, "no such place in numa_maps")
            if policy is not None:
                equal(words[0].startswith("prefer:0") or words[0] == "prefer=relative:0", policy,
                      "policy is " + words[0])
            session.ask("restore")
            equal(driver("check", va, 2 * MIB, 9), 0, "wrong bytes")


# Not saved

@case()
def test_discard():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        kept = driver("make", 2 * MIB, 0)[1]
        driver("tag", "cache")
        lost = driver("make", 2 * MIB, 0)[1]
        driver("untag")
        other = driver("make", 2 * MIB, 0)[1]
        for va in (kept, lost, other):
            driver("fill", va, 2 * MIB, 0x5a)
        session.ready(driver.pid)
        used = session.used()
        dry = session.ask("offload", "--owner", "all", "--discard", "tag:cache", "--dry-run")
        result = session.ask("offload", "--owner", "all", "--discard", "tag:cache")
        equal((result["bytes"], result["discarded_bytes"]), (used - 2 * MIB, 2 * MIB), "bytes")
        equal((dry["bytes"], dry["discarded_bytes"]), (used - 2 * MIB, 2 * MIB), "of the dry run")
        equal(result["processes"][0]["freed_bytes"], used, "freed")
        equal(session.used(), 0, "device memory in use")
        equal(arena(session, driver.pid)[1], used - 2 * MIB, "in the arena")
        result = session.ask("restore")
        equal((result["bytes"], result["discarded_bytes"]), (used - 2 * MIB, 2 * MIB), "restore")
        equal(driver("check", kept, 2 * MIB, 0x5a), 0, "wrong bytes")
        equal(driver("check", other, 2 * MIB, 0x5a), 0, "wrong bytes")
        equal(driver("check", lost, 2 * MIB, 0), 0, "not zeros")
        driver("fill", lost, 2 * MIB, 0x11)
        # By tag and by owner, in one option and in two.
        for options in (["--discard", "tag:cache,prog_driver"], ["--discard", "tag:cache", "--discard", "prog_driver"]):
            result = session.ask("offload", *options, "--dry-run")
            equal((result["bytes"], result["discarded_bytes"]), (0, 6 * MIB), "all of them")
        session.ask("offload", "--discard", "prog_driver")
        text = session.lien("restore").out
        check("restored 6.0 MiB of 1 process (6.0 MiB of that discarded before: filled with zeros)" in " ".join(text.split()), text)
        for va in (kept, lost, other):
            equal(driver("check", va, 2 * MIB, 0), 0, "not zeros")


@case(long=True)
def test_discard_by_owner_in_a_job():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        owner = [row["owner"] for row in session.ask("mem")["rows"]][0]
        result = session.ask("offload", "--discard", owner)
        equal([(p["bytes"], p["discarded_bytes"], p["freed_bytes"]) for p in result["processes"]],
              [(0, RANK, RANK)] * 2, "of each")
        equal(session.used(), 0, "device memory in use")
        equal([arena(session, pid) for pid in job.ranks], [(0, 0)] * 2, "arenas")
        session.kill_agent()
        session.start_agent()
        session.ready(*job.ranks)
        result = session.ask("restore")
        equal((result["bytes"], result["discarded_bytes"]), (0, 2 * RANK), "restore")
        equal(session.used(), 2 * RANK, "device memory in use")
        job.change(3)  # written and read by all who map it
        runs_as_before(session, job)


# Compared

@case()
def test_verify():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        for number in range(2):
            session.ask("offload", "--verify")
            result = session.ask("restore")
            equal((result["bytes"], result["verified_bytes"]), (2 * RANK, 2 * RANK), "verified")
            equal([p["verified_bytes"] for p in result["processes"]], [RANK] * 2, "of each")
            runs_as_before(session, job)
            job.change(number + 1)
            session.ask("offload")
            equal(session.ask("restore")["verified_bytes"], 0, "not asked for")
            runs_as_before(session, job)
        session.ask("offload", "--verify")
        check("96.0 MiB compared with what was saved: no difference" in
              session.lien("restore").out, "the figure in words")


@case()
def test_verify_finds_a_damaged_arena():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        first, second = job.ranks
        session.ask("offload", "--verify")
        place = arena_places(session, first)[0][0] + 5 * MIB + 17
        flip(first, place)
        session.kill_agent()  # the checksums are in the processes
        session.start_agent()
        session.ready(first, second)
        words = ("process %d, create: the copy in host memory was changed: 2097152 bytes .at "
                 "0x[0-9a-f]+.; .*if it still differs, end the process" % first)
        for _ in range(2):
            error = session.refused("restore", text=words)
            check("nothing is lost" not in error, error)
            equal(session.used(0) + session.used(1), 2 * RANK - 2 * MIB, "all but that is back")
        flip(first, place)
        result = session.ask("restore")
        equal(result["outcome"], "done", "once it is as it was")
        runs_as_before(session, job)
        session.ask("offload")  # without, nobody finds out
        place = arena_places(session, first)[0][0] + 5 * MIB + 17
        flip(first, place)
        session.ask("restore")
        line = job.process.ask("verify", 60)
        check(not line.startswith("verify: ok"), line)


@case(long=True)
def test_verify_differs_for_good():
    with Session() as session:
        session.start_agent()
        driver, other = session.driver(), session.driver()
        other("make", 2 * MIB, 0)
        va = driver("make", 4 * MIB, 0)[1]
        driver("fill", va, 4 * MIB, 0x77)
        session.ready(driver.pid, other.pid)
        session.ask("offload", "--owner", "all", "--verify")
        flip(driver.pid, arena_places(session, driver.pid)[0][0] + 3 * MIB)
        session.refused("restore", text=r"process %d, create: .*4194304 bytes \(at %#x\)" % (
            driver.pid, va))
        equal(session.ask("offload", "--owner", "all", "--pid", driver.pid)["outcome"], "nothing to do", "still away")
        equal(session.process(other.pid)["state"], "running", "the other's is back")
        driver.process.end()
        session.forgotten(driver.pid)
        equal((session.ask("restore")["outcome"], session.used()), ("nothing to do", 2 * MIB), "after it")


@case()
def test_wrong_input():
    with Session() as session:
        for value in ("", "0", "-1", "1.5G", "8X", "8GB", "G", "x", "999999999T", "0x10"):
            session.refused("agent", "--host-limit", value, code=2, text="host-limit")
            session.refused("offload", "--host-limit", value, code=2, text="host-limit")
        session.refused("agent", "--no-prepare=1", code=2, text="no-prepare")
        session.refused("offload", "--discard", "", code=2, text="--discard is empty")
        session.refused("offload", "--discard", "\udcff", code=2, text="not UTF-8")
        session.refused("offload", "--verify=yes", code=2, text="--verify")
        session.refused("arena", "5", code=2, text="unexpected argument '5'")
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        for value in (",", "nccl,", ":x", "812:0x7f00", "tags:x"):
            wrong = re.escape([part for part in value.split(",") if part != "nccl"][0])
            session.refused("offload", "--discard", value, code=2, text="discard: '%s' is neither an owner" % wrong)
        for request, words in (
                ('{"op":"offload","discard":"nccl"}', "must be a list"),
                ('{"op":"offload","discard":[7]}', "is neither an owner"),
                ('{"op":"offload","discard":[""]}', "is neither an owner"),
                ('{"op":"offload","verify":1}', "verify must be true or false"),
                ('{"op":"offload","host_limit_bytes":0}', "host_limit_bytes"),
                ('{"op":"offload","host_limit_bytes":"1G"}', "host_limit_bytes"),
                ('{"op":"offload","host_limit_bytes":-5}', "host_limit_bytes"),
                ('{"op":"restore","ignore_damage":true}', "has no member ignore_damage"),
                ('{"op":"arena","release":"yes"}', "release must be"),
                ('{"op":"arena","pids":[-1]}', "pids"),
                ('{"op":"arena","what":1}', "has no member what")):
            answer = session.request(request + "\n")
            check('"ok":false' in answer and words in answer, request, answer)


if __name__ == "__main__":
    sys.exit(main())
