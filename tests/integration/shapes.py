# SPDX-License-Identifier: BSD-2-Clause
"""A process that makes any call it is told to (prog_driver.c), and what the agent says of it."""

import os

from lien_test import LIEN, SOFTCUDA, Driver, program


def shapes(session, init=0, control=False, **environment):
    path = SOFTCUDA + ":" + os.path.abspath(os.environ["TEST_BIN"])
    prefix = [LIEN, "run", "--"] if control else []
    made = Driver(session.spawn(
        [*prefix, program("prog_driver")], LD_LIBRARY_PATH=path, **environment))
    if init is not None:
        made("init", init)
    return made


def allocations(session, driver=None):
    """Of one owner, or all: (origin, bytes, device, state), in the order in which they were made."""
    return [(found["origin"], found["bytes"], found["device"], found["state"])
            for found in session.ask("graph")["allocations"]
            if driver is None or found["pid"] == driver.pid]
