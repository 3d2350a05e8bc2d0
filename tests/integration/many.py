# SPDX-License-Identifier: BSD-2-Clause
"""A job on all nodes of a lab, and `lien COMMAND --nodes` about it."""

import json

from lien_test import GUARD, LIEN, Late, brief, check, equal, wait_for

LIMIT = 90.0  # for whatever is asked: more is a hang


class Many:
    """launch: what says how processes are started on nodes, as options of `lien`, which is run on the first
    node; without: at the lab's desk, by its launcher."""

    def __init__(self, lab, job, *launch):
        self.lab, self.job = lab, job
        self.nodes = list(lab)
        self.at = lab[0] if launch else lab.desk
        self.launch = [str(word) for word in launch] or ["--launch", lab.desk.on + " {node}"]

    def argv(self, command, *more):
        return [command, "--nodes", ",".join(node.name for node in self.nodes), *self.launch, *map(str, more)]

    def lien(self, command, *more, limit=LIMIT):
        return self.at.lien(*self.argv(command, *more), limit=limit)

    def ask(self, command, *more, limit=LIMIT):
        outcome = self.lien(command, "--json", *more, limit=limit)
        check(outcome.code == 0, outcome)
        return outcome.json()

    def spawn(self, command, *more):
        """A coordinator of its own, that can be killed."""
        return self.at.spawn([LIEN, *self.argv(command, "--json", *more)])

    # What is so on the nodes, as their own agents say

    def standing(self):
        """Of each rank that lives: (node, pid, state, bytes that are away)."""
        found = []
        for node in self.nodes:
            processes = {p["pid"]: p for p in node.ask("ps")["processes"]}
            for pid in self.job.living_on(node):
                process = processes.get(pid)
                found.append((node.name, pid, process and process["state"],
                              process and process["offloaded_bytes"]))
        return found

    def whole(self):
        """"running", "offloaded", or what is the case instead."""
        standing = self.standing()
        if all(state == "running" and not away for _, _, state, away in standing):
            return "running"
        # What the driver has made itself, by cuMemAlloc(), stays.
        if all(state in ("offloaded", "partly offloaded") and away for _, _, state, away in standing):
            return "offloaded"
        return brief(standing)

    def goes_on(self, limit=GUARD):
        """All ranks get further."""
        before = self.job.status()
        wait_for("the job goes on from %s" % before, lambda: all(
            now[0] > then[0] + 1 and now[1] > then[1] for now, then in zip(self.job.status(), before)), limit)

    def there_and_back(self, *more):
        """An offload of all, and a restore. Their answers. With other memory than NCCL's, a node whose thread
        unmaps what is away puts it back by itself."""
        gone = self.ask("offload", *more)
        equal(gone["outcome"], "done", "offload")
        equal(sorted(node["node"] for node in gone["nodes"]), sorted(node.name for node in self.nodes), "nodes")
        if "--owner" not in more:
            equal(self.whole(), "offloaded", "the job")
        back = self.ask("restore")
        equal(back["outcome"], "done", "restore")
        equal(self.whole(), "running", "the job")
        return gone, back

    def said(self):
        return "; ".join("%s: %s" % (node.name, node.agent.said()[-400:]) for node in self.lab if node.agent)


def ends(process, limit=LIMIT):
    """The exit status of what spawn() gave, and all that it said on stdout."""
    try:
        code = process.wait(limit)
    except Late:
        raise Late("`%s` hangs; it said: %s" % (" ".join(process.argv), process.said())) from None
    text = []
    while True:
        line = process.line()
        if line is None:
            break
        text.append(line)
    try:
        return code, json.loads("\n".join(text))
    except ValueError:
        return code, None
