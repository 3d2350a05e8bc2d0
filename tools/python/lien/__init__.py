# SPDX-License-Identifier: BSD-2-Clause
"""Moves the GPU memory of running jobs to host memory and back, and says who holds it.

The agent (``lien agent``) must run on this node, and what is moved must run under ``lien run``, or is attached
to first. Sizes are bytes, the times in answers milliseconds, limits seconds. Every function raises
:class:`LienError`, takes ``socket``, the agent's socket (default ``$LIEN_SOCKET``, or
``/run/lien/agent.sock``), and exists in :mod:`lien.aio` for asyncio. Any thread may call, and a process may
move its own memory: while it waits, the calling thread is at rest.

The examples are of a process with some memory on a GPU. All of them are run as tests.

>>> import lien
>>> with lien.offloaded(owner="all") as away:
...     print(away.bytes > 0, lien.processes()[0].state)
True offloaded
>>> lien.processes()[0].state
'running'
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterable, Iterator, List, Optional, Union

from . import _answers, _connection, _errors, _events, _wire
from ._answers import Allocation, Freed, Holder, Left, Memory, Moved, Process, Result
from ._cluster import Cluster, ClusterResult
from ._errors import LienError
from ._events import Event, Events
from ._tag import tag

__version__ = "0.1"
LienError.__module__ = __name__  # as users name it
__all__ = [
    "SELF", "Allocation", "Cluster", "ClusterResult", "Event", "Events", "Freed", "Holder", "Left", "LienError",
    "Memory", "Moved", "Process", "Result", "events", "holders", "memory", "offload", "offloaded", "processes",
    "restore", "tag"]

#: As a pid: the calling process, also where its own pid is another than the agent's for it (containers).
SELF = 0

FRESH_S = 2.0  # for the agent to find symbols and ask NVML


def offload(owner: Optional[str] = None, pids: Optional[Iterable[int]] = None,
            gpus: Optional[Iterable[_wire.Gpu]] = None, comms: Optional[Iterable[str]] = None,
            tags: Optional[Iterable[str]] = None, drop: Union[str, Iterable[str]] = (), timeout: float = 10.0,
            wait: bool = True, *, free: Optional[int] = None, together: _wire.Together = True, strict: bool = False,
            with_closure: bool = False, multicast: bool = False, verify: bool = False, on_use: str = "wait",
            host_limit: Optional[int] = None, dry_run: bool = False, socket: Optional[str] = None) -> Result:
    """Moves memory to host memory, in all processes that have or map it, or in none.

    One process may call it for all, or every rank at the same time: ranks that ask for the same get the same
    result of one transaction (``together``).

    Args:
        owner: whose memory: ``"nccl"``, ``"all"``, ``"unknown"``, or a library's name as :func:`memory` has it. None:
            NCCL's, or all with ``tags``.
        pids: only memory of these processes; :data:`SELF` is the calling one.
        gpus: only memory on these: nvidia-smi's numbers, or the beginnings of UUIDs (``"GPU-5f0a"``). Without
            NVML, a number is the processes' own.
        comms: only what NCCL needs for these groups, as ``lien comms`` names them (16 hexadecimal digits).
        tags: only memory that has one of these (:func:`tag`).
        drop: what is moved out but not saved, whether it is ``owner``'s or not, and comes back as zeros: library
            names, or ``"tag:kv_cache"``.
        timeout: seconds that the job may take to come to rest. Everything else has limits of its own.
        wait: while another transaction is under way, wait for its end; False: ``LienError`` with code ``"busy"``.
        free: bytes: of what is selected, only as much as makes so many free on each GPU (of ``gpus``, or that some
            of it can be moved from), in the least time; refused if there is less. ``Result.free`` says what it took.
            A second equal call frees as much again only after a restore, or with ``together=False``.
        together: True: this call and equal ones, of the same user, are one transaction: while it is under way, and
            after it as long as nothing else has been moved. A text: the same for calls with that text alone, and
            whatever has been moved since: for ranks that may be a whole turn apart (``"step 17"``). False: every
            call is for itself.
        strict: refuse if anything would be left behind.
        with_closure: also take part of processes outside ``pids`` that map the memory.
        multicast: also move memory that is bound to multicast objects (NVLS).
        verify: keep checksums, which the restore compares.
        on_use: what becomes of a thread that needs the memory: ``"wait"`` for a restore, ``"restore"`` (starts
            one), or ``"ignore"`` (it runs on: the caller promises that nothing uses the memory).
        host_limit: refuse if the host memory of all processes were then more than this, in bytes.
        dry_run: only say what would be moved.

    >>> result = lien.offload(owner="all")
    >>> result.outcome, result.bytes, sorted(result.per_process) == [pid], result.left
    ('done', 4194304, True, ())
    >>> lien.offload(owner="all").transaction == result.transaction  # another rank, a little later
    True
    >>> lien.restore().bytes
    4194304
    >>> lien.offload(pids=[lien.SELF], owner="all", dry_run=True).outcome
    'dry run'
    >>> [(gpu.device, gpu.asked_bytes, gpu.bytes) for gpu in lien.offload("all", free=1 << 20).free]
    [(0, 1048576, 4194304)]
    >>> lien.restore().bytes
    4194304
    """
    request = _wire.offload(owner, pids, gpus, comms, tags, drop, timeout, wait, together, free, strict=strict,
                            with_closure=with_closure, multicast=multicast, verify=verify, on_use=on_use,
                            host_limit_bytes=host_limit, dry_run=dry_run)
    with _connection.cancelling(socket):
        return _answers.result(_connection.move(socket, request))


def restore(pids: Optional[Iterable[int]] = None, timeout: float = 10.0, wait: bool = True, *,
            comms: Optional[Iterable[str]] = None, tags: Optional[Iterable[str]] = None,
            together: _wire.Together = True, lazy: bool = False,
            socket: Optional[str] = None) -> Result:
    """Puts back what was offloaded: same addresses, same bytes, same access.

    Args:
        pids: the processes; those that share offloaded memory are restored with them. None: all.
        comms: only what NCCL needs for these groups; the rest stays offloaded.
        tags: only memory that has one of these; with ``comms``, only what NCCL needs for these groups and that has one
            of these tags.
        timeout, wait, together: as in :func:`offload`.
        lazy: communicator by communicator: each can be used when its memory is back in all ranks, before the rest is;
            those for which threads wait come first. Not together with ``tags``.

    >>> lien.restore().outcome
    'nothing to do'
    >>> away = lien.offload(owner="all")
    >>> back = lien.restore(pids=[lien.SELF])
    >>> back.outcome, back.bytes == away.bytes
    ('done', True)
    """
    return _answers.result(_connection.move(
        socket, _wire.restore(pids, timeout, wait, together, comms, tags, lazy)))


@contextlib.contextmanager
def offloaded(owner: Optional[str] = None, pids: Optional[Iterable[int]] = None,
              gpus: Optional[Iterable[_wire.Gpu]] = None, comms: Optional[Iterable[str]] = None,
              tags: Optional[Iterable[str]] = None, drop: Union[str, Iterable[str]] = (), timeout: float = 10.0,
              wait: bool = True, *, free: Optional[int] = None, together: _wire.Together = True, strict: bool = False,
              with_closure: bool = False,
              multicast: bool = False, verify: bool = False, on_use: str = "wait",
              host_limit: Optional[int] = None, socket: Optional[str] = None) -> Iterator[Result]:
    """Offloads, and at the end of the block restores the processes that it moved and that still run; also after an
    exception.

    If every rank enters it, the first one that leaves restores. A child that is forked in the block does not.

    >>> with lien.offloaded(owner="all", pids=[lien.SELF]) as away:
    ...     lien.memory(by="owner")[0].offloaded_bytes == away.bytes
    True
    """
    result = offload(owner, pids, gpus, comms, tags, drop, timeout, wait, free=free, together=together, strict=strict,
                     with_closure=with_closure, multicast=multicast, verify=verify, on_use=on_use,
                     host_limit=host_limit, socket=socket)
    entered_in = os.getpid()
    try:
        yield result
    finally:
        moved = set(result.per_process) if os.getpid() == entered_in else set()
        while moved:
            try:
                restore(moved, timeout, together=together, socket=socket)
                break
            except LienError as error:
                moved = _errors.without_ended(moved, error)


def processes(*, socket: Optional[str] = None) -> List[Process]:
    """The processes that use CUDA, sorted by pid: root sees all, others their own.

    >>> [(p.pid == pid, p.state, p.control, p.bytes) for p in lien.processes()]
    [(True, 'running', 'ready', 4194304)]
    """
    return _answers.processes(_connection.question(socket, {"op": "ps"}))


def memory(by: Optional[str] = None, *, pid: Optional[int] = None, socket: Optional[str] = None) -> List[Memory]:
    """Who owns how much GPU memory.

    Args:
        by: ``"owner"`` (library), ``"rank"``, ``"comm"``, ``"device"``, ``"callsite"`` or ``"tag"``: the
            largest first. None:
            by process, owner and kind, sorted by these.
        pid: only what this process owns.

    >>> [(row.pid == pid, row.kind, row.bytes, row.offload_frees) for row in lien.memory()]
    [(True, 'local', 4194304, 4194304)]
    >>> [(row.kind, row.bytes) for row in lien.memory(by="device", pid=pid)]
    [('device', 4194304)]
    """
    return _answers.rows(_connection.settled(socket, _wire.memory(by, pid), FRESH_S))


def holders(pid: int, address: int, *, socket: Optional[str] = None) -> Allocation:
    """The allocation at an address of a process, and every lien on it, in all processes.

    Args:
        pid: :data:`SELF` is the calling process.
        address: any in a mapping of that process, such as a tensor's ``data_ptr()``.

    >>> found = lien.holders(pid, address)
    >>> found.bytes, found.state, found.movable
    (4194304, 'on the device', True)
    >>> sorted(holder.kind for holder in found.holders)
    ['handle', 'mapping']
    """
    return _answers.allocation(_connection.question(socket, _wire.holders(pid, address)))


def events(*, snapshot: bool = False, socket: Optional[str] = None) -> Events:
    """An iterator over the calls that acquire, share or release GPU memory, as they return, until it is closed
    or the agent ends. Nothing that happens after the call of this function is missed.

    Args:
        snapshot: first what there is now, as events whose names begin with ``state-``.

    >>> with lien.events() as stream:
    ...     allocate(2 << 20)  # in this process or any other
    ...     event = next(event for event in stream if event.name == "cuMemCreate")
    >>> event.pid == pid, event.result, event.arguments["size"]
    (True, 0, 2097152)
    """
    connection = _connection.Connection(socket)
    try:
        connection.send(_wire.record())
        _events.check_format(connection.reply())
        connection.limit(0)
    except BaseException:
        connection.socket.close()
        raise
    return Events(connection, snapshot)
