#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien timeline`: the trace parses, is in order, and ends with what `lien mem` says of the recording."""

import glob
import gzip
import json
import os
import signal
import sys

from lien_test import (
    DATA, LIEN, MIB, Session, case, check, equal, main, recording, start_pairs, wait_for)
from move import PAIRS, WHOLE

OWNED = "local", "exported", "dead"
IMPORTED = "imported"


def trace(session, path, *args):
    outcome = session.lien("timeline", path, *args)
    equal((outcome.code, outcome.err), (0, ""), "lien timeline %s" % path)
    return json.loads(outcome.out)["traceEvents"]


def at_the_end(events):
    """The counters: (pid, library, column) -> bytes, without zeroes."""
    last = {}
    for event in events:
        what, _, library = event["name"].partition(": ")
        if event["ph"] == "C" and what in ("memory", "host memory"):
            for name, value in event["args"].items():
                last[event["pid"], library, "host" if what == "host memory" else name] = value
    return {key: value for key, value in last.items() if value}


def of_mem(session, path):
    """The same, of `lien mem`."""
    found = {}
    for row in session.ask("mem", "--from", path)["rows"]:
        def add(column, value, row=row):
            key = row["pid"], row["owner"], column
            found[key] = found.get(key, 0) + value
        if row["kind"] in OWNED:
            add("device", row["bytes"])
            add("offloaded", row["offloaded_bytes"])
        else:
            add("imported" if row["kind"] == IMPORTED else "host", row["bytes"])
    return {key: value for key, value in found.items() if value}


def in_order(events):
    times = [event["ts"] for event in events]
    equal(times, sorted(times), "times")
    check(not times or times[0] == 0, times[:1])
    for event in events:
        check(event["ph"] in "CMXbesf" and event["name"] and event["pid"], event)


def open_slices(events, category):
    """The slices that have not ended, by id; each has begun once, or ends what has begun."""
    begun = {}
    for event in events:
        if event.get("cat") != category or event["ph"] not in "be":
            continue
        stack = begun.setdefault((event["pid"], event["id"]), [])
        if event["ph"] == "b":
            stack.append(event)
        else:
            check(stack and stack[-1]["name"] == event["name"], "ends what has not begun:", event)
            stack.pop()
    return [event for stack in begun.values() for event in stack]


def threads_are_nested(events):
    """Slices of one thread follow or contain each other; otherwise Perfetto would drop them."""
    stacks = {}
    for event in events:
        if event["ph"] == "X":
            stack = stacks.setdefault((event["pid"], event["tid"]), [])
            while stack and stack[-1] <= event["ts"]:
                stack.pop()
            end = event["ts"] + event["dur"]
            check(not stack or end <= stack[-1] + 0.001, "overlaps another call of its thread:", event)
            stack.append(end)


def agrees(session, path):
    events = trace(session, path)
    in_order(events)
    threads_are_nested(events)
    equal(at_the_end(events), of_mem(session, path), "counters at the end of %s" % path)
    sizes = {}
    for event in open_slices(events, "allocation"):
        key = event["pid"], event["args"]["owner"]
        sizes[key] = sizes.get(key, 0) + event["args"]["bytes"]
    expected = {}
    for (pid, owner, column), value in of_mem(session, path).items():
        if column != "imported":
            expected[pid, owner] = expected.get((pid, owner), 0) + value
    equal(sizes, expected, "allocations that exist at the end of %s" % path)
    equal(open_slices(events, "transaction"), [], "transactions that do not end")
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    equal(sorted(starts), sorted(ends), "arrows")
    return events


@case()
def test_recordings():
    with Session() as session:
        paths = sorted(glob.glob(DATA + "/*.lien"))
        check(paths, DATA)
        for path in paths + [recording("basic"), recording("ended"), recording("pairs", 20)]:
            agrees(session, path)


@case()
def test_what_is_in_it():
    with Session() as session:
        events = agrees(session, recording("pairs", 20))
        names = {(event["pid"], event["args"]["name"]) for event in events if event["ph"] == "M"}
        equal({pid for pid, _ in names}, {101, 102}, "processes that have a name")
        imports = [event for event in events if event["ph"] == "f"]
        equal(len(imports), 40, "imports")
        calls = {(event["pid"], event["tid"], event["ts"]): event["name"] for event in events if event["ph"] == "X"}
        for event in events:
            if event["ph"] in "sf":
                equal(calls[event["pid"], event["tid"], event["ts"]], "cuMemExportToShareableHandle"
                      if event["ph"] == "s" else "cuMemImportFromShareableHandle", "where the arrow is")
        exports = {event["id"]: event["pid"] for event in events if event["ph"] == "s"}
        equal([exports[event["id"]] for event in imports], [203 - event["pid"] for event in imports], "exporters")
        # of the real job: call sites
        events = trace(session, os.path.join(DATA, "pytorch-nccl-2ranks.lien"))
        sites = {event["name"] for event in events if event["ph"] == "b"}
        check("cuMemCreate from libnccl.so.2+0x10a515" in sites, sites)
        rows = session.ask("mem", "--by", "callsite", "--from", os.path.join(DATA, "pytorch-nccl-2ranks.lien"))
        check({row["key"] for row in rows["rows"]} <= sites, sites)


@case()
def test_offload_and_restore():
    with Session() as session:
        session.start_agent()
        path = session.path("moved.lien")
        recorder = session.spawn([LIEN, "record", path, "--json"])
        wait_for("the recorder is there", lambda: os.path.exists(path))
        job = start_pairs(session, PAIRS)
        session.ready(*job.ranks)
        for command in ("offload", "restore", "offload"):
            equal(session.ask(command)["outcome"], "done", command)
        recorder.signal(signal.SIGINT)
        equal(recorder.wait(20), 0, "record")
        events = agrees(session, path)
        for pid in job.ranks:
            slices = [event for event in events if event.get("cat") == "transaction" and event["pid"] == pid]
            nested = [(event["ph"], event["name"]) for event in slices]
            moves = [name for ph, name in nested if ph == "b" and name in ("offload", "restore")]
            equal(moves, ["offload", "restore", "offload"], "transactions of %d" % pid)
            phases = {name for ph, name in nested if ph == "b"} - set(moves)
            equal(phases, {"unmap", "drop", "create", "export", "import"}, "phases of %d" % pid)
            equal((nested[0], nested[-1]), (("b", "offload"), ("e", "offload")), "first and last")
        totals = at_the_end(events)
        equal(sum(value for (_, _, column), value in totals.items() if column == "offloaded"),
              WHOLE["bytes"], "offloaded at the end")
        peak = max(event["args"]["device"] for event in events if event["ph"] == "C" and
                   event["pid"] == job.ranks[0] and "device" in event["args"])
        equal(peak, WHOLE["bytes"] // 2, "of one rank at the peak")


@case()
def test_files():
    with Session() as session:
        path, output = recording("pairs", 4), session.path("trace.json")
        summary = session.ask("timeline", path, "-o", output)
        equal((summary["processes"], summary["allocations"], summary["imports"]), (2, 8, 8), "summary")
        with open(output) as file:
            equal(json.load(file)["traceEvents"], trace(session, path), "the file")
        session.refused("timeline", path, "-o", output, text="exists: --force overwrites it")
        equal(session.lien("timeline", path, "-o", output, "--force").code, 0, "--force")
        session.refused("timeline", path, "--force", code=2, text="--output")
        session.refused("timeline", path, "-o", "/nowhere/x", text="cannot write /nowhere/x: No such file")
        session.refused("timeline", output, text="is not a recording")
        # a snapshot: nothing in it has a time
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        snapshot = session.path("now.lien")
        session.ask("snapshot", snapshot)
        events = agrees(session, snapshot)
        equal({event["ts"] for event in events}, {0}, "times in a snapshot")
        # cut short: as far as it goes
        with gzip.open(path) as file:
            records = file.read()
        cut = session.path("cut.lien")
        with gzip.open(cut, "wb") as file:
            file.write(records[:-200])
        outcome = session.lien("timeline", cut)
        check(outcome.code == 0 and "cut short" in outcome.err, outcome)
        in_order(json.loads(outcome.out)["traceEvents"])


if __name__ == "__main__":
    sys.exit(main())
