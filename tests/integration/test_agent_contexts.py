#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The current context is followed only where it matters: in processes with several contexts."""

import sys

from lien_test import Session, case, check, equal, main, stays, wait_for
from shapes import allocations, shapes

MIB = 1 << 20
PIECE = 2 * MIB

ENOUGH = 1000  # agent/processes/watch.c


def followed(session):
    return session.ask("status")["contexts_followed"]


def is_so(session, *drivers, of):
    """Exactly those of these processes are followed. Others may run on this machine."""
    wanted = {driver.pid for driver in drivers}
    wait_for("contexts of %s are followed" % wanted,
             lambda: wanted == {driver.pid for driver in of} & set(followed(session)))


def settle(driver, context=None):
    """As often as a process with one context makes it current in a few minutes of work."""
    for _ in range(ENOUGH):
        if context is None:
            driver("device", 0)
        else:
            driver("ctx-set", context)


def devices(session, driver):
    return [(size, device) for _, size, device, _ in allocations(session, driver)]


@case()
def test_one_context_needs_no_probes():
    with Session() as session:
        session.start_agent()
        driver = shapes(session)
        is_so(session, driver, of=[driver])  # new
        driver("alloc", 1 * MIB)
        settle(driver)
        is_so(session, of=[driver])
        driver("alloc", 2 * MIB)
        driver("threads", 1, PIECE)
        equal(devices(session, driver), [(MIB, 0), (2 * MIB, 0), (PIECE, 0)], "size and device")


@case()
def test_another_context_after_a_long_time():
    with Session() as session:
        session.start_agent()
        driver = shapes(session)
        is_so(session, driver, of=[driver])  # else some of the following are not counted
        settle(driver)
        is_so(session, of=[driver])
        context = driver("ctx", 1)
        is_so(session, driver, of=[driver])
        driver("alloc", 1 * MIB)  # nobody has seen what is current here
        driver("ctx-set", context)
        driver("alloc", 2 * MIB)
        driver("device", 0)
        driver("alloc", 3 * MIB)
        settle(driver, context)
        driver("alloc", 4 * MIB)
        stays("it is followed", lambda: driver.pid in followed(session), 1.5)  # agent/processes/watch.c looks each second
        equal(devices(session, driver),
              [(MIB, None), (2 * MIB, 1), (3 * MIB, 0), (4 * MIB, 1)], "size and device")
        driver("ctx-destroy", context)
        equal(devices(session, driver), [(MIB, None), (3 * MIB, 0)], "what is left")


@case()
def test_while_no_agent_runs():
    with Session() as session:
        session.start_agent()
        driver, single = shapes(session), shapes(session)
        context = driver("ctx", 1)
        is_so(session, driver, single, of=[driver, single])
        settle(single)
        is_so(session, driver, of=[driver, single])
        for _ in range(2):
            session.kill_agent()
            driver("device", 0)
            driver("alloc", 1 * MIB)
            driver("ctx-set", context)
            single("alloc", 5 * MIB)
            session.start_agent()
            is_so(session, driver, of=[driver, single])
            driver("alloc", 2 * MIB)
        equal(devices(session, driver), 2 * [(MIB, 0), (2 * MIB, 1)], "size and device")
        equal(devices(session, single), 2 * [(5 * MIB, 0)], "of the one with one context")


@case()
def test_ends_with_the_process():
    with Session() as session:
        session.start_agent()
        made = [shapes(session) for _ in range(20)]
        is_so(session, *made, of=made)
        for driver in made[1:]:
            driver.process.signal(9)
            driver.process.wait()
        is_so(session, made[0], of=made)
        made[0].end()
        is_so(session, of=made)


@case()
def test_one_that_ran_before():
    with Session() as session:
        driver = shapes(session)
        first = driver("ctx", 1)
        session.start_agent()
        check(driver.pid in followed(session), "followed:", followed(session))
        second = driver("ctx", 1)
        driver("alloc", 1 * MIB)
        driver("ctx-set", first)
        driver("alloc", 2 * MIB)
        driver("ctx-set", second)
        driver("alloc", 3 * MIB)
        equal(devices(session, driver)[-3:], [(MIB, 1), (2 * MIB, None), (3 * MIB, 1)],
              "size and device")


if __name__ == "__main__":
    sys.exit(main())
