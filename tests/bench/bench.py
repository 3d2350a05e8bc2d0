#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What lien costs, on the software driver: figures to compare with each other within one run.

Not with those of another machine: here a device's memory is host memory, and a probe costs what it
costs under this kernel and hypervisor. tests/gpu/bench.py has the figures of real GPUs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))

import lien_test
from lien_test import GOLDEN, MIB, Session, check, equal, program

from attaching import attaching
from traced import KINDS, cost, programs
from translated import translated

ANSWERS = (("mem",), ("ps",), ("comms",), ("graph",), ("graph", "--format", "svg"),
           ("check",), ("top", "--once"))
PHASES = {"offload": ("drain", "check", "save", "unmap", "drop"),
          "restore": ("create", "export", "import", "finish")}


def set_up(session):
    """Seconds until the golden job is ready, and the job."""
    began = time.monotonic()
    job = session.replay(GOLDEN, limit=120)
    return time.monotonic() - began, job


def timed(count, function):
    times = []
    for _ in range(count):
        began = time.monotonic()
        function()
        times.append((time.monotonic() - began) * 1e3)
    return {"ms": statistics.median(times), "worst_ms": max(times)}


def answers(session):
    """Times of commands, the start of the program included; those that this lien has."""
    found = {}
    for command in ANSWERS:
        code = session.lien(*command).code
        if code != 2:
            check(code in (0, 1), "lien", *command, "ended with", code)
            found[" ".join(command)] = timed(20, lambda command=command: session.lien(*command))
    return found


def moved(session, operation, *more):
    result = session.ask(operation, "--timeout", 60000, *more, limit=120)
    equal(result["outcome"], "done", operation)
    return {"ms": result["ms"], "bytes": result["bytes"],
            "phases": {phase: max(p["ms"][phase] for p in result["processes"])
                       for phase in PHASES[operation]}}


def with_agent():
    """Of the golden job under an agent."""
    with Session(memory="6G") as session:
        session.start_agent()
        rss = [session.ask("status")["rss_bytes"]]
        seconds, job = set_up(session)
        session.ready(*job.ranks)
        status = session.ask("status")
        rss.append(status["rss_bytes"])
        rounds = [{operation: moved(session, operation) for operation in PHASES} for _ in range(3)]
        verified = [{"offload": moved(session, "offload", "--verify"),
                     "restore": moved(session, "restore")} for _ in range(2)]
        job.verify()
        return {
            "seconds": seconds, "mappings": status["mappings"], "events": status["events"],
            "rss": rss, "rounds": rounds,
            "verified": verified,
            "answers": answers(session),
            "mem_socket": timed(60, lambda: session.request('{"op": "mem"}\n')),
            "graph_socket": timed(10, lambda: session.request('{"op": "graph"}\n')),
            "rss_at_the_end": session.ask("status")["rss_bytes"]}


def golden(tries):
    """Set-up without an agent and with one, in turn; the least of each counts."""
    without = []
    best = None
    for _ in range(tries):
        with Session(memory="6G") as session:
            seconds, job = set_up(session)
            without.append(seconds)
            job.end()
        found = with_agent()
        if not best or found["seconds"] < best["seconds"]:
            best = found
    best["seconds_without"] = min(without)
    best["ratio"] = best["seconds"] / best["seconds_without"]
    return best


def built(name):
    """A bench of the graph alone, which build.mk has linked."""
    return os.path.join(os.environ.get("BUILD") or "build", "tests", "bench", name)


def aliases(mappings):
    """Half as many, then so many mappings of one allocation."""
    found = subprocess.run([built("aliases"), str(mappings // 2)],
                           stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(found.stdout)


def scale(mappings):
    """The graph alone, in a process of its own."""
    found = subprocess.run([built("scale"), str(mappings)],
                           stdout=subprocess.PIPE, check=True)
    found = json.loads(found.stdout)
    equal((found["odd"], found["unmatched"]), (0, 0), "what the graph could not make sense of")
    return found


def row(what, value, note=""):
    print("%-46s %14s  %s" % (what, value, note))


def columns(title, values):
    print("%-24s" % title + "".join("%12s" % value for value in values))


def call_table(figures):
    """Of a traced call: whole, and the time in the BPF programs alone."""
    columns("ns of one call", KINDS)
    for name, entry in [*figures["calls"].items(),
                        ("lien, perf", figures["attaching"]["perf"]["ns"])]:
        columns(name, ["%.0f" % entry[kind] for kind in KINDS])
        if entry.get("lost"):
            print("    %d records lost" % entry["lost"])
    for name, entry in figures["programs"].items():
        for at, place in enumerate(("entry", "return")):
            columns("program at %s, %s" % (place, name),
                    ["%.0f" % entry[kind][at] if entry[kind][at] else "-" for kind in KINDS])


def attach_table(found):
    for name, entry in found.items():
        note = "%d calls of %d files" % (entry["calls"], entry["files"])
        row("agent's start, by " + name, "%.0f ms" % entry["attach_ms"], note)
        row("until a copy of the driver is probed", "%.1f ms" % entry["copy_ms"])
        row("agent's end", "%.0f ms" % entry["detach_ms"])


def handle_table(found):
    for kind, each in found.items():
        for threads, (direct, ours) in each.items():
            row("%s of handles, %d threads" % (kind, threads), "%.0f ns" % direct,
                "%.0f ns by way of the control library" % ours)


def table(figures):
    call_table(figures)
    handle_table(figures["translated"])
    attach_table(figures["attaching"])
    graph = figures["scale"]
    what = "%d mappings, %d processes: " % (graph["mappings"], graph["processes"])
    row(what + "memory", "%.0f MiB" % graph["resident_mib"],
        "%.0f bytes a mapping" % graph["bytes_per_mapping"])
    row(what + "events", "%.1f million/s" % (graph["events_per_second"] / 1e6),
        "%.1f when full" % (graph["events_per_second_when_full"] / 1e6))
    row(what + "lien mem", "%.0f ms" % graph["mem_ms"])
    row(what + "plan of one communicator, of 1,024", "%.1f ms" % graph["plan_ms"][0],
        "%.1f ms" % graph["plan_ms"][1])
    row(what + "dump", "%.2f s" % graph["dump_s"], "%d records" % graph["dump_events"])
    many = figures["aliases"]
    for step in ("apply", "plan", "holders", "mem", "check", "unmap", "exit"):
        row("%d mappings of one allocation: %s" % (many["mappings"], step),
            "%.1f ms" % many[step]["ms"], "x %.2f for twice as many" % many[step]["ratio"])
    job = figures.get("golden")
    if not job:
        return
    row("set-up of the golden job, no agent", "%.2f s" % job["seconds_without"],
        "%d mappings" % job["mappings"])
    row("set-up of the golden job, agent", "%.2f s" % job["seconds"], "x %.2f" % job["ratio"])
    for operation, phases in PHASES.items():
        first, later = job["rounds"][0][operation], [r[operation] for r in job["rounds"][1:]]
        best = min(later, key=lambda entry: entry["ms"])
        row("%s, first" % operation, "%.0f ms" % first["ms"], "%.0f MiB" % (first["bytes"] / MIB))
        row("%s, later" % operation, "%.0f ms" % best["ms"], ", ".join(
            "%s %.0f" % (phase, best["phases"][phase]) for phase in phases))
        checked = min((r[operation] for r in job["verified"]), key=lambda entry: entry["ms"])
        row("%s, --verify" % operation, "%.0f ms" % checked["ms"],
            "x %.2f" % (checked["ms"] / best["ms"]))
    for name, entry in job["answers"].items():
        row("lien " + name, "%.1f ms" % entry["ms"], "worst %.1f" % entry["worst_ms"])
    row("mem, on the socket", "%.1f ms" % job["mem_socket"]["ms"],
        "worst %.1f" % job["mem_socket"]["worst_ms"])
    row("graph, on the socket", "%.1f ms" % job["graph_socket"]["ms"],
        "worst %.1f" % job["graph_socket"]["worst_ms"])
    row("agent's memory before and with the job", "%.1f MiB" % (job["rss"][0] / MIB),
        "%.1f MiB, at the end %.1f MiB" % (job["rss"][1] / MIB, job["rss_at_the_end"] / MIB))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file")
    parser.add_argument("--calls", type=int, default=10000, help="in each of five parts")
    parser.add_argument("--rounds", type=int, default=5, help="without probes, with lien's, ...")
    parser.add_argument("--mappings", type=int, default=1000000, help="in the largest graph")
    parser.add_argument("--aliases", type=int, default=300000, help="of one allocation")
    parser.add_argument("--tries", type=int, default=2, help="set-ups with and without an agent")
    options = parser.parse_args()
    output = open(options.json, "w") if options.json else None
    if os.geteuid():
        print("bench: the agent needs root")
        return 77
    lien_test.enter()
    figures = {"kernel": os.uname().release, "processors": os.cpu_count(),
               "calls": cost(options.calls, options.rounds),
               "programs": {"idle": programs(options.calls),
                            "recording": programs(options.calls, recording=True)},
               "translated": translated(options.rounds),
               "attaching": attaching(5, options.calls),
               "scale": scale(options.mappings), "aliases": aliases(options.aliases)}
    if os.path.exists(GOLDEN) and options.tries:
        figures["golden"] = golden(options.tries)
    table(figures)
    if output:
        json.dump(figures, output, indent=1)
        output.write("\n")
        output.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
