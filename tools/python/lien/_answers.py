# SPDX-License-Identifier: BSD-2-Clause
"""What the functions return. Sizes are bytes, times milliseconds, addresses numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypeVar, cast

from ._errors import other_version

Raw = Mapping[str, Any]
Function = TypeVar("Function", bound=Callable[..., Any])


def of_this_version(read: Function) -> Function:
    """An agent of another version may say less."""
    @wraps(read)
    def reading(*args: Any) -> Any:
        try:
            return read(*args)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise other_version("its answer has no %s" % error if isinstance(error, KeyError) else str(error)) from error
    return cast(Function, reading)


def _address(text: Optional[str]) -> Optional[int]:
    return None if text is None else int(text, 16)


@dataclass(frozen=True)
class Moved:
    """One process's part in an offload or restore."""

    pid: int
    bytes: int                    #: moved to the host, or back
    freed_bytes: Optional[int]    #: an offload: what its driver has free now, and had not before; for the whole GPU
    discarded_bytes: int          #: dropped instead of saved; not part of ``bytes``
    allocations: int              #: its own
    imports: int                  #: of other processes
    mappings: int
    ms: Mapping[str, float]       #: by phase, as the process measured it


@dataclass(frozen=True)
class Left:
    """Memory that an offload leaves on the GPU, and why."""

    pid: int
    reason: str
    bytes: int
    allocations: int
    address: Optional[int]        #: of the first allocation; None: it is not mapped
    holder: Optional[int]         #: pid of another process that keeps it there


@dataclass(frozen=True)
class Freed:
    """What an offload with ``free`` took of a GPU."""

    gpu: Optional[int]            #: nvidia-smi's number; None: without NVML
    uuid: Optional[str]
    pid: int                      #: a process that has memory there, and
    device: int                   #: its number of the GPU
    asked_bytes: int
    bytes: int                    #: moved, or in a dry run, to be moved
    movable_bytes: int            #: could be, these included
    allocations: int


@dataclass(frozen=True)
class Result:
    """What an offload or restore did."""

    bytes: int                           #: moved, in all processes together
    ms: float                            #: wall time of the whole transaction
    left: Tuple[Left, ...]               #: what an offload left behind
    per_process: Mapping[int, Moved]     #: by pid
    outcome: str                         #: ``"done"``, ``"nothing to do"``, ``"dry run"`` or ``"unknown"``
    transaction: Optional[int]           #: number of the transaction, equal for all who share it; None: there was none
    free: Tuple[Freed, ...]              #: with ``free``: by GPU
    raw: Raw = field(repr=False, compare=False)  #: the agent's answer (docs/protocol.md)


@dataclass(frozen=True)
class Process:
    """A process that uses CUDA."""

    pid: int
    command: str
    uid: int
    state: str                    #: ``"running"``, ``"offloaded"`` or ``"partly offloaded"``
    control: str                  #: ``"ready"``: takes orders; else see docs/protocol.md
    movable: Optional[bool]       #: takes part in offloads
    reason: Optional[str]         #: why it does not
    devices: Tuple[int, ...]      #: the process's own numbers
    bytes: int                    #: owned, and on the GPUs
    nccl_bytes: int               #: of these, NCCL's
    imported_bytes: int           #: other processes' memory that it maps
    offloaded_bytes: int          #: owned, and in host memory
    raw: Raw = field(repr=False, compare=False)


@dataclass(frozen=True)
class Memory:
    """A row of :func:`lien.memory`."""

    key: str                      #: what the rows are by; without ``by``: ``owner``
    pid: Optional[int]            #: without ``by``, or by rank
    kind: str                     #: ``"local"``, ``"exported"``, ``"imported"``, ``"device"``, ...
    tag: Optional[str]            #: without ``by``; None: none, or not known
    bytes: int
    allocations: int
    mappings: int
    offload_frees: int            #: what ``offload(owner="all")`` would free
    offloaded_bytes: int
    raw: Raw = field(repr=False, compare=False)


@dataclass(frozen=True)
class Holder:
    """One lien: what keeps an allocation alive."""

    pid: int
    kind: str                     #: ``"handle"``, ``"mapping"``, ``"import"``, ``"export"``, ``"registration"``, ...
    address: Optional[int]
    bytes: Optional[int]
    raw: Raw = field(repr=False, compare=False)


@dataclass(frozen=True)
class Allocation:
    """The memory at an address, and everything that holds it."""

    pid: Optional[int]            #: of its owner; None: not known
    device: int                   #: the owner's number
    bytes: int
    owner: str                    #: the library that asked for it
    tag: Optional[str]            #: with which it was allocated; None: none, or not known
    state: str                    #: ``"on the device"``, ``"offloaded"``, ...
    movable: bool
    reason: Optional[str]         #: why not
    holders: Tuple[Holder, ...]
    raw: Raw = field(repr=False, compare=False)


@of_this_version
def result(raw: Raw) -> Result:
    return Result(
        bytes=raw["bytes"], ms=raw["ms"],
        left=tuple(Left(left["pid"], left["reason"], left["bytes"], left["allocations"],
                        _address(left["address"]), left["holder"]) for left in raw["left"]),
        per_process={part["pid"]: Moved(
            part["pid"], part["bytes"], part["freed_bytes"], part["discarded_bytes"], part["allocations"],
            part["imports"], part["mappings"], part["ms"]) for part in raw["processes"]},
        outcome=raw["outcome"], transaction=raw.get("transaction"),
        free=tuple(Freed(gpu["gpu"], gpu["uuid"], gpu["pid"], gpu["device"], gpu["asked_bytes"], gpu["bytes"],
                         gpu["movable_bytes"], gpu["allocations"]) for gpu in raw.get("free") or ()), raw=raw)


def process(raw: Raw) -> Process:
    same: Dict[str, Any] = {name: raw[name] for name in (
        "pid", "command", "uid", "state", "control", "movable", "reason", "bytes", "nccl_bytes", "imported_bytes",
        "offloaded_bytes")}
    return Process(devices=tuple(raw["devices"]), raw=raw, **same)


@of_this_version
def processes(answer: Raw) -> List[Process]:
    return [process(row) for row in answer["processes"]]


def memory(raw: Raw) -> Memory:
    return Memory(raw.get("key", raw.get("owner")), raw.get("pid"), raw["kind"], raw.get("tag"), raw["bytes"],
                  raw["allocations"], raw["mappings"], raw["offload_frees"], raw["offloaded_bytes"], raw)


@of_this_version
def rows(answer: Raw) -> List[Memory]:
    return [memory(row) for row in answer["rows"]]


@of_this_version
def allocation(raw: Raw) -> Allocation:
    what = raw["allocation"]
    return Allocation(
        what["pid"], what["device"], what["bytes"], what["owner"], what["tag"], what["state"], what["movable"],
        what["reason"],
        tuple(Holder(holder["pid"], holder["kind"], _address(holder.get("address")), holder.get("bytes"), holder)
              for holder in raw["holders"]), raw)
