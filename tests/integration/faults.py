# SPDX-License-Identifier: BSD-2-Clause
"""Faults of the software driver (tests/softcuda/fault.h), put into the calls of a process."""

import ctypes
import mmap
import os

COUNT, FAIL, DELAY, KILL = range(4)
BY_APPLICATION, BY_CONTROL = 1, 2  # whose thread calls
UNKNOWN = 999  # CUDA_ERROR_UNKNOWN


class Record(ctypes.Structure):
    """struct softcuda_faults"""
    _fields_ = [(name, ctypes.c_uint32) for name in (
        "armed", "action", "result", "delay_ms", "by", "nth", "times")] + [
        ("function", ctypes.c_char * 48), ("calls", ctypes.c_uint32), ("hit", ctypes.c_uint32),
        ("log", ctypes.c_char * 48 * 2048)]


assert Record.calls.offset == 76 and Record.log.offset == 84


def folder(session):
    """Before processes are started that are to have faults."""
    path = session.path("faults")
    os.makedirs(path, exist_ok=True)
    session.environment["LIEN_SOFTCUDA_FAULTS"] = path


class Faults:
    """Of a process, by its pid in its own namespace, that has initialised CUDA."""

    def __init__(self, session, pid):
        with open(os.path.join(session.path("faults"), str(pid)), "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), ctypes.sizeof(Record))
        self.record = Record.from_buffer(self.memory)

    def arm(self, action, nth=1, times=1, function="", result=UNKNOWN, delay_ms=0, by=BY_CONTROL):
        record = self.record
        record.armed = record.calls = record.hit = 0
        record.action, record.nth, record.times, record.result = action, nth, times, result
        record.delay_ms, record.by, record.function = delay_ms, by, function.encode()
        record.armed = 1

    def disarm(self):
        """How many calls were hit."""
        self.record.armed = 0
        return self.record.hit

    def log(self):
        return [self.record.log[i].value.decode() for i in range(self.record.calls)]
