# SPDX-License-Identifier: BSD-2-Clause
"""Whether the graph says of a process what the process says of itself (prog_churn, prog_burst)."""

from lien_test import STATES, Stream, brief, check, equal


def graph_of(session, pid):
    """What the graph has of a process, in the words of prog_churn."""
    allocations, plain = [], []
    for allocation in session.ask("graph")["allocations"]:
        parts = allocation["handles"] + allocation["mappings"]
        if not any(part["pid"] == pid for part in parts):
            continue
        check(all(part["pid"] == pid for part in parts), "another's:", brief(allocation))
        places = []
        for mapping in allocation["mappings"]:
            access = {place["device"]: place["access"] for place in mapping["access"]}
            places.append([int(mapping["address"], 16), mapping["bytes"], access])
        if allocation["origin"] == "cuMemAlloc":
            equal(len(places), 1, "mappings of cuMemAlloc memory")
            plain.append([places[0][0], allocation["bytes"]])
            continue
        equal(allocation["origin"], "cuMemCreate", "origin")
        handles = [[int(h["handle"], 16), h["references"], h["imported"]]
                   for h in allocation["handles"]]
        allocations.append([allocation["bytes"], allocation["exports"], sorted(handles),
                            sorted(places, key=lambda place: place[0])])
    return allocations, sorted(plain)


def reservations_of(session, pid):
    """As a recorder is told that comes now."""
    stream = Stream(session)
    try:
        return sorted(list(event.words("QQ")) for event in stream.events(0.1)
                      if event.pid == pid and event.type == STATES["reservation"])
    finally:
        stream.close()


def compare(session, pid, state):
    flags = {1: "read", 3: "read-write"}
    expected = []
    for allocation in state["allocations"]:
        places = [[va, size, {device: flags[flag]
                              for device, flag in ((0, own), (1, peer)) if flag}]
                  for va, size, own, peer in allocation["mappings"]]
        expected.append([allocation["bytes"], allocation["exports"], sorted(allocation["handles"]),
                         sorted(places, key=lambda place: place[0])])
    allocations, plain = graph_of(session, pid)
    wrong = [a for a in allocations if a not in expected]
    missing = [a for a in expected if a not in allocations]
    check(not wrong and not missing and len(allocations) == len(expected),
          "%d allocations, %d expected; only in the graph: %s; only in the program: %s" % (
              len(allocations), len(expected), brief(wrong), brief(missing)))
    equal(plain, sorted(state["plain"]), "cuMemAlloc memory")
    equal(reservations_of(session, pid), sorted(state["reservations"]), "reservations")
    process = session.process(pid)
    check(process and process["complete"], "not complete:", brief(process))


def nothing_lost(session):
    status = session.ask("status")
    equal(status["events_lost"], 0, "events lost")
    equal(status["unmatched_imports"], 0, "unmatched imports")
    return status
