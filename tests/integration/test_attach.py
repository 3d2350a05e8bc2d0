#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien attach`: processes that ran before the agent and without the control library get it, and what
they have is read from the driver."""

import os
import signal
import sys

from lien_test import LIEN, MIB, Session, alive, case, check, equal, main, wait_for


def early(session, count=1):
    """Processes that have made their calls before there is an agent."""
    drivers = [session.driver(control=False) for _ in range(count)]
    memory = []
    for driver in drivers:
        handle, va = driver("make", 2 * MIB, 0)
        driver("fill", va, 2 * MIB, 0x61)
        memory.append((handle, va))
    return drivers, memory


def known(session, driver):
    return wait_for("%d is known" % driver.pid, lambda: session.process(driver.pid))


@case()
def test_started_before_there_was_an_agent():
    """Its control library waits for a driver call, and none comes: `attach` starts it. (The first case: what an
    agent leaves behind would wake it.)"""
    with Session() as session:
        driver = session.driver()
        _, va = driver("make", 2 * MIB, 0)
        driver("fill", va, 2 * MIB, 0x2a)
        session.start_agent()
        wait_for("its library is found", lambda: (session.process(driver.pid) or {}).get("control") == "loaded")
        attached, = session.ask("attach", driver.pid)["processes"]
        equal((attached["error"], attached["present"], attached["read"]), (None, True, True), "attached")
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "moved")
        session.ask("restore")
        equal(driver("check", va, 2 * MIB, 0x2a), 0, "wrong bytes")


@case()
def test_what_ran_before():
    with Session() as session:
        (driver,), ((handle, va),) = early(session)
        session.start_agent()
        process = known(session, driver)
        equal((process["control"], process["complete"], process["bytes"]), ("none", False, 0), "before")
        equal(session.ask("mem")["unread"], [driver.pid], "not read")
        check("not known: what process %d has, which ran before the agent" % driver.pid in " ".join(
            session.lien("mem").out.split()), "mem is silent")
        answer = session.ask("attach", driver.pid)
        attached, = answer["processes"]
        equal((attached["pid"], attached["error"], attached["present"]), (driver.pid, None, False),
              "attached")
        check(attached["ms"] > 0, attached)
        equal((attached["read"], attached["mappings"], attached["new"]), (True, 1, 1), "read")
        adoption = answer["adoption"]
        equal((adoption["error"], adoption["counted"], adoption["marked"]), (None, 1, 1), "adoption")
        process = session.process(driver.pid)
        equal((process["control"], process["bytes"], process["complete"]), ("ready", 2 * MIB, True),
              "after")
        equal(session.ask("holders", driver.pid, hex(va))["allocation"]["bytes"], 2 * MIB, "found")
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "moved")
        equal(session.used(), 0, "device memory in use")
        session.ask("restore")
        equal(driver("check", va, 2 * MIB, 0x61), 0, "wrong bytes")
        again = session.ask("attach", driver.pid)
        equal([(p["present"], p["read"]) for p in again["processes"]], [(True, False)], "a second time")
        plain = driver("alloc", MIB)
        said = session.lien("attach", driver.pid).out
        check("already has the control library" in said, said)
        check("no offload will move:\n  1.0 MiB in 1 allocation of process %d" % driver.pid in said and
              "cudaMalloc memory cannot be put back" in " ".join(said.split()), said)
        driver("memfree", plain)
        driver("unmap", va, 2 * MIB)
        driver("release", handle)
        wait_for("the memory is gone", lambda: not session.process(driver.pid)["bytes"])


@case()
def test_new_memory_of_an_attached_process():
    """Memory that it makes from now on is seen, and is moved with the rest once the rest is known."""
    with Session() as session:
        session.start_agent()
        driver = session.driver(control=False)  # seen from its first call on
        _, va = driver("make", 4 * MIB, 0)
        driver("fill", va, 4 * MIB, 0x33)
        check(known(session, driver)["complete"], "it is not complete")
        session.refused("offload", "--owner", "all", "--pid", driver.pid, text="no control library")
        said = session.lien("attach", "--all")
        equal(said.code, 0, "exit status: %s" % said)
        check("attached in" in said.out and "adopted" not in said.out, said)  # all has been seen
        session.ready(driver.pid)
        for _ in range(2):
            equal(session.ask("offload", "--owner", "all")["bytes"], 4 * MIB, "moved")
            equal(session.used(), 0, "device memory in use")
            session.ask("restore")
            equal(driver("check", va, 4 * MIB, 0x33), 0, "wrong bytes")
        said = session.lien("attach", "--all").out
        check("nothing to attach: 1 process" in said, said)


@case()
def test_attached_by_an_offload():
    """The first offload of a process that lacks nothing else gives it a control library."""
    with Session() as session:
        session.start_agent(attach=True)
        drivers = [session.driver(control=False) for _ in range(2)]
        places = []
        for driver in drivers:
            _, va = driver("make", 4 * MIB, 0)
            driver("fill", va, 4 * MIB, 0x33)
            places.append(va)
        (late, idle) = session.driver(control=False), session.driver(control=False, init=False)
        late("make", 2 * MIB, 0)
        first = drivers[0].pid
        equal(session.ask("offload", "--dry-run", "--owner", "all", "--pid", first)["bytes"], 4 * MIB, "would move")
        equal(session.ask("offload", "--dry-run", "--owner", "all")["bytes"], 10 * MIB, "would move of all")
        equal([session.ask("mem", *by)["offload_frees"] for by in ((), ("--by", "device"))], [10 * MIB] * 2, "mem")
        equal(session.ask("offload", "--owner", "all", "--pid", first)["bytes"], 4 * MIB, "moved")
        equal([session.process(driver.pid)["control"] for driver in drivers], ["ready", "none"],
              "control")
        equal(session.ask("offload", "--owner", "all")["bytes"], 6 * MIB, "moved with all others")
        equal(session.used(), 0, "device memory in use")
        session.ask("restore")
        for driver, va in zip(drivers, places):
            equal(driver("check", va, 4 * MIB, 0x33), 0, "wrong bytes")
        check(idle.process.popen.poll() is None, "it has ended")
        stopped = session.driver(control=False)
        stopped("make", 2 * MIB, 0)
        stopped.process.signal(signal.SIGSTOP)
        session.refused("offload", "--owner", "all", "--pid", stopped.pid,
                        text="`lien attach` gives it one")
        stopped.process.signal(signal.SIGCONT)


@case()
def test_refusals():
    with Session() as session:
        (driver, stopped), _ = early(session, 2)
        session.start_agent()
        for each in (driver, stopped):
            known(session, each)
        session.refused("attach", 999999, code=2, text="process 999999 is not known")
        session.refused("attach", os.getpid(), code=2, text="is not known")
        session.refused("attach", text="--all", code=2)
        session.refused("attach", "--all", driver.pid, text="--all", code=2)
        session.refused("attach", "12x", text="not a process id", code=2)
        stopped.process.signal(signal.SIGSTOP)
        outcome = session.lien("attach", driver.pid, stopped.pid)
        equal(outcome.code, 1, "exit status")
        check("%d prog_driver: refused:" % stopped.pid in outcome.out and "stopped" in outcome.out and
              "%d prog_driver: attached" % driver.pid in outcome.out, outcome)
        stopped.process.signal(signal.SIGCONT)
        check(alive(stopped.pid), "it was harmed")
        equal(session.ask("attach", stopped.pid)["attached"], 1, "when it runs again")


@case()
def test_killed_client_and_agent():
    """The attach that was begun goes on, and the next agent finds it."""
    with Session() as session:
        (driver,), ((_, va),) = early(session)
        session.start_agent()
        known(session, driver)
        client = session.spawn([LIEN, "attach", driver.pid])
        client.signal(signal.SIGKILL)
        client.wait()
        session.kill_agent()
        session.start_agent()
        # Whoever has ended may have left somebody behind who finishes.
        wait_for("it is attached", lambda: not session.lien("attach", driver.pid).code)
        equal(driver("check", va, 2 * MIB, 0x61), 0, "wrong bytes")


if __name__ == "__main__":
    sys.exit(main())
