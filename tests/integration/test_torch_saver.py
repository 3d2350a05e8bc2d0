#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""torch_memory_saver's C functions in the control library, called as its Python package calls them.
See lien_test.py for what it needs; tests/gpu/torch_saver.py runs the package itself."""

import os
import sys

from lien_test import BUILD, LIEN, MIB, Session, case, check, equal, main, wait_for
from plain import KEPT
from python_program import Job

SIZE = 2 * MIB


def start(session, **more):
    job = Job(session, size=SIZE, saver=True, **more)
    session.ready(job.pid)
    return job


def memory(session):
    """{tag: (bytes, offloaded bytes)}"""
    return {row["key"]: (row["bytes"], row["offloaded_bytes"])
            for row in session.ask("mem", "--by", "tag")["rows"] if row["key"] != "no tag"}


def saver_session():
    return Session(LIEN_PLAIN="0")


@case()
def test_regions_are_tags():
    with saver_session() as session:
        session.start_agent()
        job = start(session)
        equal(job("saver.state()"), ("default", False, False, "pinned", False), "at first")
        job("saver.region('kv_cache', False, plain, 1 << 21)")
        job("saver.region('weights', True, plain, 2 << 21)")
        job("saver.region('weights', True, saver.region, 'inner', False, plain, 3 << 21)")
        job("saver.region('disk', False, plain, 4 << 21, disk=True)")
        job("tagged('lien', saver.region, 'over', True, plain, 5 << 21)")
        job("saver.region('under', True, tagged, 'lien', plain, 6 << 21)")
        job("plain(7 << 21)")
        equal(memory(session), {"kv_cache:no-backup": (1 << 21, 0), "weights": (2 << 21, 0),
                                "inner:no-backup": (3 << 21, 0), "disk": (4 << 21, 0), "over": (5 << 21, 0),
                                "under": (6 << 21, 0)}, "by tag")
        equal(job("saver.state()"), ("default", False, False, "pinned", False), "in the end")
        # What PyTorch's pluggable allocator calls.
        address = job("saver.region('pool', True, saver.c.tms_torch_malloc, 3 << 20, 0, None)")
        equal(memory(session)["pool"], (4 * MIB, 0), "by torch's allocator")
        job("saver.c.tms_torch_free(%d, 3 << 20, 0, None)" % address)
        check("pool" not in memory(session), "it is freed")
        equal(job("saver.c.tms_torch_malloc(1 << 40, 0, None)"), None, "too much")


@case()
def test_pause_and_resume():
    """With a backup the bytes come back, without one they are dropped; at the same addresses; by tag and all."""
    with saver_session() as session:
        session.start_agent()
        job = start(session)
        job("plain(1000)")
        used = session.used()
        weights = job("saver.region('weights', True, plain, 2 << 21)")
        cache = job("saver.region('kv_cache', False, plain, 4 << 21)")
        mixed = job("saver.region('kv_cache', True, plain, 1 << 21)")
        both = session.used() - used
        for va, size, byte in ((weights, 2 << 21, 1), (cache, 4 << 21, 2), (mixed, 1 << 21, 3)):
            job("fill(%d, %d, %d)" % (va, size, byte))
        equal(job("saver.pause('kv_cache')"), 0, "pause")
        equal(memory(session), {"weights": (2 << 21, 0), "kv_cache": (0, 1 << 21), "kv_cache:no-backup": (0, 4 << 21)},
              "paused")
        check(job("holds(%d, 2 << 21, 1)" % weights, limit=10), "other memory is used meanwhile")
        equal(job("saver.pause('kv_cache'), saver.resume('weights')"), (0, 0), "again, and what is not paused")
        equal(job("saver.pause()"), 0, "pause all")
        check(session.used() <= used, "%d of %d are freed" % (used + both - session.used(), both))
        equal(job("saver.resume('weights')"), 0, "resume one")
        check(job("holds(%d, 2 << 21, 1)" % weights, limit=10), "its bytes")
        equal(job("saver.resume()"), 0, "resume the rest")
        check(job("holds(%d, 1 << 21, 3)" % mixed), "what was saved")
        check(job("holds(%d, 4 << 21, 0)" % cache), "what was dropped")
        equal(job("saver.resume(), saver.pause('none'), saver.resume('none')"), (0, 0, 0), "nothing to do")
        job("call('cuMemFree_v2', number(%d))" % cache)
        job("call('cuMemFree_v2', number(%d))" % mixed)
        equal(job("saver.pause('kv_cache')"), 0, "what has been freed")
        equal(job.process.said(), "", "nothing was said")


@case(long=True)
def test_the_backup_is_handed_out():
    """While it is paused, and only of what was saved; even of a part of a larger block."""
    with saver_session() as session:
        session.start_agent()
        job = start(session)
        small = job("saver.region('weights', True, plain, 1000)")
        large = job("saver.region('weights', True, plain, 4 << 21)")
        cache = job("saver.region('kv_cache', False, plain, 1 << 21)")
        job("fill(%d, 1000, 7)" % small)
        job("fill(%d, 4 << 21, 8)" % large)
        equal(job("saver.backup(%d, 1000)" % small), None, "before")
        job("saver.pause()")
        equal(job("saver.backup(%d, 1000) == bytes([7]) * 1000" % small), True, "a small one")
        equal(job("saver.backup(%d, 4 << 21) == bytes([8]) * (4 << 21)" % large), True, "a large one")
        equal(job("saver.backup(%d, 5000) == bytes([8]) * 5000" % (large + (3 << 21))), True, "a part of it")
        equal(job("saver.backup(%d, (4 << 21) + 1)" % large), None, "more than it")
        equal(job("saver.backup(%d, 1 << 21)" % cache), None, "what was dropped")
        wait_for("a line", lambda: "it was dropped, not saved" in job.process.said())
        job("saver.resume('weights')")
        equal(job("saver.backup(%d, 1000)" % small), None, "after")


@case()
def test_freed_while_paused():
    with saver_session() as session:
        session.start_agent()
        job = start(session)
        cache = job("saver.region('kv_cache', False, plain, 4 << 21)")
        job("saver.pause()")
        job("call('cuMemFree_v2', number(%d))" % cache, limit=20)
        equal(memory(session), {}, "gone")
        job("saver.resume()")


@case()
def test_shared_with_another_rank():
    """What the other one maps goes with it: by a descriptor, by legacy IPC; both may pause at once."""
    with saver_session() as session:
        session.start_agent()
        rank, other = start(session), start(session)
        used = session.used()
        rank("globals().update(handle=saver.region('weights', True, create, 2 << 21)) or 1")
        mine = rank("show(handle, 2 << 21)")
        rank("fill(%d, 2 << 21, 7)" % mine)
        fd = rank("export(handle)")
        theirs = other("take(%d, %d, 2 << 21)" % (rank.pid, fd))
        rank("os.close(%d)" % fd)
        plain = rank("saver.region('weights', True, plain, 2 << 21)")
        rank("fill(%d, 2 << 21, 9)" % plain)
        handed = other("open_ipc(%r)" % rank("ipc_handle(%d)" % plain))
        equal((rank("saver.pause()"), memory(session)), (0, {"weights": (0, 4 << 21)}), "pause")
        check(session.used() <= used + KEPT, "%d more than at first" % (session.used() - used))
        equal(rank("saver.resume()"), 0, "resume")
        for va, byte in ((theirs, 7), (handed, 9)):
            check(other("holds(%d, 2 << 21, %d)" % (va, byte)), "bytes of the other rank")
        other("saver.region('weights', True, tensor, 1 << 21)")
        for verb, expected in (("pause", (0, 5 * (2 << 20))), ("resume", (5 * (2 << 20), 0))):
            for one in rank, other:
                one.begin("saver.%s()" % verb)
            equal([one.end() for one in (rank, other)], [0, 0], verb)
            equal(memory(session)["weights"], expected, verb)
        check(other("holds(%d, 2 << 21, 9)" % handed), "bytes after both")
        equal(rank.process.said() + other.process.said(), "", "nothing was said")


@case()
def test_errors_are_lines():
    """None of them ends the process."""
    with saver_session() as session:
        session.start_agent()
        job = start(session)
        job("saver.region('weights', True, plain, 2 << 21)")
        session.stop_agent()
        for name in "pause", "resume":
            equal(job("saver.%s()" % name), 999, name)
            wait_for("a line", lambda verb=name: "cannot %s all regions: no agent answers" % verb in job.process.said())
        for tag in "x" * 54, "a\n":
            job("saver.c.tms_set_current_tag(%r)" % tag.encode())
            equal(job("saver.c.tms_get_current_tag()"), b"", "a bad tag")
        job("saver.c.tms_set_current_tag(None)")
        job("saver.c.tms_set_cpu_backup_backend(b'tape')")
        equal(job("bool(saver.c.tms_get_cpu_backup_pointer(None, 1))"), False, "no pointer")
        said = job.process.said()
        for text in ("printable ASCII", "no such backend: tape"):
            check(text in said, text, said)
        check("effect" not in said and "disk" not in said, said)
        for number in 1, 2:
            job("saver.c.tms_set_retain_cpu_backup(True)")
            equal(job("saver.c.tms_get_retain_cpu_backup()"), False, "retain")
            job("saver.c.set_memory_margin_bytes(%d << 30)" % number)
            job("saver.c.tms_set_enable_disk_backup(True)")
            job("saver.c.tms_set_disk_backup_dir(b'/tmp')")
            job("saver.c.tms_set_cpu_backup_backend(b'mmap')")
        equal(job("saver.c.tms_get_cpu_backup_backend()"), b"mmap", "the backend is kept")
        said = job.process.said()
        for text in ("retain_cpu_backup has no effect", "memory_margin_bytes has no effect",
                     "enable_disk_backup saves in host memory", "cpu_backup_backend has no effect"):
            equal(said.count(text), 1, text)
        check(all(line.startswith("lien: torch_memory_saver: ") for line in said.splitlines()), said)


@case()
def test_memory_that_stays():
    """The driver's plain memory is left, and the reason is given."""
    with Session(LIEN_PLAIN="1") as session:
        session.start_agent()
        job = start(session)
        job("saver.region('weights', True, plain, 2 << 21)")
        equal(job("saver.pause()"), 0, "pause")
        wait_for("a line", lambda: "4194304 bytes of all regions stay on the GPU: cudaMalloc" in job.process.said())


@case()
def test_by_the_environment():
    """TMS_INIT_ENABLE: every thread is in a region from its start."""
    with saver_session() as session:
        session.start_agent()
        job = start(session, TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1", TMS_INIT_CPU_BACKUP_BACKEND="mmap")
        equal(job("saver.state()"), ("default", True, True, "mmap", False), "state")
        wait_for("a line", lambda: "cpu_backup_backend has no effect" in job.process.said())
        job("in_thread(plain, 1 << 21)")
        equal(memory(session)["default"], (1 << 21, 0), "memory of another thread")
        equal(job("saver.pause()"), 0, "pause")
        equal(memory(session)["default"], (0, 1 << 21), "paused")
        equal(job("saver.resume()"), 0, "resume")


@case()
def test_lien_run():
    """The path in LD_PRELOAD that torch_memory_saver looks for; two of them it does not take."""
    with Session() as session:
        script = "import os; print(os.environ['LD_PRELOAD'])"
        outcome = session.lien("run", "--torch-memory-saver", "--", sys.executable, "-c", script)
        equal(outcome.out.strip(), os.path.join(BUILD, "torch_memory_saver", "liblien-control.so"), "LD_PRELOAD")
        session.refused("run", "--torch-memory-saver", "--", "true", text="leave it out",
                        LD_PRELOAD="/x/torch_memory_saver_hook_mode_preload.so")
        check(os.path.dirname(LIEN) == BUILD, LIEN)


if __name__ == "__main__":
    sys.exit(main())
