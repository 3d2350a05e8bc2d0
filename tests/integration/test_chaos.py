#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A short run of chaos.py. See there."""

import sys

from chaos_run import short_run
from lien_test import case, main


@case(1800, long=True)
def test_chaos():
    short_run("chaos.py", 60)


if __name__ == "__main__":
    sys.exit(main())
