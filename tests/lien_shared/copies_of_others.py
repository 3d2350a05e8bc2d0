#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Frees memory while another context still copies to or from it: does the free wait, and does the copy succeed?

copies_of_others.py DEVICE [NAME...]: prints one JSON object, {"copy, which context": [waited, error of the copy, right]},
where `waited` is true if cuMemFree returned only after the copy could begin, and `right` if the destination, where it
lives on, has the bytes. DEVICE is the other one. With names, only these copies: the software driver does some at once.
Run it natively and under `lien run`.
"""
import ctypes as c
import json
import sys
import threading

BYTES = 4 << 20
ROWS = 8
HOST, DEVICE = 1, 2  # CUmemorytype
LARGE = 1 << 30
VALUE = 0x5A
SYNC_MEMOPS = 6  # CUpointer_attribute
NOT_READY = 600
WITH_HOST = ("HtoD", "DtoH", "any, from the host", "rows, from the host", "boxes, to the host")
SYNCHRONOUS = "under way, always synchronous and not"
BETWEEN = ("DtoD, from it", "any, to it", "peer, to it", "boxes between contexts")
cuda = c.CDLL("libcuda.so.1")


def rows(name, depth, peer):
    """CUDA_MEMCPY2D, CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER."""
    size, pointer = c.c_size_t, c.c_void_p
    fields = []
    for side in ("src", "dst"):
        fields += [(side + "XInBytes", size), (side + "Y", size)]
        fields += [(side + "Z", size), (side + "LOD", size)] if depth else []
        fields += [(side + "MemoryType", c.c_int), (side + "Host", pointer), (side + "Device", c.c_uint64),
                   (side + "Array", pointer)]
        fields += [(side + "Context", pointer)] if depth else []  # reserved without `peer`
        fields += [(side + "Pitch", size)]
        fields += [(side + "Height", size)] if depth else []
    fields += [("WidthInBytes", size), ("Height", size)] + ([("Depth", size)] if depth else [])
    return type(name, (c.Structure,), {"_fields_": fields, "peer": peer})


Copy2D, Copy3D, Copy3DPeer = rows("Copy2D", False, False), rows("Copy3D", True, False), rows("Copy3DPeer", True, True)


def call(function, *arguments):
    return getattr(cuda, function)(*arguments)


def must(function, *arguments):
    error = call(function, *arguments)
    if error:
        raise SystemExit(f"{function} failed: {error}")


def current(context):
    must("cuCtxSetCurrent", context)


def alloc(context):
    address = c.c_uint64()
    current(context)
    must("cuMemAlloc_v2", c.byref(address), c.c_size_t(BYTES))
    return address


def of_rows(kind, to, source, contexts, on_host):
    """The host memory is the side of which on_host is true: (to, source)."""
    copy = kind(WidthInBytes=BYTES // ROWS, Height=ROWS, **({"Depth": 1} if kind is not Copy2D else {}))
    for side, address, context, host in zip(("dst", "src"), (to, source), contexts, on_host):
        setattr(copy, side + "MemoryType", HOST if host else DEVICE)
        setattr(copy, side + ("Host" if host else "Device"), address.value)
        setattr(copy, side + "Pitch", BYTES // ROWS)
        if kind is not Copy2D:
            setattr(copy, side + "Height", ROWS)
        if kind.peer:
            setattr(copy, side + "Context", context.value)
    return copy


class Trial:
    """A stream of `user`, in which nothing goes on before go_on(), and memory of `owner`'s and of `user`'s."""

    def __init__(self, owner, user, host):
        self.owner, self.user, self.host = owner, user, host
        self.theirs, self.mine = alloc(owner), alloc(user)
        self.stream = c.c_void_p()
        must("cuStreamCreate", c.byref(self.stream), 1)
        self.gate = threading.Event()
        self.held = c.CFUNCTYPE(None, c.c_void_p)(lambda _: self.gate.wait())
        must("cuLaunchHostFunc", self.stream, self.held, None)

    def copy(self, name):
        size, stream = c.c_size_t(BYTES), self.stream
        out, back = (self.owner, self.user), (self.user, self.owner)
        if name == "HtoD":
            return call("cuMemcpyHtoDAsync_v2", self.theirs, self.host, size, stream)
        if name == "DtoH":
            return call("cuMemcpyDtoHAsync_v2", self.host, self.theirs, size, stream)
        if name == "any, from the host":
            return call("cuMemcpyAsync", self.theirs, c.c_uint64(self.host.value), size, stream)
        if name == "DtoD, from it":
            return call("cuMemcpyDtoDAsync_v2", self.mine, self.theirs, size, stream)
        if name == "any, to it":
            return call("cuMemcpyAsync", self.theirs, self.mine, size, stream)
        if name == "peer, to it":
            return call("cuMemcpyPeerAsync", self.theirs, self.owner, self.mine, self.user, size, stream)
        if name == "rows, from the host":
            return call("cuMemcpy2DAsync_v2",
                        c.byref(of_rows(Copy2D, self.theirs, self.host, out, (False, True))), stream)
        if name == "boxes, to the host":
            return call("cuMemcpy3DAsync_v2",
                        c.byref(of_rows(Copy3D, self.host, self.theirs, back, (True, False))), stream)
        if name == "boxes between contexts":
            return call("cuMemcpy3DPeerAsync",
                        c.byref(of_rows(Copy3DPeer, self.mine, self.theirs, back, (False, False))), stream)
        raise ValueError(name)

    def run(self, name):
        current(self.owner)
        must("cuMemsetD8_v2", self.theirs, c.c_ubyte(VALUE), c.c_size_t(BYTES))
        c.memset(self.host, 0, BYTES)
        current(self.user)
        error = self.copy(name)
        freed = threading.Thread(target=self.free)
        freed.start()
        freed.join(0.2)
        waited = freed.is_alive()
        self.gate.set()
        freed.join()
        current(self.user)
        error = error or call("cuStreamSynchronize", self.stream)
        if not error and name in ("DtoD, from it", "boxes between contexts"):
            must("cuMemcpyDtoH_v2", self.host, self.mine, c.c_size_t(BYTES))
        right = name.endswith(("from the host", "to it", "HtoD")) or \
            c.string_at(self.host, BYTES) == bytes([VALUE]) * BYTES
        must("cuStreamDestroy_v2", self.stream)
        must("cuMemFree_v2", self.mine)
        return [waited, error, right]

    def free(self):
        current(self.owner)
        must("cuMemFree_v2", self.theirs)


def context_of(device):
    context = c.c_void_p()
    must("cuDevicePrimaryCtxRetain", c.byref(context), device)
    return context


def synchronous(context):
    """With CU_POINTER_ATTRIBUTE_SYNC_MEMOPS set, cleared: is work under way when a call for that memory has returned?"""
    current(context)
    one, two, large = c.c_uint64(), c.c_uint64(), c.c_size_t(LARGE)
    for address in (one, two):
        must("cuMemAlloc_v2", c.byref(address), large)
    found = []
    for value in (1, 0):
        must("cuPointerSetAttribute", c.byref(c.c_int(value)), SYNC_MEMOPS, two)
        for function, *arguments in (("cuMemcpyDtoD_v2", one, two, large), ("cuMemcpy", two, one, large),
                                     ("cuMemsetD8_v2", two, c.c_ubyte(1), large)):
            must(function, *arguments)
            found.append(call("cuStreamQuery", None) == NOT_READY)
            must("cuCtxSynchronize")
    for address in (one, two):
        must("cuMemFree_v2", address)
    return found


def main():
    must("cuInit", 0)
    first, other = context_of(0), c.c_void_p()
    must("cuCtxCreate_v2", c.byref(other), 0, 0)
    current(first)
    host = c.c_void_p()
    must("cuMemAllocHost_v2", c.byref(host), c.c_size_t(BYTES))
    wanted = sys.argv[2:] or (*WITH_HOST, *BETWEEN, SYNCHRONOUS)
    found = {}
    for where, user, names in (("another context of its device", other, WITH_HOST),
                               ("another device", context_of(int(sys.argv[1])), WITH_HOST + BETWEEN)):
        for name in names:
            if name in wanted:
                found[name + ", " + where] = Trial(first, user, host).run(name)
    if SYNCHRONOUS in wanted:
        found[SYNCHRONOUS] = synchronous(first)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
