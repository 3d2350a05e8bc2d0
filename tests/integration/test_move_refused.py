#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What an offload refuses or leaves behind, and why it says so.

See lien_test.py for what else this needs.
"""

import json
import os
import resource
import signal
import socket
import sys
import time

from lien_test import (
    LIEN, MIB, Failure, Session, brief, case, check, equal, main, recording, start_pairs, state_of, wait_for)
from move import PAIRS, WHOLE, runs_as_before, round_trip
from shapes import shapes


@case(40)
def test_what_cannot_be_moved_stays():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        plain = driver("alloc", 3 * MIB)
        unmapped = driver("create", 2 * MIB, 0)
        handle, _ = driver("make", 2 * MIB, 0)
        fd = driver("export", handle)
        again = driver("import", fd)  # its own memory, imported
        driver("close", fd)
        read_only = driver("create", 2 * MIB, 0)
        place = driver("show", 2 * MIB, read_only, 0)
        driver("access", place, 2 * MIB, 0, 1)
        driver("fill", plain, 3 * MIB, 1)
        session.ready(driver.pid)
        used = session.used()
        dry = session.ask("offload", "--owner", "all", "--dry-run")
        result = session.ask("offload", "--owner", "all")
        equal((result["bytes"], result["left"]), (dry["bytes"], dry["left"]), "as the dry run said")
        equal(result["bytes"], 2 * MIB, "moved")
        reasons = {x["reason"]: (x["allocations"], x["bytes"]) for x in result["left"]}
        equal(sorted(reasons.values()), [(1, 2 * MIB)] * 3 + [(1, 3 * MIB)], "left")
        for word in ("cudaMalloc", "without mapping it", "imported by its own", "be copied"):
            check(any(word in reason for reason in reasons), "no reason with '%s': %s" % (
                word, brief(reasons)))
        equal(session.used(), used - 2 * MIB, "device memory in use")
        equal(driver("check", plain, 3 * MIB, 1), 0, "wrong bytes of what stayed")
        session.ask("restore")
        equal(session.used(), used, "device memory in use")
        driver("release", unmapped)
        driver("release", again)


@case(40)
def test_what_keeps_the_old_memory_stays():
    """Network cards, dma-bufs and multicast objects: named, left behind, and refused with --strict."""
    with Session() as session:
        session.start_agent()
        driver = shapes(session, control=True)

        def made():
            handle, va = driver("create", 2 * MIB, 0, 1), driver("reserve", 2 * MIB)
            driver("map", va, 2 * MIB, handle, 0)
            driver("access", va, 2 * MIB, 0, 3)
            driver("fill", va, 2 * MIB, 0x51)
            return handle, va
        _, free = made()
        driver.refused("ibv-reg", 4096, 4096)  # opens the library, which is then probed
        wait_for("libibverbs is probed", lambda: any(
            row["library"] == "ibverbs" and "tests/integration" in row["path"]  # the machine has one, too
            for row in session.ask("status")["libraries"]))
        _, on_card = made()
        region = driver("ibv-reg", on_card, 4096)
        _, as_buffer = made()
        fd = driver("range-handle", as_buffer, 2 * MIB)
        bound, in_multicast = made()
        multicast = driver("mc-create", 1, 4 * MIB, 1)
        driver("mc-add", multicast, 0)
        driver("mc-bind", multicast, 0, bound, 0, 2 * MIB)
        session.ready(driver.pid)
        stay = {"network card": on_card, "dma-buf": as_buffer, "bound to a multicast": in_multicast}
        session.refused("offload", "--owner", "all", "--strict",
                        text="network card|dma-buf|bound to a multicast")
        result = session.ask("offload", "--owner", "all")
        equal(result["bytes"], 2 * MIB, "moved")
        for word in stay:
            found = [row for row in result["left"] if word in row["reason"]]
            equal([(row["allocations"], row["bytes"]) for row in found], [(1, 2 * MIB)], word)
        for va in stay.values():
            equal(driver("check", va, 2 * MIB, 0x51), 0, "wrong bytes of what stayed")
        session.ask("restore")
        equal(driver("check", free, 2 * MIB, 0x51), 0, "wrong bytes")
        driver("ibv-dereg", region)
        driver("mc-unbind", multicast, 0, 0, 2 * MIB)
        result = session.ask("offload", "--owner", "all")
        equal(result["bytes"], 6 * MIB, "moved when the card and the object have let go")
        session.ask("restore")
        driver("close", fd)


@case()
def test_open_files_that_cannot_be_read():
    """Exported memory may still be open somewhere: who cannot find out refuses."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        handle, va = driver("make", 2 * MIB, 0)
        driver("export", handle)
        driver("fill", va, 2 * MIB, 0x51)
        session.ready(driver.pid)
        taken = {int(fd) for fd in os.listdir("/proc/%d/fd" % session.agent.pid)}
        _, second = [fd for fd in range(len(taken) + 2) if fd not in taken][:2]
        before = resource.prlimit(session.agent.pid, resource.RLIMIT_NOFILE)
        # One is left, for the connection.
        resource.prlimit(session.agent.pid, resource.RLIMIT_NOFILE, (second, before[1]))
        session.refused("offload", "--owner", "all", text="still open somewhere: Too many open files")
        resource.prlimit(session.agent.pid, resource.RLIMIT_NOFILE, before)
        session.ask("offload", "--owner", "all")
        session.ask("restore")
        equal(driver("check", va, 2 * MIB, 0x51), 0, "wrong bytes")


@case(40)
def test_holder_without_control_library():
    with Session() as session:
        session.start_agent()
        owner = session.driver()
        bare = session.driver(control=False)
        handle, va = owner("make", 2 * MIB, 0)
        owner("fill", va, 2 * MIB, 3)
        fd = owner("export", handle)
        taken = bare("getfd", owner.pid, fd)
        place = bare("show", 2 * MIB, bare("import", taken), 0)
        owner("close", fd)
        bare("close", taken)
        session.ready(owner.pid)
        for more in ([], ["--with-closure", "--pid", owner.pid], ["--dry-run"]):
            session.refused("offload", "--owner", "all", *more, text="mapped by process %d at %s, "
                            "which cannot take part: .*no control library" % (bare.pid, hex(place)))
        equal(session.process(bare.pid)["control"], "none", "control")
        equal(bare("check", place, 2 * MIB, 3), 0, "wrong bytes")
        bare.end()
        session.forgotten(bare.pid)
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "bytes")
        session.ask("restore")
        equal(owner("check", va, 2 * MIB, 3), 0, "wrong bytes")


@case(40)
def test_processes_without_control_library():
    with Session() as session:
        session.start_agent()
        job = session.replay(recording("pairs", PAIRS), "--no-control")
        dry = session.ask("offload")
        equal(dry["outcome"], "nothing to do", "outcome")
        equal(sorted(x["pid"] for x in dry["left"]), sorted(job.ranks), "left")
        check("lien attach" in dry["left"][0]["reason"], brief(dry))
        session.refused("offload", "--pid", job.ranks[0], text="no control library")
        runs_as_before(session, job)


@case(60)
def test_busy_device():
    busy = None
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS)
        open(busy, "w").close()
        began = time.monotonic()
        said = session.refused("offload", "--timeout", 600, text="process (%d|%d), drain: " % (
            job.ranks[0], job.ranks[1]))
        took = time.monotonic() - began
        check("busy" in said, said)
        check(0.5 <= took < 5, "refused after %.1f s" % took)
        said = session.refused("offload", "--timeout", 300, text="busy")
        os.unlink(busy)
        runs_as_before(session, job)
        round_trip(session, job)
        job.quit()


@case(60)
def test_capture_under_way():
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        driver = session.driver()
        handle, va = driver("make", 2 * MIB, 0)
        driver("fill", va, 2 * MIB, 8)
        session.ready(driver.pid)
        for mode in (0, 1, 2):  # global, thread-local, relaxed
            driver("capture", mode)
            session.refused("offload", "--owner", "all",
                            text="process %d is capturing a CUDA graph" % driver.pid)
            equal(session.ask("offload", "--owner", "all", "--pid", *[job.ranks[0]], "--pid",
                              job.ranks[1])["bytes"], WHOLE["bytes"], "of the others")
            session.ask("restore")
            driver("capture-end")  # fails when the capture was spoilt
            check(session.process(driver.pid)["complete"], "incomplete after a capture")
            equal(session.ask("offload", "--owner", "all")["bytes"], WHOLE["bytes"] + 2 * MIB,
                  "after the capture")
            session.ask("restore")
            equal(driver("check", va, 2 * MIB, 8), 0, "wrong bytes")
        job.verify()


@case(60)
def test_capture_that_begins_while_devices_are_busy():
    """Calls that are not NCCL's are not held: the wait for the devices must not spoil what they begin."""
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = start_pairs(session, PAIRS)
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        for mode in (0, 1, 2):
            open(busy, "w").close()
            offload = session.spawn([LIEN, "offload", "--timeout", "20000"])
            wait_for("it waits for the devices", lambda: session.ask("status")["transaction"])
            driver("capture", mode)
            os.unlink(busy)
            offload.wait(20)
            driver("capture-end")  # fails when the capture was spoilt
            session.ask("restore")
        job.verify()


@case(90)
def test_stopped_rank():
    """A process that does not answer is waited for with a limit, and named."""
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        os.kill(job.ranks[1], signal.SIGSTOP)
        wait_for("it is stopped", lambda: state_of(job.ranks[1]) == "T")
        began = time.monotonic()
        session.refused("offload", "--timeout", 1000, text="process %d did not answer" %
                        job.ranks[1], limit=40)
        took = time.monotonic() - began
        check(took < 15, "refused after %.1f s" % took)
        equal(session.used(), WHOLE["bytes"], "device memory in use")
        session.ask("ps", limit=5)
        os.kill(job.ranks[1], signal.SIGCONT)
        runs_as_before(session, job)
        round_trip(session, job)
        job.quit()


@case(60)
def test_device_filled_while_offloaded():
    with Session(memory="256M") as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        session.ask("offload")
        hog = session.driver(control=False)
        taken = [hog("alloc", 230 * MIB)]
        for _ in range(2):
            session.refused("restore", text="device 0 of process %d needs 48.0 MiB and has 26.0 "
                            "MiB free: free 22.0 MiB there; nothing is lost: `lien restore` again"
                            % job.ranks[0])
            equal(session.used(1), 0, "device memory of the other, for which there is room")
        hog("memfree", taken.pop())
        result = session.ask("restore")
        equal(result["outcome"], "done", "outcome")
        runs_as_before(session, job)
        hog.end()
        round_trip(session, job)
        job.free()
        job.quit()


@case(60)
def test_no_host_memory():
    with Session(memory="2G") as session:
        session.start_agent()
        driver = session.driver()
        handle, va = driver("make", 512 * MIB, 0)
        driver("fill", va, 512 * MIB, 4)
        small = driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        with open("/proc/%d/statm" % driver.pid) as statm:
            size = int(statm.read().split()[0]) * resource.getpagesize()
        driver("limit", resource.RLIMIT_AS, size + 128 * MIB)
        session.refused("offload", "--owner", "all",
                        text="process %d, save: no pinned host memory" % driver.pid)
        equal(session.used(), 514 * MIB, "device memory in use")
        equal(driver("check", va + 500 * MIB, MIB, 4), 0, "wrong bytes")
        driver("release", handle)
        driver("unmap", va, 512 * MIB)
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "what there is room for")
        session.ask("restore")
        check(driver("retain", small[1]), "not restored")


@case(40)
def test_second_agent():
    with Session() as session:
        agent = session.start_agent()
        outcome = session.lien("agent")
        check(outcome.code == 1 and "listens on %s already" % session.socket in outcome.err,
              outcome)
        equal(len(outcome.err.splitlines()), 1, "lines: %s" % outcome)
        session.ask("ps")
        session.kill_agent()
        check(os.path.exists(session.socket), "no socket is left by a killed agent")
        session.refused("ps", text="start one with `lien agent`")
        check(session.start_agent().pid != agent.pid, "the same agent")
        session.ask("ps")
        session.stop_agent()
        check(not os.path.exists(session.socket), "the socket is left by an agent that ended")


@case(60)
def test_second_agent_with_another_socket():
    """One per node: the second one refuses, or at least takes nothing from the first one."""
    with Session() as session:
        session.start_agent()
        second = session.spawn([LIEN, "agent", "--no-journal", "--socket",
                                session.path("other.sock")])
        wait_for("it is ready or ended", lambda: second.popen.poll() is not None or
                 " ready: " in second.said(), 15)
        job = session.replay(recording("pairs", PAIRS))
        sockets = [session.socket, session.path("other.sock")]

        def controls(pid):
            answers = [session.lien("ps", "--json", "--socket", path) for path in sockets]
            return sorted(p["control"] for answer in answers
                          for p in json.loads(answer.out)["processes"] if p["pid"] == pid)
        try:
            for pid in job.ranks:
                wait_for("one agent has the process", lambda p=pid:
                         controls(p) == ["ready", "taken"])
            outcomes = [session.lien("offload", "--pid", job.ranks[0], "--with-closure",
                                     "--dry-run", "--socket", path) for path in sockets]
            check(1 in [o.code for o in outcomes], "both agents would move it")
            check("another agent" in outcomes[0].err + outcomes[1].err,
                  "no reason: %s" % (outcomes[0].err + outcomes[1].err))
            for path in sockets:
                session.lien("offload", "--socket", path)
            for path in sockets:
                session.lien("restore", "--socket", path)
            equal(job.verify()[0], 4 * PAIRS, "mappings verified")
        finally:
            second.end()


@case(40)
def test_agent_without_rights():
    with Session() as session:
        os.chmod(session.folder, 0o777)
        for prefix, words in (
                (["setpriv", "--reuid", "65534", "--clear-groups"], "CAP_BPF, CAP_PERFMON"),
                (["su", "-s", "/bin/sh", "nobody", "-c", 'exec "$0" "$@"', "--"], "CAP_BPF"),
                (["setpriv", "--bounding-set", "-bpf,-sys_admin", "--inh-caps", "-all"], "CAP_BPF"),
                (["setpriv", "--bounding-set", "-perfmon,-sys_admin"], "CAP_PERFMON"),
                (["setpriv", "--bounding-set", "-sys_ptrace"], "CAP_SYS_PTRACE")):
            agent = session.spawn([*prefix, LIEN, "agent", "--socket", session.path("x.sock")])
            try:
                code = agent.wait(10)
            except Failure:
                raise Failure("runs on: %s; %s" % (" ".join(prefix), agent.said())) from None
            lines = [line for line in agent.said().splitlines() if line.strip()]
            check(code == 1, "%s: exit status %d: %s" % (" ".join(prefix), code, lines))
            check(len(lines) == 1, "%s: not one line: %s" % (" ".join(prefix), lines))
            check(words in lines[0], "%s: no %s: %s" % (" ".join(prefix), words, lines))
            check("run as root" in lines[0], "no remedy: %s" % lines)
            check(not os.path.exists(session.path("x.sock")), "a socket is left behind")


@case(40)
def test_wrong_input():
    with Session() as session:
        session.refused("ps", text="no agent listens on .* start one with `lien agent`")
        session.start_agent()
        driver = session.driver()
        _, va = driver("make", 2 * MIB, 0)
        pid = driver.pid
        dead = session.driver()
        dead.end()
        wait_for("the dead one is forgotten", lambda: not session.process(dead.pid))
        for number in (dead.pid, os.getpid(), 4000000):
            for command in (["offload", "--pid", number], ["restore", "--pid", number],
                            ["offload", "--dry-run", "--pid", number],
                            ["offload", "--pid", pid, "--pid", number],
                            ["holders", number, "0x1000"]):
                session.refused(*command, text="process %d is not known to the agent" % number)
        for address in ("0x1000", "0", hex(va - 1), hex(va + 2 * MIB), "0xffffffffffffffff"):
            session.refused("holders", pid, address, text="no GPU memory is known at")
        session.ask("holders", pid, hex(va + 2 * MIB - 1))
        for command in (["holders", pid], ["holders", pid, "zzz"], ["holders", "-1", "0x10"],
                        ["holders", pid, "0x1" + "0" * 20], ["offload", "--pid", "x"],
                        ["offload", "--pid", "0"], ["offload", "--timeout", "0"],
                        ["offload", "--timeout", "-1"], ["offload", "--timeout", "1e9"],
                        ["offload", "--nonsense"], ["offload", "extra"], ["restore", "--strict"],
                        ["graph", "--format", "png"], ["mem", "--pid", "0x"], ["nonsense"], [],
                        ["run"], ["record"], ["replay"]):
            outcome = session.lien(*command)
            check(outcome.code == 2 and outcome.err and not outcome.out,
                  "not refused as wrong usage: %s" % outcome)
        outcome = session.lien("mem", "--json", "--pid", dead.pid)
        check(outcome.code in (0, 1), outcome)
        session.refused("graph", "--output", session.path("no/such/folder"), text="No such file")
        equal(session.process(pid)["bytes"], 2 * MIB, "bytes")


@case(40)
def test_wrong_requests():
    with Session() as session:
        session.start_agent()
        for line in ("", "{}", "[]", "null", "nonsense", "{\"op\": 1}", "{\"op\": \"nonsense\"}",
                     "{\"op\": \"ps\", \"pid\": 1}", "{\"op\": \"ps\", \"op\": \"mem\"}",
                     "{\"op\": \"offload\", \"owner\": 1}", "{\"op\": \"offload\", \"pids\": 1}",
                     "{\"op\": \"offload\", \"pids\": [\"1\"]}",
                     "{\"op\": \"offload\", \"pids\": [0]}",
                     "{\"op\": \"offload\", \"pids\": [-5]}",
                     "{\"op\": \"offload\", \"timeout_ms\": 0}",
                     "{\"op\": \"offload\", \"timeout_ms\": \"1\"}",
                     "{\"op\": \"offload\", \"timeout_ms\": 1e300}",
                     "{\"op\": \"offload\", \"strict\": 1}",
                     "{\"op\": \"restore\", \"strict\": true}",
                     "{\"op\": \"holders\"}", "{\"op\": \"holders\", \"pid\": 1}",
                     "{\"op\": \"holders\", \"pid\": 1, \"address\": 4096}",
                     "{\"op\": \"holders\", \"pid\": 1, \"address\": \"0x\"}",
                     "{\"op\": \"holders\", \"pid\": 1, \"address\": \"0xzz\"}",
                     "{\"op\": \"holders\", \"pid\": -1, \"address\": \"0x10\"}",
                     "{\"op\": \"ps\"} x", "{\"op\": \"\\ud800\"}", "\0", "[" * 5000,
                     "{\"op\": \"" + "x" * 100000 + "\"}"):
            answer = session.request(line + "\n")
            try:
                reply = json.loads(answer)
            except ValueError:
                raise Failure("no JSON for %s: %s" % (brief(line), brief(answer))) from None
            check(reply["ok"] is False and reply["error"] and "\n" not in reply["error"],
                  "%s: %s" % (brief(line), brief(answer)))
        answer = session.request(b"\xff\xfe{\"op\": \"ps\"}\n")
        equal(json.loads(answer)["ok"], False, "not UTF-8")
        # A request without end, many at once, half of one, and those who hang up early.
        check("longer than 1 MiB" in session.request(b"x" * (1 << 20)), "a long line was taken")
        answers = session.request("{\"op\": \"status\"}\n" * 50)
        check(answers.count("\n") >= 1 and "\"ok\": true" in answers.replace("\":true", "\": true"),
              brief(answers))
        files = "/proc/%d/fd" % session.agent.pid
        before, connections = len(os.listdir(files)), []
        for number in range(100):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(session.socket)
            connection.sendall([b"{\"op\": \"graph\"}\n", b"{\"op\":", b"", b"\n\n\n",
                                b"{\"op\": \"record\"}\n"][number % 5])
            connections.append(connection)
        session.ask("ps", limit=5)
        for connection in connections:
            connection.close()
        session.ask("ps", limit=5)
        wait_for("connections are closed", lambda: len(os.listdir(files)) < before + 10)


if __name__ == "__main__":
    sys.exit(main())
