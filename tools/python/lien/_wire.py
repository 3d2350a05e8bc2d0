# SPDX-License-Identifier: BSD-2-Clause
"""Requests and replies, whatever carries them (docs/protocol.md)."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from typing import Any, Dict, Iterable, List, Optional, Union

from ._errors import LienError, of_reply, other_version

DEFAULT_SOCKET = "/run/lien/agent.sock"
QUESTION_S = 60  # as long as `lien ps` waits; an offload or a restore has limits of its own
LONGEST_S = 1e9  # no agent allows it: it says so

Gpu = Union[int, str]
Together = Union[bool, str]
Request = Dict[str, Any]


def address(path: Optional[str]) -> str:
    return path or os.environ.get("LIEN_SOCKET") or DEFAULT_SOCKET


def no_agent(path: str, error: OSError) -> LienError:
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return LienError("no agent listens on %s" % path, "no-agent",
                         remedy="start one with `lien agent`, as root")
    if error.errno in (errno.EACCES, errno.EPERM):
        return LienError("you may not talk to the agent on %s" % path, "permission", remedy="ask as root")
    return LienError("cannot connect to the agent on %s: %s" % (path, error.strerror or error), "no-agent",
                     remedy="name its socket in LIEN_SOCKET")


def check_agent(connection: Any, path: str) -> None:
    """In a folder where anyone can make files, anyone may listen."""
    _pid, uid, _gid = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if uid not in (0, os.geteuid()):
        raise LienError("%s is owned by user %d, not by root or you; refusing to trust it" % (path, uid), "permission",
                        remedy="name the socket of root's agent in LIEN_SOCKET")


def gone(path: str) -> LienError:
    return LienError("the agent on %s ended the connection" % path, "no-agent", remedy="see the agent's log")


def silent(path: str) -> LienError:
    return LienError("the agent on %s gave no answer within %d s" % (path, QUESTION_S), "no-agent",
                     remedy="see whether it is stopped, and its log")


def encode(request: Request) -> bytes:
    return json.dumps(request).encode() + b"\n"


def take(line: bytes) -> Any:
    """The result; None: a line of progress, after which more lines come."""
    try:
        reply = json.loads(line)
    except ValueError:
        reply = None
    if isinstance(reply, dict) and "progress" in reply:
        return None
    if isinstance(reply, dict) and reply.get("ok") is True and isinstance(reply.get("result"), dict):
        return reply["result"]
    if isinstance(reply, dict) and reply.get("ok") is False and "error" in reply:
        raise of_reply(reply)
    raise other_version("%.80r" % line)


def milliseconds(seconds: float) -> int:
    return max(1, round(min(seconds, LONGEST_S) * 1000))


def _pids(pids: Optional[Iterable[int]]) -> Optional[List[int]]:
    # In one order: ranks that name the same processes ask for the same.
    return None if pids is None else sorted(set(pids))


def _tags(tags: Union[None, str, Iterable[str]]) -> Optional[List[str]]:
    return None if tags is None else [tags] if isinstance(tags, str) else sorted(set(tags))


def _without_none(request: Request) -> Request:
    return {name: value for name, value in request.items() if value is not None}


def offload(owner: Optional[str], pids: Optional[Iterable[int]], gpus: Optional[Iterable[Gpu]],
            comms: Optional[Iterable[str]], tags: Optional[Iterable[str]], drop: Union[str, Iterable[str]],
            timeout: float, wait: bool, together: Together, free: Optional[int], **more: Any) -> Request:
    discard = [drop] if isinstance(drop, str) else sorted(set(drop))
    return _without_none({
        "op": "offload", "owner": owner, "pids": _pids(pids),
        "gpus": None if gpus is None else sorted(set(gpus), key=str),
        "comms": None if comms is None else sorted(set(comms)),
        "tags": _tags(tags),
        "discard": discard or None, "timeout_ms": milliseconds(timeout), "wait": wait, "together": together,
        "free_bytes": free, **{name: None if value is False else value for name, value in more.items()}})


def restore(pids: Optional[Iterable[int]], timeout: float, wait: bool, together: Together,
            comms: Optional[Iterable[str]], tags: Optional[Iterable[str]], lazy: bool) -> Request:
    return _without_none({
        "op": "restore", "pids": _pids(pids), "comms": None if comms is None else sorted(set(comms)),
        "tags": _tags(tags), "timeout_ms": milliseconds(timeout), "wait": wait,
        "together": together, "lazy": lazy or None})


def memory(by: Optional[str], pid: Optional[int]) -> Request:
    return _without_none({"op": "mem", "by": by, "pid": pid})


def holders(pid: int, where: int) -> Request:
    return {"op": "holders", "pid": pid, "address": hex(where)}


def record() -> Request:
    return {"op": "record", "follow": True}

