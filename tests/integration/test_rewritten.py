#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Processes that rewrite functions of the driver in their memory, as UCX's memory hooks do: no probe is put
where their code differs from the file's (loader/probes/code.h). See lien_test.py for what this needs.
"""

import contextlib
import os
import signal
import subprocess
import sys

from lien_test import MIB, SOFTCUDA, Session, case, check, equal, main, wait_for

HOOKED = "error 709"  # what a rewritten function returns
WHY = "has rewritten functions of CUDA or NCCL in its memory"


def address_of(driver, function):
    """Where the process has a function of the driver."""
    with open("/proc/%d/maps" % driver.pid) as maps:
        line = next(line for line in maps if "libcuda.so" in line)
    symbols = subprocess.run(["nm", "-D", os.path.join(SOFTCUDA, "libcuda.so.1")], capture_output=True,
                             text=True, check=True).stdout.split("\n")
    offset = next(line.split()[0] for line in symbols if line.endswith(" " + function))
    return int(line.split("-")[0], 16) + int(offset, 16)


def rewrite(driver, function, size):
    driver("rewrite", address_of(driver, function), size)


def is_hooked(driver, *command):
    ok, said = driver.attempt(*command)
    check(not ok and said.startswith(HOOKED), "%s is what the process made of it: %s" % (command, said))


def reason_of(session, pid):
    process = session.process(pid)
    return process and process["reason"] or ""


def not_probed(session):
    return [file["reason"] for file in session.ask("status")["skipped"] if "libcuda" in file["path"]]


@contextlib.contextmanager
def watched():
    """A process that an agent sees from its first call on."""
    with Session(fresh=True) as session:
        session.start_agent()
        driver = session.driver()
        session.ready(driver.pid)
        yield session, driver


@case()
def test_before_the_agent():
    """No process that maps that file is probed until the process has ended; agents come and go."""
    for size in (5, 13):
        with Session(fresh=True) as session:
            hooked = session.driver(control=False)
            rewrite(hooked, "cuMemAlloc_v2", size)
            other = session.driver(control=False)
            session.start_agent()
            is_hooked(hooked, "alloc", MIB)
            check("rewritten" in not_probed(session)[0], "status says why")
            wait_for("it is named", lambda: WHY in reason_of(session, hooked.pid))
            wait_for("who shares the file is not seen", lambda: "not probed" in reason_of(session, other.pid))
            other("alloc", MIB)
            session.stop_agent()
            is_hooked(hooked, "alloc", MIB)
            session.start_agent()
            is_hooked(hooked, "alloc", MIB)
            hooked.process.signal(signal.SIGKILL)
            third = session.driver(control=False)
            wait_for("the file is probed", lambda: not not_probed(session))
            session.known(third.pid)
            third("alloc", MIB)
            other("alloc", MIB)


@case()
def test_after_the_agent():
    """What it allocates from then on is not seen: the process is marked incomplete."""
    with watched() as (session, driver):
        driver("make", 2 * MIB, 0)
        check(session.process(driver.pid)["complete"], "it is seen from its first call on")
        rewrite(driver, "cuMemAlloc_v2", 13)
        is_hooked(driver, "alloc", MIB)
        wait_for("that is noticed", lambda: WHY in reason_of(session, driver.pid))
        named = "process %d %s" % (driver.pid, WHY)
        check(named in " ".join(session.lien("doctor").out.split()), "lien doctor names it")
        refused = session.lien("offload", "--owner", "all")
        check(WHY in " ".join((refused.out + refused.err).split()), "it is not moved: %s" % refused)
        session.stop_agent()
        is_hooked(driver, "alloc", MIB)


@case()
def test_gate():
    """The gate holds more calls than are traced: an offload does not put a probe on a rewritten one either."""
    with watched() as (session, driver):
        memory = driver("make", 2 * MIB, 0)[1]
        rewrite(driver, "cuMemsetD8_v2", 5)
        refused = session.lien("offload", "--owner", "all")
        check(refused.code and "has rewritten functions" in refused.err, "it is not moved: %s" % refused)
        is_hooked(driver, "fill", memory, MIB, 7)
        equal(session.ask("status")["transaction"], None, "the transaction")


if __name__ == "__main__":
    sys.exit(main())
