#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What the agent knows of NCCL: real BPF programs, real processes, a stand-in libnccl.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import signal
import sys

from lien_test import MIB, Session, alive, case, check, equal, main, wait_for
from nccl_rank import IN_PROGRESS, SUCCESS, Rank, unique_id

COLLECTIVES = {
    "all_reduce": "ncclAllReduce", "broadcast": "ncclBroadcast", "reduce": "ncclReduce",
    "all_gather": "ncclAllGather", "reduce_scatter": "ncclReduceScatter",
    "all_to_all": "ncclAlltoAll", "gather": "ncclGather", "scatter": "ncclScatter"}
KINDS = {**COLLECTIVES, "send": "ncclSend", "recv": "ncclRecv"}
# ncclDataType_t: int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 e4m3 e5m2
TYPE_BYTES = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1]


def comms_of(session, *pids):
    """Entries by (pid, address), which is how processes name them."""
    return {(entry["pid"], int(entry["address"], 16)): entry
            for entry in session.ask("comms")["communicators"]
            if not pids or entry["pid"] in pids}


def comm_of(session, rank, comm):
    found = comms_of(session).get((rank.pid, comm))
    check(found, "communicator %#x of process %d is not shown" % (comm, rank.pid))
    return found


def group_of(session, name):
    groups = [group for group in session.ask("comms")["groups"] if group["group"] == name]
    equal(len(groups), 1, "groups called %s" % name)
    return groups[0]


def counted(session):
    return session.ask("status")["counted_communicators"]


def members(entry, *names):
    return [entry[name] for name in names]


# How communicators are made

@case()
def test_every_init():
    with Session() as session:
        session.start_agent()
        ranks = [Rank(session, device) for device in (0, 1)]
        ways = [("init-rank", "ncclCommInitRank", []),
                ("init-config", "ncclCommInitRankConfig", [1]),
                ("init-config", "ncclCommInitRankConfig", [0]),
                ("init-scalable", "ncclCommInitRankScalable", [1]),
                ("init-scalable", "ncclCommInitRankScalable", [0])]
        for number, (command, call, blocking) in enumerate(ways):
            result = IN_PROGRESS if blocking == [0] else SUCCESS
            ident = unique_id(0x1000 + number, port=5000 + number)
            made = [rank.made(command, 2, index, ident, *blocking, result=result)
                    for index, rank in enumerate(ranks)]
            for index, (rank, comm) in enumerate(zip(ranks, made)):
                entry = comm_of(session, rank, comm)
                equal(members(entry, "group", "command", "rank", "nranks", "device", "state",
                              "complete"),
                      ["%016x" % (0x1000 + number), "prog_nccl", index, 2, index, "active", True],
                      command)
                equal(members(entry, "calls", "calls_total", "moved_bytes", "last_ms"),
                      [{}, 0, 0, None], "calls of a new one")
            group = group_of(session, "%016x" % (0x1000 + number))
            equal(members(group, "nranks", "here", "made_by", "parent", "behind"),
                  [2, 2, call, None, []], "group of %s" % command)
            equal(group["id"], {"magic": "%#x" % (0x1000 + number),
                                "address": "10.1.2.3:%d" % (5000 + number)}, "id")
        for rank in ranks:
            check(session.process(rank.pid)["complete"], "incomplete")
            rank.end()


@case()
def test_unique_id_is_all_its_bytes():
    with Session() as session:
        session.start_agent()
        ranks = [Rank(session) for _ in range(3)]
        # The same magic, but of another root: another group.
        idents = [unique_id(7, "2001:db8::17", 99, rest=1), unique_id(7, "2001:db8::17", 99, rest=1),
                  unique_id(7, "2001:db8::17", 99, rest=2)]
        made = [rank.made("init-rank", 2, index % 2, ident)
                for index, (rank, ident) in enumerate(zip(ranks, idents))]
        groups = [g for g in session.ask("comms")["groups"] if g["group"] == "%016x" % 7]
        equal(sorted(group["here"] for group in groups), [1, 2], "ranks of the two groups")
        equal({group["id"]["address"] for group in groups}, {"[2001:db8::17]:99"}, "address")
        ranks[2]("destroy", made[2])
        equal(group_of(session, "%016x" % 7)["here"], 2, "ranks once one is gone")


@case()
def test_failed_init_makes_nothing():
    with Session() as session:
        session.start_agent()
        rank = Rank(session)
        equal(rank.refused("init-rank", 2, 5, unique_id(1)), 4, "result")
        equal(session.ask("comms"), {"groups": [], "communicators": [], "late": [],
                                     "pending": False}, "comms")
        check("no process has a communicator" in session.lien("comms").out, "words")


@case()
def test_init_all():
    with Session(devices=2) as session:
        session.start_agent()
        rank = Rank(session)
        _, first, second = rank("init-all", 2, 1, 0)
        for index, (comm, device) in enumerate(((first, 1), (second, 0))):
            entry = comm_of(session, rank, comm)
            equal(members(entry, "rank", "nranks", "device"), [index, 2, device], "entry")
        group = group_of(session, entry["group"])
        equal(members(group, "made_by", "here", "nranks", "id", "parent"),
              ["ncclCommInitAll", 2, 2, None, None], "group")
        _, third, fourth = rank("init-all", 2)
        entries = comms_of(session)
        equal([entries[rank.pid, comm]["device"] for comm in (third, fourth)], [0, 1], "devices")
        check(entries[rank.pid, third]["group"] != entry["group"], "one group for two calls")
        rank.call("all_reduce", first)
        rank.call("all_reduce", first)
        rank.call("all_reduce", second)
        behind = group_of(session, entry["group"])["behind"]
        equal([members(one, "rank", "call", "calls") for one in behind],
              [[1, "ncclAllReduce", 1]], "behind")


@case()
def test_thread_per_gpu():
    with Session(devices=2) as session:
        session.start_agent()
        rank = Rank(session)
        session.followed(rank.pid)
        comms = []
        for device in (0, 1):
            rank("@gpu%d init" % device, device)
            comms.append(rank.made("@gpu%d init-rank" % device, 2, device, unique_id(5)))
        for device, comm in enumerate(comms):
            rank.call("all_reduce", comm, times=10 + device, thread="@gpu%d " % device)
        for device, comm in enumerate(comms):
            entry = comm_of(session, rank, comm)
            equal(members(entry, "rank", "device", "calls_total"), [device, device, 10 + device],
                  "entry")
        equal(members(group_of(session, "%016x" % 5), "here", "nranks"), [2, 2], "group")


@case()
def test_split():
    with Session(devices=4) as session:
        session.start_agent()
        ranks = [Rank(session, device) for device in range(4)]
        parents = [rank.made("init-rank", 4, index, unique_id(0xabc))
                   for index, rank in enumerate(ranks)]
        # By color, then key, then rank; the last one takes no part.
        orders = [(1, 5), (0, 9), (1, 2), (-1, 0)]
        made = []
        for index, (color, key) in enumerate(orders):
            made.append(ranks[index].made("split", parents[index], color, key, 1))
            if index < 3:
                equal(comm_of(session, ranks[index], made[index])["rank"], None,
                      "rank before all have called")
        equal(made[3], 0, "what NCCL_SPLIT_NOCOLOR gives")
        entries = [comm_of(session, ranks[index], made[index]) for index in range(3)]
        equal([members(entry, "rank", "nranks") for entry in entries],
              [[1, 2], [0, 1], [0, 2]], "ranks of the split")
        equal(entries[0]["group"], entries[2]["group"], "group of color 1")
        check(entries[1]["group"] != entries[0]["group"], "one group for two colors")
        group = group_of(session, entries[0]["group"])
        equal(members(group, "made_by", "here", "nranks", "id", "parent"),
              ["ncclCommSplit", 2, 2, None, "%016x" % 0xabc], "group")
        out = " ".join(session.lien("comms", "--group", entries[0]["group"]).out.split())
        check("from group %016x" % 0xabc in out, out)
        ranks[0]("destroy", parents[0])
        ranks[2]("destroy", parents[2])
        equal(group_of(session, entries[0]["group"])["parent"], None, "parent that is gone")


def split_later(session, finish, blocking, result):
    """Splits whose address is known only after the call: NCCL sets it when it is done."""
    session.start_agent()
    ranks = [Rank(session, device) for device in range(2)]
    parents = [rank.made("init-rank", 2, index, unique_id(0xdef))
               for index, rank in enumerate(ranks)]
    made = []
    for rank, parent in zip(ranks, parents):
        if blocking:
            rank("group-start")
        found, comm = rank("split", parent, 0, -rank.pid, blocking)
        equal([found, comm], [result, 0], "split that is not done")
        made.append(finish(rank, parent))
        check(made[-1], "no communicator")
    for rank, comm in zip(ranks, made):
        rank.call("all_reduce", comm)
    entries = [comm_of(session, rank, comm) for rank, comm in zip(ranks, made)]
    expected = [0, 1] if ranks[0].pid > ranks[1].pid else [1, 0]
    equal([members(entry, "rank", "nranks", "complete", "calls_total") for entry in entries],
          [[expected[0], 2, True, 1], [expected[1], 2, True, 1]], "entries")
    equal(entries[0]["group"], entries[1]["group"], "group")
    equal(group_of(session, entries[0]["group"])["parent"], "%016x" % 0xdef, "parent")
    for rank in ranks:
        rank.end()


@case()
def test_split_in_a_group():
    with Session() as session:
        split_later(session, lambda rank, _: rank.made("group-end"), 1, SUCCESS)


@case()
def test_split_in_progress():
    with Session() as session:
        split_later(session, lambda rank, parent: rank.made("poll", parent), 0, IN_PROGRESS)


@case()
def test_split_known_by_its_first_use():
    """Whoever waited for it, and in whatever way: no call says that it is done."""
    with Session() as session:
        session.start_agent()
        rank = Rank(session)
        parent = rank.made("init-rank", 1, 0, unique_id(0x99))
        for use in ("register", "destroy"):
            equal(rank("split", parent, 0, 0, 0), [IN_PROGRESS, 0], "split that is not done")
            made = rank.made("poll", parent)
            equal(list(comms_of(session)), [(rank.pid, parent)], "before it is used")
            if use == "register":
                _, buffer = rank("buffer", MIB)
                rank("register", made, buffer, MIB)
                entry = comm_of(session, rank, made)
                equal(members(entry, "rank", "nranks"), [0, 1], "rank")
                equal(entry["registrations"]["count"], 1, "registrations")
            rank("destroy", made)
            equal(list(comms_of(session)), [(rank.pid, parent)], "after its end")
        equal(session.ask("status")["events_lost"], 0, "events lost")


@case()
def test_split_that_fails():
    """Where it would have put what it made, something else lies later."""
    with Session() as session:
        session.start_agent()
        rank = Rank(session)
        parent = rank.made("init-rank", 1, 0, unique_id(0x77))
        for blocking in (1, 0):
            rank("allocate", 1 << 40)  # more than there is
            if blocking:
                rank("group-start")
                equal(rank("split", parent, 0, 0, 1), [SUCCESS, 0], "split in a group")
                equal(rank.refused("group-end"), 2, "result")
            else:
                equal(rank("split", parent, 0, 0, 0), [IN_PROGRESS, 0], "split that is not done")
                equal(rank.refused("poll", parent), 2, "result")
            rank("allocate", 0)
            other = rank.made("init-rank", 1, 0, unique_id(0x88 + blocking))
            rank("poll", parent)
            rank("group-start")
            rank("group-end")
            equal(comm_of(session, rank, other)["group"], "%016x" % (0x88 + blocking), "group")
            rank("destroy", other)
        equal(list(comms_of(session)), [(rank.pid, parent)], "communicators")


@case()
def test_shrink():
    with Session(devices=4) as session:
        session.start_agent()
        ranks = [Rank(session, device) for device in range(4)]
        parents = [rank.made("init-rank", 4, index, unique_id(0xfeed))
                   for index, rank in enumerate(ranks)]
        made = {index: ranks[index].made("shrink", parents[index], 1, 2, 0) for index in (1, 3)}
        entries = [comm_of(session, ranks[index], made[index]) for index in (1, 3)]
        equal([members(entry, "rank", "nranks") for entry in entries], [[0, 2], [1, 2]], "ranks")
        equal(entries[0]["group"], entries[1]["group"], "group")
        equal(members(group_of(session, entries[0]["group"]), "made_by", "parent", "here"),
              ["ncclCommShrink", "%016x" % 0xfeed, 2], "group")


@case()
def test_finalize():
    with Session() as session:
        session.start_agent()
        rank = Rank(session)
        comm = rank.made("init-rank", 1, 0, unique_id(3))
        rank("finalize", comm)
        equal(comm_of(session, rank, comm)["state"], "finalized", "state")
        check("has finalized" in session.lien("comms").out, "words")
        rank("destroy", comm)
        equal(comms_of(session), {}, "communicators")


# Registrations

@case()
def test_a_window_moves():
    """The handle that NCCL keeps is translated."""
    with Session() as session:
        session.start_agent()
        rank = Rank(session, allocate=4 * MIB, control=True)
        comm = rank.made("init-rank", 1, 0, unique_id(5))
        mapping, = [m for a in session.ask("graph")["allocations"] for m in a["mappings"]
                    if m["pid"] == rank.pid]
        _, window = rank("window", comm, int(mapping["address"], 0), MIB)
        session.ready(rank.pid)
        for _ in range(2):
            result = session.ask("offload", "--strict")
            equal((result["bytes"], result["left"]), (4 * MIB, []), "moved")
            equal(session.ask("restore")["bytes"], 4 * MIB, "restored")
        rank("window-end", comm, window)


@case()
def test_registrations():
    with Session() as session:
        session.start_agent()
        rank = Rank(session)
        comm = rank.made("init-rank", 1, 0, unique_id(4))
        _, buffer = rank("buffer", 4 * MIB)

        def registered():
            return members(comm_of(session, rank, comm)["registrations"],
                           "count", "windows", "bytes")
        _, first = rank("register", comm, buffer, MIB)
        _, again = rank("register", comm, buffer, MIB)
        equal(first, again, "handle of a buffer that is registered twice")
        _, other = rank("register", comm, buffer + MIB, MIB)
        _, window = rank("window", comm, buffer, 4 * MIB)
        equal(registered(), [4, 1, 7 * MIB], "registrations")
        kinds = [holder["kind"] for holder in
                 session.ask("holders", rank.pid, "%#x" % buffer)["holders"]]
        equal(kinds.count("registration"), 4, "registrations among the holders")
        rank("deregister", comm, first)
        equal(registered(), [3, 1, 6 * MIB], "after the first of two")
        rank("deregister", comm, first)
        rank("window-end", comm, window)
        equal(registered(), [1, 0, MIB], "at the end")
        rank("destroy", comm)
        later = rank.made("init-rank", 1, 0, unique_id(4))
        rank("deregister", comm, other)  # late: the communicator is gone
        equal(comm_of(session, rank, later)["registrations"]["count"], 0, "of another one")
        equal(session.ask("status")["events_lost"], 0, "events lost")


# Counting

def check_counts(session):
    rank = Rank(session)
    comm = rank.made("init-rank", 2, 0, unique_id(6))
    other = rank.made("init-rank", 2, 0, unique_id(8))
    calls, moved = {}, 0
    for number, kind in enumerate(KINDS):
        rank.call(kind, comm, count=3 + number, datatype=7, times=number + 1)
        calls[KINDS[kind]] = number + 1
        moved += 4 * (3 + number) * (number + 1)
    entry = comm_of(session, rank, comm)
    equal(entry["calls"], calls, "calls")
    equal(members(entry, "calls_total", "moved_bytes"), [sum(calls.values()), moved], "sums")
    check(0 <= entry["last_ms"] < 60000, "last call %s ms ago" % entry["last_ms"])
    equal(comm_of(session, rank, other)["calls_total"], 0, "calls of another one")
    rank.call("bcast", comm, count=1, datatype=0)  # an old name of ncclBroadcast
    equal(comm_of(session, rank, comm)["calls"]["ncclBroadcast"], calls["ncclBroadcast"] + 1,
          "ncclBcast")
    group = group_of(session, "%016x" % 6)
    equal(members(group, "sends", "receives"), [calls["ncclSend"], calls["ncclRecv"]],
          "transfers")
    equal(counted(session), 1, "communicators that are counted")
    equal(session.ask("status")["uncounted"], 0, "calls that are not counted")


@case()
def test_counts_are_exact():
    with Session() as session:
        session.start_agent()
        check_counts(session)


@case()
def test_bytes_of_every_type():
    with Session() as session:
        session.start_agent()
        rank = Rank(session)
        comm = rank.made("init-rank", 1, 0, unique_id(9))
        moved = 0
        for kind in KINDS:
            for datatype, size in enumerate(TYPE_BYTES):
                rank.call(kind, comm, count=1000 + datatype, datatype=datatype)
                moved += (1000 + datatype) * size
                found = comm_of(session, rank, comm)["moved_bytes"] if kind == "reduce" else moved
                equal(found, moved, "bytes after %s of type %d" % (kind, datatype))
        equal(comm_of(session, rank, comm)["moved_bytes"], moved, "bytes")
        rank.call("all_reduce", comm, count=5, datatype=12)  # no type that is known
        entry = comm_of(session, rank, comm)
        equal(members(entry, "calls_total", "moved_bytes"), [len(KINDS) * 12 + 1, moved],
              "after a type that is not known")


@case(long=True)
def test_hammer():
    with Session() as session:
        session.start_agent()
        rank = Rank(session)
        comm = rank.made("init-rank", 1, 0, unique_id(10))
        rank("hammer", comm, 4, 50000, limit=50)
        entry = comm_of(session, rank, comm)
        equal(entry["calls"], {"ncclAllReduce": 100000, "ncclReduce": 100000}, "calls")
        equal(entry["moved_bytes"], 800000, "bytes")


@case()
def test_groups_of_calls():
    with Session() as session:
        session.start_agent()
        ranks = [Rank(session, device) for device in (0, 1)]
        comms = [rank.made("init-rank", 2, index, unique_id(11))
                 for index, rank in enumerate(ranks)]
        ranks[0]("group-start")
        for _ in range(3):
            ranks[0].call("send", comms[0], 100, 7)
            ranks[0].call("recv", comms[0], 100, 7)
        ranks[0]("group-end")
        equal(comm_of(session, ranks[0], comms[0])["calls"], {"ncclSend": 3, "ncclRecv": 3}, "calls")
        group = group_of(session, "%016x" % 11)
        equal(members(group, "sends", "receives", "behind"), [3, 3, []],
              "transfers put no rank behind")
        ranks[1].call("recv", comms[1], 1, 7)
        check("1 receive is without a send so far" in session.lien("comms").out,
              session.lien("comms"))


@case()
def test_a_rank_is_behind():
    with Session(devices=4) as session:
        session.start_agent()
        ranks = [Rank(session, device) for device in range(3)]
        comms = [rank.made("init-rank", 4, index, unique_id(12))
                 for index, rank in enumerate(ranks)]
        for index, rank in enumerate(ranks):
            rank.call("all_reduce", comms[index], times=20 - 3 * index)
            rank.call("broadcast", comms[index], times=7 - (index == 2))
        group = group_of(session, "%016x" % 12)
        equal(members(group, "here", "nranks"), [3, 4], "ranks here")
        equal(sorted(members(one, "rank", "pid", "call", "calls") for one in group["behind"]),
              [[1, ranks[1].pid, "ncclAllReduce", 3], [2, ranks[2].pid, "ncclAllReduce", 6],
               [2, ranks[2].pid, "ncclBroadcast", 1]], "behind")
        out = session.lien("comms").out
        for line in ("3 of 4 ranks on this node",
                     "rank 1 (process %d) is behind by 3 all-reduces\n" % ranks[1].pid,
                     "rank 2 (process %d) is behind by 6 all-reduces, 1 broadcast\n" % ranks[2].pid):
            check(line in out, "no '%s' in %s" % (line, out))
        check("rank 0 (" not in out, out)
        check(all(len(line) <= 100 for line in out.splitlines()), out)
        out = session.lien("comms", "--pid", ranks[1].pid).out
        check("behind by 3" in out and "behind by 6" not in out, out)
        equal([entry["pid"] for entry in
               session.ask("comms", "--pid", ranks[2].pid)["communicators"]], [ranks[2].pid], "--pid")
        equal(len(session.ask("comms", "--group", ("%016x" % 12)[:15])["groups"]), 1, "--group")
        session.refused("comms", "--group", "ffff", code=2, text="no communicator has the group ffff")
        ranks[1].call("all_reduce", comms[1], times=3)
        group = group_of(session, "%016x" % 12)
        equal({one["rank"] for one in group["behind"]}, {2}, "behind, once one has caught up")


# What is counted goes with what it belongs to

@case()
def test_counts_start_anew():
    with Session() as session:
        session.start_agent()
        rank = Rank(session)
        for end in ("destroy", "abort"):
            comm = rank.made("init-rank", 1, 0, unique_id(13))
            rank.call("all_reduce", comm, times=5)
            equal(counted(session), 1, "counted")
            rank(end, comm)
            equal(counted(session), 0, "counted after %s" % end)
            again = rank.made("init-rank", 1, 0, unique_id(14))
            equal(again, comm, "address, which is to be used again")
            equal(comm_of(session, rank, again)["calls_total"], 0, "calls of the new one")
            rank.call("all_reduce", again, times=2)
            equal(comm_of(session, rank, again)["calls"], {"ncclAllReduce": 2}, "calls")
            rank(end, again)


@case()
def test_nothing_is_left_of_processes():
    with Session() as session:
        session.start_agent()
        stays = Rank(session)
        stays.call("all_reduce", stays.made("init-rank", 1, 0, unique_id(15)))
        for end in ("kill", "exec", "quit"):
            rank = Rank(session)
            comms = [rank.made("init-rank", 1, 0, unique_id(100 + n)) for n in range(20)]
            for comm in comms:
                rank.call("reduce", comm)
            equal(counted(session), 21, "communicators that are counted")
            if end == "kill":
                rank.process.signal(signal.SIGKILL)
                rank.process.wait()
            elif end == "exec":
                rank("exec")
            else:
                rank.process.close_input()
                equal(rank.process.wait(), 0, "exit status")
            wait_for("forgotten", lambda pid=rank.pid: not comms_of(session, pid))
            equal(counted(session), 1, "communicators that are counted after %s" % end)
            equal(alive(rank.pid), end == "exec", "alive")
            rank.end()


@case()
def test_joined_late():
    with Session() as session:
        rank = Rank(session)
        comm = rank.made("init-rank", 1, 0, unique_id(17))
        rank.call("all_reduce", comm, times=4)
        session.start_agent()
        rank.call("all_reduce", comm, times=3)
        entry = comm_of(session, rank, comm)
        equal(members(entry, "complete", "rank", "nranks", "calls_total"), [False, None, None, 3],
              "entry")
        out = session.lien("comms").out
        check("made before lien watched" in out and "earlier calls are not counted" in out, out)


# Whose memory is whose

def memory(entry):
    return members(entry, "bytes", "inferred_bytes")


@case()
def test_memory():
    size = 2 * MIB
    with Session() as session:
        session.start_agent()
        rank = Rank(session, allocate=size)
        first = rank.made("init-rank", 1, 0, unique_id(18))
        equal(memory(comm_of(session, rank, first)), [size, 0], "after the call that makes it")
        # The calls inside did not take the id away that the outer one was given.
        equal(comm_of(session, rank, first)["group"], "%016x" % 18, "group")
        check(session.process(rank.pid)["complete"], "incomplete")
        second = rank.made("init-rank", 1, 0, unique_id(19))
        rank.call("all_reduce", first)
        # One made by the thread that called last, one by the proxy: neither is inside a call that
        # is seen to its end.
        equal(memory(comm_of(session, rank, first)), [size, 2 * size], "after the first collective")
        equal(memory(comm_of(session, rank, second)), [size, 0], "of the other one")
        rank.call("all_reduce", first)
        equal(memory(comm_of(session, rank, first)), [size, 2 * size], "after the second one")
        out = session.lien("comms").out
        check("4.0 MiB" in out and "inferred: memory" in out, out)
        rank("destroy", first)
        entries = comms_of(session)
        equal([memory(entry) for entry in entries.values()], [[size, 0]], "once one is gone")
        rank("destroy", second)
        equal(session.process(rank.pid)["nccl_bytes"], 0, "memory of NCCL")


@case()
def test_memory_made_elsewhere():
    size = 2 * MIB
    with Session() as session:
        session.start_agent()
        rank = Rank(session, allocate=size)
        comm = rank.made("init-config", 1, 0, unique_id(20), 0, result=IN_PROGRESS)
        equal(memory(comm_of(session, rank, comm)), [0, 0], "before it is done")
        rank("poll", comm)
        equal(memory(comm_of(session, rank, comm)), [0, size], "made by a thread of NCCL's")
        rank("group-start")
        grouped = rank.made("init-rank", 1, 0, unique_id(21))
        rank("group-end")
        equal(memory(comm_of(session, rank, grouped)), [0, size], "made in a group")
        # What a group ends with is for the one that the thread named last.
        rank("group-start")
        rank.call("all_reduce", comm)
        rank("group-end")
        equal(memory(comm_of(session, rank, comm)), [0, 3 * size], "a collective in a group")
        equal(memory(comm_of(session, rank, grouped)), [0, size], "of the other one")


@case()
def test_mem_alloc_belongs_to_none():
    size = 2 * MIB
    with Session() as session:
        session.start_agent()
        rank = Rank(session)
        comm = rank.made("init-rank", 1, 0, unique_id(22))
        rank.call("all_reduce", comm)
        _, address = rank("mem-alloc", size)
        equal(memory(comm_of(session, rank, comm)), [0, 0], "memory of the communicator")
        allocation = session.ask("holders", rank.pid, "%#x" % address)["allocation"]
        equal(members(allocation, "owner", "bytes"), ["nccl", size], "allocation")
        equal(session.process(rank.pid)["nccl_bytes"], size, "memory of NCCL")
        rank("mem-free", address)
        equal(session.process(rank.pid)["nccl_bytes"], 0, "memory of NCCL")


if __name__ == "__main__":
    sys.exit(main())
