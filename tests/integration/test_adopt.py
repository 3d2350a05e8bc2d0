#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Adoption: memory that was there before the agent is moved like any other once `lien attach` has found
out which references are held to it and who imported it from whom."""

import os
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from lien_test import LIEN, MIB, Session, case, check, equal, main, wait_for  # noqa: E402

SIZE = 2 * MIB


class Pair:
    """An owner and an importer that have shared memory before there is an agent."""

    def __init__(self, session, count=3):
        self.session = session
        self.owner, self.importer = (session.driver(control=False) for _ in range(2))
        self.handles, self.places, self.taken, self.views = [], [], [], []
        for i in range(count):
            handle, va = self.owner("make", SIZE, 0)
            self.owner("fill", va, SIZE, 0x40 + i)
            fd = self.owner("export", handle)
            taken = self.importer.take(self.owner, fd)
            self.owner("close", fd)
            self.handles.append(handle)
            self.places.append(va)
            self.taken.append(taken)
            self.views.append(self.importer("show", SIZE, taken, 0))

    @property
    def pids(self):
        return [self.owner.pid, self.importer.pid]

    def verify(self):
        for i, (va, view) in enumerate(zip(self.places, self.views)):
            equal(self.owner("check", va, SIZE, 0x40 + i), 0, "wrong bytes at the owner, %d" % i)
            equal(self.importer("check", view, SIZE, 0x40 + i), 0, "wrong bytes at the importer, %d" % i)

    def shared(self):
        """What one writes, the other reads."""
        for i, (va, view) in enumerate(zip(self.places, self.views)):
            self.importer("fill", view, SIZE, 0x70 + i)
            equal(self.owner("check", va, SIZE, 0x70 + i), 0, "not shared any more, %d" % i)
            self.owner("fill", va, SIZE, 0x40 + i)
        self.verify()


def known(session, *pids):
    for pid in pids:
        wait_for("%d is known" % pid, lambda pid=pid: session.process(pid))


def references(driver, handle):
    """So many can be given back."""
    count = 0
    while count < 20 and driver.attempt("release", handle)[0]:
        count += 1
    return count


def rounds(session, pair, count=3, moved=3 * SIZE):
    for _ in range(count):
        answer = session.ask("offload", "--owner", "all")
        equal((answer["bytes"], answer["left"]), (moved, []), "moved")
        equal(session.used(), 0, "device memory in use")
        session.ask("restore")
        pair.verify()


@case()
def test_owners_are_found():
    with Session() as session:
        pair = Pair(session)
        session.start_agent()
        known(session, *pair.pids)
        answer = session.ask("attach", "--all")
        adoption = answer["adoption"]
        equal((adoption["error"], adoption["matched"], adoption["unmatched"], adoption["marked"],
               adoption["disputed"], adoption["outsider"]), (None, 3, 0, 3, 0, None), "adoption")
        check(adoption["pause_ms"] > 0, adoption)
        equal([(p["complete"], p["error"], p["mappings"]) for p in answer["processes"]],
              [(True, None, 3)] * 2, "processes")
        pair.verify()  # the marks are gone
        for va, view in zip(pair.places, pair.views):
            holders = session.ask("holders", pair.importer.pid, hex(view))
            equal(holders["allocation"]["pid"], pair.owner.pid, "owner")
        rounds(session, pair)
        pair.shared()
        again = session.ask("attach", "--all")
        equal((again["processes"], again["adoption"]), ([], None), "a second time")


@case()
def test_references_are_counted():
    """As many as before can be given back after a restore, and no more."""
    with Session() as session:
        pair = Pair(session, 4)
        pair.owner("retain", pair.places[1])
        pair.owner("retain", pair.places[1])
        pair.owner("release", pair.handles[2])
        pair.importer("release", pair.taken[2])
        pair.importer("retain", pair.views[3])
        session.start_agent()
        known(session, *pair.pids)
        adoption = session.ask("attach", "--all")["adoption"]
        equal((adoption["error"], adoption["counted"], adoption["matched"]), (None, 8, 4), "adoption")
        rounds(session, pair, 1, 4 * SIZE)
        for driver, places, want in ((pair.owner, pair.places, (1, 3, 0, 1)),
                                     (pair.importer, pair.views, (1, 1, 0, 2))):
            for va, expected in zip(places, want):
                handle = driver("retain", va)
                equal(references(driver, handle) - 1, expected, "references")
        pair.verify()
        for va in pair.places:
            pair.owner("unmap", va, SIZE)
        for va in pair.views:
            pair.importer("unmap", va, SIZE)
        equal(session.used(), 0, "device memory in use")


if __name__ == "__main__":
    sys.exit(main())
