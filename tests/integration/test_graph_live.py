#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien graph --format svg` of a real agent after an owner was killed. test_golden.py draws a real job."""

import signal
import sys

from lien_test import MIB, Session, case, check, equal, main, wait_for
from test_graph_svg import live_picture


@case()
def test_picture_of_the_dead():
    with Session() as session:
        session.start_agent()
        owner, importer = session.driver(), session.driver(device=1)
        handle, _ = owner("make", 2 * MIB, 0)
        fd = owner("export", handle)
        importer("show", 2 * MIB, importer("import", importer("getfd", owner.pid, fd)), 0)
        owner("close", fd)
        words, bundles = live_picture(session)
        equal([key[::2] for key in bundles], [(owner.pid, importer.pid)], "owner and importer")
        check("held by the dead" not in words, words)
        owner.process.signal(signal.SIGKILL)
        owner.process.wait()
        wait_for("the owner is gone", lambda: not session.process(owner.pid))
        words, after = live_picture(session)
        equal(after, bundles, "imports after the owner's death")
        check({"exited", "held by the dead", "kept by", str(importer.pid)} <= set(words), words)


@case()
def test_pictures_leave_out_the_arena():
    """What lien itself pins is not the job's memory."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)

        def pictures():
            return [session.lien("graph", "--format", form).out for form in ("svg", "dot")]
        before = pictures()
        check(all("prog_driver" in picture and "2.0 MiB" in picture for picture in before), before)
        session.ask("offload", "--owner", "all")
        session.ask("restore")
        arena = [a for a in session.ask("graph")["allocations"] if a["arena"]]
        equal([(a["owner"], a["pid"]) for a in arena], [("lien-control", driver.pid)], "the arena")
        for picture in pictures():
            check("2.0 MiB" in picture and "lien-control" not in picture and "registered" not in picture and
                  "16.0 MiB" not in picture, picture)


if __name__ == "__main__":
    sys.exit(main())
