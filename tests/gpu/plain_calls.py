#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Times the driver's plain memory, or finds where it runs out: prints one JSON object.

    plain_calls.py speed    us of cuMemAlloc + cuMemFree by MiB (median), GiB/s of copies and memsets
    plain_calls.py full     bytes that could be had in pieces of 1 GiB, 64 MiB and 2 MiB, and the error

One GPU, no PyTorch. Run it under `lien run` and under `lien run --plain`, and compare.
"""
import ctypes as c
import json
import sys
import time

MIB, GIB = 1 << 20, 1 << 30
ROUNDS = {2: 300, 20: 150, 1024: 30}  # by MiB
COPIES = 40
cuda = c.CDLL("libcuda.so.1")


def must(function: str, *arguments) -> None:
    code = getattr(cuda, function)(*arguments)
    if code:
        raise SystemExit(f"{function} failed: {code}")


def begin() -> None:
    context = c.c_void_p()
    must("cuInit", c.c_uint(0))
    must("cuDevicePrimaryCtxRetain", c.byref(context), c.c_int(0))
    must("cuCtxSetCurrent", context)


def allocate(size: int) -> tuple[int, int]:
    address = c.c_uint64()
    return cuda.cuMemAlloc_v2(c.byref(address), c.c_size_t(size)), address.value


def free(address: int) -> None:
    must("cuMemFree_v2", c.c_uint64(address))


def pair_us(size: int, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        code, address = allocate(size)
        free(address)
        times.append((time.perf_counter() - began) * 1e6)
        if code:
            raise SystemExit(f"cuMemAlloc of {size}: {code}")
    return sorted(times)[rounds // 2]


def rate(function: str, *arguments) -> float:
    """GiB/s of a call that works on 1 GiB."""
    must(function, *arguments)
    must("cuCtxSynchronize")
    began = time.perf_counter()
    for _ in range(COPIES):
        must(function, *arguments)
    must("cuCtxSynchronize")
    return COPIES / (time.perf_counter() - began)


def speed() -> dict:
    begin()
    kept = [allocate(513)[1] for _ in range(10)]  # so that small ones have a chunk
    small = pair_us(513, 500)
    result = {"pair_us": {str(mib): pair_us(mib * MIB, rounds) for mib, rounds in ROUNDS.items()}}
    result["pair_us"]["513 B"] = small
    one, two = c.c_uint64(allocate(GIB)[1]), c.c_uint64(allocate(GIB)[1])
    result["copy"] = rate("cuMemcpyDtoDAsync_v2", one, two, c.c_size_t(GIB), None)
    result["memset"] = rate("cuMemsetD32Async", one, c.c_uint(1), c.c_size_t(GIB // 4), None)
    return {**result, "kept": len(kept)}


def full() -> dict:
    begin()
    left, total = c.c_size_t(), c.c_size_t()
    must("cuMemGetInfo_v2", c.byref(left), c.byref(total))
    got, code = 0, 0
    for size in (GIB, 64 * MIB, 2 * MIB):
        while True:
            code, _ = allocate(size)
            if code:
                break
            got += size
    return {"bytes": got, "free": left.value, "error": code}


if __name__ == "__main__":
    print(json.dumps({"speed": speed, "full": full}[sys.argv[1]]()))
