#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What `lien offload --nodes` does when a node fails after the decision: it puts back what the others have dropped,
and no more than that, or says what to do. Also what it does about a result that never comes. The nodes say what
the test wants (scripted_node.py).

Prints a line per case, and "N passed, N failed" at the end.
"""

import json
import os
import sys

from lien_test import LIEN, ROOT, case, check, equal, main, run
from scripted_node import ScriptedNodes

UNDONE = {"commit": "undone"}
NO_RESULT = {"commit": "no result"}


def restores(nodes, name):
    return [request for request in nodes.requests(name) if request["op"] == "restore"]


def fails(nodes, *args, has):
    outcome = nodes.lien("offload", *args)
    check(outcome.code == 1 and outcome.err.count("\n") == 1 and has in outcome.err, "no '%s': %s" % (has, outcome))
    return outcome.err


@case()
def test_all_do_well():
    with ScriptedNodes({}, {}) as nodes:
        outcome = nodes.lien("offload")
        check(outcome.code == 0 and "offloaded 2.0 MiB of 2 processes on 2 nodes" in outcome.out, outcome)


@case()
def test_those_that_moved_are_put_back():
    """Its agent has said which processes it has moved."""
    with ScriptedNodes({}, UNDONE) as nodes:
        fails(nodes, has="what other nodes had dropped was put back, the job runs on")
        equal(restores(nodes, "a"), [{"op": "restore", "pids": [7]}], "what is put back")
        equal(restores(nodes, "b"), [], "on the node that has undone")


@case(long=True)
def test_what_was_selected_is_put_back():
    """Its agent has not said that: what the offload selected is put back, and nothing of others."""
    for args, selection in (
            (["--pid", "a:812", "--pid", "a:813", "--pid", "b:9"], {"pids": [812, 813]}),
            (["--comm", "5ac1d2e0b7f0a133"], {"comms": ["5ac1d2e0b7f0a133"]}),
            (["--tag", "weights"], {"tags": ["weights"]}),
            (["--tag", "weights", "--comm", "5ac1d2e0b7f0a133"],
             {"comms": ["5ac1d2e0b7f0a133"], "tags": ["weights"]}),
            # of a process, all: what is discarded need not have the tag
            (["--pid", "a:812", "--pid", "b:9", "--tag", "weights", "--discard", "tag:kv"], {"pids": [812]})):
        with ScriptedNodes(NO_RESULT, UNDONE) as nodes:
            fails(nodes, *args, has="what other nodes had dropped was put back, the job runs on")
            equal(restores(nodes, "a"), [{"op": "restore", **selection}], "what is put back")


@case(long=True)
def test_not_known_what_to_put_back():
    """To put back everything would put back what others have offloaded there."""
    for args in (["--owner", "all"], ["--tag", "weights", "--discard", "tag:kv"]):
        with ScriptedNodes(NO_RESULT, UNDONE, NO_RESULT) as nodes:
            said = fails(nodes, *args, has="; `lien restore` on a, c puts back all that is away there: ")
            check("runs on" not in said, said)
            equal(restores(nodes, "a") + restores(nodes, "c"), [], "what is put back")
            equal(len(os.listdir(nodes.state)), 1, "decisions that are left")


@case(long=True)
def test_a_node_forgets_what_it_has_committed():
    """Memory is away there, whatever its new agent knows of it."""
    for other in ({}, UNDONE, NO_RESULT):
        with ScriptedNodes({"commit": "forgets"}, other) as nodes:
            said = fails(nodes, "--pid", "a:7", "--pid", "b:7",
                         has="`lien restore` on all nodes puts back what is away")
            check("runs on" not in said, said)


@case()
def test_a_node_fails_after_it_has_committed():
    """An error does not mean that nothing was moved."""
    with ScriptedNodes({"commit": "fails"}, {}) as nodes:
        said = fails(nodes, has="`lien restore` on all nodes puts back what is away")
        check("a: process 7: a device is lost" in said and "runs on" not in said, said)


@case()
def test_a_result_is_missing():
    """The offload is done on that node, too, and the result does not leave it out silently."""
    with ScriptedNodes({}, NO_RESULT) as nodes:
        outcome = nodes.lien("offload")
        check(outcome.code == 0 and "offloaded 1.0 MiB of 1 process on 1 node " in outcome.out and
              "b has offloaded as well" in outcome.out, outcome)


PYTHON = """
import asyncio, json, lien.aio, sys
where = {"program": sys.argv[2], "state": sys.argv[3], "lease": 1}
arguments = json.loads(sys.argv[5])
if "tags" in arguments:
    arguments["tags"] = iter(arguments["tags"])  # used twice

def block():
    with lien.Cluster(["a", "b"], sys.argv[1], **where).offloaded(**arguments) as away:
        assert list(away.per_node) == ["a"], away

async def async_block():
    async with lien.aio.Cluster(["a", "b"], sys.argv[1], **where).offloaded(**arguments) as away:
        assert list(away.per_node) == ["a"], away

try:
    asyncio.run(async_block()) if sys.argv[4] == "async" else block()
except lien.LienError as error:
    print(error)
"""


@case(long=True)
def test_python_with_a_missing_result():
    """The end of the block puts back what was selected there, or says that it cannot know what."""
    for how, selection, selected in (
            ("", {"pids": {"a": [7], "b": [812]}}, {"pids": [812]}),
            ("async", {"tags": ["weights"]}, {"tags": ["weights"]}),
            ("", {"tags": ["weights"], "drop": "tag:kv"}, None), ("async", {"owner": "all"}, None)):
        with ScriptedNodes({}, NO_RESULT) as nodes:
            outcome = run([sys.executable, "-c", PYTHON, nodes.launch, LIEN, nodes.state, how,
                           json.dumps(selection)], 50,
                          {**os.environ, "PYTHONPATH": os.path.join(ROOT, "tools", "python")})
            check(outcome.code == 0, outcome)
            found = [{name: request.get(name) for name in ("pids", "tags") if name in request}
                     for name in nodes.names for request in restores(nodes, name)]
            if selected:
                equal((found[-1], outcome.out), (selected, ""), "what is put back on b, and said")
            else:
                equal((found, outcome.out), ([{"pids": [7]}], "b has not said what it has offloaded: `lien restore` "
                                             "there\n"), "what is put back on a, and said")


if __name__ == "__main__":
    sys.exit(main(agents=False))
