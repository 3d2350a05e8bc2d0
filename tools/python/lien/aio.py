# SPDX-License-Identifier: BSD-2-Clause
"""The functions of :mod:`lien` for asyncio: same names, arguments, results and errors.

Cancelling a task that waits for an offload cancels the offload.

>>> import asyncio, lien.aio
>>> async def turn():
...     async with lien.aio.offloaded(owner="all") as away:
...         found = await lien.aio.processes()
...     return away.bytes, found[0].state, (await lien.aio.processes())[0].state
>>> asyncio.run(turn())
(4194304, 'offloaded', 'running')
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from typing import Any, AsyncGenerator, AsyncIterator, Dict, Iterable, List, Optional, Union

from . import FRESH_S, _answers, _cluster, _errors, _events, _wire
from ._answers import Allocation, Freed, Holder, Left, Memory, Moved, Process, Raw, Result
from ._cluster import ClusterResult, Pids
from ._errors import LienError
from ._events import Event

__all__ = [
    "Allocation", "Cluster", "ClusterResult", "Event", "Freed", "Holder", "Left", "LienError", "Memory", "Moved",
    "Process", "Result", "events", "holders", "memory", "offload", "offloaded", "processes", "restore"]

LONGEST = 1 << 30  # a large job's graph has some 10 MiB


class _Connection:
    def __init__(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.path, self.reader, self.writer = path, reader, writer

    async def send(self, request: _wire.Request) -> None:
        try:
            self.writer.write(_wire.encode(request))
            await self.writer.drain()
        except ConnectionError:
            raise _wire.gone(self.path) from None

    async def reply(self) -> Any:
        while True:
            try:
                line = await self.reader.readline()
            except ConnectionError:
                line = b""
            if not line.endswith(b"\n"):
                raise _wire.gone(self.path)
            found = _wire.take(line)
            if found is not None:
                return found


async def _connect(path: Optional[str]) -> _Connection:
    where = _wire.address(path)
    try:
        reader, writer = await asyncio.open_unix_connection(where, limit=LONGEST)
    except OSError as error:
        raise _wire.no_agent(where, error) from None
    try:
        _wire.check_agent(writer.get_extra_info("socket"), where)
    except BaseException:
        writer.close()
        raise
    return _Connection(where, reader, writer)


async def _move(path: Optional[str], request: _wire.Request) -> Any:
    connection = await _connect(path)
    try:
        await connection.send(request)
        return await connection.reply()
    finally:
        connection.writer.close()


async def _question(path: Optional[str], request: _wire.Request) -> Any:
    try:
        return await asyncio.wait_for(_move(path, request), _wire.QUESTION_S)
    except asyncio.TimeoutError:
        raise _wire.silent(_wire.address(path)) from None


async def _ask_or_cancel(path: Optional[str], request: _wire.Request) -> Any:
    try:
        return await _move(path, request)
    except asyncio.CancelledError:
        with contextlib.suppress(LienError):
            await asyncio.shield(_question(path, {"op": "cancel"}))
        raise


async def offload(owner: Optional[str] = None, pids: Optional[Iterable[int]] = None,
                  gpus: Optional[Iterable[_wire.Gpu]] = None, comms: Optional[Iterable[str]] = None,
                  tags: Optional[Iterable[str]] = None, drop: Union[str, Iterable[str]] = (),
                  timeout: float = 10.0, wait: bool = True, *, free: Optional[int] = None,
                  together: _wire.Together = True, strict: bool = False,
                  with_closure: bool = False, multicast: bool = False, verify: bool = False, on_use: str = "wait",
                  host_limit: Optional[int] = None, dry_run: bool = False,
                  socket: Optional[str] = None) -> Result:
    """As :func:`lien.offload`.

    >>> asyncio.run(lien.aio.offload(owner="all", dry_run=True)).bytes
    4194304
    """
    return _answers.result(await _ask_or_cancel(socket, _wire.offload(
        owner, pids, gpus, comms, tags, drop, timeout, wait, together, free, strict=strict, with_closure=with_closure,
        multicast=multicast, verify=verify, on_use=on_use, host_limit_bytes=host_limit, dry_run=dry_run)))


async def restore(pids: Optional[Iterable[int]] = None, timeout: float = 10.0, wait: bool = True, *,
                  comms: Optional[Iterable[str]] = None, tags: Optional[Iterable[str]] = None,
                  together: _wire.Together = True, lazy: bool = False,
                  socket: Optional[str] = None) -> Result:
    """As :func:`lien.restore`.

    >>> asyncio.run(lien.aio.restore()).outcome
    'nothing to do'
    """
    return _answers.result(await _move(
        socket, _wire.restore(pids, timeout, wait, together, comms, tags, lazy)))


@contextlib.asynccontextmanager
async def offloaded(owner: Optional[str] = None, pids: Optional[Iterable[int]] = None,
                    gpus: Optional[Iterable[_wire.Gpu]] = None, comms: Optional[Iterable[str]] = None,
                    tags: Optional[Iterable[str]] = None, drop: Union[str, Iterable[str]] = (),
                    timeout: float = 10.0, wait: bool = True, *, free: Optional[int] = None,
                    together: _wire.Together = True, strict: bool = False,
                    with_closure: bool = False, multicast: bool = False, verify: bool = False, on_use: str = "wait",
                    host_limit: Optional[int] = None, socket: Optional[str] = None) -> AsyncIterator[Result]:
    """As :func:`lien.offloaded`."""
    result = await offload(owner, pids, gpus, comms, tags, drop, timeout, wait, free=free, together=together,
                           strict=strict, with_closure=with_closure, multicast=multicast, verify=verify, on_use=on_use,
                           host_limit=host_limit, socket=socket)
    entered_in = os.getpid()
    try:
        yield result
    finally:
        moved = set(result.per_process) if os.getpid() == entered_in else set()
        while moved:
            try:
                await restore(moved, timeout, together=together, socket=socket)
                break
            except LienError as error:
                moved = _errors.without_ended(moved, error)


async def processes(*, socket: Optional[str] = None) -> List[Process]:
    """As :func:`lien.processes`.

    >>> [p.pid == pid for p in asyncio.run(lien.aio.processes())]
    [True]
    """
    return _answers.processes(await _question(socket, {"op": "ps"}))


async def memory(by: Optional[str] = None, *, pid: Optional[int] = None,
                 socket: Optional[str] = None) -> List[Memory]:
    """As :func:`lien.memory`.

    >>> [row.bytes for row in asyncio.run(lien.aio.memory(by="callsite"))]
    [4194304]
    """
    end = time.monotonic() + FRESH_S
    while True:
        found = await _question(socket, _wire.memory(by, pid))
        if not found.get("pending") or time.monotonic() > end:
            return _answers.rows(found)
        await asyncio.sleep(0.02)


async def holders(pid: int, address: int, *, socket: Optional[str] = None) -> Allocation:
    """As :func:`lien.holders`.

    >>> asyncio.run(lien.aio.holders(pid, address)).bytes
    4194304
    """
    return _answers.allocation(await _question(socket, _wire.holders(pid, address)))


async def events(*, snapshot: bool = False, socket: Optional[str] = None) -> AsyncGenerator[Event, None]:
    """As :func:`lien.events`, but it connects when the first event is asked for; it ends with its task, or by
    ``aclose()``.

    >>> async def first():
    ...     async for event in lien.aio.events(snapshot=True):
    ...         if event.name == "state-mapping" and event.arguments["ptr"] == hex(address):
    ...             return event.arguments["size"]
    >>> asyncio.run(first())
    4194304
    """
    connection = await _connect(socket)
    try:
        await connection.send(_wire.record())
        try:
            _events.check_format(await asyncio.wait_for(connection.reply(), _wire.QUESTION_S))
        except asyncio.TimeoutError:
            raise _wire.silent(connection.path) from None
        decoder = _events.Decoder(snapshot)
        while True:
            try:
                head = await connection.reader.readexactly(_events.SIZE.size)
                rest = await connection.reader.readexactly(_events.rest_of(head))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            event = decoder.event(head + rest)
            if event:
                yield event
    finally:
        connection.writer.close()


class Cluster(_cluster.Nodes):
    """As :class:`lien.Cluster`. Cancelling a task that waits for an offload cancels it on all nodes, and waits until
    that is so."""

    async def offload(self, owner: Optional[str] = None, pids: Optional[Pids] = None,
                      gpus: Optional[Iterable[_wire.Gpu]] = None, comms: Optional[Iterable[str]] = None,
                      tags: Optional[Iterable[str]] = None, drop: Union[str, Iterable[str]] = (),
                      timeout: float = 10.0, *, free: Optional[int] = None, strict: bool = False,
                      with_closure: bool = False, multicast: bool = False, verify: bool = False,
                      on_use: Optional[str] = None, host_limit: Optional[int] = None,
                      dry_run: bool = False) -> ClusterResult:
        """As :meth:`lien.Cluster.offload`."""
        return _cluster.answer_of_move(await self._run("offload", self._offload_args(
            owner, pids, gpus, comms, tags, drop, timeout, free=free, strict=strict, with_closure=with_closure,
            multicast=multicast, verify=verify, on_use=on_use, host_limit=host_limit, dry_run=dry_run)))

    async def restore(self, pids: Optional[Pids] = None, timeout: float = 10.0, *,
                      comms: Optional[Iterable[str]] = None,
                      tags: Optional[Iterable[str]] = None) -> ClusterResult:
        """As :meth:`lien.Cluster.restore`."""
        return _cluster.answer_of_move(await self._run(
            "restore", self._restore_args(pids, timeout, comms, tags)))

    @contextlib.asynccontextmanager
    async def offloaded(self, *args: Any, **more: Any) -> AsyncIterator[ClusterResult]:
        """As :meth:`lien.Cluster.offloaded`."""
        selected = _cluster.selection(self.offload, *args, **more)
        result = await self.offload(**selected)
        entered_in = os.getpid()
        try:
            yield result
        finally:
            back, error = self._way_back(result, selected) if os.getpid() == entered_in else (None, None)
            if back is not None:
                await self.restore(**back)
            if error:
                raise error

    async def processes(self) -> Dict[str, List[Process]]:
        """As :func:`lien.processes`, by node."""
        return _cluster.processes_by_node(await self._run("ps", ["--all"]))

    async def memory(self) -> Dict[str, List[Memory]]:
        """As :func:`lien.memory`, by node."""
        return _cluster.memory_by_node(await self._run("mem", []))

    async def _run(self, command: str, args: List[str]) -> Raw:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv(command, args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True)
        except OSError as error:
            raise self._cannot_start(error) from None
        try:
            out, err = await process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            await asyncio.shield(process.communicate())
            raise
        return self._answer(command, process.returncode, out, err)
