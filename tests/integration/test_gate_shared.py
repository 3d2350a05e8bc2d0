#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Gates that share the probes of a file: on kernels that cannot bind probes to a process, by one link for many
places (6.6 to 6.9) or one for each (before 6.6), and on others those of a job that has the node to itself. The BPF
program decides whose call it is.

See lien_test.py for what it needs. The kernel takes 0.1 s to remove each single probe.
"""

import re
import sys

from lien_test import MIB, Session, case, check, equal, main, stays, wait_for
from nccl_rank import Rank, unique_id
from test_adopt import Pair, SIZE, known
from test_agent_journal import pins_of
from test_gate import all_held, goes_on, held, stands
from train_job import SYNC, Train

SHARED, SINGLE = "--no-process-probes", "--no-uprobe-multi"


def gate_links(session):
    """The pins of the gate's links, by set: {(number, pid): [index]}"""
    found = {}
    for pin in pins_of(session) or ():
        made = re.fullmatch(r"gate-(\d+)-(\d+)-.*-(\d+)", pin)
        if made:
            found.setdefault((int(made[1]), int(made[2])), []).append(int(made[3]))
    return {key: sorted(indices) for key, indices in found.items()}


def adopted(session, pair):
    """What ran before the agent is held while its memory is read, and then while that is away."""
    answer = session.ask("attach", "--all")
    equal((answer["adoption"]["error"], answer["adoption"]["matched"]), (None, 3), "adoption")
    equal(session.ask("offload", "--owner", "all")["bytes"], 3 * SIZE, "moved")
    equal(session.used(), 0, "device memory in use")
    pair.owner.process.send("fill %d %d %d" % (pair.places[0], SIZE, 0x40))
    wait_for("its call is held", lambda: pair.owner.pid in {
        thread["pid"] for thread in session.ask("status")["held"]})
    session.ask("restore")
    equal(pair.owner.process.line(), "ok 0", "the call that was held")
    pair.verify()
    pair.shared()


def one_of_two(session, job, other):
    """Both map the probed files; only one is held."""
    for _ in range(2):
        session.ask("offload", *["--pid=%d" % pid for pid in job.pids], "--retry", "20000")
        all_held(session, job)
        stands(job, "a job whose memory is away went on")
        for _ in range(3):
            goes_on(other)
            equal(held(session, other), set(), "held of a job that has no gate")
        session.ask("restore")
        goes_on(job)


def taken_over(session, option, job, other):
    """The gate outlives the agent, and the next one uses the same links."""
    session.ask("offload", *["--pid=%d" % pid for pid in job.pids], "--owner", "all", "--retry", "20000")
    before = gate_links(session)
    check(before, "no links of a gate are pinned")
    equal({pid for _, pid in before}, {0}, "processes that the links are bound to")
    all_held(session, job)
    session.kill_agent()
    stands(job, "a job whose memory is away went on without an agent")
    goes_on(other)
    equal(gate_links(session), before, "links without an agent")
    session.start_agent(option, "--library", SYNC)
    session.ready(*job.pids)
    stands(job, "and with the next one")
    goes_on(other)
    equal(gate_links(session), before, "links of the next agent")
    session.ask("restore")
    goes_on(job)


def beside(session):
    """A gate for NCCL's memory alone passes a call that another gate, at the same probes, holds."""
    rank = Rank(session, allocate=4 * MIB, control=True)
    comm = rank.made("init-rank", 1, 0, unique_id(5))
    driver = session.driver()
    handle, va = driver("make", SIZE, 0)
    session.ready(rank.pid, driver.pid)
    session.ask("offload", "--pid=%d" % driver.pid, "--owner", "all")
    session.ask("offload", "--pid=%d" % rank.pid)
    equal(session.process(rank.pid)["state"], "offloaded", "state")
    rank("free-nothing")  # returns
    driver.process.send("fill %d %d %d" % (va, SIZE, 1))
    wait_for("its call is held", lambda: [thread["pid"] for thread in session.ask("status")["held"]])
    stays("the gate for all memory let the call pass", lambda: driver.pid in {
        thread["pid"] for thread in session.ask("status")["held"]})
    rank("free-nothing")
    # Now for all of its memory: the same probes, and another answer.
    session.ask("restore")
    equal(driver.process.line(), "ok 0", "the call that was held")
    session.ask("offload", "--pid=%d" % rank.pid, "--owner", "all")
    rank.process.send("free-nothing")
    wait_for("the call is held", lambda: rank.pid in {
        thread["pid"] for thread in session.ask("status")["held"]})
    session.ask("restore")
    equal(rank.process.line()[:3], "ok ", "the call")
    rank("destroy", comm)
    driver("release", handle)


def kept(session, option):
    """Single probes stay for the next gate, others go with the last one."""
    if option == SINGLE:
        check(gate_links(session), "the links were removed with the last gate")
    else:
        wait_for("the links are gone", lambda: not gate_links(session))


def essential(option):
    with Session(memory="512M") as session:
        pair = Pair(session)
        session.start_agent(option, "--library", SYNC)
        known(session, *pair.pids)
        adopted(session, pair)
        pair.owner.end()
        pair.importer.end()
        beside(session)
        job, other = (Train(session, 2, seed=seed) for seed in (1, 2))
        session.ready(*job.pids, *other.pids)
        goes_on(job)
        one_of_two(session, job, other)
        taken_over(session, option, job, other)
        kept(session, option)
        for each in (job, other):
            each.stop()
            each.finish()


@case()
def test_job_alone_on_its_node():
    """Its ranks share links, because nobody else pays for them; beside another process each has its own."""
    with Session(memory="512M") as session:
        session.start_agent("--library", SYNC)
        job = Train(session, 2)
        session.ready(*job.pids)
        goes_on(job)

        def links_of_offload():
            session.ask("offload", *["--pid=%d" % pid for pid in job.pids], "--owner", "all", "--retry", "20000")
            all_held(session, job)
            stands(job, "a job whose memory is away went on")
            return gate_links(session)

        shared = links_of_offload()
        equal({pid for _, pid in shared}, {0}, "processes that the links are bound to")
        session.kill_agent()
        stands(job, "a job whose memory is away went on without an agent")
        session.start_agent("--library", SYNC)
        session.ready(*job.pids)
        stands(job, "and with the next one")
        equal(gate_links(session), shared, "links of the next agent")
        session.ask("restore")
        goes_on(job)
        wait_for("the links are gone", lambda: not gate_links(session))
        driver = session.driver()
        _, va = driver("make", SIZE, 0)
        session.known(driver.pid)
        equal({pid for _, pid in links_of_offload()}, set(job.pids), "processes that the links are bound to")
        equal(driver("fill", va, SIZE, 1), 0, "a call of another process")
        session.ask("restore")
        goes_on(job)
        job.stop()
        job.finish()


@case(long=True)
def test_one_link_for_many_places():
    essential(SHARED)


@case(long=True)
def test_one_link_for_each_place():
    essential(SINGLE)


if __name__ == "__main__":
    sys.exit(main())
