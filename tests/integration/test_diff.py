#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien diff` shows the difference between what `lien mem` says of two files. Needs neither root nor a GPU."""

import json
import os
import struct
import sys

from cli_fixture import fits, run_cases
from test_cli_offline import ACCESS, CREATE, GOLDEN, MAP, PROCESS, write_recording
from cli_answers import MIB, event

ASPECTS = "owner", "callsite", "comm", "tag"
NONE = {"allocations": 0, "bytes": 0, "offloaded_bytes": 0}
MORE = event(17, 812, struct.pack("<QQIIIiBBHI", 9, 6 * MIB, 1, 1, 1, 0, 0, 0, 0, 0))


def tagged(tag):
    return event(17, 812, MORE[64:] + tag.encode().ljust(64, b"\0"))


def of_control(record, more=0):
    return record[:6] + struct.pack("<H", 2 | more) + record[8:]


# The control library has taken it away: announcements and returns.
UNMAP = event(23, 812, struct.pack("<QQ", 0x1000000, 4 * MIB))
RELEASE = event(18, 812, struct.pack("<Q", 7))
AWAY = [of_control(UNMAP, 1), of_control(UNMAP), of_control(RELEASE, 1), of_control(RELEASE)]


def diff(context, *arguments, code=1):
    out, err = context.run("diff", *arguments, "--json", code=code)
    assert err == "", err
    return json.loads(out)


def rows_of(context, path, by, *at):
    answer = json.loads(context.run("mem", "--by", by, "--from", path, *at, "--json")[0])
    return {(row["key"], row["kind"]): {name: row[name] for name in NONE} for row in answer["rows"]}


def subtracts(context, a, b, at_a=(), at_b=()):
    """Each aspect is what `lien mem --by` says of both, without equal rows."""
    options = [x for name, at in (("--at-a", at_a), ("--at-b", at_b)) for x in ([name, at[1]] if at else [])]
    answer = diff(context, a, b, *options)
    assert answer["equal"] is False, answer
    for by in ASPECTS:
        before, after = rows_of(context, a, by, *at_a), rows_of(context, b, by, *at_b)
        expected = {key: (before.get(key, NONE), after.get(key, NONE)) for key in {**before, **after}}
        expected = {key: pair for key, pair in expected.items() if pair[0] != pair[1]}
        found = {(row["key"], row["kind"]): (row["a"], row["b"]) for row in answer[by]}
        assert found == expected, (by, found, expected)
        changes = [row["change_bytes"] for row in answer[by]]
        assert changes == [row["b"]["bytes"] - row["a"]["bytes"] for row in answer[by]], answer[by]
        assert list(map(abs, changes)) == sorted(map(abs, changes), reverse=True), changes
    fits(context.run("diff", a, b, *options, code=1)[0])
    return answer


def case_equal(context):
    """a file and itself: no difference, exit code 0"""
    answer = diff(context, GOLDEN, GOLDEN, code=0)
    assert answer["equal"] is True and not any(answer[by] for by in ASPECTS), answer
    out, _ = context.run("diff", GOLDEN, GOLDEN)
    assert out == "no difference: 6.8 GiB on the GPUs\n", out


def case_two_times(context):
    """a recording of a real job, at two times"""
    answer = subtracts(context, GOLDEN, GOLDEN, at_a=("--at", "+6"))
    assert answer["b"]["bytes"] > answer["a"]["bytes"] > 0, answer
    assert sum(row["change_bytes"] for row in answer["owner"] if row["kind"] == "device") == \
        answer["b"]["bytes"] - answer["a"]["bytes"], answer
    back = subtracts(context, GOLDEN, GOLDEN, at_b=("--at", "+6"))
    for by in ASPECTS:
        assert [(r["key"], r["a"], r["b"]) for r in back[by]] == \
            [(r["key"], r["b"], r["a"]) for r in answer[by]], (by, back[by], answer[by])
    out, _ = context.run("diff", GOLDEN, GOLDEN, "--at-a", "+6", code=1)
    for text in ("LIBRARY", "CALL SITE", "COMMUNICATOR", "cuMemCreate from libnccl.so.2+0x10a515", "+5.8 GiB"):
        assert text in " ".join(out.split()), out


def case_grown_and_gone(context):
    """what is new, and what is in the first file only"""
    small = write_recording(context.path("small"), [PROCESS, CREATE, MAP, ACCESS])
    large = write_recording(context.path("large"), [PROCESS, CREATE, MAP, ACCESS, MORE])
    other = write_recording(context.path("other"), [PROCESS])
    row, = subtracts(context, small, large)["owner"]
    assert (row["a"]["allocations"], row["b"]["allocations"], row["change_bytes"]) == (1, 2, 6 * MIB), row
    row, = subtracts(context, large, other)["owner"]
    assert (row["b"], row["change_bytes"]) == (NONE, -10 * MIB), row
    out, _ = context.run("diff", large, small, code=1)
    assert "-6.0 MiB" in out and "-1 allocation:" in out, out


def case_offloaded(context):
    """memory that is away in one of them still counts, and is marked as away"""
    here = write_recording(context.path("here"), [PROCESS, CREATE, MAP, ACCESS])
    away = write_recording(context.path("away"), [PROCESS, CREATE, MAP, ACCESS, *AWAY])
    row, = subtracts(context, here, away)["owner"]
    assert row["b"] == {"allocations": 1, "bytes": 0, "offloaded_bytes": 4 * MIB}, row
    assert "offloaded +4.0 MiB" in context.run("diff", here, away, code=1)[0]


def case_tags(context):
    """by tag, which the text leaves out where no memory that differs has one"""
    one = write_recording(context.path("one"), [PROCESS, CREATE, MAP, ACCESS])
    two = write_recording(context.path("two"), [PROCESS, CREATE, MAP, ACCESS, tagged("kv_cache")])
    other = write_recording(context.path("weights"), [PROCESS, CREATE, MAP, ACCESS, tagged("weights")])
    row, = subtracts(context, one, two)["tag"]
    assert (row["key"], row["change_bytes"]) == ("kv_cache", 6 * MIB), row
    answer = subtracts(context, two, other)
    assert {row["key"]: row["change_bytes"] for row in answer["tag"]} == \
        {"kv_cache": -6 * MIB, "weights": 6 * MIB}, answer
    assert not any(answer[by] for by in ASPECTS if by != "tag"), answer
    out, _ = context.run("diff", two, other, code=1)
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["TAG", "kv_cache", "weights"], out
    out, _ = context.run("diff", GOLDEN, GOLDEN, "--at-a", "+6", code=1)
    assert "TAG" not in out and "no tag" not in out, out
    assert "no tag" in context.run("diff", GOLDEN, GOLDEN, "--at-a", "+6", "--by", "tag", code=1)[0]


def case_one_aspect(context):
    """--by: this one alone"""
    for by in ASPECTS:
        answer = diff(context, GOLDEN, GOLDEN, "--at-a", "+6", "--by", by)
        assert [name for name in ASPECTS if name in answer] == [by] and answer[by], answer


def case_errors(context):
    """errors have exit code 2, unlike differences, and name the file that is wrong"""
    nothing = context.path("nothing")
    for arguments in ([GOLDEN, nothing], [nothing, GOLDEN]):
        context.fails("diff", *arguments, code=2, words=[nothing, "No such file"])
    context.fails("diff", GOLDEN, os.path.abspath(__file__), code=2, words=["test_diff.py", "is not a recording"])
    context.fails("diff", GOLDEN, code=2, words=["B is missing"])
    context.fails("diff", GOLDEN, GOLDEN, "--at-b", "+1000", code=2, words=["--at", GOLDEN])
    context.fails("diff", GOLDEN, GOLDEN, "--by", "rank", code=2, words=["'rank'"])


if __name__ == "__main__":
    sys.exit(run_cases(globals()))
