#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Offloads of a job that never pauses and knows nothing of lien (prog_train.c): it is brought to rest
by holding its threads at NCCL's calls, and letting in those that are behind until all ranks are level."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import faults
from coordinate import Part
from held import Held
from lien_test import (
    LIEN, MIB, SEED, Session, at_a_moment, case, check, children_of, equal, main, program,
    stays, wait_for)
from nccl_rank import Rank, unique_id
from shapes import shapes
from train_job import SYNC, Train



@contextlib.contextmanager
def training(nranks=2, jobs=1, **options):
    """A session, and jobs that are at work; they must come to a good end unless they are ended."""
    with Session(devices=nranks, memory="512M") as session:
        session.start_agent("--library", SYNC)
        made = [Train(session, nranks, seed=number + 1, **options) for number in range(jobs)]
        for job in made:
            session.ready(*job.pids)
            wait_for("it is at work", lambda job=job: job.status()[0][0] > 2)
        yield (session, *made)
        for job in made:
            if job.ranks:
                job.stop()
                job.finish()


def goes_on(job):
    before = job.status()
    wait_for("the job goes on", lambda: all(
        now[0] > then[0] for now, then in zip(job.status(), before)))


def stands(job, why):
    before = job.status()
    stays(why, lambda: job.status() == before)


def all_held(session, job):
    """Each rank, and its other thread, has come to a call that waits for its memory, or for one that does. Until then
    it computes on."""
    wait_for("each rank is held", lambda: {
        thread["pid"] for thread in session.ask("status")["held"]} >= set(job.pids))

    def is_still():
        before = job.status()
        time.sleep(0.2)
        return job.status() == before
    wait_for("the job has come to a stand", is_still)


def held(session, job):
    """What the agent says of its held threads: {(call, on_use)}"""
    return {(thread["call"], thread["on_use"]) for thread in session.ask("status")["held"]
            if thread["pid"] in job.pids}


def rounds(nranks, count, *options, pause=0.1):
    """Offloads at any moment. A rank that does not come to rest within the timeout has one refused,
    as on a busy machine; --retry tries again, so that all succeed."""
    moments = random.Random(SEED)
    with training(nranks) as (session, job):
        for _ in range(count):
            at_a_moment(moments, pause)
            outcome = session.lien("offload", "--json", "--timeout", "3000", "--retry", "40000",
                                   *options)
            check(outcome.code == 0, outcome)
            check(json.loads(outcome.out)["bytes"] > 0, "nothing was moved")
            # A rank that unmaps what is away has the agent restore it.
            wait_for("the memory is back", lambda: session.lien("restore").code == 0)
            goes_on(job)
        equal(session.ask("status")["incomplete"], [], "incomplete")


@case(long=True)
def test_two_ranks_never_pause():
    rounds(2, 20)


@case(long=True)
def test_four_ranks_never_pause():
    rounds(4, 12)


@case()
def test_all_memory_of_ranks_that_never_pause():
    """They map, fill, compare and unmap memory of their own all the time."""
    rounds(2, 12, "--owner", "all")


@case(long=True)
def test_two_threads_that_nobody_has_counted():
    """Joined while they run, and NCCL tells no counts. Each thread has collectives of its own under way,
    which the other rank launches in another order. An offload may fail; the job always goes on: asking a
    device must not make a thread wait that is to launch what the other rank's device waits for."""
    moments = random.Random(SEED)
    with Session(devices=2, memory="256M") as session:
        job = Train(session, 2, control=False)
        goes_on(job)
        session.start_agent()
        session.lien("attach", "--all", limit=60)
        succeeded = 0
        for _ in range(16):
            at_a_moment(moments, 0.2)
            outcome = session.lien("offload", "--owner", "all", "--timeout", "700")
            check(outcome.code == 0 or "the job runs on" in outcome.err, outcome)
            succeeded += outcome.code == 0
            if outcome.code == 0:
                session.ask("restore")
            goes_on(job)
        check(succeeded, "none succeeded")
        job.end()


@case()
def test_use_while_away():
    """Every use waits, and goes on after the restore."""
    with training() as (session, job):
        equal(held(session, job), set(), "held before")
        session.ask("offload", "--retry", "20000")
        all_held(session, job)
        stands(job, "a job whose memory is away went on")
        found = held(session, job)
        check(found, "nobody is said to be held")
        for call, on_use in found:
            check(call.startswith("nccl"), call)
            equal(on_use, "wait", call)
        said = session.lien("status").out
        check("held back: thread" in said and "until a restore" in said, said)
        session.ask("restore")
        goes_on(job)
        equal(held(session, job), set(), "held after the restore")


@case()
def test_on_use_restore():
    with training() as (session, job):
        session.ask("offload", "--retry", "20000", "--on-use", "restore")
        goes_on(job)
        equal({session.process(pid)["state"] for pid in job.pids}, {"running"}, "states")
        used = [pid for pid in job.pids if session.process(pid)["used_in"]]
        said = " ".join(session.lien("ps").out.split())
        check(used and all("process %d (prog_train) has its memory back: it called" % pid in said for pid in used), said)
        session.ask("offload", "--retry", "20000", "--on-use", "wait")
        session.ask("restore")
        equal([session.process(pid)["used_in"] for pid in job.pids], [None] * len(job.pids), "after a restore as asked")


@case()
def test_ends_while_away():
    """What ends a communicator has its memory restored; a process that just ends needs none."""
    with Session() as session:
        session.start_agent()
        for end in ("destroy", "abort"):
            rank = Rank(session, allocate=4 * MIB, control=True)
            comm = rank.made("init-rank", 1, 0, unique_id(5))
            session.ready(rank.pid)
            equal(session.ask("offload")["bytes"], 4 * MIB, "moved")
            equal(rank(end, comm), 0, end)
            equal(session.process(rank.pid)["bytes"], 0, "bytes after " + end)
            equal(session.used(), 0, "device memory in use after " + end)
            rank.process.close_input()
            equal(rank.process.wait(10), 0, "exit status")
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        session.ask("offload", "--owner", "all")
        driver.process.close_input()
        equal(driver.process.wait(10), 0, "exit status of one that ends while its memory is away")
        session.forgotten(driver.pid)
        wait_for("the host's memory is free", lambda: not session.ask(
            "status")["host"]["held_bytes"])


@case(long=True)
def test_on_use_is_each_offloads_own():
    """One job waits, the other, offloaded later, is restored when it needs its memory."""
    with training(jobs=2) as (session, first, second):
        def offload(job, on_use):
            pids = [word for pid in job.pids for word in ("--pid", pid)]
            session.ask("offload", "--retry", "20000", "--on-use", on_use, *pids)
        offload(first, "wait")
        offload(second, "restore")
        goes_on(second)
        all_held(session, first)
        stands(first, "a job that was to wait went on")
        equal({on_use for _, on_use in held(session, first)}, {"wait"}, "of the first")
        session.ask("restore")
        goes_on(first)


def second_offload_fails(session, rank):
    """NCCL's memory is away, and an offload of the rest fails: its gate goes back. Returns the rank's faults."""
    own = faults.Faults(session, rank.inner_pid)
    own.arm(faults.FAIL, times=1000000, function="cuMemGetAccess")
    session.refused("offload", "--owner", "all", text="cuMemGetAccess")
    own.disarm()
    rank.process.send("free-nothing")
    equal(rank.process.line(5)[:3], "ok ", "a call that only the second would have held")
    return own


@case(long=True)
def test_a_second_offload_that_fails():
    """Then the first one's gate holds what it held before, and lets go of what it did not."""
    with Session(LIEN_PLAIN="0") as session:
        faults.folder(session)
        session.start_agent()
        rank = Rank(session, allocate=4 * MIB, control=True)
        comm = rank.made("init-rank", 1, 0, unique_id(5))
        rank("buffer", 4 * MIB)
        session.ready(rank.pid)
        session.ask("offload")
        rank("free-nothing")
        own = second_offload_fails(session, rank)
        own.arm(faults.DELAY, delay_ms=3000, function="cuMemGetAccess")
        offload = session.spawn([LIEN, "offload", "--owner", "all"])
        wait_for("it is at rest", lambda: own.record.hit)
        rank.process.send("free-nothing")
        wait_for("the call is held", lambda: session.ask("status")["held"])
        offload.signal(signal.SIGINT)
        check(offload.wait(20), "the offload was not cancelled: %s" % offload.said())
        equal(rank.process.line(5)[:3], "ok ", "the call that the second one held")
        rank.process.send("call broadcast %s 1 2 1" % comm)
        wait_for("the call is held", lambda: session.ask("status")["held"])
        stays("a call to NCCL went on", lambda: session.ask("status")["held"])
        equal(session.ask("restore")["bytes"], 4 * MIB, "bytes")
        equal(rank.process.line(5)[:2], "ok", "the call to NCCL")


@case()
def test_a_planned_offload_that_is_undone():
    """It has made no gate of its own: the one for what is away holds what it held, also after later ones."""
    with Session(LIEN_PLAIN="0") as session:
        faults.folder(session)
        session.start_agent()
        rank = Rank(session, allocate=4 * MIB, control=True)
        rank.made("init-rank", 1, 0, unique_id(5))
        rank("buffer", 4 * MIB)
        session.ready(rank.pid)
        session.ask("offload")
        part = Part(session)
        part.until(state="planned")
        part.say("undo")
        check(not part.end()["ok"], part.result)
        second_offload_fails(session, rank)
        session.ask("restore")


def held_until_restored(session, driver, command, call):
    """The answer to a command that is held in that call until a restore."""
    driver.process.send(command)
    wait_for(command + " is held", lambda: [
        thread["call"] for thread in session.ask("status")["held"]] == [call])
    session.ask("restore")
    answer = driver.process.line(10).split()
    equal(answer[0], "ok", command)
    return answer


@case()
def test_handles_while_away():
    """A call that passes a handle waits before that is looked up: afterwards another one means the memory."""
    with Session() as session:
        session.start_agent()
        driver = shapes(session, control=True)
        handle, va = driver("create", 2 * MIB, 0, 1), driver("reserve", 2 * MIB)
        driver("map", va, 2 * MIB, handle, 0)
        driver("access", va, 2 * MIB, 0, 3)
        driver("fill", va, 2 * MIB, 0x2a)
        session.ready(driver.pid)
        other = driver("reserve", 2 * MIB)
        for command, call in {
                "map %d %d %d 0" % (other, 2 * MIB, handle): "cuMemExportToShareableHandle",
                "retain %d" % va: "cuMemRetainAllocationHandle",
                "access %d %d 0 3" % (va, 2 * MIB): "cuMemSetAccess",
                "export %d" % handle: "cuMemExportToShareableHandle"}.items():
            moved = session.ask("offload", "--owner", "all")
            equal(moved["bytes"], 2 * MIB, "moved before %s: %s" % (command, moved["left"]))
            answer = held_until_restored(session, driver, command, call)
            if command.startswith("retain"):
                equal(int(answer[1], 0), handle, "the retained handle")
                driver("release", handle)
        driver("release", driver("import", int(answer[1], 0)))
        driver("close", answer[1])
        driver("unmap", other, 2 * MIB)
        equal(driver("check", va, 2 * MIB, 0x2a), 0, "wrong bytes")
        session.ask("offload", "--owner", "all")
        driver("release", handle)  # has the memory restored for it
        equal(session.process(driver.pid)["state"], "running", "state")
        session.ask("offload", "--owner", "all")
        driver("unmap", va, 2 * MIB)
        equal(session.used(), 0, "device memory in use")
        equal(session.ask("status")["held"], [], "held")


@case()
def test_registrations_while_away():
    """No card and no processor gets memory that is being moved or is away; other memory is registered."""
    with Session() as session:
        session.start_agent()
        driver = shapes(session, control=True)
        driver("make", 2 * MIB, 0)
        for command in "ibv-reg", "umem-reg", "gdr-pin":  # opens the library, which is then probed
            driver.refused(command, 4096, 4096)
        wait_for("the libraries are probed", lambda: {"ibverbs", "mlx5", "gdrapi"} <= {
            row["library"] for row in session.ask("status")["libraries"]
            if "tests/integration" in row["path"]})  # the machine has some, too
        _, va = driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        for command, call, undo in (
                ("ibv-reg %d 4096" % va, "ibv_reg_mr", "ibv-dereg"),
                ("ibv-reg-iova2 %d 4096 0" % (va + 2 * MIB - 4096), "ibv_reg_mr_iova2", "ibv-dereg"),
                ("ibv-reg-ex %d 4096" % va, "ibv_reg_mr_ex", "ibv-dereg"),
                ("umem-reg %d 4096" % va, "mlx5dv_devx_umem_reg", "umem-dereg"),
                ("gdr-pin %d 4096" % va, "gdr_pin_buffer", "gdr-unpin")):
            moved = session.ask("offload", "--owner", "all")
            equal(moved["bytes"], 4 * MIB, "moved before %s: %s" % (command, moved["left"]))
            driver.refused("ibv-reg", 4096, 4096)
            answer = held_until_restored(session, driver, command, call)
            left = session.ask("offload", "--owner", "all", "--dry-run")["left"]
            equal([row["bytes"] for row in left], [2 * MIB], "registered by " + command)
            driver(undo, answer[1])


@case()
def test_other_memory_is_registered_while_some_is_away():
    """The gate holds a range, from the lowest to the highest memory that is away."""
    with Session() as session:
        session.start_agent()
        driver = shapes(session, control=True)
        low, high = (driver("reserve", 2 * MIB, where << 32) for where in (4, 0x7fff))
        heap = driver("pages", 2 * MIB)
        check(low < heap < high, "addresses", low, heap, high)
        for at in low, high:
            driver("map", at, 2 * MIB, driver("create", 2 * MIB, 0), 0)
            driver("access", at, 2 * MIB, 0, 3)
        driver("ibv-dereg", driver("ibv-reg", heap, 4096))  # opens the library, which is then probed
        session.ready(driver.pid)
        for on_use in "wait", "restore":
            equal(session.ask("offload", "--owner", "all", "--on-use", on_use)["bytes"], 4 * MIB, "moved")
            driver("ibv-dereg", driver("ibv-reg", heap, 4096))
            equal(session.process(driver.pid)["state"], "offloaded", "state")
            session.ask("restore")


@case()
def test_memory_that_nccl_has_handed_out():
    """The application works on ncclMemAlloc() memory by itself, and waits where it does."""
    with Session() as session:
        session.start_agent()
        rank = Rank(session, allocate=4 * MIB, control=True)
        comm = rank.made("init-rank", 1, 0, unique_id(5))
        va = rank("mem-alloc", 2 * MIB)[-1]
        rank("set", va, 2 * MIB, 7)
        session.ready(rank.pid)
        check(session.ask("offload")["bytes"] >= 2 * MIB, "moved")
        rank.process.send("set %d %d 9" % (va, 2 * MIB))
        wait_for("it is held", lambda: session.ask("status")["held"])
        session.ask("restore")
        equal(rank.process.line().split()[0], "ok", "set")
        rank("holds", va, 2 * MIB, 9)
        registered = rank("register", comm, va, 2 * MIB)[-1]
        for ends in "deregister %d %d" % (comm, registered), "mem-free %d" % va:
            session.ask("offload")
            equal(rank.process.ask(ends).split()[0], "ok", ends)
            equal(session.process(rank.pid)["state"], "running", "state, after " + ends)


@case()
def test_memory_that_kernels_use_without_nccl():
    """In a rank with an ncclDevComm, the default offload holds more than NCCL's calls."""
    with Session() as session:
        session.start_agent()
        rank = Rank(session, allocate=4 * MIB, control=True)
        rank("device-comm", rank.made("init-rank", 1, 0, unique_id(5)))
        session.ready(rank.pid)
        row, = session.ask("graph")["allocations"]
        check(session.ask("offload")["bytes"] == row["bytes"], "moved")
        va, = {int(mapping["address"], 16) for mapping in row["mappings"]}
        rank.process.send("set %d %d 9" % (va, 2 * MIB))
        wait_for("it is held", lambda: session.ask("status")["held"])
        session.ask("restore")
        equal(rank.process.line().split()[0], "ok", "set")
        rank("holds", va, 2 * MIB, 9)


def asked(session):
    return session.ask("status")["loop"]["requests"]


@case(long=True)
def test_request_during_the_agents_own_restore():
    """It is handled after that restore; during another client's transaction it is refused."""
    with Session(devices=1, memory="256M") as session:
        faults.folder(session)
        session.start_agent()
        driver, other = session.driver(), session.driver()
        handle, va = driver("make", 2 * MIB, 0)
        driver("fill", va, 2 * MIB, 0x2b)
        slow = faults.Faults(session, other.inner_pid)

        def restores_take_long():
            slow.arm(faults.DELAY, function="cuMemImportFromShareableHandle", delay_ms=4000)

        fd = driver("export", handle)
        seen = other("show", 2 * MIB, other.take(driver, fd), 0)
        driver("close", fd)
        session.ready(driver.pid, other.pid)
        session.ask("offload", "--owner", "all")
        restores_take_long()
        client = session.spawn([LIEN, "restore"])
        wait_for("a user's restore", lambda: session.ask("status")["transaction"])
        session.refused("restore", text="another transaction is under way")
        equal(client.wait(20), 0, client.said())
        for args in (["restore"], ["offload", "--owner", "all"], ["arena", "--release"],
                     ["detach", other.pid]):
            moved = session.ask("offload", "--owner", "all")
            equal(moved["bytes"], 2 * MIB, moved)
            restores_take_long()
            driver.process.send("release %d" % handle)
            wait_for("the agent restores", lambda: (
                session.ask("status")["transaction"] or {}).get("kind") == "restore")
            before, polls = asked(session), 0
            client = session.spawn([LIEN, *args])
            while asked(session) - before <= polls + 1 and client.popen.poll() is None:
                polls += 1
            equal(client.popen.poll(), None, "%s did not wait: %s" % (args, client.said()))
            code = client.wait(20)
            equal(code, 0, "%s: %s" % (args, client.said()))
            equal(driver.process.line(10).split()[0], "ok", "release")
            session.ask("restore")
            for process, address in ((driver, va), (other, seen)):
                equal(process("check", address, 2 * MIB, 0x2b), 0, "wrong bytes")
            handle = driver("retain", va)


@case()
def test_signal_blocked():
    """A thread that cannot be held back is named, and nothing is touched."""
    with training(TRAIN_BLOCKS_SIGNALS="1") as (session, job):
        said = session.refused("offload", "--timeout", "1500", text="blocks the signal")
        # Noticed before the job is at rest; or, where its threads were between two calls, before the first unmap.
        found = re.search(r"thread \d+ of process (\d+) blocks|process (\d+), gate: thread \d+, which blocks", said)
        check(found, said)
        pid = int(found[1] or found[2])
        check(pid in job.pids, said)
        check("the job runs on" in said, said)
        goes_on(job)
        equal(held(session, job), set(), "held")


@case(long=True)
def test_pid_namespace():
    """Threads have other numbers there, and are let in by those."""
    with contextlib.ExitStack() as stack:
        first = subprocess.Popen(["unshare", "-p", "-f", "--kill-child", "sleep", "600"])
        stack.callback(first.wait)
        stack.callback(first.kill)
        wait_for("the namespace is there", lambda: children_of(first.pid))
        session, job = stack.enter_context(training(
            prefix=("nsenter", "-p", "-t", str(children_of(first.pid)[0]), "--")))
        for _ in range(3):
            session.ask("offload", "--retry", "20000")
            all_held(session, job)
            stands(job, "a job whose memory is away went on")
            session.ask("restore")
            goes_on(job)


@case()
def test_agent_dies():
    """The gate stays shut while something is away, with or without an agent, and opens when nothing is."""
    with training() as (session, job):
        session.ask("offload", "--retry", "20000")
        all_held(session, job)
        session.kill_agent()
        stands(job, "a job whose memory is away went on without an agent")
        session.start_agent("--library", SYNC)
        session.ready(*job.pids)
        stands(job, "and with the next one")
        session.ask("restore")
        goes_on(job)


@case(long=True)
def test_agent_dies_while_the_job_is_brought_to_rest():
    """The job goes on without an agent, instead of waiting for nobody."""
    with training(TRAIN_BLOCKS_SIGNALS="1") as (session, job):
        client = session.spawn([LIEN, "offload", "--timeout", "60000"])
        wait_for("it is being brought to rest", lambda: held(session, job))
        session.kill_agent()
        check(client.wait() not in (None, 0), "exit status of the client")
        goes_on(job)
        session.start_agent("--library", SYNC)
        session.ready(*job.pids)
        equal(held(session, job), set(), "held")
        goes_on(job)


NEXT = os.path.realpath(os.path.join(os.path.dirname(SYNC), "..", "next"))
NEXT_CUDA = os.path.join(NEXT, "libcuda.so.1")


class Gated:
    """prog_gated.c, on a driver that exports all that CUDA 13.0's does."""

    def __init__(self, session, size=2 * MIB):
        self.session = session
        self.process = session.spawn([LIEN, "run", "--", program("prog_gated"), "0", size],
                                     LD_LIBRARY_PATH=NEXT)
        check((self.process.line() or "").startswith("ready"), self.process.said())
        self.pid = self.process.pid
        session.ready(self.pid)

    def __call__(self, command, *args):
        return int(self.process.ask(" ".join(map(str, (command, *args)))).split()[1])

    def begin(self, name, address=None):
        """A thread that calls the function: its number."""
        self.process.send("at %d %s" % (address, name) if address else "call " + name)
        return int(self.process.line().split()[1])

    def held(self):
        return sorted(thread["call"] for thread in self.session.ask("status")["held"]
                      if thread["pid"] == self.pid)


@contextlib.contextmanager
def gated():
    """A session, and a process with memory that holds 42."""
    with Session() as session:
        session.start_agent("--library", NEXT_CUDA)
        job = Gated(session)
        job("fill", 42)
        yield session, job


def decided():
    """{function: free, all or nccl}: what was decided of all that CUDA 13.0 exports."""
    with open("tests/data/cuda-13.0.gated", encoding="ascii") as file:
        return dict(line.split() for line in file)


@case(long=True)
def test_every_function_of_the_driver():
    """While all memory is away each is held, except those known to be harmless; so is a function that no table
    knows."""
    own = subprocess.run(["nm", "-D", os.path.join(os.environ.get("SOFTCUDA") or "build/softcuda",
                                                   "libcuda.so.1")],
                         stdout=subprocess.PIPE, text=True, check=True).stdout
    real = {line.split()[-1] for line in own.splitlines() if " T " in line}
    functions = {name: kind for name, kind in decided().items() if name not in real}
    functions["cuFutureFill"] = "all"
    check(len(functions) > 400, "only %d functions" % len(functions))
    with gated() as (session, job):
        session.ask("offload", "--owner", "all")
        for name in functions:
            job.begin(name)
        wait_for("each has returned or is held",
                 lambda: job("count") + len(job.held()) == len(functions))
        held_names = job.held()
        held_now = set(held_names)
        equal(sorted(name for name in held_now if functions[name] == "free"), [],
              "held, and harmless")
        # Calls whose arguments name memory: with zeros for arguments it is none of that.
        named = re.compile(r"cu(Mem(cpy(HtoD|DtoH|DtoD|Peer)?(Async)?|set(D8|D16|D32)(Async)?|"
                           r"Advise|PrefetchAsync|MapArrayAsync)|Stream(Write|Wait)Value(32|64)|"
                           r"PointerSetAttribute)(_v2)?(_ptds|_ptsz)?")
        missing = sorted(name for name, kind in functions.items() if kind != "free" and
                         name not in held_now and not named.fullmatch(name))
        # Each is called once. If two have one number (loader/probes/functions.h), both are shown by one's name.
        twice = sorted(name for name in held_now if held_names.count(name) > 1)
        equal(len(missing), len(held_names) - len(held_now),
              "not held, and of unknown effect: %s; shown twice: %s" % (missing, twice))
        check("cuFutureFill" in held_now and len(held_now) > 150, "held: %d" % len(held_now))
        session.ask("restore")
        wait_for("they go on", lambda: job("count") == len(functions))
        equal(job("check", 42), 0, "wrong bytes")


@case()
def test_whole_ranges_are_compared():
    """A call that begins below the memory that is away, and reaches into it, is held."""
    with Session() as session:
        session.start_agent("--library", NEXT_CUDA)
        job = Gated(session)
        at = job("address")
        names = ["cuMemsetD8_v2", "cuMemsetD16_v2", "cuMemsetD32_v2", "cuMemcpyDtoD_v2",
                 "cuMemsetD32Async", "cuMemsetD16Async", "cuMemPrefetchAsync"]
        session.ask("offload", "--owner", "all")
        for name in names:
            job.begin(name, at - 32)  # 64 of something
        wait_for("held", lambda: job.held() == sorted(names))
        # D8 and copies: 64 bytes, that end where it begins; pairs and fours of bytes reach further.
        for name in names:
            job.begin(name, at - 64)
        reach = ["cuMemsetD16_v2", "cuMemsetD32_v2", "cuMemsetD16Async", "cuMemsetD32Async"]
        wait_for("the others return", lambda: job("count") == len(names) - len(reach))
        wait_for("held", lambda: job.held() == sorted(names + reach))
        session.ask("restore")
        wait_for("they go on", lambda: job("count") == 2 * len(names))


@case()
def test_whatever_a_program_does_with_signals():
    """It blocks all that it can, and handles all that it can: its threads are held."""
    with gated() as (session, job):
        job("block")
        job("idle")
        session.ask("offload", "--owner", "all")
        job.begin("cuMemsetD8_v2", job("address"))
        wait_for("it is held", lambda: job.held() == ["cuMemsetD8_v2"])
        # All threads have to do this, the held one, too; until then no thread can be made.
        equal(job("setuid"), 0, "setuid() while a thread is held")
        equal(job("count"), 0, "calls that have returned")
        session.ask("restore")
        wait_for("it goes on", lambda: job("count") == 1)
        equal(job("check", 42), 64, "bytes that it has set since")


@case()
def test_held_while_it_loads_a_library():
    """A library's constructor waits for memory that is away: nobody else can use the loader then."""
    with gated() as (session, job):
        session.ask("offload", "--owner", "all")
        job.process.send("load " + session.compile("libsets.so", "sets_at_load.c", "-shared", "-fPIC"))
        job.process.line()
        wait_for("it is held", lambda: job.held() == ["cuMemsetD8_v2"])
        equal(job("more"), 0, "memory that is made meanwhile")
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "bytes")
        session.ask("restore")
        wait_for("it goes on", lambda: job("count") == 1)
        equal(job("check", 42), 64, "bytes that it has set since")


@case()
def test_held_by_what_is_not_followed():
    """A logical endpoint keeps memory that is bound to it, and lien does not know which; nor what functions newer than
    lien do."""
    with Session() as session:
        session.start_agent("--library", NEXT_CUDA)
        jobs = {name: Gated(session) for name in (
            "cuLogicalEndpointBindAddr", "cuFutureBind", "cuFutureFill", "cuMemPoolTrimTo")}
        for name, job in jobs.items():
            job.begin(name)
            wait_for("it has returned", lambda job=job: job("count") == 1)
        result = session.ask("offload", "--owner", "all")
        equal(sorted((row["pid"], "logical endpoint" in row["reason"]) for row in result["left"]),
              [(jobs["cuLogicalEndpointBindAddr"].pid, True), (jobs["cuFutureBind"].pid, True)], result)
        equal([row["pid"] for row in result["processes"]],  # one call has failed, the other holds nothing
              [jobs["cuFutureFill"].pid, jobs["cuMemPoolTrimTo"].pid], result)
        session.ask("restore")


@case()
def test_idle_thread_that_blocks_the_signal():
    """It makes no call before the memory has gone, and would not be held when it does."""
    with gated() as (session, job):
        job("block", "all")
        tid = job("idle")
        session.refused("offload", "--owner", "all", "--timeout", "1000",
                        text="thread %d of process %d blocks the signal" % (tid, job.pid))
        equal(job("check", 42), 0, "wrong bytes")
        job("wake")
        session.ask("offload", "--owner", "all")
        session.ask("restore")
        equal(job("check", 42), 0, "wrong bytes")


@case(long=True)
def test_thread_that_blocks_the_signal_while_memory_is_moved():
    """It is not there when the job is brought to rest, and comes when all is saved."""
    with Session() as session:
        faults.folder(session)
        session.start_agent("--library", NEXT_CUDA)
        job = Gated(session)
        job("fill", 42)
        job("block", "all")
        at = job("address")
        fault = faults.Faults(session, job.pid)
        fault.arm(faults.DELAY, function="cuMemUnmap", delay_ms=3000)
        client = session.spawn([LIEN, "offload", "--owner", "all"])
        wait_for("its memory is saved, and not yet unmapped", lambda: fault.record.hit)
        job.begin("cuMemsetD8_v2", at)
        check(client.wait() not in (0, None), "exit status of an offload that lost a write")
        said = client.said()
        check("cuMemsetD8_v2" in said and "blocks the signal" in said and "is lost" in said, said)


def closes_its_sockets(session, job, phase, op):
    """While an order is obeyed, and the one thread that uses the driver is held."""
    holds = Held(job.pid)
    try:
        client = session.spawn([LIEN, op, *(["--owner", "all"] if op == "offload" else [])])
        holds.until(phase, True)
        if not job.held():
            job.begin("cuMemsetD8_v2", job.at)
            wait_for("its thread is held", job.held)
        equal(job("close"), 0, "closed")
    finally:
        holds.let_go()
    equal(client.wait(30), 1, "exit status of the client")


@case()
def test_sockets_are_closed_while_all_threads_are_held():
    """None of them makes a call that would start another control thread: they must not wait forever."""
    with Session() as session:
        session.start_agent("--library", NEXT_CUDA)
        job = Gated(session)
        job.at = job("address")
        closes_its_sockets(session, job, "save", "offload")
        wait_for("the thread goes on", lambda: job("count") == 1)
        session.ready(job.pid)
        job("fill", 42)
        session.ask("offload", "--owner", "all")
        closes_its_sockets(session, job, "list", "restore")
        session.ready(job.pid)
        session.ask("restore")
        wait_for("the thread goes on", lambda: job("count") == 2)


@case()
def test_more_threads_than_can_be_followed():
    """Those beyond are held like others, and nothing is moved while it is not known what they do."""
    with Session() as session:
        session.start_agent("--threads", "64", "--library",
                            NEXT_CUDA)
        job = Gated(session)
        job("fill", 42)
        session.ask("offload", "--owner", "all")
        for _ in range(80):
            job.begin("cuFutureFill")
        wait_for("as many as can be listed are held", lambda: len(job.held()) >= 40)
        equal(job("count"), 0, "threads that were not held")
        session.ask("restore")
        wait_for("they go on", lambda: job("count") == 80)
        equal(job("check", 42), 0, "wrong bytes")
        # What they did is not known, until the driver is asked; that they were too many, it is.
        check("events of the process were lost" in session.lien("offload", "--owner", "all").out)
        session.lien("check", "--deep", "--repair")
        session.refused("offload", "--owner", "all", text="more threads")


@case()
def test_nccl_at_work_in_the_background():
    """A communicator that is being made is not at rest, although no call is under way."""
    with Session() as session:
        session.start_agent("--library", SYNC)
        ranks = [session.spawn([LIEN, "run", "--", program("prog_background"), SYNC, number])
                 for number in range(2)]
        for rank in ranks:
            check((rank.line() or "").startswith("ready"), rank.said())
            equal(rank.ask("alone"), "ok 0", "a communicator of its own")
        session.ready(*(rank.pid for rank in ranks))
        group = unique_id(77)
        equal(ranks[0].ask("make %s 0 2" % group), "ok 7", "ncclInProgress")
        equal(ranks[0].ask("poll"), "ok 7", "ncclCommGetAsyncError")
        said = session.refused("offload", "--timeout", "1000", text="still at work")
        check("the job runs on" in said, said)
        equal(ranks[1].ask("make %s 1 2" % group), "ok 7", "ncclInProgress")
        for rank in ranks:
            wait_for("it is made", lambda rank=rank: rank.ask("poll") == "ok 0")
        session.ask("offload")
        session.ask("restore")
        for rank in ranks:
            rank.send("reduce 1")
        for rank in ranks:
            equal(rank.line(), "ok 2", "the sum")


@case(long=True)
def test_collectives_launched_in_the_background():
    """What has begun on such communicators is launched by threads of NCCL's, before others are held."""
    moments = random.Random(SEED)
    with Session(devices=2, memory="64M") as session:
        session.start_agent("--library", SYNC)
        ranks = [session.spawn([LIEN, "run", "--", program("prog_background"), SYNC, number])
                 for number in range(2)]
        for number, rank in enumerate(ranks):
            check((rank.line() or "").startswith("ready"), rank.said())
            equal(rank.ask("make %s %d 2" % (unique_id(78), number)), "ok 7", "ncclInProgress")
        for rank in ranks:
            wait_for("it is made", lambda rank=rank: rank.ask("poll") == "ok 0")
        session.ready(*(rank.pid for rank in ranks))
        for rank in ranks:
            rank.send("reduce 150")
        guesses = 0
        for _ in range(10):
            result = session.ask("offload", "--owner", "all", "--timeout", "3000")
            equal(result["outcome"], "done", "an offload")
            guesses += result["guesses"] > 0
            session.ask("restore")
            time.sleep(moments.uniform(0, 0.05))
        # A device may still be busy 20 ms after all are held: then somebody is let in on suspicion.
        check(guesses < 4, "guesses in", guesses, "of 10")
        for rank in ranks:
            equal(rank.line(60), "ok 300", "the sum")


@case()
def test_held_while_more_is_offloaded():
    """A second offload does not let in threads that wait for what the first one took, although devices are busy."""
    with Session(memory="256M", LIEN_PLAIN="0") as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        rank = Rank(session, allocate=4 * MIB, control=True)
        comm = rank.made("init-rank", 1, 0, unique_id(5))
        rank("buffer", 2 * MIB)
        session.ready(rank.pid)
        check(session.ask("offload")["bytes"] >= 4 * MIB, "NCCL's memory")
        rank.process.send("split %d 0 0 1" % comm)

        def is_held():
            return [(thread["pid"], thread["call"]) for thread in session.ask("status")["held"]] == [
                (rank.pid, "ncclCommSplit")]
        wait_for("the call is held", is_held)
        with open(busy, "w"):
            pass
        session.refused("offload", "--owner", "all", "--timeout", "1000", text="ncclCommSplit")
        check(is_held(), "it was let in: %s" % session.ask("status")["held"])
        os.unlink(busy)
        check(session.ask("offload", "--owner", "all")["bytes"] >= 2 * MIB, "the rest")
        check(is_held(), "it was let in: %s" % session.ask("status")["held"])
        session.ask("restore")
        equal(rank.process.line()[:3], "ok ", "the call")


if __name__ == "__main__":
    sys.exit(main())
