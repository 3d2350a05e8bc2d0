# SPDX-License-Identifier: BSD-2-Clause
"""A process's control thread, stopped at an order: by tracing it, when it has received that order or when
it is about to answer it. So a test can end an agent in any phase of a transaction."""

import contextlib
import ctypes
import os
import re
import signal
import struct

from lien_test import check, wait_for

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
with open(os.path.join(ROOT, "include", "lien", "wire.h")) as _wire:
    NAMES = re.findall(r"LIEN_WIRE_([A-Z]+)[ ,=]", _wire.read().split("enum lien_wire_type {")[1]
                       .split("};")[0])
TYPES = {name.lower(): number for number, name in enumerate(NAMES, 1)}
PTRACE_GETREGS, PTRACE_DETACH, PTRACE_SYSCALL = 12, 17, 24
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
TRACESYSGOOD, WALL, SYSCALL_STOP = 1, 0x40000000, signal.SIGTRAP | 0x80
SENDMSG, RECVMSG = 46, 47
FD_FLOOR = 900  # control/start.c
LAST = 2

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, tid, data=None):
    if libc.ptrace(request, tid, None, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace %d of %d: %s" % (
            request, tid, os.strerror(ctypes.get_errno())))


class Held:
    """The control thread of a process, to be stopped at one order."""

    def __init__(self, pid):
        self.pid = pid
        self.tid = wait_for("the control thread waits", self._find)
        ptrace(PTRACE_SEIZE, self.tid, TRACESYSGOOD)
        ptrace(PTRACE_INTERRUPT, self.tid)
        os.waitpid(self.tid, WALL)

    def _find(self):
        for tid in os.listdir("/proc/%d/task" % self.pid):
            with open("/proc/%d/task/%s/syscall" % (self.pid, tid)) as file:
                words = file.read().split()
            if words[0] == str(RECVMSG) and int(words[1], 16) >= FD_FLOOR:
                return int(tid)
        return None

    def _read(self, layout, address):
        with open("/proc/%d/mem" % self.pid, "rb", buffering=0) as memory:
            memory.seek(address)
            return struct.unpack(layout, memory.read(struct.calcsize(layout)))

    def _message(self, msghdr):
        """(type, flags)"""
        base = self._read("<Q", self._read("<Q", msghdr + 16)[0])[0]
        return self._read("<HH", base + 4)

    def until(self, name, answered):
        """Goes on until it has received that order, or is about to answer it."""
        registers = (ctypes.c_ulonglong * 27)()
        while True:
            ptrace(PTRACE_SYSCALL, self.tid)
            _, status = os.waitpid(self.tid, WALL)
            check(os.WIFSTOPPED(status), "the traced thread ended")
            if os.WSTOPSIG(status) != SYSCALL_STOP:
                continue
            ptrace(PTRACE_GETREGS, self.tid, registers)
            number, result, msghdr = registers[15], ctypes.c_longlong(registers[10]).value, \
                registers[13]
            entry = result == -38
            if answered and number == SENDMSG and entry:
                kind, flags = self._message(msghdr)
                if kind == TYPES[name] and flags & LAST:
                    return
            if not answered and number == RECVMSG and not entry and result > 0:
                if self._message(msghdr)[0] == TYPES[name]:
                    return

    def let_go(self):
        if self.tid:
            try:
                ptrace(PTRACE_DETACH, self.tid)
            except OSError:  # it runs, or was killed
                with contextlib.suppress(OSError):
                    ptrace(PTRACE_INTERRUPT, self.tid)
                os.waitpid(self.tid, WALL)
                with contextlib.suppress(OSError):
                    ptrace(PTRACE_DETACH, self.tid)
        self.tid = 0
