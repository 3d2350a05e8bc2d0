#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien snapshot`, `lien events` and `lien top` with a real agent and processes on the software
driver. See lien_test.py for what is needed."""

import json
import re
import signal
import socket
import struct
import sys

from lien_test import FORMAT, LIEN, MIB, STATES, Session, case, check, equal, main, recording, wait_for
from terminal import Terminal, describe


def normal(answer, drop=()):
    """Without what a graph made anew may have otherwise: numbers of allocations, order."""
    if isinstance(answer, dict):
        return {key: normal(value, drop) for key, value in sorted(answer.items())
                if key not in drop}
    if isinstance(answer, list):
        return sorted((normal(value, drop) for value in answer), key=json.dumps)
    return answer


def same_answers(session, path):
    """Of the agent, and of what was written to path."""
    for view in ("ps", "mem", "graph"):
        drop = ("id", "control", "movable", "reason", "offload_frees", "left", "gpus", "nvml", "pending",
                "arena_used_bytes") + (("arena_bytes",) if view != "mem" else ())
        live, saved = session.ask(view), session.ask(view, "--from", path)
        equal(normal(saved, drop), normal(live, drop), "%s --from" % view)
    for allocation in session.ask("graph")["allocations"]:
        for mapping in allocation["mappings"][:1]:
            place = (str(mapping["pid"]), mapping["address"])
            drop = ("id", "movable", "reason")
            live = session.ask("holders", *place)
            # Who has a descriptor open is the kernel's knowledge.
            live["holders"] = [h for h in live["holders"] if h["kind"] != "open export"]
            equal(normal(session.ask("holders", *place, "--from", path), drop), normal(live, drop),
                  "holders of %s" % (place,))


@case()
def test_snapshot_is_the_state():
    """Every view of a snapshot is the agent's, even of offloaded memory, and after the agent has gone."""
    with Session() as session:
        session.start_agent()
        job = session.replay(recording("pairs", 20))
        other = session.driver(control=False)
        other("make", 4 * MIB, 0)
        other("alloc", MIB)
        session.ready(*job.ranks)
        wait_for("owners are known", lambda: not session.ask("mem", "--by", "callsite")["pending"])
        first, second = session.path("first.lien"), session.path("second.lien")
        outcome = session.lien("snapshot", first)
        check(outcome.code == 0 and " of 3 processes" in outcome.out, outcome)
        same_answers(session, first)
        equal(session.ask("offload")["outcome"], "done", "offload")
        check(session.lien("snapshot", second).code == 0, "the second snapshot")
        same_answers(session, second)
        away = session.ask("ps", "--from", second)["processes"]
        equal(sorted(p["state"] for p in away), ["offloaded", "offloaded", "running"], "states")
        equal(session.ask("restore")["outcome"], "done", "restore")
        live = session.ask("mem")["bytes"]
        session.stop_agent()
        equal(session.ask("mem", "--from", first)["bytes"], live, "without an agent")


@case()
def test_snapshot_of_the_dead():
    """Memory whose owner has exited is in the snapshot, and so is that."""
    with Session() as session:
        session.start_agent()
        owner, importer = session.driver(), session.driver(device=1)
        handle, _ = owner("make", 2 * MIB, 0)
        fd = importer("getfd", owner.pid, owner("export", handle))
        importer("show", 2 * MIB, importer("import", fd), 1)
        owner.end()
        wait_for("its owner is gone", lambda: [
            a for a in session.ask("graph")["allocations"] if not a["alive"]])
        path = session.path("dead.lien")
        check(session.lien("snapshot", path).code == 0, "snapshot")
        same_answers(session, path)
        equal([(a["pid"], a["alive"]) for a in session.ask("graph", "--from", path)["allocations"]],
              [(owner.pid, False)], "allocations")


@case()
def test_record_follow():
    """`record` with follow: false: the state, an end, and the connection goes on."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.known(driver.pid)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(session.socket)
            file = connection.makefile("rb")
            connection.sendall(b'{"op": "record", "follow": false}\n{"op": "status"}\n')
            equal(json.loads(file.readline()), {"ok": True, "result": {"format": FORMAT}}, "reply")
            types = []
            while 6 not in types:  # LIEN_EVENT_END
                size, kind = struct.unpack("<IH", file.read(6))
                file.read(size - 6)
                types.append(kind)
            check(types[0] == STATES["process"] and STATES["allocation"] in types and
                  STATES["mapping"] in types, "records:", types)
            equal(json.loads(file.readline())["result"]["processes"], 1, "the next reply")
        answer = json.loads(session.request('{"op": "record", "follow": 1}\n'))
        equal(answer, {"ok": False, "error": "follow must be true or false", "invalid": True, "code": "invalid",
                       "process": None, "holder": None, "remedy": None},
              "a wrong type")


def event_lines(process, count):
    return [json.loads(process.line()) for _ in range(count)]


def poke(driver):
    """Something that is reported and leaves nothing behind."""
    driver("free", driver("reserve", 2 * MIB, 0), 2 * MIB)
    return True


@case()
def test_events_live():
    """events -f: each call of the processes as it is made, with its arguments and its result."""
    with Session() as session:
        session.start_agent()
        driver, other = session.driver(), session.driver(device=1)
        first, _ = driver("make", 4 * MIB, 0)
        for process in (driver, other):
            session.known(process.pid)
        follower = session.spawn([LIEN, "events", "-f", "--json", "--pid", driver.pid])
        human = session.spawn([LIEN, "events", "-f", "--call", "cuMemCreate"])
        # What was there before is not told; a call of the other process shows that both listen.
        wait_for("it follows", lambda: other("make", 2 * MIB, 1) and not human.lines.empty())
        wait_for("so does the other", lambda: poke(driver) and not follower.lines.empty())
        handle, address = driver("make", 2 * MIB, 0)
        driver("unmap", address, 2 * MIB)
        driver("release", handle)
        refused = driver.refused("create", 1 << 50, 0)
        driver.process.close_input()
        driver.process.wait()
        lines = []
        while not lines or lines[-1]["event"] != "exit":
            lines += event_lines(follower, 1)
        while lines[0]["event"] != "cuMemCreate":  # the pokes
            check(lines.pop(0)["event"] in ("cuMemAddressReserve", "cuMemAddressFree"), lines[0])
        equal([line["event"] for line in lines], [
            "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
            "cuMemRelease", "cuMemCreate", "exit"], "events")
        equal({line["pid"] for line in lines}, {driver.pid}, "pids")
        equal({line["command"] for line in lines}, {"prog_driver"}, "commands")
        equal({line["caller"] for line in lines[:-1]}, {"prog_driver"}, "callers")
        create = lines[0]
        equal(create["arguments"], {"size": 2 * MIB, "location": {"device": 0},
                                    "handle": hex(handle)}, "arguments")
        equal([line["result"] for line in lines[:-1]], [0] * 6 + [refused], "results")
        check(hex(first) not in json.dumps(lines), "the present state was told")
        times = [line["boot_ms"] for line in lines]
        equal(times, sorted(times), "times")
        lines = [human.line()]
        while lines[-1] and "OUT_OF_MEMORY" not in lines[-1]:  # the refused one is the last
            lines.append(human.line())
        text = "\n".join(lines)
        check(re.search(r"^\d\d:\d\d:\d\d\.\d{3} +%d prog_driver cuMemCreate\(size=2 MiB, device 1, "
                        r"handle=0x\w+\) = 0$" % other.pid, text, re.M), text)
        check("CUDA_ERROR_OUT_OF_MEMORY (2)" in text and "cuMemMap" not in text, text)
        human.signal(signal.SIGINT)
        equal(human.wait(), 0, "exit status at Ctrl-C")
        session.stop_agent()
        equal(follower.wait(), 1, "exit status without an agent")
        check("ended the connection: it is gone" in follower.said(), follower.said())


@case()
def test_events_of_lien():
    """What lien does itself is reported as such."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 4 * MIB, 0)
        session.ready(driver.pid)
        follower = session.spawn([LIEN, "events", "-f", "--json", "--call", "cuMemUnmap"])
        lines = []

        def unmapped():
            if follower.lines.empty():
                session.ask("offload", "--owner", "all")
                session.ask("restore")
                return False
            lines.append(json.loads(follower.line()))
            return True
        wait_for("an unmap", unmapped)
        equal((lines[0]["pid"], lines[0]["control"], lines[0]["caller"]),
              (driver.pid, True, "lien-control"), "who")


def row_of(screen, pid):
    rows = [line.split() for line in screen.screen()]
    return next((row for row in rows if row[:1] == [str(pid)]), [])


@case()
def test_top_live():
    """top shows the processes and what becomes of them."""
    with Session() as session:
        session.start_agent()
        job = session.replay(recording("pairs", 20))
        session.ready(*job.ranks)
        environment = session.env(**describe(session.folder))
        screen = Terminal([LIEN, "top"], environment)
        try:
            screen.shows("2 processes: 80.0 MiB on the GPUs, nccl 80.0 MiB")
            for pid in job.ranks:
                screen.wait(lambda screen, pid=pid: row_of(screen, pid)[3:9] == [
                    "40M", "40M", "0", "20", "20", "-"], "the row of %d" % pid)
            equal(session.ask("offload")["outcome"], "done", "offload")
            screen.shows("offloaded 80.0 MiB", "offloaded replay/0")
            equal(session.ask("restore")["outcome"], "done", "restore")
            screen.shows_not("offloaded")
            screen.key("home", "enter")
            screen.shows("LARGEST AT", "imported by %d" % job.ranks[1], "2 mappings")
            job.quit()
            screen.shows("process %d has ended" % job.ranks[0])
            screen.key("q")
            screen.shows("no process uses CUDA")
            session.stop_agent()
            screen.shows("lien top: waiting for the agent")
            session.start_agent()
            screen.shows("no process uses CUDA")
            screen.key("q")
            equal(screen.ended(), 0, "exit status")
        finally:
            screen.close()


if __name__ == "__main__":
    sys.exit(main())
