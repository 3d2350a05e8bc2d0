#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Programs see the same under `lien run` as without it: random ones (tests/same/), natively, under `lien run`,
beside an agent, and with their memory away and back in between. Results and visible values are compared line by line."""

import random

from lien_test import LIEN, SEED, Session, case, check, main, program
from same import Difference, compare, lines_of

STEPS = 600


class Same:
    """Runs of prog_same in a session."""

    def __init__(self, session, seed, steps):
        self.session, self.seed, self.steps = session, seed, steps

    def run(self, name, lien=True, moves=None):
        """The lines of its log. moves: called at each pause, with its pid."""
        log = self.session.path("%s-%d.log" % (name, self.seed))
        argv = ([LIEN, "run", "--"] if lien else []) + [program("prog_same"), self.seed, self.steps]
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

    def compare(self, native, name, **how):
        try:
            compare(native, self.run(name, **how))
        except Difference as difference:
            difference.where = "%s, prog_same %d %d" % (name, self.seed, self.steps)
            raise


class Moves:
    """Offloads all memory of a process and restores it."""

    def __init__(self, session):
        self.session = session

    def __call__(self, pid):
        self.session.ready(pid)
        for command in ("offload", "--owner", "all", "--pid", str(pid)), ("restore",):
            result = self.session.ask(*command)
            check(result["outcome"] in ("done", "empty"), "%s: %s" % (command[0], result))


def compare_all(seeds, steps, agent):
    """All seeds are tried: what differs is said for each of them."""
    found = []
    with Session(LIEN_PLAIN="0") as session:
        if agent:
            session.start_agent()
        for seed in seeds:
            same = Same(session, seed, steps)
            native = same.run("native", lien=False)
            try:
                same.compare(native, "agent" if agent else "lien")
                if agent:
                    same.compare(native, "moved", moves=Moves(session))
            except Difference as difference:
                found.append(str(difference))
    check(not found, "\n\n".join(found))


@case()
def test_without_agent():
    compare_all(range(1, 5), STEPS, agent=False)


@case()
def test_beside_agent_and_moved():
    compare_all(range(5, 7), STEPS, agent=True)


@case(long=True, limit=3000)
def test_fresh_seeds():
    dice = random.Random(SEED)
    compare_all([dice.randrange(1 << 32) for _ in range(40)], 3000, agent=False)
    compare_all([dice.randrange(1 << 32) for _ in range(20)], 3000, agent=True)


if __name__ == "__main__":
    raise SystemExit(main())
