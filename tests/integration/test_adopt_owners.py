#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The probable owners of adopted memory; an offload without options moves NCCL's, or says which command
does."""

import sys

from lien_test import MIB, SOFTNCCL, Session, case, check, equal, main, stays, wait_for
from train_job import SYNC, Train

SIZE = 2 * MIB
OFF = {"NCCL_NVLS_ENABLE": "0"}


def known(session, *pids):
    for pid in pids:
        wait_for("%d is known" % pid, lambda pid=pid: session.process(pid))


def words(session, *args):
    """What a command prints, on one line."""
    outcome = session.lien(*args)
    equal(outcome.code, 0, outcome)
    return " ".join(outcome.out.split())


class Ranks:
    """Two processes with NCCL, made before there is an agent. The first one's memory: 3 that the
    other one imports for the device `to`, and 2 that it keeps for itself."""

    def __init__(self, session, to=1, **environment):
        self.owner, self.importer = (
            session.driver(control=False, device=device, **OFF, **environment) for device in (0, to))
        for driver in (self.owner, self.importer):
            driver("nccl", SOFTNCCL)
        self.shared, self.views = [], []
        for i in range(3):
            handle, va = self.owner("make", SIZE, 0)
            self.owner("fill", va, SIZE, 0x40 + i)
            fd = self.owner("export", handle)
            taken = self.importer.take(self.owner, fd)
            self.owner("close", fd)
            self.shared.append(va)
            self.views.append(self.importer("show", SIZE, taken, to))
        self.local = [self.owner("make", SIZE, 0)[1] for _ in range(2)]
        for va in self.local:
            self.owner("fill", va, SIZE, 0x11)

    @property
    def pids(self):
        return [self.owner.pid, self.importer.pid]

    def verify(self):
        for i, (va, view) in enumerate(zip(self.shared, self.views)):
            equal(self.owner("check", va, SIZE, 0x40 + i), 0, "wrong bytes at the owner, %d" % i)
            equal(self.importer("check", view, SIZE, 0x40 + i), 0, "wrong bytes at the importer, %d" % i)
        for va in self.local:
            equal(self.owner("check", va, SIZE, 0x11), 0, "wrong bytes of its own")


@case()
def test_what_ranks_share():
    """It is probably NCCL's, and moves; the rest is named with the option that moves it."""
    with Session() as session:
        ranks = Ranks(session)
        session.start_agent()
        known(session, *ranks.pids)
        answer = session.ask("offload", "--dry-run")
        equal((answer["outcome"], answer["unknown"]), ("unknown", [
            {"pid": pid, "read": False, "allocations": 0, "bytes": 0, "movable_bytes": 0}
            for pid in sorted(ranks.pids)]), "before anything was read")
        check("%d, %d: cannot be offloaded: the process may have used CUDA before it was watched: `lien "
              "attach` reads" % tuple(sorted(ranks.pids)) in words(session, "ps"), words(session, "ps"))
        said = words(session, "offload")
        check("`lien attach %d` reads it" % ranks.owner.pid in said and "nothing to" not in said, said)
        equal(session.adopt()["matched"], 3, "matched")
        rows = [(row["owner"], row["owner_inferred"], row["kind"], row["bytes"])
                for row in session.ask("mem")["rows"] if row["pid"] == ranks.owner.pid]
        equal(rows, [("nccl", True, "exported", 3 * SIZE), ("unknown", False, "local", 2 * SIZE)], "rows")
        said = words(session, "ps")
        check("* incomplete" in said and "%d, %d: can still be offloaded: only NCCL calls were missed" % tuple(
            sorted(ranks.pids)) in said and "not offloaded" not in said, said)
        process = session.process(ranks.owner.pid)
        equal((process["complete"], process["movable"], process["reason"]), (False, True, None), "process")
        equal((process["nccl_bytes"], process["nccl_inferred_bytes"]), (3 * SIZE,) * 2, "of the process")
        check("nccl (probably)" in words(session, "mem"), "mem")
        check("6.0 MiB?" in words(session, "ps"), "ps")
        check("for nccl (probably) with" in words(
            session, "holders", ranks.owner.pid, hex(ranks.shared[0])), "holders")
        for _ in range(2):
            answer = session.ask("offload")
            equal((answer["outcome"], answer["bytes"], answer["inferred_bytes"], answer["unknown"]), (
                "done", 3 * SIZE, 3 * SIZE, [{"pid": ranks.owner.pid, "read": True, "allocations": 2,
                                              "bytes": 2 * SIZE, "movable_bytes": 2 * SIZE}]), "offload")
            equal(session.used(), 2 * SIZE, "device memory in use")
            session.ask("restore")
            ranks.verify()
        said = words(session, "offload")
        check("6.0 MiB of that is probably NCCL's" in said, said)
        check("process %d: 4.0 MiB in 2 allocations, all movable" % ranks.owner.pid in said and
              "`lien offload --owner unknown` moves 4.0 MiB of this" in said, said)
        said = words(session, "offload")  # NCCL's is away
        check("nothing to" not in said and "--owner unknown" in said, said)
        equal(session.ask("offload", "--owner", "unknown")["bytes"], 2 * SIZE, "by that option")
        equal(session.used(), 0, "device memory in use")
        equal(words(session, "offload"), "nothing to offload process %d (prog_driver): 10.0 MiB offloaded "
              "already: `lien restore` puts it back process %d (prog_driver): no memory of its own on the GPUs" %
              tuple(ranks.pids), "when nothing is left")
        session.ask("restore")
        ranks.verify()


@case(long=True)
def test_everything_is_held():
    """It may be the program's after all: no call reaches it while it is away."""
    with Session() as session:
        ranks = Ranks(session)
        session.start_agent()
        known(session, *ranks.pids)
        session.adopt()
        equal(session.ask("offload")["bytes"], 3 * SIZE, "moved")
        ranks.owner.process.send("fill %d %d %d" % (ranks.shared[1], SIZE, 0x77))
        ranks.importer.process.send("check %d %d %d" % (ranks.views[2], SIZE, 0x42))
        stays("it is away", lambda: session.used() == 2 * SIZE, 0.5)
        session.ask("restore")
        check(ranks.owner.process.line(20).startswith("ok"), "it went on")
        equal(ranks.importer.process.line(20).split()[:2], ["ok", "0"], "what it reads")
        equal(ranks.importer("check", ranks.views[1], SIZE, 0x77), 0, "what it wrote")


@case()
def test_a_helper():
    """Two processes share memory on one device, which ranks do not do: its owner is unknown."""
    with Session() as session:
        ranks = Ranks(session, to=0)
        session.start_agent()
        known(session, *ranks.pids)
        equal(session.adopt()["matched"], 3, "matched")
        answer = session.ask("offload")
        equal((answer["outcome"], answer["bytes"], [row["bytes"] for row in answer["unknown"]]),
              ("unknown", 0, [5 * SIZE]), "offload")
        equal(session.ask("offload", "--owner", "all")["bytes"], 5 * SIZE, "of everybody")
        session.ask("restore")
        ranks.verify()


@case(long=True)
def test_a_job_in_training():
    """Real communicators: what each rank shares with the others in them."""
    with Session(devices=2) as session:
        job = Train(session, 2, control=False, **OFF)
        session.start_agent("--library", SYNC)
        known(session, *job.pids)
        wait_for("it is at work", lambda: job.status()[0][0] > 2)
        for number in range(3):
            job.pause()
            job.mark(number)
            if not number:
                session.adopt()
            shared = sum(len({mapping["pid"] for mapping in one["mappings"]}) == 2
                         for one in session.ask("graph")["allocations"])
            check(shared > 3, shared)
            answer = session.ask("offload")
            equal((answer["bytes"], answer["inferred_bytes"]), (shared * SIZE,) * 2, "moved")
            equal({row["pid"] for row in answer["unknown"]}, set(job.pids), "with memory of its own")
            session.ask("restore")
            check(job.check(number) > answer["bytes"], "memory that was compared")
            before = job.status()[0][0]
            job.go()
            wait_for("it goes on", lambda before=before: job.status()[0][0] > before + 2)
        job.stop()
        job.finish()


if __name__ == "__main__":
    sys.exit(main())
