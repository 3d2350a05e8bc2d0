#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""No client and no job holds the agent's loop up (docs/security.md, "Time").

It asserts how much work is done in one turn of the loop; how long a turn takes is only printed.
See lien_test.py for what it needs.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys

from lien_test import (
    LIEN, MIB, SOFTNCCL, came, case, check, children_of, equal, main, program, wait_for)
from users import ALICE, BOB, Shared, impostor, with_memory

MOST_RECORDS = 16384 + 4096  # agent/daemon/run.c

# Sends so many requests at once, as another user, and says when there is an answer, and how many.
FLOOD = """
import os, socket, sys, threading
os.setgroups([])
os.setgid(int(sys.argv[4]))
os.setuid(int(sys.argv[4]))
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
sent = sys.argv[2].encode() * int(sys.argv[3])
s.settimeout(60)
threading.Thread(target=s.sendall, args=(sent,), daemon=True).start()
got = 0
while got < int(sys.argv[3]):
    piece = s.recv(1 << 20)
    if not piece:
        break
    if not got:
        print("first", flush=True)
    got += piece.count(b"\\n")
print(got, flush=True)
sys.stdin.read()
"""


HOLDS = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
held = []
for _ in range(64):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def flood(session, uid, request, count):
    process = session.spawn([sys.executable, "-c", FLOOD, session.socket,
                             json.dumps(request) + "\n", count, uid])
    equal(process.line(), "first", "an answer")
    return process


def pipelined(session, lines):
    """The answers to requests that are sent at once."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(session.socket)
        connection.sendall(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        got = b""
        while got.count(b"\n") < len(lines):
            piece = connection.recv(1 << 20)
            check(piece, "the agent closed the connection")
            got += piece
    return [json.loads(line)["result"] for line in got.splitlines()]


def print_turns(session, what):
    loop = session.ask("status")["loop"]
    print("%s: longest turn %.1f ms, in: %s; %d turns, up to %d records in one" % (
        what, loop["longest_turn_ms"], loop["longest_turn_in"], loop["turns"],
        loop["most_records"]))
    equal(loop["most_requests"], 1, "requests handled in one turn")
    check(loop["most_records"] <= MOST_RECORDS, "records in one turn", loop)
    return loop


@case()
def test_connections_of_many_users():
    """As many idle ones as there are places keep nobody out."""
    with Shared() as session:
        session.start_agent()
        for uid in range(70000, 70017):
            equal(session.spawn([sys.executable, "-c", HOLDS, session.socket, uid]).line(), "held", "connections")
        for _ in range(3):
            equal(session.ask_as(BOB, "ps")["processes"], [], "an answer")


@case()
def test_pipelined_requests_wait_for_their_turn():
    """400 requests of another user do not keep root's offload waiting, nor harm it."""
    with Shared() as session:
        session.start_agent()
        driver = session.driver()
        va = with_memory(driver, 0x51)[1]
        driver("close", driver("export", driver("make", 2 * MIB, 0)[0]))  # open files are looked at
        session.ready(driver.pid)
        bob = flood(session, BOB, {"op": "check"}, 400)
        before = [answer["loop"]["requests"] for answer in pipelined(
            session, [{"op": "status"}] * 20)]
        for earlier, later in zip(before, before[1:]):
            check(later - earlier <= 2, "root's turn came after others':", before)
        for _ in range(3):
            moved = session.ask("offload", "--owner", "all", "--pid", driver.pid)
            equal(moved["bytes"], 4 * MIB, "bytes")
            session.ask("restore")
        equal(driver("check", va, 2 * MIB, 0x51), 0, "wrong bytes")
        equal(bob.line(60), "400", "answers to the flood")
        print_turns(session, "400 pipelined checks")


@case()
def test_users_take_turns():
    """Even a user with all the connections that one may have."""
    with Shared() as session:
        session.start_agent()
        floods = [flood(session, BOB, {"op": "status"}, 100) for _ in range(20)]
        counts = [answer["loop"]["requests"] for answer in pipelined(
            session, [{"op": "status"}] * 50)]
        alice = flood(session, ALICE, {"op": "status"}, 100)
        for earlier, later in zip(counts, counts[1:]):
            check(later - earlier <= 2, "one user had more turns than another:", counts)
        for process in [*floods, alice]:
            equal(process.line(), "100", "answers")
        print_turns(session, "21 clients that pipeline")


@case()
def test_lines_in_pieces():
    """Requests that come in pieces, together, and behind one that is not whole."""
    with Shared() as session:
        session.start_agent()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(session.socket)
            answers = connection.makefile("rb")
            connection.sendall(b'{"op": "ps"}\n{"op": "sta')
            check("processes" in json.loads(answers.readline())["result"], "ps")
            connection.sendall(b'tus"}\n\n{"op": ')
            check("loop" in json.loads(answers.readline())["result"], "status")
            check(not json.loads(answers.readline())["ok"], "an empty line is a request")
            connection.sendall(b'"ps"}\n' + b'{"op": "mem"}\n' * 3)
            connection.shutdown(socket.SHUT_WR)
            for _ in range(4):
                check(json.loads(answers.readline())["ok"], "the last ones")
            equal(answers.read(), b"", "behind the last answer")


def make_large(session, driver, handle):
    """4,100 mappings more: answers that go through all of them take long."""
    for _ in range(41):
        at = driver("reserve", 100 * 2 * MIB, 0)
        for index in range(100):
            driver.process.send("map %d %d %d" % (at + index * 2 * MIB, 2 * MIB, handle))
        for index in range(100):
            equal(driver.process.line(10).split()[0], "ok", "map")
    session.ready(driver.pid)
    wait_for("all is known", lambda: session.ask("status")["mappings"] == 4101)


@case(long=True)
def test_costly_answers_are_made_by_copies():
    """One at a time for each user, whatever they ask for; a client that goes away leaves none behind. A small graph is
    answered at once: a copy would take longer."""
    with Shared() as session:
        session.start_agent()
        driver = session.driver()
        handle, va = with_memory(driver, 0x54)
        session.ready(driver.pid)
        helpers = children_of(session.agent.pid)
        asked = [{"op": "check"}, {"op": "offload", "owner": "all", "dry_run": True},
                 {"op": "holders", "pid": driver.pid, "address": hex(va)}]
        answers = pipelined(session, asked)
        equal([len(answers[1]["processes"]), len(answers[2]["holders"])], [1, 2], answers)
        equal(session.ask("status")["loop"]["answers"], 0, "copies for a small graph")
        make_large(session, driver, handle)
        before = session.ask("status")["loop"]["answers"]
        answers = pipelined(session, asked)
        equal([len(answers[1]["processes"]), len(answers[2]["holders"])], [1, 4102], "large")
        equal(session.ask("status")["loop"]["answers"], before + len(asked), "answers")
        floods = [flood(session, BOB, {"op": "check"}, 20) for _ in range(10)]
        for process in floods:
            equal(process.line(60), "20", "answers")
        loop = print_turns(session, "10 clients that ask for what is costly")
        equal(loop["answers"], before + len(asked) + 200, "answers")
        equal(loop["most_answers"], 1, "of one user, at a time")
        for _ in range(50):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(session.socket)
                connection.sendall(b'{"op": "check"}\n')
        wait_for("no copy is left", lambda: children_of(session.agent.pid) == helpers)
        equal(session.agent.popen.poll(), None, "the agent has ended")


def links_of(pid):
    """How many BPF links a process keeps where they are, besides iterators, for which nobody waits."""
    count = 0
    for fd in os.listdir("/proc/%s/fd" % pid):
        if os.readlink("/proc/%s/fd/%s" % (pid, fd)) == "anon_inode:bpf_link":
            with open("/proc/%s/fdinfo/%s" % (pid, fd), encoding="ascii") as info:
                count += "link_type:\titer" not in info.read()
    return count


def caught_copy(session, helpers):
    """A copy that cannot end, because the agent does not take its answer; the agent is stopped."""
    while True:
        session.agent.signal(signal.SIGCONT)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(session.socket)
            connection.sendall(b'{"op": "graph"}\n')
            copies = []
            while not copies and not select.select([connection], [], [], 0)[0]:
                copies = [pid for pid in children_of(session.agent.pid) if pid not in helpers]
            session.agent.signal(signal.SIGSTOP)
            if not copies:
                continue  # it has ended before it was seen
            with contextlib.suppress(OSError):  # it had ended by then
                if came(lambda: in_call(copies[0], "pipe_write"), 2):
                    return copies[0]


def in_call(pid, function):
    with open("/proc/%s/wchan" % pid, encoding="ascii") as file:
        return function in file.read()


@case(long=True)
def test_large_graphs_are_told_by_copies():
    """Complete ones; the agent has begun what a copy cannot, such as looking up symbols."""
    with Shared() as session:
        session.start_agent()
        driver = session.driver()
        handle = with_memory(driver, 0x55)[0]
        make_large(session, driver, handle)
        before = session.ask("status")["loop"]["answers"]
        graph = session.ask("graph")
        check(len(json.dumps(graph)) > 100000, "a short graph")
        equal(session.ask("mem")["rows"][0]["mappings"], 4101, "mappings")
        wait_for("calls have names", lambda: not session.ask("mem", "--by", "callsite")["pending"])
        check(session.ask("status")["loop"]["answers"] >= before + 3, "answers")
        print_turns(session, "4,101 mappings")
        helpers = children_of(session.agent.pid)
        copy = caught_copy(session, helpers)
        # One that the agent takes away must not wait for the copy to end.
        equal([bool(links_of(session.agent.pid)), links_of(copy)], [True, 0], "links")
        session.agent.signal(signal.SIGCONT)
        wait_for("the copy has ended", lambda: copy not in children_of(session.agent.pid))


@case(long=True)
def test_a_flood_while_a_job_comes_to_rest():
    """Another user reports 100,000 calls while the agent cannot run, and as many while it can: the offload
    goes on, and reads them in small parts."""
    with Shared(memory="2G") as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        driver = session.driver()
        va = with_memory(driver, 0x57)[1]
        floods = [session.spawn_as(BOB, [LIEN, "run", "--", program("prog_burst"), 2, 100000])
                  for _ in range(2)]
        for process in floods:
            equal(process.line(), "ready", "prog_burst")
        session.ready(driver.pid, *(process.pid for process in floods))
        open(busy, "w").close()
        offload = session.spawn([LIEN, "offload", "--owner", "all", "--pid", driver.pid,
                                 "--timeout", 40000])
        wait_for("the offload drains", lambda: (session.ask("status")["transaction"] or {}).get(
            "phase") == "drain", step=0)
        session.agent.signal(signal.SIGSTOP)
        floods[0].ask("go", 60)
        session.agent.signal(signal.SIGCONT)
        floods[1].ask("go", 60)
        os.unlink(busy)
        equal(offload.wait(60), 0, "exit status of the offload")
        equal(session.ask("restore")["bytes"], 2 * MIB, "bytes")
        equal(driver("check", va, 2 * MIB, 0x57), 0, "wrong bytes")
        print_turns(session, "100,000 calls while a job comes to rest")


@case(long=True)
def test_nobody_waits_for_a_short_order():
    """A process that does not answer while it prepares host memory holds up only its own requests, and is named."""
    with Shared() as session:
        session.start_agent(prepare=True)
        driver = session.driver()
        va = with_memory(driver, 0x52)[1]
        session.ready(driver.pid)
        folder = session.path("said")
        os.mkdir(folder)
        os.chmod(folder, 0o777)
        asked = os.path.join(folder, "asked")
        busy = impostor(session, "unprepared", IMPOSTOR_PATH=asked)
        session.ready(busy.pid)
        busy("nccl", SOFTNCCL)
        with_memory(busy, 0x53)
        wait_for("it is to prepare its host memory", lambda: os.path.exists(asked))
        turns = session.ask("status")["loop"]["turns"]
        offload = session.spawn([LIEN, "offload", "--owner", "all", "--json"])
        wait_for("the offload is under way", lambda: session.ask("status")["transaction"])
        asked_again = pipelined(session, [{"op": "status"}] * 50)
        check(asked_again[-1]["transaction"], "the offload did not wait for its process")
        check(asked_again[-1]["loop"]["turns"] >= turns + 50, "turns", turns, asked_again[-1]["loop"])
        answer = json.loads("".join(iter(lambda: offload.line(30), None)))["error"]
        check("process %d did not answer `stage`" % busy.pid in answer and
              "busy all the time with preparing host memory" in answer, answer)
        session.ask("offload", "--owner", "all", "--pid", driver.pid, limit=10)
        session.ask("restore", "--pid", driver.pid)
        equal(driver("check", va, 2 * MIB, 0x52), 0, "wrong bytes")
        print_turns(session, "a process that does not answer")


if __name__ == "__main__":
    sys.exit(main())
