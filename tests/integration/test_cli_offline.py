#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien snapshot`, and what the views answer with --from.

LIEN names the program (default build/lien). Needs neither root nor a GPU. Prints a line per case, and
"N passed, N failed" at the end. Cases are the functions that begin with case_, their docstrings the
names.
"""

import gzip
import json
import os
import struct
import sys

from cli_answers import GRAPH, HOLDERS, MEM, MIB, PS, event, process_event
from cli_fixture import Stream, fits, run_cases

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
GOLDEN = os.path.join(DATA, "pytorch-nccl-2ranks.lien")
END = event(6, 0)
PROCESS = process_event(812)
CREATE = event(17, 812, struct.pack("<QQIIIiBBHI", 7, 4 * MIB, 1, 1, 1, 0, 0, 0, 0, 0))
MAP = event(22, 812, struct.pack("<QQQQ", 0x1000000, 4 * MIB, 0, 7))
ACCESS = event(24, 812, struct.pack("<QQIIHHI", 0x1000000, 4 * MIB, 1, 0, 1, 0, 3))
VIEWS = [["ps"], ["mem"], ["graph"], ["holders", "812", "0x1000000"]]


def write_recording(path, records, version=2, end=True):
    with gzip.open(path, "wb") as file:
        file.write(struct.pack("<8sIIQ", b"LIENREC", version, 0, 1))
        file.write(b"".join(records))
        if end:
            file.write(END)
    return path


def case_recording(context):
    """--from a real job's recording: what the agent answered at its end"""
    with open(GOLDEN + ".json", encoding="utf-8") as file:
        expected = json.load(file)["at_the_end"]
    mem = json.loads(context.run("mem", "--from", GOLDEN, "--json")[0])
    processes = json.loads(context.run("ps", "--from", GOLDEN, "--json")[0])["processes"]
    ranks = {p["pid"]: p["ranks"][0]["rank"] for p in processes}
    assert sorted(ranks.values()) == list(range(expected["ranks"])), ranks
    assert len(processes[0]["ranks"]) == expected["communicators"], processes
    keys = ("owner", "kind", "allocations", "mappings", "bytes", "offloaded_bytes")
    rows = sorted((ranks[r["pid"]], *(r[k] for k in keys)) for r in mem["rows"])
    assert rows == sorted((r["rank"], *(r[k] for k in keys)) for r in expected["rows"]), rows
    graph = json.loads(context.run("graph", "--from", GOLDEN, "--json")[0])
    shared = [a for a in graph["allocations"] if a["exports"] and a["mappings"]]
    address = shared[0]["mappings"][0]
    holders = json.loads(context.run("holders", "--from", GOLDEN, "--json", str(address["pid"]),
                                     address["address"])[0])
    assert holders["allocation"]["id"] == shared[0]["id"], holders
    assert {h["kind"] for h in holders["holders"]} >= {"mapping", "export"}, holders
    for view in ("ps", "mem"):
        fits(context.run(view, "--from", GOLDEN)[0])
    assert context.run("graph", "--from", GOLDEN)[0].startswith("digraph lien {")


def case_shapes(context):
    """--from: the members that the agent's replies have"""
    for arguments, like in ((["ps"], PS), (["mem"], MEM), (["graph"], GRAPH),
                            (["holders"], HOLDERS)):
        if arguments == ["holders"]:
            path = write_recording(context.path("shape.lien"), [PROCESS, CREATE, MAP])
            arguments = ["holders", "812", "0x1000000", "--from", path]
        else:
            arguments = arguments + ["--from", GOLDEN]
        result = json.loads(context.run(*arguments, "--json")[0])
        assert set(result) >= set(like), (list(result), list(like))
        for key in like:
            inner = (result[key], like[key])
            if all(isinstance(i, list) and i for i in inner):
                inner = tuple(i[0] for i in inner)
            if all(isinstance(i, dict) for i in inner) and key != "holders":
                assert set(inner[0]) == set(inner[1]), (key, set(inner[0]) ^ set(inner[1]))


def case_unknown(context):
    """--from: what only a running agent knows is unknown, not wrong"""
    path = write_recording(context.path("u.lien"), [PROCESS, CREATE, MAP, ACCESS])
    found = json.loads(context.run("ps", "--from", path, "--json")[0])["processes"]
    assert [p["control"] for p in found] == ["unknown"], found
    mem = json.loads(context.run("mem", "--from", path, "--json")[0])
    assert mem["bytes"] == 4 * MIB and mem["offload_frees"] is None and mem["left"] == [], mem
    assert [r["offload_frees"] for r in mem["rows"]] == [None], mem
    mem = json.loads(context.run("mem", "--pid", "812", "--from", path, "--json")[0])
    assert mem["offload_frees"] is None, mem
    out, _ = context.run("mem", "--from", path)
    assert out.endswith("total: 4.0 MiB on the GPUs\n") and "frees 0" not in out, out
    holders = ["holders", "812", "0x1000000", "--from", path]
    assert json.loads(context.run(*holders, "--json")[0])["allocation"]["movable"] is None
    assert "Only a running agent can tell" in " ".join(context.run(*holders)[0].split())
    # What is known to be in the way is said: cudaMalloc memory.
    alloc = event(27, 812, struct.pack("<QQQQiI", 0x2000000, MIB, 0, 0, 0, 0))
    path = write_recording(context.path("a.lien"), [PROCESS, alloc])
    found = json.loads(context.run("holders", "812", "0x2000000", "--from", path, "--json")[0])
    assert found["allocation"]["movable"] is False, found
    left = json.loads(context.run("mem", "--from", path, "--json")[0])["left"]
    assert [(entry["pid"], entry["bytes"]) for entry in left] == [(812, MIB)], left


def at(seconds, record, announced=False):
    """The record with its time; announced: at its entry, before it is carried out."""
    entry, back = int(seconds * 1e9), 0 if announced else int(seconds * 1e9)
    return record[:6] + struct.pack("<H", int(announced)) + record[8:24] + struct.pack(
        "<QQ", entry, back) + record[40:]


def create(pid, handle, mib):
    return event(17, pid, struct.pack("<QQIIIiBBHI", handle, mib * MIB, 1, 1, 1, 0, 0, 0, 0, 0))


def release(pid, handle):
    return event(18, pid, struct.pack("<Q", handle))


def case_moments(context):
    """--at, --peak; a recording whose processes have all ended shows its peak"""
    job = [at(100, PROCESS), at(101, create(812, 1, 4)), at(101.5, process_event(813)),
           at(102, create(813, 1, 8)), at(103, release(813, 1), True), at(103, release(813, 1)),
           at(104, create(812, 2, 2)), at(105, event(3, 813))]
    ends = at(106.5, event(3, 812))
    whole = write_recording(context.path("whole.lien"), job + [ends])
    runs = write_recording(context.path("runs.lien"), job)

    def mib(path, *arguments, said=""):
        out, err = context.run("mem", "--json", "--from", path, *arguments)
        assert said in err and bool(said) == bool(err), err
        return json.loads(out)["bytes"] // MIB
    peak = "lien mem: at the end of %s all processes have ended: this is its peak, at +2.000" % whole
    assert mib(whole, said=peak) == 12
    assert mib(runs) == 6  # something is left: its end
    for path in (whole, runs):
        assert mib(path, "--peak") == 12
        for moment, size in (("+0", 0), ("+1", 4), ("+1.9", 4), ("+2", 12), ("102.000", 12), ("+2.99", 12),
                             ("103", 4), ("+4.5", 6)):
            assert mib(path, "--at", moment) == size, (moment, mib(path, "--at", moment))
    assert mib(whole, "--at", "106.5") == 0  # asked for
    assert mib(whole, "--at", "+6.5") == 0
    ps = json.loads(context.run("ps", "--json", "--from", whole)[0])["processes"]
    assert [(p["pid"], p["bytes"] // MIB) for p in ps] == [(812, 4), (813, 8)], ps
    assert "; --at-b shows another moment" in context.run("diff", runs, whole, code=1)[1]
    for command in ("ps", "graph", "comms"):
        assert context.run(command, "--from", whole)[1].startswith("lien %s: at the end of" % command)
    assert context.run("check", "--from", whole)[1] == ""  # what stays is what matters
    for moment in ("107", "99.9", "+7", "+1000"):
        context.fails("mem", "--from", whole, "--at", moment, code=2,
                      words=["from 100.000 to 106.500, or +0 to +6.500"])
    for moment in ("", "x", "-1", "+", "1.2.3", "1e3", "+-3", "."):
        context.fails("mem", "--from", whole, "--at", moment, code=2, words=["is not a time such as"])
    context.fails("mem", "--at", "3", code=2, words=["--at needs --from"])
    context.fails("ps", "--peak", code=2, words=["--peak needs --from"])
    context.fails("ps", "--peak", "--at", "3", "--from", whole, code=2, words=["cannot be combined"])
    snapshot = write_recording(context.path("snapshot.lien"), [PROCESS, CREATE])
    context.fails("mem", "--from", snapshot, "--at", "+0", code=2, words=["nothing in it has a time"])
    assert mib(snapshot, "--peak") == 4
    short = write_recording(context.path("short.lien"), job + [ends], end=False)
    assert context.run("ps", "--from", short)[1].count("cut short") == 1
    assert mib(short, "--peak", said="cut short") == 12


def case_no_such(context):
    """--from: processes and addresses that the recording lacks, and empty recordings"""
    path = write_recording(context.path("n.lien"), [PROCESS, CREATE, MAP])
    for question in (["holders", "813", "0x1000000"], ["mem", "--pid", "813"], ["comms", "--pid", "813"],
                     ["mem", "--pid", "813", "--by", "owner"]):
        context.fails(*question, "--from", path, code=2, words=[
            "the recording has no process 813; known are 812 (python3) (see `lien ps`)"])
    context.fails("holders", "812", "0x10", "--from", path, code=2, words=["0x10 of process 812"])
    for command in ("ps", "mem"):
        context.fails(command, "--gpu", "7", "--from", path, code=2, words=[
            "--gpu '7' is not one of the GPUs known here: 0"])
    bare = write_recording(context.path("b.lien"), [PROCESS])
    # Its processes need not be alive here.
    assert "812 holds no GPU memory" in context.run("mem", "--pid", "812", "--from", bare)[0]
    empty = write_recording(context.path("e.lien"), [])
    assert "no process uses CUDA there" in context.run("ps", "--from", empty)[0]
    assert "as far as the recording shows" in context.run("mem", "--from", empty)[0]


def case_bad_files(context):
    """--from: no file, not a recording, another version, damaged, cut short"""
    other = write_recording(context.path("v.lien"), [PROCESS], version=4)
    unknown = write_recording(context.path("t.lien"), [PROCESS, event(15, 812)])
    nothing = context.path("nothing")
    with open(nothing, "wb"):
        pass
    with open(GOLDEN, "rb") as file:
        golden = file.read()
    short = context.path("short.lien")
    with open(short, "wb") as file:
        file.write(golden[:20000])
    flipped = context.path("flipped.lien")
    with open(flipped, "wb") as file:
        file.write(golden[:20000] + bytes(b ^ 0xff for b in golden[20000:20100]) + golden[20100:])
    for view in VIEWS + [["events"]]:
        for path, words in ((context.path("none"), ["No such file"]), (__file__, ["not a recording"]),
                            (other, ["another version"]), (nothing, ["empty"]),
                            (context.directory, ["Is a directory"])):
            context.fails(*view, "--from", path, words=[path] + words)
    for view in VIEWS:
        for path in (unknown, flipped):
            context.fails(*view, "--from", path, words=[path, "damaged"])
        code = 0 if view[0] != "holders" else 2  # the process is not in it
        _, err = context.run(*view, "--from", short, code=code)
        assert err.startswith("lien %s: warning: %s is cut short" % (view[0], short)), err
    out, err = context.run("ps", "--all", "--from", write_recording(context.path("c"), [PROCESS], end=False))
    assert "812" in out.split() and err.count("\n") == 1 and "cut short" in err, (out, err)
    for view in VIEWS:
        context.fails(*view, "--from", GOLDEN, "--socket", "/nowhere", code=2,
                      words=["--from and --socket cannot be combined"])
        context.fails(*view, "--from", "", code=2)


def case_snapshot(context):
    """snapshot: the present state, nothing after it; its file; what --from makes of it"""
    path = context.path("now.lien")
    parts = [PROCESS + CREATE, MAP + END, process_event(813)]
    agent = Stream(context.directory, parts)
    context.environment["LIEN_SOCKET"] = agent.path
    out, err = context.run("snapshot", path)
    assert err == "" and out.startswith(path + ": 3 events of 1 process, "), out
    assert agent.requests == [{"op": "record", "follow": False}], agent.requests
    found = json.loads(context.run("ps", "--from", path, "--json")[0])["processes"]
    assert [(p["pid"], p["command"], p["bytes"]) for p in found] == [(812, "python3", 4 * MIB)]
    context.fails("snapshot", path, words=[path, "--force"])
    out, _ = context.run("snapshot", "--force", "--json", path)
    assert json.loads(out) == {"events": 3, "processes": 1, "bytes": os.stat(path).st_size}, out
    context.fails("snapshot", "/nowhere/x", words=["/nowhere/x", "No such file"])
    context.fails("snapshot", "/dev/full", "--force", words=["/dev/full", "No space left"])
    context.fails("snapshot", code=2, words=["FILE is missing"])
    # An agent that ends before the state does; one of before `follow`.
    path = context.path("cut.lien")
    Stream(context.directory, [PROCESS], end=True)
    _, err = context.run("snapshot", path, code=1)
    assert "ended the connection" in err and "has what was recorded before" in err, err
    assert "812" in context.run("ps", "--all", "--from", path)[0].split()
    path = context.path("old.lien")
    context.agent(lambda r: [{"ok": False, "error": "`record` has no member follow"}])
    context.fails("snapshot", path, words=["has no member follow"])
    assert not os.path.exists(path)


if __name__ == "__main__":
    sys.exit(run_cases(globals()))
