# SPDX-License-Identifier: BSD-2-Clause
"""The stream of `record`: struct lien_event (include/lien/event.h)."""

import contextlib
import json
import os
import re
import socket
import struct
import threading
import time

from lien_shared.process import GUARD, check, equal, wait_for

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADER = struct.Struct("<IHHIIQQQiIQQ")
RECORDING_HEADER = 24 + 72  # bytes of a recording before its records: the header and the origin
CALLS = {}
with open(os.path.join(ROOT, "include", "lien", "calls.h")) as _calls:
    for _match in re.finditer(r"X\((\w+),\s*(\d+),", _calls.read()):
        CALLS[_match[1]] = int(_match[2])
STATES = {}
with open(os.path.join(ROOT, "include", "lien", "state.h")) as _states:
    for _match in re.finditer(r"X\((\w+),\s*(\d+),", _states.read()):
        STATES[_match[1]] = int(_match[2])
FORMAT = 3
EVENT_ENTRY, EVENT_CONTROL, EVENT_PARTIAL = 1, 2, 4


class Event:
    def __init__(self, record):
        (self.size, self.type, self.flags, self.pid, self.tid, self.start, self.t_entry,
         self.t_return, self.result, self.outer, self.caller, self.scope) = HEADER.unpack_from(record)
        self.body = record[HEADER.size:]

    def words(self, layout):
        return struct.unpack_from("<" + layout, self.body)


class Stream:
    """A connection that records, read in a thread."""

    def __init__(self, session):
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(20)
        self.connection.connect(session.socket)
        self.connection.sendall(b'{"op": "record"}\n')
        self.bytes = bytearray()
        while b"\n" not in self.bytes:
            piece = self.connection.recv(1 << 20)
            check(piece, "the agent hung up")
            self.bytes += piece
        reply, _, rest = bytes(self.bytes).partition(b"\n")
        equal(json.loads(reply), {"ok": True, "result": {"format": FORMAT}}, "reply to record")
        self.bytes = bytearray(rest)
        self.last = time.monotonic()
        self.connection.settimeout(None)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with contextlib.suppress(OSError):
            while True:
                piece = self.connection.recv(1 << 20)
                if not piece:
                    break
                self.bytes += piece
                self.last = time.monotonic()

    def events(self, quiet=0.3, limit=GUARD):
        """All so far, once none has come for a while."""
        wait_for("the stream is quiet", lambda: time.monotonic() - self.last > quiet, limit)
        data, at, found = bytes(self.bytes), 0, []
        while at + HEADER.size <= len(data):
            size = struct.unpack_from("<I", data, at)[0]
            check(HEADER.size <= size <= 232, "a record of %d bytes" % size)
            found.append(Event(data[at:at + size]))
            at += size
        return found

    def close(self):
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
