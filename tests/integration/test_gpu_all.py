#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What tests/gpu/all.sh keeps of its runs, tried with runs that need no GPU. Prints a line per case, and
"N passed, N failed" at the end."""

import json
import os
import signal
import sys
import tempfile
import time

from lien_test import ROOT, Process, alive, case, check, equal, main, run, wait_for

SCRIPT = os.path.join(ROOT, "tests", "gpu", "all.sh")
# Does as it is told: a run without parts, or those parts that --only names. "slow" never ends.
STANDIN = """
import json, os, sys, time
words, figures = sys.argv[1:], None
log = open(os.environ["RAN"], "a")
print("some words", flush=True)
for n, word in enumerate(words):
    log.write(word + "\\n"); log.flush()
    if word == "slow": open(os.environ["RAN"] + ".pid", "w").write(str(os.getpid())); time.sleep(1000)
    if word == "--json": json.dump({"figure": 7}, open(words[n + 1], "w"))
    if word == "--only" and words[n + 1].startswith("slow"): time.sleep(1000)
    if word == "--only" and words[n + 1] != "silent":
        name = words[n + 1]
        print("FAILED %s: it broke" % name if name == "bad" else "skipped %s: no GPU" % name if name == "none"
              else "ok %s (1.5 s)" % name, flush=True)
if "skip" in words: print("skipped: no driver")
print("0 passed, 0 failed" if "skip" in words else "3 passed, 1 failed" if "fail" in words else "4 passed, 0 failed")
sys.exit("fail" in words or "bad" in words)
"""


class All:
    def __init__(self):
        self.folder = tempfile.mkdtemp()
        self.json, self.ran = self.path("all.json"), self.path("ran")
        with open(self.path("standin.py"), "w", encoding="utf-8") as file:
            file.write(STANDIN)

    def path(self, name):
        return os.path.join(self.folder, name)

    def entry(self, name, *words, seconds=1, **more):
        return {"name": name, "command": [sys.executable, self.path("standin.py"), *words], "seconds": seconds, **more}

    def argv(self, runs, *args):
        with open(self.path("runs.json"), "w", encoding="utf-8") as file:
            json.dump(runs, file)
        with open(self.ran, "w", encoding="utf-8"):
            pass
        return [SCRIPT, "--runs", self.path("runs.json"), "--json", self.json, "--gpus", "2", *args]

    def call(self, runs, *args, code=0, minutes=1.0):
        """The states of the runs."""
        outcome = run(self.argv(runs, "--minutes", minutes, *args), 100, dict(os.environ, RAN=self.ran))
        print("\n".join("   " + line for line in outcome.out.splitlines()))
        equal(outcome.code, code, "exit status: %s" % outcome)
        return {name: found["state"] for name, found in self.found().items()}

    def found(self):
        with open(self.json, encoding="utf-8") as file:
            return json.load(file)["runs"]

    def words(self):
        with open(self.ran, encoding="utf-8") as file:
            return file.read().split()


@case()
def test_states():
    every = All()
    runs = [every.entry("good", "a", "--json", "{json}"), every.entry("bad", "fail"), every.entry("none", "skip"),
            every.entry("large", gpus=4), every.entry("long", seconds=1000),
            {"name": "later", "missing": "nobody has written it"}]
    states = every.call(runs, code=1)
    equal(states, {"good": "passed", "bad": "failed", "none": "skipped", "large": "skipped", "long": "pending",
                   "later": "missing"}, "states")
    found = every.found()
    equal((found["good"]["last"], found["good"]["figures"]), ("4 passed, 0 failed", [{"figure": 7}]), "good")
    equal([found[name]["why"] for name in ("bad", "none", "large", "later")],
          ["3 passed, 1 failed", "skipped: no driver", "needs 4 GPUs, and here are 2", "nobody has written it"], "why")
    check(found["long"]["why"].startswith("takes about 1000 s, and "), found["long"])
    equal(list(found), [entry["name"] for entry in runs], "order")


@case(long=True)
def test_the_next_call_goes_on():
    """What is done is not run again, unless asked for; what was missing, skipped or pending is run when it can be."""
    every = All()
    every.call([every.entry("good", "a"), every.entry("bad", "fail"), every.entry("large", "b", gpus=4),
                every.entry("long", "c", seconds=1000), {"name": "later", "missing": "not yet"}], code=1)
    earlier = every.path("earlier.json")
    os.rename(every.json, earlier)
    runs = [every.entry("good", "a"), every.entry("bad", "fail"), every.entry("large", "b"), every.entry("long", "c"),
            every.entry("later", "d")]
    states = every.call(runs, "--continue", earlier, code=1)
    equal((states, every.words()), (
        {"good": "passed", "bad": "failed", "large": "passed", "long": "passed", "later": "passed"}, ["b", "c", "d"]),
        "the second call")
    check("why" not in every.found()["later"], "no longer missing:", every.found()["later"])
    equal([found["call"] for found in every.found().values()], [1, 1, 2, 2, 2], "calls")
    every.call(runs, "--again", "good", code=1)  # continues the file that is there
    equal(every.words(), ["a"], "again")
    with open(every.json, encoding="utf-8") as file:
        equal(len(json.load(file)["calls"]), 3, "calls")


@case(long=True)
def test_parts():
    every = All()
    runs = [every.entry("many", part="--only", parts=["one", "two", "bad", "slow-one", "three"])]
    states = every.call(runs, code=1, minutes=0.25)
    equal(states, {"many": "partly"}, "no time for all")
    equal({name: part["state"] for name, part in every.found()["many"]["parts"].items()},
          {"one": "passed", "two": "passed", "bad": "failed"}, "parts")
    runs[0]["parts"][3] = "four"  # which ends
    states = every.call(runs, code=1)
    equal(states, {"many": "failed"}, "all parts")
    equal(every.words(), ["--only", "four", "--only", "three"], "what was left")
    equal(every.found()["many"]["parts"]["bad"], {"state": "failed", "why": "it broke"}, "the part that failed")


@case(long=True)
def test_parts_that_this_machine_cannot_run():
    every = All()
    runs = [every.entry("many", part="--only", parts=["one", "none"]),
            every.entry("mute", part="--only", parts=["silent", "two"])]
    states = every.call(runs, code=1)
    equal(states, {"many": "partly", "mute": "failed"}, "states")
    equal(every.found()["mute"]["why"], "it ended with 0, and said nothing of silent", "why")
    every.call(runs, code=1)
    equal(every.words(), ["--only", "none"], "which another machine may run")


@case(long=True)
def test_a_run_that_does_not_end():
    """It is ended, and tried once more; the file says so."""
    every = All()
    runs = [every.entry("stuck", "slow")]
    equal(every.call(runs, minutes=0.22), {"stuck": "cut"}, "the first time")
    with open(every.ran + ".pid", encoding="ascii") as file:
        pid = int(file.read())
    check(not alive(pid), "it still runs")
    equal(every.call(runs, code=1, minutes=0.22), {"stuck": "failed"}, "the second time")
    check(every.found()["stuck"]["why"].endswith(", 2 times"), every.found()["stuck"])


@case(long=True)
def test_the_call_is_ended():
    """By the machine's limit: the file has what was found, and the run that was under way is begun anew."""
    every = All()
    runs = [every.entry("good", "a"), every.entry("stuck", "slow")]
    process = Process(every.argv(runs), dict(os.environ, RAN=every.ran))
    wait_for("it is under way", lambda: "slow" in every.words())
    process.signal(signal.SIGKILL)
    process.wait()
    equal({name: found["state"] for name, found in every.found().items()}, {"good": "passed", "stuck": "cut"}, "states")
    runs[1]["command"][-1] = "b"
    equal(every.call(runs), {"good": "passed", "stuck": "passed"}, "the next call")
    equal(every.words(), ["b"], "what it ran")


@case(long=True)
def test_refused():
    every = All()
    for text, why in (("{", "cannot be continued: "), ("[]", "was not written by all.sh"), (None, "No such file")):
        path = every.path("other.json")
        if text is None:
            os.unlink(path)
        else:
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
        outcome = run(every.argv([], "--continue", path), 20)
        check(outcome.code == 1 and why in outcome.err and path in outcome.err, why, outcome)
    for words, why in ((("--minutes", "0"), "--minutes 0.0: must be more than 0"),
                       (("--only", "nothing"), "there is no run nothing: --list shows them")):
        outcome = run(every.argv([], *words), 20)
        check(outcome.code == 2 and why in outcome.err, outcome)


@case(long=True)
def test_the_real_list():
    """Each program exists, or is listed as missing; and it has the options that it is given."""
    began = time.monotonic()
    outcome = run([SCRIPT, "--list"], 30)
    lines = dict(line.split(": ", 1) for line in outcome.out.splitlines())
    equal(list(lines)[:3], ["gpu_check", "rl", "nccl_versions"], "the most valuable ones")
    helps = {}
    for name, line in lines.items():
        if line.startswith("missing: "):
            continue
        program, *words = line.split()[1:]
        if program not in helps:
            helps[program] = run([sys.executable, program, "--help"], 30).out
        for word in words:
            check(not word.startswith("--") or word in helps[program], name, "has no", word)
    check(len(helps) >= 4, "programs:", list(helps), "%.1f s" % (time.monotonic() - began))


if __name__ == "__main__":
    sys.exit(main(agents=False))
