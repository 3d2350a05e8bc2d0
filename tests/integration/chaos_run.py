# SPDX-License-Identifier: BSD-2-Clause
"""What chaos.py and chaos_nodes.py share: choices that follow from a seed, the count of what was done, the report of
what went wrong; and how a test runs one of them for a short time."""

import json
import os
import random
import subprocess
import sys
import time
import traceback

import lien_test
from lien_test import SEED, Failure, Late, check, equal


class Lost(Failure):
    """Bytes are not what they were."""


class Tally(dict):
    """What was done, by name, for the last line."""

    def add(self, name, count=1):
        self[name] += count


class Run:
    """length: how many steps it takes. counts: the names in its tally, beside those that all have."""

    def __init__(self, seed, length, **counts):
        self.length, self.rng = length, random.Random(seed)
        self.tally = Tally(seed=seed, seconds=0, **counts, bytes_verified=0, bytes_lost=0, hangs=0, failures=0)
        self.steps = []  # what was done last, for the report
        self.began = time.monotonic()

    def say(self, *what):
        """A step, with its time."""
        self.steps.append("%.1f s: %s" % (time.monotonic() - self.began, " ".join(map(str, what))))
        del self.steps[:-60]

    def run(self):
        raise NotImplementedError

    def said(self):
        """Lines for the report: what those that take part have said."""
        raise NotImplementedError

    def report(self, error):
        self.tally.add("bytes_lost" if isinstance(error, Lost) else "hangs" if isinstance(error, Late) else "failures")
        print("\n".join(self.steps))
        for line in self.said():
            print(line)
        print("%s: %s" % (type(error).__name__, error))
        if not isinstance(error, Failure):
            traceback.print_exception(error)


def main(begin, length):
    """begin(seed, length): a context manager of a Run. Returns the exit status."""
    seed = int(os.environ.get("CHAOS_SEED") or SEED)
    length = int(os.environ.get("CHAOS_STEPS") or length)
    if os.geteuid():
        print("skipped: the agent needs root")
        return 77
    print("seed %d, %d steps" % (seed, length), flush=True)
    lien_test.enter()
    with begin(seed, length) as chaos:
        try:
            chaos.run()
        except Exception as error:  # pylint: disable=broad-except
            chaos.report(error)
    tally = chaos.tally
    print(json.dumps(tally), flush=True)
    return 1 if tally["bytes_lost"] or tally["hangs"] or tally["failures"] else 0


def short_run(name, length, **environment):
    """A program of chaos, with CHAOS_STEPS steps or so many."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    chaos = subprocess.run(
        [sys.executable, path], env={"CHAOS_STEPS": str(length), **environment, **os.environ}, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1700)
    print(chaos.stdout, end="")
    equal(chaos.returncode, 0, "exit status")
    tally = json.loads(chaos.stdout.splitlines()[-1])
    equal([tally["bytes_lost"], tally["hangs"]], [0, 0], "bytes lost, hangs")
    check(tally["bytes_verified"] > 0, "nothing was compared")
