#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What lien does on the kernel that runs: check_kernels.py boots kernels and runs this in each.

See tests/integration/lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import contextlib
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "integration"))

from lien_test import Failure, Session, case, check, equal, main, wait_for  # noqa: E402
from train_job import SYNC, Train  # noqa: E402

# The kernels from which on lien must be able to do what not all of them allow.
SINCE = {"uprobe-multi": (6, 6), "gate": (5, 15)}
KERNEL = tuple(map(int, re.match(r"(\d+)\.(\d+)", os.uname().release).groups()))
ROUNDS = 3
SHARED = 2 * 3  # NCCL's allocations that both ranks of a job map, three of each
LIMIT_S = 240  # of a case: the processor is emulated, and other tests run
WAIT_S = 60


def able(feature):
    return KERNEL >= SINCE[feature]


def start_agent(session):
    session.start_agent("--library", SYNC, limit=WAIT_S)
    equal(session.ask("status")["attach"], "uprobe-multi" if able("uprobe-multi") else "perf", "attach")


@contextlib.contextmanager
def training(session, **options):
    """A job of two ranks, whose results must be right at its end."""
    job = Train(session, 2, **options)
    goes_on(job)
    yield job
    job.stop()
    job.finish()


def goes_on(job):
    before = [rank[0] for rank in job.status()]
    wait_for("the job goes on", lambda: all(
        rank[0] > then + 2 for rank, then in zip(job.status(), before)), WAIT_S)


@contextlib.contextmanager
def movable(job):
    """The job trains all the while where lien can hold it; elsewhere it has to pause."""
    if not able("gate"):
        job.pause()
    yield
    if not able("gate"):
        job.go()


def offload(session, job, *options):
    """The bytes that it has moved."""
    answer = session.ask("offload", "--timeout", "10000", "--retry", "30000", *options)
    equal(answer["outcome"], "done", "offload")
    check(answer["bytes"] > 0, "nothing was moved")
    equal(sum(session.process(pid)["offloaded_bytes"] for pid in job.pids), answer["bytes"], "offloaded")
    return answer["bytes"]


def restore(session, moved):
    equal(session.ask("restore")["bytes"], moved, "restored")


def nothing_missed(session):
    status = session.ask("status")
    equal([status[name] for name in ("events_lost", "unmatched_imports", "incomplete")], [0, 0, []], "status")


def doctor(session):
    outcome = session.lien("doctor", "--json")
    rows = {row["name"]: row for row in outcome.json()["checks"]}
    equal((outcome.code, [row for row in rows.values() if row["status"] == "FAIL"]), (0, []), "doctor")
    return rows


@case(LIMIT_S)
def test_doctor():
    with Session() as session:
        rows = doctor(session)
        equal({rows[name]["status"] for name in ("kernel", "btf", "uprobes", "bpf")}, {"ok"}, "doctor")


@case(LIMIT_S)
def test_seccomp():
    """A filter that refuses what it does not know kills a traced process exactly where doctor says so."""
    with Session() as session:
        start_agent(session)
        driver = session.driver(control=False, init=False,
                                prefix=(sys.executable, os.path.join(HERE, "confined.py")))
        try:
            driver("init", 0)
            driver("make", 2 << 20, 0)
            equal(session.known(driver.pid, WAIT_S)["bytes"], 2 << 20, "memory")
            killed = False
        except Failure:
            killed = driver.process.wait(WAIT_S) < 0
            check(killed, driver.process.said())
        equal(doctor(session)["uretprobe"]["status"], "warn" if killed else "ok", "doctor")


@case(LIMIT_S)
def test_tracing():
    with Session() as session:
        start_agent(session)
        with training(session) as job:
            session.ready(*job.pids, limit=WAIT_S)
            job.pause()
            graph = session.ask("graph")
            shared = [a for a in graph["allocations"] if len({place["pid"] for place in a["mappings"]}) == 2]
            equal((len(shared), {a["owner"] for a in shared}), (SHARED, {"nccl"}), "shared memory")
            equal(len(graph["communicators"]), 2 * 4, "communicators")
            processes = [session.process(pid) for pid in job.pids]
            equal(sum(process["bytes"] for process in processes), session.used(), "device memory in use")
            equal([process["complete"] for process in processes], [True] * 2, "complete")
            nothing_missed(session)
            job.go()


@case(LIMIT_S)
def test_offload():
    with Session() as session:
        start_agent(session)
        with training(session) as job:
            session.ready(*job.pids, limit=WAIT_S)
            for _ in range(ROUNDS):
                with movable(job):
                    restore(session, offload(session, job))
                goes_on(job)
            nothing_missed(session)


@case(LIMIT_S)
def test_killed_agent():
    """The next one knows all, and restores what the first has moved."""
    with Session() as session:
        start_agent(session)
        with training(session) as job:
            session.ready(*job.pids, limit=WAIT_S)
            with movable(job):
                moved = offload(session, job)
                session.kill_agent()
                start_agent(session)
                check("goes on with" in session.agent.said(), session.agent.said())
                session.ready(*job.pids, limit=WAIT_S)
                restore(session, moved)
            goes_on(job)
            with movable(job):
                restore(session, offload(session, job))
            goes_on(job)
            nothing_missed(session)


def adopt(session, job):
    """Puts the control library into the job, and has it find out, while it pauses, what was there before the
    agent. Returns why that could not be found out. What a pause may come too early or take too long for is
    tried again: a thread whose last call was not watched, a machine that is busy."""
    def attached():
        job.pause()
        answer = session.lien("attach", "--json", "--all").json()
        job.go()
        errors = [process["error"] for process in answer["processes"]]
        why = answer["adoption"] and answer["adoption"]["error"]
        return None if any(errors) or "still busy" in (why or "") else [why]
    return wait_for("attached", attached, WAIT_S)[0]


@case(LIMIT_S)
def test_attach():
    """A job that is older than the agent. Where it cannot be held, its memory stays and it goes on."""
    with Session() as session:
        with training(session, control=False) as job:
            start_agent(session)
            for pid in job.pids:
                session.known(pid, WAIT_S)
            why = adopt(session, job)
            check("cannot hold threads back" in (why or "") if not able("gate") else not why, "adoption:", why)
            goes_on(job)
            for _ in range(ROUNDS if able("gate") else 0):
                job.pause()
                restore(session, offload(session, job, "--owner", "all"))
                job.go()
                goes_on(job)


@case(LIMIT_S)
def test_detach():
    with Session() as session:
        start_agent(session)
        with training(session) as job:
            for _ in range(ROUNDS):
                session.ready(*job.pids, limit=WAIT_S)
                equal(session.ask("detach", "--all")["detached"], 2, "detached")
                equal([session.process(pid)["control"] for pid in job.pids], ["none"] * 2, "control")
                goes_on(job)
                session.ask("attach", *job.pids)
                goes_on(job)


if __name__ == "__main__":
    sys.exit(main())
