#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Writes inputs for the fuzz targets to begin with, for when a format has changed:

    tests/fuzz/seeds.py DIRECTORY     makes DIRECTORY/fuzz_NAME/...

What is committed in tests/fuzz/corpus is the least that reaches all that these and a long run reached:

    build/fuzz/fuzz_NAME -set_cover_merge=1 -use_counters=0 -max_len=8192 NEW \\
        build/fuzz/fuzz_NAME.d/corpus DIRECTORY/fuzz_NAME
"""
import gzip
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
VA = 0x7E0000000000
STEP = 2 << 20


def enumerators(enum, prefix):
    """{name without the prefix: value} of an enum in include/lien/wire.h."""
    text = re.sub(r"/\*.*?\*/", "", (ROOT / "include/lien/wire.h").read_text(), flags=re.S)
    value, found = -1, {}
    for part in re.search(r"enum %s \{(.*?)\}" % enum, text, re.S)[1].split(","):
        name, _, given = (word.strip() for word in part.partition("="))
        if name:
            value = int(given, 0) if given else value + 1
            found[name.removeprefix(prefix)] = value
    return found


TYPES = enumerators("lien_wire_type", "LIEN_WIRE_")
(HELLO, STAGE, DRAIN, CHECK, SAVE, UNMAP, DROP, DISCARD, CREATE, EXPORT, IMPORT, FINISH, LIST, WALK,
 PREPARE, RELEASE, GATE, COUNT, MARKS, MARK, LOOK, UNMARK, END) = (TYPES[name] for name in (
     "HELLO STAGE DRAIN CHECK SAVE UNMAP DROP DISCARD CREATE EXPORT IMPORT FINISH LIST WALK PREPARE "
     "RELEASE GATE COUNT MARKS MARK LOOK UNMARK END").split())
ITEM = int(re.search(r"sizeof\(struct lien_wire_item\) == (\d+)", (ROOT / "include/lien/wire.h").read_text())[1])
SEEN = set()  # types of orders that a seed has
FIRST, LAST = 1, 2
OWNED, IMPORTED, SHARED, WORTHLESS = 1, 2, 4, 8
KEEP, VERIFY, ROOM, CHOSEN = 8, 0x10, 0x40, 0x400
GATES = enumerators("lien_wire_gate", "LIEN_WIRE_GATE_")
OPEN, SHUT, PASS, ALIVE = (GATES[name] for name in ("OPEN", "SHUT", "PASS", "ALIVE"))
ADOPT_COUNT, ADOPT_OWN, ADOPT_LOOK = 1, 2, 4


def client():
    lines = [
        '{"op":"ps"}', '{"op":"status"}', '{"op":"graph"}', '{"op":"comms"}', '{"op":"mem","explain":true}',
        '{"op":"mem","by":"owner"}', '{"op":"mem","by":"callsite","pid":1}', '{"op":"check","idle_minutes":0}',
        '{"op":"holders","pid":1,"address":"0x7e0000000000"}', '{"op":"offload","dry_run":true,"owner":"all"}',
        '{"op":"offload","pids":[1,2],"timeout_ms":5,"strict":true,"with_closure":true}', '{"op":"restore"}',
        '{"op":"compare","repair":true,"timeout_ms":100}', '{"op":"record","follow":false}', '{"op":"record"}',
        '{"op":"offload","owner":"all","verify":true,"discard":["nccl"],"host_limit_bytes":9}',
        '{"op":"offload","on_use":"restore"}\n{"op":"status"}', '{"op":"offload","on_use":"wait","owner":"all"}',
        '{"op":"offload","tags":["kv_cache","w"],"discard":["tag:kv_cache"],"on_use":"ignore"}',
        '{"op":"restore","tags":["kv_cache"],"comms":["0x5580"]}\n{"op":"mem","by":"tag"}', '{"op":"offload","tags":[""],"discard":["tag:"]}',
        '{"op":"offload","on_use":"panic"}', '{"op":"offload","discard":["1:0x1","all"],"pids":[1]}', '{"op":"attach"}', '{"op":"attach","pids":[1,2,9]}', '{"op":"detach"}', '{"op":"detach","pids":[1,2]}', '{"op":"arena"}', '{"op":"arena","release":true,"pids":[1]}', '{"op":"restore","lazy":true}',
        '{"op":"restore","comms":["0x5580"],"together":3}', '{"op":"comm","address":"0x5580"}',
        '{"op":"offload","comms_made":[[0,9]],"together":1,"wait":true}', '{"op":"restore","comms_made":[[5,5]]}',
        '{"op":"offload","owner":"all","coordinate":{"id":"a1","lease_ms":100}}',
        '{"op":"restore","coordinate":{"id":"b.2"}}', '{"op":"coordinate","id":"a1"}',
        '{"op":"coordinate","id":"a1","word":"hold","round":1,"version":2,"others":{"busy":true,"counted":true,"groups":[{"group":"00000000000000010000000000000002","collectives":4}],"pairs":[["00000000000000010000000000000002",1,0,3,2]],"ranks":[["00000000000000010000000000000002",5,2]]}}',
        '{"op":"coordinate","id":"a1","word":"commit"}', '{"op":"coordinate","id":"../x","word":"go"}',
        '{"op":"nothing"}', 'no JSON', '{"op":"ps","what":1}', '{"op":"mem","by":"device"}\n{"op":"mem","by":"rank"}',
    ]
    for line in lines:
        yield b"\0" + line.encode() + b"\n"
    yield b"\1" + "\n".join(lines).encode() + b"\n"


def replies():
    offload, restore, compare, repair = (bytes([6, n]) for n in (1, 2, 3, 4))
    well = bytes([2])
    yield well + offload + well * 8 + restore + well * 12
    for va, places in ((VA, 1), (VA + 64 * STEP, 1), (VA + 64 * STEP, 1 << 30), (VA + STEP, 16)):
        found = struct.pack("<QQQIIIIiBBHII", va, STEP, 9, 1, 1, 1, 1, 0, 0, 0, 0, places, 0) + bytes([1, 0, 0, 0, 3, 0, 0, 0] * 16)
        look = (bytes([3, 0, len(found) // 8, 0, 0, 0, 0]) + found + well + bytes([7, 2])) * 4
        yield well + compare + look + repair + look + bytes([6, 5])
    for needed, free in ((STEP, 9 * STEP), (9 * STEP, STEP), (1 << 63, 0)):
        room = struct.pack("<II16sQQ", 0, 0, bytes(range(16)), needed, free)
        answer = bytes([3, 0, len(room) // 8, 0, 0, 0, 0]) + room
        yield well + offload + well * 10 + restore + answer * 2 + well * 10
        yield well + offload + well * 10 + restore + well + answer * 3 + well * 10
    yield well + offload + well * 3 + bytes([3, 1, 2, 2, 0xFE, 1, 1]) + bytes(16) + well * 8
    detach = bytes([6, 7])
    yield well + detach + well * 4
    yield well + detach + bytes([4, 1, 40, 0, 7, 0x84, 0, 5, 0, 9]) + detach + bytes([7, 200]) + well * 4
    yield well + offload + well * 5 + bytes([8, 1]) + well * 8
    yield well + offload + well * 4 + bytes([7, 200]) + well * 4
    yield well + offload + well * 8 + restore + bytes([4, 1, 40, 0, 7, 0x84, 0, 5, 0, 9]) + well * 10
    yield well + offload + well * 4 + bytes([9, 1]) + well * 8
    yield bytes([5, 40]) + bytes(range(40)) + well + offload + bytes([0x83, 9, 250, 0x42, 3]) + bytes(300)


def item(token, va, flags, index=0, mappings=1, references=1, size=STEP, group=0, tag=0):
    """struct lien_wire_item; its handle is the number of the allocation, as in fuzz_orders.c."""
    place = struct.pack("<HHI", 1, 0, 3) + bytes(15 * 8)
    handles = struct.pack("<QII", token, references, 0) + bytes(3 * 16)
    packed = (struct.pack("<QQQQIIIIIIIiBBHI", token, va, size, size, flags, index, mappings, 1, 1, 1, 1, 0, 0, 0, 0, 1) +
              place + struct.pack("<QII", 7, 1, 0) + handles + struct.pack("<QQQQQ", 0, 0, 0, group, tag))
    assert len(packed) == ITEM
    return packed


def order(kind, body=b"", flags=0, arg=0, fds=0, arg2=0):
    SEEN.add(kind)
    header = struct.pack("<IHHIiQQQ88s", 0, kind, flags, 1, 0, arg, arg2, 0, b"")
    return struct.pack("<BBH", fds, 1, len(header) + len(body)) + header + body


def adopt(va, flags, number):
    """struct lien_wire_adopt"""
    return struct.pack("<QQIIII16s16s", va, 0, 1, 0, flags, 1, b"", bytes([number] * 16))


def orders():
    moved = (item(1, VA, OWNED | SHARED) + item(2, VA + STEP, IMPORTED, references=0) +
             item(3, VA + 2 * STEP, OWNED, 0, 2) + item(3, VA + 3 * STEP, OWNED, 1, 2))
    ranges = struct.pack("<QQII", VA, 8 * STEP, 1, 0) + struct.pack("<QQII", VA + STEP, 10, 2, 0)
    away = [order(HELLO), order(STAGE, moved, FIRST | LAST, 9), order(DRAIN, arg=10000), order(CHECK), order(SAVE),
            order(UNMAP), order(DROP)]
    back = [order(LIST), order(CREATE), order(EXPORT), order(IMPORT, struct.pack("<Q", 2), LAST, fds=1), order(FINISH, flags=LAST)]
    lost = struct.pack("<QQQ", 2, 1, 99)
    for fail in (bytes(16), bytes([0, 1]) + bytes(14), bytes([0, 0, 16, 0, 2]) + bytes(11), bytes(4) + b"\4" * 12):
        yield fail + b"".join(away + back)
        yield fail + b"".join(away[:5]) + order(DISCARD) + b"".join(away[1:]) + order(
            FINISH, lost) + order(FINISH, lost, LAST)
        yield (fail + order(PREPARE, arg=40 << 20) + order(PREPARE, arg=400 << 20, arg2=1) + order(RELEASE) +
               b"".join(away[:4]) + order(SAVE, flags=VERIFY) + b"".join(away[5:]) + order(RELEASE) + b"".join(back) +
               order(RELEASE))
        yield (fail + order(STAGE, moved + item(4, VA + 4 * STEP, OWNED | WORTHLESS), FIRST | LAST) +
               order(SAVE, flags=VERIFY) + order(UNMAP) + order(DROP) + order(CREATE) +
               order(FINISH, flags=LAST))
    gate = [order(GATE, arg=SHUT), order(GATE, struct.pack("<III", 1, 2, 1), arg=PASS)]
    yield bytes(16) + b"".join(away[:2] + gate + away[2:]) + order(GATE, arg=OPEN) + order(
        LIST, flags=ROOM) + order(CREATE, flags=ROOM) + b"".join(back[2:4]) + order(
            FINISH, flags=KEEP | LAST) + order(GATE, arg=OPEN) + order(EXPORT) + order(FINISH, lost, LAST)
    # Saved, and let go; two transactions.
    yield bytes(16) + b"".join(away[:5]) + order(GATE, arg=ALIVE) + order(GATE, arg=OPEN) + order(LIST) + order(
        HELLO) + order(STAGE, moved, FIRST | LAST, 11) + order(DISCARD, arg=11) + order(EXPORT) + order(FINISH, flags=LAST)
    other = item(5, VA + 4 * STEP, OWNED | SHARED) + item(6, VA + 5 * STEP, IMPORTED)
    yield bytes(16) + b"".join(away) + order(STAGE, other, FIRST | LAST, 11) + b"".join(
        order(kind, arg=arg) for kind in (CHECK, SAVE, UNMAP, DROP) for arg in (9, 11)) + order(
            CREATE, arg=11) + order(FINISH, struct.pack("<Q", 6), LAST, arg=11) + b"".join(back)
    # Groups and tags, in part; more groups than there are names.
    named = (item(1, VA, OWNED, group=5, tag=6) + item(2, VA + STEP, OWNED, group=5) + item(3, VA + 2 * STEP, OWNED, tag=6))
    for groups in 0, 1, 2, 9:
        yield (bytes(16) + order(STAGE, named, FIRST | LAST, 9) + b"".join(away[2:]) +
               order(LIST, struct.pack("<QQ", 5, 6), CHOSEN, arg2=groups) + order(CREATE, flags=CHOSEN) +
               order(EXPORT, flags=CHOSEN) + order(FINISH, flags=CHOSEN | LAST) + b"".join(back))
    yield bytes(16) + b"".join(away[:2] + gate) + b"".join(away[1:5]) + order(DISCARD) + order(GATE, arg=OPEN) + order(
        GATE, b"abc", arg=PASS) + order(GATE, arg=7)
    yield bytes(16) + order(PREPARE, arg=1 << 60) + order(PREPARE, arg=1, arg2=1 << 40)
    yield bytes(16) + order(WALK, ranges, arg=20000) + order(WALK, ranges * 8, arg=1) + order(99)
    yield bytes(16) + order(HELLO)[:40]
    yield bytes(16) + b"".join(away[:5]) + order(END) + b"".join(away[5:]) + order(END) + b"".join(back) + order(END)
    yield bytes(16) + order(PREPARE, arg=40 << 20) + order(WALK, ranges, arg=20000) + order(END) + order(HELLO)
    # Memory that was there before: counted, marked, looked at, put back.
    adopted = adopt(VA, ADOPT_COUNT | ADOPT_OWN, 1) + adopt(VA + STEP, ADOPT_COUNT | ADOPT_LOOK, 2)
    marks = order(MARKS, adopted, FIRST | LAST)
    yield bytes(16) + gate[0] + order(COUNT, adopted) + marks + order(MARK) + order(LOOK) + order(UNMARK) + order(END)
    yield bytes(16) + gate[0] + marks + order(MARK) + marks + order(END) + order(UNMARK) + marks + order(LOOK)
    yield bytes(4) + b"\4" * 12 + gate[0] + order(COUNT, adopted * 3) + marks + order(MARK) + order(UNMARK)
    yield bytes(16) + order(COUNT, adopted[:70]) + order(MARKS, adopted) + order(LOOK) + order(MARK) + order(UNMARK)
    # Sizes and limits that no agent has in mind.
    for size, references in ((1 << 63, 1), ((1 << 64) - STEP, 1), (STEP, 1 << 31)):
        huge = b"".join(item(n, VA + n * STEP, OWNED, references=references, size=size) for n in (0, 1))
        yield bytes(16) + order(STAGE, huge, FIRST | LAST) + order(SAVE) + order(DROP) + order(CREATE) + order(FINISH, flags=LAST)
    yield bytes(16) + order(WALK, struct.pack("<QQII", STEP, (1 << 64) - 2 * STEP, 1, 0), arg=1 << 40)
    yield bytes(16) + order(WALK, struct.pack("<QQII", (1 << 64) - STEP, STEP - 1, 1, 0), arg=1 << 40)


def events():
    data = gzip.open(ROOT / "tests/data/pytorch-nccl-2ranks.lien").read()
    header, at, seen, picked = data[:HEADER], HEADER, {}, []
    while at < len(data):
        size, kind, _, pid = struct.unpack_from("<IHHI", data, at)
        seen[kind, pid] = seen.get((kind, pid), 0) + 1
        if seen[kind, pid] <= 3:
            picked.append(data[at:at + size])
        at += size
    for n in range(0, len(picked), 24):
        yield header + b"".join(picked[:4] + picked[n:n + 24])
    # Every kind of event, with names that meet.
    process = struct.pack("<IHHIIQQQiIQQ", 232, 1, 0, 5, 5, 9, 1, 2, 0, 0, 0, 0) + struct.pack("<II16s", 0, 1, b"a") + bytes(144)
    for kind in (1, 4):  # names without an end
        yield header + process + struct.pack("<IHHIIQQQiIQQ", 232, kind, 0, 5, 5, 9, 1, 2, 0, 0, 0, 0) + b"x" * 168
    for first in range(2, 320, 12):
        body = struct.pack("<QQQQ", VA, STEP, 1, 1) + bytes(136)
        yield header + process + b"".join(
            struct.pack("<IHHIIQQQiIQQ", 232, kind, 0, 5, 5, 9, kind, kind + 1, 0, kind if kind > 15 else 0, 0, 0) + body
            for kind in range(first, first + 12))


    yield from snapshots(header)


def snapshots(header):
    """Every kind of state, in files that are short enough for the fuzzer."""
    numbers = dict(re.findall(r"X\((\w+), +(\d+),", (ROOT / "include/lien/state.h").read_text()))

    def state(kind, layout, *values, scope=0, outer=0):
        body = struct.pack("<" + layout, *values)
        return struct.pack("<IHHIIQQQiIQQ", 64 + len(body), int(numbers[kind]), 0, 5, 5, 9, 0, 0, 0, outer, 0, scope) + body

    def keyed(call, key):
        """lien_share_number()"""
        number = 0xcbf29ce484222325 ^ call
        for byte in key.ljust(64, b"\0"):
            number = (number ^ byte) * 0x100000001b3 % (1 << 64)
        return number | 1 << 63

    def allocation(number, site):
        return state("allocation", "QQQIIIiBBHI8I", number, STEP, 0, 1, 1, 1, 0, 0, 1, 3, 0, 1, 0, site, 1, 1, 1, 1, 0)

    group = b"group" + bytes(123)
    process = state("process", "6I16s", 0, 0, 1, 1, 1, 0, b"a")
    end = state("end", "QII", 9, 4, 1)
    mapping = state("mapping", "QQQIIIIHHI", 7, VA, STEP, 8, 0, 0, 1, 1, 0, 3)
    memory = [
        state("site", "QQIIII64s64s", 1, 16, 1, 1, 1, 0, b"nccl", b"libnccl.so.2", outer=96),
        allocation(7, 1),
        state("allocation", "QQQIIIiBBHI8I", 8, STEP, 3, 0, 0, 0, -1, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0),
        state("share", "QQIIiI64s", 7, 3, 1, 25, 9, 0, b""), state("handle", "QQIIII", 7, 10, 2, 1, 0, 0), mapping,
        state("binding", "QQQQQiI", 8, 7, 0, STEP, 0, 0, 0)]
    rest = [
        state("reservation", "QQ", VA, 4 * STEP), state("context", "QIiII", 0x77, 1, 0, 1, 0),
        state("pool", "QQiI", 0x88, 3, 0, 1), state("capture", "Q", 3),
        state("comm", "QIIiiiIII128s", 0, 1, 0, 0, 2, 0, 1, 0, 0, group, scope=0x100, outer=96),
        state("init", "II", 1, 0, scope=1 << 63 | 3), state("split", "128sIiIIiiiI", group, 1, 2, 0, 1, 0, 0, 0, 0),
        state("registration", "QQQIIII", VA, STEP, 7, 1, 1, 0, 0)]
    yield header + process + b"".join(memory) + end
    yield header + process + b"".join(rest) + end
    yield header + process + allocation(7, 0) + b"".join(memory[2:6])
    opened = state("mapping", "QQQIIII", 7, VA + STEP, STEP, 7, 1, 1, 0)
    yield header + process + allocation(7, 0) + mapping * 2 + opened + end + allocation(10, 0)
    named = state("handle", "QQIIII64s", 7, 10, 2, 1, 1, 0, b"torch_cuda")
    stale = state("share", "QQIIiI64s", 7, keyed(54, b"key"), 1, 54, -1, 6, b"key")
    yield header + process + memory[0] + memory[1] + named + stale + end


SOURCE = """
int data = 1; static int hidden_data;
__attribute__((visibility("default"))) int cuMemMap(void) { return data; }
__attribute__((visibility("default"))) int cuMemAlloc_v2(void) { return hidden_data++; }
__attribute__((visibility("default"))) int _ZN3c105CUDA6mallocEmi(void) { return 2; }
static __attribute__((used)) int hidden(void) { return 3; }
"""


def symbols():
    with tempfile.TemporaryDirectory() as place:
        for more in ([], ["-s"], ["-Wl,--build-id=none"], ["-Wl,-z,separate-code"], ["-Wl,--hash-style=sysv"]):
            out = pathlib.Path(place, "library")
            subprocess.run(["gcc", "-shared", "-nostdlib", "-fPIC", "-Wl,-z,noseparate-code", "-Wl,--build-id", "-x", "c", "-",
                            "-o", out, *more], input=SOURCE.encode(), check=True)
            yield out.read_bytes()
    yield b"\x7fELF\2\1\1" + bytes(80)


def ras():
    rank = '{"rank": %d, "host": "%s", "pid": %d, "cuda_dev": 1, "nvml_dev": 1%s "status": {"init_state": 0}}'
    comm = '{"hash": "0x%x", "secondary_hash": "0x7:0x8", "size": 2, "ranks": [%s, %s], "missing_ranks": [%s]}'
    one = comm % (0xae94423cfbb2ef4a, rank % (0, "10.0.0.1", 7, ","), rank % (1, "::1", 8, ","), rank % (0, "", 9, ""))
    yield ('{"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [%s], "ras": {}}' % one).encode()
    words = "NCCL version 2.26.2 compiled with CUDA 12.8\nGroup     Comms\n    #  in group\n" \
        "    0         1         4       7-8        32        32   RUNNING  MISMATCH\n\nErrors\n======\n\n" \
        "#0-0 (cf264af53edbe986) MISMATCH\n  Rank 2 has status FINALIZE -- GPU 2 (NVML 3) managed by process 48 " \
        "on node 172.16.64.210\n\nWarnings\n========\n"
    yield words.encode()
    yield b"NCCL version 2.24.3\nNo communicator data collected!\n"
    magic = struct.pack("<Q", 0x0280028002800280)
    yield magic + struct.pack("<5Q", 1, 2, 0xae94423cfbb2ef4a, 2 << 32, 0) + magic


HEADER = struct.calcsize("<8sIIQ")
if len(sys.argv) != 2:
    sys.exit(__doc__)
for name, made in (("client", client()), ("replies", replies()), ("orders", orders()), ("recording", events()),
                   ("symbols", symbols()), ("ras", ras())):
    folder = pathlib.Path(sys.argv[1], f"fuzz_{name}")
    folder.mkdir(parents=True, exist_ok=True)
    for n, seed in enumerate(made):
        (folder / f"seed{n:02}").write_bytes(seed)
missing = [name for name, kind in TYPES.items() if kind not in SEEN]
if missing:
    sys.exit("no seed has an order of these types: " + ", ".join(missing))
