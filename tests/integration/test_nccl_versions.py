#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""tests/gpu/nccl_versions.py on the software driver, over stand-ins for two versions of NCCL.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import os
import re
import sys

from lien_test import GUARD, LIEN, ROOT, SOFTNCCL, Session, case, check, equal, main, program, run
from train_job import SYNC

OLD = os.path.join(os.path.dirname(os.path.dirname(SYNC)), "sync-2.19", "libnccl.so.2")
SCRIPT = os.path.join(ROOT, "tests", "gpu", "nccl_versions.py")


def versions(session, *args, limit=GUARD, **environment):
    """The exit status, the rows of the table, and all that was said."""
    outcome = run([sys.executable, SCRIPT, "--lien", LIEN, *args], limit,
                  session.env(LIEN_PLAIN=None, LIEN_SOCKET=None, **environment))
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in outcome.out.splitlines() if re.match(r"\| [^N]", line)]
    print("\n".join("   " + line for line in outcome.out.splitlines()))
    return outcome.code, rows, outcome.out


def prog():
    return "--prog", program("prog_nccl_versions", "tests/gpu")


@case(long=True)
def test_both_versions():
    with Session(devices=2, memory="1G") as session:
        code, rows, said = versions(session, *prog(), SYNC, OLD)
        equal((code, said.splitlines()[-1]), (0, "8 passed, 0 failed"), "end")
        equal([row[0] for row in rows], ["2.28.9", "2.19.3"], "versions")
        equal([row[5:] for row in rows], [["ncclAlltoAll", "plain, registered, window"],
                                          ["send/receive", "plain, registered"]], "what they have")
        for row in rows:
            for cell in row[1:4]:
                check(int(re.match(r"passed, (\d+) MiB", cell)[1]) > 0, "moved:", row)
            check(re.match(r"passed, 0 MiB \([1-9]\d* stay\)$", row[4]), "attached, cuMem off:", row)


@case(long=True)
def test_libraries_that_do_not_work():
    """One that is not a library, one that does not exist, and one whose ranks never meet."""
    with Session(devices=2, memory="1G") as session:
        none = session.path("libnccl.so.2")
        with open(none, "w", encoding="ascii") as file:
            file.write("not a library")
        code, rows, said = versions(session, "--mode", "run", "--cumem", "1", none, "/nonexistent/libnccl.so.2",
                                    SOFTNCCL)
        equal((code, said.splitlines()[-1], rows[0][1], rows[1][1]),
              (1, "0 passed, 3 failed", "not loaded", "not loaded"), "end")
        check(re.search(r"^FAILED %s: cannot be loaded: .*(too short|invalid ELF)" % none, said, re.M), said)
        check(re.search("^FAILED /nonexistent/.*: cannot be loaded: .*No such file", said, re.M), said)


@case(long=True)
def test_wrong_values():
    with Session(devices=2, memory="1G") as session:
        library = session.compile("libnccl.so.2", "no_gather.c", "-shared", "-fPIC", "-Wl,--no-as-needed", SYNC,
                                  "-Wl,-rpath," + os.path.dirname(SYNC))
        code, _, said = versions(session, *prog(), "--mode", "run", "--cumem", "1", library)
        equal((code, said.splitlines()[-1]), (1, "0 passed, 1 failed"), "end")
        check(re.search(r"^FAILED 2.28.9, run, cuMem on: rank \d: all-gather of plain memory, step 1: "
                        r"value 0 of \d+ is 0x", said, re.M), said)


@case(long=True)
def test_no_memory():
    """The rank's reason is printed, and the other rank does not keep the script waiting."""
    with Session(devices=2, memory="32M") as session:
        code, _, said = versions(session, *prog(), "--mode", "run", "--cumem", "1", SYNC)
        equal((code, said.splitlines()[-1]), (1, "0 passed, 1 failed"), "end")
        check(re.search(r"^FAILED 2.28.9, run, cuMem on: rank \d: nccl\w+\(.*\): 1", said, re.M), said)


@case()
def test_no_gpu():
    with Session(devices=2) as session:
        code, _, said = versions(session, *prog(), SYNC, LD_LIBRARY_PATH=None)
        equal(code, 0, "exit status")
        check(re.search("skipped: no GPU: libcuda.so.1: .*\n0 passed, 0 failed$", said.strip()), said)


if __name__ == "__main__":
    sys.exit(main())
