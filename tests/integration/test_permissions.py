#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Who may see and move what, and programs that pretend to be something else (docs/security.md).

See lien_test.py for what it needs. Users are numbers that need not be in /etc/passwd.
"""

import collections
import os
import signal
import socket
import struct
import subprocess
import sys
import time

from lien_test import (
    GUARD, IDLE_THREADS, LIEN, MIB, Driver, Session, alive, brief, came, case, check, children_of, equal, main,
    program, state_of, stays, wait_for)
from users import ALICE, BOB, CAROL, Shared, impostor, with_memory

KEPT = sum(1 << cap for cap in (2, 19, 24, 38, 39, 40))  # agent/core/privileges.c


def mentions(value, pid):
    """Where a pid is in an answer."""
    if isinstance(value, dict):
        return any((key == "pid" and inner == pid) or mentions(inner, pid)
                   for key, inner in value.items())
    if isinstance(value, list):
        return any(inner == pid or mentions(inner, pid) for inner in value)
    return False


@case()
def test_each_user_sees_and_moves_what_is_theirs():
    with Shared() as session:
        session.start_agent()
        equal(oct(os.stat(session.socket).st_mode & 0o777), "0o666", "mode of the socket")
        alice, bob = session.of_user(ALICE), session.of_user(BOB)
        root = session.driver()
        places = {driver: with_memory(driver, value)[1]
                  for value, driver in enumerate((alice, bob, root), 0x41)}
        session.ready(alice.pid, bob.pid, root.pid)
        others = bob.pid, root.pid
        for question in (["ps"], ["mem"], ["mem", "--by", "rank"], ["mem", "--explain"],
                         ["graph", "--format", "json"], ["comms"], ["status"], ["check"],
                         ["offload", "--owner", "all", "--dry-run"], ["check", "--deep"],
                         ["arena"], ["metrics"]):
            answer = session.ask_as(ALICE, *question)
            for pid in others:
                check(not mentions(answer, pid), "%s tells of process %d: %s" % (
                    question, pid, brief(answer)))
            if question[0] in ("ps", "offload") or question == ["mem"]:
                check(mentions(answer, alice.pid), question, "does not tell of her own:", answer)
        hidden = "processes of other users are hidden: only root sees and moves them"
        for question in (["ps"], ["mem"], ["comms"], ["check"], ["check", "--deep"], ["arena"], ["restore"],
                         ["attach", "--all"], ["offload"]):
            equal([hidden in " ".join(said.split()) for said in (
                session.lien_as(ALICE, *question).stdout, session.lien(*question).out)], [True, False], question)
        said = session.lien_as(CAROL, "ps").stdout
        check("no process of yours uses CUDA on this node" in said and hidden in said, said)
        # No answer speaks of the node where it knows of one user.
        for question, words in ((["mem"], "no process of yours holds GPU memory"),
                                (["mem", "--explain"], "no process of yours holds GPU memory"),
                                (["comms"], "no process of yours has a communicator"),
                                (["detach", "--all"], "no process of yours has a control library"),
                                (["attach", "--all"], "no process of yours uses CUDA"),
                                (["offload"], "no process of yours uses CUDA"),
                                (["status"], "no process of yours maps a library that has probes"),
                                (["top", "--once"], "no process of yours uses CUDA")):
            said = " ".join(session.lien_as(CAROL, *question).stdout.split())
            check(words in said and "processes of other users are hidden: only root sees" in said, question, said)
        session.refused_as(CAROL, "your processes have none of any owner", "offload", "--owner", "nccl2")
        warning = "warning: processes of other users are left out: only root sees them"
        os.mkdir(session.path("of-carol"))
        os.chown(session.path("of-carol"), CAROL, CAROL)
        for question in (["graph"], ["events"], ["snapshot", "--force", session.path("of-carol/s.lien")]):
            equal([warning in said for said in (session.lien_as(CAROL, *question).stderr,
                                                session.lien(*question).err)], [True, False], question)
        answer = session.ask_as(ALICE, "mem", "--by", "owner")
        equal(answer["bytes"], 2 * MIB, "bytes by owner")
        unknown = "is not known to the agent"
        session.refused_as(ALICE, unknown, "holders", bob.pid, hex(places[bob]))
        session.refused_as(ALICE, unknown, "offload", "--owner", "all", "--pid", bob.pid)
        session.refused_as(ALICE, unknown, "offload", "--owner", "all", "--pid", bob.pid, "--dry-run")
        session.refused_as(ALICE, unknown, "restore", "--pid", bob.pid)
        session.refused_as(ALICE, unknown, "check", "--deep", "--pid", bob.pid)
        for question in (["mem"], ["mem", "--by", "owner"], ["comms"], ["attach"], ["detach"],
                         ["arena", "--release"]):
            pid = [bob.pid] if question[0] in ("attach", "detach") else ["--pid", bob.pid]
            said = session.refused_as(ALICE, unknown, *question, *pid)
            check("known are %d (prog_driver) (see" % alice.pid in said, question, said)
        used = session.used()
        equal(session.ask_as(ALICE, "offload", "--owner", "all")["bytes"], 2 * MIB, "hers")
        equal(session.used(), used - 2 * MIB, "device memory in use")
        equal(session.process(bob.pid)["state"], "running", "his")
        session.ask("offload", "--owner", "all")  # root: the rest
        equal(session.ask_as(BOB, "restore")["bytes"], 2 * MIB, "he restores his")
        equal([session.process(d.pid)["state"] for d in (alice, bob, root)],
              ["offloaded", "running", "offloaded"], "states")
        session.ask_as(ALICE, "restore")
        session.ask("restore")
        for value, driver in enumerate((alice, bob, root), 0x41):
            equal(driver("check", places[driver], 2 * MIB, value), 0, "wrong bytes")
        path = os.path.join(session.folder, "hers")
        with open(path, "wb") as file:
            os.fchmod(file.fileno(), 0o666)
        os.mkdir(session.path("of-alice"))
        os.chown(session.path("of-alice"), ALICE, ALICE)
        kept = session.path("of-alice/s.lien")
        outcome = session.lien_as(ALICE, "snapshot", "-o", kept)
        if outcome.returncode:
            outcome = session.lien_as(ALICE, "snapshot", kept)
        equal(outcome.returncode, 0, "snapshot: " + outcome.stderr)
        equal([p["pid"] for p in session.ask("ps", "--from", kept)["processes"]], [alice.pid],
              "processes in her snapshot")


@case()
def test_memory_shared_with_another_user():
    with Shared() as session:
        session.start_agent()
        alice, bob = session.of_user(ALICE), session.driver()
        handle, va = with_memory(alice, 0x55)
        fd = alice("export", handle)
        taken = bob("getfd", alice.pid, fd)
        place = bob("show", 2 * MIB, bob("import", taken), 0)
        alice("close", fd)
        bob("close", taken)
        session.ready(alice.pid, bob.pid)
        holders = session.ask_as(ALICE, "holders", alice.pid, hex(va))["holders"]
        equal([h for h in holders if h["pid"] == bob.pid],
              [{"pid": bob.pid, "kind": "process of another user"}], "what she sees of the holder")
        check("another user" in session.lien_as(ALICE, "holders", alice.pid, hex(va)).stdout,
              "the words")
        for more in ([], ["--with-closure", "--pid", alice.pid], ["--dry-run"]):
            said = session.refused_as(ALICE, "mapped by a process of another user",
                                      "offload", "--owner", "all", *more)
            check(str(bob.pid) not in said, "it names the process:", said)
        equal(session.ask("offload", "--owner", "all")["bytes"], 2 * MIB, "root may")
        for more in ([], ["--pid", alice.pid]):
            said = session.refused_as(ALICE, "only root can", "restore", *more)
            check(str(bob.pid) not in said, "it names the process:", said)
        equal(session.process(bob.pid)["state"], "offloaded", "state")
        session.kill_agent()  # what the next one knows of it is what these say, and the journal
        session.start_agent()
        session.ready(alice.pid, bob.pid)
        session.ask("restore")
        equal(bob("check", place, 2 * MIB, 0x55), 0, "wrong bytes")
        equal(alice("check", va, 2 * MIB, 0x55), 0, "wrong bytes")


@case()
def test_who_keeps_memory_back_is_not_named():
    """Another user's process has a descriptor of her memory open."""
    with Shared() as session:
        session.start_agent()
        alice, hers, other = session.of_user(ALICE), session.of_user(ALICE), session.driver()
        handle, va = with_memory(alice, 0x56)
        fd = alice("export", handle)
        taken, imported = (driver("getfd", alice.pid, fd) for driver in (other, hers))
        hers("show", 2 * MIB, hers("import", imported), 0)
        alice("close", fd)
        hers("close", imported)
        session.ready(alice.pid, hers.pid, other.pid)

        def says(pid, dry_run):
            """Of the process, for her; root is told its pid."""
            answer = session.ask_as(ALICE, "offload", "--owner", "all", *dry_run)
            equal([(left["pid"], left["holder"], left["other_user"]) for left in answer["left"]],
                  [(alice.pid, None, True)], "what she is told: %s" % answer["left"])
            said = session.lien_as(ALICE, "offload", "--owner", "all", *dry_run).stdout
            check("because of a process of another user" in said, said)
            said += session.refused_as(ALICE, "(a process of another user)", "offload",
                                       "--owner", "all", "--strict", *dry_run)
            check("process %d" % pid not in said, "it names the process:", said)
            answer = session.ask("offload", "--owner", "all", "--with-closure", "--pid", alice.pid,
                                 "--dry-run")
            equal([left["holder"] for left in answer["left"]], [pid], "what root is told")

        for dry_run in (["--dry-run"], []):
            says(other.pid, dry_run)
        other("close", taken)
        equal(session.ask_as(ALICE, "offload", "--owner", "all")["bytes"], 2 * MIB, "moved")
        session.ask_as(ALICE, "restore")
        equal(alice("check", va, 2 * MIB, 0x56), 0, "wrong bytes")


@case()
def test_attached_by_root_and_by_their_user():
    """With what the agent keeps of root's rights it gives other users' processes the library."""
    with Shared() as session:
        session.start_agent()
        processes = [session.spawn_as(BOB, [program("prog_driver")]) for _ in range(2)]
        bobs = [Driver(process) for process in processes]
        for driver in bobs:
            driver("init", 0)
        places = [with_memory(driver, 0x49)[1] for driver in bobs]
        session.refused_as(ALICE, "is not known", "attach", bobs[0].pid)
        equal(session.ask_as(BOB, "attach", bobs[0].pid)["attached"], 1, "he attaches to his")
        equal(session.ask("attach", bobs[1].pid)["attached"], 1, "root attaches to his")
        used = session.used()
        equal(session.ask_as(BOB, "offload", "--owner", "all")["bytes"], 4 * MIB, "he moves his")
        equal(session.used(), used - 4 * MIB, "device memory in use")
        session.ask("restore")
        for driver, va in zip(bobs, places):
            equal(driver("check", va, 2 * MIB, 0x49), 0, "wrong bytes")


def draining(session, uid, *args):
    """An offload of the user, of all memory, that waits for a busy device."""
    client = session.spawn_as(uid, [LIEN, "offload", "--owner", "all", *args])
    wait_for("it drains", lambda: (session.ask("status")["transaction"] or {}).get("phase") == "drain")
    return client


@case()
def test_nobody_cancels_what_others_do():
    ask = ("import os,socket,sys; os.setuid(%d); t, s = [socket.socket(socket.AF_UNIX) for _ in range(2)]\n"
           "def ask(connection, op): connection.sendall(b'{%%s}\\n' %% op)\n"
           "t.connect(sys.argv[1]); sys.argv[2] and ask(t, b'\"wait\":true,\"op\":\"%%s\"' %% sys.argv[2].encode())\n"
           "s.connect(sys.argv[1]); ask(s, b'\"op\":\"status\"'); s.recv(65536); ask(s, b'\"op\":\"cancel\"')\n"
           "print(s.recv(4096).decode(), end='', flush=True)")
    with Shared() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        alice = session.of_user(ALICE)
        with_memory(alice, 0x11)
        session.ready(alice.pid)
        open(busy, "w").close()

        def cancelled_by(user, waits=""):
            process = session.spawn([sys.executable, "-c", ask % user, session.socket, waits])
            answer = process.line()
            check(answer and '"cancelled":' in answer, user, waits, answer, process.said())
            return '"cancelled":true' in answer

        # A restore that waits for its turn is not cancelled; an offload is.
        for user, waits, cancelled in ((BOB, "", False), (BOB, "restore", False), (BOB, "offload", True),
                                       (ALICE, "", True)):
            offload = draining(session, ALICE, "--timeout", "30000")
            equal(cancelled_by(user, waits), cancelled, "%d, who waits for %s" % (user, waits or "nothing"))
            if user != ALICE:
                cancelled_by(ALICE)
            equal(offload.wait(), 1, offload.said())
            if not waits:  # otherwise it may have given way
                check("cancelled; nothing was moved" in offload.said(), offload.said())
        os.unlink(busy)


@case()
def test_an_offload_gives_way_to_other_users():
    """One user's job does not come to rest: that delays other users' offloads by 2 s at most."""
    with Shared() as session:
        busy = session.path("busy")
        session.start_agent()
        bob = session.of_user(BOB)
        va = with_memory(bob, 0x22)[1]
        session.ready(bob.pid)
        equal(session.ask_as(BOB, "offload", "--owner", "all")["bytes"], 2 * MIB, "Bob's")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        alice = session.of_user(ALICE)
        with_memory(alice, 0x11)
        session.ready(alice.pid)
        open(busy, "w").close()
        session.refused_as(ALICE, "between 1 and 60000", "offload", "--owner", "all", "--timeout", "60001")
        offload = draining(session, ALICE, "--timeout", "60000")
        # The same user is told.
        session.refused_as(ALICE, "another transaction is under way", "restore")
        equal(session.ask_as(BOB, "restore")["bytes"], 2 * MIB, "Bob's")
        equal(bob("check", va, 2 * MIB, 0x22), 0, "wrong bytes")
        check(offload.wait() == 1 and "another user" in offload.said(), offload.said())
        # But not twice in a row.
        offload = draining(session, ALICE, "--timeout", "60000")
        waits = session.spawn_as(BOB, [LIEN, "restore"])
        stays("it goes on", lambda: offload.popen.poll() is None and waits.popen.poll() is None, 3)
        os.unlink(busy)
        equal((offload.wait(), waits.wait()), (0, 0), offload.said() + waits.said())
        # A later attempt comes to its turn.
        carol = session.of_user(CAROL)
        with_memory(carol, 0x33)
        session.ready(carol.pid)
        open(busy, "w").close()
        offload = draining(session, CAROL, "--timeout", "60000", "--retry", "600000")
        equal(session.ask("offload", "--pid", bob.pid, "--owner", "all")["bytes"], 2 * MIB, "by root")
        os.unlink(busy)
        equal(offload.wait(), 0, "an offload that tries again: %s" % offload.said())
        session.ask("restore")
        equal(bob("check", va, 2 * MIB, 0x22), 0, "wrong bytes")


@case()
def test_a_job_that_needs_its_memory_does_not_wait_for_other_users():
    """Its memory is restored for it, although another user always has an offload that waits, and the next one."""
    with Shared() as session:
        busy = session.path("busy")
        session.start_agent()
        alice = session.of_user(ALICE)
        va = with_memory(alice, 0x41)[1]
        session.ready(alice.pid)
        session.ask_as(ALICE, "offload", "--owner", "all", "--on-use", "restore")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        bob = session.of_user(BOB)
        with_memory(bob, 0x42)
        session.ready(bob.pid)
        open(busy, "w").close()
        loops = [session.spawn_as(BOB, ["/bin/sh", "-c", "while :; do %s offload --owner all --timeout %d; done" % (
            os.path.abspath(LIEN), timeout)]) for timeout in (50000, 50001)]
        wait_for("both ask", lambda: all(children_of(loop.pid) for loop in loops) and
                 session.ask("status")["transaction"])
        equal(alice("check", va, 2 * MIB, 0x41), 0, "wrong bytes")
        equal(session.process(alice.pid)["state"], "running", "state")
        for loop in loops:
            loop.end()


@case()
def test_without_proc():
    """A job in a user namespace, to which root is nobody, takes root's orders when it has lost its /proc."""
    with Shared() as session:
        session.start_agent()
        job = Driver(session.spawn_as(ALICE, ["/usr/bin/unshare", "-Urm", os.path.abspath(LIEN), "run", "--",
                                              program("prog_driver")]))
        job("init", 0)
        va = with_memory(job, 0x51)[1]
        session.ready(job.pid)
        session.ask("offload", "--owner", "all")
        subprocess.run(["nsenter", "-t", str(job.pid), "-m", "mount", "-t", "tmpfs", "none", "/proc"], check=True)
        equal(session.ask("restore")["bytes"], 2 * MIB, "restored")
        equal(job("check", va, 2 * MIB, 0x51), 0, "wrong bytes")


@case()
def test_a_stopped_job_keeps_nobody_waiting():
    """It is named, and others move their memory meanwhile."""
    with Shared() as session:
        session.start_agent()
        alice, bob = session.of_user(ALICE), session.of_user(BOB)
        places = {driver: with_memory(driver, 0x71)[1] for driver in (alice, bob)}
        session.ready(alice.pid, bob.pid)
        named = "process %d is stopped" % alice.pid

        def stop(how):
            os.kill(alice.pid, how)
            wait_for("it has the signal", lambda: (state_of(alice.pid) == "T") == (how == signal.SIGSTOP))

        stop(signal.SIGSTOP)
        session.refused_as(ALICE, named, "offload", "--owner", "all", "--timeout", "60000")
        equal(session.ask_as(BOB, "offload", "--owner", "all")["bytes"], 2 * MIB, "Bob's")
        equal(session.ask_as(BOB, "restore")["bytes"], 2 * MIB, "Bob's")
        stop(signal.SIGCONT)
        equal(session.ask("offload", "--owner", "all")["bytes"], 4 * MIB, "everybody's")
        stop(signal.SIGSTOP)
        session.refused_as(ALICE, named, "restore", "--timeout", "60000")
        equal(session.ask_as(BOB, "restore")["bytes"], 2 * MIB, "Bob's")
        equal(session.ask_as(BOB, "offload", "--owner", "all")["bytes"], 2 * MIB, "Bob's")
        session.refused("restore", "--timeout", "60000", text=named)
        equal(bob("check", places[bob], 2 * MIB, 0x71), 0, "wrong bytes of what came back all the same")
        stop(signal.SIGCONT)
        equal(session.ask_as(ALICE, "restore")["bytes"], 2 * MIB, "Alice's")
        equal(alice("check", places[alice], 2 * MIB, 0x71), 0, "wrong bytes")


@case()
def test_doctor_beside_a_working_agent():
    """A user needs no privileges where an agent has them."""
    with Shared() as session:
        code = session.lien_as(ALICE, "doctor").returncode
        equal(code, 1, "without an agent")
        session.start_agent()
        said = session.lien_as(ALICE, "doctor")
        check(said.returncode == 0 and "FAIL" not in said.stdout and
              "only to start another agent: the one that runs has what it needs" in " ".join(said.stdout.split()),
              said.stdout)
        check(session.ask_as(ALICE, "doctor")["ok"], "JSON")


@case()
def test_host_memory_of_other_users():
    with Shared() as session:
        session.start_agent()
        alice, bob = session.of_user(ALICE), session.of_user(BOB)
        places = {driver: with_memory(driver, 0x71)[1] for driver in (alice, bob)}
        session.ready(alice.pid, bob.pid)
        session.ask("offload", "--owner", "all", "--verify")
        session.ask("restore")
        held = {row["pid"]: row["held_bytes"] for row in session.ask("arena")["processes"]}
        check(held[alice.pid] and held[bob.pid], "held:", held)
        answer = session.ask_as(ALICE, "arena")
        equal([row["pid"] for row in answer["processes"]], [alice.pid], "what she sees")
        session.refused_as(ALICE, "is not known to the agent", "arena", "--release", "--pid",
                           bob.pid)
        answer = session.ask_as(ALICE, "arena", "--release")
        equal(([row["pid"] for row in answer["processes"]], answer["released_bytes"]),
              ([alice.pid], held[alice.pid]), "hers are released")
        equal({row["pid"]: row["held_bytes"] for row in session.ask("arena")["processes"]},
              {alice.pid: 0, bob.pid: held[bob.pid]}, "his are not")
        equal(session.ask_as(ALICE, "arena", "--release")["released_bytes"], 0, "again")
        equal(session.ask_as(BOB, "arena", "--release", "--pid", bob.pid)["released_bytes"],
              held[bob.pid], "he releases his")


def status_of(pid, thread=None):
    path = "/proc/%d/status" % pid if thread is None else "/proc/%d/task/%s/status" % (pid, thread)
    with open(path) as status:
        return dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)


@case()
def test_rights_are_given_up():
    with Session() as session:
        agent = session.start_agent()
        session.ask("mem", "--explain")  # starts a thread
        for thread in os.listdir("/proc/%d/task" % agent.pid):
            status = status_of(agent.pid, thread)
            for name in ("CapEff", "CapPrm", "CapBnd"):
                equal(int(status[name], 16) & ~KEPT, 0, "%s: %s" % (name, status[name]))
            equal((status["CapInh"], status["CapAmb"], status["NoNewPrivs"]),
                  ("0" * 16, "0" * 16, "1"), "the others")
        # What it does later still works: a copy of the driver that was not there, in a folder
        # that it may only search, and deleted meanwhile.
        folder = session.path("elsewhere")
        os.mkdir(folder, 0o700)
        with open(os.path.join(session.environment["LD_LIBRARY_PATH"], "libcuda.so.1"), "rb") as f:
            image = f.read()
        with open(folder + "/libcuda.so.1", "wb") as f:
            f.write(image)
        os.chown(folder, ALICE, ALICE)
        session.driver(init=False, LD_LIBRARY_PATH=folder)
        wait_for("the copy is probed", lambda: any(
            library["path"].startswith(folder) for library in session.ask("status")["libraries"]))
        late = session.driver(LD_LIBRARY_PATH=folder)
        handle, va = with_memory(late, 0x31)
        late("close", late("export", handle))
        session.ready(late.pid)
        check(session.process(late.pid)["complete"], "a process with that copy is incomplete")
        equal(session.ask("check")["open_files_known"], True, "open files")


# Control libraries that lie

def control_of(session, pid):
    process = session.process(pid)
    return process and process["control"]


def files_of(pid):
    """What a process has open, except BPF objects: links come and go by themselves."""
    folder, found = "/proc/%d/fd" % pid, []
    for name in os.listdir(folder):
        try:
            found.append(os.readlink(os.path.join(folder, name)))
        except FileNotFoundError:
            pass
    return sorted(path for path in found if "bpf" not in path)


def leaked(pid, files):
    """Has the process more files open than these? An idle thread has a socket."""
    more = list((collections.Counter(files_of(pid)) - collections.Counter(files)).elements())
    return len(more) > IDLE_THREADS or any(not path.startswith("socket:") for path in more)


@case(long=True)
def test_control_libraries_that_lie():
    with Shared() as session:
        agent = session.start_agent()
        honest = session.driver()
        va = with_memory(honest, 0x61)[1]
        session.ready(honest.pid)
        def goes_on(what):
            check(agent.popen.poll() is None, what, "ended the agent")
            began = time.monotonic()
            session.ask("ps", limit=5)
            check(time.monotonic() - began < 2, what, "holds up the agent")
            for kind in ("offload", "restore"):
                more = ["--pid", honest.pid] + (["--owner", "all"] if kind == "offload" else [])
                equal(session.ask(kind, *more, limit=10)["bytes"], 2 * MIB, "%s beside %s" % (
                    kind, what))
            equal(honest("check", va, 2 * MIB, 0x61), 0, "wrong bytes")

        goes_on("nobody")
        files = files_of(agent.pid)
        for how in ("file", "signals", "flood", "fds"):
            liar = impostor(session, how)
            wait_for("it is met", lambda pid=liar.pid: control_of(session, pid) not in (None, "none"))
            time.sleep(1.2)  # the agent looks again
            equal(control_of(session, liar.pid), "loaded" if how in ("file", "fds") else "ready",
                  how)
            goes_on(how)
            check(alive(liar.pid), "it was harmed")
            liar.end()
            session.forgotten(liar.pid)
            check(came(lambda: not leaked(agent.pid, files), GUARD), how, "leaves open files",
                  collections.Counter(files_of(agent.pid)) - collections.Counter(files))

        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            path = session.path("stranger.sock")
            listener.bind(path)
            os.chmod(path, 0o666)
            listener.listen()
            listener.settimeout(10)
            liar = impostor(session, "stranger", IMPOSTOR_PATH=path)
            connection, _ = listener.accept()
            connection.settimeout(1.5)
            try:
                check(False, "the agent spoke to a stranger:", connection.recv(200))
            except TimeoutError:
                pass
            goes_on("stranger")
            connection.close()
            liar.end()

        liar = impostor(session, "text")
        session.ready(liar.pid)
        goes_on("text")
        said = session.refused("restore", "--pid", liar.pid, text="\\?\\[31mred\\?and \\? more")
        check("\x1b" not in said, "escape sequences are passed on:", repr(said))
        liar.end()
        liar = impostor(session, "endless")
        session.ready(liar.pid)
        goes_on("endless")
        session.refused("restore", "--pid", liar.pid, text="lists more than can be away")
        goes_on("endless")
        liar.end()


@case()
def test_a_silent_one_holds_up_its_own_alone():
    with Shared() as session:
        session.start_agent()
        honest = session.of_user(ALICE)
        va = with_memory(honest, 0x62)[1]
        session.ready(honest.pid)
        liar = impostor(session, "silent")
        session.ready(liar.pid)
        equal(session.ask_as(ALICE, "offload", "--owner", "all")["bytes"], 2 * MIB, "offload")
        began = time.monotonic()
        equal(session.ask_as(ALICE, "restore")["bytes"], 2 * MIB, "restore")
        check(time.monotonic() - began < 5, "it was waited for")
        equal(honest("check", va, 2 * MIB, 0x62), 0, "wrong bytes")


@case()
def test_orders_of_another_user():
    """A child that has given up its rights holds both ends of its parent's pair."""
    with Shared() as session:
        session.start_agent()
        driver = session.driver()
        va = with_memory(driver, 0x63)[1]
        session.ready(driver.pid)
        # As such a child would: the agent's end, and another user.
        order = struct.pack("<IHHIiQQQ88s", 128, 6, 0, 7, 0, 0, 0, 0, b"")  # UNMAP
        code = ("import ctypes,os,socket,sys\nlibc=ctypes.CDLL(None)\n"
                "pid=int(sys.argv[1]); p=os.pidfd_open(pid)\n"
                "ends=[int(f) for f in os.listdir('/proc/%d/fd'%pid) if int(f)>=900 and "
                "os.readlink('/proc/%d/fd/%s'%(pid,f)).startswith('socket')]\n"
                "s=socket.socket(fileno=libc.syscall(438,p,min(ends),0))\n"
                "os.setuid(int(sys.argv[2]))\ns.send(bytes.fromhex(sys.argv[3]))\n"
                "s.settimeout(5); print(s.recv(65536)[40:128].rstrip(b'\\0').decode())\n")
        session.agent.signal(signal.SIGSTOP)
        try:
            for uid, words in ((BOB, "orders are taken from root and from this user alone"),
                               (0, "")):
                child = session.spawn([sys.executable, "-c", code, driver.pid, uid, order.hex()])
                equal(child.line(), words, "the answer to user %d: %s" % (uid, child.said()))
        finally:
            session.agent.signal(signal.SIGCONT)
        equal(driver("check", va, 2 * MIB, 0x63), 0, "wrong bytes")


# Sockets and files

@case()
def test_paths_that_others_control():
    with Session() as session:
        os.chmod(session.folder, 0o755)
        theirs = session.path("theirs")
        os.mkdir(theirs, 0o755)
        os.chown(theirs, BOB, BOB)
        public = session.path("public")
        os.mkdir(public)
        os.chmod(public, 0o777)
        os.symlink(public, theirs + "/link")
        os.lchown(theirs + "/link", BOB, BOB)
        target = session.path("target.sock")
        link = session.path("link.sock")
        os.symlink(target, link)
        fifo = session.path("fifo.sock")
        os.mkfifo(fifo)
        for path, words in ((theirs + "/agent.sock", "could put another socket"),
                            (theirs + "/sub/agent.sock", "could put another socket"),
                            (public + "/agent.sock", "could put another socket"),
                            (theirs + "/link/agent.sock", "symbolic link of user"),
                            (link, "a symbolic link"), (fifo, "is in the way")):
            outcome = session.lien("agent", "--socket", path, limit=20)
            check(outcome.code == 1 and words in outcome.err, path, outcome)
        check(not os.path.exists(target), "the link was followed")
        for kind in ("link", "fifo", "theirs"):  # planted before the agent
            for name in (".journal", ".state"):
                place = session.socket + name
                if kind == "link":
                    os.symlink("/etc/passwd", place)
                elif kind == "fifo":
                    os.mkfifo(place)
                else:
                    with open(place, "wb") as file:
                        file.write(b"{}")
                    os.chown(place, BOB, BOB)
            before = os.stat("/etc/passwd").st_mtime_ns
            session.start_agent()
            session.ask("status")
            session.stop_agent()
            equal(os.stat("/etc/passwd").st_mtime_ns, before, "/etc/passwd")
            for name in (".journal", ".state"):
                with open_if_there(session.socket + name):
                    pass
            equal(session.clean(), None, "clean")
            for name in (".journal", ".state"):
                if os.path.lexists(session.socket + name):
                    os.unlink(session.socket + name)


def open_if_there(path):
    stat = os.lstat(path)
    check(os.path.isfile(path) and not os.path.islink(path) and stat.st_uid == 0 and
          stat.st_mode & 0o777 == 0o600, "%s: %s" % (path, stat))
    return open(path, "rb")


@case()
def test_fake_agent():
    """Another user listens where the agent should be."""
    with Session() as session:
        os.chmod(session.folder, 0o1777)
        code = ("import os,socket,sys,time\nos.setuid(%d)\ns=socket.socket(socket.AF_UNIX)\n"
                "s.bind(sys.argv[1])\ns.listen()\nprint('listens',flush=True)\n"
                "while True:\n c,_=s.accept()\n c.sendall(b'{\"ok\":true,\"result\":{}}\\n')\n")
        fake = session.spawn([sys.executable, "-c", code % BOB, session.socket])
        equal(fake.line(), "listens", "the fake")
        session.refused("ps", text="is owned by user %d, not by root or you" % BOB)
        fake.end()


@case()
def test_too_many_clients_of_a_user():
    with Shared() as session:
        session.start_agent()
        code = ("import os,socket,sys\nos.setuid(%d)\nl=[]\nn=0\n"
                "for i in range(100):\n s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
                " s.settimeout(5); l.append(s)\n"
                " try: s.sendall(b'{\"op\":\"nothing\"}\\n'); n+=bool(s.recv(100))\n"
                " except OSError: pass\n"
                "print(n,flush=True)\nsys.stdin.read()" % BOB)
        crowd = session.spawn([sys.executable, "-c", code, session.socket])
        equal(crowd.line(), "64", "answered")
        session.ask("ps")
        session.ask_as(ALICE, "ps")
        crowd.end()
        wait_for("he is answered again", lambda: not session.lien_as(BOB, "ps").returncode)


if __name__ == "__main__":
    sys.exit(main())
