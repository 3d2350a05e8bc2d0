#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien run` and `lien record` against a fake agent.

LIEN names the program (default build/lien). Needs neither root nor a GPU. Prints a line per case, and
"N passed, N failed" at the end. Cases are the functions that begin with case_, their docstrings the
names.
"""

import gzip
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time

from cli_answers import MIB, event, process_event
from cli_fixture import LIEN, Stream, long, run_cases
from lien_test import RECORDING_HEADER, children_of, wait_for


def case_run_what_cannot(context):
    """run: a program that uses musl starts without the control library; what a program lacks is named"""
    musl, script = context.path("ld-musl-x86_64.so.1"), context.path("script")
    linker = subprocess.run(["cc", "-print-file-name=ld-linux-x86-64.so.2"], check=True, stdout=subprocess.PIPE,
                            text=True).stdout.strip()
    os.symlink(os.path.realpath(linker), musl)
    program = context.path("musl-program")
    subprocess.run(["cc", "-o", program, "-Wl,--dynamic-linker=" + musl, "-x", "c", "-"], check=True, text=True,
                   input='#include <stdio.h>\n#include <stdlib.h>\nint main(void) { puts(getenv("LD_PRELOAD") ? "with" : "without"); }')
    for name in program, "musl-program":
        out, err = context.run("run", "--", name, PATH=context.directory + ":" + os.environ["PATH"])
        assert out == "without\n" and "uses musl" in err and err.startswith("lien run: " + name), (out, err)
    with open(script, "w", encoding="ascii") as file:
        file.write("#!%s x\n" % program)
    os.chmod(script, 0o755)
    out, err = context.run("run", "--", script)
    assert out == "without\n" and "uses musl" in err, (out, err)
    os.unlink(musl)
    context.fails("run", "--", program, code=127, words=[musl, "dynamic linker"])
    os.unlink(program)
    context.fails("run", "--", script, code=127, words=[script, program, "first line"])


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


def read_recording(path):
    """The types of the records of a recording."""
    with gzip.open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"LIENREC\0", data[:8]
    types, at = [], RECORDING_HEADER
    while at < len(data):
        size, kind = struct.unpack_from("<IH", data, at)
        types.append(kind)
        at += size
    return types


TWO_PROCESSES = process_event(812) + process_event(813)
CREATE = event(17, 812, struct.pack("<QQIIIiBBHI", 1, MIB, 1, 1, 1, 0, 0, 0, 0, 0))


def case_record(context):
    """record: every record is written, even one that arrives in pieces; ends with --seconds"""
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
            wait_for("it has begun", lambda: os.path.exists(path))
            time.sleep(0.2)  # what it has been sent is not in the file before its end
            running.send_signal(number)
            out, _ = running.communicate(timeout=30)
        assert running.returncode == 0 and b"2 events" in out, (running.returncode, out)
        assert read_recording(path) == [1, 1, 6]


@long
def case_record_busy(context):
    """record: ends in time while events keep coming"""
    path = context.path("b.lien")
    context.environment["LIEN_SOCKET"] = Stream(
        context.directory, [TWO_PROCESSES * 100], forever=True).path
    start = time.monotonic()
    context.run("record", path, "--seconds", "1")
    assert time.monotonic() - start < 20
    assert read_recording(path)[-1] == 6


def command_of(pid):
    with open("/proc/%d/comm" % pid, encoding="ascii") as file:
        return file.read().strip()


def case_record_command(context):
    """record -- COMMAND: ends with it, and has its exit code"""
    control = context.path("liblien-control.so")
    subprocess.run(["cc", "-shared", "-o", control, "-x", "c", "/dev/null"], check=True)
    context.environment["LIEN_CONTROL"] = control
    context.environment["LIEN_SOCKET"] = Stream(context.directory, [TWO_PROCESSES]).path
    path = context.path("c.lien")
    out, err = context.run("record", path, "--", "sh", "-c", 'echo "$LD_PRELOAD" --json')
    assert out.startswith(control + " --json\n") and "2 events" in out and err == "", (out, err)
    assert read_recording(path) == [1, 1, 6]
    out, err = context.run("record", path, "--force", "--", "sh", "-c", "exit 3", code=3)
    assert err == "lien record: warning: sh ended with exit code 3\n" and "2 events" in out, err
    _, err = context.run("record", path, "--force", "--", "sh", "-c", "kill -9 $$", code=128 + 9)
    assert "warning: sh was killed by signal 9" in err, err
    path = context.path("d.lien")
    context.fails("record", path, "--", "no-such-command", code=127, words=["not found"])
    assert not os.path.exists(path)
    out, err = context.run("record", "--json=line", path, "--", "no-such-command", code=127)
    assert err == "lien record: no-such-command: command not found\n", err
    assert json.loads(out) == {"error": "no-such-command: command not found"}, out
    context.fails("record", path, "--", "/etc/passwd", code=126, words=["cannot run /etc/passwd: Permission denied"])
    # What was there is not touched for a command that does not start.
    _, err = context.run("record", path, "--", "sh", "-c", "exit 0")
    for command, code in (("no-such-command", 127), ("/etc/passwd", 126)):
        context.run("record", path, "--force", "--", command, code=code)
        assert read_recording(path) == [1, 1, 6]
    os.unlink(path)
    # The command outlives --seconds: the file is complete, the command is waited for.
    out, err = context.run("record", path, "--seconds", "1", "--", "sh", "-c", "sleep 2; exit 4", code=4)
    assert read_recording(path) == [1, 1, 6] and "exit code 4" in err, (out, err)
    # SIGTERM goes on to the command, which has the usual signal mask.
    with subprocess.Popen([LIEN, "record", path, "--force", "--", "sleep", "60"],
                          env=context.environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as running:
        wait_for("the command runs", lambda: [pid for pid in children_of(running.pid)
                                              if command_of(pid) == "sleep"])
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=30)
    assert running.returncode == 128 + 15 and b"killed by signal 15" in err, err


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
    assert "ended the connection" in lines[0] and "has what was recorded before" in lines[1], err
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
    assert ("has what was recorded before" in done.stderr) == ("r\n" in done.stdout), done


if __name__ == "__main__":
    sys.exit(run_cases(globals()))
