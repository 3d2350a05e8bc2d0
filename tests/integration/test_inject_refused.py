#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Processes that are not injected into: one line says why, and the process is as it was."""

import ctypes
import errno
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import time

from lien_test import (
    CONTROL, SEED, SOFTCUDA, case, check, children_of, main, program, state_of, wait_for)
from inject import (Seen, Session, attempt, content, has_library, inject, maps, ready,
                    refused, settled)

PTRACE_SEIZE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 0x4206, 38, 22
NOBODY = 65534


def untouched(process, number, text, **more):
    """Refused, and nothing is there that was not there."""
    before = settled(process.pid)
    refused(process.pid, number, text, **more)
    after = Seen(process.pid)
    before.equals(after)
    check(not has_library(process.pid), "the library is there")
    return after.added(before)


def unchanged(process, number, text, **more):
    """The same, to the last mapping."""
    added = untouched(process, number, text, **more)
    check(added == ([], set()), "mapped: %s" % (added,))


def sleeping(session, argv, **environment):
    process = session.spawn(argv, **environment)
    wait_for("it sleeps", lambda: state_of(process.pid) == "S")
    time.sleep(0.05)
    return process


@case()
def test_zombie():
    pid = os.fork()
    if not pid:
        os._exit(0)
    wait_for("it has ended", lambda: state_of(pid) == "Z")
    refused(pid, errno.ESRCH, "has ended")
    os.waitpid(pid, 0)


@case()
def test_32_bit():
    """An ELF file of 32 bits, made by hand, that pauses forever."""
    code = b"\xb8\x1d\0\0\0\xcd\x80\xeb\xf7"
    base, size = 0x8048000, 52 + 32
    elf = struct.pack("<16sHHIIIIIHHHHHH", b"\x7fELF\1\1\1", 2, 3, 1, base + size, 52, 0, 0, 52, 32,
                      1, 0, 0, 0)
    elf += struct.pack("<IIIIIIII", 1, 0, base, base, size + len(code), size + len(code), 5, 4096)
    with Session() as session:
        path = session.path("prog32")
        with open(path, "wb") as file:
            file.write(elf + code)
        os.chmod(path, 0o755)
        try:
            process = sleeping(session, [path])
        except OSError as error:
            check(error.errno == errno.ENOEXEC, error)
            print("   this kernel runs no 32-bit programs")
            return
        unchanged(process, errno.ENOEXEC, "32-bit")


@case()
def test_static():
    with Session() as session:
        unchanged(sleeping(session, [session.compile("static", "sleeper.c", "-static")]),
                  errno.ENOEXEC, "static executable")


@case()
def test_musl():
    """A loader that calls itself musl's is enough."""
    with Session() as session:
        loader = session.path("ld-musl-x86_64.so.1")
        with open("/lib64/ld-linux-x86-64.so.2", "rb") as file, open(loader, "wb") as copy:
            copy.write(file.read())
        os.chmod(loader, 0o755)
        program = session.compile("musl", "sleeper.c", "-Wl,--dynamic-linker=" + loader)
        unchanged(sleeping(session, [program]), errno.ENOEXEC, "musl")


@case()
def test_old_glibc():
    """This machine's, which claims to be 2.30."""
    with Session() as session:
        program = session.waits("poll")
        path = next(entry[5] for entry in maps(program.pid)
                    if len(entry) > 5 and entry[5].endswith("/libc.so.6"))
        with open(path, "rb") as file:
            image = file.read()
        at = image.index(b" version 2.", image.index(b"GNU C Library"))
        image = image[:at] + b" version 2.30" + image[at + 13:]
        os.mkdir(session.path("old"))
        with open(session.path("old/libc.so.6"), "wb") as file:
            file.write(image)
        process = session.waits("poll", LD_LIBRARY_PATH=session.path("old") + ":" + SOFTCUDA)
        unchanged(process, errno.ENOEXEC, "glibc 2.30, older than 2.31")
        content(process)


@case()
def test_not_cuda():
    with Session() as session:
        unchanged(sleeping(session, ["sleep", "100"]), errno.ENODEV, "not a CUDA process")


@case()
def test_traced():
    libc = ctypes.CDLL(None, use_errno=True)
    with Session() as session:
        process = session.waits("poll")
        check(not libc.ptrace(PTRACE_SEIZE, process.pid, None, None), "ptrace")
        unchanged(process, errno.EBUSY, "is traced by process %d" % os.getpid())
        content(process)


@case()
def test_stopped():
    with Session() as session:
        process = session.waits("poll")
        process.signal(signal.SIGSTOP)
        wait_for("it is stopped", lambda: state_of(process.pid) == "T")
        unchanged(process, errno.EBUSY, r"is stopped.*kill -CONT %d" % process.pid)
        process.signal(signal.SIGCONT)
        content(process)
        inject(process.pid)


@case()
def test_seccomp():
    """A filter that allows everything."""
    allow = struct.pack("<HBBI", 6, 0, 0, 0x7fff0000)

    def confine():
        libc = ctypes.CDLL(None)
        code = ctypes.create_string_buffer(allow, 8)
        program = struct.pack("<H6xQ", 1, ctypes.addressof(code))
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(PR_SET_SECCOMP, 2, ctypes.create_string_buffer(program, 16), 0, 0)

    with Session() as session:
        process = session.waits("poll")
        argv = process.argv
        process.end()
        confined = subprocess.Popen(argv, env=session.env(), stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True, preexec_fn=confine)
        check(confined.stdout.readline() == "ready\n", "it began")
        unchanged(confined, errno.EPERM, "confined by seccomp.*lien run")
        confined.kill()
        confined.communicate()


@case()
def test_other_user():
    with Session() as session:
        process = session.waits("poll")
        unchanged(process, errno.EPERM, "another user's", user=NOBODY, group=NOBODY,
                  extra_groups=[])
        content(process)


@case()
def test_no_more_threads():
    """What glibc has made for the thread stays in its cache (a stack, an arena), and nothing else."""
    user = random.Random(SEED).randrange(50000, 60000)  # who has no other processes
    with Session() as session:
        process = session.waits("poll")
        argv = process.argv
        process.end()
        process = ready(session.spawn([
            "setpriv", "--reuid", user, "--regid", user, "--clear-groups",
            "prlimit", "--nproc=2", *argv]))
        sizes, files = untouched(process, errno.EAGAIN, "no room for another thread.*ulimit -u")
        check(not files and sum(sizes) < 148 << 20, "mapped: %s %s" % (sizes, files))
        content(process, 0.1)


@case()
def test_no_more_memory():
    """No room for 64 KiB, and then for 8 MiB of stack."""
    with Session() as session:
        process = session.waits("poll")
        with open("/proc/%d/statm" % process.pid) as file:
            size = int(file.read().split()[0]) * 4096
        for room, text in ((16384, "cannot map memory"), (1 << 20, "no room for another thread")):
            limit = (size + room, resource.RLIM_INFINITY)
            resource.prlimit(process.pid, resource.RLIMIT_AS, limit)
            unchanged(process, errno.ENOMEM if room < 65536 else errno.EAGAIN, text)
        content(process)


@case()
def test_no_more_files():
    with Session() as session:
        process = session.waits("poll")
        count = len(os.listdir("/proc/%d/fd" % process.pid))
        highest = max(map(int, os.listdir("/proc/%d/fd" % process.pid)))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, 4096))
        check(highest >= 0 and count, "it has files")
        untouched(process, errno.EAGAIN, "cannot open another file")
        content(process)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (1024, 4096))
        inject(process.pid)


@case()
def test_vfork():
    with Session() as session:
        process = session.waits("slow-vfork", "poll")
        children = wait_for("it has a child", lambda: children_of(process.pid))
        check(len(children) == 1, children)
        refused(children[0], errno.EBUSY, "memory of its parent %d" % process.pid)
        refused(process.pid, errno.ETIMEDOUT, "vfork", limit_ms=200)
        wait_for("the child has ended", lambda: not isinstance(attempt(process.pid), tuple))
        content(process)


@case()
def test_never_waits():
    with Session() as session:
        process = session.python("""
import ctypes, sys
ctypes.CDLL("libcuda.so.1")
print("ready", flush=True)
while True: pass
""")
        wait_for("it is busy", lambda: state_of(process.pid) == "R")
        begun = time.monotonic()
        unchanged(process, errno.ETIMEDOUT, "none of the 1 threads", limit_ms=300)
        check(time.monotonic() - begun < 2, "the limit was 0.3 s")


@case()
def test_not_a_library():
    with Session() as session:
        process = session.waits("poll")
        path = session.path("text")
        with open(path, "w") as file:
            file.write("no library" * 100)
        untouched(process, errno.ENOEXEC, "cannot load the control library.*invalid ELF header",
                  library=path)
        other = session.compile("libother.so", "other.c", "-shared", "-fPIC")
        untouched(process, errno.ENOENT, "cannot read the control library", library=other)
        content(process)
        inject(process.pid)


@case()
def test_memory_that_a_user_serves():
    """A thread keeps the lock of its process's address space while it waits for a page that is never
    delivered (prog_fuse.c): whoever looks at it waits, and cannot be ended."""
    with open("/proc/filesystems") as known:
        if "\tfuse\n" not in known.read():
            print("   skipped: the kernel has no FUSE")
            return
    with Session() as session:
        os.chmod(session.folder, 0o755)
        place = session.path("fuse")
        os.mkdir(place)
        os.chown(place, NOBODY, NOBODY)
        # Of its own: while an agent beside us puts probes on a file, the kernel takes the lock of every
        # process that maps it, and nobody can fork() until it has it.
        library = shutil.copy(os.path.join(SOFTCUDA, "libcuda.so.1"), session.folder)
        process = session.spawn([program("prog_fuse"), place, NOBODY, "lock", library])
        ready(process)
        refused(process.pid, errno.ETIMEDOUT, "keeps whoever looks at its memory waiting",
                limit_ms=300)
        process.end()


if __name__ == "__main__":
    raise SystemExit(main())
