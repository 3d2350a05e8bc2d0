#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A Python program with memory on the software driver, which evaluates the expressions that it is told, a line
each: "ok VALUE" or "error NAME: MESSAGE". They know the package `lien`, and the functions and names below.

    python_job.py BYTES [DEVICE]
    python_job.py BYTES --doctest MODULE...     runs the examples of those; prints "FAILED OF"
"""

import asyncio
import ctypes
import doctest
import importlib
import os
import signal
import sys
import threading
import time
import warnings

import lien
import lien.aio  # noqa: F401

DRIVER = ctypes.CDLL("libcuda.so.1")
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_uint64
PIDFD_GETFD = 438
pid = os.getpid()


class Properties(ctypes.Structure):
    """CUmemAllocationProp"""
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location_type", ctypes.c_int),
                ("location", ctypes.c_int), ("metadata", ctypes.c_void_p), ("flags", ctypes.c_uint64)]


class Access(ctypes.Structure):
    """CUmemAccessDesc"""
    _fields_ = [("location_type", ctypes.c_int), ("location", ctypes.c_int), ("flags", ctypes.c_int)]


def call(name, *args):
    code = getattr(DRIVER, name)(*args)
    if code:
        raise RuntimeError("%s: %d" % (name, code))


def number(value):
    return ctypes.c_uint64(value)


def init(device):
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


def show(handle, size, device=0):
    """Maps it; the address."""
    va = ctypes.c_uint64()
    call("cuMemAddressReserve", ctypes.byref(va), number(size), number(0), number(0), number(0))
    call("cuMemMap", va, number(size), number(0), number(handle), number(0))
    call("cuMemSetAccess", va, number(size), ctypes.byref(Access(1, device, 3)), number(1))
    return va.value


def create(size, device=0):
    handle = ctypes.c_uint64()
    call("cuMemCreate", ctypes.byref(handle), number(size), ctypes.byref(Properties(1, 1, 1, device)), number(0))
    return handle.value


def allocate(size, device=0):
    """Some more; its bytes are 0x5a. The address."""
    va = show(create(size, device), size, device)
    fill(va, size, 0x5a)
    return va


def tensor(size, device=0):
    """As a framework has it: a mapping alone keeps the memory. The address."""
    handle = create(size, device)
    va = show(handle, size, device)
    call("cuMemRelease", number(handle))
    return va


def free(va, size):
    call("cuMemUnmap", number(va), number(size))
    call("cuMemAddressFree", number(va), number(size))


# Memory of each kind that the driver has; each returns its address.

def plain(size):
    va = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(va), number(size))
    return va.value


def pitched(size):
    va, pitch = ctypes.c_uint64(), ctypes.c_uint64()
    call("cuMemAllocPitch_v2", ctypes.byref(va), ctypes.byref(pitch), number(size), number(1), 4)
    return va.value


def managed(size):
    va = ctypes.c_uint64()
    call("cuMemAllocManaged", ctypes.byref(va), number(size), 1)
    return va.value


def stream_ordered(size):
    va = ctypes.c_uint64()
    call("cuMemAllocAsync", ctypes.byref(va), number(size), number(0))
    return va.value


def pinned(size):
    va = ctypes.c_uint64()
    call("cuMemHostAlloc", ctypes.byref(va), number(size), 0)
    return va.value


def registered(size):
    buffer = LIBC.mmap(None, number(size), 3, 0x22, -1, number(0))
    call("cuMemHostRegister_v2", number(buffer), number(size), 0)
    return buffer


def tagged(name, function, *args):
    with lien.tag(name):
        return function(*args)


def push(name):
    """For the rest of the thread's life."""
    lien.tag(name).__enter__()


def raw_push(name):
    return LIBC.lien_tag_push(name)


def raw_pop():
    return LIBC.lien_tag_pop()


def in_thread(function, *args):
    found = []

    def work():
        init(0)
        found.append(function(*args))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def warnings_of(function, *args):
    with warnings.catch_warnings(record=True) as caught_here:
        warnings.simplefilter("always")
        function(*args)
    return [str(warning.message) for warning in caught_here]


def tag_of_event(size, name):
    with lien.events() as stream:
        tagged(name, tensor, size)
        return next(event.arguments.get("tag") for event in stream
                    if event.name == "cuMemCreate" and event.arguments["size"] == size)


class Saver:
    """The C functions as torch_memory_saver's Python package calls them (its binary_wrapper.py and entrypoint.py),
    from the library that it finds in LD_PRELOAD."""

    def __init__(self):
        [path] = [path for path in os.environ["LD_PRELOAD"].split(":") if "torch_memory_saver" in path]
        self.c = ctypes.CDLL(path)
        for name in "tag", "cpu_backup_backend":
            getattr(self.c, "tms_set_%s" % name.replace("tag", "current_tag")).argtypes = [ctypes.c_char_p]
            getattr(self.c, "tms_get_%s" % name.replace("tag", "current_tag")).restype = ctypes.c_char_p
        for name in "interesting_region", "enable_cpu_backup", "enable_disk_backup", "retain_cpu_backup":
            getattr(self.c, "tms_set_%s" % name).argtypes = [ctypes.c_bool]
            getattr(self.c, "tms_get_%s" % name).restype = ctypes.c_bool
        self.c.tms_set_disk_backup_dir.argtypes = [ctypes.c_char_p]
        self.c.tms_pause.argtypes = self.c.tms_resume.argtypes = [ctypes.c_char_p]
        self.c.set_memory_margin_bytes.argtypes = [ctypes.c_uint64]
        self.c.tms_get_cpu_backup_pointer.argtypes = [ctypes.POINTER(ctypes.c_uint8), ctypes.c_uint64]
        self.c.tms_get_cpu_backup_pointer.restype = ctypes.POINTER(ctypes.c_uint8)
        self.c.tms_torch_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.c.tms_torch_malloc.restype = ctypes.c_void_p
        self.c.tms_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

    def state(self):
        return (self.c.tms_get_current_tag().decode(), self.c.tms_get_interesting_region(),
                self.c.tms_get_enable_cpu_backup(), self.c.tms_get_cpu_backup_backend().decode(),
                self.c.tms_get_enable_disk_backup())

    def set(self, tag, interesting, backup, backend, disk):
        self.c.tms_set_current_tag(tag.encode())
        self.c.tms_set_interesting_region(interesting)
        self.c.tms_set_enable_cpu_backup(backup)
        self.c.tms_set_cpu_backup_backend(backend.encode())
        self.c.tms_set_enable_disk_backup(disk)

    def region(self, tag, backup, function, *args, disk=False):
        before = self.state()
        self.set(tag, True, backup, "pinned", disk)
        try:
            return function(*args)
        finally:
            assert self.state() == (tag, True, backup, "pinned", disk)
            self.set(*before)

    def pause(self, tag=None):
        return self.c.tms_pause(tag.encode() if tag else None)

    def backup(self, address, size):
        found = self.c.tms_get_cpu_backup_pointer(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), size)
        return bytes(found[:size]) if found else None

    def resume(self, tag=None):
        return self.c.tms_resume(tag.encode() if tag else None)


def fill(va, size, byte):
    call("cuMemsetD8_v2", number(va), ctypes.c_ubyte(byte), number(size))


def holds(va, size, byte):
    """Is each of the bytes this one?"""
    buffer = ctypes.create_string_buffer(size)
    call("cuMemcpyDtoH_v2", buffer, number(va), number(size))
    return buffer.raw == bytes([byte]) * size


def export(handle):
    fd = ctypes.c_int()
    call("cuMemExportToShareableHandle", ctypes.byref(fd), number(handle), 1, number(0))
    return fd.value


def take(owner, fd, size, device=0):
    """Imports and maps what another process exports; the address."""
    mine = LIBC.syscall(PIDFD_GETFD, os.pidfd_open(owner), fd, 0)
    if mine < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    handle = ctypes.c_uint64()
    call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(mine), 1)
    os.close(mine)
    return show(handle.value, size, device)


def ipc_handle(va):
    """Of legacy IPC, for memory of plain()."""
    handle = ctypes.create_string_buffer(64)
    call("cuIpcGetMemHandle", handle, number(va))
    return handle.raw


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle"""
    _fields_ = [("reserved", ctypes.c_byte * 64)]


def open_ipc(handle):
    va = ctypes.c_uint64()
    call("cuIpcOpenMemHandle_v2", ctypes.byref(va), IpcHandle.from_buffer_copy(handle), 1)
    return va.value


def caught(function, *args, **more):
    """What a LienError says to a program."""
    try:
        function(*args, **more)
    except lien.LienError as error:
        return {"code": error.code, "process": error.process, "holder": error.holder, "remedy": error.remedy,
                "message": str(error)}
    return None


async def cancel_when(path, coroutine):
    """Begins it, and cancels it when there is such a file."""
    task = asyncio.ensure_future(coroutine)
    while not os.path.exists(path):
        await asyncio.sleep(0.01)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return "cancelled"
    return "not cancelled"


class Calling(threading.Thread):
    """A thread that calls the driver all the time, and cannot be held: it blocks all signals, by system call,
    as glibc would leave out its own."""

    def __init__(self):
        super().__init__()
        self.calls, self.ended = 0, False
        self.start()

    def run(self):
        every = ctypes.c_uint64(2**64 - 1)
        ctypes.CDLL(None).syscall(14, signal.SIG_BLOCK, ctypes.byref(every), None, 8)  # rt_sigprocmask
        init(0)
        while not self.ended:
            fill(address, 4096, 0x5a)
            self.calls += 1

    def end(self):
        self.ended = True
        self.join()


class Churning(threading.Thread):
    """A thread that makes memory and frees it, by handle, all the time."""

    def __init__(self):
        super().__init__()
        self.rounds, self.ended = 0, False
        self.start()

    def run(self):
        init(0)
        while not self.ended:
            free(tensor(1 << 21), 1 << 21)
            self.rounds += 1

    def after(self, rounds):
        """Waits for so many more; returns whether they came."""
        last, end = self.rounds + rounds, time.monotonic() + 10
        while self.rounds < last and time.monotonic() < end:
            time.sleep(0.01)
        return self.rounds >= last

    def end(self):
        self.ended = True
        self.join()


def collect(stream, last):
    """The events up to the creation of so many bytes, as `lien events --json` has them."""
    found = []
    for event in stream:
        found.append([event.name, event.pid, event.tid, event.command, dict(event.arguments), event.result,
                      event.inside, event.control, event.partial, event.seconds])
        if event.name == "cuMemCreate" and event.arguments["size"] == last:
            return found
    return None


def examples(modules):
    names = dict(globals(), allocate=lambda size: call("cuMemRelease", number(create(size))))
    failed = tried = 0
    for name in modules:
        module = importlib.import_module(name)
        found = doctest.testmod(module, extraglobs={key: names[key] for key in (
            "lien", "asyncio", "pid", "address", "allocate", "tensor", "free")})
        failed, tried = failed + found.failed, tried + found.attempted
    return failed, tried


def serve():
    print("ready %d %#x" % (pid, address), flush=True)
    for line in sys.stdin:
        try:
            answer = "ok %r" % (eval(line, globals()),)  # pylint: disable=eval-used
        except Exception as error:  # pylint: disable=broad-except
            answer = "error %s: %s" % (type(error).__name__, error)
        print(answer.replace("\n", " "), flush=True)


if __name__ == "__main__":
    saver = Saver() if "torch_memory_saver" in os.environ.get("LD_PRELOAD", "") else None
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the shell may have told us to ignore it
    doctests = sys.argv[3:] if "--doctest" in sys.argv else None
    init(0 if doctests or len(sys.argv) < 3 else int(sys.argv[2]))
    size = int(sys.argv[1])
    first = create(size, 0 if doctests or len(sys.argv) < 3 else int(sys.argv[2]))
    address = show(first, size, 0 if doctests or len(sys.argv) < 3 else int(sys.argv[2]))
    fill(address, size, 0x5a)
    if doctests:
        print("ready %d %#x" % (pid, address), flush=True)
        sys.stdin.readline()
        print("%d %d" % examples(doctests), flush=True)
    else:
        serve()
