#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The Python package where something is wrong or ends too early: no agent, another's or another version's; forks,
ends of processes and of interpreters while memory is away. See lien_test.py for what it needs."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from lien_test import LIEN, Session, Skipped, case, check, equal, main, wait_for
from nccl_rank import Rank, unique_id
from python_program import JOB, PACKAGE, SIZE, jobs_of
from users import ALICE, Shared

sys.path.append(PACKAGE)
import lien  # noqa: E402
import lien.aio  # noqa: E402


# The package and the program

@case()
def test_mypy_has_nothing_to_say():
    if not shutil.which("mypy"):
        raise Skipped("mypy is not installed")
    for version in ("3.9", "%d.%d" % sys.version_info[:2]):
        done = subprocess.run(["mypy", "--strict", "--cache-dir", os.devnull, "--python-version", version, "lien"],
                              cwd=PACKAGE, capture_output=True, text=True, timeout=100, check=False)
        equal(done.returncode, 0, done.stdout + done.stderr)


def program(session, *args, **environment):
    return subprocess.run([sys.executable, "-m", "lien", *args], capture_output=True, text=True, timeout=20,
                          env=session.env(PYTHONPATH=PACKAGE, **environment), check=False)


@case()
def test_the_program_shows_what_lien_ps_shows():
    with Session(devices=2) as session:
        session.start_agent()
        rank = Rank(session, allocate=SIZE, control=True)
        for number in range(3):
            rank.made("init-rank", 1, 0, unique_id(0xa1 + number))
        first, _ = jobs_of(session, 2)
        bare = session.driver(control=False)
        bare("init", 0)
        session.ready(rank.pid)
        session.known(bare.pid)

        def same(*args):
            said = program(session, *args)
            equal((said.returncode, said.stderr), (0, ""), "`python -m lien`")
            # `lien` drops columns where the terminal is narrow
            equal(said.stdout.split(), session.lien("ps", *args).out.split(), args)
        same()
        first("lien.offload('all', [lien.SELF]).bytes")
        same()
        same("--all")
        session.stop_agent()
        session.start_agent()
        session.ready(first.pid)
        same("--all")
        session.stop_agent()
        said = program(session)
        equal((said.returncode, said.stdout), (1, ""), "without an agent")
        equal(said.stderr, session.lien("ps").text().replace("lien ps: ", "lien: ").replace(
            "`lien agent` (as root)", "`lien agent`, as root") + "\n", "what it says")
        equal(program(session, "mem").returncode, 2, "another command")


# Agents

class Answering:
    """What listens in the place of an agent, and answers every request alike; None: nothing."""

    def __init__(self, session, name, answer):
        self.path, self.answer = session.path(name), answer
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.path)
        self.socket.listen()
        self.kept = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            client = self.socket.accept()[0]
            if self.answer is None:
                self.kept.append(client)
                continue
            client.recv(1 << 16)
            client.sendall(self.answer)
            client.close()


ASK = (lien.processes, lien.memory, lien.offload, lien.restore, lambda socket: lien.holders(1, 2, socket=socket),
       lambda socket: lien.events(socket=socket),
       lambda socket: asyncio.run(lien.aio.processes(socket=socket)),
       lambda socket: asyncio.run(lien.aio.memory(socket=socket)),
       lambda socket: asyncio.run(lien.aio.offload(socket=socket)),
       lambda socket: asyncio.run(first_event(socket)))
QUESTIONS = [ask for number, ask in enumerate(ASK) if number not in (2, 3, 8)]


async def first_event(path):
    async for event in lien.aio.events(socket=path):
        return event


def error_of(function, *args, **more):
    try:
        function(*args, **more)
    except lien.LienError as error:
        return error
    return None


@case()
def test_an_agent_of_another_version():
    with Session() as session:
        for number, answer in enumerate((
                b'{"ok": true, "result": {"processes": [{"pid": 1}], "rows": [{"pid": 1}], "outcome": "done"}}',
                b'{"ok": true, "result": {}}', b'{"ok": true, "result": null}', b'{"ok": true}', b'{"ok": false}',
                b'{"ok": false, "error": "`ps` has no member fresh", "invalid": true}',
                b'{"ok": false, "error": "no such operation: ps", "code": "invalid", "remedy": null}',
                b'[1]', b'HTTP/1.1 400 Bad Request', b'\xff')):
            path = Answering(session, "agent%d" % number, answer + b"\n").path
            for ask in ASK:
                error = error_of(ask, socket=path)
                check(error and error.code in ("no-agent", "invalid") and "version" in error.remedy, answer, ask, error)
            said = program(session, "--socket", path)
            check(said.returncode == 1 and said.stderr.startswith("lien: ") and said.stderr.count("\n") == 1, said)


@case()
def test_an_agent_that_says_nothing():
    """Questions do not wait for ever."""
    with Session() as session:
        path = Answering(session, "agent", None).path
        before = lien._wire.QUESTION_S
        lien._wire.QUESTION_S = 1
        try:
            with ThreadPoolExecutor(len(QUESTIONS)) as pool:
                errors = list(pool.map(lambda ask: error_of(ask, socket=path), QUESTIONS))
            for ask, error in zip(QUESTIONS, errors):
                check(error and error.code == "no-agent" and "within 1 s" in error.message and error.remedy, ask, error)
        finally:
            lien._wire.QUESTION_S = before


LISTENS = """
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("listens", flush=True)
while True:
    listening.accept()
"""


@case()
def test_an_agent_of_another_user():
    with Shared() as session:
        folder = session.path("of-alice")
        os.mkdir(folder)
        os.chown(folder, ALICE, ALICE)
        path = os.path.join(folder, "agent.sock")
        process = session.spawn_as(ALICE, ["/usr/bin/python3", "-c", LISTENS, path])
        equal(process.line(20), "listens", process.said())
        for ask in ASK:
            error = error_of(ask, socket=path)
            check(error and error.code == "permission" and "user %d" % ALICE in error.message and error.remedy, error)


# Ends while memory is away

PROGRAM = """
import os, runpy, sys
sys.path.insert(0, os.path.dirname(%r))
sys.argv = ["job", "%d"]
globals().update({name: value for name, value in runpy.run_path(%r, run_name="job").items() if name[:2] != "__"})
init(0)
size = %d
address = tensor(size)
fill(address, size, 0x5a)
print("ready", flush=True)
sys.stdin.readline()
""" % (JOB, SIZE, JOB, SIZE)


def said_by(session, text, code=0):
    """The lines of a program with memory of its own, which ends by itself."""
    path = session.path("program.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(PROGRAM + text)
    process = session.spawn([LIEN, "run", "--", sys.executable, path], PYTHONPATH=PACKAGE)
    equal(process.line(30), "ready", process.said())
    session.ready(process.pid)
    process.send("")
    equal(process.wait(30), code, process.said())
    lines = []
    while True:
        line = process.line(10)
        if line is None:
            return lines
        lines.append(line)


@case()
def test_a_fork_in_the_block():
    """The child leaves it as well, and restores nothing."""
    with Session() as session:
        session.start_agent()
        for enter in ("with lien.offloaded('all', [lien.SELF]):",
                      "async def turn():\n  async with lien.aio.offloaded('all', [lien.SELF]):"):
            body = """
    child = os.fork()
    if not child:
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lien.processes()[0].state)
"""
            end = "asyncio.run(turn())\n" if "turn" in enter else ""
            lines = said_by(session, enter + body + end + "print(lien.processes()[0].state, holds(address, size, 0x5a))\n")
            equal(lines, ["7 offloaded", "running True"], enter)


@case()
def test_a_forked_child_asks():
    """It has no memory of its own, and its parent's stays as it is."""
    with Session() as session:
        session.start_agent()
        equal(said_by(session, """
lien.offload("all", [lien.SELF])
child = os.fork()
if not child:
    with lien.tag("kv_cache"):
        print(caught(lien.restore, [lien.SELF])["code"], lien.processes()[0].state, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(lien.processes()[0].state, lien.restore().bytes, holds(address, size, 0x5a))
"""), ["invalid offloaded", "offloaded %d True" % SIZE], "lines")


@case()
def test_a_fork_while_a_thread_looks_for_the_library():
    """The child can use tags."""
    with Session() as session:
        session.start_agent()
        equal(said_by(session, """
import lien._tag
inside, forked = threading.Event(), threading.Event()
look = lien._tag._Library._look
def slow():
    inside.set()
    forked.wait(20)
    return look()
lien._tag._Library._look = staticmethod(slow)
thread = threading.Thread(target=tagged, args=("a", int))
thread.start()
inside.wait(20)
lien._tag._Library._look = staticmethod(look)
child = os.fork()
if not child:
    signal.alarm(10)
    tagged("b", int)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
forked.set()
thread.join()
"""), ["0"], "the child's end")


@case()
def test_the_interpreter_ends():
    """Inside the block, or with memory away; what frees memory at exit, or ends contexts, does not wait."""
    with Session() as session:
        session.start_agent()
        used = session.used()
        for text, code in (
                ("with lien.offloaded('all', [lien.SELF]):\n    sys.exit(3)\n", 3),
                ("with lien.offloaded('all', [lien.SELF]):\n    raise ValueError('in the block')\n", 1),
                ("keep = lien.offloaded('all', [lien.SELF])\nkeep.__enter__()\n", 0),
                ("lien.offload('all', [lien.SELF])\n", 0),
                ("lien.offload('all', [lien.SELF])\nos._exit(4)\n", 4),
                ("lien.offload('all', [lien.SELF])\nos.kill(os.getpid(), 15)\n", -15),
                ("import atexit\natexit.register(free, address, size)\nlien.offload('all', [lien.SELF])\n", 0),
                ("import atexit\natexit.register(call, 'cuDevicePrimaryCtxRelease_v2', 0)\n"
                 "lien.offload('all', [lien.SELF])\n", 0),
                ("moved = threading.Event()\n"
                 "threading.Thread(target=lambda: [lien.offload('all') and (moved.set(), lien.restore()) for _ in "
                 "iter(int, 1)], daemon=True).start()\nassert moved.wait(20)\n", 0)):
            said_by(session, text, code)
            wait_for("it is gone", lambda: not session.ask("ps")["processes"])
            equal(session.used(), used, text)


@case()
def test_a_process_ends_in_the_block():
    """The others come back."""
    with Session() as session:
        session.start_agent()
        [staying] = jobs_of(session, 1)

        def one_ends(ending, away):
            equal([session.process(pid)["state"] for pid in sorted(away.per_process)], ["offloaded"] * 2, "states")
            os.kill(ending.pid, signal.SIGKILL)
            wait_for("it has ended", lambda: [p["pid"] for p in session.ask("ps")["processes"]] == [staying.pid])

        def block(ending):
            with lien.offloaded("all", [ending.pid, staying.pid], socket=session.socket) as away:
                one_ends(ending, away)

        async def block_of_a_task(ending):
            async with lien.aio.offloaded("all", [ending.pid, staying.pid], socket=session.socket) as away:
                one_ends(ending, away)

        for run in (block, lambda ending: asyncio.run(block_of_a_task(ending))):
            run(jobs_of(session, 1)[0])
            equal(session.process(staying.pid)["state"], "running", "state")
            check(staying("holds(address, size, 0x5a)"), "its bytes")


if __name__ == "__main__":
    sys.exit(main())
