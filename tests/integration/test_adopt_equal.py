#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Adoption equals tracing: of memory with handles, an agent that adopts a running job knows the same as
an agent that has watched from the beginning.

Processes make random calls (prog_random.c), and what the adopting agent says is compared with what the
software driver itself holds. test_golden.py adopts a real job.

LIEN_SEED repeats a run, LIEN_SEQUENCES (default 600) says how many there are: see
test_agent_property.py.
"""

import collections
import os
import random
import sys

from lien_test import (
    Failure, Session, case, equal, main, wait_for)
from random_jobs import HANDLE, MAPPING, PROCESSES, SEED, Job, Thing, access_of, text

SEQUENCES = int(os.environ.get("LIEN_SEQUENCES", "600"))
ROUNDS = 4  # at least


class Driver:
    """What the driver has: the dumps of all processes."""

    def __init__(self, states):
        self.mappings, self.handles = {}, {}
        self.makers, self.bytes = {}, {}
        for pid, state in states.items():
            for thing in map(Thing._make, state["objects"]):
                if thing.kind == MAPPING:
                    self.mappings[pid, thing.va] = thing
                elif thing.kind == HANDLE:
                    self.handles[pid, thing.value] = thing
                    self.bytes[thing.number] = thing.bytes
                if thing.kind in (MAPPING, HANDLE) and not thing.imported:
                    self.makers[thing.number] = pid
        self.by_number = collections.defaultdict(set)
        for place, thing in self.mappings.items():
            self.by_number[thing.number].add(place)
        # Memory of one process. If it has imported it, nobody can tell it from the maker.
        holders = collections.defaultdict(set)
        for things in (self.mappings, self.handles):
            for (pid, _), thing in things.items():
                holders[thing.number].add(pid)
        self.alone = {number: min(pids) for number, pids in holders.items() if len(pids) == 1}


def devices_of(thing, *flags):
    return tuple((slot, flag) for slot, flag in sorted(map(tuple, thing.access))
                 if slot >= 0 and flag in (flags or (1, 2, 3)))


def place_text(place):
    return "%d:%#x" % place


def has_handles(row):
    """Of memory that another process has exported by an address, only that is known."""
    return row["origin"] == "cuMemCreate" or (
        row["origin"] == "import" and any(m["bytes"] > 1 for m in row["mappings"]))


class Graph:
    """What the agent says of memory with handles. fresh: it has traced nothing, so there is no other."""

    def __init__(self, graph, fresh):
        self.mappings, self.handles, self.rows = {}, {}, []
        for row in graph["allocations"]:
            places = {(m["pid"], int(m["address"], 16)): m for m in row["mappings"]}
            if not places or row["origin"] == "cuMemAlloc" or not (fresh or has_handles(row)):
                continue
            self.rows.append((row, places))
            for place, mapping in places.items():
                self.mappings[place] = row, mapping
            for handle in row["handles"]:
                self.handles[handle["pid"], int(handle["handle"], 16)] = row, handle


def compare_mappings(driver, graph):
    """Every mapping that there is, and no other, each with its access."""
    for place in driver.mappings.keys() - graph.mappings.keys():
        yield "only the driver has %s: %s" % (place_text(place), driver.mappings[place])
    for place in graph.mappings.keys() - driver.mappings.keys():
        yield "only the graph has %s: %s" % (place_text(place), graph.mappings[place][0])
    for place in graph.mappings.keys() & driver.mappings.keys():
        thing, (_, mapping) = driver.mappings[place], graph.mappings[place]
        found = mapping["bytes"], tuple(slot for slot in access_of(mapping) if slot[0] >= 0)
        expected = thing.bytes, devices_of(thing)
        if found != expected:
            yield "%s: bytes and access are %s, expected %s" % (place_text(place), found, expected)


def compare_allocations(driver, graph, makers, fresh):
    """None stands for two of the driver's; owners are right where they are given."""
    for row, places in graph.rows:
        numbers = {driver.mappings[place].number for place in places if place in driver.mappings}
        if len(numbers) != 1:
            yield "allocation %d is %s of the driver: %s" % (
                row["id"], sorted(numbers), text(sorted(places)))
            continue
        number = numbers.pop()
        if row["pid"] is None or row["origin"] == "import":
            continue
        if number not in makers and not fresh:
            continue  # it was killed, or gave it back, in the burst in which it was made
        if row["pid"] not in (makers.get(number), driver.alone.get(number)):
            yield "allocation %d (the driver's %d): the owner is %s, expected %s" % (
                row["id"], number, row["pid"], makers.get(number))
        if row["bytes"] > driver.bytes.get(number, row["bytes"]):
            yield "allocation %d: %d bytes, expected %d" % (
                row["id"], row["bytes"], driver.bytes[number])


def compare_references(driver, graph, all_handles):
    """Of every handle by which something is mapped."""
    expected, found = {}, {}
    for (pid, va), thing in driver.mappings.items():
        if not all_handles and graph.mappings[pid, va][0]["origin"] == "import":
            continue  # made before the agent, mapped since: nobody has counted
        handle = driver.handles.get((pid, thing.value))
        expected[pid, thing.value] = handle.references if handle else 0
    for name in expected:
        found[name] = graph.handles[name][1]["references"] if name in graph.handles else 0
        if found[name] != expected[name]:
            yield "handle %#x of %d: %d references, expected %d" % (
                name[1], name[0], found[name], expected[name])
    for name, (row, handle) in graph.handles.items():
        thing = driver.handles.get(name)
        if not thing:
            yield "handle %#x of %d is not the driver's: %s" % (name[1], name[0], row)
        elif (row["origin"] == "cuMemCreate" and handle["imported"] != bool(thing.imported)
              and driver.alone.get(thing.number) != name[0]):
            yield "handle %#x of %d: imported is %s" % (name[1], name[0], handle["imported"])


def compare_matches(driver, graph):
    """An import is matched when its owner lives, has made it exportable, and maps it so that it can
    be marked, and when the import can be read."""
    matched = unknown = 0
    said = []
    for number, places in driver.by_number.items():
        maker = driver.makers.get(number)
        own = {place for place in places if not driver.mappings[place].imported}
        row = None
        if any(devices_of(driver.mappings[place], 3) for place in own):
            row = graph.mappings[min(own)][0]
        views = collections.defaultdict(set)
        for place in places - own:
            views[place[0], driver.mappings[place].value].add(place)
        for (pid, value), group in views.items():
            found = {graph.mappings[place][0]["id"] for place in group}
            if not row or not any(devices_of(driver.mappings[place], 1, 3) for place in group):
                unknown += 1
            elif found != {row["id"]}:
                said.append("import %#x of %d is allocation %s, expected %d of %d (the driver's "
                            "%d)" % (value, pid, sorted(found), row["id"], maker, number))
            else:
                matched += 1
    return said, matched, unknown


def compare_moved(driver, session):
    """While it is away: nothing of it is still mapped by somebody who does not take part."""
    for row in session.ask("graph")["allocations"]:
        if row["state"] != "offloaded":
            continue
        places = {(m["pid"], int(m["address"], 16)) for m in row["mappings"]}
        numbers = {driver.mappings[place].number for place in places}
        for number in numbers:
            if driver.by_number[number] != places:
                yield "allocation %d is away, and the driver's %d is mapped elsewhere: %s" % (
                    row["id"], number, text(sorted(driver.by_number[number] - places)))
            if row["pid"] not in (driver.makers.get(number), driver.alone.get(number)):
                yield "allocation %d is away: its owner is %s, expected %s" % (
                    row["id"], row["pid"], driver.makers.get(number))


def references_of(states):
    """By what is mapped: a restore may give handles other values, and memory another number."""
    driver = Driver(states)
    found = {}
    for (pid, va), thing in driver.mappings.items():
        handle = driver.handles.get((pid, thing.value))
        found[pid, va] = (handle.references if handle else 0, thing.bytes, devices_of(thing),
                          bool(thing.imported) and thing.number not in driver.alone)
    return found


class Random:
    """whole: no allocation is mapped in part, so that how large it is can be known, and it is moved."""

    def __init__(self, session, whole):
        self.session, self.rng, self.whole = session, random.Random(SEED), whole
        self.job = Job(session, self.rng, "no-multicast", *(["whole"] if whole else []))
        self.makers = {}  # also of memory that they have given back, and others have not
        self.sequences = self.matched = self.unknown = self.moved = 0
        self.where = "?"

    def fail(self, said):
        said = list(said)
        if said:
            raise Failure("LIEN_SEED=%d, %s:\n      %s" % (
                SEED, self.where, "\n      ".join(said[:40])))

    def too_little(self):
        return not self.matched or not self.unknown or (self.whole and not self.moved)

    def bursts(self, count):
        for _ in range(count):
            states, made = self.job.burst()
            self.sequences += made
            self.makers.update(Driver(states).makers)
            self.job.between()

    def compare(self, fresh):
        """fresh: the agent knows everything by adoption."""
        driver = Driver(self.job.states())
        self.makers.update(driver.makers)
        graph = Graph(self.session.ask("graph"), fresh)
        said = [*compare_mappings(driver, graph),
                *compare_allocations(driver, graph, driver.makers if fresh else self.makers, fresh),
                *compare_references(driver, graph, fresh)]
        self.fail(said)
        said, matched, unknown = compare_matches(driver, graph)
        if fresh:
            self.fail(said)
            self.matched += matched
            self.unknown += unknown
        return driver

    def adopt(self):
        """Nothing that the processes can see has changed by it."""
        for member in self.job.members:
            wait_for("process %d is known" % member.pid,
                     lambda pid=member.pid: self.session.process(pid))
        self.job.paint()
        states, contents = self.job.states(), self.job.contents()
        adoption = self.session.adopt()
        after = self.job.states()
        equal({pid: sorted(state["objects"]) for pid, state in after.items()},
              {pid: sorted(state["objects"]) for pid, state in states.items()},
              "%s: what the driver has, after the adoption" % self.where)
        equal(self.job.contents(), contents, "%s: contents after the adoption" % self.where)
        return adoption

    def move(self, driver):
        self.job.paint()
        contents, before = self.job.contents(), references_of(self.job.states())
        answer = self.session.ask("offload", "--owner", "all")
        self.fail(compare_moved(driver, self.session))
        self.moved += answer["bytes"]
        self.session.ask("restore")
        equal(self.job.contents(), contents, "%s: contents after a restore" % self.where)
        states = self.job.states()
        equal(references_of(states), before, "%s: after a restore" % self.where)
        self.makers.update(Driver(states).makers)  # the memory is other memory now

    def round(self, number):
        self.where = "round %d, unwatched" % number
        self.bursts(self.rng.randrange(2, 6))
        if self.whole:  # with one import that cannot be looked at, little can be moved
            self.job.open(range(PROCESSES) if number % 2 else [self.rng.randrange(PROCESSES)])
        self.session.start_agent("--no-journal")
        self.where = "round %d, adopted" % number
        self.adopt()
        driver = self.compare(True)
        if self.whole:
            self.move(driver)
        self.where = "round %d, traced on" % number
        self.bursts(self.rng.randrange(1, 3))
        self.compare(False)
        self.where = "round %d, adopted again" % number
        self.adopt()
        self.compare(False)
        self.session.stop_agent()
        equal(self.session.clean(), None, "agent --clean")


failures = {}


def random_rounds(whole):
    if whole in failures:  # the harness tries again when a foreign agent ran: that is no excuse here
        raise failures[whole]
    print("LIEN_SEED=%d" % SEED, flush=True)
    try:
        with Session(memory="4G") as session:
            run, number = Random(session, whole), 0
            while run.sequences < SEQUENCES / 2 or number < ROUNDS or run.too_little():
                number += 1
                run.round(number)
    except Failure as failure:
        failures[whole] = failure
        raise
    print("%d rounds, %d sequences: %d imports are matched, %d cannot be; %d MiB were moved" % (
        number, run.sequences, run.matched, run.unknown, run.moved >> 20))


@case(long=True)
def test_random():
    random_rounds(False)


@case(long=True)
def test_random_moved():
    random_rounds(True)


if __name__ == "__main__":
    sys.exit(main())
