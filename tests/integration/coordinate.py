# SPDX-License-Identifier: BSD-2-Clause
"""Several nodes on this machine: each has a pid and a mount namespace, an agent and devices of its own.
A launcher is `nsenter`."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile

from lien_test import GUARD, LIEN, Session, check, children_of, equal, run, state_of, wait_for

NSENTER = "nsenter -t {node} -p -m --"


class Node(Session):
    """Its name, for a launcher, is the pid of its first process."""

    def __init__(self, **more):
        super().__init__(fresh=True, **more)  # an agent in another pid namespace
        self.holder = subprocess.Popen(
            ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sleep", "inf"],
            start_new_session=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        wait_for("the node is there", lambda: children_of(self.holder.pid))
        self.first = children_of(self.holder.pid)[0]
        self.name = str(self.first)
        # mount-proc comes after the fork
        wait_for("it has a /proc", lambda: os.path.exists("/proc/%d/root/proc/1/stat" % self.first) and
                 b"sleep" in open("/proc/%d/root/proc/1/stat" % self.first, "rb").read())

    def spawn(self, argv, env=None, **environment):
        return super().spawn(["nsenter", "-t", self.name, "-p", "-m", "--", *argv], env, **environment)

    def lien(self, *args, limit=GUARD, env=None, text=None, **environment):
        return run(["nsenter", "-t", self.name, "-p", "-m", "--", LIEN, *args], limit,
                   env or self.env(**environment), text)

    def start_agent(self, *args, **more):
        agent = super().start_agent(*args, **more)
        # nsenter waits for it, and ends as it does
        agent.signal = lambda number: os.kill(children_of(agent.pid)[0], number)
        return agent

    def used(self, device=None):
        """As in Session; the devices are mounted in the node's own namespace."""
        total, root = 0, "/proc/%d/root" % self.first
        for number in range(self.device_count) if device is None else [device]:
            place = root + os.path.join(self.devices, str(number))
            if os.path.exists(place) and os.stat(place).st_dev != os.stat(root + self.folder).st_dev:
                fs = os.statvfs(place)
                total += (fs.f_blocks - fs.f_bfree) * fs.f_frsize
        return total

    def agent_pid(self):
        return children_of(self.agent.pid)[0]

    def freeze_agent(self):
        """nsenter stops when it sees that the agent is stopped."""
        os.kill(self.agent_pid(), signal.SIGSTOP)
        wait_for("nsenter is stopped", lambda: state_of(self.agent.pid) == "T")

    def thaw_agent(self):
        for pid in (self.agent_pid(), self.agent.pid):
            os.kill(pid, signal.SIGCONT)

    def close(self):
        super().close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.holder.pid, signal.SIGKILL)
        self.holder.wait()


class Nodes:
    """Nodes with an agent each, and the coordinator's commands."""

    def __init__(self, count=2, agents=True, **more):
        self.nodes = [Node(**more) for _ in range(count)]
        self.state = tempfile.mkdtemp(prefix="lien-state-")
        # A launcher for each node: its agent's socket is its own.
        self.launch = self.nodes[0].path("launch")
        with open(self.launch, "w") as file:
            file.write("#!/bin/sh\nnode=$1\nshift\ncase $node in\n")
            for node in self.nodes:
                file.write("%s) LIEN_SOCKET=%s; export LIEN_SOCKET;;\n" % (node.name, node.socket))
            file.write("*) echo \"no such node: $node\" >&2; exit 1;;\nesac\n"
                       "exec nsenter -t \"$node\" -p -m -- \"$@\"\n")
        os.chmod(self.launch, 0o755)
        for node in self.nodes if agents else []:
            node.start_agent()

    def __enter__(self):
        return self

    def __exit__(self, *why):
        for node in self.nodes:
            node.__exit__(*why)

    def __getitem__(self, number):
        return self.nodes[number]

    @property
    def names(self):
        return ",".join(node.name for node in self.nodes)

    def where(self, launch=None, names=None, lien=LIEN):
        return ["--nodes", names or self.names, "--launch", launch or self.launch + " {node}", "--lien", lien]

    def argv(self, command, *args, **where):
        more = ["--state", self.state] if command in ("offload", "restore") else []
        return [LIEN, command, *self.where(**where), *more, *args]

    def run(self, command, *args, limit=GUARD, **where):
        return run(self.argv(command, *args, **where), limit, self.nodes[0].env())

    def ask(self, command, *args, **where):
        outcome = self.run(command, "--json", *args, **where)
        check(outcome.code == 0, outcome)
        return json.loads(outcome.out)

    def refused(self, command, *args, text="", code=1, **where):
        outcome = self.run(command, *args, **where)
        check(outcome.code == code and text in outcome.err and outcome.err.count("\n") == 1,
              "expected %d and one line with '%s': %s" % (code, text, outcome))
        return outcome.err


def driver(node, mib=4):
    """A process on the node with memory, and where it is."""
    process = node.driver()
    _, va = process("make", mib << 20, 0)
    process("fill", va, mib << 20, 7)
    node.ready(process.inner_pid)
    return process, va


class Part:
    """A node's part of a transaction, whose coordinator is the test: two connections with its agent."""

    def __init__(self, node, ident="t1", op="offload", lease=20000, **members):
        self.node, self.ident = node, ident
        self.wait, self.words = self._connect(), self._connect()
        self.status, self.result = {}, None
        if op == "offload":
            members.setdefault("owner", "all")
        self._send(self.wait, {"op": op, "coordinate": {"id": ident, "lease_ms": lease}, **members})

    def _connect(self):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(self.node.socket)
        return connection, bytearray()

    @staticmethod
    def _send(connection, request):
        connection[0].sendall(json.dumps(request).encode() + b"\n")

    @staticmethod
    def _line(connection):
        file, rest = connection
        while b"\n" not in rest:
            piece = file.recv(1 << 20)
            check(piece, "the agent has closed the connection")
            rest += piece
        line, _, after = bytes(rest).partition(b"\n")
        rest[:] = after
        return json.loads(line)

    def until(self, **wanted):
        """Reads what the agent says by itself until its status has this."""
        while any(self.status.get(name) != value for name, value in wanted.items()):
            line = self._line(self.wait)
            if "progress" in line:
                self.status.update(line["progress"].get("node", {}))
            else:
                self.result = line
                check(self.status.get("state") == wanted.get("state"), "it ended:", line)
        return self.status

    def end(self):
        while not self.result:
            line = self._line(self.wait)
            if "progress" in line:
                self.status.update(line["progress"].get("node", {}))
            else:
                self.result = line
        return self.result

    def say(self, word=None, **more):
        """The answer to a word."""
        request = {"op": "coordinate", "id": self.ident, **more}
        if word:
            request["word"] = word
        self._send(self.words, request)
        line = self._line(self.words)
        check(line["ok"], line)
        return line["result"]

    def ready(self):
        """As far as everything is saved."""
        if self.status.get("state") != "going":
            self.until(state="planned")
            self.say("go")
        self.until(at_rest=True)
        while not self.say("hold", round=1, version=self.status["version"])["held"]:
            self.status.update(self.say())  # it changed meanwhile
        equal(self.say("save", round=1)["state"] in ("saving", "ready"), True, "it saves")
        self.until(state="ready")

    def close(self):
        self.wait[0].close()
        self.words[0].close()
