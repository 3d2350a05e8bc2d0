# SPDX-License-Identifier: BSD-2-Clause
"""What stands in for a launcher, `lien node` and an agent, for a coordinator whose nodes say what a test wants.

    scripted_node.py FOLDER NODE ...

FOLDER/NODE is JSON: `commit`, what becomes of the node when it is told to commit (Node.commit), "done" by default;
`restore`, the reply to a restore, which succeeds by default. Its requests but the words of a coordinator go to
FOLDER/NODE.requests, a line each. Needs neither an agent nor root.
"""

import json
import os
import shutil
import sys
import tempfile

from lien_test import LIEN, run

WAIT, WORDS = 1, 2  # the coordinator's connections, of nodes_mover.h


class Node:
    def __init__(self, folder, name):
        self.path = os.path.join(folder, name)
        with open(self.path) as file:
            self.script = json.load(file)
        self.status = {"state": None, "version": 1, "at_rest": False, "round": 0, "held": False}

    @staticmethod
    def put(message):
        print(json.dumps(message), flush=True)

    def say(self, on, line):
        self.put({"on": on, "line": line})

    def serve(self):
        self.put({"lien": "node", "protocol": 1, "version": self.script["version"], "host": "", "boot": "",
                  "agent": self.path})
        for line in sys.stdin:
            message = json.loads(line)
            request = message["send"]
            if request["op"] == "coordinate":
                self.hear(request)
                continue
            with open(self.path + ".requests", "a") as file:
                file.write(json.dumps(request) + "\n")
            if "coordinate" in request:
                self.begin(request)
            else:
                self.say(message["on"], self.script.get("restore") or {"ok": True, "result": result(request)})

    def begin(self, request):
        self.request = request
        self.move("planned")

    def move(self, state, **more):
        """The agent says so by itself."""
        self.status.update(state=state, version=self.status["version"] + 1, **more)
        report = {"report": {"busy": False, "unnamed": False, "standings": []}} if state == "going" else {}
        self.say(WAIT, {"progress": {"node": {**self.status, **report}}})

    def hear(self, request):
        word, state = request.get("word"), self.status["state"]
        if word == "go" and state == "planned":
            self.move("going", at_rest=True)
            if self.request["op"] == "restore":
                self.move("ready")
        elif word == "hold" and state == "going":
            self.status.update(round=request["round"], held=request["version"] == self.status["version"])
        elif word == "save" and state == "going":
            self.move("ready", held=False)
        elif state == "committed":
            self.end()
        elif word == "commit" and state == "ready":
            self.commit()
        self.say(WORDS, {"ok": True, "result": self.status if self.status["state"] else {"state": None}})

    def commit(self):
        how = self.script.get("commit", "done")
        if how == "no result":  # as after its launcher has ended, and was started again
            self.status["state"] = "done"
        elif how == "undone":
            self.move("undone")
            self.say(WAIT, {"ok": False, "error": "undone: the coordinator was not heard"})
        else:
            self.move("committed")

    def end(self):
        """The word after it has committed."""
        how = self.script.get("commit", "done")
        if how == "done":
            self.move("done")
            self.say(WAIT, {"ok": True, "result": result(self.request)})
        elif how == "forgets":  # another agent is there, which knows nothing of it
            self.status["state"] = None
        elif how == "fails":
            self.say(WAIT, {"ok": False, "error": "process 7: a device is lost"})


def result(request):
    return {"outcome": "done", "bytes": 1 << 20, "discarded_bytes": 0, "ms": 1.0, "left": [], "processes": [
        {"pid": pid, "bytes": 1 << 20, "freed_bytes": None, "discarded_bytes": 0, "allocations": 1, "imports": 0,
         "mappings": 1, "ms": {}} for pid in request.get("pids", [7])]}


class ScriptedNodes:
    """Nodes a, b, ... with a script each. Whoever uses it sees what `lien` makes of them."""

    def __init__(self, *scripts):
        self.folder = tempfile.mkdtemp(prefix="lien-scripted-")
        self.names = [chr(ord("a") + number) for number in range(len(scripts))]
        version = run([LIEN, "--version"], 20).out.split()[1]
        for name, script in zip(self.names, scripts):
            with open(os.path.join(self.folder, name), "w") as file:
                json.dump({"version": version, **script}, file)

    def __enter__(self):
        return self

    def __exit__(self, *why):
        shutil.rmtree(self.folder)

    @property
    def launch(self):
        return "%s %s %s {node}" % (sys.executable, os.path.abspath(__file__), self.folder)

    @property
    def state(self):
        return os.path.join(self.folder, "state")

    def lien(self, command, *args):
        return run([LIEN, command, "--nodes", ",".join(self.names), "--launch", self.launch, "--state", self.state,
                    "--lease", "1000", *args], 60)

    def requests(self, name):
        """Those that the node has had, without words."""
        with open(os.path.join(self.folder, name + ".requests")) as file:
            return [json.loads(line) for line in file]


if __name__ == "__main__":
    Node(sys.argv[1], sys.argv[2]).serve()
