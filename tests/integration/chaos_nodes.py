#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A job that trains on three nodes is offloaded and restored for CHAOS_STEPS (40) steps while what takes part is
killed or stopped, and links are cut. Where a link is cut, the coordinator is on a node and uses ssh.

    make chaos-nodes CHAOS_STEPS=400

CHAOS_SEED repeats what was chosen, though not when the kernel ran whom. CHAOS_CUT: for how many seconds, at
most, a link is cut (20). The last line says in JSON what was; the exit status is 1 where bytes were lost,
something hung, or a job was left neither running nor offloaded after `lien restore --nodes`.
"""

import contextlib
import os
import signal
import sys
import threading
import time

import chaos_run
import faults
from chaos import IN_OFFLOAD, IN_RESTORE
from chaos_run import Lost
from lab import Lab, LabTrain
from launchers import Ssh
from lien_test import Failure, at_a_moment, brief, check, wait_for
from many import LIMIT, Many, ends
from train_job import GONE, SYNC, WRONG

FAULTS = "/run/faults"


class Chaos(chaos_run.Run):
    def __init__(self, lab, seed, length, cut):
        super().__init__(seed, length, transactions=0, failed=0, kills=0, cuts=0, cut_seconds=0, stops=0, delays=0,
                         jobs=0, agents=0, repairs=0)
        self.lab, self.cut_most = lab, cut
        self.many = self.over_ssh = self.job = self.ssh = None
        self.faults = {}
        self.span = 1.0  # of a transaction, seconds

    # The job, and what is so at rest

    def start(self):
        self.job = LabTrain(self.lab, 2, seed=self.rng.randrange(1000), LIEN_SOFTCUDA_FAULTS=FAULTS)
        self.tally.add("jobs")
        self.job.ready()
        self.many = Many(self.lab, self.job)
        self.over_ssh = Many(self.lab, self.job, "--launch", "ssh {node}")
        self.faults = {}
        for node in self.lab:
            # Faults look for a file of that name in a folder of the session's.
            place = type("Place", (), {"path": staticmethod(lambda _, node=node: node.outside(FAULTS))})
            for pid in self.job.pids_on(node):
                self.faults[node.name, pid] = faults.Faults(place, pid)

    def verified(self):
        self.tally.add("bytes_verified", sum(rank[2] for rank in self.job.status()))

    def end_job(self, stop):
        """Results are compared with what they must be, if it ends well."""
        if stop:
            self.verified()
            self.job.stop()
            try:
                self.job.finish()
            except Failure as failure:
                raise Lost(str(failure)) from None
        self.job.end()

    def new_job(self):
        """After a rank has died: the others see that, and end."""
        for number, rank in enumerate(self.job.ranks):
            code = self.job.ends(number, LIMIT)
            if code == WRONG or "GPU fault" in rank.said():
                raise Lost("rank %d: %s" % (number, rank.said()))
            check(code in (GONE, -signal.SIGKILL, 128 + signal.SIGKILL),
                  "rank %d ended with %d: %s" % (number, code, rank.said()))
        self.end_job(stop=False)
        for node in self.lab:
            wait_for("device memory of %s is free" % node.name, lambda node=node: not node.used())
        self.start()

    def check_ranks(self):
        for number, rank in enumerate(self.job.ranks):
            if rank.popen.poll() is not None:
                what = "rank %d has ended with %s: %s" % (number, rank.popen.poll(), rank.said())
                raise Lost(what) if rank.popen.poll() == WRONG or "fault" in rank.said() else Failure(what)

    def settle(self):
        """Everything comes back, whatever was done to it; then the job goes on."""
        self.put_back()
        self.check_ranks()
        self.many.goes_on(LIMIT)

    def put_back(self):
        for fault in self.faults.values():
            self.tally.add("delays", fault.disarm() > 0)
        wait_for("all is put back", self._is_put_back, LIMIT, 0.2)

    def _is_put_back(self):
        outcome = self.many.lien("restore")
        self.tally.add("repairs")
        whole = self.many.whole()
        if whole != "running":
            self.say("  %s; restore: %d %s" % (whole, outcome.code, brief(outcome.text(), 300)))
        return whole == "running"

    # A transaction, and what is done to it

    def begin(self, many=None):
        """It is under way, at any moment of it."""
        many = many or self.many
        command = self.rng.choice(["offload", "offload", "restore"])
        if command == "restore":
            self.many.lien("offload")
        self.slow(command)
        more = ["--owner", "all"] if command == "offload" and self.rng.random() < 0.2 else []
        more += ["--lease", self.rng.choice([700, 2000, 10000])]
        coordinator = many.spawn(command, *more)
        at_a_moment(self.rng, self.span * (1 if many is self.many else 2))
        self.say("  in", command, *more)
        return coordinator

    def slow(self, command):
        """Some phase of it takes long."""
        if self.rng.random() < 0.5:
            return
        fault = self.faults[self.rng.choice(sorted(self.faults))]
        fault.arm(faults.DELAY, nth=self.rng.randint(1, 4), times=self.rng.randint(1, 3),
                  function=self.rng.choice(IN_OFFLOAD if command == "offload" else IN_RESTORE),
                  delay_ms=self.rng.randint(20, 500))

    def end(self, coordinator, killed=False, dies=False):
        """killed: the coordinator is. dies: what takes part does."""
        code, answer = ends(coordinator)
        self.tally.add("transactions")
        if code or not answer:
            self.tally.add("failed")
            self.say("  ended with", code, brief(coordinator.said(), 300))
        if not killed:
            check(code in (0, 1), "`lien` ended with %d: %s" % (code, coordinator.said()))
            whole = self.many.whole() if code == 0 and not dies else "running"
            check(whole in ("running", "offloaded"), "done, but:", whole)

    def do_rounds(self):
        for _ in range(self.rng.randint(1, 3)):
            began = time.monotonic()
            gone, _ = self.many.there_and_back()
            check(gone["outcome"] == "done", "outcome:", brief(gone))
            self.span = (time.monotonic() - began) / 2 * 1.2
            self.tally.add("transactions", 2)
            self.many.goes_on(LIMIT)

    def do_kill_coordinator(self):
        coordinator = self.begin()
        coordinator.signal(signal.SIGKILL)
        self.tally.add("kills")
        self.end(coordinator, killed=True)
        if self.rng.random() < 0.5:
            at_a_moment(self.rng, 3)
        self.settle()

    def do_interrupt(self):
        coordinator = self.begin()
        coordinator.signal(signal.SIGINT)
        self.end(coordinator, killed=True)
        self.settle()

    def do_kill_node_program(self):
        """`lien node`, or the launcher's process that has started it."""
        ssh = self.rng.random() < 0.3
        coordinator = self.begin(self.over_ssh if ssh else self.many)
        node = self.rng.choice(self.lab.nodes)
        found = self.lab[0].processes_of("ssh", node.name) if ssh else node.processes_of("lien", "node")
        for pid in found:
            self.signal(pid, signal.SIGKILL)
            self.tally.add("kills")
        self.say("  killed %d on or for %s" % (len(found), node.name))
        self.end(coordinator)
        self.settle()

    def do_kill_agent(self):
        coordinator = self.begin()
        node = self.rng.choice(self.lab.nodes)
        node.kill_agent()
        self.tally.add("kills")
        self.say("  agent of %s killed" % node.name)
        time.sleep(self.rng.choice([0, 0, 0.5, 2, 6]))
        self.start_agent(node)
        self.end(coordinator)
        self.settle()

    def do_kill_rank(self):
        coordinator = self.begin()
        rank = self.rng.randrange(self.job.nranks)
        self.job.kill(rank)
        self.tally.add("kills")
        self.say("  rank %d killed" % rank)
        self.end(coordinator, dies=True)
        self.many.lien("restore")
        self.new_job()

    def do_kill_node(self):
        """All that runs there is gone; what is away on the others comes back."""
        coordinator = self.begin()
        node = self.rng.choice(self.lab.nodes)
        self.say("  %s killed" % node.name)
        node.close()
        self.tally.add("kills")
        self.end(coordinator, dies=True)
        self.many.nodes = [other for other in self.lab if other is not node]
        self.put_back()
        self.end_job(stop=False)
        node.reboot()
        self.ssh.start(node)
        self.prepare(node)
        self.start()

    def do_stop(self):
        """Something does not run for a while: what it then says is late."""
        coordinator = self.begin()
        node = self.rng.choice(self.lab.nodes)
        pids = self.rng.choice([
            lambda: [coordinator.pid],
            lambda: node.processes_of("lien", "node"), lambda: [node.agent.inner]])()
        seconds = self.rng.choice([0.2, 1, 3, min(12, self.cut_most)])  # a lease is 10 s
        self.say("  %s of %s stopped for %g s" % (pids, node.name, seconds))
        for pid in pids:
            self.signal(pid, signal.SIGSTOP)
        self.tally.add("stops")
        time.sleep(seconds)
        for pid in [*pids, coordinator.pid, node.agent.pid]:  # nsenter stops with its child
            self.signal(pid, signal.SIGCONT)
        self.end(coordinator)
        self.settle()

    def do_cut(self):
        coordinator = self.begin(self.over_ssh)
        node, seconds = self.rng.choice(self.lab.nodes), self.rng.choice([0.1, 0.5, 1, 2, 4, 8, 20])
        seconds = min(seconds, self.cut_most)
        self.say("  %s cut off for %g s" % (node.name, seconds))
        node.cut()
        self.tally.add("cuts")
        self.tally.add("cut_seconds", seconds)
        joins = threading.Timer(seconds, node.join)
        joins.start()
        try:
            self.end(coordinator)
        finally:
            joins.join()
        self.settle()

    @staticmethod
    def signal(pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    STEPS = [(do_rounds, 3), (do_kill_coordinator, 4), (do_interrupt, 1), (do_kill_node_program, 4),
             (do_kill_agent, 3), (do_kill_rank, 1), (do_kill_node, 1), (do_stop, 3), (do_cut, 4)]

    # The whole

    def prepare(self, node):
        os.makedirs(node.outside(FAULTS), exist_ok=True)
        self.start_agent(node)

    def start_agent(self, node):
        node.start_agent("--library", SYNC)
        self.tally.add("agents")

    def run(self):
        self.ssh = Ssh(self.lab)
        for node in self.lab:
            self.prepare(node)
        self.start()
        self.do_rounds()
        functions, weights = zip(*self.STEPS)
        for _ in range(self.length):
            function = self.rng.choices(functions, weights)[0]
            self.say(function.__name__)
            function(self)
        self.tally["seconds"] = round(time.monotonic() - self.began, 1)
        self.end_job(stop=True)
        wait_for("device memory is free", lambda: not self.lab.used())

    def said(self):
        job = ["job: %s" % self.job.said()] if self.job else []
        return [*job, self.many.said()] if self.many else job


@contextlib.contextmanager
def begin(seed, length):
    with Lab(3) as lab:
        yield Chaos(lab, seed, length, float(os.environ.get("CHAOS_CUT") or 20))


if __name__ == "__main__":
    sys.exit(chaos_run.main(begin, 40))
