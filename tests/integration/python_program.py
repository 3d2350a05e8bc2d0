# SPDX-License-Identifier: BSD-2-Clause
"""Python programs with memory on the software driver (python_job.py), which evaluate expressions."""

import ast
import os
import sys

from lien_test import GUARD, LIEN, MIB, ROOT, check

PACKAGE = os.path.join(ROOT, "tools", "python")
JOB = os.path.join(ROOT, "tests", "integration", "python_job.py")
SIZE = 4 * MIB


class Job:
    """A python_job.py."""

    def __init__(self, session, *args, size=SIZE, control=True, uid=None, saver=False, **environment):
        python = "/usr/bin/python3" if uid else sys.executable  # others may not run what is root's
        options = ["--torch-memory-saver"] if saver else []
        argv = [*([LIEN, "run", *options, "--"] if control else []), python, JOB, size, *args]
        environment = {"PYTHONPATH": PACKAGE, **environment}
        self.process = session.spawn_as(uid, argv, **environment) if uid else session.spawn(argv, **environment)
        line = self.process.line(30)
        check(line and line.startswith("ready "), "python_job: %s" % (line or self.process.said()))
        self.pid, self.address = (int(word, 0) for word in line.split()[1:])

    def begin(self, expression):
        self.process.send(expression)

    def end(self, limit=GUARD):
        """The value of what was begun."""
        line = self.process.line(limit)
        check(line and line.startswith("ok "), "python_job: %s" % (line or self.process.said()))
        return ast.literal_eval(line[3:])

    def __call__(self, expression, limit=GUARD):
        self.begin(expression)
        return self.end(limit)


def jobs_of(session, count, *args, **more):
    jobs = [Job(session, *args, **more) for _ in range(count)]
    if more.get("control", True):
        session.ready(*(job.pid for job in jobs))
    return jobs
