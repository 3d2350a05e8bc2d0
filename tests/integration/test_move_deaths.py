#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Ranks, agents and clients end while memory is away or on its way.

See lien_test.py for what else this needs.
"""

import os
import signal
import sys

from lien_test import (
    LIEN, MIB, Session, alive, brief, case, check, equal, main, start_pairs, stays, wait_for)
from move import PAIRS, WHOLE, runs_as_before, round_trip


def offload_in_drain(session, busy):
    """An offload that waits for a busy device; its client."""
    open(busy, "w").close()
    client = session.spawn([LIEN, "offload", "--json", "--timeout", "20000"])

    def draining():
        transaction = session.ask("status")["transaction"]
        return transaction and transaction["phase"] == "drain"
    wait_for("the offload drains", draining)
    return client


@case()
def test_rank_killed_in_the_middle_of_an_offload():
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS, "--keep-going")
        client = offload_in_drain(session, busy)
        os.kill(job.ranks[1], signal.SIGKILL)
        wait_for("it is dead", lambda: not alive(job.ranks[1]))
        stays("the agent lives", lambda: session.agent.popen.poll() is None, 0.3)
        os.unlink(busy)
        equal(client.wait(20), 1, "exit status of the offload")
        check("process %d ended" % job.ranks[1] in client.said(), client.said())
        equal(job.verify()[0], 2 * PAIRS, "mappings of the other rank")
        check(session.process(job.ranks[1]) is None, "the dead one is still there")
        equal(session.process(job.ranks[0])["state"], "running", "state")
        equal(session.ask("offload")["bytes"], WHOLE["bytes"] // 2, "the other one's own memory")
        session.ask("restore")
        equal(job.verify()[0], 2 * PAIRS, "mappings of the other rank")


@case()
def test_job_ends_in_the_middle_of_an_offload():
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        for end in ("quit", "kill") * 4:
            job = start_pairs(session, PAIRS)
            client = offload_in_drain(session, busy)
            if end == "quit":
                job.process.send("quit")
            else:
                job.end()
            session.ask("ps", limit=5)
            wait_for("the ranks are dead", lambda j=job: not any(map(alive, j.ranks)))
            os.unlink(busy)
            equal(client.wait(30), 1, "exit status of the offload when the job did " + end)
            session.ask("ps", limit=5)
            job.end()
            session.forgotten(*job.ranks)
        session.freed()


@case()
def test_rank_killed_while_offloaded():
    with Session() as session:
        session.start_agent()
        owner, other = session.driver(device=0), session.driver(device=1)
        handle, theirs = other("make", 4 * MIB, 1)
        _, mine = owner("make", 2 * MIB, 0)
        owner("fill", mine, 2 * MIB, 0x21)
        fd = other("export", handle)
        place = owner("show", 4 * MIB, owner.take(other, fd), 0)
        other("fill", theirs, 4 * MIB, 0x22)
        other("close", fd)
        session.ready(owner.pid, other.pid)
        equal(session.ask("offload", "--owner", "all")["bytes"], 6 * MIB, "bytes")
        other.process.signal(signal.SIGKILL)
        other.process.wait()
        wait_for("it is forgotten", lambda: not session.process(other.pid))
        outcome = session.lien("restore")
        session.ask("ps", limit=5)
        equal(owner("check", mine, 2 * MIB, 0x21), 0, "wrong bytes of the survivor's own memory")
        # The imported memory is gone for good: that has to be said.
        check(outcome.code == 1, "a restore that lost memory succeeded: %s" % outcome)
        check("nothing is lost" not in outcome.err, "memory is lost: %s" % outcome)
        check(str(other.pid) in outcome.err or hex(place) in outcome.err,
              "the damage is not named: %s" % outcome)


@case()
def test_survivor_can_be_moved_again():
    """After its peer died while both were offloaded, a rank goes on with what it has."""
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS, "--keep-going")
        session.ask("offload")
        os.kill(job.ranks[1], signal.SIGKILL)
        wait_for("it is forgotten", lambda: not session.process(job.ranks[1]))
        session.lien("restore")
        equal(session.used(0), WHOLE["bytes"] // 2, "device memory of the survivor")
        result = session.ask("offload")
        equal(result["bytes"], WHOLE["bytes"] // 2, "moved again")
        session.lien("restore")
        equal(session.used(0), WHOLE["bytes"] // 2, "device memory of the survivor")


@case()
def test_agent_killed_while_offloaded():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        for seed in (1, 2):
            if seed == 1:
                session.ask("offload")
            else:  # only a new job is known from its beginning
                job.quit()
                job = start_pairs(session, PAIRS)
                session.ask("offload")
            session.freed()
            session.kill_agent()
            equal(session.used(), 0, "device memory in use")
            session.start_agent()
            session.ready(*job.ranks)
            if seed == 1:
                result = session.ask("restore")
                equal((result["outcome"], result["bytes"]), ("done", WHOLE["bytes"]), "restore")
            else:
                session.ask("restore", "--pid", job.ranks[0])
            equal(session.used(), WHOLE["bytes"], "device memory in use")
            equal(job.verify()[0], 4 * PAIRS, "mappings verified")
            job.change(seed)
            equal(job.verify()[0], 4 * PAIRS, "mappings verified")
            equal(session.ask("restore")["outcome"], "nothing to do", "a second restore")


@case()
def test_new_agent_shows_what_is_offloaded():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        session.ask("offload")
        session.kill_agent()
        session.start_agent()
        session.ready(*job.ranks)
        for pid in job.ranks:
            process = session.process(pid)
            check(process["state"] != "running" and process["offloaded_bytes"], brief(process))


@case()
def test_agent_killed_in_the_middle_of_an_offload():
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS)
        client = offload_in_drain(session, busy)
        session.kill_agent()
        equal(client.wait(10), 1, "exit status of the client")
        os.unlink(busy)
        equal(job.verify()[0], 4 * PAIRS, "mappings verified")
        session.start_agent()
        session.ready(*job.ranks)
        equal(session.ask("restore")["outcome"], "nothing to do", "restore")
        equal(job.verify()[0], 4 * PAIRS, "mappings verified")
        job.free()
        job.quit()


@case()
def test_client_killed_in_the_middle_of_an_offload():
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS)
        client = offload_in_drain(session, busy)
        client.signal(signal.SIGKILL)
        client.wait()
        session.refused("offload", text="another transaction is under way")
        session.refused("restore", text="another transaction is under way")
        os.unlink(busy)
        wait_for("the transaction ends", lambda: session.ask("status")["transaction"] is None)
        session.ask("restore")
        runs_as_before(session, job)
        round_trip(session, job)


if __name__ == "__main__":
    sys.exit(main())
