#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien metrics`: its text against the grammar, its figures against what the other commands say."""

import re
import shutil
import subprocess
import sys

import openmetrics
from lien_test import (
    MIB, ROOT, Driver, Session, Skipped, case, check, equal, main, program, recording, start_pairs)
from move import PAIRS, WHOLE
from users import ALICE, BOB, CAROL, Shared, with_memory

KINDS = "offload", "restore", "release", "adoption"


def metrics(session):
    outcome = session.lien("metrics")
    equal((outcome.code, outcome.err), (0, ""), "lien metrics")
    return openmetrics.read(outcome.out)


def by_process(family, mem, kinds, column="bytes", state="device"):
    """The family's figures are the rows' of `mem`."""
    rows = {}
    for row in mem["rows"]:
        if row["kind"] in kinds:
            key = str(row["pid"]), row["owner"], row["kind"]
            rows[key] = rows.get(key, 0) + row[column]
    found = {}
    for (_, labels), value in family.samples.items():
        labels = dict(labels)
        if labels.get("state", state) == state:
            key = labels["pid"], labels["owner"], labels["kind"]
            found[key] = found.get(key, 0) + value
    equal(found, rows, "%s, %s" % (family.name, state))


def agrees(session):
    found, mem = metrics(session), session.ask("mem")
    device = ["local", "exported", "dead"]
    by_process(found["lien_memory_bytes"], mem, device)
    by_process(found["lien_memory_bytes"], mem, device, "offloaded_bytes", "offloaded")
    by_process(found["lien_imported_bytes"], mem, ["imported", "imported host"])
    by_process(found["lien_host_memory_bytes"], mem, ["pinned host", "registered host", "host"])
    equal(sum(found["lien_memory_bytes"].having(state="device")), mem["bytes"], "memory in all")
    equal(sum(found["lien_node_memory_bytes"].having(state="device")), mem["bytes"], "of the node")
    arena = session.ask("arena")["host"]
    equal(found["lien_host_arena_held_bytes"][{}], arena["held_bytes"], "arena")
    equal(found["lien_host_arena_used_bytes"][{}], arena["used_bytes"], "arena in use")
    return found


def done(found, kind):
    return found["lien_transactions"][{"kind": kind, "outcome": "done"}]


@case()
def test_memory_and_transactions():
    with Session() as session:
        session.start_agent("--host-limit", "512M")
        before = metrics(session)
        for kind in KINDS:
            equal(sum(before["lien_transactions"].having(kind=kind)), 0, "transactions")
        job = start_pairs(session, PAIRS)
        session.ready(*job.ranks)
        found = agrees(session)
        equal(sum(found["lien_memory_bytes"].having(kind="exported", state="device")), WHOLE["bytes"], "exported")
        equal(sum(found["lien_imported_bytes"].having(state="device")), WHOLE["bytes"], "imported")
        equal(found["lien_processes"][{}], session.ask("status")["processes"], "processes")
        equal(found["lien_host_arena_limit_bytes"][{}], 512 * MIB, "limit")
        gpus = {dict(labels).get("gpu") for _, labels in found["lien_memory_bytes"].samples}
        equal(gpus, {gpu["uuid"] for gpu in session.ask("mem")["gpus"]}, "GPUs")

        offload = session.ask("offload")
        found = agrees(session)
        equal(sum(found["lien_memory_bytes"].having(state="offloaded")), WHOLE["bytes"], "offloaded")
        equal(sum(found["lien_imported_bytes"].having(state="offloaded")), WHOLE["bytes"], "imports")
        equal(found["lien_moved_bytes"][{"kind": "offload"}], offload["bytes"], "moved")
        restore = session.ask("restore")
        session.ask("arena", "--release")
        found = agrees(session)
        for kind in KINDS[:3]:
            equal(done(found, kind), 1, kind)
            equal(found["lien_transaction_duration_seconds"].having("_count", kind=kind), [1], kind)
        took, = found["lien_transaction_duration_seconds"].having("_sum", kind="offload")
        check(abs(took * 1e3 - offload["ms"]) < 1e-3, "%f s, %f ms" % (took, offload["ms"]))
        equal(found["lien_rest_duration_seconds"].having("_count"), [1], "rests")
        equal(session.ask("restore")["outcome"], "nothing to do", "outcome")
        for kind, result in (("offload", offload), ("restore", restore)):
            phases = {dict(labels)["phase"]: value
                      for (suffix, labels), value in found["lien_phase_duration_seconds"].samples.items()
                      if suffix == "_sum" and dict(labels)["kind"] == kind}
            equal(sorted(phases), sorted(result["processes"][0]["ms"]), "phases of " + kind)
            for name, value in phases.items():
                slowest = max(process["ms"][name] for process in result["processes"])
                check(abs(value * 1e3 - slowest) < 1e-3, "%s: %f, %f ms" % (name, value, slowest))
        equal(done(metrics(session), "restore"), 1, "a restore of nothing is none")


@case()
def test_refusals_by_reason():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        session.refused("offload", "--pid", "1", code=2)
        session.refused("restore", "--pid", "1", code=2)
        session.refused("offload", "--owner", "all", "--host-limit", "1K")
        session.refused("offload", "--owner", "all", "--host-limit", "1K", "--dry-run")
        found = metrics(session)
        equal(found["lien_refusals"][{"kind": "offload", "reason": "invalid"}], 1, "offload of 1")
        equal(found["lien_refusals"][{"kind": "restore", "reason": "invalid"}], 1, "restore of 1")
        equal(found["lien_refusals"][{"kind": "offload", "reason": "host-memory"}], 1, "a dry run is not refused")
        equal(found["lien_transactions"][{"kind": "offload", "outcome": "refused"}], 2, "offloads")
        equal(sum(found["lien_refusals"].having()), 3, "refusals in all")
        equal(done(found, "offload"), 0, "offloads that were done")


@case()
def test_labels_are_escaped():
    """A process's name is its own choice."""
    with Session() as session:
        session.start_agent()
        path = session.path('a"\\b\n%\x1b')
        shutil.copy(program("prog_driver"), path)
        driver = Driver(session.spawn([path]))
        driver("init", 0)
        driver("make", 2 * MIB, 0)
        answer = session.ask("metrics")
        name = [row["command"] for row in answer["memory"]][0]
        text = session.lien("metrics").out
        openmetrics.read(text)
        equal(re.findall(r"[\x00-\x09\x0b-\x1f\x7f]", text), [], "control characters")
        shown = [dict(labels)["command"] for _, labels in openmetrics.read(text)["lien_memory_bytes"].samples]
        equal(set(shown), {"".join("%%%02X" % ord(c) if c == "%" or ord(c) < 32 else c for c in name)}, "names")


@case()
def test_each_user_gets_what_is_theirs():
    with Shared() as session:
        session.start_agent("--metrics-user", str(CAROL))
        alice, bob = session.of_user(ALICE), session.of_user(BOB)
        with_memory(alice, 1)
        with_memory(bob, 2)
        session.ready(alice.pid, bob.pid)

        def seen(uid):
            outcome = session.lien_as(uid, "metrics")
            equal((outcome.returncode, outcome.stderr), (0, ""), "as %d" % uid)
            found = openmetrics.read(outcome.stdout)
            equal(sum(found["lien_node_memory_bytes"].having(state="device")), 4 * MIB, "of the node")
            return {int(dict(labels)["pid"]) for _, labels in found["lien_memory_bytes"].samples}
        equal(seen(ALICE), {alice.pid}, "Alice's")
        equal(seen(BOB), {bob.pid}, "Bob's")
        equal(seen(CAROL), {alice.pid, bob.pid}, "what the metrics user sees")
        equal(session.ask_as(CAROL, "ps")["processes"], [], "but in the metrics alone")
        session.refused_as(CAROL, "not known", "offload", "--pid", alice.pid)
        equal(session.ask_as(ALICE, "metrics")["only_user"], ALICE, "only_user")
        check("only_user" not in session.ask_as(CAROL, "metrics"), "only_user")


@case()
def test_promtool():
    if not shutil.which("promtool"):
        raise Skipped("there is no promtool here")
    with Session() as session:
        session.start_agent()
        job = session.replay(recording("basic"))
        session.ready(*job.ranks)
        session.ask("offload")
        session.ask("restore")
        text = session.lien("metrics", "--format", "prometheus").out
        outcome = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True,
                                 timeout=60, check=False)
        equal((outcome.returncode, outcome.stdout + outcome.stderr), (0, ""), "promtool")
        check("# EOF" not in text and "# UNIT" not in text, text)
        check("# TYPE lien_events_total counter\n" in text, text)
        # the same samples
        names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"}
        open_text = session.lien("metrics").out
        equal(names, {line.split("{")[0].split(" ")[0] for line in open_text.splitlines() if line[0] != "#"}, "names")


@case()
def test_documented():
    """docs/metrics.md has a row for each family, and no other."""
    with Session() as session:
        session.start_agent("--host-limit", "1G")
        found = metrics(session)
        shown = {name + ("_total" if f.type == "counter" else "_info" if f.type == "info" else "")
                 for name, f in found.items()}
        with open(ROOT + "/docs/metrics.md") as file:
            documented = set(re.findall(r"^\| `(lien_[a-z_]+)", file.read(), re.M))
        equal(documented, shown, "docs/metrics.md")


if __name__ == "__main__":
    sys.exit(main())
