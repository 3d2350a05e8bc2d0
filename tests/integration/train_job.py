# SPDX-License-Identifier: BSD-2-Clause
"""A training job on the software driver (prog_train.c), a process for each rank."""

import os
import subprocess

from lien_test import GUARD, LIEN, Failure, Late, brief, check, children_of, equal, program

SYNC = os.path.join(os.path.dirname(LIEN), "tests", "integration", "sync", "libnccl.so.2")
GONE, WRONG = 3, 4  # exit statuses


class Train:
    """seed: what it does follows from it. iterations 0: until it is told to stop. pace: at most so
    many microseconds between two calls of the host. prefix: what runs each rank, as its child."""

    def __init__(self, session, nranks, seed=1, iterations=0, pace=300, control=True,
                 library=SYNC, prefix=(), **environment):
        self.within = bool(prefix)
        prefix = [*([LIEN, "run", "--"] if control else []), *prefix]
        self.nranks, self.seed = nranks, seed
        self.ranks = [
            session.spawn([*prefix, program("prog_train"), library, rank, nranks,
                           rank % session.device_count, seed, iterations, pace], **environment)
            for rank in range(nranks)]
        self.meet()

    def meet(self):
        line = self.ranks[0].line()
        check(line and line.startswith("id "), "rank 0: %s" % (line or self.said()))
        for rank in self.ranks[1:]:
            rank.send(line[3:])
        self.said_pids = []  # in the ranks' own namespace
        for rank in self.ranks:
            line = rank.line(60)
            check(line and line.startswith("ready "), "no rank: %s; %s" % (line, self.said()))
            self.said_pids.append(int(line.split()[1]))

    @property
    def pids(self):
        return [children_of(rank.pid)[0] if self.within else rank.pid for rank in self.ranks]

    def said(self):
        return " | ".join(brief(rank.said()[-300:]) for rank in self.ranks if rank.said())

    def status(self):
        """Of each rank: iterations of both workers, bytes verified."""
        found = []
        for number, rank in enumerate(self.ranks):
            rank.send("status")
            line = self._line(number, 20)
            check(line and line.startswith("status "), "rank %d: %s; %s" % (
                number, line, self.said()))
            found.append([int(word) for word in line.split()[1:]])
        return found

    def _line(self, number, limit):
        try:
            return self.ranks[number].line(limit)
        except Late:
            raise Late("rank %d hangs; %s" % (number, self.said())) from None

    def pause(self, limit=GUARD):
        self.ranks[0].send("pause")
        for number in range(self.nranks):
            equal(self._line(number, limit), "paused", "rank %d" % number)

    def _each(self, command, answer, limit):
        for rank in self.ranks:
            rank.send(command)
        total = 0
        for number in range(self.nranks):
            line = self._line(number, limit)
            check(line and line.startswith(answer), "rank %d: %s; %s" % (
                number, line, self.said()))
            total += int(line.split()[1])
        return total

    def mark(self, seed, limit=GUARD):
        """While it pauses: NCCL's memory is filled, to be looked at by check()."""
        self._each("mark %d" % seed, "marked ", limit)

    def check(self, seed, limit=GUARD):
        """Bytes that are as mark() left them; a rank fails where one is not."""
        return self._each("check %d" % seed, "checked ", limit)

    def go(self):
        for rank in self.ranks:
            rank.send("go")

    def stop(self):
        self.ranks[0].send("stop")

    def finish(self, limit=GUARD):
        """Ends of itself or by stop(); results are compared with what they must be."""
        for number, rank in enumerate(self.ranks):
            line = self._line(number, limit)
            while line and line.startswith("status "):
                line = self._line(number, limit)
            check(line and line.startswith("done "), "rank %d: %s; %s" % (
                number, line, self.said()))
            equal(rank.wait(limit), 0, "exit status of rank %d" % number)
            equal(line, self.expected(number, line), "results of rank %d" % number)

    def expected(self, number, line):
        """What an undisturbed run of as many iterations says at its end."""
        _, first, _, second, _ = line.split()
        done = subprocess.run(
            [program("prog_train"), "-", str(number), str(self.nranks), str(self.seed), first,
             second], stdout=subprocess.PIPE, text=True, timeout=120, check=True,
            env={"LD_LIBRARY_PATH": os.environ.get("SOFTCUDA") or
                 os.path.join(os.path.dirname(LIEN), "softcuda")})
        return done.stdout.strip()

    def ends(self, number, limit=GUARD):
        """The exit status of a rank that is to end."""
        try:
            return self.ranks[number].wait(limit)
        except Late:
            raise Failure("rank %d has not ended; %s" % (number, self.said())) from None

    def end(self):
        for rank in self.ranks:
            rank.end()
