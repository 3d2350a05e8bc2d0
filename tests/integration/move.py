# SPDX-License-Identifier: BSD-2-Clause
"""Shared by the tests of offload and restore."""

import json
import os

from lien_test import MIB, equal

PAIRS = 24  # exported buffers of 2 MiB of each of two ranks
WHOLE = {"allocations": 2 * PAIRS, "bytes": 4 * PAIRS * MIB}


def handles(allocation):
    """Of each process its references. A restore makes one handle of several."""
    found = {}
    for handle in allocation["handles"]:
        references, imported = found.get(handle["pid"], (0, True))
        found[handle["pid"]] = (references + handle["references"], imported and handle["imported"])
    return sorted([pid, *values] for pid, values in found.items())


def shape(session, *pids):
    """The graph without what a restore may change: handle values and numbers of allocations."""
    found = []
    for allocation in session.ask("graph")["allocations"]:
        if allocation["owner"] == "lien-control":
            continue  # the host arena
        if allocation["pid"] not in pids:
            continue
        found.append([
            allocation["pid"], allocation["bytes"], allocation["owner"], allocation["exports"],
            allocation["state"],
            handles(allocation),
            sorted([m["pid"], m["address"], m["bytes"], json.dumps(m["access"])]
                   for m in allocation["mappings"])])
    return sorted(found, key=json.dumps)


def rss_anon(pid):
    with open("/proc/%d/status" % pid) as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def open_files(session):
    """Those of the agent that stay: the contexts of a process are followed for a time only, by a
    link each."""
    folder, count = "/proc/%d/fd" % session.agent.pid, 0
    for name in os.listdir(folder):
        try:
            count += os.readlink(os.path.join(folder, name)) != "anon_inode:bpf_link"
        except FileNotFoundError:
            pass
    return count


def runs_as_before(session, job):
    """The job is whole, on the device, and can be moved."""
    equal(job.verify()[0], 4 * PAIRS, "mappings verified")
    equal(session.used(), WHOLE["bytes"], "device memory in use")
    for pid in job.ranks:
        equal(session.process(pid)["state"], "running", "state of %d" % pid)


def round_trip(session, job):
    result = session.ask("offload")
    equal((result["outcome"], result["bytes"]), ("done", WHOLE["bytes"]), "offload")
    equal(session.used(), 0, "device memory in use after the offload")
    result = session.ask("restore")
    equal((result["outcome"], result["bytes"]), ("done", WHOLE["bytes"]), "restore")
    runs_as_before(session, job)
