# SPDX-License-Identifier: BSD-2-Clause
"""A connection to the agent. While it waits, the calling thread is in no call of CUDA's or NCCL's: the agent
sees it at rest, so a process may ask for an offload of its own memory."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import Any, Iterator, Optional, Tuple

from . import _wire
from ._errors import LienError

PIECE = 1 << 16


class Connection:
    def __init__(self, path: Optional[str]) -> None:
        self.path = _wire.address(path)
        self.rest = bytearray()
        self.socket = socket.socket(socket.AF_UNIX)
        self.limit(_wire.QUESTION_S)
        try:
            self.socket.connect(self.path)
            _wire.check_agent(self.socket, self.path)
        except BlockingIOError:
            self.socket.close()
            raise _wire.silent(self.path) from None
        except OSError as error:
            self.socket.close()
            raise _wire.no_agent(self.path, error) from None
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_exception: Any) -> None:
        self.socket.close()

    def limit(self, seconds: int) -> None:
        """How long the agent may be silent; 0: as long as it likes. (settimeout() would not wait for a place in the
        agent's queue.)"""
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self.socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))

    def _more(self) -> None:
        try:
            piece = self.socket.recv(PIECE)
        except BlockingIOError:
            raise _wire.silent(self.path) from None
        except ConnectionError:
            piece = b""
        if not piece:
            raise _wire.gone(self.path)
        self.rest += piece

    def send(self, request: _wire.Request) -> None:
        try:
            self.socket.sendall(_wire.encode(request))
        except BlockingIOError:
            raise _wire.silent(self.path) from None
        except ConnectionError:
            raise _wire.gone(self.path) from None

    def _line(self) -> bytes:
        searched = 0
        while True:
            end = self.rest.find(b"\n", searched)
            if end >= 0:
                line = bytes(self.rest[:end])
                del self.rest[:end + 1]
                return line
            searched = len(self.rest)
            self._more()

    def reply(self) -> Any:
        while True:
            found = _wire.take(self._line())
            if found is not None:
                return found

    def read(self, size: int) -> Tuple[bytes, bool]:
        """So many bytes of a stream that is JSON no longer; False: it has ended before them."""
        while len(self.rest) < size:
            try:
                self._more()
            except (LienError, OSError):
                return b"", False
        piece = bytes(self.rest[:size])
        del self.rest[:size]
        return piece, True


def question(path: Optional[str], request: _wire.Request) -> Any:
    with Connection(path) as connection:
        connection.send(request)
        return connection.reply()


def settled(path: Optional[str], request: _wire.Request, seconds: float) -> Any:
    """The answer once nothing of it is pending any more, or after so long."""
    end = time.monotonic() + seconds
    while True:
        found = question(path, request)
        if not found.get("pending") or time.monotonic() > end:
            return found
        time.sleep(0.02)


def move(path: Optional[str], request: _wire.Request) -> Any:
    with Connection(path) as connection:
        connection.limit(0)
        connection.send(request)
        return connection.reply()


@contextlib.contextmanager
def cancelling(path: Optional[str]) -> Iterator[None]:
    """Around an offload: what interrupts the caller (Ctrl-C) cancels it."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        with contextlib.suppress(Exception):
            question(path, {"op": "cancel"})
        raise
