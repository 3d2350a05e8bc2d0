#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What a new user types: `lien replay --software`, and the lines of the README and the demo, unchanged.

See lien_test.py for what it needs.
"""

import os
import re
import signal
import subprocess
import sys

from lien_test import (
    GOLDEN, GUARD, LIEN, ROOT, Replay, Session, Skipped, case, check, equal, golden_memory, main, recording, run,
    wait_for)
from terminal import Terminal

# What a shell of a new user does not have. The machine's own agent must be none, so the socket stays ours.
PLAIN = {name: None for name in (
    "LD_LIBRARY_PATH", "LIEN_SOFTCUDA_DIR", "LIEN_SOFTCUDA_DEVICES", "LIEN_SOFTCUDA_MEMORY",
    "LIEN_SOFTCUDA_QUIET", "LIEN_SOFTNCCL", "LIEN_CONTROL", "LIEN_PLAIN")}


def start_agent(session):
    """An agent that does not know where the software driver is."""
    session.agent = session.spawn([LIEN, "agent", "--no-prepare"], **PLAIN)
    wait_for("the agent is ready", lambda: " ready: " in session.agent.said())


def mounts():
    with open("/proc/self/mounts") as file:
        return [line for line in file if " /run/lien-softcuda" in line]


@case()
def test_software_is_seen_from_its_first_call():
    with Session(fresh=True) as session:
        before_it = mounts()
        start_agent(session)
        replay = Replay(session, recording("basic"), "--software", **{**PLAIN, "CUDA_VISIBLE_DEVICES": ""})
        processes = session.ask("ps")["processes"]
        equal(sorted(p["pid"] for p in processes), sorted(replay.ranks), "processes")
        check(all(p["complete"] and p["control"] == "ready" for p in processes), processes)
        check("before it was probed" not in session.agent.said(), session.agent.said())
        equal(mounts(), before_it, "mounts outside the job")
        before = replay.verify()
        group = session.ask("comms")["groups"][0]["group"]
        done = session.lien("offload", "--comm", group[:4])  # as `lien comms --group` takes it
        check(done.code == 2 and done.err.endswith(": did you mean '%s'?\n" % group), done)
        done = session.lien("offload")
        check(done.code == 0 and "offloaded " in done.out, done)
        # Not what a program may do: but a person does, and gets another try.
        line = replay.process.ask("verify")
        check("cannot be read" in line and "lien restore" in line, line)
        while not line.startswith("verify: failed"):
            line = replay.process.line()
        equal(session.lien("restore").code, 0, "restore")
        equal(replay.verify(), before, "verified")
        replay.quit(1)  # the failure counts


@case()
def test_under_lien_run():
    """What `lien mem` advises for the replay's cudaMalloc memory is true: with `lien run`, that moves, too."""
    with Session(fresh=True) as session:
        start_agent(session)
        replay = Replay(session, recording("basic"), "--software", **PLAIN)
        before = session.ask("mem")["left"]
        check("start the job with `lien run`" in " ".join(left["reason"] for left in before), before)
        replay.quit()
        replay = Replay(session, recording("basic"), "--software", under=(LIEN, "run", "--"), **PLAIN)
        before = replay.verify()
        left = session.ask("mem")["left"]
        check("lien run" not in " ".join(part["reason"] for part in left), left)
        equal(session.lien("offload", "--owner", "all").code, 0, "offload")
        equal(session.lien("restore").code, 0, "restore")
        equal(replay.verify(), before, "verified")
        replay.quit()


@case()
def test_software_as_another_user():
    done = subprocess.run([LIEN, "replay", "--software", GOLDEN], capture_output=True, text=True,
                          user=54321, group=54321, extra_groups=[], cwd="/")
    equal(done.returncode, 1, done)
    check("--software needs root" in done.stderr, done)


@case()
def test_without_a_driver():
    env = {name: value for name, value in os.environ.items() if name not in PLAIN}
    done = run([LIEN, "replay", recording("ended")], GUARD, env=dict(env, LD_LIBRARY_PATH="/nowhere"))
    if "libcuda.so.1: cannot open" not in done.err:
        raise Skipped("this machine has a driver")
    check("without a GPU, use --software" in done.err, done)


def takes_commands(terminal):
    check(terminal.process.poll() is None, "the replay ended:", *terminal.screen())
    return any(line.startswith("commands: verify") for line in terminal.screen())


def paste(lines, commands):
    """Runs the lines as a person would: the agent in the background, the replay in a second terminal, which is
    given the commands at the end."""
    with Session(fresh=True) as session:
        env = session.env(**PLAIN, TERM="dumb")
        second = None
        try:
            for line in lines:
                words = line.replace("build/lien", LIEN)
                if line.endswith("&"):
                    session.agent = session.spawn(["sh", "-c", "exec " + words.rstrip("& ")], env=env, cwd=ROOT)
                    wait_for("the agent is ready", lambda: " ready: " in session.agent.said())
                elif " replay " in line:
                    os.chdir(ROOT)
                    second = Terminal(["sh", "-c", "exec " + words], env, columns=200)
                    wait_for("the replay takes commands", lambda: takes_commands(second))
                elif " holders " not in line:  # names a process of another run
                    done = run(["sh", "-c", words], GUARD, env=env)
                    equal(done.code, 0, done)
                    print("   %s" % line)
            for command, answer in commands:
                second.key(command + "\n")
                if answer:
                    second.shows(answer)
            equal(second.ended(), 0, "the second terminal")
        finally:
            if second:
                second.close()


@case(long=True)
def test_lines_of_the_readme():
    with open(os.path.join(ROOT, "README.md")) as file:
        text = re.search(r"^## Try it.*?(?=^## )", file.read(), re.M | re.S)[0]
    lines = re.findall(r"^    (build/lien .*)$", text, re.M)
    equal([line.split()[1] for line in lines], ["agent", "replay", "ps", "mem", "offload", "restore"], "lines")
    with golden_memory():
        paste(lines, [("verify", "verify: ok 2580 mappings"), ("quit", None)])


@case()
def test_lines_of_the_demo():
    """On a recording smaller than its own."""
    before_it = mounts()
    demo = run([sys.executable, os.path.join(ROOT, "tools/demo/demo.py"), "--soft", "--lien", LIEN, "--recording",
                recording("basic")], GUARD, env={
                    name: value for name, value in os.environ.items() if name not in PLAIN})
    check(demo.code == 0 and "demo: ok: " in demo.out, demo)
    equal(mounts(), before_it, "mounts that are left")
    lines = [re.sub(r"^\$ \S*lien ", "build/lien ", line) for line in demo.out.splitlines() if line.startswith("$ ")]
    check({"agent", "replay", "ps", "mem", "offload", "restore"} <= {line.split()[1] for line in lines}, lines)
    paste(lines, [("verify", "verify: ok "), ("quit", None)])


if __name__ == "__main__":
    sys.exit(main())
