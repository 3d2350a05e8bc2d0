#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The commands of `lien` against a fake agent that gives canned answers.

LIEN names the program (default build/lien). Needs neither root nor a GPU. Prints a line per case, and
"N passed, N failed" at the end. Cases are the functions that begin with case_, their docstrings the
names.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time

from cli_answers import (
    ATTACH, COMMS, DETACH, EXPLAINED, GRAPH, HOLDERS, MEM, OFFLOAD, PROGRESS, PS, RESULTS, STATUS,
    make_graph, mem_by, process)
from cli_fixture import LIEN, Agent, fits, long, run_cases, variants
from container import confine

COMMANDS = ["run", "ps", "mem", "comms", "holders", "graph", "offload", "restore", "check", "status",
            "doctor", "record", "snapshot", "events", "top", "arena", "attach", "detach", "metrics"]
FILES = ["replay", "timeline", "diff"]  # need recordings, and no agent
FROM = ["ps", "mem", "comms", "holders", "graph", "check", "events"]  # can answer from a recording
QUERIES = {
    "ps": ["ps"],
    "mem": ["mem"],
    "comms": ["comms"],
    "holders": ["holders", "812", "0x7f2a4c000000"],
    "graph": ["graph"],
    "offload": ["offload"],
    "restore": ["restore"],
    "status": ["status"],
    "arena": ["arena"],
    "metrics": ["metrics"],
}


def case_help(context):
    """--help of every command: usage, options, examples"""
    for command in COMMANDS + FILES:
        out, err = context.run(command, "--help")
        fits(out)
        assert err == "", err
        assert out.startswith("Usage: lien " + command), out
        assert "\nExamples:\n  " in out and "lien " + command in out.split("Examples:")[1], out
        assert "--help" in out, out
        assert ("--json" in out) == (command not in ("run", "top")), out
        assert ("--socket PATH" in out) == (command != "run" and command not in FILES), out
        assert ("\n  --from FILE" in out) == (command in FROM), out
        assert context.run(command, "-h")[0] == out


def case_main(context):
    """lien alone: --help, --version, unknown commands"""
    out, _ = context.run("--help")
    fits(out)
    for command in COMMANDS + FILES + ["agent"]:
        assert "\n  %s " % command in out, command
    assert context.run("--version")[0].startswith("lien ")
    assert context.run("help")[0] == out
    assert context.run("help", "offload")[0] == context.run("offload", "--help")[0]
    assert "unknown command 'nothing'" in context.run("help", "nothing", code=2)[1]
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
    wrong += [[c, "extra"] for c in COMMANDS if c not in ("run", "record", "holders", "snapshot")]
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
    wrong += [["comms", "--group"], ["comms", "--group", ""], ["comms", "--pid", "x"],
              ["comms", "--pid", "1", "--pid", "2"]]
    wrong += [["attach"], ["attach", "--all", "812"], ["attach", "0"], ["attach", "812", "+1"],
              ["attach"] + ["1"] * 1025, ["detach"], ["detach", "--all", "812"], ["detach", "x"]]
    for command in ("offload", "restore"):
        wrong += [[command, "--pid", "me"], [command, "--pid", "0"], [command, "--pid"],
                  [command, "--timeout", "0"], [command, "--timeout", "1s"],
                  [command, "--timeout", "-5"], [command, "--timeout", "99999999999"]]
        wrong += [[command] + ["--pid", "1"] * 1025]
    wrong += [["restore", "--owner", "nccl"], ["offload", "--owner", ""], ["offload", "--owner"]]
    wrong += [["snapshot"], ["snapshot", "a", "b"]] + [[c, "--from"] for c in FROM]
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
    """no permission: the error says who may"""
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
    """--json: the result, unchanged, with one newline; that of an offload, and what only NVML knows"""
    context.agent(split=True)
    for command, arguments in QUERIES.items():
        out, _ = context.run(*arguments, "--json")
        if command == "offload":
            shown = json.loads(out)
            assert shown.pop("unexplained") is None and shown == RESULTS[command], out
            continue
        assert out == json.dumps(RESULTS[command], indent=2, ensure_ascii=False) + "\n" or \
            json.loads(out) == RESULTS[command], out[:2000]
        assert list(json.loads(out)) == list(RESULTS[command]), out[:2000]
        assert out.startswith("{\n  \"") and out.endswith("\n}\n"), out[-100:]
    out, _ = context.run("graph", "--format", "json")
    assert json.loads(out) == GRAPH


def case_json_errors(context):
    """--json: an error is JSON, too, even one about options; --json=line: one line"""
    for arguments in QUERIES.values():
        if arguments[0] != "offload":
            context.fails(*arguments, "--json", words=["none.sock"])
        context.fails(*arguments, "--frobnicate", "--json", code=2, words=["'--frobnicate'"])
    out, _ = context.run("ps", "--json=line", code=1)
    assert out.count("\n") == 1 and out.startswith('{"error":"no agent listens on '), out
    out, _ = context.run("events", "--json", code=1)
    assert out.count("\n") == 1 and "none.sock" in json.loads(out)["error"], out
    out, _ = context.run("ps", "--from", context.path("no\udcffne"), "--json", code=1)
    assert "UTF-8" in json.loads(out)["error"], out
    out, _ = context.run("replay", "--json", "/nowhere", code=1)
    assert json.loads(out) == {"error": "/nowhere: No such file or directory"}, out
    context.agent(lambda r: [{"ok": False, "error": "process 7 is not known"}])
    out, _ = context.run("mem", "--json", code=1)
    assert json.loads(out) == {"error": "process 7 is not known"}, out
    context.agent()
    for command, arguments in QUERIES.items():
        out, _ = context.run(*arguments, "--json=line")
        shown = json.loads(out)
        if command == "offload":
            shown.pop("unexplained")
        assert out.count("\n") == 1 and shown == RESULTS[command], out


def case_json_numbers(context):
    """--json: numbers have no more digits than they need"""
    context.agent(lambda r: [{"ok": True, "result": {
        **STATUS, "uptime_ms": 0.085117, "ms": [0.1 + 0.2, 1790000000123.456, 3.0, 108.4]}}])
    for form in ("--json", "--json=line"):
        out = context.run("status", form)[0].replace(" ", "").replace("\n", "")
        assert '"uptime_ms":0.085117,' in out, out
        assert '"ms":[0.3,1790000000123.456,3.0,108.4]' in out, out


def case_wrong_words(context):
    """every command, replay included, reports wrong usage in the same words; did you mean ...?"""
    for command in COMMANDS + FILES:
        start = "lien %s: " % command
        for arguments, said in (
                (["--frobnicate"], "unknown option '--frobnicate': see lien %s --help" % command),
                (["-x"], "unknown option '-x': see lien %s --help" % command),
                (["--hepl"], "unknown option '--hepl': did you mean '--help'?")):
            _, err = context.run(command, *arguments, code=2)
            assert err == start + said + "\n", err
    for command in ("ps", "status", "top", "doctor", "mem"):
        _, err = context.run(command, "foo", code=2)
        assert err == "lien %s: unexpected argument 'foo': see lien %s --help\n" % (
            command, command), err
    for arguments, said in (
            (["replay", "a", "foo"], "unexpected argument 'foo'"),
            (["replay", "--verify", "--hold", "a"], "--verify and --hold cannot be combined"),
            (["replay", "--timeout", "0", "a"], "--timeout '0' is not a number from 1 to 86400"),
            (["replay"], "FILE is missing"),
            (["record"], "FILE is missing"),
            (["record", "--", "sleep"], "FILE is missing"),
            (["record", "a", "b"], "unexpected argument 'b': a command comes after --"),
            (["record", "a", "b", "--", "c"], "unexpected argument 'b': a command comes after --"),
            (["offload", "--lease", "3"], "lien offload: --lease needs --nodes"),
            (["restore", "--state", "/x"], "lien restore: --state needs --nodes"),
            (["run"], "lien run: COMMAND is missing"),
            (["holders"], "lien holders: PID is missing"),
            (["holders", "812"], "lien holders: ADDRESS is missing"),
            (["snapshot"], "lien snapshot: FILE is missing"),
            (["offload", "-owner", "all"], "unknown option '-owner': did you mean '--owner'?"),
            (["ps", "--from", "a", "--socket", "b"], "--from and --socket cannot be combined"),
            (["events", "-f", "--from", "a"], "--from and --follow cannot be combined"),
            (["check", "--repair"], "--repair needs --deep"),
            (["check", "--timeout", "5"], "--timeout needs --deep"),
            (["replay", "--keep-going", "a"], "--keep-going needs --hold"),
            (["arena", "--pid", "1"], "--pid needs --release"),
            (["attach", "--all", "1"], "PID and --all cannot be combined"),
            (["attach"], "PID or --all is missing"),
            (["detach", "x"], "'x' is not a process id"),
            (["mem", "--pid", "x"], "--pid 'x' is not a process id"),
            (["mem", "--pid", "1", "--pid", "2"], "--pid can be given only once"),
            (["offload", "--owner", "a", "--owner", "b"], "--owner can be given only once"),
            (["ps", "--gpu", "0", "--gpu", "1"], "--gpu can be given only once"),
            (["ps", "--watch", "--watch=2"], "--watch can be given only once"),
            (["ps", "--from", "a", "--at", "1", "--at", "2"], "--at can be given only once"),
            (["agent", "--host-limit", "1G", "--host-limit", "2G"], "--host-limit can be given only once"),
            (["mem", "--sort", "pid", "--sort", "pid"], "--sort can be given only once"),
            (["mem", "--by", "ownr"], "--by 'ownr' is not one of owner, rank, comm, device, callsite, tag: "
                                      "did you mean 'owner'?"),
            (["offload", "--on-use", "bogus"], "--on-use 'bogus' is not one of wait, restore, ignore"),
            (["graph", "--format", "png"], "--format 'png' is not one of dot, svg, json"),
            (["graph", "--json", "--format", "svg"], "--json and --format svg cannot be combined"),
            (["offload", "--host-limit", "many"], "--host-limit 'many' is not a size"),
            (["ps", "--json=yes"], "--json=yes: only --json and --json=line are known")):
        _, err = context.run(*arguments, code=2)
        assert err.startswith("lien %s: " % arguments[0]) and said in err, (said, err)
        assert err.count("\n") == 1, err
    for word, said in (("offlaod", "command 'offlaod': did you mean 'offload'?"),
                       ("--hepl", "option '--hepl': did you mean '--help'?"),
                       ("--frobnicate", "option '--frobnicate': see lien --help")):
        _, err = context.run(word, code=2)
        assert err == "lien: unknown %s\n" % said, err
    context.fails("completion", "fissh", code=2, words=["'fissh' is not one of bash, zsh, fish: did you mean 'fish'?"])


def orders(agent):
    """Requests without the look at the GPUs that follows an offload."""
    return [request for request in agent.requests if not request.get("explain")]


def case_requests(context):
    """requests: only what the options say"""
    agent = context.agent()
    cases = [
        (["ps"], {"op": "ps", "fresh": True}),
        (["mem", "--pid", "812"], {"op": "mem", "pid": 812}),
        (["holders", "812", "0x7F2a4c000000"],
         {"op": "holders", "pid": 812, "address": "0x7f2a4c000000"}),
        (["comms", "--group", "5a", "--pid", "812"], {"op": "comms"}),
        (["holders", "812", "4096"], {"op": "holders", "pid": 812, "address": "0x1000"}),
        (["offload"], {"op": "offload"}),
        (["offload", "--owner", "all", "--pid", "1", "--pid=2", "--timeout", "500", "--dry-run",
          "--strict", "--with-closure", "--multicast"],
         {"op": "offload", "owner": "all", "pids": [1, 2], "timeout_ms": 500, "dry_run": True,
          "strict": True, "with_closure": True, "multicast": True}),
        (["restore", "--pid", "812", "--timeout", "1"],
         {"op": "restore", "pids": [812], "timeout_ms": 1}),
    ]
    for arguments, request in cases:
        agent.requests.clear()
        context.run(*arguments)
        assert orders(agent) == [request], agent.requests


def case_columns(context):
    """human output fits in the columns that there are; in files and pipes no line is broken"""
    context.agent()
    for arguments in QUERIES.values():
        if arguments not in (["graph"], ["metrics"]):  # for programs
            fits(context.run(*arguments)[0])
    whole = context.run("ps", COLUMNS="")[0].splitlines()
    assert any(re.fullmatch(r"\* incomplete: .*What is shown may not be all\.", line) for line in whole), whole
    for line in context.run("doctor", COLUMNS="", code=None)[0].splitlines():
        assert re.match("ok  |warn|FAIL", line), line


def case_fits(context):
    """tables fit $COLUMNS, 80 and fewer, and a terminal; columns that matter less go; --wide has all"""
    context.agent()
    narrow = [line.split() for line in fits(context.run("ps")[0]).splitlines()]
    wide = context.run("ps", "--wide")[0].splitlines()
    assert "CONTROL" not in narrow[0] and "CONTROL" in wide[0].split(), (narrow[0], wide[0])
    assert narrow[0][:3] == ["PID", "COMMAND", "STATE"] and "OFFLOADED" in narrow[0], narrow[0]
    assert max(map(len, wide)) > 80, wide
    # Elsewhere than on a terminal nothing is left out.
    assert context.run("ps", COLUMNS="")[0].splitlines()[0] == wide[0]
    for command in QUERIES:
        for line in context.run(*QUERIES[command], COLUMNS="60")[0].splitlines():
            assert len(line) <= 60 or command in ("graph", "metrics", "status", "offload", "restore"), line
    # Not only tables.
    ps = json.loads(json.dumps(PS))
    ps["processes"][0].update(arena_bytes=3 << 30, arena_used_bytes=1 << 30)
    moved = dict(OFFLOAD, discarded_bytes=1 << 30, inferred_bytes=1 << 30)
    context.agent(lambda r: [{"ok": True, "result": ps if r["op"] == "ps" else moved}])
    for arguments, words in (
            (["ps"], "lien keeps 3.0 GiB of host memory pinned in these processes for offloads, 1.0 GiB of it in use"),
            (["offload"], "(1.0 GiB of that discarded: not saved) (1.0 GiB of that is probably "
                          "NCCL's) in ")):
        out = fits(context.run(*arguments)[0])
        assert words in " ".join(out.split()), out
        assert max(map(len, out.splitlines())) <= 80, out
    context.agent()
    for columns, width in ((80, 80), (132, 132)):
        out = on_terminal(context, ["ps"], columns)
        assert max(map(len, plain(out).splitlines())) <= width, out
        assert ("CONTROL" in out) == (columns == 132), out


def all_of(master):
    """What was written to a terminal whose other end is closed. It comes in pieces."""
    text = b""
    try:
        while part := os.read(master, 65536):
            text += part
    except OSError:  # all read
        pass
    os.close(master)
    return text.decode()


def on_terminal(context, arguments, columns=80, **environment):
    """What the command writes to a terminal of that width."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {**context.environment, "TERM": "xterm", **environment}
    done = subprocess.run([LIEN, *arguments], stdout=slave, stdin=subprocess.DEVNULL, env=env,
                          timeout=60, check=False)
    os.close(slave)
    text = all_of(master)
    assert done.returncode == 0, done
    return text.replace("\r\n", "\n")


def plain(text):
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def case_colors(context):
    """colors: on terminals only, and not with NO_COLOR or on a dumb one"""
    context.agent()
    for arguments in (["ps"], ["status"]):
        out = on_terminal(context, arguments)
        assert "\x1b[" in out and out.count("\x1b[0m") == out.count("\x1b[") / 2, repr(out)
        bare = context.run(*arguments)[0]
        assert plain(out) == bare and "\x1b" not in bare, (out, bare)
        assert on_terminal(context, arguments, NO_COLOR="1") == bare
        assert on_terminal(context, arguments, TERM="dumb") == bare
        assert "\x1b[" in on_terminal(context, arguments, NO_COLOR="")


def case_ps(context):
    """ps: ranks, sizes, the mark of incomplete processes; none at all"""
    context.agent()
    out, _ = context.run("ps", "--wide")
    lines = out.splitlines()
    assert lines[0].split() == ["PID", "USER", "COMMAND", "STATE", "CONTROL", "DEVICES", "RANKS",
                                "GPU", "NCCL", "IMPORTED", "OFFLOADED"], lines[0]
    assert lines[1].split()[:2] == ["812", "root"], lines[1]
    assert lines[4].split() == ["total", "5.1", "GiB", "5.1", "GiB", "3.9", "GiB", "1024.0", "GiB"], lines[4]
    assert "0/2 0/2 +2" in lines[1] and "2.5 GiB" in lines[1] and "1.3 GiB" in lines[1], lines[1]
    assert "partly*" in lines[2] and "0-7" in lines[2] and "1024.0 GiB" in lines[2], lines[2]
    assert "4.0 KiB" in lines[3] and " 0 " in lines[3] and "none" in lines[3], lines[3]
    assert "* incomplete: it may have called CUDA or NCCL before" in out, out
    assert "813: cannot be offloaded: events of the process were lost" in out, out
    gpus = [line.split() for line in lines[lines.index("", 5) + 1:]]
    gpus = gpus[[words[:1] for words in gpus].index(["GPU"]):]
    assert gpus[0] == ["GPU", "USED", "FREE", "TOTAL", "PROCESSES", "UUID"], gpus
    assert gpus[1] == ("0 3.0 GiB 146.0 GiB 150.0 GiB 812, 813 as 7 "
                       "GPU-5f0a21c4-0001-0203-0405-060708090a00").split(), gpus
    assert gpus[2][-5:-1] == ["GiB", "813", "as", "6"], gpus  # 812 has nothing on device 1
    assert gpus[9] == "total 24.0 GiB 1168.0 GiB 1200.0 GiB".split(), gpus
    context.agent(lambda r: [{"ok": True, "result": {"processes": [process(1, 0, 1)]}}])
    assert "*" not in context.run("ps")[0]
    context.agent(lambda r: [{"ok": True, "result": {"processes": []}}])
    assert context.run("ps")[0].startswith("no process uses CUDA")


def pids_of(text):
    return [int(line.split()[0]) for line in text.splitlines() if re.match(r" *[0-9]+  ", line)]


def case_select(context):
    """ps, mem: --gpu, --user and --sort; names that do not exist"""
    ps = json.loads(json.dumps(PS))
    for one, uid in zip(ps["processes"], (0, 4242, 4242)):
        one.update(uid=uid, bytes=uid + one["pid"], command="pqr"[one["pid"] % 3])
    context.agent(lambda r: [{"ok": True, "result": json.loads(json.dumps(
        ps if r["op"] == "ps" else MEM))}])

    def chosen(*arguments):
        processes = json.loads(context.run("ps", "--json", *arguments)[0])["processes"]
        table = context.run("ps", *arguments)[0].split("\n\n")[0]
        assert not processes or pids_of(table)[:len(processes)] == [p["pid"] for p in processes]
        return [p["pid"] for p in processes]
    assert chosen("--user", "4242") == [813, 4194304] and chosen("--user", "root") == [812]
    assert chosen("--user", "1") == []
    assert "none of the selected processes" in context.run("ps", "--user", "1")[0]
    assert chosen("--gpu", "0") == [812, 813] and chosen("--gpu", "1") == [813]
    assert chosen("--gpu", "GPU-5f0a21c4-0001-0203-0405-060708090a01", "--user", "4242") == [813]
    assert chosen("--gpu", "1", "--user", "0") == []
    out = context.run("ps", "--gpu", "1", "--wide")[0]
    assert "GPU-5f0a21c4-0001-0203-0405-060708090a01" in out and "a02" not in out, out
    assert "held by the dead" not in out and "held by the dead" in context.run("ps")[0], out
    assert chosen("--sort", "gpu") == [4194304, 813, 812] and chosen("--sort", "pid")[0] == 812
    order = [p["command"] for p in json.loads(context.run("ps", "--sort", "command", "--json")[0])["processes"]]
    assert order == sorted(order), order
    for command in ("ps", "mem"):
        context.fails(command, "--gpu", "9", code=2, words=[
            "--gpu '9' is not one of the GPUs known here: 0 (GPU-5f0a21c4-0001-0203-0405-060708090a00), 1 (GPU"])
        context.fails(command, "--user", "no-such-user", code=2, words=["'no-such-user' is not a user"])
        context.fails(command, "--sort", "byte", code=2, words=["--sort 'byte' is not one of pid, "])
    mem = json.loads(context.run("mem", "--json", "--user", "4242")[0])
    assert {row["pid"] for row in mem["rows"] + mem["left"]} == {813}, mem
    assert (mem["bytes"], mem["host_bytes"]) == (6291456, 8 << 30), mem
    mem = json.loads(context.run("mem", "--json", "--gpu", "1", "--user", "root")[0])
    assert mem["rows"] == [] and mem["bytes"] == 0, mem
    sizes = [row["bytes"] for row in json.loads(context.run("mem", "--json", "--sort", "bytes")[0])["rows"]]
    assert sizes == sorted(sizes, reverse=True), sizes
    assert "8.0 GiB" in context.run("mem", "--sort", "bytes")[0].splitlines()[1]
    context.fails("mem", "--by", "owner", "--gpu", "1", code=2, words=["--by and --gpu cannot be combined"])
    for gpu in ps["gpus"]:  # no NVML: a number is the process's own
        gpu.update(index=None, total_bytes=None, used_bytes=None, free_bytes=None)
    assert chosen("--gpu", "3") == [813] and chosen("--gpu", "0") == [812, 813]
    for command in ("ps", "mem"):
        context.fails(command, "--gpu", "77", code=2, words=[
            "--gpu '77' is not one of the GPUs known here: 0, 1, 2, ",
            ", 7, GPU-5f0a21c4-0001-0203-0405-060708090a00, GPU-"])


def case_watch(context):
    """--watch: again and again until Ctrl-C, on a cleared terminal; JSON in lines"""
    agent = context.agent()

    def until(arguments, enough, code=0, stop=True):
        running = subprocess.Popen([LIEN, *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=context.environment, text=True)
        text = ""
        while not enough(text):
            part = os.read(running.stdout.fileno(), 65536).decode()
            assert part, text
            text += part
        if stop:
            running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
        assert running.returncode == code, (running.returncode, err)
        return text + out, err
    out, err = until(["ps", "--watch"], lambda text: text.count("PID") == 2)
    assert err == "" and "\x1b" not in out, (out, err)
    out, _ = until(["mem", "--json", "--watch=1"], lambda text: text.count("\n") >= 2)
    assert all(json.loads(line) == MEM for line in out.splitlines()), out
    for value in ("--watch=0", "--watch=x", "--watch=99999999"):
        context.fails("ps", value, code=2, words=["--watch '%s' is not a number" % value[8:]])
    context.fails("ps", "--watch", "--from", "x", code=2, words=["cannot be combined"])
    # The agent goes away: that is an error, after the lines.
    answered = []

    def once(request):
        answered.append(request)
        return Agent.canned(request) if len(answered) == 1 else [{"ok": False, "error": "gone"}]
    agent.answer = once
    out, err = until(["ps", "--json", "--watch"], lambda text: text.count("\n") >= 2, 1, False)
    assert [json.loads(line).get("error") for line in out.splitlines()] == [None, "gone"], out
    assert err == "lien ps: gone\n", err
    agent.answer = Agent.canned
    master, slave = os.openpty()
    running = subprocess.Popen([LIEN, "ps", "--watch"], stdout=slave, env=context.environment)
    os.close(slave)
    text = ""
    while text.count("PID") < 2:
        text += os.read(master, 65536).decode()
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 0
    os.close(master)
    assert text.startswith("\x1b[H\x1b[2J") and text.count("\x1b[H\x1b[2J") == 2, repr(text)
    assert "\x1b[3J" not in text, repr(text)  # what the user had on the terminal before


def case_mem(context):
    """mem: rows, totals, what stays behind; one process"""
    context.agent()
    out, _ = context.run("mem")
    assert "total: 1.5 GiB on the GPUs, of which an offload frees 1.3 GiB, and with --owner all 1.5 GiB; 2.0 MiB " \
        "offloaded" in " ".join(out.split()), out
    assert "an offload leaves behind:" in out and "120.0 MiB in 60 allocations of processes" in out
    assert "and 12 more (first at 0x7f00032d0000 of process 813): cudaMalloc memory" in " ".join(out.split()), out
    mine = next(left for left in MEM["left"] if left["pid"] == 812)
    for others, whose in (([None], "of an unknown process"), ([812, None], "of process 812 and an unknown one")):
        left = [dict(mine, pid=pid, allocations=1) for pid in others]
        context.agent(lambda r, left=left: [{"ok": True, "result": dict(MEM, left=left)}])
        assert whose in " ".join(context.run("mem")[0].split()), whose
    context.agent(lambda r: [{"ok": True, "result": {"rows": [], "bytes": 0, "left": []}}])
    assert "process 812 holds no GPU memory" in context.run("mem", "--pid", "812")[0]
    assert "no process holds GPU memory" in context.run("mem")[0]


def case_mem_arena(context):
    """mem: lien's own host memory, of the selected processes alone; of a recording it is past"""
    processes = [dict(PS["processes"][0], pid=pid, uid=uid, arena_bytes=1 << 30) for pid, uid in ((812, 0), (813, 1))]
    context.agent(lambda r: [{"ok": True, "result": dict(PS, processes=processes) if r["op"] == "ps" else MEM}])
    assert "lien keeps 3.0 GiB of the host's memory pinned for offloads: see" in " ".join(
        context.run("mem")[0].split())
    assert "lien keeps 1.0 GiB of the host's memory" in context.run("mem", "--user", "0")[0]
    context.agent(lambda r: [{"ok": True, "result": dict(MEM, offload_frees=None, nvml=None)}])
    out = " ".join(context.run("mem", "--explain")[0].split())
    assert "lien kept 3.0 GiB of the host's memory" in out and "lien arena" not in out, out
    assert "A recording does not have what the driver says" in out and "NVML" not in out, out


def case_small_sizes(context):
    """less than a KiB: no "0.0 KiB\""""
    context.agent(lambda r: [{"ok": True, "result": dict(MEM, bytes=16, offload_frees=0)}])
    assert "total: 16 B on the GPUs" in context.run("mem")[0]


def case_narrow(context):
    """a narrow terminal: what is counted stays, lines wrap"""
    compared = {"processes": [{"pid": 1234567, "command": "python3", "complete": True, "mappings": 1290, "ms": 34.2,
                               "differences": [], "unsettled": 0}], "differences": 0, "compared": 1, "not_compared": 0}
    context.agent(lambda r: [{"ok": True, "result": compared if r["op"] == "compare" else RESULTS[r["op"]]}])
    for arguments in (["status"], ["check", "--deep"], ["comms"]):
        out = plain(on_terminal(context, arguments, 60))
        assert all(len(line) <= 60 for line in out.splitlines()), out
    assert "INFERRED" in out and "MOVED" not in out, out  # of comms: DATA is what its calls name


def case_comms(context):
    """comms: groups, ranks, who is behind; one group, one process"""
    context.agent()
    out, _ = context.run("comms", "--wide")
    text = " ".join(out.split())
    for words in (
            "1 unknown communicator, made before lien watched",
            "named by NCCL's RAS and not used since lien watches: GROUP RANK OF PID DEVICE "
            "27a079b828ff1a75 0 2 812 - 27a079b828ff1a75 1 2 813 -",
            "unknown communicators: process 813 ran before lien watched, and may have more than are listed: "
            "NCCL's RAS does not name all",
            "unknown communicators: processes 814, 4194304 ran before lien watched, and may have "
            "more than are listed: nobody listens nobody",
            "group 5ac1d2e0b7f0a133: 2 of 4 ranks on this node, made by ncclCommInitRankScalable, "
            "set up at [2001:db8:1111:2222:3333::17]:65535",
            "group 77aa00000000bb01: 1 of 1 rank on this node, made by ncclCommSplit from group "
            "5ac1d2e0b7f0a133",
            "rank 1 (process 4194304) is behind by 1 all-reduce, 2 broadcasts, 3 reduces, "
            "4 all-gathers, 5 reduce-scatters, 1 all-to-all, 7 gathers, 8 scatters",
            "rank 1 (process 4194304) has finalized its communicator",
            "1 send is without a receive so far", "inferred: memory that NCCL's own threads",
            "* in use before lien watched it: earlier calls are not counted"):
        assert words in text, (words, out)
    assert "3 sends are without" not in text, out  # other ranks may have received them
    assert "-* 812 - 2.5 GiB" in text and " 2 h ago" in text, out
    out, _ = context.run("comms", "--group", "77")
    assert "77aa" in out and "\ngroup 5ac1" not in "\n" + out and "inferred:" not in out, out
    out, _ = context.run("comms", "--pid", "812")
    assert "4194304" not in out and "unknown communicators" not in out and "77aa" in out and "behind" not in out, out
    result = json.loads(context.run("comms", "--pid", "4194304", "--json")[0])
    assert list(result) == list(COMMS) and len(result["groups"]) == 1, result
    assert [c["pid"] for c in result["communicators"]] == [4194304], result
    assert [c["pid"] for c in result["late"]] == [4194304], result
    result = json.loads(context.run("comms", "--group", "27a0", "--pid", "813", "--json")[0])
    assert [(c["pid"], len(c["unmatched"])) for c in result["late"]] == [(813, 1)], result
    out, _ = context.run("comms", "--group", "27a0")
    assert "27a079b828ff1a75" in out and "unknown" not in out, out
    for json_too in ([], ["--json"]):
        context.fails("comms", "--group", "5ac1e", *json_too, code=2, words=[
            "no communicator has the group 5ac1e; known are 0000000000000000, 5ac1d2e0b7f0a133, "
            "77aa00000000bb01 (see"])
    assert "process 7 has no communicator" in context.run("comms", "--pid", "7")[0]
    uncounted = json.loads(json.dumps(COMMS))
    for one in uncounted["communicators"]:
        one.update(calls=None, calls_total=None, moved_bytes=None, last_ms=None)
    for one in uncounted["groups"]:
        one.update(behind=None, sends=None, receives=None)
    context.agent(lambda r: [{"ok": True, "result": uncounted}])
    out = fits(context.run("comms")[0])
    assert "behind" not in out and "without" not in out, out
    context.agent(lambda r: [{"ok": True, "result": {"groups": [], "communicators": []}}])
    assert context.run("comms")[0].startswith("no process has a communicator")


def case_mem_host(context):
    """mem: the host's memory apart from the devices'"""
    context.agent()
    out, _ = context.run("mem")
    assert "and 8.0 GiB of the host's memory, pinned for the GPUs" in out, out
    assert "lien keeps 3.0 GiB of the host's memory pinned for offloads: see `lien arena`" in out, out


def case_mem_by(context):
    """mem --by: tables, call sites in full; asked again while the agent reads symbols"""
    name = "at::native::" + "a_function_with_a_name_that_goes_on_" * 5 + "+0x12"
    agent = context.agent(lambda r: [{"ok": True, "result": mem_by(
        r["by"], "cuMemAlloc_v2 from libtorch_cuda.so " + name, "cuMemCreate from libx.so+0x3")}])
    out, _ = context.run("mem", "--by", "callsite")
    assert name in out.replace("\n", "").replace(" ", ""), out
    assert "512.0 MiB in 2 allocations of device memory, offloaded 1.0 MiB: cuMemCreate" in out, out
    assert "total: 2.0 GiB on the GPUs, of which an offload frees 1.0 GiB" in out, out
    context.run("mem", "--by", "owner", "--pid", "812", "--explain")
    assert agent.requests == [{"op": "mem", "by": "callsite"},
                              {"op": "mem", "by": "owner", "pid": 812, "explain": True}]
    context.agent(lambda r: [{"ok": True, "result": mem_by(
        "comm", "rank 0/2 of 5ac1d2e0b7f0a133", "no communicator", inferred_bytes=4 << 20)}])
    fits(context.run("mem", "--by", "comm")[0])
    lines = context.run("mem", "--by", "comm", "--wide")[0].splitlines()
    assert lines[0].split() == ["COMM", "KIND", "ALLOCS", "BYTES", "FREES", "OFFLOADED",
                                "INFERRED"], lines[0]
    assert lines[1].startswith("rank 0/2 of 5ac1d2e0b7f0a133") and "4.0 MiB" in lines[1], lines[1]
    context.agent(lambda r: [{"ok": True, "result": mem_by(r["by"], "a", "b")}])
    def sorted_by(*way):
        return [row["key"] for row in json.loads(context.run("mem", "--by", "tag", "--json", *way)[0])["rows"]]
    assert sorted_by() == sorted_by("--sort", "bytes") == ["a", "b"], sorted_by()
    assert sorted_by("--sort", "offloaded") == ["b", "a"], sorted_by("--sort", "offloaded")
    context.fails("mem", "--by", "tag", "--sort", "owner", code=2, words=["--by has no rows by owner"])
    waits = iter([True, True, False])
    agent = context.agent(lambda r: [{"ok": True, "result": {
        **mem_by("callsite", "now known"), "pending": next(waits)}}])
    assert "now known" in context.run("mem", "--by", "callsite")[0]
    assert len(agent.requests) == 3
    context.agent(lambda r: [{"ok": True, "result": {**mem_by("callsite", "x"), "pending": True}}])
    assert "1.0 GiB in 1 allocation of device memory: x" in context.run(
        "mem", "--by", "callsite")[0]


def case_mem_explain(context):
    """mem --explain: traced and unexplained make what NVML says; without NVML that is said"""
    context.agent(lambda r: [{"ok": True, "result": EXPLAINED}])
    fits(context.run("mem", "--explain")[0])
    out, _ = context.run("mem", "--explain", "--wide")
    rows = {line.split()[0]: line for line in out.splitlines() if "GPU-" in line or "unk" in line}
    assert set(rows) == {"812", "77", "814"}, out
    assert "GPU 3 (GPU-5f0a" in rows["812"] and "1.0 GiB" in rows["812"], rows
    assert "512.0 MiB" in rows["812"] and rows["812"].endswith("1.5 GiB"), rows
    assert "-1.0 MiB" in rows["814"] and " ? " in rows["77"], rows
    out, _ = context.run("mem", "--explain", "--pid", "812")
    assert " 77 " not in out and "812" in out, out
    context.agent(lambda r: [{"ok": True, "result": {**EXPLAINED, "gpus": [], "nvml": None}}])
    out = " ".join(context.run("mem", "--explain")[0].split())
    assert "NVML (libnvidia-ml.so.1, a part of the driver) is missing" in out, out
    context.agent(lambda r: [{"ok": True, "result": {"rows": [], "bytes": 0, "left": [], "gpus": [], "nvml": None}}])
    out, _ = context.run("mem", "--explain")
    assert out.startswith("no process holds GPU memory") and "TRACED" not in out, out


def case_holders(context):
    """holders: the paragraph and the liens"""
    context.agent()
    out, _ = context.run("holders", "812", "0x7f2a4c000000", "--wide")
    text = " ".join(out.split())
    assert "Address 0x7f2a4c000000 of process 812 lies in allocation 193: 10.0 MiB of device 0" in text
    assert "made it for nccl with cuMemCreate. It can be offloaded. 6 liens hold it:" in text, text
    away = dict(HOLDERS, allocation=dict(HOLDERS["allocation"], state="offloaded"))
    context.agent(lambda r: [{"ok": True, "result": away}])
    said = " ".join(context.run("holders", "812", "0x7f2a4c000000")[0].split())
    assert "now offloaded; " in said and "cuMemCreate. `lien restore` puts it back. 6 liens" in said, said
    assert "can be offloaded" not in said, said
    assert "exported 1 time" in out and "2 references" in out and "no access" in out, out
    given = json.loads(json.dumps(HOLDERS))
    given["allocation"]["origin"] = "cuMemAlloc"
    context.agent(lambda r: [{"ok": True, "result": given}])
    said, _ = context.run("holders", "812", "0x7f2a4c000000")
    assert "no access" not in said and "mapped by the driver" in said, said  # nobody sets access to it
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
    out, err = context.run("offload", "--wide")
    assert err == "", err  # progress is for terminals
    lines = out.splitlines()
    assert re.split("  +", lines[0]) == ["PID", "MOVED", "FREED", "ALLOCS", "IMPORTS", "MAPPINGS", "drain ms",
                                         "check ms", "save ms", "unmap ms", "drop ms"], lines[0]
    assert re.search(r"^offloaded 5\.1 GiB of 2 processes in \S+ ", out, re.M), out
    assert "FREED:" not in out, out
    # Two processes on one GPU free the sum; another job may take what they free.
    for freed, text in ((2 * 2730491904, "5.1 GiB"), (-(1 << 30), " 0 ")):
        shared = json.loads(json.dumps(OFFLOAD))
        for one in shared["processes"]:
            one["freed_bytes"] = freed
        context.agent(lambda r, shared=shared: [{"ok": True, "result": shared}])
        shown, _ = context.run("offload")
        assert text in shown.splitlines()[1], shown
        assert " ".join(shown.split()).count("FREED: how much more of the process's GPUs is free") == 1, shown
    context.agent()
    assert "left on the GPUs:" in out and "registered with the network card" in out, out
    assert "the driver's own (contexts, kernels)" in out, out
    context.agent(lambda r: [{"ok": True, "result": EXPLAINED if r["op"] == "mem" else OFFLOAD}])
    out, _ = context.run("offload", "--json")
    assert json.loads(out)["unexplained"] == [
        {"pid": 812, "gpu": "GPU-5f0a21c4-0001-0203-0405-060708090a0b", "bytes": 1 << 29}], out
    context.agent()
    out, _ = context.run("restore")
    assert re.search(r"^restored 5\.1 GiB of 2 processes in \S+ ", out, re.M) and "left" not in out, out
    assert out.split()[:2] == ["PID", "RESTORED"] and "FREED" not in out, out
    nothing = {"outcome": "nothing to do", "bytes": 0, "ms": 0, "processes": [], "left": []}
    context.agent(lambda r: [{"ok": True, "result": nothing}])
    assert context.run("offload")[0] == "nothing to offload\n"
    assert context.run("restore")[0] == "nothing is offloaded\n"
    unknown = dict(nothing, outcome="unknown", unknown=[
        {"pid": 812, "read": True, "allocations": 1, "bytes": 2 << 20, "movable_bytes": 2 << 20},
        {"pid": 813, "read": True, "allocations": 9, "bytes": 5 << 30, "movable_bytes": 1 << 30},
        {"pid": 814, "read": False, "allocations": 0, "bytes": 0, "movable_bytes": 0}])
    context.agent(lambda r: [{"ok": True, "result": unknown}])
    out, _ = context.run("offload")
    fits(out)
    said = " ".join(out.split())
    for text in ("nothing was offloaded: lien knows of no", "process 812: 2.0 MiB in 1 allocation, all movable",
                 "process 813: 5.0 GiB in 9 allocations, 1.0 GiB movable", "`lien attach 814` reads it",
                 "`lien offload --owner unknown` moves 1.0 GiB of this",
                 "`lien offload --owner unknown --dry-run` says why 4.0 GiB cannot be moved"):
        assert text in said, (text, out)
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
    text = all_of(master)
    assert done.returncode == 1
    assert "\rsave" not in text and "\r\x1b[Ksave: 1 of 2 processes" in text, repr(text)
    assert text.endswith("\r\x1b[Klien offload: rank 1 is behind\r\n"), repr(text)


def case_arena(context):
    """arena: what is held, and what was given back"""
    agent = context.agent()
    out, _ = context.run("arena")
    fits(out)
    assert "512.0 MiB held, 48.0 MiB in use, 1.0 GiB allowed" in out and "GIVEN BACK" not in out, out
    out, _ = context.run("arena", "--release", "--pid", "812")
    fits(out)
    assert "64.0 MiB given back, 512.0 MiB held" in out and "GIVEN BACK" in out, out
    assert agent.requests == [{"op": "arena", "release": False},
                              {"op": "arena", "release": True, "pids": [812]}], agent.requests
    _, err = context.run("arena", "--pid", "812", code=2)
    assert "--pid needs --release" in err and err.count("\n") == 1, err


def case_attach(context):
    """attach: each process with what came of it, what was read, and what was found out"""
    left = {"pid": 812, "reason": "cudaMalloc memory stays", "allocations": 2, "bytes": 3 << 20,
            "address": "0x7f0000000000", "holder": None, "other_user": False}
    results = {"attach": ATTACH, "mem": {"left": [left, dict(left, pid=814), dict(left, pid=900)]}}
    agent = context.agent(lambda r: [{"ok": True, "result": results[r["op"]]}])
    out, _ = context.run("attach", "812", "813", "814", code=1)
    fits(out)
    assert "812 python3: attached in 8.10 ms, of which it waited 0.80 ms\n" in out, out
    assert "    966 mappings read from the driver in 31.0 ms, 961 of them new to lien" in out, out
    assert "813 python3: already has the control library\n" in out, out
    assert "814 sleep: refused: process 814 is stopped" in out, out
    words = " ".join(out.split())
    assert "adopted: 2 processes waited 251.9 ms; the references of 2576 allocations" in words, out
    assert "895 of 896 imports' owners were found by 1680 marks in 51.4 ms" in words, out
    assert "1 import has no owner that could be found: that memory is not moved" in words, out
    assert agent.requests == [{"op": "attach", "pids": [812, 813, 814]}, {"op": "mem"}], agent.requests
    # Of those that were attached.
    assert "\nno offload will move:\n  3.0 MiB in 2 allocations of process 812 (first at" in out, out
    out, _ = context.run("attach", "--all", "--json", code=1)
    assert json.loads(out) == ATTACH, out
    for outsider, said in ((815, "process 815 ran before the agent and is not attached"),
                           (0, "another user's process ran before the agent")):
        results["attach"] = dict(ATTACH, refused=0, adoption=dict(
            ATTACH["adoption"], marked=0, matched=0, unmatched=3, outsider=outsider))
        out, _ = context.run("attach", "--all")
        fits(out)
        assert said in " ".join(out.split()), out
    results["attach"] = dict(ATTACH, refused=0, adoption=dict(ATTACH["adoption"], error="not at rest"))
    out, _ = context.run("attach", "--all", code=1)
    assert "not adopted: not at rest; memory from before the agent is shown" in " ".join(
        out.split()), out
    results["attach"] = {"processes": [], "attached": 0, "refused": 0, "attached_before": 0, "adoption": None}
    out, _ = context.run("attach", "--all")
    assert out == "no process uses CUDA on this node, as far as the agent has seen\n", out
    results["attach"]["attached_before"] = 1
    out, _ = context.run("attach", "--all")
    assert out.startswith("nothing to attach: 1 process that uses CUDA has the control library"), out
    # Who attaches all is told of all that stays, also when an offload has attached them before.
    assert "\nno offload will move:\n  9.0 MiB in 6 allocations of processes 812, 814, 900 (first at" in out, out


def case_detach(context):
    """detach: each process with what came of it"""
    results = {"detach": DETACH}
    agent = context.agent(lambda r: [{"ok": True, "result": results[r["op"]]}])
    out, _ = context.run("detach", "812", "813", "814", code=1)
    fits(out)
    assert "812 python3: detached in 54.1 ms\n" in out, out
    assert "813 python3: detached in 31.0 ms\n" in out, out
    assert "814 sleep: refused: memory of it is offloaded" in out, out
    assert agent.requests == [{"op": "detach", "pids": [812, 813, 814]}], agent.requests
    out, _ = context.run("detach", "--all", "--json", code=1)
    assert json.loads(out) == DETACH, out
    assert agent.requests[1] == {"op": "detach"}, agent.requests
    results["detach"] = {"processes": [], "detached": 0, "refused": 0}
    out, _ = context.run("detach", "--all")
    assert out == "no process has a control library that takes orders\n", out


def case_offload_time(context):
    """offload, restore: the time is what the caller has waited, not the agent's; JSON has the latter"""
    def late(request):
        time.sleep(0.4)
        return [{"ok": True, "result": RESULTS[request["op"]]}]
    for command, ms in ("offload", 108.4), ("restore", 162.0):
        context.agent(late)
        out, _ = context.run(command)
        waited, unit = re.search(r"ed 5\.1 GiB of 2 processes in ([\d.]+) (m?s)$", out, re.M).groups()
        assert float(waited) * (1000 if unit == "s" else 1) >= 400, out
        assert json.loads(context.run(command, "--json")[0])["ms"] == ms


def case_offload_options(context):
    """offload, restore: options for host memory"""
    agent = context.agent()
    context.run("offload", "--verify", "--discard", "nccl,tag:kv_cache", "--discard", "torch",
                "--host-limit", "3M")
    assert orders(agent) == [
        {"op": "offload", "verify": True, "discard": ["nccl", "tag:kv_cache", "torch"],
         "host_limit_bytes": 3 << 20}], agent.requests
    for size, value in (("7", 7), ("2K", 2048), ("4G", 4 << 30), ("131072T", 1 << 57)):
        context.run("offload", "--host-limit", size)
        assert orders(agent)[-1]["host_limit_bytes"] == value, agent.requests[-1]
    context.run("offload", "--host-limit", "131073T", code=2)
    context.agent(lambda r: [{"ok": True, "result": dict(
        RESULTS[r["op"]], discarded_bytes=3 << 20, verified_bytes=5 << 20)}])
    out, _ = context.run("offload")
    assert "offloaded 5.1 GiB of 2 processes (3.0 MiB of that discarded: not saved) in" in \
        " ".join(out.split()), out
    out, _ = context.run("restore")
    assert "5.0 MiB compared with what was saved: no difference\n" in out, out
    assert "restored 5.1 GiB of 2 processes (3.0 MiB of that discarded before: filled with zeros)" in \
        " ".join(out.split()), out


def case_status(context):
    """status: what is lost or incomplete is loud"""
    context.agent()
    out, _ = context.run("status")
    assert "up for 2 min 3 s" in out and "103422 seen, 17 lost" in out, out
    assert "offload, phase save, for 12.0 ms" in out, out
    assert "18.0 MiB in /run/lien/agent.sock.journal" in out, out
    assert "99120 events were taken over" in out, out
    assert out.count("WARNING") == 4 and "17 events were lost" in out, out
    assert "has no ncclCommWindowRegister, ncclCommWindowDeregister" in " ".join(out.split()), out
    assert "-directory/libnccl.so.2" in out and "..." in out, out
    none = {"path": None, "bytes": 0, "pinned": None, "taken_over": 0,
            "problem": "nothing can be pinned under /sys/fs/bpf: Operation not permitted, " * 2}
    context.agent(lambda r: [{"ok": True, "result": dict(STATUS, journal=none)}])
    out, _ = context.run("status")
    assert "journal      none: nothing can be pinned" in out and "taken over" not in out, out
    assert max(map(len, out.splitlines())) <= 100, out
    good = dict(STATUS, events_lost=0, incomplete=[], unmatched_imports=0, uncounted=0,
                transaction=None, libraries=[])
    context.agent(lambda r: [{"ok": True, "result": good}])
    out, _ = context.run("status")
    assert "WARNING" not in out and "none under way" in out and "\n\nno library has probes" in out, out


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
    context.fails("graph", "-o", path, words=["%s exists: --force overwrites it" % path])
    assert context.run("graph", "-o", path, "--force") == ("", "")
    context.fails("graph", "--force", code=2, words=["--force needs --output"])
    context.fails("graph", "--output", "/nowhere/out.dot", words=["/nowhere/out.dot"])
    context.fails("graph", "--output", "/dev/full", words=["No space left"])
    odd = json.loads(json.dumps(GRAPH))
    odd["processes"][0]["command"] = 'a"b\\c\n'
    odd["allocations"][0].update(owner='"x\\', state="offloaded", device=-1)
    odd["allocations"][1].update(pid=77, alive=False, tag='kv "cache\\')
    odd["allocations"][2].update(pid=None, device=None, alive=False, origin="import")
    odd["communicators"][0]["registrations"][0]["address"] = "0x1"
    context.agent(lambda r: [{"ok": True, "result": odd}])
    out, _ = context.run("graph")
    assert "process 77 (exited)" in out and 'a\\"b\\\\c?' in out and "owner has exited" in out, out
    assert '\\ntag kv \\"cache\\\\\\n1 allocation' in out and out.count("\\ntag ") == 1, out
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


@long
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


@long
def case_odd_results(context):
    """results with members missing or of another type: no crash, no long lines"""
    small = dict(RESULTS, explain=EXPLAINED, by=mem_by("comm", "x"), graph=make_graph(2, 1, 1, 1), mem=dict(MEM, left=MEM["left"][:1]))
    queries = dict(QUERIES, explain=["mem", "--explain"], by=["mem", "--by", "comm"])
    replies = [(c, v) for c in queries for v in list(variants(small[c]))]
    step = max(1, len(replies) // int(os.environ.get("ODD_RESULTS", "400")))
    reply = {}
    agent = context.agent(lambda r: [{"ok": True, "result": reply["now"]}])
    for command, variant in replies[::step]:
        reply["now"] = variant
        out, _ = context.run(*queries[command])
        if command != "graph":
            for line in out.splitlines():
                assert len(line) <= 500, line
    assert agent.requests


def case_full_disk(context):
    """output to a full disk: a message, exit code 1"""
    context.agent()
    for arguments in QUERIES.values():
        with open("/dev/full", "wb") as full:
            done = subprocess.run([LIEN, *arguments], stdout=full, stderr=subprocess.PIPE,
                                  env=context.environment, timeout=60, check=False)
        assert done.returncode == 1 and b"No space left" in done.stderr, done


def case_closed_pipe(context):
    """a reader that goes away, as `| head -1` does: nothing is said of it"""
    context.agent()
    for arguments in [*QUERIES.values(), ["completion", "bash"], ["help", "graph"], ["--help"], ["--version"]]:
        for restored in (True, False):  # SIGPIPE: the default, ignored
            read, write = os.pipe()
            os.close(read)
            done = subprocess.run([LIEN, *arguments], stdout=write, stderr=subprocess.PIPE, restore_signals=restored,
                                  env=context.environment, timeout=60, check=False)
            os.close(write)
            assert done.returncode == (-signal.SIGPIPE if restored else 1) and not done.stderr, (arguments, done)


def doctor_confined(context):
    """What seccomp filters do to return probes cannot be tried where no further filter is allowed."""
    sys_prctl = 157
    for refused, status in (((), "ok"), ((sys_prctl,), "warn")):
        done = subprocess.run([LIEN, "doctor", "--json"], capture_output=True, env=context.environment,
                              check=False, preexec_fn=lambda refused=refused: confine(refused))
        found, = (c for c in json.loads(done.stdout)["checks"] if c["name"] == "uretprobe")
        expected = status if "by breakpoint" not in found["found"] else "ok"
        assert found["status"] == expected, found
        assert (found["status"] == "warn") == ("cannot be tried" in found["found"]), found


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
        for name in ("kernel", "btf", "uprobes", "uretprobe", "capabilities", "bpf", "nofile", "gate",
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
    doctor_confined(context)
    agent = context.agent()
    done = subprocess.run([LIEN, "doctor"], capture_output=True, text=True,
                          env=context.environment, check=False)
    assert "ok   agent: answers on " + agent.path in done.stdout, done.stdout


if __name__ == "__main__":
    sys.exit(run_cases(globals()))
