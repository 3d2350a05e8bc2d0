#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The commands of `lien` against a fake agent that gives canned answers.

LIEN names the program (default build/lien). Needs neither root nor a GPU. Prints a line per case, and
"N passed, N failed" at the end.
"""

import gzip
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

LIEN = os.path.abspath(os.environ.get("LIEN", "build/lien"))
COLUMNS = 100
MIB = 1 << 20
COMMANDS = ["run", "ps", "mem", "holders", "graph", "offload", "restore", "status", "doctor", "record"]
QUERIES = {
    "ps": ["ps"],
    "mem": ["mem"],
    "holders": ["holders", "812", "0x7f2a4c000000"],
    "graph": ["graph"],
    "offload": ["offload"],
    "restore": ["restore"],
    "status": ["status"],
}


# Canned answers

def process(pid, rank, nranks, **changes):
    return {
        "pid": pid, "command": "python3", "uid": 0, "state": "running", "complete": True,
        "control": "ready", "devices": [rank],
        "ranks": [{"group": "5ac1d2e0b7f0a13%d" % i, "rank": rank, "nranks": nranks}
                  for i in range(4)],
        "bytes": 2730491904, "nccl_bytes": 2730491904, "imported_bytes": 1409286144,
        "offloaded_bytes": 0, **changes}


PS = {"processes": [
    process(812, 0, 2),
    process(813, 1, 2, complete=False, state="partly offloaded", offloaded_bytes=1 << 40,
            command="a-rather-long-program-name-\x1b[31m\n", devices=list(range(8))),
    process(4194304, 0, 1, control="none", ranks=[], devices=[], bytes=0, nccl_bytes=4096),
]}

MEM = {
    "rows": [
        {"pid": 812, "owner": "nccl", "kind": "exported", "allocations": 336, "mappings": 336,
         "bytes": 1409286144, "offload_frees": 1409286144, "offloaded_bytes": 0},
        {"pid": 812, "owner": "nccl", "kind": "imported", "allocations": 336, "mappings": 336,
         "bytes": 1409286144, "offload_frees": 0, "offloaded_bytes": 0},
        {"pid": 812, "owner": "a_library_with_a_name_that_goes_on_" * 3, "kind": "local",
         "allocations": 98, "mappings": 98, "bytes": 205520896, "offload_frees": 205520896,
         "offloaded_bytes": 0},
        {"pid": 813, "owner": "cudart", "kind": "local", "allocations": 3, "mappings": 3,
         "bytes": 6291456, "offload_frees": 0, "offloaded_bytes": 2097152},
    ],
    "bytes": 1621098496, "offload_frees": 1614807040,
    "left": [{"pid": pid, "reason": "cudaMalloc memory cannot be put back at the same address, and "
              "the program may hold pointers into it", "allocations": 3, "bytes": 6291456}
             for pid in range(813, 833)] +
            [{"pid": 812, "reason": "registered with the network card", "allocations": 1,
              "bytes": 4194304}]}

HOLDERS = {
    "allocation": {"id": 193, "pid": 812, "device": 0, "bytes": 10485760, "owner": "nccl",
                   "origin": "cuMemCreate", "state": "on the device", "alive": True,
                   "movable": True, "reason": None},
    "holders": [
        {"pid": 812, "kind": "handle", "handle": "0x55d0c8a3e0b0", "references": 1},
        {"pid": 812, "kind": "mapping", "address": "0x7f2a4c000000", "bytes": 10485760,
         "access": [{"device": d, "access": "read-write"} for d in range(8)]},
        {"pid": 812, "kind": "export", "exports": 1},
        {"pid": 813, "kind": "import", "handle": "0x55be11d0aa10", "references": 2},
        {"pid": 813, "kind": "mapping", "address": "0x7fb3d0000000", "bytes": 10485760,
         "access": []},
        {"pid": 812, "kind": "registration", "group": "5ac1d2e0b7f0a133", "rank": 0,
         "address": "0x7f2a4c000000", "bytes": 10485760, "window": False}]}

OFFLOAD = {
    "outcome": "done", "bytes": 5460983808, "ms": 108.4,
    "processes": [
        {"pid": pid, "allocations": 630, "imports": 336, "mappings": 966, "bytes": 2730491904,
         "freed_bytes": 2730491904,
         "ms": {"drain": 0.1, "check": 3.2, "save": 51.0, "unmap": 19.2, "drop": 31.0}}
        for pid in (812, 813)],
    "left": MEM["left"]}

RESTORE = {
    "outcome": "done", "bytes": 5460983808, "ms": 162.0,
    "processes": [
        {"pid": pid, "allocations": 630, "imports": 336, "mappings": 966, "bytes": 2730491904,
         "ms": {"create": 42.0, "export": 20.1, "import": 38.5, "finish": 12345.6}}
        for pid in (812, 813)],
    "left": []}

STATUS = {
    "version": "0.1", "pid": 800, "uptime_ms": 123456, "rss_bytes": 9437184, "events": 103422,
    "events_lost": 17, "processes": 2, "allocations": 1260, "mappings": 1932,
    "incomplete": list(range(1000, 1040)), "unmatched_imports": 1,
    "libraries": [
        {"path": "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "library": "cuda", "calls": 19,
         "missing": []},
        {"path": "/opt/" + "a-long-directory/" * 9 + "libnccl.so.2", "library": "nccl", "calls": 7,
         "missing": ["ncclCommWindowRegister", "ncclCommWindowDeregister"]}],
    "attach": "uprobe-multi", "transaction": {"kind": "offload", "phase": "save", "ms": 12.0}}


def make_graph(ranks, local, shared, communicators):
    """A job: every rank owns `local` private pieces and `shared` ones for each other rank."""
    pids = [812 + r for r in range(ranks)]
    allocations = []
    address = 0x7f0000000000
    for rank, pid in enumerate(pids):
        others = [p for p in pids if p != pid]
        kinds = [("nccl", 2 * MIB, [], local), ("torch", 20 * MIB, [], 12)]
        kinds += [("nccl", 10 * MIB, [peer], shared) for peer in others]
        for owner, size, peers, count in kinds:
            for _ in range(count):
                holders = [pid] + peers
                allocations.append({
                    "id": len(allocations) + 1, "pid": pid, "device": rank, "bytes": size,
                    "owner": owner, "origin": "cuMemCreate", "state": "on the device",
                    "exports": len(peers), "alive": True,
                    "handles": [{"pid": p, "handle": hex(address + p), "references": 1,
                                 "imported": p != pid} for p in holders],
                    "mappings": [{"pid": p, "address": hex(address), "bytes": size,
                                  "access": [{"device": rank, "access": "read-write"}]}
                                 for p in holders]})
                address += 32 * MIB
    first = {a["pid"]: a for a in reversed(allocations) if a["owner"] == "torch"}
    return {
        "processes": [process(pid, rank, ranks) for rank, pid in enumerate(pids)],
        "allocations": allocations,
        "communicators": [
            {"group": "5ac1d2e0b7f0a1%02x" % c, "pid": pid, "address": hex(address + c),
             "rank": rank, "nranks": ranks,
             "registrations": [{"address": first[pid]["mappings"][0]["address"],
                                "bytes": first[pid]["bytes"], "window": c > 0}] if c < 2 else []}
            for c in range(communicators) for rank, pid in enumerate(pids)]}


GRAPH = make_graph(2, 294, 336, 4)

RESULTS = {"ps": PS, "mem": MEM, "holders": HOLDERS, "graph": GRAPH, "offload": OFFLOAD,
           "restore": RESTORE, "status": STATUS}
PROGRESS = [{"progress": {"phase": phase, "done": done, "of": 2}}
            for phase in ("drain", "save", "drop") for done in (1, 2)]


def event(kind, pid, body=b"", size=None):
    length = 56 + len(body) if size is None else size
    return struct.pack("<IHHIIQQQiIQ", length, kind, 0, pid, pid, 1, 0, 0, 0, 0, 0) + body


def process_event(pid):
    return event(1, pid, struct.pack("<II16s", 0, 1, b"python3"))


class Agent:
    """Listens on a socket; `answer` maps a request to what is sent back, bytes or JSON objects."""

    running = []

    def __init__(self, directory, answer=None, split=False):
        self.path = os.path.join(directory, "agent.sock")
        self.answer = answer or self.canned
        self.split = split
        self.requests = []
        if os.path.exists(self.path):
            os.unlink(self.path)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()
        Agent.running.append(self)

    @staticmethod
    def canned(request):
        before = PROGRESS if request["op"] in ("offload", "restore") else []
        return before + [{"ok": True, "result": RESULTS[request["op"]]}]

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            for line in connection.makefile("rb"):
                request = json.loads(line)
                self.requests.append(request)
                reply = self.answer(request)
                if reply is None:
                    break
                if not isinstance(reply, bytes):
                    reply = b"".join(json.dumps(r).encode() + b"\n" for r in reply)
                if self.split:
                    for i in range(0, len(reply), 1000):
                        connection.sendall(reply[i:i + 1000])
                else:
                    connection.sendall(reply)
                if reply[-1:] != b"\n":
                    break
        except OSError:
            pass
        connection.close()

    def close(self):
        # close() alone would leave the thread in accept(), on a number that the next agent gets.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()
        Agent.running.remove(self)


class Context:
    def __init__(self, directory):
        self.directory = directory
        self.environment = {k: v for k, v in os.environ.items()
                            if k not in ("LIEN_SOCKET", "LIEN_CONTROL", "LD_PRELOAD")}
        self.environment["LIEN_SOCKET"] = os.path.join(directory, "none.sock")

    def agent(self, answer=None, **options):
        agent = Agent(self.directory, answer, **options)
        self.environment["LIEN_SOCKET"] = agent.path
        return agent

    def path(self, name):
        return os.path.join(self.directory, name)

    def run(self, *arguments, code=0, **environment):
        done = subprocess.run([LIEN, *arguments], capture_output=True, timeout=120,
                              env={**self.environment, **environment},
                              stdin=subprocess.DEVNULL, check=False)
        out = done.stdout.decode("utf-8", "surrogateescape")
        err = done.stderr.decode("utf-8", "surrogateescape")
        shown = "lien %s: exit code %d\n%s%s" % (" ".join(arguments), done.returncode, out, err)
        assert done.returncode == code, shown
        assert code or "Sanitizer" not in err and "runtime error" not in err, shown
        return out, err

    def fails(self, *arguments, code=1, words=(), **environment):
        """Fails with one line that begins with the command's name and has these words."""
        out, err = self.run(*arguments, code=code, **environment)
        assert out == "", out
        assert err.endswith("\n") and err.count("\n") == 1, err
        assert err.startswith("lien %s: " % arguments[0]), err
        for word in words:
            assert word in err, "%r is not in %r" % (word, err)
        return err


def fits(text):
    for line in text.splitlines():
        assert len(line) <= COLUMNS, "%d columns: %s" % (len(line), line)
        assert line == line.rstrip(), "blanks at the end: %r" % line
        assert "\x1b" not in line, line
    return text


# Cases: functions that begin with case_; the docstring is the case's name.

def case_help(context):
    """--help of every command: usage, options, examples"""
    for command in COMMANDS:
        out, err = context.run(command, "--help")
        fits(out)
        assert err == "", err
        assert out.startswith("Usage: lien " + command), out
        assert "\nExamples:\n  " in out and "lien " + command in out.split("Examples:")[1], out
        assert "--help" in out, out
        if command != "run":
            assert "--json" in out and "--socket PATH" in out, out
        assert context.run(command, "-h")[0] == out


def case_main(context):
    """lien alone: --help, --version, unknown commands"""
    out, _ = context.run("--help")
    fits(out)
    for command in COMMANDS + ["agent", "replay"]:
        assert "\n  %s " % command in out, command
    assert context.run("--version")[0].startswith("lien ")
    _, err = context.run(code=2)
    assert err.count("\n") == 1 and "--help" in err, err
    for word, nearest in (("offlaod", "offload"), ("staus", "status"), ("Ps", "ps"),
                          ("docter", "doctor"), ("sp", "ps")):
        _, err = context.run(word, code=2)
        assert "'%s'" % word in err and "'%s'" % nearest in err and err.count("\n") == 1, err
    _, err = context.run("frobnicate", code=2)
    assert "see lien --help" in err and err.count("\n") == 1, err
    context.run("x" * 100000, code=2)
    context.run("", code=2)


def case_wrong_arguments(context):
    """wrong arguments: one line, exit code 2, no request made"""
    agent = context.agent()
    wrong = [[c, "--frobnicate"] for c in COMMANDS] + [[c, "-x"] for c in COMMANDS]
    wrong += [[c, "extra"] for c in COMMANDS if c not in ("run", "record", "holders")]
    wrong += [[c, "--socket"] for c in COMMANDS if c != "run"]
    wrong += [[c, "--socket", ""] for c in COMMANDS if c != "run"]
    wrong += [[c, "--json=yes"] for c in COMMANDS if c != "run"]
    wrong += [["holders"], ["holders", "812"], ["holders", "812", "0x1", "0x2"]]
    wrong += [["holders", pid, "0x1"] for pid in
              ("x", "0", "-1", "1.5", "", "99999999999", "2147483648", " 1", "+1", "0x10")]
    wrong += [["holders", "812", a] for a in
              ("x", "", "0x", "0xg", "-1", " 1", "0x0x1", "12g", "0x10000000000000000",
               "18446744073709551616", "7f2a4c000000")]
    wrong += [["mem", "--pid", "x"], ["mem", "--pid", "1", "--pid", "2"], ["mem", "--pid"]]
    for command in ("offload", "restore"):
        wrong += [[command, "--pid", "me"], [command, "--pid", "0"], [command, "--pid"],
                  [command, "--timeout", "0"], [command, "--timeout", "1s"],
                  [command, "--timeout", "-5"], [command, "--timeout", "99999999999"]]
        wrong += [[command] + ["--pid", "1"] * 1025]
    wrong += [["restore", "--owner", "nccl"], ["offload", "--owner", ""], ["offload", "--owner"]]
    wrong += [["graph", "--format", "svg"], ["graph", "--format"], ["graph", "--output"],
              ["graph", "--json", "--format", "dot"]]
    wrong += [["record"], ["record", "a", "b"], ["record", "a", "--seconds", "soon"],
              ["record", "a", "--seconds", "0"], ["run"], ["run", "--"]]
    for arguments in wrong:
        context.fails(*arguments, code=2, words=["see lien %s --help" % arguments[0]])
    context.fails("offload", "--owner", b"\xff\xfe".decode("utf-8", "surrogateescape"), code=2)
    assert not agent.requests, agent.requests


def case_no_agent(context):
    """no agent: the socket and the remedy are named"""
    for arguments in list(QUERIES.values()) + [["record", context.path("r")]]:
        context.fails(*arguments, words=["none.sock", "`lien agent`"])
    stale = Agent(context.directory)
    stale.close()
    context.fails("ps", "--socket", stale.path, words=[stale.path, "`lien agent`"])
    context.fails("ps", "--socket", context.path("x" * 200), words=["longer than"])
    context.fails("ps", "--socket", context.directory)
    assert not os.path.exists(context.path("r"))


def case_default_socket(context):
    """the socket: --socket, then $LIEN_SOCKET, then /run/lien/agent.sock"""
    agent = context.agent()
    context.run("ps", "--socket", agent.path, LIEN_SOCKET="/nowhere")
    context.run("ps")
    if not os.path.exists("/run/lien/agent.sock"):
        context.fails("ps", LIEN_SOCKET="", words=["/run/lien/agent.sock"])


def case_not_allowed(context):
    """no permission: who may is named"""
    if os.geteuid():
        return
    agent = context.agent()
    os.chmod(agent.path, 0o600)
    os.chmod(context.directory, 0o755)
    copy = context.path("lien")
    shutil.copy(LIEN, copy)
    done = subprocess.run([copy, "ps"], capture_output=True, user=65534, group=65534,
                          env=context.environment, check=False)
    assert done.returncode == 1, done
    assert b"uid 0 and root may" in done.stderr and agent.path.encode() in done.stderr, done


def case_json(context):
    """--json: the result, unchanged, with one newline"""
    context.agent(split=True)
    for command, arguments in QUERIES.items():
        out, _ = context.run(*arguments, "--json")
        assert out == json.dumps(RESULTS[command], indent=2, ensure_ascii=False) + "\n" or \
            json.loads(out) == RESULTS[command], out[:2000]
        assert list(json.loads(out)) == list(RESULTS[command]), out[:2000]
        assert out.startswith("{\n  \"") and out.endswith("\n}\n"), out[-100:]
    out, _ = context.run("graph", "--format", "json")
    assert json.loads(out) == GRAPH


def case_requests(context):
    """requests: only what the options say"""
    agent = context.agent()
    cases = [
        (["ps"], {"op": "ps"}),
        (["mem", "--pid", "812"], {"op": "mem"}),
        (["holders", "812", "0x7F2a4c000000"],
         {"op": "holders", "pid": 812, "address": "0x7f2a4c000000"}),
        (["holders", "812", "4096"], {"op": "holders", "pid": 812, "address": "0x1000"}),
        (["offload"], {"op": "offload"}),
        (["offload", "--owner", "all", "--pid", "1", "--pid=2", "--timeout", "500", "--dry-run",
          "--strict", "--with-closure"],
         {"op": "offload", "owner": "all", "pids": [1, 2], "timeout_ms": 500, "dry_run": True,
          "strict": True, "with_closure": True}),
        (["restore", "--pid", "812", "--timeout", "1"],
         {"op": "restore", "pids": [812], "timeout_ms": 1}),
    ]
    for arguments, request in cases:
        agent.requests.clear()
        context.run(*arguments)
        assert agent.requests == [request], agent.requests


def case_columns(context):
    """human output fits in 100 columns"""
    context.agent()
    for arguments in QUERIES.values():
        if arguments != ["graph"]:
            fits(context.run(*arguments)[0])


def case_ps(context):
    """ps: ranks, sizes, the mark of incomplete processes; none at all"""
    context.agent()
    out, _ = context.run("ps")
    lines = out.splitlines()
    assert lines[0].split() == ["PID", "COMMAND", "STATE", "CONTROL", "DEVICES", "RANKS", "GPU",
                                "NCCL", "IMPORTED", "OFFLOADED"], lines[0]
    assert "0/2 0/2 +2" in lines[1] and "2.5 GiB" in lines[1] and "1.3 GiB" in lines[1], lines[1]
    assert "partly*" in lines[2] and "0-7" in lines[2] and "1024.0 GiB" in lines[2], lines[2]
    assert "4.0 KiB" in lines[3] and " 0 " in lines[3] and "none" in lines[3], lines[3]
    assert "* incomplete: may have used CUDA before" in out, out
    context.agent(lambda r: [{"ok": True, "result": {"processes": [process(1, 0, 1)]}}])
    assert "*" not in context.run("ps")[0]
    context.agent(lambda r: [{"ok": True, "result": {"processes": []}}])
    assert context.run("ps")[0].startswith("no process uses CUDA")


def case_mem(context):
    """mem: rows, totals, what stays behind; one process"""
    context.agent()
    out, _ = context.run("mem")
    assert "total: 1.5 GiB on the GPUs, of which an offload frees 1.5 GiB; 2.0 MiB offloaded" in out
    assert "an offload leaves behind:" in out and "120.0 MiB in 60 allocations of processes" in out
    assert "and 12 more: cudaMalloc memory" in " ".join(out.split()), out
    out, _ = context.run("mem", "--pid", "813")
    assert "812" not in out and "total: 6.0 MiB" in out and "network card" not in out, out
    result = json.loads(context.run("mem", "--pid", "812", "--json")[0])
    assert {r["pid"] for r in result["rows"] + result["left"]} == {812}
    assert result["bytes"] == 1614807040 and list(result) == list(MEM), result
    assert "holds no GPU memory" in context.run("mem", "--pid", str(os.getpid()))[0]
    context.fails("mem", "--pid", "2147483647", words=["no process 2147483647"])
    context.agent(lambda r: [{"ok": True, "result": {"rows": [], "bytes": 0, "left": []}}])
    assert "no process holds GPU memory" in context.run("mem")[0]


def case_holders(context):
    """holders: the paragraph and the liens"""
    context.agent()
    out, _ = context.run("holders", "812", "0x7f2a4c000000")
    text = " ".join(out.split())
    assert "Address 0x7f2a4c000000 of process 812 lies in allocation 193: 10.0 MiB of device 0" in text
    assert "made it for nccl with cuMemCreate. It can be offloaded. 6 liens hold it:" in text, text
    assert "exported 1 time" in out and "2 references" in out and "no access" in out, out
    assert "buffer of rank 0 of communicator 5ac1d2e0b7f0a133" in out, out
    changed = json.loads(json.dumps(HOLDERS))
    changed["allocation"].update(alive=False, movable=False, reason="its owner has exited")
    context.agent(lambda r: [{"ok": True, "result": changed}])
    text = " ".join(context.run("holders", "812", "0x7f2a4c000000")[0].split())
    assert "812 (which has exited)" in text, text
    assert "It can't be offloaded: its owner has exited." in text, text
    changed["allocation"].update(pid=None, device=None, origin="import", reason="unknown owner")
    changed["holders"][1]["access"] = [{"host": 0, "access": "read"}]
    text = " ".join(context.run("holders", "812", "0x7f2a4c000000")[0].split())
    assert "10.0 MiB, now on the device; it was imported, and its owner is unknown." in text, text
    assert "host 0 read" in text, text


def case_offload(context):
    """offload and restore: progress, rows, total, what stays; nothing to do; dry run"""
    context.agent()
    out, err = context.run("offload")
    assert err == "drain\nsave\ndrop\n", err
    lines = out.splitlines()
    assert lines[0].split() == ["PID", "MOVED", "FREED", "ALLOCS", "IMPORTS", "MAPPINGS", "drain",
                                "check", "save", "unmap", "drop"], lines[0]
    assert "offloaded 5.1 GiB of 2 processes in 108.4 ms" in out, out
    assert "left on the GPUs:" in out and "registered with the network card" in out, out
    out, _ = context.run("restore")
    assert "restored 5.1 GiB of 2 processes in 162.0 ms" in out and "left" not in out, out
    assert out.split()[:2] == ["PID", "RESTORED"] and "FREED" not in out, out
    nothing = {"outcome": "nothing to do", "bytes": 0, "ms": 0, "processes": [], "left": []}
    context.agent(lambda r: [{"ok": True, "result": nothing}])
    assert context.run("offload")[0] == "nothing to offload\n"
    assert context.run("restore")[0] == "nothing is offloaded\n"
    dry = json.loads(json.dumps(OFFLOAD))
    dry["outcome"] = "dry run"
    for one in dry["processes"]:
        one["freed_bytes"] = None
    context.agent(lambda r: [{"ok": True, "result": dry}])
    out, _ = context.run("offload", "--dry-run")
    assert "would offload 5.1 GiB of 2 processes\n" in out and " - " in out.splitlines()[1], out


def case_terminal(context):
    """progress on a terminal: one line, gone before the error"""
    context.agent(lambda r: PROGRESS + [{"ok": False, "error": "rank 1 is behind"}])
    master, slave = os.openpty()
    done = subprocess.run([LIEN, "offload"], stderr=slave, stdout=subprocess.DEVNULL,
                          env=context.environment, timeout=60, check=False)
    os.close(slave)
    text = os.read(master, 65536).decode()
    os.close(master)
    assert done.returncode == 1
    assert "\rsave" not in text and "\r\x1b[Ksave: 1 of 2 processes" in text, repr(text)
    assert text.endswith("\r\x1b[Klien offload: rank 1 is behind\r\n"), repr(text)


def case_status(context):
    """status: what is lost or incomplete is loud"""
    context.agent()
    out, _ = context.run("status")
    assert "up for 2 min 3 s" in out and "103422 seen, 17 lost" in out, out
    assert "offload, phase save, for 12.0 ms" in out, out
    assert out.count("WARNING") == 3 and "17 events were lost" in out, out
    assert "has no ncclCommWindowRegister, ncclCommWindowDeregister" in " ".join(out.split()), out
    assert "-directory/libnccl.so.2" in out and "..." in out, out
    good = dict(STATUS, events_lost=0, incomplete=[], unmatched_imports=0, transaction=None,
                libraries=[])
    context.agent(lambda r: [{"ok": True, "result": good}])
    out, _ = context.run("status")
    assert "WARNING" not in out and "none under way" in out and "no library has probes" in out, out


def case_graph(context):
    """graph: groups, imports, communicators; graphviz takes it"""
    context.agent()
    out, _ = context.run("graph")
    assert out.startswith("digraph lien {") and out.endswith("}\n"), out
    assert len(out.splitlines()) < 60, "%d lines for two ranks" % len(out.splitlines())
    assert "336 allocations, 3.3 GiB" in out and "336 imports" in out, out
    assert out.count("subgraph cluster_") == 2 and "4 communicators of 2 ranks" in out, out
    assert out.count("1 buffer, 1 window\\n40.0 MiB registered") == 2, out
    path = context.path("out.dot")
    assert context.run("graph", "--output", path) == ("", "")
    with open(path, encoding="utf-8") as file:
        assert file.read() == out
    context.fails("graph", "--output", "/nowhere/out.dot", words=["/nowhere/out.dot"])
    context.fails("graph", "--output", "/dev/full", words=["No space left"])
    odd = json.loads(json.dumps(GRAPH))
    odd["processes"][0]["command"] = 'a"b\\c\n'
    odd["allocations"][0].update(owner='"x\\', state="offloaded", device=-1)
    odd["allocations"][1].update(pid=77, alive=False)
    odd["allocations"][2].update(pid=None, device=None, alive=False, origin="import")
    odd["communicators"][0]["registrations"][0]["address"] = "0x1"
    context.agent(lambda r: [{"ok": True, "result": odd}])
    out, _ = context.run("graph")
    assert "process 77 (exited)" in out and 'a\\"b\\\\c?' in out and "owner has exited" in out, out
    assert 'label="owner unknown"' in out and "nccl · import" in out, out
    empty = {"processes": [], "allocations": [], "communicators": []}
    context.agent(lambda r: [{"ok": True, "result": empty}])
    outs = [out, context.run("graph")[0]]
    context.agent(lambda r: [{"ok": True, "result": make_graph(8, 300, 150, 6)}])
    outs.append(context.run("graph")[0])
    for text in outs if shutil.which("dot") else []:
        subprocess.run(["dot", "-Tsvg"], input=text.encode(), check=True, timeout=120,
                       stdout=subprocess.DEVNULL)


def case_errors(context):
    """error replies: the agent's text in one line, exit code 1"""
    context.agent(lambda r: PROGRESS + [{"ok": False, "error": "rank 1 (pid 813) is\nbehind \x1b["}])
    for arguments in list(QUERIES.values()) + [["record", context.path("r")]]:
        err = context.run(*arguments, code=1)[1]
        last = err.splitlines()[-1]
        assert last == "lien %s: rank 1 (pid 813) is?behind ?[" % arguments[0], err
        context.run(*arguments, *(["--json"]), code=1)
    assert not os.path.exists(context.path("r"))


def case_broken_replies(context):
    """agents that close, send garbage, another protocol, wrong types"""
    answers = [None, b"{\"ok\": true, \"resu", b"", b"{\"ok\": true}", b"garbage\n", b"\n", b"{}\n",
               b"[1]\n", b"3\n", b"\"ok\"\n", b"{\"ok\": 1}\n", b"{\"ok\": false}\n", b"\0\0\n",
               b"{\"ok\": false, \"error\": 3}\n", b"{\"ok\": true, \"result\": null}\n",
               b"{\"ok\": true, \"result\": [1]}\n", b"{\"ok\": true}\n", b"\xff\xfe{}\n",
               b"[" * 5000 + b"\n", b"HTTP/1.1 400 Bad Request\r\n"]
    for answer in answers:
        agent = context.agent(lambda r, a=answer: a)
        for arguments in list(QUERIES.values()) + [["record", context.path("r")]]:
            context.fails(*arguments, words=[agent.path])
        agent.close()
    assert not os.path.exists(context.path("r"))


def case_odd_results(context):
    """results with members missing or of another type: no crash, no long lines"""
    def variants(value):
        if isinstance(value, dict):
            for key in value:
                yield {k: v for k, v in value.items() if k != key}
                for other in (None, 3, -1, 1 << 62, "x" * 300, [], {}, [None], [[]], [{}], 1.5):
                    yield {**value, key: other}
                for variant in variants(value[key]):
                    yield {**value, key: variant}
        elif isinstance(value, list) and value:
            for variant in variants(value[0]):
                yield [variant] + value[1:]
    small = dict(RESULTS, graph=make_graph(2, 1, 1, 1), mem=dict(MEM, left=MEM["left"][:1]))
    replies = [(c, v) for c in QUERIES for v in list(variants(small[c]))]
    step = max(1, len(replies) // int(os.environ.get("ODD_RESULTS", "400")))
    reply = {}
    agent = context.agent(lambda r: [{"ok": True, "result": reply["now"]}])
    for command, variant in replies[::step]:
        reply["now"] = variant
        out, _ = context.run(*QUERIES[command])
        if command != "graph":
            for line in out.splitlines():
                assert len(line) <= 500, line
    assert agent.requests


def case_full_disk(context):
    """output to a full disk: said, exit code 1"""
    context.agent()
    for arguments in QUERIES.values():
        with open("/dev/full", "wb") as full:
            done = subprocess.run([LIEN, *arguments], stdout=full, stderr=subprocess.PIPE,
                                  env=context.environment, timeout=60, check=False)
        assert done.returncode == 1 and b"No space left" in done.stderr, done


def case_doctor(context):
    """doctor: every check has a line; JSON agrees with the exit code"""
    control = context.path("liblien-control.so")
    with open(control, "wb"):
        pass
    for environment in ({"LIEN_CONTROL": control}, {"LIEN_CONTROL": "/nowhere/x.so"}):
        done = subprocess.run([LIEN, "doctor", "--json"], capture_output=True,
                              env={**context.environment, **environment}, check=False)
        result = json.loads(done.stdout)
        assert done.returncode == (0 if result["ok"] else 1) and not done.stderr, done
        assert list(result) == ["checks", "ok"]
        names = [c["name"] for c in result["checks"]]
        for name in ("kernel", "btf", "uprobes", "tracefs", "capabilities", "bpf", "nofile",
                     "libcuda", "libcudart", "libnccl", "control", "gpu", "agent"):
            assert name in names, names
        for check in result["checks"]:
            assert check["status"] in ("ok", "warn", "FAIL") and check["found"], check
            assert check["remedy"] or check["status"] == "ok", check
        status = {c["name"]: c["status"] for c in result["checks"]}
        assert status["control"] == ("ok" if environment["LIEN_CONTROL"] == control else "FAIL")
        assert status["agent"] == "warn"
    assert not result["ok"]
    out, _ = context.run("doctor", code=1)
    fits(out)
    agent = context.agent()
    done = subprocess.run([LIEN, "doctor"], capture_output=True, text=True,
                          env=context.environment, check=False)
    assert "ok   agent: listens on " + agent.path in done.stdout, done.stdout


def case_run(context):
    """run: LD_PRELOAD, the command's arguments and exit code; what is missing"""
    control = context.path("liblien-control.so")
    subprocess.run(["cc", "-shared", "-o", control, "-x", "c", "/dev/null"], check=True)
    show = ["sh", "-c", 'echo "$LD_PRELOAD"; exit 7']
    assert context.run("run", "--", *show, code=7, LIEN_CONTROL=control)[0] == control + "\n"
    assert context.run("run", *show, code=7, LIEN_CONTROL=control)[0] == control + "\n"
    # Given relative, found absolute.
    relative = os.path.relpath(control)
    assert context.run("run", "--", *show, code=7, LIEN_CONTROL=relative)[0] == control + "\n"
    out, _ = context.run("run", "--", *show, code=7, LIEN_CONTROL=control, LD_PRELOAD=control)
    assert out == "%s:%s\n" % (control, control), out
    # The command's options are its own.
    assert context.run("run", "echo", "--json", "-x", LIEN_CONTROL=control)[0] == "--json -x\n"
    assert context.run("run", "--", "sh", "-c", 'echo "$0"', "--help",
                       LIEN_CONTROL=control)[0] == "--help\n"
    context.fails("run", "--", "/nowhere/command", code=127, words=["/nowhere/command", "not found"],
                  LIEN_CONTROL=control)
    context.fails("run", "--", "no-such-command", code=127, LIEN_CONTROL=control)
    context.fails("run", "--", context.directory, code=126, LIEN_CONTROL=control)
    context.fails("run", "--", "true", words=["/nowhere/x.so", "LIEN_CONTROL"],
                  LIEN_CONTROL="/nowhere/x.so")
    blank = context.path("a b")
    os.mkdir(blank)
    shutil.copy(control, blank)
    context.fails("run", "--", "true", words=["blank"], LIEN_CONTROL=blank + "/liblien-control.so")
    # Next to the program, and in ../lib/lien from there.
    bin_directory, lib_directory = context.path("opt/bin"), context.path("opt/lib/lien")
    os.makedirs(bin_directory)
    os.makedirs(lib_directory)
    program = shutil.copy(LIEN, bin_directory)
    environment = context.environment
    done = subprocess.run([program, "run", "--", *show], capture_output=True, env=environment,
                          check=False)
    assert done.returncode == 1 and b"LIEN_CONTROL" in done.stderr, done
    for directory in (lib_directory, bin_directory):
        shutil.copy(control, directory)
        done = subprocess.run([program, "run", "--", *show], capture_output=True, env=environment,
                              text=True, check=False)
        assert done.stdout == directory + "/liblien-control.so\n", done


class Stream(Agent):
    """Keeps the connection open after the reply, sends its parts and then waits."""

    def __init__(self, directory, parts, end=False, forever=False):
        self.parts, self.end, self.forever = parts, end, forever
        super().__init__(directory)

    def serve(self, connection):
        try:
            connection.recv(65536)
            connection.sendall(b'{"ok": true, "result": {"format": 1}}\n' + self.parts[0])
            for part in self.parts[1:]:
                time.sleep(0.05)
                connection.sendall(part)
            while self.forever:
                connection.sendall(self.parts[0])
            if not self.end:
                connection.recv(1)
        except OSError:
            pass
        connection.close()


def read_recording(path):
    """The types of the records of a recording."""
    with gzip.open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"LIENREC\0", data[:8]
    types, at = [], 24
    while at < len(data):
        size, kind = struct.unpack_from("<IH", data, at)
        types.append(kind)
        at += size
    return types


TWO_PROCESSES = process_event(812) + process_event(813)
CREATE = event(17, 812, struct.pack("<QQIIIiBBHI", 1, MIB, 1, 1, 1, 0, 0, 0, 0, 0))


def case_record(context):
    """record: every record is written, also those cut in pieces; ends with --seconds"""
    path = context.path("a.lien")
    stream = TWO_PROCESSES + CREATE * 500
    parts = [stream[i:i + 999] for i in range(0, len(stream), 999)]
    context.environment["LIEN_SOCKET"] = Stream(context.directory, parts).path
    out, err = context.run("record", path, "--seconds", "1")
    types = read_recording(path)
    assert types[:3] == [1, 1, 17] and types[-1] == 6 and len(types) == 503, types
    assert err == "" and "502 events of 2 processes" in out, out
    context.fails("record", path, "--seconds", "1", words=[path, "--force"])
    assert len(read_recording(path)) == 503
    Stream(context.directory, [TWO_PROCESSES])
    out, _ = context.run("record", "--force", path, "--seconds", "1", "--json")
    result = json.loads(out)
    assert result == {"events": 2, "processes": 2, "bytes": os.stat(path).st_size}, out
    assert len(read_recording(path)) == 3


def case_record_signal(context):
    """record: SIGINT and SIGTERM end it in good order"""
    for number in (signal.SIGINT, signal.SIGTERM):
        path = context.path("s%d.lien" % number)
        context.environment["LIEN_SOCKET"] = Stream(context.directory, [TWO_PROCESSES]).path
        with subprocess.Popen([LIEN, "record", path], stdout=subprocess.PIPE,
                              env=context.environment) as running:
            while not os.path.exists(path):
                time.sleep(0.01)
            time.sleep(0.2)
            running.send_signal(number)
            out, _ = running.communicate(timeout=30)
        assert running.returncode == 0 and b"2 events" in out, (running.returncode, out)
        assert read_recording(path) == [1, 1, 6]


def case_record_busy(context):
    """record: ends in time while events keep coming"""
    path = context.path("b.lien")
    context.environment["LIEN_SOCKET"] = Stream(
        context.directory, [TWO_PROCESSES * 100], forever=True).path
    start = time.monotonic()
    context.run("record", path, "--seconds", "1")
    assert time.monotonic() - start < 20
    assert read_recording(path)[-1] == 6


def case_record_command(context):
    """record -- COMMAND: ends with it; its failure is a warning"""
    control = context.path("liblien-control.so")
    subprocess.run(["cc", "-shared", "-o", control, "-x", "c", "/dev/null"], check=True)
    context.environment["LIEN_CONTROL"] = control
    context.environment["LIEN_SOCKET"] = Stream(context.directory, [TWO_PROCESSES]).path
    path = context.path("c.lien")
    out, err = context.run("record", path, "--", "sh", "-c", 'echo "$LD_PRELOAD" --json')
    assert out.startswith(control + " --json\n") and "2 events" in out and err == "", (out, err)
    assert read_recording(path) == [1, 1, 6]
    out, err = context.run("record", path, "--force", "--", "sh", "-c", "exit 3")
    assert err == "lien record: warning: sh ended with exit code 3\n" and "2 events" in out, err
    _, err = context.run("record", path, "--force", "--", "sh", "-c", "kill -9 $$")
    assert "warning: sh was killed by signal 9" in err, err
    path = context.path("d.lien")
    context.fails("record", path, "--", "no-such-command", code=127, words=["not found"])
    assert not os.path.exists(path)
    # The command outlives --seconds: the file is complete, the command is waited for.
    out, err = context.run("record", path, "--seconds", "1", "--", "sh", "-c", "sleep 2; exit 4")
    assert read_recording(path) == [1, 1, 6] and "exit code 4" in err, (out, err)
    # SIGTERM goes on to the command, which has the usual signal mask.
    with subprocess.Popen([LIEN, "record", path, "--force", "--", "sleep", "60"],
                          env=context.environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as running:
        time.sleep(0.5)
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=30)
    assert running.returncode == 0 and b"killed by signal 15" in err, err


def case_record_failures(context):
    """record: full disk, unwritable path, agents that vanish or send nonsense"""
    path = context.path("e.lien")
    context.environment["LIEN_SOCKET"] = Stream(context.directory, [TWO_PROCESSES]).path
    context.fails("record", "/nowhere/x", words=["/nowhere/x", "No such file"])
    context.fails("record", context.directory, "--force", words=["Is a directory"])
    context.fails("record", "/dev/full", "--force", "--seconds", "1",
                  words=["/dev/full", "No space left"])
    assert os.path.exists("/dev/full")
    Stream(context.directory, [TWO_PROCESSES], end=True)
    _, err = context.run("record", path, code=1)
    lines = err.splitlines()
    assert "ended the connection" in lines[0] and "holds what came before" in lines[1], err
    assert read_recording(path) == [1, 1, 6]
    os.unlink(path)
    for nonsense in (event(1, 1, size=8), event(1, 1, size=1 << 31), event(99, 1), event(17, 1),
                     b"\xff" * 1000, b""):
        Stream(context.directory, [nonsense], end=True)
        context.fails("record", path, words=["agent"])
        assert not os.path.exists(path)
    context.agent(lambda r: [{"ok": True, "result": {"format": 2}}])
    context.fails("record", path, words=["another format"])
    assert not os.path.exists(path)
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        return
    # A disk that fills up: a tmpfs of one page, in a mount namespace of its own.
    os.mkdir(context.path("small"))
    noise = b"".join(event(17, 812, struct.pack("<QQ", 1, MIB) + os.urandom(8) + b"\0" * 16)
                     for _ in range(20000))
    Stream(context.directory, [TWO_PROCESSES + noise])
    script = 'mount -t tmpfs -o size=64k none small && "$0" record small/r --seconds 5; echo $?; ls small'
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, LIEN], capture_output=True, text=True,
                          cwd=context.directory, env=context.environment, check=False)
    assert "No space left" in done.stderr and done.stdout.startswith("1\n"), done
    assert ("holds what came before" in done.stderr) == ("r\n" in done.stdout), done


def main():
    passed = failed = 0
    wanted = sys.argv[1:]
    for name, case in list(globals().items()):
        if not name.startswith("case_") or (wanted and name[5:] not in wanted):
            continue
        directory = tempfile.mkdtemp(prefix="lien-cli-")
        context = Context(directory)
        try:
            case(context)
            print("ok    " + case.__doc__, flush=True)
            passed += 1
        except Exception:  # pylint: disable=broad-except
            print("FAIL  " + case.__doc__, flush=True)
            traceback.print_exc()
            failed += 1
        for agent in Agent.running[:]:
            agent.close()
        shutil.rmtree(directory, ignore_errors=True)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
