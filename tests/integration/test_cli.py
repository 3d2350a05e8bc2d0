#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The commands of `lien` against a fake agent that gives canned answers.

LIEN names the program (default build/lien). Needs neither root nor a GPU. Prints a line per case, and
"N passed, N failed" at the end. Cases are the functions that begin with case_, their docstrings the
names.
"""

import json
import os
import shutil
import subprocess
import sys

from cli_answers import GRAPH, HOLDERS, MEM, OFFLOAD, PROGRESS, RESULTS, STATUS, make_graph, process
from cli_fixture import LIEN, Agent, fits, run_cases, variants

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
    wrong += [["graph", "--format", "png"], ["graph", "--format"], ["graph", "--output"],
              ["graph", "--json", "--format", "dot"], ["graph", "--json", "--format", "svg"]]
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
    assert "* incomplete: it may have called CUDA or NCCL before" in out, out
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
    done = subprocess.run([LIEN, "doctor"], capture_output=True, text=True, check=False,
                          env={**context.environment, "LIEN_CONTROL": "/nowhere"})
    assert done.returncode == 1 and "FAIL control: " in done.stdout, done
    fits(done.stdout)
    agent = context.agent()
    done = subprocess.run([LIEN, "doctor"], capture_output=True, text=True,
                          env=context.environment, check=False)
    assert "ok   agent: listens on " + agent.path in done.stdout, done.stdout


if __name__ == "__main__":
    sys.exit(run_cases(globals()))
