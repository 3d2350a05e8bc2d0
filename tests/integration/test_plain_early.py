#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Libraries whose constructors use the driver: before the control library's own constructor has run, and under
the loader's lock."""

import os
import shutil
import sys

from lien_test import LIEN, ROOT, SOFTCUDA, Session, case, equal, main, wait_for

INCLUDE = "-I" + os.path.join(ROOT, "include")
DRIVER = ("-L", SOFTCUDA, "-Wl,--no-as-needed", "-l:libcuda.so.1")


@case()
def test_functions_looked_up_early():
    """They take, describe and share the application's memory."""
    with Session(LIEN_PLAIN="0") as session:
        library = session.compile("libearly.so", "early.c", INCLUDE, "-shared", "-fPIC", "-ldl")
        program = session.compile("early", "early.c", INCLUDE, "-DPROGRAM", *DRIVER, library)
        job = session.spawn([LIEN, "run", "--", program])
        for way in ("default", "handle", "cuGetProcAddress"):
            equal(job.line(), way + " 0 4096 0 0", job.said())
        equal(job.wait(), 0, "status")


@case()
def test_a_constructor_that_waits():
    """It waits for a thread that makes the first driver calls. The driver still stays loaded."""
    with Session(LIEN_PLAIN="0") as session:
        library = session.compile("libwaits.so", "waits_at_load.c", INCLUDE, "-shared", "-fPIC", "-pthread", *DRIVER)
        others = [shutil.copy(library, session.path("libwaits%d.so" % number)) for number in range(3)]
        program = session.compile("waits", "waits_at_load.c", INCLUDE, "-DPROGRAM", "-ldl")
        job = session.spawn([LIEN, "run", "--", program, library, *others])
        for _ in range(4):
            equal(job.line(30), "used", job.said())
        wait_for("one thread", lambda: len(os.listdir("/proc/%d/task" % job.pid)) == 1)
        equal(job.ask("unload"), "there", "the driver")
        job.close_input()
        equal(job.wait(), 0, "status")


if __name__ == "__main__":
    sys.exit(main())
