#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A short run of chaos.py, with another seed each time. See there."""

import json
import os
import subprocess
import sys

from lien_test import case, check, equal, main


@case(280)
def test_chaos():
    chaos = subprocess.run(
        [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "chaos.py")],
        env={**os.environ, "CHAOS_SECONDS": os.environ.get("CHAOS_SECONDS", "18")}, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=270)
    print(chaos.stdout, end="")
    equal(chaos.returncode, 0, "exit status")
    tally = json.loads(chaos.stdout.splitlines()[-1])
    equal([tally["bytes_lost"], tally["hangs"]], [0, 0], "bytes lost, hangs")
    check(tally["bytes_verified"] > 0, "nothing was compared")


if __name__ == "__main__":
    sys.exit(main())
