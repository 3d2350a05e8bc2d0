# SPDX-License-Identifier: BSD-2-Clause
"""What the fake agent of test_cli*.py answers: the replies of docs/protocol.md, made up."""

import struct

MIB = 1 << 20


def process(pid, rank, nranks, **changes):
    return {
        "pid": pid, "command": "python3", "uid": 0, "state": "running", "complete": True,
        "control": "ready", "devices": [rank],
        "ranks": [{"group": "5ac1d2e0b7f0a13%d" % i, "rank": rank, "nranks": nranks}
                  for i in range(4)],
        "bytes": 2730491904, "nccl_bytes": 2730491904, "imported_bytes": 1409286144,
        "offloaded_bytes": 0, **changes}


PS = {"processes": [
    process(812, 0, 2),
    process(813, 1, 2, complete=False, state="partly offloaded", offloaded_bytes=1 << 40,
            command="a-rather-long-program-name-\x1b[31m\n", devices=list(range(8))),
    process(4194304, 0, 1, control="none", ranks=[], devices=[], bytes=0, nccl_bytes=4096),
], "dead": [{"pid": 811, "owner": "nccl", "allocations": 3, "bytes": 6291456}]}

MEM = {
    "rows": [
        {"pid": 812, "owner": "nccl", "kind": "exported", "allocations": 336, "mappings": 336,
         "bytes": 1409286144, "offload_frees": 1409286144, "offloaded_bytes": 0},
        {"pid": 812, "owner": "nccl", "kind": "imported", "allocations": 336, "mappings": 336,
         "bytes": 1409286144, "offload_frees": 0, "offloaded_bytes": 0},
        {"pid": 812, "owner": "a_library_with_a_name_that_goes_on_" * 3, "kind": "local",
         "allocations": 98, "mappings": 98, "bytes": 205520896, "offload_frees": 205520896,
         "offloaded_bytes": 0},
        {"pid": 813, "owner": "cudart", "kind": "local", "allocations": 3, "mappings": 3,
         "bytes": 6291456, "offload_frees": 0, "offloaded_bytes": 2097152},
    ],
    "bytes": 1621098496, "offload_frees": 1614807040,
    "left": [{"pid": pid, "reason": "cudaMalloc memory cannot be put back at the same address, and "
              "the program may hold pointers into it", "allocations": 3, "bytes": 6291456}
             for pid in range(813, 833)] +
            [{"pid": 812, "reason": "registered with the network card", "allocations": 1,
              "bytes": 4194304}]}

HOLDERS = {
    "allocation": {"id": 193, "pid": 812, "device": 0, "bytes": 10485760, "owner": "nccl",
                   "origin": "cuMemCreate", "state": "on the device", "alive": True, "communicator": None,
                   "movable": True, "reason": None},
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
    "libraries": [
        {"path": "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "library": "cuda", "calls": 19,
         "missing": []},
        {"path": "/opt/" + "a-long-directory/" * 9 + "libnccl.so.2", "library": "nccl", "calls": 7,
         "missing": ["ncclCommWindowRegister", "ncclCommWindowDeregister"]}],
    "attach": "uprobe-multi", "transaction": {"kind": "offload", "phase": "save", "ms": 12.0}}


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
                    "owner": owner, "origin": "cuMemCreate", "state": "on the device",
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

RESULTS = {"ps": PS, "mem": MEM, "holders": HOLDERS, "graph": GRAPH, "offload": OFFLOAD,
           "restore": RESTORE, "status": STATUS}
PROGRESS = [{"progress": {"phase": phase, "done": done, "of": 2}}
            for phase in ("drain", "save", "drop") for done in (1, 2)]


def event(kind, pid, body=b"", size=None):
    length = 64 + len(body) if size is None else size
    return struct.pack("<IHHIIQQQiIQQ", length, kind, 0, pid, pid, 1, 0, 0, 0, 0, 0, 0) + body


def process_event(pid):
    return event(1, pid, struct.pack("<II16s", 0, 1, b"python3"))
