# SPDX-License-Identifier: BSD-2-Clause
"""A job on several nodes, through the ``lien`` program: it is the coordinator (docs/many-nodes.md)."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

from . import _answers, _wire
from ._answers import Memory, Process, Raw, Result
from ._errors import LienError

Pids = Mapping[str, Iterable[int]]  # by node


@dataclass(frozen=True)
class ClusterResult:
    """What an offload or restore on several nodes did."""

    outcome: str                       #: ``"done"``, ``"nothing to do"`` or ``"dry run"``
    bytes: int                         #: moved, on all nodes together
    ms: Optional[float]                #: wall time, from the first request to the last answer; None: a dry run
    per_node: Mapping[str, Result]     #: of the nodes that took part
    raw: Raw = field(repr=False, compare=False)  #: the program's answer (docs/protocol.md)


class Nodes:
    """What :class:`Cluster` and :class:`lien.aio.Cluster` share: which nodes, how they are asked, and the answers."""

    def __init__(self, nodes: Optional[Iterable[str]] = None, launch: Optional[str] = None, *,
                 slurm: Union[None, int, str] = None, program: str = "lien", remote: Optional[str] = None,
                 state: Optional[str] = None, lease: Optional[float] = None, socket: Optional[str] = None) -> None:
        self._program = program
        self._of_job = slurm is not None
        self._where: List[str] = []
        self._moves: List[str] = []
        for name, value in (("nodes", None if nodes is None else ",".join(nodes)), ("launch", launch),
                            ("slurm", slurm), ("lien", remote), ("socket", socket)):
            if value is not None:
                self._where += ["--" + name, str(value)]
        if state is not None:
            self._moves += ["--state", state]
        if lease is not None:
            self._moves += ["--lease", str(max(1, round(lease * 1000)))]

    @staticmethod
    def _offload_args(owner: Optional[str], pids: Optional[Pids], gpus: Optional[Iterable[_wire.Gpu]],
                      comms: Optional[Iterable[str]], tags: Optional[Iterable[str]], drop: Union[str, Iterable[str]],
                      timeout: float, **more: Any) -> List[str]:
        return _named(pids) + _options(
            owner=owner, gpu=gpus, comm=comms, tag=tags, discard=[drop] if isinstance(drop, str) else drop,
            timeout=_wire.milliseconds(timeout), **more)

    @staticmethod
    def _restore_args(pids: Optional[Pids], timeout: float, comms: Optional[Iterable[str]],
                      tags: Optional[Iterable[str]]) -> List[str]:
        return _named(pids) + _options(comm=comms, tag=tags, timeout=_wire.milliseconds(timeout))

    def _argv(self, command: str, args: List[str]) -> List[str]:
        moves = self._moves if command in ("offload", "restore") else []
        return [self._program, command, "--json", *self._where, *moves, *args]

    def _cannot_start(self, error: OSError) -> LienError:
        return LienError("cannot start %s: %s" % (self._program, error.strerror),
                         remedy="install it, or name it with `program`")

    def _answer(self, command: str, code: Optional[int], out: bytes, err: bytes) -> Raw:
        if code == 0:
            return dict(json.loads(out))
        said = err.decode(errors="replace").strip().splitlines() or ["%s ended with %s" % (self._program, code)]
        text = said[-1]
        if text.startswith("lien %s: " % command):
            text = text[len("lien %s: " % command):]
        raise LienError(text, "invalid" if code == 2 else "failed")

    def _way_back(self, result: ClusterResult,
                  selected: Mapping[str, Any]) -> Tuple[Optional[Dict[str, Any]], Optional[LienError]]:
        """Arguments of the restore for an offload with these arguments, if there is something to restore; and the
        error after it."""
        moved = {node: list(part.per_process) for node, part in result.per_node.items() if part.per_process}
        silent = [node["node"] for node in result.raw["nodes"] if not node["result"]]
        comms, tags, pids = (selected.get(name) for name in ("comms", "tags", "pids"))
        error = None
        if silent and pids:
            moved.update((node, pids[node]) for node in silent)
        elif silent and self._of_job:
            return {}, None
        elif silent and (comms or tags) and not selected.get("drop"):
            return {"comms": comms, "tags": tags}, None
        elif silent:
            error = LienError("%s has not said what it has offloaded: `lien restore` there" % ", ".join(silent))
        return {"pids": moved} if moved else None, error


class Cluster(Nodes):
    """Nodes whose memory is moved on all of them, or on none.

    Args:
        nodes: their names. None: those of the Slurm job.
        launch: what starts a process on a node, whose name replaces ``{node}``, such as ``"ssh {node}"``.
        slurm: a job's number, instead of ``launch``.
        program: the ``lien`` program here, and
        remote: on the nodes.
        state: the folder for the decision.
        lease: seconds that a node waits for word before it undoes on its own.
        socket: the agents' socket on the nodes.
    """

    def offload(self, owner: Optional[str] = None, pids: Optional[Pids] = None,
                gpus: Optional[Iterable[_wire.Gpu]] = None, comms: Optional[Iterable[str]] = None,
                tags: Optional[Iterable[str]] = None, drop: Union[str, Iterable[str]] = (), timeout: float = 10.0, *,
                free: Optional[int] = None, strict: bool = False, with_closure: bool = False,
                multicast: bool = False, verify: bool = False, on_use: Optional[str] = None,
                host_limit: Optional[int] = None, dry_run: bool = False) -> ClusterResult:
        """As :func:`lien.offload`; ``pids`` are those of each node: ``{"node7": [812]}``."""
        return answer_of_move(self._run("offload", self._offload_args(
            owner, pids, gpus, comms, tags, drop, timeout, free=free, strict=strict, with_closure=with_closure,
            multicast=multicast, verify=verify, on_use=on_use, host_limit=host_limit, dry_run=dry_run)))

    def restore(self, pids: Optional[Pids] = None, timeout: float = 10.0, *, comms: Optional[Iterable[str]] = None,
                tags: Optional[Iterable[str]] = None) -> ClusterResult:
        """As :func:`lien.restore`, on all nodes at once."""
        return answer_of_move(self._run("restore", self._restore_args(pids, timeout, comms, tags)))

    @contextlib.contextmanager
    def offloaded(self, *args: Any, **more: Any) -> Iterator[ClusterResult]:
        """Offloads, and at the end of the block restores the processes that it moved; also after an exception.

        If a node has not said which ones (``result.raw`` has no result of it), what was selected there is restored.
        If nothing was, :class:`LienError` names the node, after the others are restored.
        """
        selected = selection(self.offload, *args, **more)
        result = self.offload(**selected)
        entered_in = os.getpid()
        try:
            yield result
        finally:
            back, error = self._way_back(result, selected) if os.getpid() == entered_in else (None, None)
            if back is not None:
                self.restore(**back)
            if error:
                raise error

    def processes(self) -> Dict[str, List[Process]]:
        """As :func:`lien.processes`, by node."""
        return processes_by_node(self._run("ps", ["--all"]))

    def memory(self) -> Dict[str, List[Memory]]:
        """As :func:`lien.memory`, by node."""
        return memory_by_node(self._run("mem", []))

    def _run(self, command: str, args: List[str]) -> Raw:
        try:
            # A group of its own: Ctrl-C comes from here, once.
            process = subprocess.Popen(self._argv(command, args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            raise self._cannot_start(error) from None
        out, err = _finish(process)
        return self._answer(command, process.returncode, out, err)


def _finish(process: "subprocess.Popen[bytes]") -> Tuple[bytes, bytes]:
    try:
        return process.communicate()
    except BaseException:  # Ctrl-C: the offload is cancelled on all nodes
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise


def _options(**values: Any) -> List[str]:
    args: List[str] = []
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            args.append(option)
        elif isinstance(value, (str, int)) and value is not False:
            args += [option, str(value)]
        elif value is not None and value is not False:
            for one in value:
                args += [option, str(one)]
    return args


def _named(pids: Optional[Pids]) -> List[str]:
    return [word for node, numbers in (pids or {}).items() for pid in numbers for word in ("--pid", "%s:%d" % (
        node, pid))]


def selection(offload: Callable[..., Any], *args: Any, **more: Any) -> Dict[str, Any]:
    """The arguments by name, which can then be used twice."""
    selected: Dict[str, Any] = inspect.signature(offload).bind(*args, **more).arguments
    for name in ("comms", "tags"):
        if selected.get(name) is not None:
            selected[name] = list(selected[name])
    if selected.get("pids") is not None:
        selected["pids"] = {node: list(pids) for node, pids in selected["pids"].items()}
    return selected


def answer_of_move(raw: Raw) -> ClusterResult:
    return ClusterResult(raw["outcome"], raw["bytes"], raw.get("ms"), {
        node["node"]: _answers.result(node["result"]) for node in raw["nodes"] if node["result"]}, raw)


def processes_by_node(raw: Raw) -> Dict[str, List[Process]]:
    return {node: [_answers.process(row) for row in raw["processes"] if row["node"] == node] for node in raw["nodes"]}


def memory_by_node(raw: Raw) -> Dict[str, List[Memory]]:
    return {node: [_answers.memory(row) for row in raw["rows"] if row["node"] == node] for node in raw["nodes"]}
