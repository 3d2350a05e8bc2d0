#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""tests/gpu/rl.py on the software driver, with a stand-in for the PyTorch processes (rl_standin.py): the turns, the
checks, and what it writes.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import json
import os
import re
import sys

from lien_test import GUARD, LIEN, MIB, ROOT, SOFTCUDA, Session, case, check, equal, main, run

SCRIPT = os.path.join(ROOT, "tests", "gpu", "rl.py")
STANDIN = os.path.join(ROOT, "tests", "integration", "rl_standin.py")
WEIGHTS = 8 * MIB        # of each rank
TRAINER = 4 * WEIGHTS
MEMORY = 96 * MIB
CACHE = 72 * MIB         # with the trainer on the same GPU it does not fit


class Run:
    """One run of rl.py: what it said, and its JSON."""

    def __init__(self, session, *args, ranks=2, cache=CACHE, **environment):
        os.makedirs(session.path("nvml"), exist_ok=True)
        session.compile("nvml/libnvidia-ml.so.1", "nvml_softcuda.c", "-shared", "-fPIC")
        meminfo, found = session.path("meminfo"), session.path("rl.json")
        with open(meminfo, "w", encoding="ascii") as file:
            file.write("MemTotal: 1000000 kB\nMemAvailable: 600000 kB\n")
        self.outcome = run(
            [sys.executable, SCRIPT, "--lien", LIEN, "--engine", STANDIN, "--meminfo", meminfo, "--json", found,
             "--gib", WEIGHTS * ranks / (1 << 30), "--cache", cache, *args], GUARD,
            session.env(LIEN_PLAIN=None, LIEN_SOCKET=None, LD_LIBRARY_PATH="%s:%s" % (
                SOFTCUDA, session.path("nvml")), **environment))
        print("\n".join("   " + line for line in self.outcome.out.splitlines()))
        self.code, self.said, self.json = self.outcome.code, self.outcome.out, None
        if os.path.exists(found):
            with open(found, encoding="utf-8") as file:
                self.json = json.load(file)

    def passes(self, last):
        equal((self.code, self.said.splitlines()[-1]), (0, last), "end")
        return self

    def fails(self, pattern):
        """With that reason, and no other."""
        equal(self.code, 1, "exit status")
        wrong = re.findall(r"^FAILED (.*)", self.said, re.M)
        check(len(wrong) == 1 and re.search(pattern, wrong[0]), "'%s' is not what fails:" % pattern, wrong)


def session_for(devices, **more):
    return Session(devices=devices, memory=str(MEMORY), **more)


def switches(variant, away):
    return [record for record in variant["switches"] if record["away"] == away]


@case(long=True)
def test_all_variants():
    with session_for(2) as session:
        ran = Run(session, "--steps", "8").passes("6 passed, 0 failed")
        lien, rebuild, keep = (ran.json["variants"][name] for name in ("lien", "rebuild", "keep"))
        for variant in (lien, rebuild, keep):
            equal([step["step"] for step in variant["steps"]], list(range(1, 9)), "steps")
        values = [[(step["losses"], step["digest"]) for step in variant["steps"]] for variant in (lien, rebuild, keep)]
        check(values[0] == values[1] == values[2], "values")
        check(len({step["losses"][0] for step in lien["steps"]}) == 8, "each step has a loss of its own")
        out = switches(lien, "trainer")
        equal([record["step"] for record in out], ["start", *range(1, 9)], "switches to the rollout")
        for record in out:
            equal((record["moved_bytes"], record["dropped_bytes"], record["left_bytes"]), (2 * TRAINER, 0, 0), "moved")
            check(record["freed_bytes"] >= 2 * TRAINER, "freed:", record)
        for record in switches(lien, "rollout"):
            equal((record["moved_bytes"], record["dropped_bytes"]), (2 * WEIGHTS, 2 * CACHE), "moved and dropped")
            check(record["freed_bytes"] >= 2 * (WEIGHTS + CACHE), "freed:", record)
        check(all("out_ms" in record and "back_ms" in record and record["host_after_bytes"] == 0
                  for record in lien["switches"][1:]), "each switch has its figures")
        equal(switches(rebuild, "trainer")[1]["out_parts_ms"], {"copy": 1.0, "groups": 2.0}, "parts")
        equal((keep["fits"], keep["whole"]["cache_bytes"]), (False, CACHE), "the whole cache")
        check("out of memory" in keep["whole"]["why"] and 0 < keep["cache_bytes"] < CACHE, "what fits:", keep)
        equal(set(lien["growth_bytes"].values()), {0}, "growth")
        equal(ran.json["not_run"], [], "not run")


@case(long=True)
def test_one_gpu():
    """A trainer and a rollout, one process each, even where there are two GPUs."""
    with session_for(2) as session:
        ran = Run(session, "--steps", "3", "--gpus", "1", "--variant", "lien", ranks=1).passes("2 passed, 0 failed")
        equal((ran.json["gpus"], list(ran.json["variants"])), (1, ["lien"]), "what ran")
        equal(len(ran.json["variants"]["lien"]["steps"][0]["losses"]), 1, "ranks")
        equal(session.used(1), 0, "the second device")
        equal(ran.json["variants"]["lien"]["growth_bytes"]["gpu_after_bytes without trainer"], None, "of three turns")


@case(long=True)
def test_other_weights_arrive():
    with session_for(1) as session:
        Run(session, "--steps", "3", "--variant", "lien", ranks=1, RL_FAULT="handover").fails(
            r"weights handed over: \[\d+\] left, \[\d+\] arrived")


@case(long=True)
def test_memory_is_lost():
    with session_for(1) as session:
        Run(session, "--steps", "3", "--variant", "rebuild", ranks=1, RL_FAULT="lost").fails(
            r"step start: the memory of trainer is not what it was: \[\d+\] left, \[\d+\] came back")


@case(long=True)
def test_other_values():
    with session_for(1) as session:
        Run(session, "--steps", "3", "--variant", "lien", "--variant", "rebuild", ranks=1, RL_FAULT="values").fails(
            r"equal values: lien, rebuild: step 1: losses of lien \['0x.*'\], of rebuild \['0x.*'\]$")


@case(long=True)
def test_ranks_differ():
    with session_for(2) as session:
        Run(session, "--steps", "3", "--variant", "rebuild", RL_FAULT="ranks").fails(
            "step 1: the ranks of the rollout differ")


@case(long=True)
def test_growth():
    """More than 64 MiB in the turns that count."""
    with Session(devices=1, memory="512M") as session:
        Run(session, "--steps", "8", "--variant", "keep", ranks=1, cache=8 * MIB, RL_FAULT="growth").fails(
            "gpu_after_bytes without trainer have grown by 83,886,080 in 7 turns")


class Fake:
    """A job of one rank, a switch, and a gauge; an agent that lies."""

    def __init__(self, name, freed=100, state=()):
        self.name, self.pids, self.freed, self.state = name, [5], freed, list(state)

    def ask(self, _command, *_):
        return [{"sum": 1, "ms": 1.0, "loss": "0x1p+0", "digest": "0x1p+0", "reward": "0x1p+0", "reserved_bytes": 0,
                 "handle": ""}]

    def out(self, _job):
        return {"moved_bytes": 60, "dropped_bytes": 40}

    def back(self, _job):
        return {}

    weights = back

    def look(self, _away):
        return self.state

    def gpu(self):
        return 1000

    host = gpu

    def gpu_freed(self, *_):
        return self.freed


@case()
def test_what_the_agent_says_is_checked():
    sys.path.append(os.path.dirname(SCRIPT))
    import rl  # pylint: disable=import-outside-toplevel

    def problems(**lies):
        turns = rl.Turns(Fake("trainer"), Fake("rollout"), Fake("switch", **lies), Fake("gauge", **lies))
        turns.begin()
        turns.step(1, "0x0p+0")
        return turns.problems
    equal(problems(), [], "an honest agent")
    equal(problems(freed=94)[0], "step start: 100 bytes of trainer were moved or dropped, NVML says that 94 are free",
          "less is free")
    equal(set(problems(state=["process 5 of trainer is running"])), {"process 5 of trainer is running"}, "not away")


@case(long=True)
def test_too_small():
    """A job that fits does not test taking turns."""
    with session_for(1) as session:
        Run(session, "--steps", "3", "--variant", "lien", ranks=1, cache=2 * MIB).fails(
            "both need more than a GPU has, lien: .* raise --gib or --cache")


@case(long=True)
def test_no_time():
    """Fewer steps, and none of the later variants; what was done is written."""
    with session_for(1) as session:
        ran = Run(session, "--steps", "60", "--minutes", "1.4", ranks=1, RL_FAULT="slow")
        check(3 <= len(ran.json["variants"]["lien"]["steps"]) < 60, "steps")
        check(ran.json["not_run"] in (["rebuild", "keep"], ["keep"]), ran.json["not_run"])  # as fast as it is
        check("not run, for there was no time: " + ", ".join(ran.json["not_run"]) in ran.said, ran.said)


@case(long=True)
def test_does_not_run():
    with session_for(1) as session:
        for words, why in ((("--gib", "0"), "--gib 0.0: must be more than 0"),
                           (("--gib", "-1"), "--gib -1.0: must be more than 0"),
                           (("--steps", "0"), "--steps 0: must be more than 0"),
                           (("--cache", "-5"), "--cache -5: must not be negative"),
                           (("--variant", "none"), "invalid choice: 'none'")):
            ran = Run(session, *words)
            check(ran.code == 2 and why in ran.outcome.err, words, ran.outcome)
        ran = Run(session, "--gpus", "3")
        equal((ran.code, ran.said), (0, "skipped: 1 GPU(s), 3 needed\n0 passed, 0 failed\n"), "three GPUs")
        outcome = run([sys.executable, SCRIPT, "--lien", LIEN, "--engine", STANDIN], 30, session.env(LD_LIBRARY_PATH=None))
        check(outcome.code == 0 and re.search("skipped: .* has no working PyTorch: .*libcuda.so.1", outcome.out),
              "without a driver:", outcome)
        outcome = run([sys.executable, SCRIPT, "--lien", "/nonexistent/lien", "--engine", STANDIN, "--minutes", "1"], 30,
                      session.env())
        check(outcome.code == 1 and "/nonexistent/lien is not there: run make first" in outcome.out, outcome)


if __name__ == "__main__":
    sys.exit(main())
