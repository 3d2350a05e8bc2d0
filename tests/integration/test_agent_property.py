#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""After any sequence of calls the graph equals the driver's truth.

Several processes (prog_random.c) make random legal calls in several threads, share memory with each
other, are killed, fork and become new ones. After each burst, when all are quiet, what the agent's
graph says is compared with what the software driver itself holds: allocations (one for one, by the
driver's numbers), handles with their references, mappings with their access, memory of all kinds,
multicast bindings, reservations, pools, contexts, openings of IPC handles. Nothing may be lost,
unmatched or odd.

A sequence is the run of one thread in one burst. LIEN_SEED repeats a run: the same processes make
the same turns, but for how their threads are scheduled. LIEN_SEQUENCES: how many, default 10,000.
When a burst fails, a recording of what led to it is kept in $BUILD/tests/log (for `lien replay`).
"""

import collections
import json
import os
import random
import shutil
import signal
import sys
import time

from lien_test import (
    BUILD, CALLS, HEADER, LIEN, STATES, Event, Failure, Session, brief, case, check, main, wait_for)
from random_jobs import (
    SEED, Connection, Job, entries_of, sorted_tuple, text, truth_of)

SEQUENCES = int(os.environ.get("LIEN_SEQUENCES", "10000"))
MARK = 0x6d61726b  # prog_random.c
RECORDED_BURSTS = 40


def beside_of(connection, member):
    """Reservations, pools, contexts and openings: told to a recorder that comes now, before the
    process makes its mark."""
    connection.socket.sendall(b'{"op": "record"}\n')
    check(json.loads(connection.line())["ok"], "record")
    member.send("mark")
    found, data, at = collections.Counter(), bytearray(connection.rest), 0
    pooled = set()
    while True:
        while len(data) < at + 4 or len(data) < at + int.from_bytes(data[at:at + 4], "little"):
            data += connection.more()
        size = int.from_bytes(data[at:at + 4], "little")
        check(HEADER.size <= size <= 232, "a record of %d bytes" % size)
        kind = int.from_bytes(data[at + 4:at + 6], "little")
        if kind in TOLD:
            event = Event(data[at:at + size])
            if kind == CALLS["CU_MEM_RELEASE"]:
                if event.words("Q") == (MARK,):
                    break
            elif kind == STATES["reservation"]:
                found[("reservation", event.pid, *event.words("QQ"))] += 1
            elif kind == STATES["allocation"]:
                number, _, _, _, origin = event.words("QQQ24sI")
                if origin == POOL:
                    pooled.add(number)
            elif kind == STATES["mapping"]:
                number, va, _, flags, opens = event.words("QQQII")
                if flags & OPENED and number not in pooled:
                    found["opened", event.pid, va] += opens
            elif kind == STATES["pool"]:
                value, _, _, imported = event.words("QQiI")
                found["pool", event.pid, value, bool(imported)] += 1
            else:
                value, _, _, primary = event.words("QIiI")
                found["context", event.pid, value, bool(primary)] += 1
        at += size
    check(member.line() == "marked", "mark")
    return found


TOLD = {CALLS["CU_MEM_RELEASE"],
        *(STATES[name] for name in ("reservation", "allocation", "mapping", "pool", "context"))}
OPENED = 4  # LIEN_STATE_OPENED
POOL = 7  # LIEN_ORIGIN_POOL; its pointers are opened, too


class Truth:
    """Compares burst after burst; remembers whose an allocation was once its owner shows it no
    more."""

    def __init__(self):
        self.facts = {}

    def differences(self, states, graph, beside, lives):
        entries, facts, expected_beside, bindings, host = truth_of(states)
        self.facts.update((number, (*fact, lives[fact[0]])) for number, fact in facts.items())
        self.facts = {number: fact for number, fact in self.facts.items() if number in entries}
        expected = collections.Counter(map(sorted_tuple, entries.values()))
        expected.update((entry,) for entry, _ in host)
        groups = {row["id"]: sorted_tuple(entries_of(row)) for row in graph["allocations"]}
        found = collections.Counter(groups.values())
        said = []
        for what, left in (("only the driver has", expected - found),
                           ("only the graph has", found - expected)):
            for group in left:
                numbers = [number for number, rows in entries.items() if sorted_tuple(rows) == group]
                said.append("%s allocation %s: %s%s" % (what, numbers, text(group), "".join(
                    " origin %s pid %s id %d" % (row["origin"], row["pid"], row["id"])
                    for row in graph["allocations"] if groups[row["id"]] == group)))
        for what, left in (("only the driver has", expected_beside - beside),
                           ("only the graph has", beside - expected_beside)):
            said += ["%s %s (%d times)" % (what, text([thing]), count)
                     for thing, count in left.items()]
        if not said:
            said = list(self.compare_facts(entries, host, graph, groups, states, lives))
            said += compare_bindings(entries, bindings, graph, groups)
        pids = {row["pid"]: row["complete"] for row in graph["processes"]}
        if pids != dict.fromkeys(states, True):
            said.append("processes (complete or not): %s, expected %s" % (pids, list(states)))
        return said

    def compare_facts(self, entries, host, graph, groups, states, lives):
        facts = {sorted_tuple(rows): self.facts.get(number) for number, rows in entries.items() if rows}
        facts.update(((entry,), (*fact, lives[fact[0]])) for entry, fact in host)
        for row in graph["allocations"]:
            found = {key: row[key] for key in ("pid", "origin", "device", "bytes", "alive")}
            fact = facts.get(groups[row["id"]])
            if fact:
                pid, origin, where, size, life = fact
                alive = pid in states and life == lives[pid]
                expected = dict(zip(found, (pid, origin, where, size, alive)))
            else:  # its owner was killed in the burst in which it was made, or never showed it
                expected = dict(found, alive=row["alive"] and row["pid"] in states)
            if found != expected:
                yield "allocation %d: %s, expected %s" % (row["id"], brief(found), brief(expected))


def compare_bindings(entries, bindings, graph, groups):
    """By what the bound memory and the object are known by."""
    expected = collections.Counter(
        (sorted_tuple(entries[multicast]), sorted_tuple(entries[memory]), offset, size)
        for multicast, memory, offset, size in bindings)
    found = collections.Counter(
        (groups[row["id"]], groups[binding["id"]], binding["offset"], binding["bytes"])
        for row in graph["allocations"] if row["origin"] == "cuMulticastCreate"
        for binding in row.get("multicast", ()))
    for what, left in (("only the driver has", expected - found),
                       ("only the graph has", found - expected)):
        for multicast, memory, offset, size in left:
            yield "%s the binding of %s to %s at %#x, %d bytes" % (
                what, text(memory), text(multicast), offset, size)


class Recording:
    """What happened lately, as `lien record` writes it: two files, so that one is long enough."""

    def __init__(self, session):
        self.session, self.files, self.count = session, [], 0

    def turn(self):
        self.stop()
        while len(self.files) > 1:
            os.unlink(self.files.pop(0)[0])
        path = self.session.path("property-%d.lien" % self.count)
        self.count += 1
        self.files.append((path, self.session.spawn([LIEN, "record", path])))
        wait_for("the recorder has begun", lambda: os.path.exists(path))

    def stop(self):
        if self.files:
            self.files[-1][1].signal(signal.SIGINT)
            self.files[-1][1].wait()

    def keep(self):
        self.stop()
        folder = os.path.join(BUILD, "tests", "log")
        os.makedirs(folder, exist_ok=True)
        return [shutil.copy(path, os.path.join(folder, "property-%d-%d.lien" % (SEED, number)))
                for number, (path, _) in enumerate(self.files)]


def run(session):
    rng = random.Random(SEED)
    connection, recording = Connection(session), Recording(session)
    job, truth = Job(session, rng), Truth()
    bursts = sequences = 0
    while sequences < SEQUENCES:
        if bursts % RECORDED_BURSTS == 0:
            recording.turn()
        bursts += 1
        states, made = job.burst()
        sequences += made
        graph, status = connection.ask("graph"), connection.ask("status")
        recorder = Connection(session)
        said = truth.differences(states, graph, beside_of(recorder, job.alive()), job.lives)
        recorder.close()
        said += ["%s: %s" % (what, status[what]) for what in (
            "events_lost", "unreadable", "unmatched_imports", "incomplete") if status[what]]
        if said:
            raise Failure("LIEN_SEED=%d, burst %d:\n      %s\n      recorded in %s" % (
                SEED, bursts, "\n      ".join(said[:40]), " ".join(recording.keep())))
        job.between()
    recording.stop()
    return bursts, sequences, connection.ask("status")["events"]


failures = []


@case(long=True)
def test_graph_equals_driver():
    if failures:  # the harness tries again when a foreign agent ran: that is no excuse here
        raise failures[0]
    print("LIEN_SEED=%d" % SEED, flush=True)
    began = time.monotonic()
    with Session(memory="4G") as session:
        session.start_agent()
        try:
            bursts, sequences, events = run(session)
        except Failure as failure:
            failures.append(failure)
            raise
    check(sequences >= SEQUENCES, "only %d sequences" % sequences)
    print("%d sequences in %d bursts, %d events, %.0f s" % (
        sequences, bursts, events, time.monotonic() - began))


if __name__ == "__main__":
    sys.exit(main())
