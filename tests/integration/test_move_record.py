#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Recordings of jobs whose memory moves, and their replay.

See lien_test.py for what else this needs.
"""

import gzip
import json
import os
import signal
import struct
import sys
import time

from lien_test import (
    LIEN, MIB, RECORDING_HEADER, Session, brief, case, check, equal, main, program, recording, start_pairs, wait_for)
from move import PAIRS


def mappings_of(state):
    """Of a program that said its state."""
    return sum(len(a["mappings"]) for a in state["allocations"]) + len(state["plain"])


@case()
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


@case(long=True)
def test_record_from_the_middle():
    """The state at that time, and what comes after it, are replayed."""
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
    """What a recording that begins and ends now has, by replaying it."""
    path = session.path("now.lien")
    outcome = session.lien("record", path, "--seconds", 1)
    check(outcome.code == 0, outcome)
    for driver in drivers:
        driver.end()
    return session.replay(path)


def holders_of(session, pid):
    return sorted([a["bytes"], sorted(h["references"] for h in a["handles"]), len(a["mappings"])]
                  for a in session.ask("graph")["allocations"] if a["pid"] == pid)


@case()
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


@case()
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


@case(long=True)
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


@case()
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
        second = RECORDING_HEADER + struct.unpack_from("<I", data, RECORDING_HEADER)[0]  # the next record
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
