# SPDX-License-Identifier: BSD-2-Clause
"""``python -m lien``: the table of ``lien ps``, where only the package is installed."""

from __future__ import annotations

import argparse
import pwd
import shutil
import sys
import textwrap
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from . import LienError, __version__, _answers, _connection

Row = Mapping[str, Any]

PROCESSES = ("PID", "USER", "COMMAND", "STATE", "CONTROL", "DEVICES", "RANKS", "GPU", "NCCL", "IMPORTED", "OFFLOADED")
GPUS = ("GPU", "USED", "FREE", "TOTAL", "PROCESSES", "UUID")
RIGHT = {"PID", "GPU", "NCCL", "IMPORTED", "OFFLOADED", "USED", "FREE", "TOTAL"}
FIGURES = ("bytes", "nccl_bytes", "imported_bytes", "offloaded_bytes")
SIZES = ("used_bytes", "free_bytes", "total_bytes")
RANKS_SHOWN = 2
PENDING_S = 0.5  # NVML is slow where no process keeps a GPU awake


def _size(number: Optional[int]) -> str:
    if number is None:
        return "?"
    if not number:
        return "0"
    sign, number = ("-", -number) if number < 0 else ("", number)
    if number < 1 << 10:
        return "%s%d B" % (sign, number)
    for unit, shift in (("KiB", 10), ("MiB", 20), ("GiB", 30)):
        if unit == "GiB" or number < 1 << shift + 10:
            break
    return "%s%.1f %s" % (sign, number / (1 << shift), unit)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _devices(devices: Sequence[int]) -> str:
    """Neighbours as a range: ``0-3,7``."""
    runs: List[List[int]] = []
    for device in devices:
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ",".join("%d-%d" % (run[0], run[-1]) if run[1:] else str(run[0]) for run in runs) or "-"


def _ranks(ranks: Sequence[Row]) -> str:
    more = ["+%d" % len(ranks[RANKS_SHOWN:])] if ranks[RANKS_SHOWN:] else []
    return " ".join(["%d/%d" % (rank["rank"], rank["nranks"]) for rank in ranks[:RANKS_SHOWN]] + more) or "-"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _process(row: Row) -> List[str]:
    state = "partly" if row["state"] == "partly offloaded" else row["state"]
    sizes = [_size(row[name]) for name in FIGURES]
    if row["nccl_inferred_bytes"]:
        sizes[1] += "?"
    return [str(row["pid"]), _user(row["uid"]), _printable(row["command"]), state + ("" if row["complete"] else "*"),
            row["control"], _devices(row["devices"]), _ranks(row["ranks"]), *sizes]


def _print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    cells = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    for row in cells:
        print("  ".join(cell.rjust(width) if name in RIGHT else cell.ljust(width)
                        for name, cell, width in zip(head, row, widths)).rstrip())


def _print_wrapped(text: str) -> None:
    columns = shutil.get_terminal_size((100, 0)).columns
    print(textwrap.fill(text, max(columns, 20), subsequent_indent="  ", break_long_words=False,
                        break_on_hyphens=False))


def _note(text: str) -> None:
    print()
    _print_wrapped(text)


def _print_incomplete(rows: Iterable[Row]) -> None:
    """What it means for an offload, by reason."""
    pids: Dict[str, List[int]] = {}
    for row in rows:
        if not row["complete"] and row["movable"] is not None:
            pids.setdefault(row["reason"] or "", []).append(row["pid"])
    for reason, those in pids.items():
        _print_wrapped("  %s: %s" % (", ".join(map(str, those)), "cannot be offloaded: " + reason if reason else
                                     "can still be offloaded: only NCCL calls were missed"))


def _print_processes(found: Row, everything: bool) -> None:
    rows = found["processes"]
    shown = [row for row in rows if everything or not row["complete"] or row["bytes"] or row["imported_bytes"] or
             row["offloaded_bytes"]]
    total = ["", "", "total", "", "", "", "", *(_size(sum(row[name] for row in shown)) for name in FIGURES)]
    if shown:
        _print_table(PROCESSES, [*map(_process, shown), *([total] if shown[1:] else [])])
    elif not rows:
        print("no process%s uses CUDA on this node, as far as the agent has seen" % (
            " of yours" if "only_user" in found else ""))
    if any(row["nccl_inferred_bytes"] for row in shown):
        _note("? some of it is probably NCCL's: it was made before the agent was there, and another rank maps it.")
    if not all(row["complete"] for row in shown):
        _note("* incomplete: it may have called CUDA or NCCL before they were watched, or events were lost. What is "
              "shown may not be all.")
        _print_incomplete(shown)
    left_out = len(rows) - len(shown)
    if left_out:
        print("%s%d process%s without GPU memory: `--all`" % (
            "\n" if shown else "", left_out, "" if left_out == 1 else "es"))


def _print_gpus(found: Row) -> None:
    figures = any(gpu["total_bytes"] is not None for gpu in found["gpus"])
    devices = {row["pid"]: row["devices"] for row in found["processes"]}
    rows = []
    for gpu in found["gpus"]:
        users = [str(user["pid"]) + ("" if user["ordinal"] == gpu["index"] else " as %d" % user["ordinal"])
                 for user in gpu["processes"] if user["ordinal"] in devices.get(user["pid"], ())]
        sizes = [_size(gpu[name]) for name in SIZES] if figures else []
        if gpu["uuid"] and (users or figures):
            rows.append(["?" if gpu["index"] is None else str(gpu["index"]), *sizes, ", ".join(users) or "-",
                         gpu["uuid"]])
    if figures and rows[1:]:
        rows.append(["total", *(_size(sum(gpu[name] or 0 for gpu in found["gpus"])) for name in SIZES), "", ""])
    if rows:
        print()
        _print_table(GPUS if figures else (GPUS[0], *GPUS[4:]), rows)


def _print_notes(found: Row) -> None:
    for row in found["dead"]:
        _note("held by the dead: %s of process %d (%s), which has exited: see `lien check` for who keeps it" % (
            _size(row["bytes"]), row["pid"], _printable(row["owner"])))
    for row in found["processes"]:
        if row["used_in"]:
            _note("process %d (%s) has its memory back: it called %s, which needs it" % (
                row["pid"], _printable(row["command"]), row["used_in"]))
    held, used = (sum(row[name] for row in found["processes"]) for name in ("arena_bytes", "arena_used_bytes"))
    if held:
        _note("lien keeps %s of host memory pinned in these processes for offloads, %s of it in use: see `lien arena`"
              % (_size(held), _size(used)))
    if "only_user" in found:
        _note("processes of other users are hidden: only root sees and moves them")


@_answers.of_this_version
def _print(found: Row, everything: bool) -> None:
    _print_processes(found, everything)
    _print_gpus(found)
    _print_notes(found)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lien", description="Lists the processes that use CUDA on this node, as `lien ps` does.")
    parser.add_argument("--all", action="store_true", help="also processes without GPU memory")
    parser.add_argument("--socket", metavar="PATH", help="the agent's socket (default $LIEN_SOCKET, or "
                        "/run/lien/agent.sock)")
    parser.add_argument("--version", action="version", version="lien " + __version__)
    options = parser.parse_args()
    try:
        _print(_connection.settled(options.socket, {"op": "ps", "fresh": True}, PENDING_S), options.all)
    except LienError as error:
        print("lien: %s" % error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
