#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The agent compares its graph with the driver, and reads processes again after losses: real BPF
programs, real processes, the software CUDA driver.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import json
import os
import signal
import sys
import time

from lien_test import (
    EVENT_CONTROL, LIEN, MIB, Session, Stream, brief, case, check, equal, main, state_of, wait_for)

PIECE = 2 * MIB
BURN = 12000  # calls in pairs: more records than a ring of 1 MiB holds


def compare(session, *args, code=0):
    outcome = session.lien("check", "--deep", "--json", *args)
    check(outcome.code == code, "exit status %d expected: %s" % (code, outcome))
    return json.loads(outcome.out)


def differences(session, pid, code):
    """{address: (kind, bytes as the driver has it)} of a process."""
    result = compare(session, "--pid", pid, code=code)
    equal(len(result["processes"]), 1, "processes compared")
    process = result["processes"][0]
    equal(process["error"], None, "error")
    return {int(d["address"], 16): (d["kind"], d["driver"] and d["driver"]["bytes"])
            for d in process["differences"]}


def deaf(session):
    """The agent does not read while this lasts."""
    class Deaf:
        def __enter__(self):
            session.agent.signal(signal.SIGSTOP)

        def __exit__(self, *_):
            session.agent.signal(signal.SIGCONT)
    return Deaf()


@case()
def test_no_difference():
    with Session() as session:
        session.start_agent()
        equal(compare(session)["processes"], [], "processes")
        job = session.driver()
        session.ready(job.pid)
        equal(differences(session, job.pid, 0), {}, "differences")
        handle, va = job("make", 3 * PIECE, 0)
        other = job("show", PIECE, handle, 1)        # an alias, shorter, for another device
        job("access", va, 3 * PIECE, 1, 1)
        gone, _ = job("make", PIECE, 1)
        job("release", gone)                         # mapped, and its handle released
        job("many", 100, 0)
        plain = job("alloc", 5 * MIB)
        job("reserve", 64 * PIECE, 0)
        made = job("mc-create", 1, PIECE, 1)
        job("mc-add", made, 0)
        job("show", PIECE, made, 0)
        stream = Stream(session)
        result = compare(session)
        process = result["processes"][0]
        equal([e.type for e in stream.events() if e.flags & EVENT_CONTROL], [],
              "what recorders are told of the walk's own calls")
        stream.close()
        equal((result["differences"], result["compared"], result["not_compared"]), (0, 1, 0),
              "differences, compared, not compared")
        equal((process["pid"], process["mappings"], process["unsettled"], process["complete"]),
              (job.pid, 104, 0, True), "pid, mappings, unsettled, complete")
        # What tracing cannot know is filled in.
        holders = session.ask("holders", job.pid, hex(plain))
        equal(holders["allocation"]["device"], 0, "device of cuMemAlloc memory")
        # Nothing of it is left behind: references and bytes are as they were.
        equal(job.attempt("release", handle)[0], True, "release")
        job("unmap", va, 3 * PIECE)
        job("unmap", other, PIECE)
        check(job.refused("release", handle), "a reference was left")
        equal(session.ask("status")["incomplete"], [], "incomplete processes")


@case()
def test_lost_events():
    with Session() as session:
        session.start_agent("--ring", "1")
        job = session.driver()
        session.ready(job.pid)
        kept = [job("make", PIECE, 0) for _ in range(6)]
        for number, (_, va) in enumerate(kept):
            job("fill", va, PIECE, number + 1)
        freed_handle, freed = job("make", 4 * PIECE, 0)
        moved_handle, moved = job("make", PIECE, 0)
        plain = job("alloc", 3 * MIB)
        equal(session.process(job.pid)["complete"], True, "complete at first")
        before = session.ask("graph")
        with deaf(session):
            job("burn", kept[0][1], BURN)
            job("unmap", freed, 4 * PIECE)
            job("release", freed_handle)
            job("unmap", moved, PIECE)
            again = job("show", PIECE, moved_handle, 0)
            new_handle, new = job("make", 2 * PIECE, 0)
            alias = job("show", 2 * PIECE, new_handle, 1)
            job("fill", new, 2 * PIECE, 99)
            job("access", kept[1][1], PIECE, 1, 1)
            job("memfree", plain)
        wait_for("the loss is noticed", lambda: session.ask("status")["events_lost"])
        check("events of process %d were lost" % job.pid in session.agent.said(), "not logged")
        wait_for("process %d is complete again" % job.pid,
                 lambda: session.process(job.pid)["complete"])
        check("differences were mended" in session.agent.said(), session.agent.said())
        equal(differences(session, job.pid, 0), {}, "differences after it was read again")
        graph = session.ask("graph")
        places = {int(m["address"], 16): a for a in graph["allocations"] for m in a["mappings"]}
        equal(sorted(places), sorted([va for _, va in kept] + [again, new, alias]), "mappings")
        equal(places[new]["id"], places[alias]["id"], "the aliases' allocation")
        known = {int(m["address"], 16): a["id"] for a in before["allocations"]
                 for m in a["mappings"]}
        for _, va in kept:
            equal(places[va]["id"], known[va], "the allocation that was known")
        # The driver may have given its handle to something else: nobody knows what it is.
        check(places[again]["id"] != known[moved], "what was mapped elsewhere is taken for what was there")
        result = session.ask("offload", "--owner", "all")
        equal(result["processes"][0]["bytes"], 6 * PIECE, "bytes moved")
        equal([(left["allocations"], left["bytes"]) for left in result["left"]],
              [(2, 3 * PIECE)], "what is found by reading stays")
        equal(compare(session)["differences"], 0, "differences while it is offloaded")
        session.ask("restore")
        for number, (_, va) in enumerate(kept):
            equal(job("check", va, PIECE, number + 1), 0, "wrong bytes")
        equal(job("check", new, 2 * PIECE, 99), 0, "wrong bytes")


@case()
def test_agent_that_came_late():
    with Session() as session:
        job = session.driver(LIEN_SOFTCUDA_STRICT="1")
        _, early = job("make", 3 * PIECE, 0)
        session.start_agent()
        job("cuinit", 0)
        session.ready(job.pid)
        _, late = job("make", PIECE, 1)
        equal(differences(session, job.pid, 1), {early: ("missing", 3 * PIECE)}, "differences")
        equal(differences(session, job.pid, 1), {early: ("missing", 3 * PIECE)}, "once more")
        out = session.lien("check", "--deep", COLUMNS=80)
        equal(out.code, 1, "exit status")
        check(hex(early) in out.out and hex(late) not in out.out, out)
        check(all(len(line) <= 80 for line in out.out.splitlines()), out)
        result = compare(session, "--repair", code=1)
        equal((result["processes"][0]["repaired"], result["processes"][0]["complete"]),
              (True, False), "repaired, complete")
        equal(differences(session, job.pid, 0), {}, "differences after the repair")
        job("unmap", early, 3 * PIECE)
        equal(differences(session, job.pid, 0), {}, "differences after an unmap")


@case()
def test_without_control_library():
    with Session() as session:
        session.start_agent()
        job = session.driver(control=False)
        job("make", PIECE, 0)
        session.known(job.pid)
        equal(session.lien("check", "--deep").code, 2, "exit status if all of it cannot be compared")
        other = session.driver()
        other("make", PIECE, 0)
        session.ready(other.pid)
        out = session.lien("check", "--deep")
        equal(out.code, 0, "exit status if some of it can")
        check("process %d (prog_driver) cannot be compared: it has no control library: `lien "
              "attach` gives it one" % job.pid in " ".join(out.out.split()), out)
        equal(session.lien("check", "--deep", "--pid", job.pid).code, 2, "exit status for it alone")
        session.refused("check", "--deep", "--pid", "1", code=2, text="process 1 is not known")
        session.refused("check", "--repair", code=2, text="--deep")


@case()
def test_process_that_dies():
    with Session(memory="4G") as session:
        session.start_agent()
        for number in range(3):
            job = session.driver()
            session.ready(job.pid)
            job("many", 400, 0)
            job("reserve", 1 << 40, 0)  # long enough to die in
            walk = session.spawn([LIEN, "check", "--deep", "--pid", job.pid])
            time.sleep(0.1 * number)
            os.kill(job.pid, signal.SIGKILL)
            walk.wait(20)
            words = []
            while (line := walk.line(5)) is not None:
                words.append(line.strip())
            said = " ".join(words) + walk.said()
            check(any(text in said for text in ("cannot be compared: it has ended", "0 differences",
                                                "is not known to the agent")), brief(said))
            session.forgotten(job.pid)
        equal(session.ask("status")["processes"], 0, "processes")


@case()
def test_process_that_stands_still():
    with Session() as session:
        session.start_agent()
        out = session.lien("check", "--deep")
        equal((out.code, out.err), (0, ""), "exit status without processes: nothing to do")
        check(out.out.startswith("no process uses CUDA on this node"), out)
        early = session.driver(init=False)

        def named():
            outcome = session.lien("check", "--deep", "--pid", early.pid)
            return "is not known to the agent" not in outcome.err and outcome
        out = wait_for("it is known", named)
        equal(out.code, 2, "exit status if a process that was named cannot be compared")
        check("cannot be compared: it has not used CUDA yet" in " ".join(out.out.split()), out)
        check(session.lien("check", "--deep").out.startswith("no process uses CUDA"), "not named")
        job = session.driver()
        session.ready(job.pid)
        job("make", PIECE, 0)
        os.kill(job.pid, signal.SIGSTOP)
        wait_for("it is stopped", lambda: state_of(job.pid) == "T")
        stopped = "it is stopped: let it go on first (kill -CONT)"
        for more in ([], ["--pid", job.pid]):
            equal(compare(session, *more, code=2)["processes"][0]["error"], stopped, "error")
        os.kill(job.pid, signal.SIGCONT)
        equal(differences(session, job.pid, 0), {}, "differences")
        # Stopped in the middle.
        job("many", 400, 0)
        job("reserve", 1 << 40, 0)
        for number in range(3):
            walk = session.spawn([LIEN, "check", "--deep", "--timeout", "1500"])
            time.sleep(0.1 * number)
            os.kill(job.pid, signal.SIGSTOP)
            code, said = walk.wait(20), ""
            while (line := walk.line(5)) is not None:
                said += line.strip() + " "
            check(code == 2 and stopped in said or code == 0 and "0 differences" in said, code, said)
            os.kill(job.pid, signal.SIGCONT)


@case(long=True)
def test_job_that_goes_on():
    with Session() as session:
        session.start_agent()
        job = session.driver()
        session.ready(job.pid)
        job("many", 50, 0)
        job("loop", 0)
        seen = 0
        for _ in range(10):
            result = compare(session)
            process = result["processes"][0]
            equal((process["error"], process["differences"]), (None, []), "a job at work")
            seen += process["mappings"] > 50
        rounds = int(job.process.ask("pid").split()[1], 0)
        job.process.line()
        check(rounds > 100, "only %d rounds" % rounds)
        check(seen, "no walk met the loop")
        equal(differences(session, job.pid, 0), {}, "differences at the end")
        equal(session.ask("status")["incomplete"], [], "incomplete processes")
        session.ask("offload", "--owner", "all")
        session.ask("restore")


@case()
def test_offload_in_the_middle():
    with Session(memory="2G") as session:
        session.start_agent()
        job = session.driver()
        session.ready(job.pid)
        handle, va = job("make", PIECE, 0)
        job("fill", va, PIECE, 7)
        job("reserve", 1 << 40, 0)
        for _ in range(5):
            walk = session.spawn([LIEN, "check", "--deep"])
            time.sleep(0.05)
            session.ask("offload", "--owner", "all")
            session.ask("restore")
            equal(walk.wait(60), 0, "exit status of check")
        equal(job("check", va, PIECE, 7), 0, "wrong bytes")
        job("unmap", va, PIECE)
        job("release", handle)


@case()
def test_capture_is_left_alone():
    with Session() as session:
        session.start_agent()
        job = session.driver()
        session.ready(job.pid)
        job("make", PIECE, 0)
        job("capture", 0)  # global mode: an unsafe call of any thread would spoil it
        equal(differences(session, job.pid, 0), {}, "differences")
        job("capture-end")


if __name__ == "__main__":
    sys.exit(main())
