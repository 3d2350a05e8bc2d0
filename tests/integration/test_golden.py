#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The recording of a real job (tests/data) is replayed once. An agent that has watched it from the
beginning counts its memory, draws it, compares it with the driver, and moves it; then an agent that has
seen nothing adopts the job, and knows and moves the same. Every byte is real, the GPUs are not.

See lien_test.py for what it needs.
"""

import collections
import json
import sys

from lien_test import GOLDEN, IDLE_THREADS, Session, brief, case, check, equal, golden_memory, main, wait_for
from move import open_files, rss_anon, shape
from random_jobs import access_of
from test_graph_svg import live_picture

ARENA = "lien-control"  # who owns the host memory that holds what is away


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


def draw(session):
    words, bundles = live_picture(session)
    equal(len(bundles), 2, "bundles")
    check("2 processes on 2 GPUs" in words, words)
    check({"GPU 0", "GPU 1", "rank 0", "rank 1", "nccl"} <= set(words), words)
    check("offloaded" not in words, words)
    return bundles


def draw_what_is_away(session, bundles):
    words, away = live_picture(session)
    equal({k: v[:2] for k, v in away.items()}, {k: v[:2] for k, v in bundles.items()},
          "imports while the memory is away")
    check("partly offloaded" in words and words.count("imported, offloaded") == 2, words)


def compare_with_driver(session, job):
    result = session.ask("check", "--deep")
    found = {p["pid"]: p["mappings"] for p in result["processes"]}
    equal(result["differences"], 0, "differences")
    equal([found.get(pid) for pid in job.ranks],
          [job.mappings[rank] for rank in sorted(job.mappings)], "mappings")


def move(session, job, expected, bundles, verified):
    """One round; nothing has changed after it."""
    moved, left = expected["offload_frees"], expected["bytes"] - expected["offload_frees"]
    before = shape(session, *job.ranks)
    files = open_files(session)
    observer = session.driver(control=False)
    free = [observer("info", device)[0] for device in range(2)]
    result = session.ask("offload", "--timeout", "600000")
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
    draw_what_is_away(session, bundles)
    equal(session.ask("offload")["outcome"], "nothing to do", "a second offload")
    result = session.ask("restore", "--timeout", "600000")
    equal((result["outcome"], result["bytes"]), ("done", moved), "restore")
    equal([observer("info", device)[0] for device in range(2)], free, "free memory")
    equal(shape(session, *job.ranks), before, "the graph after the restore")
    equal(job.verify(), verified, "verified")
    equal(session.ask("restore")["outcome"], "nothing to do", "a second restore")
    observer.end()
    session.forgotten(observer.pid)
    wait_for("the agent has no more open files", lambda: open_files(session) <= files + IDLE_THREADS)


def known_of(graph):
    """What can be known by adoption: mappings with their access, and handles, by allocation. Numbers
    of allocations are each agent's own."""
    found = []
    for row in graph["allocations"]:
        if row["origin"] not in ("cuMemCreate", "cuMemAlloc") or not row["mappings"]:
            continue
        found.append((
            row["pid"], row["device"], row["bytes"], row["origin"], row["state"], row["alive"],
            tuple(sorted((m["pid"], m["address"], m["bytes"], access_of(m))
                         for m in row["mappings"])),
            tuple(sorted((h["pid"], h["handle"], h["references"], h["imported"])
                         for h in row["handles"]))))
    return collections.Counter(found)


def sums_of(mem):
    """By process and kind; the library that owns it cannot be known."""
    sums = collections.Counter()
    for row in (row for row in mem["rows"] if row["owner"] != ARENA):
        for what in ("allocations", "mappings", "bytes", "offload_frees"):
            sums[row["pid"], row["kind"], what] += row[what]
    return sums


def same(found, expected, what):
    lost, more = expected - found, found - expected
    check(not lost and not more, "%s: only the tracing agent has %d, like %s; only the adopting one "
          "has %d, like %s" % (what, sum(lost.values()), sorted(lost)[:2], sum(more.values()),
                               sorted(more)[:2]))


def adopt(session, job):
    """By an agent that has seen nothing of it; returns how many bytes it can move."""
    traced, sums = session.ask("graph"), sums_of(session.ask("mem"))
    session.stop_agent()
    equal(session.clean(), None, "agent --clean")
    session.start_agent("--no-journal")
    session.ready(*job.ranks)
    equal([row for row in session.ask("graph")["allocations"] if row["owner"] != ARENA], [],
          "what the second agent knows at first")
    adoption = session.adopt()
    found, expected = session.ask("graph"), known_of(traced)
    equal(sum(row["owner"] != ARENA for row in found["allocations"]), sum(expected.values()), "allocations")
    same(known_of(found), expected, "the graph")
    same(sums_of(session.ask("mem")), sums, "mem")
    imports = sum(row["pid"] != pid for row in traced["allocations"]
                  for pid in {m["pid"] for m in row["mappings"]})
    equal((adoption["matched"], adoption["unmatched"]), (imports, 0), "matched")
    return sum(row[2] * count for row, count in expected.items() if row[3] == "cuMemCreate")


def move_adopted(session, job, moved, verified):
    answer = session.ask("offload", "--owner", "all")
    equal((answer["outcome"], answer["bytes"], {left["reason"] for left in answer["left"]}),
          ("done", moved, {"cudaMalloc memory cannot be put back at the same address: start the job "
                                  "with `lien run`, without --plain, and keep the LD_PRELOAD that it sets"}), "offload")
    answer = session.ask("restore", "--timeout", "600000")
    equal((answer["outcome"], answer["bytes"]), ("done", moved), "restore")
    equal(job.verify(), verified, "verified")


@case(long=True)
def test_real_job():
    with open(GOLDEN + ".json") as file:
        expected = json.load(file)["at_the_end"]
    with golden_memory(), Session(memory="8G", LIEN_SOFTCUDA_STRICT="1") as session:
        session.start_agent()
        job = session.replay(GOLDEN, NCCL_NVLS_ENABLE="0")  # or it might have been bound to multicast
        session.ready(*job.ranks)
        check_counts(session, job, expected)
        compare_with_driver(session, job)
        bundles, verified = draw(session), job.verify()
        for number in range(2):
            move(session, job, expected, bundles, verified)
            job.change(number + 7)
        draw(session)
        moved = adopt(session, job)
        job.change(9)
        move_adopted(session, job, moved, verified)
        job.free()
        equal([row for row in session.ask("mem")["rows"] if row["bytes"]], [], "mem after free")
        session.freed()
        job.quit()
        session.forgotten(*job.ranks)
        equal(session.ask("status")["events_lost"], 0, "events lost")


if __name__ == "__main__":
    sys.exit(main())
