#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Each probe attached by itself, as on kernels before 6.6, does what many in one link do. The kernel takes long
to attach and detach these, so one agent serves for all of it.

See lien_test.py for what it needs.
"""

import sys

from lien_test import MIB, Session, case, check, equal, main, start_pairs
from move import PAIRS, WHOLE
from shapes import shapes
from test_agent_contexts import devices, followed
from test_agent_journal import interrupted, pins_of
from test_agent_nccl import check_counts
from test_agent_trace import CHURN_CALLS, churn
from told import nothing_lost

SINGLE = "--no-uprobe-multi"


def links(session):
    return {pin for pin in pins_of(session) if pin.startswith("link-")}


def take_over(session):
    """Perf events take over from uprobe-multi links as another build would, while memory is away."""
    session.start_agent()
    driver = session.driver(control=False)
    driver("make", 2 * MIB, 0)
    job = start_pairs(session, PAIRS)
    session.ask("offload")
    before = links(session)
    session.stop_agent()
    driver("make", 2 * MIB, 0)
    session.start_agent(SINGLE)
    after = links(session)
    check(not before & after and len(after) > len(before), "links:", sorted(after))
    equal(session.ask("status")["attach"], "perf", "attach")
    driver("make", 2 * MIB, 0)
    process = session.process(driver.pid)
    equal((process["bytes"], process["complete"]), (6 * MIB, True), "bytes")
    session.ready(*job.ranks)
    equal(session.ask("restore")["bytes"], WHOLE["bytes"], "restore")
    equal(job.verify()[0], 4 * PAIRS, "mappings verified")
    driver.end()
    job.end()
    session.forgotten(driver.pid, *job.ranks)


def check_contexts(session):
    """Nobody follows which context is current: the driver is asked each time."""
    driver = shapes(session)
    equal(followed(session), None, "contexts_followed")
    context = driver("ctx", 1)
    driver("alloc", 1 * MIB)
    driver("device", 0)
    driver("alloc", 2 * MIB)
    driver("ctx-set", context)
    driver("alloc", 3 * MIB)
    equal(devices(session, driver), [(MIB, 1), (2 * MIB, 0), (3 * MIB, 1)], "size and device")
    driver.end()
    session.forgotten(driver.pid)


@case(long=True)
def test_single_probes():
    with Session(memory="2G", fresh=True) as session:
        take_over(session)
        check_contexts(session)
        interrupted(session, session.kill_agent, SINGLE)
        check_counts(session)
        churn(session, 2, CHURN_CALLS // 4, "hints", "imports")
        nothing_lost(session)


if __name__ == "__main__":
    sys.exit(main())
