#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What all users share in the kernel: one of them fills all its room, and the others do not
notice. See lien_test.py for what it needs.
"""

import os
import signal
import subprocess
import sys

import faults
from lien_test import (
    LIEN, MIB, SOFTNCCL, THREADS, Driver, case, check, equal, main, program, wait_for)
from nccl_rank import Rank, unique_id
from users import ALICE, BOB, Shared

# An eighth of what there is room for
COMMS, EXPORTS = THREADS // 4, THREADS // 2


def moves(session, uid, *drivers, owners=1):
    """All memory of these processes of the user, of which that many have 2 MiB."""
    pids = [word for driver in drivers for word in ("--pid", str(driver.pid))]
    moved = session.ask_as(uid, "offload", "--owner", "all", *pids)
    equal(moved["bytes"], 2 * MIB * owners, "moved of user %d: %s" % (uid, moved["left"]))
    session.ask_as(uid, "restore")


def threads_of(driver, count):
    """Threads of a process that each make a traced call, and stay."""
    for _ in range(count):
        driver("thread")


@case()
def test_threads():
    with Shared() as session:
        session.start_agent("--threads", "64")
        alice, bob = session.of_user(ALICE), session.of_user(BOB)
        for driver in (alice, bob):
            driver("make", 2 * MIB, 0)
        session.ready(alice.pid, bob.pid)
        threads_of(alice, 40)
        threads_of(bob, 4)
        moves(session, BOB, bob)
        wait_for("Alice's is incomplete", lambda: alice.pid in session.ask("status")["incomplete"])
        # What was lost is read again from the driver, and lost again, for the control library's thread is one too many
        # itself; and in between, no gate would hold all of her threads.
        wait_for("refused", lambda: any("more threads that use CUDA than lien follows" in session.lien_as(
            ALICE, "offload", "--owner", "all").stderr for _ in range(100)))
        equal(session.process(alice.pid)["offloaded_bytes"], 0, "moved of Alice's")
        alice.end()
        session.forgotten(alice.pid)
        again = session.of_user(ALICE)
        again("make", 2 * MIB, 0)
        session.ready(again.pid)
        moves(session, ALICE, again)


def gated(session, uid):
    """A process of the user with memory, of which each call is made by a thread of its own."""
    process = session.spawn_as(uid, [LIEN, "run", "--", program("prog_gated"), "0", 2 * MIB])
    check((process.line() or "").startswith("ready"), process.said())
    session.ready(process.pid)
    return process, "at %s cuMemsetD8_v2" % process.ask("address").split()[1]


@case(long=True)
def test_threads_that_wait():
    """One user's threads wait at a gate, more than are followed; another's is seen to wait."""
    with Shared() as session:
        session.start_agent("--threads", "64")
        (alice, hers), (bob, his) = gated(session, ALICE), gated(session, BOB)
        session.ask_as(ALICE, "offload", "--owner", "all")
        session.ask_as(BOB, "offload", "--owner", "all")
        for _ in range(100):
            alice.ask(hers)
        bob.ask(his)
        wait_for("Bob's thread is listed", lambda: bob.pid in [
            thread["pid"] for thread in session.ask("status")["held"]])
        for job in (alice, bob):
            equal(job.ask("count"), "ok 0", "calls that have returned")


@case()
def test_thread_beyond_the_share_waits():
    """It is not known which call it waits in, but that it needs what is away."""
    with Shared() as session:
        session.start_agent("--threads", "64")
        alice, hers = gated(session, ALICE)
        other = session.of_user(ALICE)
        session.ask_as(ALICE, "offload", "--owner", "all", "--on-use", "restore", "--pid", alice.pid)
        threads_of(other, 16)
        alice.ask(hers)
        wait_for("it is restored", lambda: alice.ask("count") == "ok 1")


@case()
def test_users_of_a_namespace_are_one_account():
    """Whoever makes a user namespace answers for all users in it."""
    with Shared() as session:
        session.start_agent("--threads", "64")
        drivers = [Driver(session.spawn_as(ALICE, [
            "/usr/bin/unshare", "--user", "--map-root-user", LIEN, "run", "--", program("prog_driver")]))
            for _ in range(2)]
        for driver in drivers:
            driver("init", 0)
            threads_of(driver, 6)
        wait_for("one of them is incomplete", lambda: set(session.ask("status")["incomplete"]) & {
            driver.pid for driver in drivers})
        bob = session.of_user(BOB)
        bob("make", 2 * MIB, 0)
        threads_of(bob, 6)
        session.ready(bob.pid)
        moves(session, BOB, bob)


@case()
def test_communicators():
    with Shared() as session:
        session.start_agent()
        alice = Driver(session.spawn_as(ALICE, [
            LIEN, "run", "--", program("prog_nccl"), SOFTNCCL]))
        bob = Driver(session.spawn_as(BOB, [
            LIEN, "run", "--", program("prog_nccl"), SOFTNCCL]))
        made = []
        for driver, count in ((alice, COMMS + 8), (bob, 1)):
            driver("init", 0)
            driver("allocate", 2 * MIB)
            for number in range(count):
                made.append(driver("init-rank", 1, 0, unique_id(number))[1])
                driver("allocate", 0)
                Rank.call(driver, "all_reduce", made[-1])
        session.ready(alice.pid, bob.pid)
        status = session.ask("status")
        equal((status["counted_communicators"], status["uncounted"]), (COMMS + 1, 8), "(counted, not counted)")
        equal([comm["calls_total"] for comm in session.ask_as(BOB, "comms")["communicators"]], [1],
              "Bob's calls")
        session.refused_as(ALICE, "more communicators than lien counts", "offload", "--timeout",
                           "2000", "--pid", alice.pid)
        session.ask_as(BOB, "offload", "--pid", bob.pid)
        session.ask_as(BOB, "restore")
        check("8 NCCL calls were not counted" in session.lien("status").out, "words")
        alice("destroy", made[0])
        Rank.call(alice, "all_reduce", made[COMMS])
        equal(session.ask("status")["counted_communicators"], COMMS + 1, "once there is room")
        alice.end()
        session.forgotten(alice.pid)
        equal(session.ask("status")["counted_communicators"], 1, "Alice's are gone")


@case(long=True)
def test_communicators_of_a_process_older_than_the_agent():
    """It has its own user's share, not root's."""
    with Shared() as session:
        session.start_agent()
        alice = Driver(session.spawn_as(ALICE, [
            LIEN, "run", "--", program("prog_nccl"), SOFTNCCL]))
        alice("init", 0)
        session.kill_agent()
        session.clean()
        session.start_agent()
        session.ready(alice.pid)
        for number in range(COMMS + 8):
            Rank.call(alice, "all_reduce", alice("init-rank", 1, 0, unique_id(number))[1])
        status = session.ask("status")
        equal((status["counted_communicators"], status["uncounted"]), (COMMS, 8), "(counted, not counted)")


@case(long=True)
def test_exports():
    """One user makes more than there is room for; another's are known, those of before and later ones."""
    with Shared() as session:
        session.start_agent()
        alice, owner, importer = (session.of_user(uid) for uid in (ALICE, BOB, BOB))
        handle, _ = owner("make", 2 * MIB, 0)
        descriptor = owner("export", handle)
        own, _ = alice("make", 2 * MIB, 0)
        alice("export-often", own, 9 * EXPORTS, limit=100)
        later, _ = owner("make", 2 * MIB, 0)
        for shared in (descriptor, owner("export", later)):
            importer("show", 2 * MIB, importer.take(owner, shared), 0)
            owner("close", shared)
        equal(session.ask("status")["unmatched_imports"], 0, "imports without an owner")
        session.ready(owner.pid, importer.pid)
        moves(session, BOB, owner, importer, owners=2)


@case()
def test_open_exports_are_not_forgotten():
    """However many its user makes and closes after it; and where all that are known are open, memory that is
    exported then stays where it is."""
    with Shared() as session:
        session.start_agent()
        owner, importer, busy = (session.of_user(ALICE) for _ in range(3))
        handle, _ = owner("make", 2 * MIB, 0)
        kept = owner("export", handle)
        importer("show", 2 * MIB, importer.take(owner, kept), 0)
        often, _ = busy("make", 2 * MIB, 0)
        busy("export-often", often, EXPORTS + 64, limit=100)
        session.ready(owner.pid, importer.pid, busy.pid)

        def moved():
            result = session.ask("offload", "--owner", "all")
            session.ask("restore")
            return result["bytes"], [(row["pid"], row["bytes"]) for row in result["left"]]
        equal(moved(), (2 * MIB, [(owner.pid, 2 * MIB)]), "with an older export that is open")
        early = [owner("export", handle) for _ in range(20)]  # side by side
        busy("export-often", often, EXPORTS, limit=100)
        equal(moved(), (2 * MIB, [(owner.pid, 2 * MIB)]), "with more that are open")
        more = early + [owner("export", handle) for _ in range(EXPORTS)]
        last, _ = busy("make", 2 * MIB, 0)
        busy("close", busy("export", last))
        equal(moved(), (2 * MIB, [(owner.pid, 2 * MIB), (busy.pid, 2 * MIB)]), "without room for more")
        for descriptor in [kept, *more]:
            owner("close", descriptor)
        later, _ = busy("make", 2 * MIB, 0)
        known = busy("export", later)
        importer("show", 2 * MIB, importer.take(busy, known), 0)
        busy("close", known)
        equal(moved(), (4 * MIB, [(owner.pid, 2 * MIB), (busy.pid, 2 * MIB)]), "once there is room")


@case(long=True)
def test_exports_of_restores():
    """A restore exports all that is shared once more. What the job exported itself stays known: memory that
    an open descriptor keeps is not moved."""
    many = 128
    with Shared() as session:
        session.start_agent()
        owner, importer, later = (session.of_user(BOB) for _ in range(3))
        for number in range(many):
            handle, _ = owner("make", 2 * MIB, 0)
            descriptor = owner("export", handle)
            importer("show", 2 * MIB, importer.take(owner, descriptor), 0)
            if number:
                owner("close", descriptor)
            else:
                kept = descriptor
        for _ in range(EXPORTS // many + 1):
            equal(session.ask("offload", "--owner", "all")["bytes"], (many - 1) * 2 * MIB, "moved")
            session.ask("restore")
        later("show", 2 * MIB, later.take(owner, kept), 0)
        equal(session.ask("status")["unmatched_imports"], 0, "imports without an owner")


@case()
def test_a_restore_with_more_exports_than_are_known():
    """It makes no more at a time than the kernel side keeps of the user."""
    many = 24
    with Shared() as session:
        faults.folder(session)
        os.chmod(session.path("faults"), 0o1777)
        session.start_agent("--threads", "128")  # 32 of restores per user
        *owners, importer = (session.of_user(BOB) for _ in range(3))
        seen = []
        for owner in owners:
            for _ in range(many):
                handle, _ = owner("make", 2 * MIB, 0)
                descriptor = owner("export", handle)
                seen.append(importer("show", 2 * MIB, importer.take(owner, descriptor), 0))
                owner("close", descriptor)
                importer("fill", seen[-1], 2 * MIB, len(seen))
        importer("make", 2 * MIB, 0)
        session.ready(importer.pid, *(owner.pid for owner in owners))
        # Both have exported before it imports.
        faults.Faults(session, importer.inner_pid).arm(faults.DELAY, function="cuMemCreate", delay_ms=1000)
        moves(session, BOB, importer, *owners, owners=len(seen) + 1)
        equal(session.ask("status")["incomplete"], [], "processes with imports of nobody's")
        for value, va in enumerate(seen, 1):
            equal(importer("check", va, 2 * MIB, value), 0, "wrong bytes")


@case(long=True)
def test_ring():
    """While the agent does not read, one user's calls take the room of that user alone."""
    with Shared(memory="2G") as session:
        session.start_agent("--ring", "1")
        bob = session.of_user(BOB)
        session.ready(bob.pid)
        burst = session.spawn_as(ALICE, [LIEN, "run", "--", program("prog_burst"), "4", "100000"])
        equal(burst.line(), "ready", "prog_burst")
        session.ready(burst.pid)
        os.kill(session.agent.pid, signal.SIGSTOP)
        try:
            burst.ask("go", 100)
            bob("make", 2 * MIB, 0)
        finally:
            os.kill(session.agent.pid, signal.SIGCONT)
        wait_for("losses are seen", lambda: session.ask("status")["events_lost"])
        check(bob.pid not in session.ask("status")["incomplete"], "Bob's process is incomplete")
        moves(session, BOB, bob)


@case()
def test_processes():
    """Each is entered as it maps the driver, and makes room when it ends."""
    with Shared() as session:
        session.start_agent()
        for _ in range(40):
            subprocess.run(["true"], env=session.env(LD_PRELOAD=os.path.join(
                session.environment["LD_LIBRARY_PATH"], "libcuda.so.1")), check=True)
        bob = session.of_user(BOB)
        bob("make", 2 * MIB, 0)
        session.ready(bob.pid)
        moves(session, BOB, bob)


if __name__ == "__main__":
    sys.exit(main())
