#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What a user of a real agent sees: its log, its tables, a job's recording."""

import calendar
import json
import os
import re
import subprocess
import sys
import time

from lien_test import LIEN, MIB, Session, case, check, equal, main, wait_for

LINE = re.compile(r"lien agent: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d (error|warning|notice|info): ")


@case()
def test_log():
    """Time and level in words; who asked for what; sizes for humans."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 4 * MIB, 0)
        session.ready(driver.pid)
        for argument in ("offload", "restore"):
            client = subprocess.Popen([LIEN, argument, *["--owner", "all"] * (argument == "offload")],
                                      env=session.env(), stdout=subprocess.DEVNULL)
            equal(client.wait(), 0, argument)
            said = session.agent.said()
            check(re.search(r"info: %s: 4\.0 MiB of 1 process in \d+\.\d ms, asked for by uid 0, pid %d\n"
                            % (argument, client.pid), said), said)
        session.ask("offload", "--discard", "prog_driver")
        check("info: offload: 4.0 MiB of 1 process in " in session.agent.said().splitlines()[-1],
              session.agent.said())
        session.ask("restore")
        equal(session.lien("detach", driver.pid).code, 0, "detach")
        said = session.agent.said()
        check(re.search(r"info: detach of 1 process, asked for by uid 0, pid \d+\n", said), said)
        for line in said.splitlines():
            check(LINE.match(line), line)


@case()
def test_log_of_the_journal():
    """syslog's <N> only under journald, that is, if stderr is the stream that JOURNAL_STREAM names"""
    with Session() as session:
        session.start_agent()
        path = session.path("stderr")
        for same in (True, False):
            with open(path, "w", encoding="ascii") as out:
                st = os.fstat(out.fileno())
                stream = "%d:%d" % (st.st_dev, st.st_ino + (not same))
                done = subprocess.run([LIEN, "agent"], stderr=out, env=session.env(JOURNAL_STREAM=stream),
                                      timeout=20, check=False)
            equal(done.returncode, 1, "a second agent")
            with open(path, encoding="utf-8") as text:
                said = text.read()
            check(said.startswith("<3>") and "lien agent:" not in said if same else LINE.match(said), said)
            equal(said.count("\n"), 1, said)


@case()
def test_numbers_of_the_socket():
    """The agent itself, too, sends no more digits than a number needs."""
    with Session() as session:
        session.start_agent()
        for _ in range(10):
            text = session.request('{"op": "status"}\n')
            numbers = re.findall(r"[0-9]+\.[0-9]+", text)
            check(len(numbers) > 3, text)
            for number in numbers:
                check(len(number.replace(".", "").lstrip("0")) <= 16, number)  # 15, or "5.0"


JOB = r"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, at = ctypes.c_void_p(), ctypes.c_uint64()
assert not (cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
            or cuda.cuCtxSetCurrent(context) or cuda.cuMemAlloc_v2(ctypes.byref(at), 6 << 20))
assert not cuda.cuMemFree_v2(at)
sys.exit(7)
"""


@case()
def test_recording_of_a_job():
    """`record -- JOB` has the job's exit code; what it wrote shows the peak, not the empty end."""
    with Session() as session:
        session.start_agent()
        path = session.path("job.lien")
        done = session.lien("record", path, "--", sys.executable, "-c", JOB)
        equal(done.code, 7, str(done))
        done = session.lien("mem", "--from", path)
        equal(done.code, 0, str(done))
        check("all processes have ended: this is its peak" in done.err, done.err)
        check("total: 6.0 MiB on the GPUs" in done.out, done.out)
        equal(session.ask("mem", "--from", path, "--peak")["bytes"], 6 * MIB, "--peak")
        equal(session.ask("mem", "--from", path, "--at", "+0")["bytes"], 0, "the beginning")


@case()
def test_nothing_is_left_on_a_full_disk():
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        for _ in range(100):
            driver("make", 2 * MIB, 0)
        recorded = session.path("now.lien")
        session.ask("snapshot", recorded)
        full = session.path("full")
        os.mkdir(full)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", full], check=True)
        for command in (["graph", "--format", "json"], ["timeline", recorded]):
            session.refused(*command, "-o", os.path.join(full, "out"), text="cannot write .*/out: No space left")
            equal(os.listdir(full), [], "%s left" % command[0])


def time_of(picture):
    when = re.search(r">(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \+0000<", picture)[1]
    return calendar.timegm(time.strptime(when, "%Y-%m-%d %H:%M:%S"))


@case()
def test_picture_of_a_recording():
    """It names the host and the time of the recording, not of the picture."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        path, picture = session.path("now.lien"), session.path("now.svg")
        before = time.time()
        done = subprocess.run(["unshare", "--uts", "sh", "-c", 'hostname node-7 && exec "$0" "$@"',
                               LIEN, "snapshot", path], env=session.env(), stdout=subprocess.DEVNULL, check=False)
        equal(done.returncode, 0, "snapshot")
        after = time.time()
        os.utime(path, (0, 0))
        wait_for("it is another second", lambda: int(time.time()) > int(after))
        done = session.lien("graph", "--from", path, "--format", "svg", "-o", picture, TZ="UTC0")
        equal((done.code, done.err), (0, ""), "graph")
        with open(picture, encoding="utf-8") as file:
            said = file.read()
        check("GPU memory on node-7<" in said, said[:2000])
        when = time_of(said)
        check(int(before) <= when <= after, before, when, after)
        # A moment of a recording, not when that began.
        path, mark = session.path("job.lien"), session.path("mark")
        equal(session.lien("record", path, "--", "sh", "-c", 'sleep 2; date +%%s > %s; exec "$0" -c "$1"' % mark,
                           sys.executable, JOB).code, 7, "record")
        with open(mark, encoding="ascii") as file:
            began = int(file.read())
        done = session.lien("graph", "--from", path, "--peak", "--format", "svg", TZ="UTC0")
        check(time_of(done.out) >= began, began, done.out[:2000])


@case()
def test_moments_of_a_job_that_ran():
    """The beginning of a recording is its first event, not what a process did before; a snapshot is one moment."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        path = session.path("now.lien")
        session.ask("snapshot", path)
        done = session.lien("mem", "--from", path, "--at", "+0")
        equal((done.code, done.err), (2, "lien mem: --at: %s is a snapshot: nothing in it has a time\n" % path), "snapshot")
        path = session.path("job.lien")
        equal(session.lien("record", path, "--", sys.executable, "-c", JOB).code, 7, "record")
        equal([session.ask("mem", "--from", path, *when)["bytes"] for when in (("--at", "+0"), ("--peak",))],
              [2 * MIB, 8 * MIB], "the beginning, the peak")
        entries = json.loads(session.lien("timeline", path).out)["traceEvents"]
        there = next(entry for entry in entries if entry["ph"] == "b" and entry["pid"] == driver.pid)
        equal(there["ts"], 0, "when a trace has what was there")


@case()
def test_what_there_is():
    """Unknown names: exit code 2, what there is, and what was probably meant; --json, too."""
    with Session() as session:
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        path = session.path("now.lien")
        session.ask("snapshot", path)
        owner, = [row["owner"] for row in session.ask("mem")["rows"]]
        for arguments, said in (
                (["offload", "--owner", owner[:-1]],
                 "no GPU memory belongs to owner %s; there is memory of %s: did you mean '%s'?" % (
                     owner[:-1], owner, owner)),
                (["offload", "--owner", "libkv.so"],
                 "no GPU memory belongs to owner libkv.so; there is memory of %s (see `lien mem`)" % owner),
                (["offload", "--gpu", "9"], "there is no GPU 9; known are 0, 1 (see `lien ps`)"),
                (["offload", "--comm", "foo"],
                 "no communicator has the group foo; none is known (see `lien comms`)"),
                (["offload", "--comm", "0123456789abcdef"],
                 "no communicator has the group 0123456789abcdef; none is known (see `lien comms`)"),
                (["mem", "--pid", "1", "--from", path],
                 "the recording has no process 1; known are %d (prog_driver) (see `lien ps`)" % driver.pid)):
            done = session.lien(*arguments)
            equal((done.code, done.out, done.err), (2, "", "lien %s: %s\n" % (arguments[0], said)), arguments)
            done = session.lien(*arguments, "--json=line")
            equal((done.code, json.loads(done.out)), (2, {"error": said}), arguments)


if __name__ == "__main__":
    sys.exit(main())
