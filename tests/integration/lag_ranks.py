# SPDX-License-Identifier: BSD-2-Clause
"""The two ranks of prog_lag.c, which says what they do when they are told."""

from lien_test import check, equal, program
from train_job import SYNC


def spawned(session, *before, **environment):
    """They have a communicator. before: words of the command line before the program's."""
    ranks = [session.spawn([*before, program("prog_lag"), SYNC, number], **environment) for number in range(2)]
    line = ranks[0].line(20)
    check(line and line.startswith("id "), "rank 0: %s; %s" % (line, ranks[0].said()))
    ranks[1].send(line[3:])
    for rank in ranks:
        equal(rank.line(20), "ready", "a rank: " + rank.said())
    return ranks
