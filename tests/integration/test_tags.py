#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Tags of memory: from the thread that allocates to the answers, and offloads and restores by tag.
See lien_test.py for what it needs."""

import json
import os
import re
import sys

from lien_test import LIEN, MIB, ROOT, SOFTCUDA, Session, case, check, equal, main, wait_for
from openmetrics import read as read_metrics
from plain import POOL
from python_program import SIZE, Job
from users import ALICE, Shared

INCLUDE = os.path.join(ROOT, "include")


def start(session, control=True, **more):
    job = Job(session, size=SIZE, control=control, **more)
    if control:
        session.ready(job.pid)
    return job


def by_tag(session, *args):
    """{tag: (bytes, offloaded bytes)}"""
    return {row["key"]: (row["bytes"], row["offloaded_bytes"])
            for row in session.ask("mem", "--by", "tag", *args)["rows"]}


# The way of a tag

@case()
def test_what_a_thread_allocates_has_its_tag():
    """The innermost counts; other threads have none; after the block there is none."""
    with Session() as session:
        session.start_agent()
        job = start(session)
        job("tagged('outer', tensor, 1 << 21)")
        job("tagged('outer', tagged, 'inner', tensor, 2 << 21)")
        job("tagged('outer', in_thread, tensor, 3 << 21)")
        job("tagged('kv \"%\\\\', plain, 4 << 21)")
        job("tensor(5 << 21)")
        untagged = SIZE + (3 << 21) + (5 << 21)
        expected = {"no tag": untagged, "outer": 1 << 21, "inner": 2 << 21, 'kv "%\\': 4 << 21}
        equal(by_tag(session), {tag: (size, 0) for tag, size in expected.items()}, "by tag")
        rows = session.ask("mem")["rows"]
        equal({row["tag"] or "no tag": row["bytes"] for row in rows}, expected, "rows of `mem`")
        text = session.lien("mem").out
        check(re.search(r"TAG\n", text) and re.search(r" inner\n", text), text)
        equal(job("sorted((r.key, r.bytes) for r in lien.memory(by='tag'))"), sorted(expected.items()), "in Python")
        equal(job("sorted((r.tag or 'no tag', r.bytes) for r in lien.memory())"), sorted(expected.items()), "rows in Python")
        metrics = read_metrics(session.lien("metrics").out)["lien_memory_bytes"]
        equal([value for (_, labels), value in metrics.samples.items()
               if dict(labels).get("tag") == "inner" and dict(labels)["state"] == "device"], [2 << 21], "metrics")


@case()
def test_every_allocating_call():
    with Session() as session:
        session.start_agent()
        job = start(session, LIEN_PLAIN=1)
        for call in ("create", "plain", "pitched", "managed", "stream_ordered", "pinned", "registered"):
            job("tagged(%r, %s, 1 << 21)" % (call, call))
        found = by_tag(session)
        equal(set(found), {"no tag", "create", "plain", "pitched", "managed", "stream_ordered", "pinned", "registered"},
              "by tag")


@case()
def test_recordings_and_holders():
    with Session() as session:
        session.start_agent()
        job = start(session)
        address = job("tagged('weights', tensor, 1 << 21)")
        live = by_tag(session)
        session.lien("snapshot", session.path("a.lien"))
        equal(by_tag(session, "--from", session.path("a.lien")), live, "snapshot")
        equal(session.ask("holders", job.pid, hex(address))["allocation"]["tag"], "weights", "holders")
        equal(job("lien.holders(lien.SELF, %d).tag" % address), "weights", "in Python")
        shown = session.lien("events", "--from", session.path("a.lien")).out
        check("tag=weights" in shown, shown)
        shown = " ".join(session.lien("holders", job.pid, hex(address)).out.split())
        check(", with the tag weights. It can be" in shown, shown)
        shown = json.loads(session.lien("timeline", session.path("a.lien")).out)["traceEvents"]
        equal([(event["name"], event["args"]) for event in shown if event["ph"] == "C" and "tag" in event["name"]],
              [("memory with tag: weights", {"device": 1 << 21, "imported": 0, "offloaded": 0})], "counters")
        equal(sorted((str(event["args"]["tag"]), event["args"]["bytes"]) for event in shown if event["ph"] == "b"),
              [("None", SIZE), ("weights", 1 << 21)], "slices")
        equal(job("tag_of_event(2 << 21, 'later')"), "later", "the event's tag")
        equal(job("tag_of_event(3 << 21, 'x' * 63)"), "x" * 63, "the longest tag")


@case(long=True)
def test_agents_come_and_go():
    """The next agent has the journal; one that starts in the middle of a block sees the tag of what is made
    from then on."""
    with Session() as session:
        session.start_agent()
        job = start(session)
        job("push('weights')")
        job("tensor(1 << 21)")
        session.stop_agent()
        job("tensor(2 << 21)")
        session.start_agent()
        session.ready(job.pid)
        equal(by_tag(session)["weights"], (3 << 21, 0), "with the journal")
        session.stop_agent()
        session.clean()
        session.start_agent()
        session.ready(job.pid)
        job("tensor(4 << 21)")
        session.ask("attach", job.pid)
        found = by_tag(session)
        equal(found["weights"], (4 << 21, 0), "of what this agent has seen")
        equal(found["tag not known"], (SIZE + (3 << 21), 0), "of what it has not seen")


@case()
def test_limits():
    """The agent keeps 64 of a user's tags, each for as long as memory has it."""
    with Session() as session:
        session.start_agent()
        job = start(session)
        blocks = job("[tagged('tag %d' % i, tensor, 1 << 21) for i in range(66)]")
        found = by_tag(session)
        equal((len(found), found["tag not known"]), (66, (2 << 21, 0)), "66 tags")
        job("free(%d, 1 << 21)" % blocks[0])
        job("tagged('one more', tensor, 1 << 21)")
        check("one more" in by_tag(session), "a tag that nothing has any more makes room")
        for name in ("''", "'x' * 64", "'a\\n'", "'\\u00e9'"):
            check("ValueError" in job.process.ask("tagged(%s, tensor, 1 << 21)" % name), name)
        equal(job("raw_push(b'x' * 64), raw_push(b''), raw_push(b'a\\x7f'), raw_push(b'x' * 63), raw_pop(), raw_pop()"),
              (-22, -22, -22, 0, 0, -2), "in C")
        equal(job("[raw_push(b'x') for _ in range(65)]")[-2:], [0, -7], "nested")


@case()
def test_without_the_library():
    with Session() as session:
        session.start_agent()
        job = start(session, control=False)
        said = job("warnings_of(tagged, 'a', tagged, 'b', tensor, 1 << 21)")
        equal(len(said), 1, "warnings")
        check("lien run" in said[0], said)
        equal(set(by_tag(session)), {"no tag"}, "by tag")
        # Once it is attached, tags have an effect.
        session.ask("attach", job.pid)
        wait_for("a tag", lambda: job("tagged('late', tensor, 1 << 21)") and "late" in by_tag(session))


@case()
def test_programs_in_c():
    with Session() as session:
        session.start_agent()
        program = session.compile("tagged", "tagged.c", "-I", INCLUDE, "-Wl,--no-as-needed", "-L", SOFTCUDA,
                                  "-l:libcuda.so.1")
        alone = session.spawn([program])
        equal(alone.line(20), "push 0 no functions", "without the library")
        alone.end()
        job = session.spawn([LIEN, "run", "--", program])
        equal(job.line(20), "push 0", "with it")
        wait_for("its memory", lambda: by_tag(session) == {"in C": (2 * MIB, 0)})


# By tag

@case()
def test_offload_and_restore_by_tag():
    with Session(LIEN_PLAIN="0") as session:
        session.start_agent()
        job = start(session)
        weights = job("tagged('weights', tensor, 1 << 21)")
        cache = job("tagged('kv_cache', plain, 4 << 21)")
        small = job("tagged('kv_cache', plain, 1000)")
        other = job("plain(1000)")
        for va, size, byte in ((weights, 1 << 21, 1), (cache, 4 << 21, 2), (small, 1000, 3), (other, 1000, 4)):
            job("fill(%d, %d, %d)" % (va, size, byte))
        moved = session.ask("offload", "--tag", "kv_cache")
        equal((moved["outcome"], moved["bytes"]), ("done", 5 << 21), "offload of one tag")
        equal(by_tag(session)["kv_cache"], (0, 5 << 21), "away")
        equal(by_tag(session)["weights"], (1 << 21, 0), "still there")
        equal(by_tag(session)["no tag"], (SIZE + 2 * MIB, 0), "so is small memory without a tag")
        equal(session.ask("offload", "--tag", "kv_cache")["outcome"], "nothing to do", "again")
        equal(session.ask("offload", "--tag", "weights")["bytes"], 1 << 21, "the other one")
        equal(session.ask("restore", "--tag", "weights")["bytes"], 1 << 21, "one of them back")
        equal(by_tag(session)["kv_cache"], (0, 5 << 21), "still away")
        equal(session.ask("restore", "--tag", "weights")["outcome"], "nothing to do", "back already")
        equal(session.ask("restore", "--tag", "kv_cache")["bytes"], 5 << 21, "the other one back")
        for va, size, byte in ((weights, 1 << 21, 1), (cache, 4 << 21, 2), (small, 1000, 3), (other, 1000, 4)):
            check(job("holds(%d, %d, %d)" % (va, size, byte)), "bytes of %d" % byte)
        for command in "offload", "restore":
            session.refused(command, "--tag", "kv_cash", code=2, text="kv_cash; there is memory with the tag")
            session.refused(command, "--tag", "x" * 64, code=2, text="63 printable")
        session.refused("restore", "--tag", "weights", "--comm", "0123456789abcdef", code=2)


@case()
def test_freed_memory_is_given_out_again():
    """Stream-ordered memory is given out again only with the tag that it had."""
    with Session(LIEN_PLAIN="0") as session:
        session.start_agent()
        job = start(session)
        first = job("tagged('a', stream_ordered, 1 << 21)")
        job("call('cuMemFreeAsync', number(%d), None)" % first)
        equal(job("tagged('a', stream_ordered, 1 << 21)"), first, "again")
        job("call('cuMemFreeAsync', number(%d), None)" % first)
        second = job("tagged('b', stream_ordered, 1 << 21)")
        check(second != first, "with another tag")
        equal(by_tag(session)["b"], (POOL, 0), "by tag")


@case()
def test_a_tag_is_dropped():
    with Session() as session:
        session.start_agent()
        job = start(session)
        weights = job("tagged('weights', tensor, 1 << 21)")
        cache = job("tagged('kv_cache', tensor, 4 << 21)")
        for va, size in ((weights, 1 << 21), (cache, 4 << 21)):
            job("fill(%d, %d, 7)" % (va, size))
        moved = job("vars(lien.offload(tags=['weights', 'kv_cache'], drop=['tag:kv_cache']))['raw']")
        equal((moved["bytes"], moved["discarded_bytes"]), (1 << 21, 4 << 21), "moved and dropped")
        equal(job("vars(lien.restore(tags=['kv_cache']))['raw']['discarded_bytes']"), 4 << 21, "back")
        equal(job("lien.restore(tags=['weights']).bytes"), 1 << 21, "the other one")
        check(job("holds(%d, %d, 7)" % (weights, 1 << 21)), "the weights' bytes")
        check(job("holds(%d, %d, 0)" % (cache, 4 << 21)), "zeros")
        moved = session.ask("offload", "--owner", "nccl", "--discard", "tag:kv_cache")
        equal((moved["bytes"], moved["discarded_bytes"]), (0, 4 << 21), "by --discard alone")
        session.ask("restore")
        session.refused("offload", "--discard", "tag:", code=2, text="63 printable")


@case(long=True)
def test_restore_by_tag_by_another_agent():
    """The control library knows the tag of what is away; the next agent may not."""
    with Session() as session:
        session.start_agent()
        job = start(session)
        job("tagged('a', tensor, 1 << 21)")
        job("tagged('b', tensor, 2 << 21)")
        session.ask("offload", "--tag", "a", "--tag", "b")
        session.stop_agent()
        session.clean()
        session.start_agent()
        session.ready(job.pid)
        wait_for("what is away", lambda: session.process(job.pid)["state"] == "partly offloaded" or
                 session.process(job.pid)["offloaded_bytes"])
        equal(session.ask("restore", "--tag", "b")["bytes"], 2 << 21, "b")
        equal(session.ask("restore", "--tag", "a")["bytes"], 1 << 21, "a")


@case()
def test_the_process_goes_on():
    """on_use="ignore": the process uses, makes and frees other memory while some is away, in between at addresses;
    what it does to the memory that is away starts a restore."""
    with Session(LIEN_PLAIN="0") as session:
        session.start_agent()
        job = start(session)
        blocks = [job("tagged(%r, plain, 1 << 21)" % ("kv" if i % 2 else "weights")) for i in range(6)]
        for block in blocks:
            job("fill(%d, 1 << 21, 9)" % block)
        job("lien.offload(tags=['kv'], pids=[lien.SELF], on_use='ignore').bytes")
        equal(by_tag(session)["kv"], (0, 3 << 21), "away")
        session.refused("offload", "--tag", "weights", "--owner", "all", text="other memory away.*ignore")
        check(job("holds(%d, 1 << 21, 9)" % blocks[2], limit=10), "a copy from between")
        job("fill(%d, 1 << 21, 8)" % blocks[2], limit=10)
        job("in_thread(fill, %d, 1 << 21, 8)" % blocks[4], limit=10)
        job("call('cuMemFree_v2', number(%d))" % blocks[4], limit=10)
        job("plain(3 << 21)", limit=10)
        job("call('cuCtxSynchronize')", limit=10)
        equal(by_tag(session)["kv"], (0, 3 << 21), "still away")
        # A second one on top, and back one by one.
        job("lien.offload(tags=['weights'], pids=[lien.SELF], on_use='ignore').bytes")
        job("plain(1 << 21)", limit=10)
        job("lien.restore(tags=['kv']).bytes")
        check(job("holds(%d, 1 << 21, 9)" % blocks[1], limit=10), "bytes that are back")
        equal(by_tag(session)["weights"], (0, 2 << 21), "still away")
        # The next agent has been told nothing, and finds it.
        session.stop_agent()
        job("plain(1 << 21)", limit=10)
        session.start_agent()
        session.ready(job.pid)
        job("plain(1 << 21)", limit=10)
        job("call('cuMemFree_v2', number(%d))" % blocks[0], limit=20)
        equal(by_tag(session)["weights"], (1 << 21, 0), "it was needed")
        check(job("holds(%d, 1 << 21, 8)" % blocks[2], limit=10), "the other one's bytes")


@case(long=True)
def test_threads_go_on_meanwhile():
    """Threads that name other memory by handle while a part comes back wait only for that part."""
    with Session(LIEN_PLAIN="0") as session:
        session.start_agent()
        job = start(session)
        for tag in "ab":
            job("tagged(%r, plain, 1 << 21)" % tag)
        job("lien.offload(tags=['a', 'b'], pids=[lien.SELF], on_use='ignore').bytes")
        job("globals().update(churning=Churning())")
        for _ in range(8):
            check(job("churning.after(3)", limit=20), "the thread makes memory")
            equal(job("lien.restore(tags=['a'], pids=[lien.SELF]).bytes"), 1 << 21, "back")
            check(job("churning.after(3)", limit=20), "the thread makes memory")
            equal(job("lien.offload(tags=['a'], pids=[lien.SELF], on_use='ignore', together=False).bytes"), 1 << 21,
                  "away")
        job("churning.end()", limit=20)
        equal((by_tag(session)["a"], by_tag(session)["b"]), ((0, 1 << 21), (0, 1 << 21)), "still away")


@case()
def test_other_users():
    """Tags of others are neither shown nor moved."""
    with Shared() as session:
        session.start_agent()
        mine, hers = start(session), start(session, uid=ALICE)
        for job, name in ((mine, "root's"), (hers, "alice's")):
            job("tagged(%r, tensor, 1 << 21)" % name)
            job("tagged('same', tensor, 1 << 21)")
        equal(sorted(hers("[(r.key, r.bytes) for r in lien.memory(by='tag')]")),
              [("alice's", 1 << 21), ("no tag", SIZE), ("same", 1 << 21)], "hers")
        equal(by_tag(session)["same"], (2 << 21, 0), "everybody's")
        equal(hers("lien.offload(tags=['same']).bytes"), 1 << 21, "moved")
        found = hers("caught(lien.offload, tags=[\"root's\"])")
        equal(found["code"], "invalid", "a tag of another")
        check("root's;" in found["message"] and "alice's" in found["message"], found["message"])
        hers("lien.restore().outcome")


if __name__ == "__main__":
    sys.exit(main())
