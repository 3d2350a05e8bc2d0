#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien replay` of made-up recordings on the software CUDA driver.

See lien_test.py for what it needs.
"""

import functools
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from lien_test import (
    LIEN, RECORDING_HEADER, SOFTCUDA, alive, case, main, recording, stays, state_of, wait_for)

MAPPINGS, BYTES = 31, 177966466  # of the recording "basic"
PAIRS = int(os.environ.get("PAIRS", "300"))


@functools.cache
def work():
    """A folder, which goes with the test's namespace."""
    return tempfile.mkdtemp()


def devices():
    return os.path.join(work(), "devices")


def environment(**more):
    env = dict(os.environ, LD_LIBRARY_PATH=SOFTCUDA, LIEN_SOFTCUDA_DIR=devices(),
               LIEN_SOFTCUDA_DEVICES="2", LIEN_SOFTCUDA_MEMORY="2G", LIEN_SOFTCUDA_QUIET="1")
    env.update(more)
    return {name: value for name, value in env.items() if value is not None}


def replay(*args, commands=None, env=None, timeout=120):
    return subprocess.run([LIEN, "replay", "--no-control", *args], env=env or environment(),
                          input=commands or "", capture_output=True, text=True, timeout=timeout)


def expect(done, status, *texts):
    said = "exit status %d\n--- stdout\n%s--- stderr\n%s" % (
        done.returncode, done.stdout, done.stderr)
    assert done.returncode == status, said
    for text in texts:
        assert re.search(text, done.stdout + done.stderr), "no '%s': %s" % (text, said)
    return done


class Held:
    """A replay that is held at its quiet point."""

    def __init__(self, *args, env=None):
        self.process = subprocess.Popen(
            [LIEN, "replay", "--no-control", "--hold", *args], env=env or environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.pids = {}
        while True:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            match = re.match(r"recorded pid (\d+) -> pid (\d+)", line)
            if match:
                self.pids[int(match[1])] = int(match[2])
            if line == "replay: ready\n":
                break

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")

    def end(self):
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def gone(pid):
    return wait_for("process %d is gone" % pid, lambda: not alive(pid))


def memory_in_use():
    used = 0
    for device in filter(str.isdigit, os.listdir(devices())):
        fs = os.statvfs(os.path.join(devices(), device))
        used += (fs.f_blocks - fs.f_bfree) * fs.f_frsize
    return used


@case()
def test_verify():
    expect(replay("--verify", recording("basic")), 0, r"recorded pid 101 -> pid \d+: 21 mappings",
           r"recorded pid 102 -> pid \d+: 10 mappings", "replay: ready",
           "verify: ok %d mappings, %d bytes" % (MAPPINGS, BYTES),
           "left out 1 imports of which the recording has no export",
           "left out 4 calls on what")
    assert memory_in_use() == 0, memory_in_use()


@case()
def test_default_is_verify():
    expect(replay(recording("basic")), 0, "verify: ok %d mappings" % MAPPINGS)


@case()
def test_commands():
    done = expect(replay("--hold", recording("basic"), commands="verify\nchange 7\nverify\n\n"
                         "change 0x8\nverify\nfree\nverify\nquit\nverify\n"), 0)
    said = [line for line in done.stdout.splitlines() if not line.startswith("recorded")]
    ok = "verify: ok %d mappings, %d bytes" % (MAPPINGS, BYTES)
    assert said == ["replay: ready", ok, "change: ok 7", ok, "change: ok 8", ok, "free: ok",
                    "verify: ok 0 mappings, 0 bytes"], said


@case()
def test_wrong_commands():
    for command in ("frobnicate", "change", "change x", "change -1", "verify now", "x" * 1000):
        done = expect(replay("--hold", recording("ended"), commands=command + "\nverify\n"), 1)
        assert "verify: ok 1 mappings" in done.stdout, done
    expect(replay("--hold", recording("ended"), commands="verify\nverify"), 0)


@case()
def test_free_gives_all_back():
    with Held(recording("basic")) as held:
        before = memory_in_use()
        assert before > 64 << 20, before
        assert held.ask("free") == "free: ok"
        assert memory_in_use() == 0, memory_in_use()
        assert held.end()[0] == 0


@case(long=True)
def test_passive_at_the_quiet_point():
    def used(pid):
        with open("/proc/%d/stat" % pid) as stat:
            return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))

    with Held(recording("basic")) as held:
        pids = list(held.pids.values()) + [held.process.pid]
        before = list(map(used, pids))
        stays("they use no processor", lambda: list(map(used, pids)) == before, 1)
        assert all(state_of(pid) == "S" for pid in pids)


@case()
def test_mismatch_is_found():
    """Changes one word of one process's memory from outside: others see it by their imports."""
    with Held(recording("ended")) as held:
        pid = held.pids[102]
        with open("/proc/%d/maps" % pid) as maps:
            places = [line.split("-")[0] for line in maps if line.startswith("7d0000000000")]
        assert places, "import is not at its recorded address"
        with open("/proc/%d/mem" % pid, "r+b", buffering=0) as mem:
            mem.seek(int(places[0], 16) + 0x123458)
            mem.write(b"\0" * 8)
        line = held.ask("verify")
        assert re.match(r"verify: recorded pid 102 \(pid %d\): mapping 0x7d0000000000 \(recorded "
                        r"0x7d0000000000\) offset 0x123458: expected 0x[0-9a-f]{16}, found "
                        r"0x0000000000000000" % pid, line), line
        assert held.process.stdout.readline() == "verify: failed 1 of 1 mappings\n"
        assert held.end()[0] == 1


@case(long=True)
def test_thousands_of_shares():
    """More exports than RLIMIT_NOFILE of a plain shell, and far more than a socket holds."""
    done = expect(replay("--hold", recording("pairs", PAIRS), commands="verify\nchange 1\nverify\n"
                         "free\n"), 0)
    ok = "verify: ok %d mappings, %d bytes" % (4 * PAIRS, 4 * PAIRS << 21)
    assert done.stdout.count(ok) == 2, done
    assert memory_in_use() == 0


@case()
def test_few_file_descriptors():
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", LIEN, "replay", "--no-control",
         recording("pairs", PAIRS)], env=environment(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120)
    # Whether they fit depends on how the two keep pace; if not, it must say so.
    if done.returncode:
        assert re.search("file descriptors|CUDA_ERROR", done.stderr), done


@case()
def test_an_owner_that_ended():
    done = expect(replay("--hold", recording("ended"), commands="verify\nchange 3\nverify\nfree\n"),
                  0, "ended, as recorded")
    # Nobody can rewrite the memory any more, so it still holds the first pattern.
    assert done.stdout.count("verify: ok 1 mappings, 4194304 bytes") == 2, done


@case()
def test_interrupted_recording():
    expect(replay(recording("interrupted")), 0, "cut short after record 190",
           "verify: ok %d mappings, %d bytes" % (MAPPINGS, BYTES))


@case()
def test_damaged_recordings():
    with open(recording("basic"), "rb") as good:
        whole = good.read()
    plain = gzip.decompress(whole)
    cases = {
        "empty": (b"", "cut short"),
        "text": (b"not a recording at all, but some text\n" * 10, "not a recording"),
        "flipped": (whole[:900] + bytes([whole[900] ^ 4]) + whole[901:], "not a recording|damaged|cut short"),
        "checksum": (whole[:-6] + bytes(2) + whole[-4:], "damaged"),
        "version": (gzip.compress(plain[:8] + b"\x63" + plain[9:]), "another version"),
        "record": (gzip.compress(plain[:RECORDING_HEADER] + b"\xff" * 8 + plain[RECORDING_HEADER + 8:]), "damaged at record 1"),
        "header": (gzip.compress(plain[:RECORDING_HEADER]), "has no call to replay"),
    }
    for name, (data, text) in cases.items():
        path = os.path.join(work(), name)
        with open(path, "wb") as file:
            file.write(data)
        done = replay(path)
        if name == "flipped" and done.returncode == 0:
            continue
        expect(done, 1, text)
        assert done.stdout == "", done
        assert "recorded pid" not in done.stderr, done
    expect(replay(os.path.join(work(), "missing")), 1, "No such file")
    expect(replay(work()), 1, "Is a directory|damaged|not a recording")


@case()
def test_too_many_processes():
    expect(replay(recording("many", 300)), 1, "more than 256 processes")
    expect(replay(recording("many", 30)), 0, "verify: ok 0 mappings")


@case()
def test_options():
    file = recording("basic")
    for args in ([], [file, file], ["--frobnicate", file], ["--timeout", "0", file],
                 ["--timeout", "1x", file], ["--timeout"], ["--verify", "--hold", file]):
        done = expect(replay(*args), 2)
        assert done.stdout == "" and done.stderr, done
    done = expect(replay("--help", env=environment(COLUMNS="80")), 0, "Examples:", "Exit code")
    assert done.stderr == "" and all(len(line) <= 80 for line in done.stdout.splitlines())


@case()
def test_json():
    done = expect(replay("--json", recording("basic")), 0)
    summary = json.loads(done.stdout)
    assert summary["ok"] and summary["verify"] == {"mappings": MAPPINGS, "failed": 0, "bytes": BYTES}
    assert [worker["recorded_pid"] for worker in summary["workers"]] == [101, 102]
    assert summary["workers"][0]["comm"] == "python3"
    assert summary["skipped"]["imports"] == 1 and summary["control"] == 1, summary
    done = expect(replay("--json", recording("toobig")), 1)
    assert json.loads(done.stdout)["ok"] is False


@case()
def test_driver_error():
    done = expect(replay(recording("toobig")), 1, r"recorded pid 101 \(pid \d+\): cuMemCreate "
                  r"\(record 9\): CUDA_ERROR_OUT_OF_MEMORY")
    assert "ready" not in done.stdout, done
    assert len(done.stderr.splitlines()) == 1, done


@case()
def test_no_driver():
    done = replay(recording("ended"), env=environment(LD_LIBRARY_PATH=None))
    if done.returncode:  # else this machine has a driver of its own
        expect(done, 1, "no CUDA driver|cuInit|no device")


@case()
def test_fewer_devices():
    expect(replay(recording("basic"), env=environment(LIEN_SOFTCUDA_DEVICES="1",
                                                      LIEN_SOFTCUDA_DIR=devices() + "1")), 0,
           "names device 1, here are 1", "verify: ok %d mappings" % MAPPINGS)


@case()
def test_death_of_a_worker():
    with Held(recording("basic")) as held:
        os.kill(held.pids[101], signal.SIGKILL)
        status, said = held.end()
        assert status == 1 and re.search(r"recorded pid 101 \(pid \d+\): died of signal 9", said), said
        assert gone(held.pids[102])
    assert memory_in_use() == 0


@case()
def test_keep_going():
    with Held("--keep-going", recording("basic")) as held:
        os.kill(held.pids[101], signal.SIGKILL)
        line = held.ask("verify")
        assert re.match(r"verify: ok 10 mappings", line), line
        status, said = held.end()
        assert status == 1 and "died of signal 9" in said, said


@case()
def test_death_of_the_parent():
    with Held(recording("basic")) as held:
        held.process.kill()
        assert all(gone(pid) for pid in held.pids.values())
        held.process.communicate()
    assert memory_in_use() == 0


@case(long=True)
def test_time_limit():
    with Held("--timeout", "1", recording("basic")) as held:
        os.kill(held.pids[102], signal.SIGSTOP)
        began = time.monotonic()
        assert held.ask("verify") == ""
        status, said = held.end()
        assert status == 1 and "no progress for 1 s" in said, said
        assert time.monotonic() - began < 15
        assert gone(held.pids[102])


@case()
def test_nccl_stand_in():
    file = recording("basic")
    done = expect(replay(file), 0)
    assert "stand-in" not in done.stderr, done
    expect(replay(file, env=environment(LIEN_SOFTNCCL="/nowhere")), 0, "no stand-in libnccl",
           "verify: ok %d mappings" % MAPPINGS)
    with Held(file) as held:
        with open("/proc/%d/maps" % held.pids[101]) as maps:
            assert "/libnccl.so.2" in maps.read()


@case()
def test_control_library():
    done = subprocess.run([LIEN, "replay", recording("ended")], capture_output=True, text=True,
                          env=environment(LIEN_CONTROL="/nowhere/liblien-control.so"))
    expect(done, 1, "/nowhere/liblien-control.so", "set LIEN_CONTROL to its path")


if __name__ == "__main__":
    sys.exit(main())
