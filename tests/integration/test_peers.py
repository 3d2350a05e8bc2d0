#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""tests/bench/peers.py on the software driver, over a stand-in libnccl whose ranks really depend on each other.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import glob
import json
import os
import sys

from lien_test import GUARD, LIEN, ROOT, Session, case, check, equal, main, program, run
from train_job import SYNC

SCRIPT = os.path.join(ROOT, "tests", "bench", "peers.py")


class Peers:
    """What the script says and writes."""

    def __init__(self, session, *args, limit=GUARD, **environment):
        path = session.path("peers.json")
        outcome = run([sys.executable, SCRIPT, "--lien", LIEN, "--prog", program("prog_peers", "tests/bench"),
                       "--json", path, *args], limit, session.env(LIEN_PLAIN=None, LIEN_SOCKET=None, **environment))
        print("\n".join("   " + line for line in outcome.out.splitlines()))
        self.code, self.lines = outcome.code, outcome.out.splitlines()
        check(self.lines, outcome)
        self.last = self.lines[-1]
        self.json = None
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.json = json.load(file)

    def ways(self, row=0):
        return self.json["rows"][row]["ways"]

    def table(self):
        """Cells by row, without the heads."""
        return [[cell.strip() for cell in line[1:-1].split("|")]
                for line in self.lines if line.startswith("| ")][1:]


def with_calls(session):
    """The stand-in with these calls of NCCL's own: one file, as a real one is."""
    os.makedirs(session.path("own"))
    return session.compile("own/libnccl.so.2", "nccl_peers.c", "-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden",
                           "-fno-optimize-sibling-calls", "-fno-ipa-icf", "-Wl,-soname,libnccl.so.2", "-Wl,--build-id",
                           "-I" + ROOT, "-I" + os.path.join(ROOT, "include"),
                           *sorted(glob.glob(os.path.join(ROOT, "tests", "integration", "softnccl_sync*.c"))), "-ldl")


@case(long=True)
def test_lien_alone():
    with Session(memory="1G") as session:
        said = Peers(session, "--communicators", "3", "--rounds", "2", SYNC)
        equal((said.code, said.last), (0, "2 passed, 0 failed"), "end")
        equal(list(said.ways()), ["lien", "lazy"], "ways")
        for way in said.ways().values():
            equal(len(way["rounds"]), 3, "rounds")
            for one in way["rounds"]:
                check(one["freed_bytes"] == one["out_bytes"] == one["back_bytes"] > 0, one)
                check(one["kept_bytes"] == 0 and one["checked_bytes"] > 0 and one["used_ms"] > 0, one)
                check(one["out_ms"] >= one["out_reported_ms"] > 0, one)
        equal([one["back_lazy"]["undivided"] for one in said.ways()["lazy"]["rounds"]], [None] * 3, "in parts")
        equal([[row[0], row[1]] for row in said.table()], [["2.28.9", "**lien**"], ["2.28.9", "**lien**, `restore --lazy`"]],
              "table")
        check(all(row[2] and row[3] and row[4] and row[5] and int(row[6]) > 0 for row in said.table()), said.table())
        equal((said.json["ranks"], said.json["communicators"], said.json["rows"][0]["nccl"]), (2, 3, "2.28.9"), "file")


@case(long=True)
def test_all_ways_in_one_job():
    """Each of NCCL's own calls is made, on each communicator, in each rank and round; not lien's instead."""
    with Session(memory="1G") as session:
        calls = session.path("calls")
        said = Peers(session, "--communicators", "2", "--rounds", "1", with_calls(session), LIEN_TEST_CALLS=calls)
        equal((said.code, said.last), (0, "4 passed, 0 failed"), "end")
        equal(list(said.ways()), ["suspend", "pause", "lien", "lazy"], "ways")
        with open(calls, encoding="ascii") as file:
            made = file.read().split()
        equal({name: made.count(name) for name in sorted(set(made))},
              {"ncclCommResume": 8, "ncclCommSuspend": 8, "ncclPause": 4, "ncclResume": 4}, "calls")
        equal([way["freed_bytes"] for way in said.ways().values()][:2], [0, 0], "what they free")
        check(said.ways()["lien"]["freed_bytes"] > 0, "what lien frees")


@case(long=True)
def test_one_that_fails():
    """The others go on, in another job; a library that cannot be loaded is a failure of its own."""
    with Session(memory="1G") as session:
        said = Peers(session, "--rounds", "0", "--communicators", "2", "--way", "suspend", "--way", "lien",
                     "/nonexistent/libnccl.so.2", with_calls(session), LIEN_TEST_NCCL="ncclCommResume")
        equal((said.code, said.last), (1, "1 passed, 2 failed"), "end")
        check("cannot be loaded" in said.json["rows"][0]["failed"], said.json["rows"][0])
        check("ncclCommResume(comms[i]): 3" in said.ways(1)["suspend"]["failed"], said.ways(1)["suspend"])
        check(said.ways(1)["lien"]["freed_bytes"] > 0, said.ways(1)["lien"])
        first, second, third = said.table()
        check(first[1].startswith("FAILED") and second[2].startswith("FAILED"), said.table())
        check(int(third[2].replace(",", "")) > 0, said.table())


@case()
def test_wrong_values():
    with Session(memory="1G") as session:
        library = session.compile("libnccl.so.2", "no_reduce.c", "-shared", "-fPIC", "-Wl,--no-as-needed", SYNC,
                                  "-Wl,-rpath," + os.path.dirname(SYNC))
        said = Peers(session, "--communicators", "1", library)
        equal((said.code, said.last), (1, "0 passed, 1 failed"), "end")
        check("all-reduce on communicator 0: value 0 of 256 is 0xdbdbdbdb" in said.json["rows"][0]["failed"],
              said.json["rows"][0])


@case(long=True)
def test_where_it_cannot_run():
    with Session(devices=1) as session:
        said = Peers(session, SYNC)
        equal((said.code, said.last), (0, "0 passed, 0 failed"), "end")
        check(any(line.startswith("skipped: needs root, 2 GPUs") for line in said.lines), said.lines)
        said = Peers(session, "--share", "--way", "lien", "--communicators", "1", "--rounds", "0", SYNC)
        equal((said.code, said.last), (0, "1 passed, 0 failed"), "one GPU for both")


if __name__ == "__main__":
    sys.exit(main())
