#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Offloads and restores over several nodes: all or nothing, whoever dies. Here each node has a process of
its own; test_nodes.py has a job that spans nodes.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

from coordinate import Node, Nodes, Part, driver
from lag_ranks import spawned
from lien_test import (
    LIEN, MIB, ROOT, Process, Session, at_a_moment, case, check, equal, main, program, run, stays, wait_for)
from train_job import SYNC


def same(drivers):
    for process, va in drivers:
        equal(process("check", va, 4 * MIB, 7), 0, "bytes that differ")


def used(nodes):
    return [node.used() // MIB for node in nodes.nodes]


@case()
def test_there_and_back():
    with Nodes(2) as nodes:
        drivers = [driver(node) for node in nodes.nodes]
        done = nodes.ask("offload", "--owner", "all")
        equal((done["outcome"], done["bytes"]), ("done", 8 * MIB), "result")
        equal([node["node"] for node in done["nodes"]], nodes.names.split(","), "nodes")
        equal(used(nodes), [0, 0], "in use")
        equal(os.listdir(nodes.state), [], "decisions that are left")
        equal(nodes.ask("offload", "--owner", "all")["outcome"], "nothing to do", "again")
        done = nodes.ask("restore")
        equal((done["outcome"], done["bytes"]), ("done", 8 * MIB), "restore")
        same(drivers)
        equal(nodes.ask("restore")["outcome"], "nothing to do", "again")
        # some of it
        pid = "%s:%d" % (nodes[1].name, drivers[1][0].inner_pid)
        equal(nodes.ask("offload", "--owner", "all", "--pid", pid, "--dry-run")["bytes"], 4 * MIB, "dry run")
        equal(used(nodes), [4, 4], "in use after it")
        equal(nodes.ask("offload", "--owner", "all", "--pid", pid)["bytes"], 4 * MIB, "one process")
        equal(used(nodes), [4, 0], "in use")
        text = nodes.run("restore")
        check("restored 4.0 MiB of 1 process on 1 node" in text.out, text)
        same(drivers)


@case()
def test_one_node_refuses():
    """Nothing is touched on the other one."""
    with Nodes(2) as nodes:
        drivers = [driver(nodes[0])]
        alone = nodes[1].driver(control=False)
        alone("make", 4 * MIB, 0)
        pid = alone.inner_pid
        nodes[1].known(pid)
        said = nodes.refused("offload", "--owner", "all", "--pid", "%s:%d" % (nodes[1].name, pid), "--pid",
                             "%s:%d" % (nodes[0].name, drivers[0][0].inner_pid))
        check("%s: process %d" % (nodes[1].name, pid) in said and "nothing was moved" in said, said)
        # Nor is the other one moved alone, if nobody names the process.
        nodes.refused("offload", "--owner", "all",
                      text="%s: process %d cannot take part: " % (nodes[1].name, pid))
        equal(used(nodes), [4, 4], "in use")
        equal([node.ask("status")["transaction"] for node in nodes.nodes], [None, None], "transactions")
        same(drivers)


@case()
def test_the_agents_part():
    """No word, no step."""
    with Node() as node:
        node.start_agent()
        process = driver(node)
        part = Part(node)
        part.until(state="planned")
        equal(part.say("save")["state"], "planned", "save before it went")
        equal(part.say("commit")["state"], "planned", "commit before it went")
        part.say("go")
        part.until(at_rest=True)
        equal(part.say("save")["state"], "going", "save without holding")
        equal(part.say("hold", round=1, version=10 ** 6)["held"], False, "another report's version")
        part.ready()
        stays("it waits", lambda: (part.say()["state"], node.used()) == ("ready", 4 * MIB))
        node.refused("offload", "--owner", "all", text="another transaction")
        equal(part.say("commit")["state"], "committed", "commit")
        equal(json.loads(node.request('{"op": "cancel"}\n'))["result"]["cancelled"], False, "cancelled")
        check(part.end()["ok"], part.result)
        equal((part.status["state"], node.used()), ("done", 0), "it is done")
        equal(part.say("undo")["state"], "done", "too late")
        equal(part.say()["state"], "done", "its outcome")
        back = Part(node, "t2", "restore")
        back.until(state="planned")
        equal(node.used(), 0, "nothing comes back before it may")
        back.say("go")
        back.until(state="ready")
        back.say("commit")
        check(back.end()["ok"], back.result)
        same([process])
        equal(part.say()["state"], "done", "the first one's outcome")


@case(long=True)
def test_leases():
    """An offload that is not committed is undone, a restore ends by itself."""
    with Node() as node:
        node.start_agent()
        process = driver(node)
        for far in ("planned", "ready"):
            part = Part(node, "l-" + far, lease=500)
            part.until(state="planned")
            if far == "ready":
                part.ready()
            check("was not heard for 500 ms" in part.end()["error"], part.result)
            equal((part.status["state"], part.say("commit")["state"]), ("undone", "undone"), far)
        for far in ("planned", "ready"):  # its connection goes
            part = Part(node, "g-" + far)
            part.until(state="planned")
            if far == "ready":
                part.ready()
            part.wait[0].close()
            wait_for("it is undone", lambda part=part: part.say()["state"] == "undone")
        equal(node.used(), 4 * MIB, "in use")
        part = Part(node, "committed", lease=500)
        part.ready()
        part.say("commit")
        part.close()
        wait_for("it is dropped", lambda: not node.used())
        equal(Part(node, "committed").end()["ok"], True, "the same id again: nothing to do")
        back = Part(node, "b1", "restore", lease=300)
        back.until(state="planned")
        check("was not heard" in back.end()["error"], back.result)
        equal(node.used(), 0, "it had not begun")
        back = Part(node, "b2", "restore", lease=500)
        back.until(state="planned")
        back.say("go")
        check(back.end()["ok"], back.result)
        same([process])


@case()
def test_outcomes_outlive_the_agent():
    with Node() as node:
        node.start_agent()
        process = driver(node)
        part = Part(node, "kept")
        part.ready()
        part.say("commit")
        part.end()
        undone = Part(node, "unknown-later")
        check(undone.end()["ok"], "there is nothing to do")
        node.kill_agent()
        node.start_agent()
        node.ready(process[0].inner_pid)
        part = Part(node, "kept", "restore")
        part.until(state="planned")  # an id names what is under way first
        part.say("undo")
        part.end()
        asked = json.loads(node.request('{"op": "coordinate", "id": "never"}\n'))
        equal(asked["result"], {"state": None}, "an id that nobody knows")
        node.ask("restore")
        same([process])


@case()
def test_an_agent_dies_ready():
    """The control libraries let go what was saved; a new agent knows nothing that was dropped."""
    with Node() as node:
        node.start_agent()
        process = driver(node)
        part = Part(node, "dies")
        part.ready()
        node.kill_agent()
        node.start_agent()
        node.ready(process[0].inner_pid)
        part.words = part._connect()
        equal(part.say("commit"), {"state": None}, "a word for the next agent")
        node.ask("restore")
        equal(node.used(), 4 * MIB, "in use")
        same([process])


@case()
def test_the_window():
    """The decision is written, one node has it, the other one undoes: a restore mends."""
    with Nodes(2) as nodes:
        drivers = [driver(node) for node in nodes.nodes]
        parts = [Part(node, "window", lease=1000) for node in nodes.nodes]
        for part in parts:
            part.ready()
        parts[0].say("commit")
        check(parts[0].end()["ok"], parts[0].result)
        check("was not heard" in parts[1].end()["error"], parts[1].result)
        equal(used(nodes), [0, 4], "in use")
        for name, of in (("half", nodes.names.split(",")), ("others", [nodes[0].name, "elsewhere"])):
            with open(os.path.join(nodes.state, name + ".json"), "w") as file:
                json.dump({"id": name, "decision": "offload", "nodes": of}, file)
        equal(nodes.ask("restore")["outcome"], "done", "restore")
        equal(used(nodes), [4, 4], "in use")
        equal(os.listdir(nodes.state), ["others.json"], "decisions that are left")
        same(drivers)


@case(long=True)
def test_a_slow_disk():
    """The decision reaches the disk when the leases have nearly run out: it does not count, and nothing is left of
    it."""
    with Nodes(2) as nodes:
        drivers = [driver(node) for node in nodes.nodes]
        argv = nodes.argv("offload", "--owner", "all", "--lease", "2000")
        slow = nodes[0].env(LD_PRELOAD=program("slow_disk.so"))
        # While it is written, and while its name is.
        for ms in ("2500", "1200"):
            outcome = run(argv, 60, {**slow, "SLOW_DISK_MS": ms})
            check(outcome.code == 1 and "its lease ends before it can hear of the decision" in outcome.err and
                  "nothing was moved on any node" in outcome.err and outcome.err.count("\n") == 1, outcome)
            equal(os.listdir(nodes.state), [], "decisions that are left")
            wait_for("both have undone", lambda: not any(node.ask("status")["transaction"] for node in nodes.nodes))
            equal(used(nodes), [4, 4], "in use")
        outcome = run(argv, 60, {**slow, "SLOW_DISK_MS": "50"})
        equal((outcome.code, used(nodes), os.listdir(nodes.state)), (0, [0, 0], []), "a faster one")
        nodes.ask("restore")
        same(drivers)


@case()
def test_one_node():
    """Attached to, nobody knows which rank is behind, and the other one is let in on suspicion: alone, a node has
    nobody to wait for."""
    with Session(devices=2, memory="64M") as session:
        ranks = spawned(session, NCCL_NVLS_ENABLE="0")
        session.start_agent("--library", SYNC)
        session.ask("attach", "--all", limit=60)
        session.ready(*[rank.pid for rank in ranks])
        ranks[0].send("step 4")
        equal(ranks[0].line(20), "stepped", "rank 0")
        offload = session.spawn([LIEN, "offload", "--json", "--owner", "all", "--timeout", "20000", "--nodes", "one",
                                 "--launch", "env NODE={node}", "--lien", LIEN, "--state", session.path("state")])
        wait_for("it is brought to rest",
                 lambda: (session.ask("status")["transaction"] or {}).get("phase") == "drain")
        time.sleep(0.3)  # all is held by now
        ranks[1].send("step 4")
        text = "".join(iter(lambda: offload.line(40), None))
        equal(offload.wait(20), 0, "the offload: " + offload.said())
        equal(json.loads(text)["outcome"], "done", "the offload")
        session.ask("restore")
        equal(ranks[1].line(20), "stepped", "rank 1")
        for rank in ranks:
            rank.send("finish")
        equal([rank.line(20) for rank in ranks], ["finished 0"] * 2, "both, and the sums are right")


# A launcher of nodes "a" and "b", each a rank. That on "a" has sends to more ranks than a request has room for.
TALKATIVE = '''#!/usr/bin/env python3
import json, sys
def say(on, line):
    print(json.dumps({"on": on, "line": line}), flush=True)
def report(ranks):
    return {"busy": False, "unnamed": False, "standings": [
        {"group": "%%032x" %% 7, "rank": rank, "counted": True, "since": 0, "collectives": 0, "place": None,
         "pairs": [[peer, 1, 1] for peer in range(1, 10002)] if rank == 0 else []} for rank in ranks]}
name = sys.argv[1]
status = {"state": "planned", "version": 1, "at_rest": False, "round": 0, "held": False}
print(json.dumps({"lien": "node", "protocol": 1, "version": "%s", "host": name, "boot": name, "agent": name}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    request = message["send"]
    if request["op"] == "offload":
        say(message["on"], {"progress": {"node": status}})
    elif request["word"] == "undo":
        status["state"] = "undone"
        say(message["on"], {"ok": True, "result": status})
        say(1, {"ok": False, "error": "undone, as its coordinator wants"})
    else:
        if request["word"] == "go" and status["state"] == "planned":
            status.update(state="going", version=2)
            say(1, {"progress": {"node": {**status, "report": report([0] if name == "a" else range(1, 10002))}}})
        say(message["on"], {"ok": True, "result": status})
'''


@case(long=True)
def test_too_much_to_compare():
    """The node that would have to know too much is named; an agent takes no more either."""
    with Nodes(1) as nodes:
        version = run([LIEN, "--version"], 20, nodes[0].env()).out.split()[1]
        launch = nodes[0].path("talkative")
        with open(launch, "w") as file:
            file.write(TALKATIVE % version)
        os.chmod(launch, 0o755)
        nodes.refused("offload", names="a,b", launch=launch + " {node}",
                      text="b: its ranks have transfers with ranks on other nodes in more than 10000 pairs, too many "
                           "to compare: name fewer processes (--pid); nothing was moved on any node")
        process, va = driver(nodes[0])
        part = Part(nodes[0], "long")
        part.until(state="planned")
        pairs = [["%032x" % 7, 1, 2, 3, 4]] * 10001
        for others, text in ((pairs, "others has more than 10000 groups, pairs and ranks"), (7, "others is not what")):
            part._send(part.words, {"op": "coordinate", "id": "long", "word": "go", "others": {
                "busy": False, "counted": True, "groups": [], "ranks": [], "pairs": others}})
            line = part._line(part.words)
            check(not line["ok"] and text in line["error"], line)
        equal(part.say()["state"], "planned", "it does not go")
        part.say("undo")
        part.end()
        same([(process, va)])


def settled(nodes):
    """Waits until no agent has a transaction, and mends; says what was away before."""
    for node in nodes.nodes:
        wait_for("no transaction", lambda node=node: node.ask("status")["transaction"] is None)
    before = used(nodes)
    nodes.ask("restore")
    equal(used(nodes), [4] * len(before), "after the repair")
    return before


@case(long=True)
def test_somebody_dies():
    """At any moment: the coordinator, a launcher, an agent. Whole before the repair, unless the decision was
    written when it died; whole after it."""
    dice = random.Random(17)
    with Nodes(2) as nodes:
        drivers = [driver(node) for node in nodes.nodes]
        seen = set()
        for turn in range(12):
            victim = ("coordinator", "launcher", "agent")[turn % 3]
            coordinator = subprocess.Popen(
                nodes.argv("offload", "--json", "--owner", "all", "--lease", "1000"), env=nodes[0].env(),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
            at_a_moment(dice, 0.4)
            if victim == "coordinator":
                coordinator.kill()
            elif victim == "launcher":
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(int(subprocess.run(["pgrep", "-P", str(coordinator.pid)], check=False,
                                               capture_output=True).stdout.split()[dice.randrange(2)]), 9)
            else:
                nodes[1].kill_agent()
                nodes[1].start_agent()
                nodes[1].ready(drivers[1][0].inner_pid)
            out, err = coordinator.communicate(timeout=40)
            decided = os.listdir(nodes.state)
            before = settled(nodes)
            equal(os.listdir(nodes.state), [], "decisions after the repair")
            check(before in ([0, 0], [4, 4]) or decided or victim == "agent",
                  "%s died, and half was away: %s; %s" % (victim, before, err))
            if coordinator.returncode == 0:
                equal(before, [0, 0], "after a success, when %s died: %s" % (
                    victim, [node.agent.said()[-900:] for node in nodes.nodes]))
            if victim == "launcher" and coordinator.returncode == 1:
                equal(before, [4, 4], "after a failure: %s" % err)
            seen.add((victim, tuple(before)))
            same(drivers)
        check(len({before for _, before in seen}) > 1, "deaths at different moments: %s" % seen)


@case()
def test_cancel():
    with Nodes(2) as nodes:
        drivers = [driver(node) for node in nodes.nodes]
        nodes[1].freeze_agent()  # it does not plan
        coordinator = subprocess.Popen(
            nodes.argv("offload", "--owner", "all", "--timeout", "60000"), env=nodes[0].env(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for("it is under way", lambda: nodes[0].ask("status")["transaction"])
        coordinator.send_signal(signal.SIGINT)
        wait_for("node 1 is let go", lambda: not nodes[0].ask("status")["transaction"])
        nodes[1].thaw_agent()
        _, err = coordinator.communicate(timeout=30)
        check(coordinator.returncode == 1 and "cancelled; nothing was moved on any node" in err, err)
        equal(used(nodes), [4, 4], "in use")
        same(drivers)


@case(long=True)
def test_not_noted():
    """A node that cannot write down that it drops does not: a later agent would not know of it."""
    with Nodes(2) as nodes:
        drivers = [driver(node) for node in nodes.nodes]
        in_the_way = nodes[1].socket + ".outcomes.new"
        os.mkdir(in_the_way)
        nodes.refused("offload", "--owner", "all",
                      text="%s: undone: what becomes of " % nodes[1].name)
        equal(used(nodes), [4, 4], "in use")
        same(drivers)
        os.rmdir(in_the_way)
        equal(nodes.ask("offload", "--owner", "all")["outcome"], "done", "afterwards")
        equal(nodes.ask("restore")["outcome"], "done", "restore")
        same(drivers)


@case()
def test_bad_input():
    with Nodes(2) as nodes:
        drivers = [driver(node) for node in nodes.nodes]
        one, two = nodes.nodes[0].name, nodes.nodes[1].name
        for args, text in (
                (["--nodes", one], "--nodes needs --launch, --ssh or --slurm"),
                (["--launch", "x"], "--launch needs --nodes"),
                (["--nodes", one, "--ssh", "--launch", "x"], "exclude each other"),
                (["--nodes", one + "," + one, "--launch", "x"], "names %s twice" % one),
                (["--nodes", one + ",,", "--launch", "x"], "a name is empty"),
                (["--nodes", "-oProxyCommand=x", "--ssh"], "is not a node's name"),
                (["--nodes", one, "--launch", "'x"], "a quote is not closed"),
                (["--slurm", "x"], "is not a job's number"),
                (["--pid", "%s:7" % one], "needs --nodes"),
                (["--nodes", one, "--launch", "x", "--pid", "7"], "on which node?"),
                (["--nodes", one, "--launch", "x", "--pid", "y:7"], "is not one of --nodes")):
            outcome = run([LIEN, "offload", *args], 20, nodes[0].env(LIEN_SOCKET="/nonexistent"))
            check(outcome.code == 2 and text in outcome.err and outcome.err.count("\n") == 1, text, outcome)
        # a node that cannot be reached
        nodes.refused("offload", names=one + ",nowhere", text="nowhere: no such node: nowhere")
        nodes.refused("offload", launch="/nonexistent/x", text="cannot start /nonexistent/x: No such file")
        nodes.refused("offload", launch="sh -c 'exit 3'", text="before `lien node` said anything")
        nodes.refused("offload", lien="/nonexistent/lien", names=one, text=one + ": ")
        # no agent there
        nodes.refused("offload", "--socket", "/nonexistent/sock", text=": no agent")
        # another version
        other = nodes[0].path("other")
        with open(other, "w") as file:
            file.write("#!/bin/sh\necho '{\"lien\": \"node\", \"protocol\": 1, \"version\": \"0.0.9\"}'\ncat\n")
        os.chmod(other, 0o755)
        nodes.refused("offload", lien=other, text="lien 0.0.9 is there")
        # two names of one node
        twice = "%s,also-%s" % (one, one)
        same_node = "sh -c 'exec %s \"${1#also-}\" \"$2\" \"$3\"' x {node}" % nodes.launch
        nodes.refused("offload", names=twice, launch=same_node, text="are the same node")
        # a process that is not there
        nodes.refused("offload", "--pid", "%s:99999" % two, text="%s: process 99999 is not known" % two, code=2)
        # a user without a right to one of them
        equal(used(nodes), [4, 4], "in use")
        equal(nodes.ask("offload", "--owner", "all", launch="sh -c 'echo Welcome; echo {}; exec %s $0 \"$@\"' "
                        "{node}" % nodes.launch)["outcome"], "done", "behind a banner")
        nodes.ask("restore")
        same(drivers)


@case()
def test_a_user_without_a_right():
    """On one of the nodes the processes are root's."""
    with Nodes(2) as nodes:
        drivers = [driver(node) for node in nodes.nodes]
        os.chmod(nodes[0].folder, 0o755)
        for node in nodes.nodes:
            os.chmod(node.folder, 0o755)
        launch = ("sh -c 'if [ $0 = %s ]; then exec %s $0 \"$@\"; fi; exec %s $0 setpriv --reuid 65534 --clear-groups "
                  "\"$@\"' {node}" % (nodes.nodes[0].name, nodes.launch, nodes.launch))
        said = nodes.refused("offload", "--owner", "all", *(
            word for node, (process, _) in zip(nodes.nodes, drivers)
            for word in ("--pid", "%s:%d" % (node.name, process.inner_pid))), launch=launch, code=2)
        check(said.startswith("lien offload: %s: " % nodes[1].name), said)
        nodes.refused("offload", "--owner", "all", launch=launch,
                      text="%s: no process there that you may move" % nodes[1].name)
        equal(used(nodes), [4, 4], "in use")
        same(drivers)


@case()
def test_views():
    """One answer, with the node in each entry; the same pid can be on both."""
    with Nodes(2) as nodes:
        drivers = [driver(node) for node in nodes.nodes]
        names = nodes.names.split(",")
        pids = [process.inner_pid for process, _ in drivers]
        ps = nodes.ask("ps")
        equal([(p["node"], p["pid"], p["bytes"]) for p in ps["processes"]],
              [(name, pid, 4 * MIB) for name, pid in zip(names, pids)], "ps")
        equal(ps["nodes"], names, "nodes")
        mem = nodes.ask("mem")
        equal((mem["bytes"], [(row["node"], row["pid"]) for row in mem["rows"]]),
              (8 * MIB, list(zip(names, pids))), "mem")
        graph = nodes.ask("graph")
        equal([p["node"] for p in graph["processes"]], names, "graph")
        equal(nodes.ask("comms")["groups"], [], "comms")
        out = nodes.run("ps").out
        check(out.startswith("NODE") and all(re.search(r"^%s +%d " % pair, out, re.M)
                                             for pair in zip(names, pids)), out)
        check(nodes.run("mem").out.startswith("NODE"), "mem has no column")
        out = nodes.run("check")
        check(out.code == 0 and all(name + ":\n" in out.out for name in names), out)
        dot, svg = nodes.run("graph").out, nodes.run("graph", "--format", "svg").out
        for name, pid in zip(names, pids):
            check("label=\"%s: process %d prog_driver\"" % (name, pid) in dot, "no process %d of %s" % (pid, name), dot)
            check("%s · pid %d" % (name, pid) in svg and "%s · GPU 0" % name in svg, "%s is not in" % name, svg)
        equal((dot.count("1 allocation, 4.0 MiB on device 0"), dot.count("subgraph")), (2, 2), "boxes")
        check("GPU memory on %s" % ", ".join(names) in svg and "2 processes on 2 GPUs" in svg, svg)
        nodes.refused("ps", "--gpu", "0", text="cannot be combined", code=2)
        nodes.refused("ps", names=names[0] + ",nowhere", text="nowhere: no such node")


PYTHON = """
import lien, sys
job = lien.Cluster(sys.argv[1].split(","), sys.argv[2] + " {node}", program=sys.argv[3], remote=sys.argv[3],
                   state=sys.argv[4], lease=5)
one, two = sys.argv[1].split(",")
with job.offloaded("all", timeout=9) as away:
    assert away.outcome == "done" and away.bytes == 8 << 20, away
    assert [part.bytes for part in away.per_node.values()] == [4 << 20] * 2, away
    assert [p.state for p in job.processes()[one]] == ["offloaded"], job.processes()
    assert [m.offloaded_bytes for m in job.memory()[two]] == [4 << 20], job.memory()
assert [p.state for p in job.processes()[two]] == ["running"]
pid = job.processes()[two][0].pid
assert job.offload("all", {two: [pid]}, dry_run=True).bytes == 4 << 20
assert job.restore().outcome == "nothing to do"
try:
    job.offload("all", {two: [99999]})
except lien.LienError as error:
    assert error.code == "invalid" and str(error).startswith(two + ": "), error
else:
    raise AssertionError
"""


ASYNC_PYTHON = """
import asyncio, lien.aio, sys
one, two = sys.argv[1].split(",")
job = lien.aio.Cluster([one, two], sys.argv[2] + " {node}", program=sys.argv[3], remote=sys.argv[3],
                       state=sys.argv[4], lease=5)

async def main():
    async with job.offloaded("all", timeout=9) as away:
        assert away.outcome == "done" and away.bytes == 8 << 20, away
        assert [p.state for p in (await job.processes())[one]] == ["offloaded"]
        assert [m.offloaded_bytes for m in (await job.memory())[two]] == [4 << 20]
    assert [p.state for p in (await job.processes())[two]] == ["running"]
    assert (await job.restore()).outcome == "nothing to do"
    try:
        await job.offload("all", {two: [99999]})
    except lien.LienError as error:
        assert error.code == "invalid" and str(error).startswith(two + ": "), error
    else:
        raise AssertionError
    # Cancelled with the second node's agent stopped: it is cancelled on the first one.
    print("stop", flush=True)
    sys.stdin.readline()
    task = asyncio.ensure_future(job.offload("all", timeout=60))
    print("begun", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        print("cancelled", flush=True)

asyncio.run(main())
"""


def python(nodes, program):
    return [sys.executable, "-c", program, nodes.names, nodes.launch, LIEN, nodes.state]


@case(long=True)
def test_python():
    with Nodes(2) as nodes:
        drivers = [driver(node) for node in nodes.nodes]
        env = nodes[0].env(PYTHONPATH=os.path.join(ROOT, "tools", "python"))
        outcome = run(python(nodes, PYTHON), 60, env)
        check(outcome.code == 0, outcome)
        same(drivers)


@case(long=True)
def test_async_python():
    with Nodes(2) as nodes:
        drivers = [driver(node) for node in nodes.nodes]
        env = nodes[0].env(PYTHONPATH=os.path.join(ROOT, "tools", "python"))
        process = Process(python(nodes, ASYNC_PYTHON), env, nodes[0].path("async.log"))
        check(process.line(60) == "stop", process.said())
        nodes[1].freeze_agent()
        equal(process.ask("go"), "begun", "answer")
        wait_for("it is under way", lambda: nodes[0].ask("status")["transaction"])
        process.send("cancel")
        wait_for("node 1 is let go", lambda: not nodes[0].ask("status")["transaction"])
        nodes[1].thaw_agent()
        check(process.line(60) == "cancelled" and process.wait() == 0, process.said())
        equal(used(nodes), [4, 4], "in use")
        same(drivers)


if __name__ == "__main__":
    sys.exit(main())
