# SPDX-License-Identifier: BSD-2-Clause
"""Processes that use plain memory (prog_plain.c), under `lien run` or not."""

from lien_test import LIEN, MIB, Driver, Session, check, equal, program

# CUDA_ERROR_*
INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY, DESTROYED = 1, 2, 201, 400, 600, 709
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 900, 901

# The control library's own in each context that has allocated (control/plain/context.c).
KEPT = 2 * MIB
# A chunk of stream-ordered memory.
POOL = 32 * MIB


class Plain(Driver):
    """prog_plain under `lien run`; network: in one of its own. names: "linked", or "older", those of before CUDA 4 and 11."""

    def __init__(self, session, device=0, plain=False, names=None, under_lien=True, uid=None, network=False,
                 **environment):
        argv = (["unshare", "--net"] if network else []) + ([LIEN, "run", *(["--plain"] if plain else []), "--"] if under_lien else []) + [
            program("prog_plain")] + ([names] if names else [])
        super().__init__(session.spawn_as(uid, argv, **environment) if uid else
                         session.spawn(argv, **environment))
        self.context = self("init", device)

    def becomes(self, device=0):
        """Another program: the same one once more, with CUDA anew."""
        self.process.send("exec")
        line = self.process.line()
        check(line and line.startswith("ready "), "exec: %s" % line)
        self.context = self("init", device)

    def holds(self, address, size, value):
        equal(self("check", address, size, value), 1, "contents at %#x" % address)

    def handle(self, address):
        """What cuIpcGetMemHandle says, as a word."""
        return "0x%0128x" % self("ipc-get", address)


def plain_session(strict=True, **more):
    """strict: the use of a stale handle or address ends the process. But a thread that the gate holds at a
    handle asks with handle 0 (control/driver/translate.c), which is no handle either."""
    if strict:
        more["LIEN_SOFTCUDA_STRICT"] = "1"
    return Session(LIEN_PLAIN="0", **more)


def stays(session, pid):
    """Bytes of the process that an offload does not free."""
    return sum(row["bytes"] - row["offload_frees"] for row in session.ask("mem")["rows"]
               if row["pid"] == pid and row["owner"] != "lien-control")


def allocations(job):
    """Blocks of many sizes, each with contents: {address: (size, value)}"""
    made = {}
    for number, size in enumerate((1, 513, 70000, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 20 * MIB)):
        address = job("alloc", size)
        job("fill", address, size, number + 1)
        made[address] = size, number + 1
    return made
