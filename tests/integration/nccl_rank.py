# SPDX-License-Identifier: BSD-2-Clause
"""A process that makes the NCCL calls it is told to (prog_nccl.c), and ids for its communicators."""

import ipaddress
import struct

from lien_test import LIEN, SOFTNCCL, Driver, equal, program

SUCCESS, IN_PROGRESS = 0, 7


def unique_id(magic, address="10.1.2.3", port=4567, rest=0):
    """An ncclUniqueId, as NCCL fills it: in hexadecimal."""
    if ":" in address:
        place = struct.pack("<H", 10) + struct.pack(">HI", port, 0) + \
            ipaddress.ip_address(address).packed
    else:
        place = struct.pack("<H", 2) + struct.pack(">H", port) + \
            bytes(map(int, address.split(".")))
    return (struct.pack("<Q", magic) + place).ljust(127, b"\0").hex() + "%02x" % rest


class Rank(Driver):
    """A process that makes the NCCL calls it is told to (prog_nccl.c)."""

    def __init__(self, session, device=0, init=True, allocate=0, control=False):
        prefix = [LIEN, "run", "--"] if control else []
        super().__init__(session.spawn([*prefix, program("prog_nccl"), SOFTNCCL]))
        if init:
            self("init", device)
        if allocate:
            self("allocate", allocate)

    def made(self, command, *args, result=SUCCESS):
        """The communicator of a call that makes one."""
        found, comm = self(command, *args)
        equal(found, result, "result of %s" % command)
        return comm

    def call(self, kind, comm, count=1, datatype=2, times=1, thread=""):
        self(thread + "call", kind, comm, count, datatype, times)
