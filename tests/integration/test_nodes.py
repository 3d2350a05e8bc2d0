#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Offloads and restores of a job on three nodes that trains without a pause: through Slurm, and over ssh.

NODES_ROUNDS (2): how many of each, at random moments. See lab.py, launchers.py and many.py, and lien_test.py for
what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import os
import random
import re
import sys

from chaos_run import short_run
from lab import Lab, training
from launchers import SSH, Slurm, SlurmTrain, Ssh, needs, slurm_training
from lien_test import SEED, at_a_moment, case, check, equal, main
from many import Many

ROUNDS = int(os.environ.get("NODES_ROUNDS") or 2)


def rounds(many, *more):
    dice = random.Random(SEED)
    for _ in range(ROUNDS):
        at_a_moment(dice, 0.5)
        many.there_and_back(*more)
        many.goes_on()


@case(600 + 20 * ROUNDS, long=True)
def test_slurm():
    with Lab(3) as lab, slurm_training(lab) as (number, job):
        rounds(Many(lab, job, "--launch", "srun --jobid %d --overlap -N1 -n1 -w {node}" % number))


@case(600 + 20 * ROUNDS, long=True)
def test_ssh():
    with Lab(3) as lab:
        Ssh(lab)
        with training(lab) as job:
            rounds(Many(lab, job, "--launch", "ssh {node}"))


@case(600 + 20 * ROUNDS, long=True)
def test_all_memory():
    with Lab(3) as lab, training(lab) as job:
        rounds(Many(lab, job), "--owner", "all")


@case(long=True)
def test_ssh_preset():
    with Lab(2) as lab:
        Ssh(lab)
        with training(lab) as job:
            many = Many(lab, job, "--ssh")
            many.there_and_back()
            many.goes_on()


@case(long=True)
def test_slurm_preset():
    """Slurm says which nodes and processes: those of another job stay."""
    with Lab(2) as lab:
        slurm = Slurm(lab)
        lab.start_agents()
        number, other = slurm.allocate(), slurm.allocate()
        job, another = SlurmTrain(lab, number), SlurmTrain(lab, other, seed=2)
        job.ready()
        another.ready()
        many = Many(lab, job, "--slurm", number)
        for command, whole in (("offload", "offloaded"), ("restore", "running")):
            outcome = lab[0].lien(command, "--json", "--slurm", number)
            check(outcome.code == 0 and outcome.json()["outcome"] == "done", outcome)
            equal(many.whole(), whole, "the job")
            equal(Many(lab, another).whole(), "running", "the other job")
        many.goes_on()
        for one in (job, another):
            one.stop()
            one.finish()


@case(long=True)
def test_one_group():
    """An offload by a communicator whose ranks are on all nodes, in one answer for all nodes."""
    with Lab(2) as lab, training(lab) as job:
        many = Many(lab, job)
        found = many.ask("comms")["communicators"]
        group = [comm["group"] for comm in found if comm["nranks"] == job.nranks][0]
        equal(sorted((comm["node"], comm["rank"]) for comm in found if comm["group"] == group),
              [("node1", 0), ("node1", 1), ("node2", 2), ("node2", 3)], "ranks of all nodes")
        dot = many.lien("graph").out
        team = re.search(r"(c\d+) \[label=\"[^\"]* of 4 ranks[^\"]*%s" % group, dot)
        check(team, "no communicator of all ranks", dot)
        equal(sorted(re.findall(r"p\d+ -> %s \[label=\"(rank \d)" % team[1], dot)),
              ["rank %d" % rank for rank in range(4)], "its ranks in the picture")
        equal(many.ask("offload", "--comm", group)["outcome"], "done", "offload")
        away = [(process["node"], process["offloaded_bytes"] > 0) for process in many.ask("ps")["processes"]]
        equal(sorted(away), [("node1", True)] * 2 + [("node2", True)] * 2, "what is away")
        equal(many.ask("restore")["outcome"], "done", "restore")
        many.goes_on()


@case(1800, long=True)
def test_chaos():
    """A short run of chaos_nodes.py. See there."""
    needs(*SSH)
    short_run("chaos_nodes.py", 10, CHAOS_CUT="2")


if __name__ == "__main__":
    sys.exit(main())
