# SPDX-License-Identifier: BSD-2-Clause
"""The records of `record` (include/lien/event.h) as events."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional

from . import _layout
from ._connection import Connection
from ._errors import LienError

SIZE = struct.Struct("<I")
_HEADER = struct.Struct("<IHHIIQQQiI")
_ACCESS = struct.Struct("<HHI")
_RIGHTS = ("none", "read", "write", "read-write")


@dataclass(frozen=True)
class Event:
    """A call that acquired, shared or released GPU memory, or something about a process."""

    name: str                      #: CUDA's or NCCL's name without ``_v2``; ``"process"``, ``"exit"``; ``"state-..."``
    pid: int
    tid: int
    command: Optional[str]         #: of the process; None: it began before and has not been named since
    seconds: Optional[float]       #: of CLOCK_MONOTONIC, when the call returned; None: earlier state
    arguments: Mapping[str, Any]   #: by CUDA's names: sizes in bytes, addresses and handles as ``"0x..."``
    result: Optional[int]          #: CUresult or ncclResult_t; None: not a call
    inside: Optional[str]          #: the thread's outermost traced call; None: this one
    control: bool                  #: made by lien, for an offload or a restore
    partial: bool                  #: an argument could not be read and is 0


def check_format(answer: Any) -> None:
    if answer.get("format") != _layout.FORMAT:
        raise LienError("the agent's records are of format %s, this package reads %d" % (
            answer.get("format"), _layout.FORMAT), "invalid", remedy="install the package of the agent's version")


def rest_of(size: bytes) -> int:
    """How many bytes follow the first ones of a record."""
    total: int = SIZE.unpack(size)[0]
    if not _layout.HEADER <= total <= _layout.LONGEST:
        raise LienError("a record of %d bytes: the stream is no agent's" % total)
    return total - SIZE.size


def _location(kind: int, number: int) -> Dict[str, Any]:
    return {"device" if kind == _layout.DEVICE else "host": number}


def _places(record: bytes, kind: str) -> List[Dict[str, Any]]:
    counted, first = _layout.PLACES[kind]
    count = min(SIZE.unpack_from(record, counted)[0], (len(record) - first) // _ACCESS.size)
    found = []
    for i in range(count):
        where, number, flags = _ACCESS.unpack_from(record, first + i * _ACCESS.size)
        found.append({**_location(where, number), "access": _RIGHTS[flags & 3]})
    return found


def _argument(record: bytes, kind: str, offset: int, size: int) -> Any:
    data = record[offset:offset + size]
    if kind in _layout.PLACES:
        return _places(record, kind)
    if kind == "tag":                                      # zeros: it has none
        text = data.split(b"\0")[0]
        return text.decode() if 0 < len(text) < size and all(32 <= c <= 126 for c in text) else None
    if kind == "text":
        return "".join(chr(c) if 32 <= c <= 126 else "?" for c in data.split(b"\0")[0])
    if kind == "location":
        return _location(*struct.unpack_from("<ii", record, offset))
    value = int.from_bytes(data[:4 if size == 4 else 8], "little", signed=kind == "number")
    if kind == "hex":
        return hex(value)
    if kind == "group":
        return "%016x" % value
    if kind == "origin":
        return _layout.ORIGINS[value] if value < len(_layout.ORIGINS) else "unknown"
    return value


class Decoder:
    """Turns records into events, and remembers which program each process runs."""

    def __init__(self, snapshot: bool) -> None:
        self.present = True          # the records are still of what there was
        self.snapshot = snapshot
        self.commands: Dict[int, str] = {}

    def event(self, record: bytes) -> Optional[Event]:
        """None: nothing to show."""
        (_size, kind, flags, pid, tid, _start, _entered, returned, result, outer) = _HEADER.unpack_from(record)
        if kind == _layout.END:
            self.present = False
        if kind == _layout.END or flags & _layout.ENTRY or kind not in _layout.EVENTS:
            return None
        record = record.ljust(_layout.LONGEST, b"\0")
        name, fields = _layout.EVENTS[kind]
        arguments = {field: _argument(record, how, offset, size) for field, how, offset, size in fields}
        if arguments.get("tag", "") is None:
            del arguments["tag"]
        if name in ("process", "state-process"):
            self.commands[pid] = arguments["command"]
        event = None
        if self.snapshot or not self.present:
            call = _layout.FIRST_CALL <= kind < _layout.FIRST_STATE
            event = Event(
                name, pid, tid, self.commands.get(pid), returned / 1e9 if returned else None, arguments,
                result if call else None, _layout.EVENTS[outer][0] if call and outer not in (0, kind) and
                outer in _layout.EVENTS else None, bool(flags & _layout.CONTROL), bool(flags & _layout.PARTIAL))
        if name in ("exit", "exec"):
            self.commands.pop(pid, None)
        return event


class Events(Iterator[Event]):
    """Events as they happen; a context manager that closes the connection."""

    def __init__(self, connection: Connection, snapshot: bool) -> None:
        self._connection = connection
        self._decoder = Decoder(snapshot)

    def __next__(self) -> Event:
        while True:
            size, more = self._connection.read(SIZE.size)
            rest, more = self._connection.read(rest_of(size)) if more else (b"", False)
            if not more:
                raise StopIteration
            event = self._decoder.event(size + rest)
            if event:
                return event

    def close(self) -> None:
        self._connection.socket.close()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_exception: Any) -> None:
        self.close()
