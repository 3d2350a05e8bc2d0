#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Copies within and between two devices, with the context of either current: what the driver answers, and whether the
bytes arrived.

two_devices.py: prints one JSON object, {"call, where, which context": [error, right]}, at the beginning and for each
line that it reads. Memory is allocated once, by cuMemAlloc (of the first device before the second one has a context) and
by cuMemAllocAsync. The last object, when its input ends, says whether memory went with a context that was ended by
functions under their names of before CUDA 4 and 11. Needs no PyTorch. Run it under `lien run` and under `lien run --plain`, and compare.
"""
import ctypes as c
import json
import sys

MIB = 1 << 20
BYTES = 4096
PIECE = 2 * MIB
cuda = c.CDLL("libcuda.so.1")
HOST, DEVICE, UNIFIED = 1, 2, 4  # CUmemorytype


class Copy2D(c.Structure):
    """CUDA_MEMCPY2D: BYTES as 8 rows."""
    _fields_ = [(side + name, kind) for side in ("src", "dst") for name, kind in (
        ("XInBytes", c.c_size_t), ("Y", c.c_size_t), ("MemoryType", c.c_int), ("Host", c.c_void_p),
        ("Device", c.c_uint64), ("Array", c.c_void_p), ("Pitch", c.c_size_t))] + [
        ("WidthInBytes", c.c_size_t), ("Height", c.c_size_t)]

    def __init__(self, to, source, kind):
        super().__init__(srcMemoryType=kind, srcDevice=source, srcPitch=BYTES // 8, dstMemoryType=kind, dstDevice=to,
                         dstPitch=BYTES // 8, WidthInBytes=BYTES // 8, Height=8)


def must(function, *arguments):
    error = getattr(cuda, function)(*arguments)
    if error:
        raise SystemExit(f"{function} failed: {error}")


class Devices:
    def __init__(self):
        must("cuInit", 0)
        self.contexts, self.streams, self.memory = [], [], {}
        for device in range(2):
            context, stream = c.c_void_p(), c.c_void_p()
            must("cuDevicePrimaryCtxRetain", c.byref(context), device)
            self.contexts.append(context)
            self.current(device)
            must("cuStreamCreate", c.byref(stream), 1)
            self.streams.append(stream)
            for name, function in (("plain", "cuMemAlloc_v2"), ("stream-ordered", "cuMemAllocAsync")):
                address = c.c_uint64()
                must(function, c.byref(address), c.c_size_t(PIECE), *([None] if name != "plain" else []))
                self.memory[name, device] = address.value
            must("cuCtxSynchronize")
        self.host = c.create_string_buffer(BYTES)
        self.value = 0

    def current(self, device):
        must("cuCtxSetCurrent", self.contexts[device])

    def put(self, device, address, value):
        self.current(device)
        must("cuMemcpyHtoD_v2", c.c_uint64(address), bytes([value]) * BYTES, c.c_size_t(BYTES))

    def has(self, device, address, value):
        self.current(device)
        must("cuCtxSynchronize")
        must("cuMemcpyDtoH_v2", self.host, c.c_uint64(address), c.c_size_t(BYTES))
        return self.host.raw == bytes([value]) * BYTES

    def tried(self, now, call, device, address):
        """call() with the context of `now` current; does the device's memory there have the new value then?"""
        self.current(now)
        error = call()
        wait = cuda.cuCtxSynchronize()
        return [error or wait, self.has(device, address, self.value)]

    def new_value(self):
        self.value = self.value % 250 + 1
        return self.value

    def copies(self):
        found = {}
        size = c.c_size_t(BYTES)
        for kind in ("plain", "stream-ordered"):
            for now in range(2):
                stream = self.streams[now]
                for device in range(2):
                    at, label = self.memory[kind, device], f"{kind} memory of {device}, context of {now}"
                    to = c.c_uint64(at)
                    for function, more in (("cuMemcpyHtoD_v2", []), ("cuMemcpyHtoDAsync_v2", [stream])):
                        source = c.create_string_buffer(bytes([self.new_value()]) * BYTES, BYTES)
                        found[f"{function}, {label}"] = self.tried(
                            now, lambda: getattr(cuda, function)(to, source, size, *more), device, at)
                    for function, more in (("cuMemsetD8_v2", []), ("cuMemsetD8Async", [stream])):
                        value = self.new_value()
                        found[f"{function}, {label}"] = self.tried(
                            now, lambda: getattr(cuda, function)(to, c.c_ubyte(value), size, *more), device, at)
                    self.put(device, at, self.new_value())
                    self.current(now)
                    error = cuda.cuMemcpyDtoH_v2(self.host, to, size)
                    found[f"cuMemcpyDtoH_v2, {label}"] = [error, self.host.raw == bytes([self.value]) * BYTES]
                for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
                    source, at = self.memory[kind, a], self.memory[kind, b] + MIB
                    label = f"{kind} memory of {a} to {b}, context of {now}"
                    x, y = c.c_uint64(at), c.c_uint64(source)
                    for name, call in {
                            "cuMemcpy": lambda: cuda.cuMemcpy(x, y, size),
                            "cuMemcpyAsync": lambda: cuda.cuMemcpyAsync(x, y, size, stream),
                            "cuMemcpyDtoD_v2": lambda: cuda.cuMemcpyDtoD_v2(x, y, size),
                            "cuMemcpyDtoDAsync_v2": lambda: cuda.cuMemcpyDtoDAsync_v2(x, y, size, stream),
                            "cuMemcpy2D_v2": lambda: cuda.cuMemcpy2D_v2(c.byref(Copy2D(at, source, DEVICE))),
                            "cuMemcpy2D_v2, unified": lambda: cuda.cuMemcpy2D_v2(c.byref(Copy2D(at, source, UNIFIED))),
                            "cuMemcpy2DAsync_v2": lambda: cuda.cuMemcpy2DAsync_v2(
                                c.byref(Copy2D(at, source, DEVICE)), stream),
                            "cuMemcpyPeer": lambda: cuda.cuMemcpyPeer(
                                x, self.contexts[b], y, self.contexts[a], size)}.items():
                        self.put(a, source, self.new_value())
                        found[f"{name}, {label}"] = self.tried(now, call, b, at)
        return found

    def older(self):
        """The memory of a context goes with it, whatever the function is called."""
        found = {}

        def used():
            free, total = c.c_size_t(), c.c_size_t()
            self.current(0)
            must("cuMemGetInfo_v2", c.byref(free), c.byref(total))
            return total.value - free.value
        before = used()
        context, address = c.c_void_p(), c.c_uint64()
        must("cuCtxCreate_v2", c.byref(context), 0, 0)
        must("cuMemAlloc_v2", c.byref(address), c.c_size_t(512 * MIB))
        found["cuCtxDestroy"] = [cuda.cuCtxDestroy(context), used() - before < 256 * MIB]
        before = used()
        self.current(1)
        must("cuMemAlloc_v2", c.byref(address), c.c_size_t(512 * MIB))
        found["cuDevicePrimaryCtxReset"] = [cuda.cuDevicePrimaryCtxReset(1), used() - before < 256 * MIB]
        return found


def main():
    devices = Devices()
    print(json.dumps(devices.copies()), flush=True)
    for _ in sys.stdin:
        print(json.dumps(devices.copies()), flush=True)
    print(json.dumps(devices.older()), flush=True)


if __name__ == "__main__":
    main()
