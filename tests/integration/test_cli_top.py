#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien top` against a fake agent, as text and on a terminal.

LIEN names the program (default build/lien). Needs neither root nor a GPU. Prints a line per case, and
"N passed, N failed" at the end. Cases are the functions that begin with case_, their docstrings the
names.
"""

import contextlib
import copy
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

from cli_answers import GRAPH, HOLDERS, MEM, MIB, PS, STATUS, make_graph, process
from cli_fixture import LIEN, fits, run_cases
from terminal import Terminal, describe

NO_COMMS = {"ok": False, "error": "no such operation: comms"}


def answers(processes=None, comms=None, **more):
    """What the agent answers; comms: a function that gives the communicators."""
    results = {"ps": {"processes": processes or PS["processes"]}, "mem": MEM, "status": STATUS,
               "graph": GRAPH, "holders": HOLDERS, **more}

    def answer(request):
        if request["op"] == "comms":
            return [{"ok": True, "result": {"communicators": comms()}} if comms else NO_COMMS]
        return [{"ok": True, "result": results[request["op"]]}]
    return answer


def many(count):
    return [dict(process(1000 + i, i, count), bytes=(count - i) * MIB, nccl_bytes=MIB,
                 command="job-%d" % i, imported_bytes=0, offloaded_bytes=0) for i in range(count)]


@contextlib.contextmanager
def on_terminal(context, *arguments, columns=80, lines=24, argv=None, **environment):
    environment = {**context.environment, **describe(context.directory), **environment}
    terminal = Terminal(argv or [LIEN, "top", *arguments], environment, columns, lines)
    try:
        yield terminal
    finally:
        terminal.close()


def case_once(context):
    """top --once: the header, a line per process, most memory first"""
    agent = context.agent(answers())
    out, err = context.run("top", "--once")
    fits(out)
    lines = out.splitlines()
    assert err == "" and lines[0] == "lien top: agent pid 800, up 0:02:03", out
    assert lines[1].startswith("%d processes: " % len(PS["processes"])), out
    assert lines[2] == "liens: %d in (imports), %d out (exported allocations)" % tuple(
        sum(r["allocations"] for r in MEM["rows"] if r["kind"] == kind and
            any(p["pid"] == r["pid"] for p in PS["processes"]))
        for kind in ("imported", "exported")), lines[2]
    assert lines[3] == "events: 103422, 17 lost; 40 processes are incomplete (*)", lines[3]
    assert lines[5].split() == ["PID", "RANK", "DEV", ">GPU", "NCCL", "OTHER", "IN", "OUT",
                                "COLL/S", "STATE", "COMMAND"], lines[5]
    pids = [int(line.split()[0]) for line in lines[6:]]
    most = sorted(PS["processes"], key=lambda p: -p["bytes"])
    assert pids == [p["pid"] for p in most], pids
    row = {line.split()[0]: line for line in lines[6:]}["812"]
    assert " 2.5G " in row and " - " in row and "running" in row, row
    assert [r["op"] for r in agent.requests] == ["status", "mem", "comms", "ps"], agent.requests
    context.agent(answers(processes=[dict(PS["processes"][0], pid=1)], mem=dict(MEM, rows=[])))
    assert "1 process: " in context.run("top", "--once")[0]
    context.agent(answers(ps={"processes": [], "only_user": 1000}))
    assert context.run("top", "--once")[0].endswith("processes of other users are hidden: only root sees them\n")
    context.agent(answers(ps={"processes": []}))
    assert context.run("top", "--once")[0].endswith("no process uses CUDA on this node\n")


def case_without_memory(context):
    """Processes that are known to have no GPU memory are left out, unless --all"""
    nothing = {"bytes": 0, "nccl_bytes": 0, "imported_bytes": 0}
    context.agent(answers(processes=[
        process(812, 0, 1), process(813, 0, 1, **nothing), process(814, 0, 1, **nothing),
        process(815, 0, 1, **nothing, complete=False), process(816, 0, 1, **dict(nothing, imported_bytes=MIB)),
        process(817, 0, 1, **nothing, offloaded_bytes=MIB)]))
    for command in ["ps"], ["top", "--once"]:
        out, _ = context.run(*command)
        shown = [line.split()[0] for line in out.splitlines() if re.match(r" *8\d\d ", line)]
        assert sorted(shown) == ["812", "815", "816", "817"], out
        assert "\n2 processes without GPU memory: `--all`\n" in out, out
        out, _ = context.run(*command, "--all")
        assert all(re.search(r"^ *%d " % pid, out, re.M) for pid in range(812, 818)), out
        assert "without GPU memory" not in out, out
    assert len(json.loads(context.run("ps", "--json")[0])["processes"]) == 6
    context.agent(answers(processes=[process(813, 0, 1, **nothing)]))
    assert context.run("ps")[0] == "1 process without GPU memory: `--all`\n"
    assert context.run("top", "--once")[0].endswith("\n1 process without GPU memory: `--all`\n")


def case_gpus(context):
    """top: used, free and total memory of each GPU; the sum where there are too many for the screen"""
    context.agent(answers(ps=dict(PS, dead=[])))
    lines = fits(context.run("top", "--once")[0]).splitlines()
    assert lines[3].split() == ("GPU 0: 3.0G used, 146G free of 150G "
                                "GPU 1: 3.0G used, 146G free of 150G").split(), lines
    assert lines[6].startswith("GPU 6:") and lines[7].startswith("events:"), lines
    with on_terminal(context, lines=24) as screen:
        screen.shows("GPU 6: 3.0G used, 146G free of 150G")
        screen.resize(80, 15)
        screen.shows("8 GPUs: 24G used, 1.1T free of 1.2T")
    unknown = [dict(gpu, index=None, total_bytes=None, used_bytes=None, free_bytes=None)
               for gpu in PS["gpus"]]
    context.agent(answers(ps=dict(PS, gpus=unknown)))
    assert "GPU 0" not in context.run("top", "--once")[0]


def case_collectives(context):
    """top: collectives per second, where the agent counts them"""
    count = [0]

    def comms():
        count[0] += 1000000
        return [{"id": 1, "pid": 812, "address": "0x1", "rank": 0, "nranks": 2,
                 "calls_total": count[0]},
                {"id": 2, "pid": 812, "address": "0x2", "rank": 0, "nranks": 2, "calls_total": 5},
                {"id": 1, "pid": 813, "address": "0x1", "rank": 1, "nranks": 2,
                 "calls_total": 7}]
    context.agent(answers(comms=comms))
    lines = context.run("top", "--once", "-d", "2")[0].splitlines()
    place = lines[5].index("COLL/S") + len("COLL/S")
    rates = {line.split()[0]: line[:place].split()[-1] for line in lines[6:]}
    assert rates["813"] == "0" and rates["812"].endswith("k"), rates
    assert 0 < int(rates["812"][:-1]) <= 500, rates  # a million in two seconds or more
    assert [rate for pid, rate in rates.items() if pid not in ("812", "813")] == ["-"], rates


def case_keys(context):
    """top: moving, sorting, opening, help, back and out"""
    holders = copy.deepcopy(HOLDERS)
    context.agent(answers(processes=many(40), holders=holders, graph=make_graph(2, 5, 5, 3),
                          mem=dict(MEM, rows=[dict(MEM["rows"][0], pid=1000 + i)
                                              for i in range(40)])))
    with on_terminal(context) as screen:
        screen.shows("lien top: agent pid 800", "job-0", "q quit")
        screen.wait(lambda t: t.selected() and "job-0" in t.selected()[0], "first is selected")
        assert screen.screen()[22].endswith(" job-16") and "job-17" not in "".join(screen.screen())
        screen.key("down", "down", "up")
        screen.wait(lambda t: "job-1" in "".join(t.selected()), "the second is selected")
        screen.key("end")
        screen.wait(lambda t: "job-39" in "".join(t.selected()), "the last is selected")
        screen.shows_not("job-22")
        screen.shows("lien top: agent pid 800", "job-23")
        screen.key("pgup")
        screen.wait(lambda t: "job-23" in "".join(t.selected()), "a screenful up")
        screen.key("pgdn", "home")
        screen.wait(lambda t: "job-0" in "".join(t.selected()), "the first is selected")
        # Sorting keeps what is selected, wherever it goes.
        screen.key("r")
        screen.shows("GPU, least first")
        screen.wait(lambda t: "job-0" in t.screen()[22] and "job-0" in "".join(t.selected()),
                    "it is the last now")
        screen.key("<", "<", "<")
        screen.shows(">PID", "PID, least first")
        screen.wait(lambda t: "job-0" in t.screen()[6], "by pid it is the first")
        screen.key("s", ">", "r")
        screen.shows(">DEV", "DEV, most first")
        screen.key("<", "<", "r", "home", "?")
        screen.shows("keys and columns", "q back")
        screen.key("q")
        screen.shows(">PID")
        screen.key("enter")
        screen.shows("process 1000 job-0", "OWNER", "COMMUNICATOR", "LARGEST AT", "none")
        screen.key("esc")
        screen.shows(">PID")
        screen.key("q")
        assert screen.ended() == 0


def case_process(context):
    """top: a process's memory, communicators and largest allocations, until it ends"""
    results = {"processes": copy.deepcopy(PS["processes"])}
    graph, rows = make_graph(2, 5, 5, 3), list(MEM["rows"])
    context.agent(answers(ps=results, graph=graph, mem=dict(MEM, rows=rows), comms=lambda: [
        {"pid": 812, "address": graph["communicators"][0]["address"], "calls_total": 4711}]))
    with on_terminal(context, "-d", "1", columns=100, lines=50) as screen:
        screen.shows(">GPU")
        screen.key("<", "<", "<", "r", "home", "enter")
        screen.shows("process 812", "control library ready", "5ac1d2e0b7f0a100", "4711")
        screen.shows("0x7f", "20.0 MiB", "imported by 813; 1 handle, 2 mappings, 1 export")
        def sizes(shown):
            lines = [line.split() for line in shown.screen() if line.startswith("0x")]
            return [float(words[1]) for words in lines if len(words) > 1]
        screen.wait(lambda shown: len(sizes(shown)) == 10 and
                    sizes(shown) == sorted(sizes(shown), reverse=True), "ten of them, by size")
        assert not any("TAG" in line for line in screen.screen()), screen.screen()
        rows.append(dict(MEM["rows"][2], tag="kv_cache", bytes=77 * MIB))
        screen.wait(lambda shown: any(line.endswith("TAG") for line in shown.screen()) and
                    any("77.0 MiB" in line and line.endswith("kv_cache") for line in shown.screen()), "a tag")
        results["processes"].pop(0)
        screen.shows("process 812 has ended")
        screen.key("q")
        screen.shows(">PID")
        screen.wait(lambda t: t.selected(), "another one is selected")
        screen.key("q")
        assert screen.ended() == 0


def case_sizes(context):
    """top: any size of the terminal, also while it runs"""
    context.agent(answers(processes=many(40)))
    with on_terminal(context, columns=200, lines=60) as screen:
        screen.shows("job-39", "COMMAND")
        for columns, lines in ((80, 24), (100, 10), (79, 23), (40, 8), (20, 5), (9, 3), (3, 2),
                               (1, 1), (2, 1), (300, 100), (80, 24)):
            screen.resize(columns, lines)
            if columns >= 20:
                screen.shows("PID", "1000")
                screen.wait(lambda t: t.screen()[-1].startswith("q quit"[:t.columns]), "footer")
            if columns >= 40:  # less important columns go first
                screen.shows("COMMAND", "job-0")
        assert screen.screen()[22].endswith(" job-16"), screen.screen()
        screen.resize(40, 6)
        screen.shows(">GPU")
        screen.key("end")
        screen.wait(lambda t: t.selected() and "1039" in t.selected()[0], "the last is selected")
        screen.key("q")
        assert screen.ended() == 0


def case_narrow(context):
    """top: where the screen is narrow, text goes on in the next line; no word is cut"""
    context.agent(answers())
    with on_terminal(context, columns=50, lines=40) as screen:
        screen.shows("(exported", "allocations)")
        screen.key("?")
        screen.shows("largest", "OTHER", "libraries", "not counted")
        assert "         or by OTHER libraries" in screen.screen(), screen.screen()  # below the text, not the key
        screen.key("q")
        screen.key("q")
        assert screen.ended() == 0


def case_end(context):
    """top: the terminal is put back by Ctrl-C, SIGTERM and SIGHUP"""
    context.agent(answers())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with on_terminal(context) as screen:
            screen.shows(">GPU")
            screen.process.send_signal(number)
            assert screen.ended() == 0, number
    with on_terminal(context) as screen:
        screen.shows(">GPU")
        screen.key("ctrl-c")
        assert screen.ended() == 0


def case_reconnects(context):
    """top: waits for an agent that goes away, on any page, and quits meanwhile, too"""
    gone = []

    def make(number):
        gone.clear()
        answer = answers(graph=make_graph(2, 5, 5, 3), status=dict(STATUS, pid=900 + number))
        return context.agent(lambda r: None if gone else answer(r))

    def end(agent):
        gone.append(True)  # for its connections
        agent.close()
    agent = make(0)
    for number, keys in enumerate(([], ["enter"])):
        with on_terminal(context) as screen:
            screen.shows(">GPU")
            screen.key(*keys)
            if keys:
                screen.shows("LARGEST AT")
            end(agent)
            screen.shows("lien top: waiting for the agent", "no agent listens on")
            screen.key("down", "r", "?", "q")
            screen.shows("lien top: waiting for the agent")
            agent = make(number)
            screen.shows("LARGEST AT" if keys else "agent pid %d" % (900 + number))
            screen.key("esc", "esc")
            assert screen.ended() == 0
    with on_terminal(context) as screen:
        screen.shows(">GPU")
        end(agent)
        screen.shows("waiting for the agent")
        screen.key("q")
        assert screen.ended() == 0


def case_dead(context):
    """top: memory that the dead hold; lien's own is not among a process's largest"""
    graph = make_graph(2, 5, 5, 3)
    for allocation in graph["allocations"]:
        if allocation["bytes"] == 20 * MIB:
            allocation.update(arena=True, owner="lien-control")
    context.agent(answers(ps=PS, graph=graph))
    out = fits(context.run("top", "--once")[0])
    assert "held by the dead, and not counted above: 6.0 MiB" in out, out
    assert "held by the dead: 6.0 MiB of process 811 (nccl): see `lien check`" in out, out
    with on_terminal(context, columns=100, lines=50) as screen:
        screen.shows(">GPU", "held by the dead: 6.0 MiB")
        screen.key("enter")
        screen.shows("LARGEST AT", "10.0 MiB", "COMMUNICATOR")
        screen.shows_not("lien-control")
        screen.key("q", "q")
        assert screen.ended() == 0


def case_terminals(context):
    """top: no terminal, one without a screen, one that is not described"""
    agent = context.agent(answers())
    context.fails("top", words=["not a terminal", "`lien ps`"])
    assert not agent.requests, "asked for nothing"
    for name in ("", "dumb"):
        with on_terminal(context, TERM=name) as screen:
            screen.shows("lien top: TERM names a terminal without a screen")
            assert screen.ended() == 1
    # Of an unknown terminal, that of xterm serves: found where distributions have it.
    environment = {k: v for k, v in context.environment.items() if not k.startswith("TERMINFO")}
    master, slave = os.openpty()
    done = subprocess.Popen([LIEN, "top"], stdin=slave, stdout=slave, stderr=slave,
                            env={**environment, "TERM": "lien-other"})
    seen = b""
    while b">GPU" not in seen:
        assert select.select([master], [], [], 30)[0], seen
        seen += os.read(master, 65536)
    os.write(master, b"q")
    assert done.wait(30) == 0
    os.close(slave)
    os.close(master)
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        return
    hide = ("for d in /etc/terminfo /lib/terminfo /usr/share/terminfo; do "
            "[ ! -d $d ] || mount -t tmpfs none $d; done; exec \"$0\" top")
    with on_terminal(context, TERM="xterm", TERMINFO="/nowhere", HOME="/nowhere",
                     argv=["unshare", "-m", "sh", "-c", hide, LIEN]) as screen:
        screen.shows("lien top: no description of this terminal")
        assert screen.ended() == 1


def case_arguments(context):
    """top: wrong options; no agent"""
    for arguments in (["-d"], ["-d", "0"], ["--delay", "soon"], ["-x"], ["extra"], ["--json"]):
        context.fails("top", *arguments, code=2, words=["see lien top --help"])
    out, _ = context.run("top", "--help")
    fits(out)
    assert "  -d, --delay SECONDS " in out and "--once" in out, out
    context.fails("top", "--once", words=["none.sock", "`lien agent`"])
    with on_terminal(context) as screen:
        screen.shows("lien top: no agent listens on")
        assert screen.ended() == 1


def case_odd(context):
    """top: replies with members missing or of another type: no crash"""
    odd = [{}, {"processes": 3, "rows": 3, "allocations": 3, "communicators": 3, "holders": 3},
           {key: [None, 3, {}, [], {"pid": -1, "bytes": "x", "ranks": {}, "devices": "x",
                                    "command": 3, "calls_total": "many", "mappings": [{}]}]
            for key in ("processes", "rows", "allocations", "communicators", "holders", "status")}]
    for result in odd:
        context.agent(lambda r, a=result: [{"ok": True, "result": a}])
        context.run("top", "--once")
        with on_terminal(context) as screen:
            screen.shows("lien top")
            screen.key("enter", "down", "end", "pgup", "?", "q", "esc")
            time.sleep(0.2)
            screen.key("q", "q", "q")
            assert screen.ended() == 0
    for reply in (b"garbage\n", b"{\"ok\": false, \"error\": \"not now\"}\n", None):
        context.agent(lambda r, a=reply: a)
        context.fails("top", "--once")


if __name__ == "__main__":
    sys.exit(run_cases(globals()))
