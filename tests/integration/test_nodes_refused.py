#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What `lien offload --nodes` refuses, and what it tolerates: nodes that cannot be reached or are named twice,
launchers that print banners, other versions, users without a right, jobs that end, clocks that differ.

A refusal is one line, and nothing is touched. See lab.py, many.py, and lien_test.py for what it needs. Prints a
line per case, and "N passed, N failed" at the end.
"""

import contextlib
import os
import sys

from lab import Lab, LabTrain, training
from lien_test import case, check, equal, main, wait_for
from many import Many
from train_job import SYNC as LIBRARY
from users import ALICE, BOB


@contextlib.contextmanager
def two_ranks():
    """A job with a rank on each of two nodes, which goes on and gets its results in the end."""
    with Lab(2) as lab, training(lab, 1) as job:
        yield Many(lab, job)


def script(many, text):
    """A launcher: what it does before the lab's own."""
    path = many.lab.path("launch")
    with open(path, "w") as file:
        file.write("#!/bin/sh\n" + text.replace("ON", many.lab.desk.on))
    os.chmod(path, 0o755)
    return ["--launch", path + " {node}"]


@case(long=True)
def test_nodes_and_launchers():
    with two_ranks() as many:
        for code, text, words in (
                (2, "node1", ["--nodes", "node1,node1", *many.launch]),
                (2, "", ["--nodes", "", *many.launch]),
                (2, "", ["--nodes", "node1,,node2", *many.launch]),
                (2, "--launch", ["--nodes", many.lab.names]),
                (2, "", ["--nodes", many.lab.names, "--launch", ""]),
                (2, "", ["--nodes", many.lab.names, "--launch", "'"]),
                (1, "node9", ["--nodes", "node1,node9", *many.launch]),
                (1, "node", ["--nodes", many.lab.names, "--launch", "/nonexistent/launcher {node}"]),
                (1, "node", ["--nodes", many.lab.names, *script(many, "exit 7\n")]),
                (1, "node", ["--nodes", many.lab.names, *script(many, "shift; exec ON node1 \"$@\"\n")])):
            refused(many, code, text, "offload", *words)
        job_goes_on(many)


def refused(many, code, text, *argv):
    outcome = many.at.lien(*argv)
    check(outcome.code == code, "expected exit status %d: %s" % (code, outcome))
    check(text in outcome.err, "no '%s': %s" % (text, outcome))
    equal(len(outcome.err.strip().splitlines()), 1, "lines of %s" % outcome)
    equal(many.whole(), "running", "the job after %s" % outcome)
    return outcome.err


def job_goes_on(many):
    many.there_and_back()
    many.goes_on()


@case(long=True)
def test_banners():
    with two_ranks() as many:
        many.launch = script(many, "echo Welcome to $1; echo '{\"to\": \"the machine\"}'; echo; exec ON \"$@\"\n")
        job_goes_on(many)


@case(long=True)
def test_another_version():
    with two_ranks() as many:
        hello = '{"lien": "node", "protocol": 99, "version": "9.9.9"}'
        launch = script(many, "[ $1 = node1 ] || { echo '%s'; exec cat >/dev/null; }; exec ON \"$@\"\n" % hello)
        said = refused(many, 1, "node2", "offload", "--nodes", many.lab.names, *launch)
        check("9.9.9" in said, "the version that is there:", said)
        job_goes_on(many)


@case(long=True)
def test_nothing_but_banners():
    """The program there is not lien, and prints without end."""
    with two_ranks() as many:
        launch = script(many, "[ $1 = node1 ] || exec cat /dev/zero; exec ON \"$@\"\n")
        refused(many, 1, "node2", "offload", "--nodes", many.lab.names, *launch)
        job_goes_on(many)


@case(long=True)
def test_no_agent():
    with two_ranks() as many:
        many.lab[1].stop_agent()
        outcome = many.lien("offload")
        check(outcome.code == 1 and "node2" in outcome.err, outcome)
        many.lab[1].start_agent("--library", LIBRARY)
        job_goes_on(many)


@case()
def test_no_right_on_one_node():
    """The job is root's; on node2 the launcher is somebody else."""
    with two_ranks() as many:
        launch = script(many, "[ $1 = node2 ] || exec ON \"$@\"\nnode=$1\nshift\n"
                              "exec ON $node setpriv --reuid %d --regid %d --clear-groups \"$@\"\n" % (ALICE, ALICE))
        refused(many, 1, "node2", "offload", "--nodes", many.lab.names, *launch)
        job_goes_on(many)


def as_user(uid):
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]


@case(long=True)
def test_a_users_job():
    """Only root and those who may start a process on the nodes as its user can move it."""
    with Lab(2) as lab:
        for node in lab:
            node.start_agent("--library", LIBRARY)
            node.share_devices()
        job = LabTrain(lab, 1, prefix=as_user(ALICE))
        job.ready()
        many = Many(lab, job)
        for uid, works in ((BOB, False), (ALICE, True)):
            launch = script(many, "node=$1\nshift\nexec ON $node %s \"$@\"\n" % " ".join(as_user(uid)))
            outcome = many.at.lien("offload", "--nodes", lab.names, *launch)
            whole = many.whole()
            check(whole == ("offloaded" if works else "running"), "as user %d: %s; %s" % (uid, whole, outcome))
        equal(many.at.lien("restore", "--nodes", lab.names, *launch).code, 0, "restore by its user")
        equal(many.whole(), "running", "the job")
        many.goes_on()
        job.stop()
        job.finish()


@case(long=True)
def test_job_has_ended():
    with Lab(2) as lab:
        with training(lab, 1) as job:
            many = Many(lab, job)
        outcome = many.lien("offload")
        check(outcome.code in (0, 1) and outcome.err + outcome.out, "it says that there is nothing:", outcome)


@case(long=True)
def test_job_ends_meanwhile():
    """Offloads follow each other until there is no job: each is done, or one line says why not."""
    with Lab(2) as lab:
        lab.start_agents()
        job = LabTrain(lab, 2, iterations=40)
        job.ready()
        many, done = Many(lab, job), 0
        while any(rank.popen.poll() is None for rank in job.ranks):
            outcome = many.lien("offload")
            check(outcome.code in (0, 1) and len(outcome.err.strip().splitlines()) == outcome.code, outcome)
            done += outcome.code == 0
            outcome = many.lien("restore")
            check(outcome.code in (0, 1), outcome)
        check(done, "none was done while it ran")
        job.finish()
        for node in lab:
            wait_for("device memory of %s is free" % node.name, lambda node=node: not node.used())


@case(long=True)
def test_clocks_differ():
    with Lab(2) as lab:
        ahead = lab.desk.compile("clock.so", "clock.c", "-shared", "-fPIC")
        lab[0].start_agent("--library", LIBRARY)
        lab[1].start_agent("--library", LIBRARY, LD_PRELOAD=ahead)
        job = LabTrain(lab, 1)
        job.ready()
        wait_for("it is at work", lambda: job.status()[0][0] > 2)
        job_goes_on(Many(lab, job))
        job.stop()
        job.finish()


if __name__ == "__main__":
    sys.exit(main())
