#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""lien as a backend of vLLM's sleep mode, with a stand-in for vLLM (vllm_standin.py) in processes on the software driver.
See lien_test.py for what it needs. Not with vLLM."""

import os
import sys

from lien_test import MIB, Session, case, check, equal, main, stays, wait_for
from python_program import PACKAGE, Job

sys.path.append(PACKAGE)
import build_lien  # noqa: E402

WORKSPACE, WEIGHTS, CACHE = 4 * MIB, 8 * MIB, 16 * MIB
ALL = WORKSPACE + WEIGHTS + CACHE


def vllm_session(**more):
    session = Session(fresh=True, **more)
    build_lien.install(session.path("site"))  # as pip would, with the entry point
    return session


def start(session, vllm="registry", worker="", asked="1", groups=(), **more):
    """A process that has loaded vLLM's plug-ins; its memory is what vLLM's allocator has not made."""
    job = Job(session, size=WORKSPACE, PYTHONPATH=session.path("site"), LIEN_VLLM_SLEEP=asked, **more)
    equal(job("globals().update(standin=__import__('vllm_standin')) or standin.start(%r, %r, *%r)" % (
        vllm, session.folder, groups)), ["lien"], "plug-ins")
    job("globals().update(worker=standin.Worker(%d, %d%s))" % (WEIGHTS, CACHE, worker))
    job("fill(worker.weights, %d, 0x77) or fill(worker.cache, %d, 0x88)" % (WEIGHTS, CACHE))
    session.ready(job.pid)
    return job


def values(job):
    """Are weights and workspace what they were?"""
    return job("holds(worker.weights, %d, 0x77), holds(address, size, 0x5a)" % WEIGHTS, limit=20)


def moved(job):
    """MiB that lien says it moved, each time."""
    return [int(line.split()[4]) for line in job.process.said().splitlines() if " lien moved " in line]


@case()
def test_sleep_and_wake_up():
    """vLLM's memory and all else; at level 1 the weights come back, at level 2 they need not."""
    with vllm_session() as session:
        session.start_agent()
        before = session.used()
        job = start(session)
        equal(session.used() - before, ALL, "awake")
        job("worker.sleep()")
        equal(session.used() - before, 0, "asleep")
        equal(job("worker.backend.state()"), "SUSPENDED", "state")
        wait_for("its line", lambda: moved(job) == [WORKSPACE // MIB])
        job("worker.wake_up()", limit=20)
        equal((session.used() - before, values(job)), (ALL, (True, True)), "awake again")
        equal(job("worker.backend.state()"), "RUNNING", "state")
        job("worker.sleep(level=2)")
        equal(session.used() - before, 0, "asleep at level 2")
        job("worker.wake_up()")
        equal((session.used() - before, values(job)), (ALL, (False, True)), "awake after level 2")
        job("fill(worker.weights, %d, 0x77)" % WEIGHTS)  # vLLM loads them again
        job("worker.sleep()")
        job("worker.wake_up()")
        equal(values(job), (True, True), "another time")
        check("WARNING" not in job.process.said(), job.process.said())
        equal(job("worker.backend.preserves_communicators(), worker.backend.preserves_graphs_with_communicators()"),
              (True, True), "what it says of itself")


@case()
def test_wake_up_by_tag():
    """What is not vLLM's comes back with the first tag: kernels run then."""
    with vllm_session() as session:
        session.start_agent()
        before = session.used()
        job = start(session)
        job("worker.sleep(level=2)")
        job("worker.wake_up(['weights'])")
        equal(session.used() - before, WEIGHTS + WORKSPACE, "weights")
        job("fill(worker.weights, %d, 0x77)" % WEIGHTS, limit=20)
        equal(values(job), (True, True), "in use")
        job("worker.wake_up(['kv_cache'])")
        equal(session.used() - before, ALL, "both")
        job("fill(worker.cache, %d, 1)" % CACHE, limit=20)
        job("worker.sleep()")
        job("worker.wake_up(['kv_cache'])")
        equal(session.used() - before, CACHE + WORKSPACE, "the cache first")
        job("worker.wake_up(['weights'])")
        equal(values(job), (True, True), "then the weights")


def both(jobs, expression, limit=20):
    """In all at once; what they answer."""
    for job in jobs:
        job.begin(expression)
    return [job.process.line(limit) for job in jobs]


# rank, tensor-parallel group, pipeline-parallel group
FOUR = [(rank, (rank // 2 * 2, rank // 2 * 2 + 1), (rank % 2, rank % 2 + 2)) for rank in range(4)]


@case()
def test_workers_that_share_memory():
    """As NCCL's. However far apart they are, those of an engine are one transaction, and others keep what is their own."""
    with vllm_session() as session:
        session.start_agent()
        trainer = Job(session)
        session.ready(trainer.pid)
        before = session.used()
        jobs = [start(session, groups=groups) for groups in FOUR]
        for own, other in zip([*jobs, jobs[0]], [*jobs[1:], jobs[0], trainer]):
            fd = own("export(first)")
            other("globals().update(peer=take(%d, %d, size))" % (own.pid, fd))
            own("__import__('os').close(%d)" % fd)
        busy = session.path("busy")
        jobs[3]("setattr(standin.ALLOCATOR, 'busy', %r)" % busy)
        for times in 1, 2:
            with open(busy, "w"):
                pass
            for job in jobs:
                job.begin("worker.sleep()")
            wait_for("three wait for the fourth", lambda: session.used() - before == ALL + 3 * WORKSPACE)
            stays("they do", lambda: session.used() - before == ALL + 3 * WORKSPACE)
            os.unlink(busy)
            for job in jobs:
                job.end()
            equal(session.used() - before, 0, "asleep")
            wait_for("a line of each", lambda times=times: [moved(job) for job in jobs] ==
                     [[4 * WORKSPACE // MIB] * times] * 4)
            equal(session.process(trainer.pid)["offloaded_bytes"], 0, "of the trainer")
            equal(both(jobs, "worker.wake_up()"), ["ok None"] * 4, "awake")
            equal([values(job) for job in jobs], [(True, True)] * 4, "values")
            equal([job("holds(peer, size, 0x5a)", limit=20) for job in [*jobs, trainer]], [True] * 5, "shared memory")


@case()
def test_one_worker_cannot():
    """All say so, and all stay awake; one for which vLLM's own part fails is the only one that raises."""
    with vllm_session() as session:
        session.start_agent()
        before = session.used()
        jobs = [start(session, groups=(rank, (0, 1))) for rank in range(2)]
        socket = jobs[1]("__import__('os').environ['LIEN_SOCKET']")
        jobs[1]("__import__('os').environ.update(LIEN_SOCKET='/nowhere')")
        for said in both(jobs, "worker.sleep()"):
            check(said.startswith("error LienError: nothing was put to sleep: no agent listens on /nowhere: start"), said)
        equal((session.used() - before, [values(job) for job in jobs]), (2 * ALL, [(True, True)] * 2), "awake")
        jobs[1]("__import__('os').environ.update(LIEN_SOCKET=%r)" % socket)
        jobs[1]("globals().update(sleep=standin.ALLOCATOR.sleep) or setattr(standin.ALLOCATOR, 'sleep', None)")
        equal(both(jobs, "worker.sleep()"), ["ok None", "error TypeError: 'NoneType' object is not callable"], "sleep")
        equal(session.used() - before, ALL + WORKSPACE, "vLLM's of one is away")
        jobs[1]("setattr(standin.ALLOCATOR, 'sleep', sleep)")
        jobs[0]("worker.wake_up()")
        equal(both(jobs, "worker.sleep()"), ["ok None"] * 2, "sleep")
        equal(session.used() - before, 0, "asleep")


@case()
def test_without_an_agent():
    """It stays awake, and the exception says what to do; with an agent, later, it sleeps."""
    with vllm_session() as session:
        session.start_agent()
        before = session.used()
        job = start(session)
        session.stop_agent()
        job.begin("worker.sleep()")
        said = job.process.line(20)
        check(said.startswith("error LienError: nothing was put to sleep: no agent listens on ") and
              said.endswith(": start one with `lien agent`, as root"), said)
        equal((session.used() - before, values(job)), (ALL, (True, True)), "awake")
        equal(job("worker.backend.state()"), "RUNNING", "state")
        session.start_agent()
        session.ready(job.pid)
        job("worker.sleep()")
        equal(session.used() - before, 0, "asleep")
        session.stop_agent()
        job.begin("worker.wake_up()")
        said = job.process.line(20)
        check(said.startswith("error LienError: still asleep: no agent listens on "), said)
        equal((session.used() - before, job("worker.backend.state()")), (0, "SUSPENDED"), "still asleep")
        session.start_agent()
        session.ready(job.pid)
        job("worker.wake_up()")
        equal(values(job), (True, True), "awake")


@case()
def test_refused_after_vllm_sleeps():
    """vLLM would take a worker that raised for awake: so it is said, and the worker sleeps as with vLLM's backend."""
    with vllm_session() as session:
        session.start_agent("--host-limit", "1M")
        before = session.used()
        job = start(session)
        job("worker.sleep()")
        equal(session.used() - before, WORKSPACE, "asleep")
        wait_for("a line", lambda: "WARNING vllm.lien weights and key-value cache sleep, all else stays on the GPU: host "
                                   "memory: " in job.process.said())
        job("worker.wake_up()")
        equal(values(job), (True, True), "awake")


@case()
def test_a_full_gpu():
    """Somebody else has the memory when the worker is to wake up: another attempt succeeds."""
    with vllm_session(memory="48M") as session:
        session.start_agent()
        job = start(session)
        job("worker.sleep()")
        other = Job(session, size=46 * MIB)
        job.begin("worker.wake_up()")
        said = job.process.line(20)
        check(said.startswith("error LienError: still asleep: ") and "free memory on that GPU" in said, said)
        equal(job("worker.backend.state()"), "SUSPENDED", "state")
        other.process.end()
        wait_for("room", lambda: session.used() == 0)
        job("worker.wake_up()", limit=20)
        equal(values(job), (True, True), "awake")


@case()
def test_used_while_asleep():
    """What needs the memory gets it back, and the worker wakes up as always."""
    with vllm_session() as session:
        session.start_agent()
        before = session.used()
        job = start(session)
        job("worker.sleep()")
        equal(job("holds(address, size, 0x5a)", limit=20), True, "the workspace")
        equal(session.used() - before, WORKSPACE, "it is back")
        job("worker.wake_up()")
        equal(values(job), (True, True), "awake")


@case()
def test_not_asked_for():
    """vLLM's backend stays the default; the configuration can name lien's."""
    with vllm_session() as session:
        session.start_agent()
        before = session.used()
        job = start(session, asked="0")
        job("worker.sleep()")
        equal((session.used() - before, moved(job)), (WORKSPACE, []), "vLLM's")
        job("worker.wake_up()")
        job.process.end()
        session.freed(before)
        job = start(session, asked="0", worker=", 'lien'")
        job("worker.sleep()")
        equal(session.used() - before, 0, "lien's")
        job("worker.wake_up()")
        equal(values(job), (True, True), "awake")


@case()
def test_a_vllm_without_the_interface():
    """It starts, with its own sleep mode, and a line says so to who asked for lien."""
    with vllm_session() as session:
        session.start_agent()
        for vllm, why in (("before", "ModuleNotFoundError: No module named"), ("other", "AttributeError: ")):
            job = start(session, vllm)
            wait_for("a line", lambda job=job: job.process.said())
            said = job.process.said()
            check(said.startswith("WARNING vllm.lien LIEN_VLLM_SLEEP=1 has no effect, vLLM's own sleep mode stays: ") and
                  why in said and said.count("\n") == 1, said)
            job = start(session, vllm, asked="0")
            equal(job.process.said(), "", "not asked for")


if __name__ == "__main__":
    sys.exit(main())
