#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Programs see the same under `lien run` as without it: random ones (tests/same/), natively, under `lien run`, beside an
agent, and with their memory away and back in between. Results and visible values are compared line by line."""

import json
import random

from lien_test import LIEN, SEED, Session, case, check, main, program

from lien_shared.same import REFUSED, Difference, compare, lines_of

STEPS = 600


class Same:
    """Runs of a program in a session. contexts: besides the primary ones, with which memory is not moved."""

    def __init__(self, session, seed, steps, contexts=4):
        self.session, self.seed = session, seed
        self.argv = [program("prog_same"), str(seed), str(steps), "2", str(contexts)]
        self.native = self.run(lien=False)

    def run(self, lien=True, moves=None):
        """The lines of its log. moves: called at each pause, with its pid."""
        log = self.session.path("same.log")
        argv = ([LIEN, "run", "--"] if lien else []) + self.argv
        job = self.session.spawn(argv, SAME_LOG=log, **({"SAME_PAUSE": 1} if moves else {}))
        while moves:
            line = job.line()
            if line != "pause":
                check(line is None, "prog_same: %s" % line)
                break
            moves(job.pid)
            job.send("go on")
        code = job.wait()
        return lines_of(log) + ([] if code == 0 else ["ended with %d: %s" % (code, job.said()[-600:])])

    def differs(self, name, **how):
        """The difference, as a list of at most one text."""
        try:
            compare(self.native, self.run(**how))
        except Difference as difference:
            return ["%s, prog_same %s\n%s" % (name, " ".join(self.argv[1:]), difference)]
        return []


class Moves:
    """Offloads all memory of a process and restores it."""

    def __init__(self, session):
        self.session, self.moved = session, 0

    def __call__(self, pid):
        process = self.session.known(pid)
        if not process["bytes"]:  # its control thread begins with its first memory
            return
        self.session.ready(pid)
        offload = self.session.lien("offload", "--json", "--owner", "all", "--pid", str(pid), "--with-closure")
        if offload.code:
            check(any(why in offload.err + offload.out for why in REFUSED), offload)
            return
        self.moved += json.loads(offload.out)["bytes"]
        restore = self.session.ask("restore")
        check(restore["outcome"] in ("done", "nothing to do"), "restore: %s" % restore)


def compare_all(seeds, steps):
    """All seeds are tried: what differs is said for each of them."""
    found = []
    with Session(LIEN_PLAIN="0") as session:
        for seed in seeds:
            found += Same(session, seed, steps).differs("without an agent")
    check(not found, "\n\n".join(found))


def compare_moved(seeds, steps):
    found = []
    with Session(LIEN_PLAIN="0") as session:
        session.start_agent()
        moves = Moves(session)
        for seed in seeds:
            found += Same(session, seed, steps).differs("beside an agent")
            found += Same(session, seed, steps, 0).differs("moved", moves=moves)
    check(not found, "\n\n".join(found))
    check(moves.moved, "nothing was moved")


@case()
def test_without_agent():
    compare_all(range(1, 5), STEPS)


@case()
def test_beside_agent_and_moved():
    compare_moved(range(5, 7), STEPS)


@case(long=True, limit=3000)
def test_fresh_seeds():
    dice = random.Random(SEED)
    compare_all([dice.randrange(1 << 32) for _ in range(40)], 3000)
    compare_moved([dice.randrange(1 << 32) for _ in range(20)], 3000)


if __name__ == "__main__":
    raise SystemExit(main())
