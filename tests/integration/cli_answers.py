# SPDX-License-Identifier: BSD-2-Clause
"""What the fake agent of test_cli*.py answers: the replies of docs/protocol.md, made up."""

import struct

MIB = 1 << 20


def process(pid, rank, nranks, **changes):
    return {
        "pid": pid, "command": "python3", "uid": 0, "state": "running", "complete": True,
        "control": "ready", "movable": True, "reason": None, "devices": [rank],
        "ranks": [{"group": "5ac1d2e0b7f0a13%d" % i, "rank": rank, "nranks": nranks}
                  for i in range(4)],
        "bytes": 2730491904, "nccl_bytes": 2730491904, "nccl_inferred_bytes": 0,
        "imported_bytes": 1409286144, "offloaded_bytes": 0, "arena_bytes": 0,
        "arena_used_bytes": 0, "used_in": None, **changes}


PS = {"processes": [
    process(812, 0, 2),
    process(813, 1, 2, complete=False, movable=False, reason="events of the process were lost", state="partly offloaded", offloaded_bytes=1 << 40,
            command="a-rather-long-program-name-\x1b[31m\n", devices=list(range(8))),
    process(4194304, 0, 1, control="none", ranks=[], devices=[], bytes=0, nccl_bytes=4096),
], "dead": [{"pid": 811, "owner": "nccl", "allocations": 3, "bytes": 6291456}], "gpus": [
    {"uuid": "GPU-5f0a21c4-0001-0203-0405-060708090a0%d" % i, "index": i, "total_bytes": 150 << 30,
     "used_bytes": 3 << 30, "free_bytes": 146 << 30, "processes": [
         {"pid": 812, "ordinal": i, "by": "driver"}, {"pid": 813, "ordinal": 7 - i, "by": "driver"}]}
    for i in range(8)], "nvml": {"age_ms": 1.5}}

MEM = {
    "rows": [
        {"pid": 812, "owner": "nccl", "owner_inferred": False, "tag": None, "kind": "exported",
         "allocations": 336, "mappings": 336, "bytes": 1409286144,
         "offload_frees": 1409286144, "offloaded_bytes": 0},
        {"pid": 812, "owner": "nccl", "owner_inferred": False, "tag": None, "kind": "imported",
         "allocations": 336, "mappings": 336, "bytes": 1409286144, "offload_frees": 0, "offloaded_bytes": 0},
        {"pid": 812, "owner": "a_library_with_a_name_that_goes_on_" * 3,
         "owner_inferred": False, "tag": None, "kind": "local", "allocations": 98, "mappings": 98,
         "bytes": 205520896, "offload_frees": 205520896, "offloaded_bytes": 0},
        {"pid": 813, "owner": "cudart", "owner_inferred": False, "tag": None, "kind": "local",
         "allocations": 3, "mappings": 3, "bytes": 6291456, "offload_frees": 0, "offloaded_bytes": 2097152},
        {"pid": 813, "owner": "nccl", "owner_inferred": False, "tag": None, "kind": "pinned host",
         "allocations": 9, "mappings": 9, "bytes": 8 << 30, "offload_frees": 0, "offloaded_bytes": 0},
        {"pid": 812, "owner": "nccl", "owner_inferred": False, "tag": None, "kind": "imported host",
         "allocations": 1, "mappings": 1, "bytes": 1 << 30, "offload_frees": 0, "offloaded_bytes": 0},
    ],
    "bytes": 1621098496, "offload_frees": 1614807040, "host_bytes": 8 << 30,
    "arena_bytes": 3 << 30, "unread": [], "pending": False, "left": [{"pid": pid, "reason": "cudaMalloc memory cannot be put back at the same address, and "
              "the program may hold pointers into it", "allocations": 3, "bytes": 6291456,
              "address": "0x7f00%04x0000" % pid, "holder": None, "other_user": False}
             for pid in range(813, 833)] +
            [{"pid": 812, "reason": "registered with the network card", "allocations": 1,
              "bytes": 4194304, "address": None, "holder": 813, "other_user": False}]}


def communicator(pid, rank, **changes):
    return {
        "group": "5ac1d2e0b7f0a133", "pid": pid, "command": "python3",
        "address": "0x5580%04x" % pid, "rank": rank, "nranks": 4, "device": rank, "state": "active", "complete": True,
        "bytes": 2730491904, "inferred_bytes": 1 << 40, "host_bytes": 4096,
        "inferred_host_bytes": 0, "offloaded_bytes": 0,
        "registrations": {"count": 1260, "windows": 2, "bytes": 7 << 30},
        "calls": {"ncclAllReduce": 1 << 40, "ncclSend": 3}, "calls_total": (1 << 40) + 3,
        "moved_bytes": 1 << 50, "last_ms": 8640000.5, **changes}


COMMS = {
    "groups": [
        {"group": "0000000000000000", "nranks": None, "here": 1, "made_by": None, "id": None,
         "parent": None, "behind": [], "sends": 0, "receives": 0},
        {"group": "5ac1d2e0b7f0a133", "nranks": 4, "here": 2, "made_by": "ncclCommInitRankScalable",
         "id": {"magic": "0x5ac1d2e0b7f0a133", "address": "[2001:db8:1111:2222:3333::17]:65535"},
         "parent": None, "sends": 3, "receives": 0,
         "behind": [{"pid": 4194304, "address": "0x5580400000", "rank": 1, "call": call, "calls": n}
                    for call, n in (("ncclAllReduce", 1), ("ncclBroadcast", 2), ("ncclReduce", 3),
                                    ("ncclAllGather", 4), ("ncclReduceScatter", 5),
                                    ("ncclAlltoAll", 1), ("ncclGather", 7), ("ncclScatter", 8))]},
        {"group": "77aa00000000bb01", "nranks": 1, "here": 1, "made_by": "ncclCommSplit",
         "id": None, "parent": "5ac1d2e0b7f0a133", "behind": [], "sends": 2, "receives": 1}],
    "communicators": [
        communicator(812, None, group="0000000000000000", complete=False, device=None, nranks=None,
                     last_ms=None),
        communicator(812, 0), communicator(4194304, 1, state="finalized"),
        communicator(812, 0, group="77aa00000000bb01", nranks=1, inferred_bytes=0)],
    "late": [
        {"pid": pid, "command": "python3", "ras": "silent" if problem else "answered",
         "problem": problem, "version": None, "age_ms": 812.5, "job": 3, "named": 2, "matched": 1,
         "unmatched": [{"group": "27a079b828ff1a75", "hash": "0x27a079b828ff1a75", "rank": rank,
                        "nranks": 2, "device": None}] if rank is not None else [],
         "others": others}
        for pid, rank, others, problem in (
            (812, 0, False, None), (813, 1, True, None), (814, None, True, " ".join(["nobody listens"] * 6)),
            (4194304, None, True, " ".join(["nobody listens"] * 6)))],
    "pending": False}


def mem_by(by, *keys, **more):
    """Each row half as large as the one before."""
    return {"by": by, "bytes": 2 << 30, "offload_frees": 1 << 30, "host_bytes": 0, "pending": False,
            "rows": [{"key": key, "kind": "device", "allocations": i + 1, "mappings": 336,
                      "bytes": (1 << 30) >> i, "offload_frees": 4096, "offloaded_bytes": i << 20,
                      **more} for i, key in enumerate(keys)]}


EXPLAINED = {**MEM, "nvml": {"age_ms": 3.0}, "gpus": [
    {"uuid": "GPU-5f0a21c4-0001-0203-0405-060708090a0b", "index": 3, "total_bytes": 150 << 30,
     "used_bytes": 3 << 30, "processes": [
         {"pid": 812, "ordinal": 0, "by": "driver", "traced_bytes": 1 << 30,
          "total_bytes": 3 << 29, "unexplained_bytes": 1 << 29},
         {"pid": 813, "ordinal": 1, "by": "driver", "traced_bytes": 0, "total_bytes": None,
          "unexplained_bytes": None},
         {"pid": 77, "ordinal": None, "by": None, "traced_bytes": 0, "total_bytes": 5 << 20,
          "unexplained_bytes": 5 << 20}]},
    {"uuid": None, "index": None, "total_bytes": None, "used_bytes": None, "processes": [
        {"pid": 814, "ordinal": None, "traced_bytes": 2 << 20, "total_bytes": 1 << 20,
         "unexplained_bytes": -(1 << 20)}]}]}

HOLDERS = {
    "allocation": {"id": 193, "pid": 812, "device": 0, "bytes": 10485760, "owner": "nccl",
                   "owner_inferred": False, "tag": None, "arena": False, "origin": "cuMemCreate", "state": "on the device",
                   "alive": True, "communicator": None, "movable": True, "reason": None},
    "holders": [
        {"pid": 812, "kind": "handle", "handle": "0x55d0c8a3e0b0", "references": 1},
        {"pid": 812, "kind": "mapping", "address": "0x7f2a4c000000", "bytes": 10485760,
         "access": [{"device": d, "access": "read-write"} for d in range(8)]},
        {"pid": 812, "kind": "export", "exports": 1},
        {"pid": 813, "kind": "import", "handle": "0x55be11d0aa10", "references": 2},
        {"pid": 813, "kind": "mapping", "address": "0x7fb3d0000000", "bytes": 10485760,
         "access": []},
        {"pid": 812, "kind": "registration", "group": "5ac1d2e0b7f0a133", "rank": 0,
         "address": "0x7f2a4c000000", "bytes": 10485760, "window": False}]}

OFFLOAD = {
    "outcome": "done", "bytes": 5460983808, "ms": 108.4,
    "processes": [
        {"pid": pid, "allocations": 630, "imports": 336, "mappings": 966, "bytes": 2730491904,
         "freed_bytes": 2730491904,
         "ms": {"drain": 0.1, "check": 3.2, "save": 51.0, "unmap": 19.2, "drop": 31.0}}
        for pid in (812, 813)],
    "left": MEM["left"]}

RESTORE = {
    "outcome": "done", "bytes": 5460983808, "ms": 162.0,
    "processes": [
        {"pid": pid, "allocations": 630, "imports": 336, "mappings": 966, "bytes": 2730491904,
         "freed_bytes": None,
         "ms": {"create": 42.0, "export": 20.1, "import": 38.5, "finish": 12345.6}}
        for pid in (812, 813)],
    "left": []}

STATUS = {
    "version": "0.1", "pid": 800, "uptime_ms": 123456, "rss_bytes": 9437184, "events": 103422,
    "events_lost": 17, "processes": 2, "allocations": 1260, "mappings": 1932,
    "incomplete": list(range(1000, 1040)), "unmatched_imports": 1,
    "uncounted": 3, "counted_communicators": 8,
    "libraries": [
        {"path": "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "library": "cuda", "calls": 19,
         "missing": []},
        {"path": "/opt/" + "a-long-directory/" * 9 + "libnccl.so.2", "library": "nccl", "calls": 7,
         "missing": ["ncclCommWindowRegister", "ncclCommWindowDeregister"]}],
    "attach": "uprobe-multi", "transaction": {"kind": "offload", "phase": "save", "ms": 12.0},
    "journal": {"path": "/run/lien/agent.sock.journal", "bytes": 18 << 20,
                "pinned": "/sys/fs/bpf/lien/x", "taken_over": 99120, "problem": None},
    "host": {"held_bytes": 512 * MIB, "used_bytes": 48 * MIB, "limit_bytes": 1 << 30,
             "prepare": True}, "other_agents": []}

ARENA = {
    "host": STATUS["host"], "released_bytes": 64 * MIB,
    "processes": [
        {"pid": pid, "command": "python3", "held_bytes": 256 * MIB, "used_bytes": 24 * MIB,
         "released_bytes": 32 * MIB} for pid in (812, 813)]}


def make_graph(ranks, local, shared, communicators):
    """A job: every rank owns `local` private pieces and `shared` ones for each other rank."""
    pids = [812 + r for r in range(ranks)]
    allocations = []
    address = 0x7f0000000000
    for rank, pid in enumerate(pids):
        others = [p for p in pids if p != pid]
        kinds = [("nccl", 2 * MIB, [], local), ("torch", 20 * MIB, [], 12)]
        kinds += [("nccl", 10 * MIB, [peer], shared) for peer in others]
        for owner, size, peers, count in kinds:
            for _ in range(count):
                holders = [pid] + peers
                allocations.append({
                    "id": len(allocations) + 1, "pid": pid, "device": rank, "bytes": size,
                    "owner": owner, "owner_inferred": False, "tag": None, "arena": False, "origin": "cuMemCreate",
                    "state": "on the device",
                    "exports": len(peers), "alive": True, "communicator": None,
                    "handles": [{"pid": p, "handle": hex(address + p), "references": 1,
                                 "imported": p != pid} for p in holders],
                    "mappings": [{"pid": p, "address": hex(address), "bytes": size,
                                  "access": [{"device": rank, "access": "read-write"}]}
                                 for p in holders]})
                address += 32 * MIB
    first = {a["pid"]: a for a in reversed(allocations) if a["owner"] == "torch"}
    return {
        "processes": [process(pid, rank, ranks) for rank, pid in enumerate(pids)],
        "allocations": allocations,
        "communicators": [
            {"group": "5ac1d2e0b7f0a1%02x" % c, "pid": pid, "address": hex(address + c),
             "rank": rank, "nranks": ranks,
             "registrations": [{"address": first[pid]["mappings"][0]["address"],
                                "bytes": first[pid]["bytes"], "window": c > 0}] if c < 2 else []}
            for c in range(communicators) for rank, pid in enumerate(pids)]}


GRAPH = make_graph(2, 294, 336, 4)

ATTACH = {"processes": [
    {"pid": 812, "command": "python3", "error": None, "present": False, "pause_ms": 0.8, "ms": 8.1,
     "read": True, "mappings": 966, "new": 961, "read_ms": 31.0, "complete": True},
    {"pid": 813, "command": "python3", "error": None, "present": True, "pause_ms": 0.0, "ms": 0.0,
     "read": False, "mappings": 0, "new": 0, "read_ms": 0.0, "complete": True},
    {"pid": 814, "command": "sleep", "error": "process 814 is stopped: let it go on first",
     "present": False, "pause_ms": 0.0, "ms": 0.0, "read": False, "mappings": 0, "new": 0,
     "read_ms": 0.0, "complete": False}], "attached": 2, "refused": 1,
    "adoption": {"error": None, "ms": 280.0, "pause_ms": 251.9, "match_ms": 51.4, "processes": 2,
                 "counted": 2576, "marked": 1680, "matched": 895, "unmatched": 1, "open": 0,
                 "disputed": 0, "outsider": None}}
DETACH = {"processes": [
    {"pid": 812, "command": "python3", "error": None, "ms": 54.1},
    {"pid": 813, "command": "python3", "error": None, "ms": 31.0},
    {"pid": 814, "command": "sleep", "error": "memory of it is offloaded: `lien restore` first",
     "ms": 0.0}], "detached": 2, "refused": 1}

HISTOGRAM = {"count": 2, "seconds": 0.3, "buckets": [1, 0, 1]}
METRICS = {
    "memory": [{"pid": 812, "command": "python3", "gpu": "GPU-5f0a21c4", "device": None, "owner": "nccl",
                "owner_inferred": True, "tag": None, "kind": kind, "bytes": 1 << 30, "offloaded_bytes": 0}
               for kind in ("local", "imported", "host")],
    "node_memory": [{"gpu": None, "bytes": 1 << 30, "offloaded_bytes": 0}],
    "gpus": [{"uuid": "GPU-5f0a21c4", "index": 0, "total_bytes": 80 << 30, "used_bytes": 2 << 30,
              "free_bytes": 78 << 30, "processes": []}],
    "totals": {"bucket_seconds": [0.1, 1.0], "transactions": [
        {"kind": "offload", "outcomes": {"done": 2}, "refused": {"other": 0}, "bytes": 1 << 30,
         "duration": HISTOGRAM, "phases": {"save": HISTOGRAM}, "rest": HISTOGRAM}]},
    "status": STATUS}

RESULTS = {"ps": PS, "mem": MEM, "comms": COMMS, "holders": HOLDERS, "graph": GRAPH,
           "offload": OFFLOAD, "restore": RESTORE, "status": STATUS,
           "arena": ARENA, "metrics": METRICS}
PROGRESS = [{"progress": {"phase": phase, "done": done, "of": 2}}
            for phase in ("drain", "save", "drop") for done in (1, 2)]


def event(kind, pid, body=b"", size=None):
    length = 64 + len(body) if size is None else size
    return struct.pack("<IHHIIQQQiIQQ", length, kind, 0, pid, pid, 1, 0, 0, 0, 0, 0, 0) + body


def process_event(pid):
    return event(1, pid, struct.pack("<II16s", 0, 1, b"python3"))
