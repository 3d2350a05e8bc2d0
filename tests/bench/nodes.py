#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What the coordination of many nodes costs: `lien offload --nodes` and `lien restore --nodes` with simulated
agents, for which nothing takes long.

    make bench-nodes BENCH_ARGS='--nodes 2 16 128 --json FILE'

All simulated agents are in this process; each has a socket, to which a real `lien node` connects, started by
env(1). Every node has ranks of a job with several communicators, which are not level at first: the agent reports
what they have begun, and lets them run to where those of other nodes are. The coordinator's own time is what the
kernel has counted for its process: of the whole command, and from the first request to an agent on, without the
launching of processes. Needs no root.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time

RANKS, COMMS = 8, 4  # of each node
STEP_S = 0.001       # that anything takes on a node
LIEN = os.path.join(os.environ.get("BUILD", "build"), "lien")


class Agent:
    """What an agent is to a coordinator: agent/nodes/part.c, and ranks that run as far as they must."""

    def __init__(self, bench, number):
        self.bench, self.number = bench, number
        self.requests = self.lines = 0
        self.away = False
        self.part = None

    async def serve(self, reader, writer):
        try:
            while line := await reader.readline():
                self.bench.first_request()
                self.lines += 1
                self.answer(json.loads(line), writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def say(self, writer, message):
        self.lines += 1
        writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def answer(self, request, writer):
        operation = request.get("op")
        if operation in ("offload", "restore") and "coordinate" in request:
            self.part = Part(self, writer, operation, request["coordinate"]["id"])
            self.part.tell()
        elif operation == "coordinate" and self.part and self.part.id == request["id"]:
            self.part.hear(request)
            self.say(writer, {"ok": True, "result": self.part.status})
        elif operation == "coordinate":
            self.say(writer, {"ok": True, "result": {"state": None}})
        else:
            self.say(writer, {"ok": True, "result": self.bench.result(operation)})


class Part:
    def __init__(self, agent, writer, operation, name):
        self.agent, self.writer, self.operation, self.id = agent, writer, operation, name
        self.status = {"state": "planned", "version": 1, "at_rest": False, "round": 0, "held": False}
        dice = random.Random(agent.number)
        self.begun = [[100 + dice.randrange(4) for _ in range(COMMS)] for _ in range(RANKS)]
        self.reported = None

    def report(self):
        first = self.agent.number * RANKS
        return {"busy": False, "unnamed": False, "standings": [
            {"group": "%032x" % (comm + 1), "rank": first + rank, "counted": True, "since": 0,
             "collectives": self.begun[rank][comm], "pairs": []}
            for rank in range(RANKS) for comm in range(COMMS)]}

    def tell(self):
        status = dict(self.status)
        report = self.report()
        if self.operation == "offload" and status["state"] != "planned" and report != self.reported:
            status["report"] = self.reported = report
        self.agent.say(self.writer, {"progress": {"node": status}})

    def later(self, function, *args):
        asyncio.get_running_loop().call_later(STEP_S, function, *args)

    def hear(self, request):
        word, state, restore = request.get("word"), self.status["state"], self.operation == "restore"
        if word in ("go", "hold") and state == "planned":
            self.status["state"] = "going"
            self.later(self.ready if restore else self.look, [0] * COMMS)
        if word == "hold" and self.status["state"] == "going" and request["round"] >= self.status["round"] and \
                not (self.status["held"] and request["round"] == self.status["round"]):
            self.status["round"] = request["round"]
            self.status["held"] = self.status["at_rest"] and request["version"] == self.status["version"]
            self.tell()
        if word == "save" and self.status["held"] and state == "going":
            self.status["state"] = "saving"
            self.later(self.ready, None)
        if word == "commit" and state == "ready":
            self.status["state"] = "committed"
            self.later(self.done)
        if "others" in request and request["others"] is not None:
            targets = [0] * COMMS
            for group in request["others"]["groups"]:
                targets[int(group["group"], 16) - 1] = group["collectives"] or 0
            self.later(self.look, targets)

    def look(self, targets):
        """Ranks run to the target: that of this node, and of the others."""
        targets = [max(target, *(rank[comm] for rank in self.begun)) for comm, target in enumerate(targets)]
        level = [targets] * RANKS == self.begun
        self.begun = [list(targets) for _ in range(RANKS)]
        if self.status["held"] or self.status["state"] != "going":
            return
        if not level or not self.status["at_rest"]:
            self.status["version"] += 1
        self.status["at_rest"] = True
        self.tell()

    def ready(self, _):
        self.status["state"] = "ready"
        self.status["held"] = False
        self.tell()

    def done(self):
        self.status["state"] = "done"
        self.agent.away = self.operation == "offload"
        self.tell()
        self.agent.say(self.writer, {"ok": True, "result": self.agent.bench.result(self.operation)})


class Bench:
    def __init__(self, folder, count):
        self.folder, self.count = folder, count
        self.agents = [Agent(self, number) for number in range(count)]
        self.child = None
        self.launch_ns = None

    def result(self, operation):
        process = {"allocations": 7, "imports": 3, "mappings": 10, "bytes": 14680064, "discarded_bytes": 0,
                   "verified_bytes": 0, "freed_bytes": 14680064,
                   "ms": {"drain": 1.0, "check": 0.1, "save": 1.0, "unmap": 0.1, "drop": 0.1, "create": 1.0,
                          "export": 0.1, "import": 0.1, "finish": 0.1}}
        return {"outcome": "done", "bytes": RANKS * process["bytes"], "discarded_bytes": 0, "inferred_bytes": 0,
                "nameless_bytes": 0, "verified_bytes": 0, "let_in": 0, "guesses": 0, "gate_ms": 1.0,
                "rest_ms": 1.0 if operation == "offload" else None, "ms": 5.0,
                "processes": [{"pid": 100 + rank, **process} for rank in range(RANKS)], "left": [], "rest": []}

    def own_ns(self):
        """What the coordinator has run for until now: a zombie's is there, too."""
        total = 0
        for task in os.listdir("/proc/%d/task" % self.child):
            with open("/proc/%d/task/%s/schedstat" % (self.child, task)) as file:
                total += int(file.read().split()[0])
        return total

    def first_request(self):
        if self.launch_ns is None:
            self.launch_ns = self.own_ns()

    async def open(self):
        for number, agent in enumerate(self.agents):
            await asyncio.start_unix_server(agent.serve, os.path.join(self.folder, "node%d" % number), limit=1 << 24)

    async def command(self, operation):
        names = ",".join("node%d" % number for number in range(self.count))
        launch = "env LIEN_SOCKET=%s/{node}" % self.folder
        before = sum(agent.lines for agent in self.agents)
        self.launch_ns = None
        out, err = (os.path.join(self.folder, "out-" + name) for name in ("json", "err"))
        began = time.monotonic()
        with open(out, "w") as out_file, open(err, "w") as err_file:
            self.child = os.posix_spawn(
                LIEN, [LIEN, operation, "--json", "--nodes", names, "--launch", launch, "--state",
                       os.path.join(self.folder, "state")], {**os.environ, "PATH": os.path.dirname(
                           os.path.abspath(LIEN)) + ":" + os.environ["PATH"]},
                file_actions=[(os.POSIX_SPAWN_DUP2, out_file.fileno(), 1),
                              (os.POSIX_SPAWN_DUP2, err_file.fileno(), 2)])
        await asyncio.get_running_loop().run_in_executor(
            None, lambda: os.waitid(os.P_PID, self.child, os.WEXITED | os.WNOWAIT))
        wall = time.monotonic() - began
        own = self.own_ns()
        _, status = os.waitpid(self.child, 0)
        with open(out) as out_file, open(err) as err_file:
            said, why = out_file.read(), err_file.read()
        if status:
            sys.exit("lien %s of %d nodes: %s" % (operation, self.count, why))
        answer = json.loads(said)
        return {"own_ms": own / 1e6, "own_after_launch_ms": (own - (self.launch_ns or 0)) / 1e6,
                "wall_ms": wall * 1e3, "messages": sum(agent.lines for agent in self.agents) - before,
                "rounds": answer["coordinator"]["rounds"],
                "reports": answer["coordinator"]["reports"]}


async def measure(count, times):
    """Medians of an offload's and a restore's figures."""
    with tempfile.TemporaryDirectory(prefix="lien-bench-") as folder:
        bench = Bench(folder, count)
        await bench.open()
        found = {"offload": [], "restore": []}
        for _ in range(times):
            for operation, list_ in found.items():
                list_.append(await bench.command(operation))
    return {operation: {name: statistics.median(one[name] for one in list_)
                        if list_[0][name] is not None else None for name in list_[0]}
            for operation, list_ in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 16, 128])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    found = {}
    print("%s, %d processors; medians of %d; %d ranks in %d communicators on each node" % (
        platform.release(), os.cpu_count(), options.times, RANKS, COMMS))
    print("%-6s %-8s %9s %6s %10s %18s %10s" % (
        "nodes", "", "messages", "rounds", "own ms", "after launch, ms", "wall ms"))
    for count in options.nodes:
        found[count] = asyncio.run(measure(count, options.times))
        for operation, one in found[count].items():
            print("%-6d %-8s %9d %6s %10.1f %18.1f %10.1f" % (
                count, operation, one["messages"], "-" if one["rounds"] is None else one["rounds"], one["own_ms"],
                one["own_after_launch_ms"], one["wall_ms"]), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
