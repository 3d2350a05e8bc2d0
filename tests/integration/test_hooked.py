#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Libraries that hook the driver's functions and dlsym(), as quotas do: under `lien run` their limits hold as
they do natively, before the control library or behind it, and the memory can be moved."""

import os
import sys

from lien_test import CONTROL, LIEN, MIB, ROOT, SOFTCUDA, Session, case, check, equal, main
from plain import KEPT, stays

INCLUDE = "-I" + os.path.join(ROOT, "include")
BLOCK = 16 * MIB

# How the library hooks, and of how many blocks of cuMemAlloc, cuMemAllocAsync and cuMemCreate a process gets two.
LIBRARIES = {
    "all": ((), ("plain", "async", "create")),
    "next": (("-DNEXT",), ("plain", "async", "create")),
    "alloc": (("-DALLOC_ONLY", "-DVERSIONED"), ("plain",)),
    "hides": (("-DHIDES", "-DALLOC_ONLY"), ("plain",)),
}
WAYS = ("linked", "dlsym", "proc")


class Hooked:
    """Builds the libraries and the programs."""

    def __init__(self, session):
        self.session = session
        driver = ["-L", SOFTCUDA, "-Wl,--no-as-needed", "-l:libcuda.so.1"]
        versions = session.path("versions")
        with open(versions, "w", encoding="ascii") as out:
            out.write("GLIBC_2.2.5 { dlsym; }; GLIBC_2.34 { dlsym; };\n")
        self.libraries = {name: session.compile(
            "libquota-%s.so" % name, "quota.c", INCLUDE, "-O2", "-shared", "-fPIC", *flags,
            *(["-Wl,--version-script=" + versions] if "-DVERSIONED" in flags else []),
            *(driver if "-DNEXT" in flags else []), "-ldl", "-lpthread")
            for name, (flags, _) in LIBRARIES.items()}
        self.programs = {
            "linked": session.compile("linked", "quota_user.c", INCLUDE, "-O2", "-DLINKED", *driver),
            "dlsym": session.compile("looks-up", "quota_user.c", INCLUDE, "-O2", "-ldl")}

    def start(self, library, way, order, plain=False):
        """order: of the control library; None: there is none."""
        argv = [self.programs["linked" if way == "linked" else "dlsym"]] + (["proc"] if way == "proc" else [])
        preload = self.libraries[library]
        environment = {"LIEN_PLAIN": "1"} if plain else {}
        if order == "first":
            argv = [LIEN, "run", *(["--plain"] if plain else []), "--", *argv]
        elif order == "last":
            preload += ":" + os.path.abspath(CONTROL)
        return self.session.spawn(argv, LD_PRELOAD=preload, QUOTA_MIB=2 * BLOCK // MIB + 1, **environment)


def check_moves(session, job, kind, what):
    session.ready(job.pid)
    equal(stays(session, job.pid), 0, what)
    moved = session.ask("offload", "--owner", "all", "--pid", job.pid)
    check(moved["outcome"] == "done" and moved["bytes"] >= 2 * BLOCK, what, kind, moved)
    check(session.used() <= KEPT, what, session.used())
    equal(session.ask("restore")["outcome"], "done", what)
    equal(job.ask("look"), "0 wrong", what)


def granted(job, kinds=("plain", "async", "create", "plain")):
    answers = [job.ask(kind) for kind in kinds]
    equal(job.ask("look"), "0 wrong", "bytes")
    return answers


def reaches(library, way):
    """Even without the control library, its functions have no names that a linker finds."""
    return (library, way) != ("hides", "linked")


@case()
def test_a_quota_holds():
    with Session(LIEN_PLAIN="0") as session:
        hooked = Hooked(session)
        for library, (_, kinds) in LIBRARIES.items():
            for way in WAYS:
                jobs = {(order, plain): hooked.start(library, way, order, plain)
                        for order in (None, "first", "last") for plain in (False, True)[:2 if order else 1]}
                native = granted(jobs[None, False])
                for kind, said in zip(("plain", "async", "create", "plain"), native):
                    got = 2 if kind in kinds and reaches(library, way) else 4
                    check(said.startswith("%d granted" % got), library, way, kind, said)
                for (order, plain), job in jobs.items():
                    found = granted(job)
                    if kinds == ("plain",):  # the figures are the device's, with what lien keeps
                        found, native = ([said.split(",")[0] for said in each] for each in (found, native))
                    equal(found, native, "%s, %s, control library %s, plain %d" % (library, way, order, plain))
                    job.close_input()
                    equal(job.wait(), 0, job.said())


@case()
def test_what_is_granted_moves():
    """And what has been moved is given back to the quota."""
    with Session(LIEN_PLAIN="0", LIEN_SOFTCUDA_STRICT="1") as session:
        session.start_agent()
        hooked = Hooked(session)
        for library in ("all", "next", "alloc"):
            for way in WAYS:
                for order in ("first", "last"):
                    what = "%s, %s, control library %s" % (library, way, order)
                    job = hooked.start(library, way, order)
                    for kind in LIBRARIES[library][1]:
                        check(job.ask(kind).startswith("2 granted"), what, kind)
                        check_moves(session, job, kind, what)
                        check(job.ask(kind).startswith("2 granted"), what, kind, "again")
                    job.close_input()
                    equal(job.wait(), 0, job.said())


@case()
def test_what_is_not_hooked_moves():
    """Behind a library that asks glibc's dlsym() itself."""
    with Session(LIEN_PLAIN="0", LIEN_SOFTCUDA_STRICT="1") as session:
        session.start_agent()
        hooked = Hooked(session)
        for way in ("linked", "dlsym"):
            job = hooked.start("hides", way, "first")
            for kind in ("async", "create"):
                check(job.ask(kind).startswith("4 granted"), way, kind)
                check_moves(session, job, kind, way)
            job.close_input()
            equal(job.wait(), 0, job.said())


if __name__ == "__main__":
    sys.exit(main())
