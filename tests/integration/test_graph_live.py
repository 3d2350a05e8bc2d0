#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien graph --format svg` of a real agent that watches a replayed job: the picture tells what the
graph has, while the job runs, while its memory is away, and after an owner was killed."""

import signal
import sys

from lien_test import GOLDEN, MIB, Session, case, check, equal, main, wait_for
from test_graph_svg import (check_layout, expected_bundles, expected_parts, parse, shown_bundles,
                            shown_parts, texts)


def picture(session):
    """Drawn and checked against the graph; nothing changes in between."""
    outcome = session.lien("graph", "--format", "svg")
    check(outcome.code == 0, outcome)
    root = parse(outcome.out)
    check_layout(root)
    graph = session.ask("graph")
    equal(shown_parts(root), expected_parts(graph), "memory in the picture")
    expected = expected_bundles(graph)
    equal(shown_bundles(root), expected, "imports in the picture")
    return texts(root), expected


@case(200)
def test_picture_of_a_job():
    with Session(memory="6G") as session:
        session.start_agent()
        job = session.replay(GOLDEN)
        session.ready(*job.ranks)
        words, bundles = picture(session)
        equal(len(bundles), 2, "bundles")
        check("2 processes on 2 GPUs" in words, words)
        check({"GPU 0", "GPU 1", "rank 0", "rank 1", "nccl"} <= set(words), words)
        session.ask("offload")
        words, away = picture(session)
        equal({k: v[:2] for k, v in away.items()}, {k: v[:2] for k, v in bundles.items()},
              "imports while the memory is away")
        check("partly offloaded" in words and words.count("imported, offloaded") == 2, words)
        session.ask("restore")
        words, _ = picture(session)
        check("offloaded" not in words, words)


@case(60)
def test_picture_of_the_dead():
    with Session() as session:
        session.start_agent()
        owner, importer = session.driver(), session.driver(device=1)
        handle, _ = owner("make", 2 * MIB, 0)
        fd = owner("export", handle)
        importer("show", 2 * MIB, importer("import", importer("getfd", owner.pid, fd)), 0)
        owner("close", fd)
        words, bundles = picture(session)
        equal([key[::2] for key in bundles], [(owner.pid, importer.pid)], "owner and importer")
        check("held by the dead" not in words, words)
        owner.process.signal(signal.SIGKILL)
        owner.process.wait()
        wait_for("the owner is gone", lambda: not session.process(owner.pid))
        words, after = picture(session)
        equal(after, bundles, "imports after the owner's death")
        check({"exited", "held by the dead", "kept by", str(importer.pid)} <= set(words), words)


if __name__ == "__main__":
    sys.exit(main())
