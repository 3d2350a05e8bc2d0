# SPDX-License-Identifier: BSD-2-Clause
"""What is measured beside lien (NVML, NCCL's own log), and how figures are summed up and printed."""
import ctypes
import re
import time
from pathlib import Path

from harness import MIB, Failure


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong),
                ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]


class Nvml:
    """The independent observer: device memory as NVML counts it. A device is named by the uuid that
    PyTorch gives, or by its index when it gives none."""

    NOT_AVAILABLE = (1 << 64) - 1
    INSUFFICIENT_SIZE = 7

    def __init__(self):
        try:
            self.library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise Failure(f"no NVML: {error}") from None
        self._call("nvmlInit_v2")

    def _call(self, name: str, *arguments, allow: tuple = ()) -> int:
        code = getattr(self.library, name)(*arguments)
        if code and code not in allow:
            raise Failure(f"{name} failed with NVML error {code}")
        return code

    def device(self, uuid: str, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        if uuid:
            name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
            code = self.library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
            if code == 0:
                return handle
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def used(self, device: ctypes.c_void_p) -> int:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        return memory.used

    def processes(self, device: ctypes.c_void_p) -> dict[int, int]:
        """pid to bytes; empty where NVML does not say (some containers)."""
        count = ctypes.c_uint(64)
        entries = (_Process * 64)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), entries,
                   allow=(self.INSUFFICIENT_SIZE,))
        return {e.pid: e.used for e in entries[:min(count.value, 64)]
                if e.used != self.NOT_AVAILABLE}


class Observer:
    """Used bytes of the devices that a job runs on, all together."""

    def __init__(self, ranks_info: list):
        self.nvml = Nvml()
        self.devices = {info["device"]: self.nvml.device(info["uuid"], info["device"])
                        for info in ranks_info}

    def used(self) -> int:
        return sum(self.nvml.used(device) for device in self.devices.values())

    def used_on(self, device: int) -> int:
        return self.nvml.used(self.devices[device])

    def process(self, device: int, pid: int) -> int | None:
        return self.nvml.processes(self.devices[device]).get(pid)

    def used_once(self, enough, limit_s: float = 2) -> int:
        """Used bytes as soon as `enough(used)`, or after the limit."""
        until = time.monotonic() + limit_s
        while True:
            used = self.used()
            if enough(used) or time.monotonic() > until:
                return used
            time.sleep(0.02)


# NCCL's own account of its device memory

_CUDA_ALLOC = re.compile(r"Cuda Alloc Size (\d+) pointer (0x[0-9a-f]+)")
_SHAREABLE = re.compile(r"Allocated shareable buffer (0x[0-9a-f]+) size (\d+) ipcDesc")
PIECE = 2 * MIB  # the driver's granularity: NCCL rounds up to it, after it has logged the size


def nccl_logging(directory: Path) -> dict:
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ALLOC",
            "NCCL_DEBUG_FILE": str(directory / "nccl.%p.log")}


def parse_nccl_log(text: str) -> dict[int, int]:
    """Address to bytes, rounded up, of the device memory that NCCL says it allocated.

    NCCL 2.28 logs (src/include/alloc.h, src/transport/p2p.cc)
        ...alloc.h or a caller's FILE:LINE Cuda Alloc Size 5242880 pointer 0x7f...
        Allocated shareable buffer 0x7f... size 10485760 ipcDesc 0x7f...
    and no free (that is a TRACE): an address logged again replaces what was there.
    `Cuda Host Alloc` and `CUMEM Host Alloc` are host memory. In both forms the log comes last, once
    the memory is mapped."""
    found: dict[int, int] = {}
    for line in text.splitlines():
        match = _CUDA_ALLOC.search(line)
        if match:
            size, address = int(match[1]), int(match[2], 16)
        else:
            match = _SHAREABLE.search(line)
            if not match:
                continue
            size, address = int(match[2]), int(match[1], 16)
        if size:
            found[address] = (size + PIECE - 1) // PIECE * PIECE
    return found


# Figures

def mib(size: float) -> str:
    return f"{size / MIB:,.1f}"


def table(header: list, rows: list) -> str:
    """Left-aligned first column, the others right-aligned."""
    cells = [[str(c) for c in row] for row in [header, *rows]]
    widths = [max(len(row[n]) for row in cells) for n in range(len(header))]
    lines = []
    for row in cells:
        first = row[0].ljust(widths[0])
        rest = [c.rjust(w) for c, w in zip(row[1:], widths[1:])]
        lines.append("  " + "  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def phases(result: dict) -> dict[str, float]:
    """The longest time of each phase over the processes of an offload's or a restore's result."""
    longest: dict[str, float] = {}
    for process in result.get("processes", []):
        for phase, ms in (process.get("ms") or {}).items():
            longest[phase] = max(longest.get(phase, 0.0), ms)
    return longest


def mem_bytes(mem: dict, pid: int | None = None, owner: str | None = None) -> int:
    """Device memory in the rows of `lien mem` that its owner (not an importer) is counted for."""
    return sum(row["bytes"] for row in mem["rows"] if row["kind"] in ("local", "exported")
               and (pid is None or row["pid"] == pid)
               and (owner is None or row["owner"] == owner))
