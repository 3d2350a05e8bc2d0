#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien events` against a fake agent and from recordings.

LIEN names the program (default build/lien). Needs neither root nor a GPU. Prints a line per case, and
"N passed, N failed" at the end. Cases are the functions that begin with case_, their docstrings the
names.
"""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time

from cli_answers import MIB, process_event
from cli_fixture import LIEN, Stream, fits, run_cases
from test_cli_offline import END, GOLDEN, write_recording

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LIBRARY = 0x7f1000000000
ENTRY, CONTROL, PARTIAL = 1, 2, 4


def call(kind, pid, body=b"", result=0, outer=None, t_return=0, flags=0, caller=LIBRARY + 16):
    return struct.pack("<IHHIIQQQiIQQ", 64 + len(body), kind, flags, pid, pid + 1, 1, t_return and
                       t_return - 1, t_return, result, outer or kind, caller, 0) + body


def create(pid, handle=7, **more):
    return call(17, pid, struct.pack("<QQIIIiBBHI", handle, 4 * MIB, 1, 1, 1, 0, 0, 0, 0, 0), **more)


def library(pid, name=b"libc10_cuda.so"):
    return call(4, pid, struct.pack("<QQQQII64s", LIBRARY, 4096, 0, 1, 1, 1, name))


START = process_event(812) + library(812)
NOW = 1000000000  # ns, of CLOCK_MONOTONIC


def stream(context, *parts, **more):
    agent = Stream(context.directory, list(parts), **more)
    context.environment["LIEN_SOCKET"] = agent.path
    return agent


def lines(context, *arguments):
    return [json.loads(line) for line in
            context.run("events", "--json", *arguments)[0].splitlines()]


def case_present(context):
    """events: the present state, and no more"""
    agent = stream(context, START + create(812), END + create(812, 8, t_return=NOW))
    out, err = context.run("events")
    assert err == "" and out.splitlines() == [
        "           -     812 -        process command=python3, uid=0, complete=1",
        "           -     812 c10_cuda cuMemCreate(size=4 MiB, device 0, handle=0x7) = 0"], out
    assert agent.requests == [{"op": "record", "follow": False}], agent.requests


def case_follow(context):
    """events -f: only what is new, under the names from the present state; --count ends it"""
    agent = stream(context, START + create(812) + END, create(812, 8, t_return=NOW)[:30],
                   create(812, 8, t_return=NOW)[30:] + create(812, 9, t_return=NOW + 10 ** 6))
    out, _ = context.run("events", "-f", "--count", "2")
    found = out.splitlines()
    assert len(found) == 2 and "handle=0x8" in found[0] and "handle=0x9" in found[1], out
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3}     812 c10_cuda cuMemCreate\(", found[0]), out
    assert agent.requests == [{"op": "record", "follow": True}], agent.requests
    now = time.time() * 1000 - time.monotonic() * 1000
    for line in lines(context, "--follow", "--count", "1"):
        assert line["boot_ms"] == 1000 and abs(line["unix_ms"] - now - 1000) < 5000, line


def case_interrupt(context):
    """events -f: Ctrl-C ends it in good order, every line whole"""
    for number in (signal.SIGINT, signal.SIGTERM):
        stream(context, START + END + create(812, 8, t_return=NOW))
        with subprocess.Popen([LIEN, "events", "--json", "-f"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=context.environment) as running:
            first = running.stdout.readline()
            running.send_signal(number)
            rest, err = running.communicate(timeout=30)
        assert running.returncode == 0 and rest == b"" and err == b"", (running.returncode, err)
        assert json.loads(first)["arguments"]["handle"] == "0x8", first


def case_json(context):
    """events --json: the documented members"""
    path = write_recording(context.path("j.lien"), [
        START, create(812, t_return=NOW, outer=97, flags=PARTIAL),
        call(24, 812, struct.pack("<QQIIHHIHHI", 4096, 8192, 2, 0, 1, 3, 3, 3, 1, 1)),
        call(96, 812, struct.pack("<QQiiiiii128s", 0x55, 0, 2, 1, 0, 0, 0, 0, bytes(range(1, 129)))),
        call(3, 812)])
    found = lines(context, "--from", path)
    assert [line["event"] for line in found] == [
        "process", "cuMemCreate", "cuMemSetAccess", "ncclCommInitRank", "exit"], found
    assert found[1] == {
        "event": "cuMemCreate", "pid": 812, "tid": 813, "command": "python3", "unix_ms": None,
        "boot_ms": 1000.0, "caller": "nccl", "inside": "ncclCommInitRankConfig", "result": 0,
        "control": False, "partial": True,
        "arguments": {"size": 4 * MIB, "location": {"device": 0}, "handle": "0x7"}}, found[1]
    assert found[2]["arguments"]["desc"] == [{"device": 3, "access": "read-write"},
                                             {"host": 1, "access": "read"}], found[2]
    assert found[2]["caller"] == "c10_cuda" and found[2]["inside"] is None, found[2]
    assert found[3]["arguments"] == {"commId": "0807060504030201", "rank": 1, "nranks": 2,
                                     "comm": "0x55"}, found[3]
    assert found[4]["command"] == "python3" and "result" not in found[4], found[4]


def case_lines(context):
    """events: one line each where there is no terminal, else as wide as that; failures by name"""
    path = write_recording(context.path("l.lien"), [
        START, create(812, result=2), call(101, 812, struct.pack("<QQQQ", 1, 2, 3, 4), result=5),
        create(812, result=77), call(18, 812, struct.pack("<Q", 7), flags=ENTRY),
        create(812, flags=PARTIAL), process_event(814).replace(b"python3", b"a\x1b\xff\xc3\xa9\n ")])
    out, _ = context.run("events", "--from", path)
    text = " ".join(out.split())
    assert "device 0, handle=0x7) = CUDA_ERROR_OUT_OF_MEMORY (2) " in text, out
    assert "ncclCommRegister(comm=0x1, buff=0x2, size=3, handle=0x4) = ncclInvalidUsage (5)" in text
    assert ") = 77\n" in out and "cuMemRelease" not in out and "not all could be read" in text, out
    assert "\x1b" not in out and lines(context, "--from", path)[-1]["command"] == "a????? "
    out, _ = context.run("events", "--from", GOLDEN)
    fits(out)
    starts = [line for line in out.splitlines() if line[:12].strip()]
    assert 10000 < len(starts) < len(out.splitlines()), (len(starts), len(out.splitlines()))
    out, _ = context.run("events", "--from", GOLDEN, COLUMNS="")
    assert len(out.splitlines()) == len(starts), (len(starts), len(out.splitlines()))


def case_filters(context):
    """events: --pid, --call, --library, --count, alone and together"""
    def count(*arguments):
        return len(context.run("events", "--from", GOLDEN, "--json", *arguments)[0].splitlines())
    pids = {line["pid"] for line in lines(context, "--from", GOLDEN, "--pid", "1723")}
    assert pids == {1723}, pids
    assert {line["pid"] for line in lines(context, "--from", GOLDEN, "--pid", "1723", "--pid", "1725",
                                          "--call", "cuMemMap")} == {1723, 1725}
    names = {line["event"] for line in lines(context, "--from", GOLDEN, "--call", "cuMem[CM]*",
                                             "--call", "process")}
    assert names == {"cuMemCreate", "cuMemMap", "process"}, names
    assert count("--call", "cuMemAlloc") == count("--call", "cuMemAlloc_v2") > 0
    assert count("--call", "library") > 100 and count("--count", "3") == 3
    made = lines(context, "--from", GOLDEN, "--library", "nccl")
    assert {line["event"] for line in made} > {"cuMemMap", "ncclCommInitRankConfig"}
    assert {line["caller"] for line in made} == {"nccl"}, made[0]
    called = lines(context, "--from", GOLDEN, "--library", "cuda")
    assert {line["event"][:2] for line in called} == {"cu"}
    assert {line["caller"] for line in called} == {"nccl", "c10_cuda", "cudart"}
    both = count("--library", "nccl", "--library", "cuda")
    assert both == len(called) + len([m for m in made if m["event"].startswith("nccl")]), both
    assert count("--library", "ibverbs") == 0  # it is traced; nobody called it
    context.fails("events", "--from", GOLDEN, "--library", "ncll", code=2, words=[
        "no call in the recording belongs to a library ncll", "calls are made by ", "c10_cuda", "nccl"])


def case_unknown_process(context):
    """events: an unknown process is an error, but one that runs without CUDA may be waited for"""
    words = ["known are 812 (python3) (see `lien ps`)"]
    stream(context, START + create(812), END)
    context.fails("events", "--call", "exit", "--pid", "812", "--pid", "2147483647", code=2,
                  words=["process 2147483647 is not known"] + words)
    stream(context, START + END + create(812, 8))
    context.fails("events", "-f", "--pid", "2147483647", code=2, words=words)
    stream(context, START + END + process_event(os.getpid()))
    assert context.run("events", "-f", "--pid", str(os.getpid()), "--count", "1")[0]
    path = write_recording(context.path("u.lien"), [START])
    context.fails("events", "--call", "exit", "--from", path, "--pid", "7", code=2,
                  words=["the recording has no process 7; "])
    assert context.run("events", "--call", "exit", "--from", path, "--pid", "812")[0] == ""


def case_every_call(context):
    """events: every traced call has a name, whatever its arguments are"""
    with open(os.path.join(ROOT, "include", "lien", "calls.h"), encoding="utf-8") as file:
        calls = re.findall(r'X\(\w+,\s*(\d+),\s*\w+,\s*"(\w+)",\s*[\w| ]+,\s*(\w+)\)',
                           file.read().split("LIEN_GATE_CALLS")[0])
    traced = [(int(number), symbol) for number, symbol, kind in calls if kind != "none"]
    assert len(traced) > 30, traced
    for body in (b"\xff", b"\0"):
        records = [call(number, 812, (b"\0" if number == 24 else body) * 168)
                   for number, _ in traced]
        path = write_recording(context.path("all.lien"), [START] + records)
        assert [line["event"] for line in lines(context, "--from", path)[1:]] == \
            [symbol.replace("_v2", "") for _, symbol in traced]
        fits(context.run("events", "--from", path)[0])


def case_every_state(context):
    """events: every record of a snapshot has a name, and is not mistaken for a call"""
    with open(os.path.join(ROOT, "include", "lien", "state.h"), encoding="utf-8") as file:
        states = [(int(number), name) for name, number in re.findall(r"X\((\w+), +(\d+),", file.read())]
    assert len(states) > 10, states
    for body in (b"\x01", b"\0"):
        path = write_recording(context.path("all.lien"), [START] + [
            call(number, 812, (b"\0" if name in ("process", "site", "allocation", "handle", "mapping") else body) * 168)
            for number, name in states])
        found = lines(context, "--from", path)[1:]
        assert [line["event"] for line in found] == ["state-" + name for _, name in states], found
        assert not any("result" in line for line in found), found
        fits(context.run("events", "--from", path)[0])
        only = lines(context, "--from", path, "--call", "state-[am]*")
        assert [line["event"] for line in only] == ["state-allocation", "state-mapping"], only


def case_wrong(context):
    """events: unknown calls and options that exclude each other; nothing is asked"""
    agent = stream(context, START + END)
    for arguments, word in (
            (["--call", "cuMemFoo"], "cuMemFoo"), (["--call", "cuMemCraete"], "did you mean 'cuMemCreate'?"),
            (["--library", "nccl"], "--library needs --follow or --from"),
            (["--call", ""], "--call"), (["--call"], "--call"),
            (["-f", "--from", "x"], "-f"), (["--socket", "x", "--from", "x"], "--socket"),
            (["--count", "0"], "--count"), (["--count"], "--count"), (["-x"], "-x"), (["-fx"], "-x"),
            (["--pid", "me"], "me"), (["extra"], "extra"), (["--library", ""], "--library"),
            (["--library", "a"] * 65, "--library")):
        context.fails("events", *arguments, code=2, words=[word])
    assert not agent.requests
    stream(context, START + END, end=True)
    _, err = context.run("events", "-f", "--library", "ncll", code=1)
    assert "warning: --library 'ncll': did you mean 'nccl'?" in err, err
    out, _ = context.run("events", "--help")
    assert "  -f, --follow " in out and "--pid PID" in out, out
    fits(out)


def case_agent(context):
    """events: an agent that is gone, that let go of a slow reader, or sends nonsense"""
    context.fails("events", words=["none.sock", "`lien agent`"])
    stream(context, START + create(812) + END, end=True)
    _, err = context.run("events", "-f", code=1)
    assert err == ("lien events: the agent ended the connection: events came faster than they were "
                   "taken\n"), err
    stream(context, b"\xff" * 300)
    context.fails("events", words=["a record of"])
    context.agent(lambda r: [{"ok": False, "error": "no such operation: record"}])
    context.fails("events", words=["no such operation"])
    with open("/dev/full", "wb") as full:
        for arguments in ([], ["-f"]):
            stream(context, START + create(812) + END + create(812, t_return=NOW))
            done = subprocess.run([LIEN, "events", *arguments], stdout=full, stderr=subprocess.PIPE,
                                  env=context.environment, timeout=60, check=False)
            assert done.returncode == 1 and b"No space left" in done.stderr, done


if __name__ == "__main__":
    sys.exit(run_cases(globals()))
