#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""An agent that was linked without agent/join offloads and restores what `lien run` starts, and says what
it cannot do.

See lien_test.py for what else this needs.
"""

import os
import sys

os.environ["LIEN"] = os.environ.get("LIEN", "build/lien") + "-without-join"

from lien_test import MIB, Session, case, equal, main  # noqa: E402


@case()
def test_round_trips():
    with Session() as session:
        session.start_agent()
        owner, importer = session.driver(device=0), session.driver(device=1)
        handle, va = owner("make", 4 * MIB, 0)
        fd = owner("export", handle)
        there = importer("show", 4 * MIB, importer.take(owner, fd), 1)
        owner("close", fd)
        session.ready(owner.pid, importer.pid)
        for value in 0x41, 0x42:
            owner("fill", va, 4 * MIB, value)
            equal(session.ask("offload", "--owner", "all")["bytes"], 4 * MIB, "moved")
            session.ask("restore")
            equal(owner("check", va, 4 * MIB, value), 0, "wrong bytes in the owner")
            equal(importer("check", there, 4 * MIB, value), 0, "wrong bytes in the importer")


@case()
def test_what_it_cannot_do():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        for code, *words in (1, "attach", driver.pid), (1, "detach", driver.pid), (2, "check", "--deep"):
            session.refused(*words, code=code, text="built without agent/join")


if __name__ == "__main__":
    sys.exit(main())
