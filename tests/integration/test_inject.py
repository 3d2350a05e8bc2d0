#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The control library is put into live processes, and they do not notice. No agent takes part.

INJECT_COUNT is the number of injections at random moments (100), LIEN_SEED repeats them."""

import concurrent.futures
import os
import random
import re
import signal
import time

from lien_test import (
    GOLDEN, at_a_moment, case, check, children_of, equal, main, program, recording, state_of,
    wait_for)
from inject import (COUNT, LOAD, SEED, WAITS, Seen, Session, attempt, content, figures,
                    has_library, inject, injector, maps, ready, refused, settled, state_of_library)

MAGIC = 0x6c69656e43544c31
ARENA = 64 << 20


@case()
def test_leaves_nothing_else():
    """The library is there, and the process is otherwise unchanged."""
    with Session() as session:
        process = session.waits("poll", "futex", "nanosleep")
        before = settled(process.pid)
        result = inject(process.pid)
        check(not result.present, "it was not there before")
        after = Seen(process.pid)
        before.equals(after)
        sizes, files = after.added(before)
        check("liblien-control.so (deleted)" in files, "mapped: %s" % files)
        equal(sorted(files - {"liblien-control.so (deleted)"}),
              sorted(files & {"libdl.so.2", "libpthread.so.0"}), "other files")
        # Stacks that pthread keeps, and arenas of malloc, of the new thread and the control thread.
        stack = [size for size in sizes if 0 < size <= 16 << 20]
        check(sum(stack) < 20 << 20, "mappings %s" % sizes)
        check(sum(size for size in sizes if size not in stack) <= 3 * ARENA, "mappings %s" % sizes)
        magic, version, number, handler = state_of_library(process.pid)
        equal(magic, MAGIC, "magic")
        check(version and handler, "version %d, handler %#x" % (version, handler))
        equal(after.caught, before.caught | 1 << (number - 1), "signals with handlers")
        content(process)
        again = inject(process.pid)
        check(again.present, "a second time it is there")
        equal(again.attempts, 0, "threads stopped, though its control thread runs")
        Seen(process.pid).equals(after)


@case()
def test_named():
    """The loader knows it by its own name, not by a descriptor that will mean another file."""
    with Session() as session:
        process = session.python("""
import ctypes, sys
ctypes.CDLL("libcuda.so.1")
libc, names = ctypes.CDLL(None), []
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_void_p)
def note(info, size, data):
    names.append(ctypes.string_at(info[1]) if info[1] else b"")
    return 0
print("ready", flush=True)
sys.stdin.readline()
libc.dl_iterate_phdr(kind(note), None)
ok = names.count(b"liblien-control.so") == 1 and not [n for n in names if n.startswith(b"/proc")]
print("ok 1" if ok else names, flush=True)
""")
        inject(process.pid)
        content(process)


@case()
def test_preloaded():
    with Session() as session:
        driver = session.driver()
        before = Seen(driver.pid)
        check(inject(driver.pid).present, "`lien run` has loaded it")
        before.equals(Seen(driver.pid))


@case(long=True)
def test_waits():
    """No wait ends early, late, or with EINTR."""
    with Session() as session:
        for kinds in [[kind] for kind in WAITS] + [WAITS]:
            for _ in range(3 if len(kinds) > 1 else 2):
                process = session.waits(*kinds)
                at_a_moment(random, 0.05)
                inject(process.pid)
                check(content(process, 0.1) > 0 or kinds == ["wait"], "nobody waited")
                process.end()


@case()
def test_rest_of_a_wait():
    """The time already waited is not waited again."""
    kinds = ["nanosleep", "clock", "poll", "ppoll", "select", "futex", "cond"]
    with Session() as session:
        processes = [session.waits(kind, WAIT_MS="4000", LATE_MS="2500") for kind in kinds]
        time.sleep(3)
        for process in processes:
            inject(process.pid)
        for process in processes:
            wait_for("%s has come back" % process.argv, lambda one=process: content(one, 0.1) >= 1)


@case()
def test_single_thread():
    with Session() as session:
        for _ in range(5):
            process = session.waits()
            inject(process.pid)
            content(process)


@case()
def test_registers_of_signals():
    """A handler that comes while a thread is borrowed runs, and ends its wait with EINTR."""
    with Session() as session:
        for _ in range(8):
            process = session.waits("handler")
            inject(process.pid)
            content(process, 0.05)


@case()
def test_replayed():
    """A recorded job on the software driver, bytes verified before and after."""
    with Session(memory="8G") as session:
        job = session.replay(GOLDEN if COUNT >= 1000 else recording("pairs", 20), "--no-control")
        before = job.verify()
        for pid in job.ranks:
            check(not inject(pid).present, "it was not there before")
            check(has_library(pid), "it is mapped")
        equal(job.verify(), before, "verified")
        job.change(1)
        equal(job.verify(), before, "verified after a change")
        job.free()
        job.quit()


@case()
def test_container():
    """In user, mount and pid namespaces of its own, where the library is on no path."""
    with Session() as session:
        process = session.spawn([
            "unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc",
            "sh", "-c", "mount -t tmpfs tmpfs %s && exec %s poll cond" % (
                os.path.dirname(GOLDEN), program("prog_waits"))])
        ready(process)
        pid, = children_of(process.pid)
        before = settled(pid)
        inject(pid)
        check(has_library(pid), "it is mapped")
        before.equals(settled(pid))
        content(process)


# The kernel ends epoll_wait with EINTR when a thread is stopped; the injector makes up for that, unless it
# has been killed.
UNHARMED = [kind for kind in WAITS if kind != "epoll"]


def random_targets(session, choice, waits=WAITS):
    """Starts one of several kinds of processes."""
    kind = choice.randrange(5)
    if kind == 0:
        return session.python()
    if kind == 1:
        return session.waits(*choice.sample(waits, len(waits)))
    if kind == 2:
        return session.waits(*LOAD, *choice.sample(waits, len(waits)))
    return session.waits(*choice.sample(LOAD, 4), *choice.sample(waits, 3))


@case(limit=3600, long=True)
def test_random_moments():
    """INJECT_COUNT injections, none of which does harm."""
    choice = random.Random(SEED)
    pauses, totals, attempts = [], [], []
    for number in range(COUNT):
        with Session() as session:
            process = random_targets(session, choice)
            at_a_moment(choice, 0.03)
            try:
                result = inject(process.pid)
                content(process, 0.06)
                check(has_library(process.pid), "it is not mapped")
            except Exception:
                print("   LIEN_SEED=%d, number %d: %s" % (SEED, number, process.argv))
                raise
            pauses.append(result.pause_us)
            totals.append(result.total_us)
            attempts.append(result.attempts)
    print("   %d injections; pause in us: %s; all in us: %s; threads stopped: %s" % (
        COUNT, figures(pauses), figures(totals), figures(attempts)))


@case(limit=3600, long=True)
def test_killed_injector():
    """The injector dies at any moment: the process goes on, and the next one does it."""
    choice = random.Random(SEED)
    there = 0
    for number in range(max(COUNT // 10, 5)):
        with Session() as session:
            process = random_targets(session, choice, UNHARMED)
            with injector(process.pid) as first:
                at_a_moment(choice, 0.012)
                first.kill()
            try:
                content(process, 0.06)
                there += has_library(process.pid)

                def again(pid=process.pid):
                    result = attempt(pid)
                    check(not isinstance(result, tuple) or result[0] == 16, result)
                    return not isinstance(result, tuple)
                wait_for("the next injection", again, step=0.2)
                content(process, 0.06)
            except Exception:
                print("   LIEN_SEED=%d, number %d: %s" % (SEED, number, process.argv))
                raise
    print("   in %d the library was there already" % there)


def any_blocked(pid):
    """Has a thread blocked a signal, as the kernel does while the handler runs?"""
    for tid in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/status" % (pid, tid)) as status:
            if any(int(line.split()[1], 16) for line in status if line.startswith("SigBlk:")):
                return True
    return False


@case()
def test_in_handler():
    """It does not inject into a signal handler, which may have come in the middle of malloc(), but waits for its
    end."""
    with Session() as session:
        for _ in range(4):
            process = session.waits("in-handler")
            wait_for("a thread is in its handler", lambda pid=process.pid: any_blocked(pid))
            refused(process.pid, 110, "none of the 2 threads", limit_ms=50)
            inject(process.pid)
            content(process)


CALLS_MAX = 200


@case(long=True)
def test_killed_at_each_call():
    """The injector dies before its first, second, ... call of ptrace(), whatever thread it has."""
    kinds = [kind for kind in WAITS if kind != "wait"]
    with Session() as session:
        killer = session.compile("libkiller.so", "killer.c", "-shared", "-fPIC")
        for number in range(CALLS_MAX):
            process = session.waits(kinds[number % len(kinds)])
            before = settled(process.pid)
            with injector(process.pid, env={"LD_PRELOAD": killer, "CALL": str(number),
                                            "SIGNAL": str(int(signal.SIGKILL))}) as other:
                said = other.communicate(timeout=30)[0]
            content(process, 0.05)
            blocked = settled(process.pid, begun=False).blocked
            equal({tid: blocked[tid] for tid in before.blocked}, before.blocked, "blocked signals")
            process.end()
            if said:
                break
        check(said.startswith("ok ") and number > 20, "%d calls, then: %s" % (number, said))
    print("   at each of %d calls" % number)


@case()
def test_stopped_while_borrowed():
    """SIGSTOP to a process whose one thread is borrowed: it stops after that, not before."""
    with Session() as session:
        killer = session.compile("libkiller.so", "killer.c", "-shared", "-fPIC")
        processes = {number: session.waits() for number in range(4, 50, 5)}

        def stop(number, process):
            said, limit_ms = "", 200
            while not said.startswith("sent\n"):  # else it was too slow to come so far
                with injector(process.pid, limit_ms=limit_ms, env={
                        "LD_PRELOAD": killer, "CALL": str(number), "WHO": str(process.pid),
                        "SIGNAL": str(int(signal.SIGSTOP))}) as other:
                    said = other.communicate()[0]
                limit_ms *= 2
            equal(said.split()[1:3], ["error", "110"], "said at call %d" % number)
            wait_for("it is stopped (call %d)" % number, lambda: state_of(process.pid) == "T")

        with concurrent.futures.ThreadPoolExecutor(len(processes)) as pool:
            list(pool.map(stop, *zip(*processes.items())))
        for process in processes.values():
            process.signal(signal.SIGCONT)
        for process in processes.values():
            content(process)
            wait_for("the next injection",
                     lambda: not isinstance(attempt(process.pid), tuple), step=0.2)
            content(process)


@case(long=True)
def test_stopped_meanwhile():
    """SIGSTOP and SIGCONT at random: refused or done, and the process goes on."""
    choice = random.Random(SEED)
    with Session() as session:
        for _ in range(10):
            process = session.waits(*UNHARMED, *LOAD)
            with injector(process.pid, limit_ms=500) as other:
                for _ in range(4):
                    at_a_moment(choice, 0.004)
                    process.signal(signal.SIGSTOP)
                    at_a_moment(choice, 0.004)
                    process.signal(signal.SIGCONT)
                other.communicate(timeout=20)
            content(process, 0.1)
            wait_for("the next injection",
                     lambda pid=process.pid: not isinstance(attempt(pid), tuple), step=0.2)
            content(process)
            process.end()


@case(long=True)
def test_target_killed_at_each_call():
    """The process is killed before the injector's first, second, ... call of ptrace(): it ends, and
    the injector says so. A thread that is traced keeps its process from ending until its tracer has
    taken note."""
    with Session() as session:
        killer = session.compile("libkiller.so", "killer.c", "-shared", "-fPIC")
        for number in range(CALLS_MAX):
            process = session.waits(*WAITS[number % 4:][:1 + number % 3])
            with injector(process.pid, env={"LD_PRELOAD": killer, "CALL": str(number),
                                            "WHO": str(process.pid),
                                            "SIGNAL": str(int(signal.SIGKILL))}) as other:
                said = other.communicate(timeout=20)[0]
            if said.startswith("ok ") and state_of(process.pid) not in "ZX":
                break
            check(re.match("(sent\n)?ok |sent\nerror 3 .*has ended", said), "killed at call %d: %s" % (number, said))
            process.end()
        check(said.startswith("ok ") and number > 20, "%d calls, then: %s" % (number, said))
    print("   at each of %d calls" % number)


@case(long=True)
def test_ends_meanwhile():
    """A process that ends, or starts another program: one line, and no waiting."""
    choice = random.Random(SEED)
    done = 0
    with Session() as session:
        for _ in range(20):
            process = session.waits(*WAITS[:4], "start")
            with injector(process.pid) as other:
                at_a_moment(choice, 0.01)
                process.signal(signal.SIGKILL)
                said = other.communicate(timeout=20)[0]
            check(said.count("\n") == 1, "prog_inject said: %s" % said)
            check(not said.startswith("error 110 "), "it waited for a process that ended: " + said)
            done += said.startswith("ok")
            process.end()
        for _ in range(10):
            process = session.waits("exec", "malloc", "poll")
            at_a_moment(choice, 0.1)
            for _ in range(10):
                attempt(process.pid, limit_ms=300)
            process.send("")
            answer = process.line()
            while answer == "ready":
                answer = process.line()
            check(answer.startswith("ok "), answer)
            process.end()
    print("   %d were injected into before they ended" % done)


@case()
def test_busy_loader():
    """A thread keeps the loader's lock for long: nobody else waits, and the library comes later."""
    with Session() as session:
        slow = session.compile("libslow.so", "slow_load.c", "-shared", "-fPIC")
        process = session.waits("slow-load", "poll", SLOW_LIBRARY=slow)
        wait_for("it is being loaded", lambda: any(slow in entry[-1] for entry in maps(process.pid)))
        before = Seen(process.pid)
        refused(process.pid, 110, "loader .* is busy", limit_ms=400)
        content(process)
        refused(process.pid, 16, "not over", limit_ms=400)
        wait_for("it comes", lambda: has_library(process.pid))
        check(wait_for("it is over", lambda: not isinstance(attempt(process.pid), tuple)),
              "present")
        wait_for("its thread has ended", lambda: len(Seen(process.pid).threads) <
                 len(before.threads) + 1)
        Seen(process.pid).added(before)
        content(process)


if __name__ == "__main__":
    raise SystemExit(main())
