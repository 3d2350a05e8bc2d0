#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Jobs whose ranks are on several nodes (lab.py): the stand-in libnccl between nodes, an agent on each.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import contextlib
import signal
import sys

from lab import Lab, LabTrain, training
from launchers import Ssh, slurm_training
from lien_test import Failure, case, check, equal, main, stays, wait_for
from train_job import GONE


def status_of(job, rank):
    job.ranks[rank].send("status")
    return int(job.ranks[rank].line().split()[1])


def waits(job, rank):
    """Until the rank gets no further. Returns where it is then."""
    while True:
        found = status_of(job, rank)
        with contextlib.suppress(Failure):
            stays("it waits", lambda found=found: status_of(job, rank) == found, 0.3)
            return found


@case()
def test_values_between_nodes():
    """Each of two nodes has one rank: all of its traffic goes over the network."""
    with Lab(2) as lab:
        LabTrain(lab, 1, iterations=30, control=False).finish()
        wait_for("device memory is free", lambda: not lab.used())


@case(long=True)
def test_values_within_and_between():
    with Lab(2) as lab:
        LabTrain(lab, 2, iterations=20, pace=0, control=False).finish()


@case()
def test_a_rank_is_behind():
    """The others wait for it over the network, and what they get is right when it goes on."""
    with Lab(2) as lab:
        job = LabTrain(lab, 2, control=False)
        for late in (1, 2):
            wait_for("it is at work", lambda: job.status()[0][0] > 2)
            job.ranks[late].signal(signal.SIGSTOP)
            before = waits(job, 0)
            job.ranks[late].signal(signal.SIGCONT)
            wait_for("it goes on", lambda before=before: job.status()[0][0] > before + 2)
        job.stop()
        job.finish()


@case(long=True)
def test_a_link_is_cut():
    """Traffic waits, and none of it is lost."""
    with Lab(2) as lab:
        job = LabTrain(lab, 1, control=False)
        for _ in range(2):
            wait_for("it is at work", lambda: job.status()[0][0] > 2)
            lab[1].cut()
            before = waits(job, 0)
            lab[1].join()
            wait_for("it goes on", lambda before=before: status_of(job, 0) > before + 2)
        job.stop()
        job.finish()


@case()
def test_a_rank_elsewhere_dies():
    with Lab(2) as lab:
        job = LabTrain(lab, 1, control=False)
        wait_for("it is at work", lambda: job.status()[0][0] > 2)
        job.ranks[1].signal(signal.SIGKILL)
        equal(job.ends(0, 10), GONE, "exit status of rank 0")


@case(long=True)
def test_agents_see_their_node():
    with Lab(3) as lab, training(lab) as job:
        for node in lab:
            equal(sorted(p["pid"] for p in node.ask("ps")["processes"]), sorted(job.pids_on(node)),
                  "processes of %s" % node.name)
        groups = [{comm["group"] for comm in node.ask("graph")["communicators"]} for node in lab]
        # Of all ranks: world, and the second thread's; of the halves. Each node has a pair of its own.
        equal([len(groups[0] & groups[1] & groups[2]), len(groups[0])], [4, 5], "groups of all nodes, and of one")


@case(long=True)
def test_each_node_while_it_pauses():
    """What one agent can do alone: NCCL's memory of ranks that rest, node by node."""
    with Lab(3) as lab, training(lab) as job:
        for number in range(2):
            job.pause()
            job.mark(number)
            used = [node.used() for node in lab]
            for node in lab:
                equal(node.ask("offload")["outcome"], "done", "offload on %s" % node.name)
            for node, before in zip(lab, used):
                check(node.used() < before, "%s has freed memory" % node.name)
            for node in lab:
                equal(node.ask("restore")["outcome"], "done", "restore on %s" % node.name)
            check(job.check(number) > 0, "memory that was compared")
            before = job.status()[0][0]
            job.go()
            wait_for("it goes on", lambda before=before: job.status()[0][0] > before + 2)


@case(long=True)
def test_ssh():
    with Lab(2) as lab:
        Ssh(lab)
        lab.start_agents()
        for node in lab:
            done = lab[0].run(["ssh", node.name, "hostname; lien status --json"])
            check(done.code == 0 and done.out.startswith(node.name + "\n{"), done)


@case(long=True)
def test_slurm():
    """A job that srun has started, with two ranks on each of three nodes, trains without a pause."""
    with Lab(3) as lab, slurm_training(lab) as (number, _):
        for node in lab:
            equal(len(node.ask("ps")["processes"]), 2, "processes of %s" % node.name)
        done = lab[0].run(["srun", "--jobid", number, "--overlap", "-N1", "-n1", "-w", "node3", "hostname"])
        equal(done.out, "node3\n", "what srun starts meanwhile")


if __name__ == "__main__":
    sys.exit(main())
