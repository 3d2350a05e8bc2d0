#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Offload and restore: the agent, the control library and every byte are real, the GPUs are not.

The job is a small one made up for a case; test_golden.py moves a real one. See lien_test.py for what else this
needs.
"""

import sys

from lien_test import MIB, Session, case, check, equal, main, recording, start_pairs
from nccl_rank import Rank, unique_id
from move import PAIRS, WHOLE, shape, runs_as_before
from shapes import shapes


@case()
def test_synthetic_job_with_the_odd_cases():
    """Aliases, released handles, two imports of one export, windows: recording `basic`."""
    with Session(LIEN_SOFTCUDA_STRICT="1") as session:
        session.start_agent()
        job = session.replay(recording("basic"))
        session.ready(*job.ranks)
        before = shape(session, *job.ranks)
        verified = job.verify()
        dry = session.ask("offload", "--dry-run")
        mem = session.ask("mem")  # now it is known what nobody can import any more
        for seed in range(3):
            result = session.ask("offload")
            equal(result["outcome"], "done", "outcome")
            equal((result["bytes"], result["left"]), (dry["bytes"], []), "as the dry run said, and all")
            equal(session.used(), sum(-(-a["bytes"] // (2 * MIB)) * 2 * MIB
                                      for a in session.ask("graph")["allocations"]
                                      if a["state"] == "on the device"), "device memory in use")
            session.ask("restore")
            equal(shape(session, *job.ranks), before, "the graph")
            equal(job.verify(), verified, "verified")
            job.change(seed + 1)
        equal({**session.ask("mem"), "arena_bytes": 0}, {**mem, "arena_bytes": 0}, "mem")
        job.free()
        session.freed()
        job.quit()


@case()
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


@case()
def test_calls_that_are_bound_after_the_offload():
    """The linker looks a function up when it is first called, here only after memory has gone."""
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
        session.freed()


@case()
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


@case()
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


@case()
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
                            text="3.0 MiB of process %d at 0x[0-9a-f]+ would be left behind: cudaMalloc" %
                            other.pid)
        equal(session.used(), WHOLE["bytes"] + 6 * MIB, "device memory in use")
        equal(session.ask("offload", "--strict")["bytes"], WHOLE["bytes"], "all of NCCL's memory")
        session.ask("restore")
        equal(other("check", va, 3 * MIB, 5), 0, "wrong bytes")
        other.end()
        runs_as_before(session, job)


@case()
def test_nothing_to_do():
    with Session() as session:
        session.start_agent()
        for command in (["offload"], ["offload", "--owner", "all"], ["offload", "--strict"],
                        ["restore"], ["offload", "--owner", "unknown"]):
            equal(session.ask(*command)["outcome"], "nothing to do", " ".join(command))
            equal(session.lien(*command).code, 0, " ".join(command))
        check("no process uses CUDA on this node" in session.lien("offload").out, "no process")
        job = start_pairs(session, PAIRS)
        equal(session.ask("restore")["outcome"], "nothing to do", "nothing is offloaded")
        equal(session.ask("restore", "--pid", job.ranks[0])["outcome"], "nothing to do", "--pid")
        session.ask("offload")
        for _ in range(2):
            again = session.ask("offload")
            equal(again["outcome"], "nothing to do", "a second offload")
            equal([(one["pid"], one["offloaded_bytes"], one["bytes"]) for one in again["idle"]],
                  [(pid, WHOLE["bytes"] // 2, 0) for pid in job.ranks], "why")
        said = " ".join(session.lien("offload").out.split())
        check("processes %s, each: 48.0 MiB offloaded already: `lien restore` puts it back" % ", ".join(
            "%d (%s)" % (pid, session.process(pid)["command"]) for pid in job.ranks) in said, said)
        equal(session.ask("offload", "--pid", job.ranks[1])["outcome"], "nothing to do", "--pid")
        session.ask("restore")
        equal(session.ask("restore")["outcome"], "nothing to do", "a second restore")
        runs_as_before(session, job)


@case()
def test_why_there_is_nothing_to_do():
    """By process: what is not selected, and what moves it; what cannot be moved at all; who takes no orders."""
    def said(*options, code=0):
        outcome = session.lien("offload", *options)
        equal(outcome.code, code, outcome)
        return " ".join(outcome.out.split())

    with Session() as session:
        session.start_agent()
        mine, plain, empty = (session.driver() for _ in range(3))
        bare = session.driver(control=False)
        mine("make", 2 * MIB, 0)
        mine("alloc", MIB)
        plain("alloc", 3 * MIB)
        bare("make", 2 * MIB, 0)
        empty("release", empty("create", 2 * MIB, 0, 1))
        session.ready(mine.pid, plain.pid, empty.pid)
        text = said()
        for words in (
                "nothing to offload process %d (prog_driver): 3.0 MiB of prog_driver not selected: "
                "`lien offload --owner all` moves 2.0 MiB of it" % mine.pid,
                "process %d (prog_driver): 3.0 MiB of prog_driver not selected: not movable either" % plain.pid,
                "process %d (prog_driver): no memory of its own on the GPUs" % empty.pid,
                "process %d (prog_driver): it has no control library: `lien attach` gives it one; 2.0 MiB of "
                "prog_driver not selected" % bare.pid):
            check(words in text, words, text)
        text = said("--pid", plain.pid, "--owner", "all", code=1)
        shown = " ".join(session.lien("mem").out.split())
        check("an offload frees 0, and with --owner all 2.0 MiB" in shown, shown)
        check("process %d (prog_driver): 3.0 MiB selected, and not movable (see below)" % plain.pid in text and
              "cudaMalloc memory" in text and str(mine.pid) not in text, text)
        said("--pid", plain.pid, "--owner", "all", "--dry-run")
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "as it was said")
        session.ask("restore")


@case()
def test_what_is_left():
    """All that the GPUs still have of the processes that moved is named, even what was not asked for."""
    with Session() as session:
        session.start_agent()
        job, other = start_pairs(session, PAIRS), session.driver()
        driver = session.driver()
        driver("tag", "worthless")
        driver("make", 2 * MIB, 0)
        driver("untag")
        driver("make", 4 * MIB, 0)
        driver("alloc", MIB)
        other("make", 2 * MIB, 0)
        session.ready(driver.pid, other.pid)
        for dry in (["--dry-run"], []):
            answer = session.ask("offload", "--pid", driver.pid, "--discard", "tag:worthless", *dry)
            equal((answer["discarded_bytes"], [(row["pid"], row["not_selected_bytes"], row["movable_bytes"], row["owners"])
                                     for row in answer["idle"]]),
                  (2 * MIB, [(driver.pid, 5 * MIB, 4 * MIB, ["prog_driver"])]), "left")
        check("unexplained" in answer, answer)
        session.ask("restore")
        text = " ".join(session.lien("offload", "--pid", driver.pid, "--discard", "tag:worthless").out.split())
        check("left on the GPUs: process %d (prog_driver): 5.0 MiB of prog_driver not selected: `lien offload --owner all` moves 4.0 "
              "MiB of it the driver's own" % driver.pid in text, text)
        equal(session.ask("offload")["idle"], [], "all of these processes' moved")
        session.ask("restore")
        job.quit()


@case()
def test_what_came_free_of_each():
    """Two jobs that move at once on one device: the driver's figure is of both, and each is shown its own."""
    with Session() as session:
        session.start_agent()
        jobs = [session.driver() for _ in range(2)]
        for count, job in enumerate(jobs, 1):
            job("make", count * 4 * MIB, 0)
        session.ready(*[job.pid for job in jobs])
        result = session.ask("offload", "--owner", "all")
        equal({part["pid"]: part["freed_bytes"] for part in result["processes"]},
              {jobs[0].pid: 4 * MIB, jobs[1].pid: 8 * MIB}, "freed")
        session.ask("restore")


@case()
def test_job_changes_between_offload_and_restore():
    """A program's calls while its memory is away are its own fault, and harm no other program."""
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


@case()
def test_by_gpu_and_communicator():
    """Only what is on a GPU, or what a group's communicators asked for."""
    with Session(devices=2) as session:
        session.start_agent()
        drivers = [session.driver(init=False) for _ in range(2)]
        for device, driver in enumerate(drivers):
            driver("init", device)
            driver("make", 2 * MIB, device)
        rank = Rank(session, allocate=4 * MIB, control=True)
        groups = ["%016x" % number for number in (0xa1, 0xa2)]
        for group in groups:
            rank.made("init-rank", 1, 0, unique_id(int(group, 16)))
        session.ready(rank.pid, *(driver.pid for driver in drivers))

        def moved(*options):
            answer = session.ask("offload", *options)
            session.ask("restore")
            return {process["pid"]: process["bytes"] for process in answer["processes"]}

        equal(moved("--owner", "all", "--gpu", "1"), {drivers[1].pid: 2 * MIB}, "on one GPU")
        equal(moved("--comm", groups[0]), {rank.pid: 4 * MIB}, "of one group")
        equal(moved("--comm", ",".join(groups)), {rank.pid: 8 * MIB}, "of two groups")
        session.refused("offload", "--gpu", "7", code=2, text="no GPU 7; known are 0, 1 ")
        session.refused("offload", "--gpu", "GPU-ffff", code=2, text="GPU-ffff")
        session.refused("offload", "--comm", "00000000000000a3", code=2, text="00000000000000a3")
        session.refused("offload", "--comm", "a1", code=2, text="no communicator has the group a1; known are 00000000000000a1")


if __name__ == "__main__":
    sys.exit(main())
