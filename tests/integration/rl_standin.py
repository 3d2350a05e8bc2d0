#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Takes the place of tests/gpu/rl_engine.py where there is no PyTorch: the same options, commands and answers, with
memory of the software driver. "Training" and "decoding" change that memory, and give values that depend on all of it.

RL_FAULT in the environment names something that rl.py must notice:

    handover  other weights arrive than were handed over
    lost      the trainer's memory is not what it was after its absence
    values    a rank under `lien run` computes something else
    ranks     the ranks of the rollout do not agree
    growth    the rollout needs 40 MiB more in each turn
    slow      each step of training takes a second
"""

import argparse
import ctypes
import json
import mmap
import os
import sys
import time
import warnings
import zlib

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "..", "tools", "python"))
import lien  # noqa: E402  pylint: disable=wrong-import-position

FAULT = os.environ.get("RL_FAULT", "")
MIB, GIB = 1 << 20, 1 << 30
OUT_OF_MEMORY = 2
DRIVER = ctypes.CDLL("libcuda.so.1")


def call(name, *args):
    code = getattr(DRIVER, name)(*args)
    if code == OUT_OF_MEMORY:
        raise MemoryError("%s: CUDA out of memory" % name)
    if code:
        raise RuntimeError("%s: %d" % (name, code))


class Memory:
    def __init__(self, size):
        self.size, self.address = size, ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(size))

    def read(self):
        buffer = ctypes.create_string_buffer(self.size)
        call("cuMemcpyDtoH_v2", buffer, self.address, ctypes.c_size_t(self.size))
        return buffer.raw

    def write(self, data):
        call("cuMemcpyHtoD_v2", self.address, bytes(data), ctypes.c_size_t(len(data)))

    def free(self):
        call("cuMemFree_v2", self.address)


class Handle(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char * 64)]


class Engine:
    def __init__(self, options):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.size = int(options.gib * GIB) // self.world // mmap.PAGESIZE * mmap.PAGESIZE
        self.cache_size = options.cache
        self.meet = options.meet
        self.main = self.handed = None

    def init(self):
        context = ctypes.c_void_p()
        device = int(os.environ["LOCAL_RANK"])
        call("cuInit", 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        return {"device": device, "reserved_bytes": 0}

    def checksum(self):
        return {"sum": zlib.crc32(self.main.read())}

    def put(self, name, data):
        path = os.path.join(self.meet, name)
        with open(path + "~", "wb") as file:
            file.write(data)
        os.rename(path + "~", path)

    def get(self, name):
        path = os.path.join(self.meet, name)
        while not os.path.exists(path):
            time.sleep(0.01)
        with open(path, "rb") as file:
            return file.read()


class Trainer(Engine):
    """Its weights, and three times as much beside them."""

    def setup(self):
        info = self.init()
        self.main = Memory(4 * self.size)
        self.main.write(bytes([self.rank + 1]) * self.main.size)
        return info

    def train(self, step, reward):
        if FAULT == "slow":
            time.sleep(1)
        seed = zlib.crc32(("%s %s %d" % (step, reward, self.rank)).encode())
        if FAULT == "values" and "liblien-control" in os.environ.get("LD_PRELOAD", ""):
            seed += 1
        moved = self.main.read()
        moved = moved[seed % 1000:] + moved[:seed % 1000]
        data = bytes((seed >> n & 0xff) for n in (0, 8)) * 4096 + moved[8192:]
        self.main.write(data)
        return {"loss": float(zlib.crc32(data, seed)).hex(), "reserved_bytes": 0}

    def gather(self):
        self.handed = Memory(self.size)
        self.handed.write(self.main.read()[:self.size])
        return {"sum": zlib.crc32(self.handed.read())}

    def publish(self):
        answer, handle = self.gather(), Handle()
        call("cuIpcGetMemHandle", ctypes.byref(handle), self.handed.address)
        return {**answer, "handle": bytes(handle).hex()}

    def send(self, name):
        answer = self.gather()
        self.put("weights %s.%d" % (name, self.rank), self.handed.read())
        return answer

    def release(self):
        self.handed.free()
        return {}

    def leave(self):
        self.away = self.main.read()
        self.main.free()
        return {"parts": {"copy": 1.0, "groups": 2.0}}

    def come_back(self):
        self.main = Memory(len(self.away))
        self.main.write(b"lost" + self.away[4:] if FAULT == "lost" else self.away)
        return {"parts": {"copy": 1.0, "groups": 2.0}}


class Rollout(Engine):
    def setup(self):
        info = self.init()
        self.grown = []
        self.come_back_weights()
        self.come_back()
        return info

    def take(self, data):
        self.main.write(data[:-1] + b"!" if FAULT == "handover" else data)
        return self.checksum()

    def load(self, *handles):
        memory = Memory.__new__(Memory)
        memory.size, memory.address = self.size, ctypes.c_uint64()
        call("cuIpcOpenMemHandle_v2", ctypes.byref(memory.address), Handle.from_buffer_copy(
            bytes.fromhex(handles[self.rank])), 1)
        answer = self.take(memory.read())
        call("cuIpcCloseMemHandle", memory.address)
        return answer

    def receive(self, name):
        return self.take(self.get("weights %s.%d" % (name, (self.rank - 1) % self.world)))

    def generate(self, step):
        self.cache.write(step.encode())
        self.put("digest %s.%d" % (step, self.rank), b"%d" % zlib.crc32(self.main.read(), int(step)))
        digest = sum(int(self.get("digest %s.%d" % (step, rank))) for rank in range(self.world)) % (1 << 32)
        if FAULT == "ranks" and self.rank:
            digest += 1
        if FAULT == "growth":
            self.grown.append(Memory(40 * MIB))
        return {"reward": float(digest % 1000).hex(), "digest": float(digest).hex()}

    def leave(self):
        self.main.free()
        self.cache.free()
        return {"parts": {"groups": 3.0}}

    def come_back_weights(self):
        with lien.tag("engine"):
            self.main = Memory(self.size)
        return {"parts": {"groups": 3.0}}

    def come_back(self):
        with lien.tag("kv_cache"):
            self.cache = Memory(max(self.cache_size, 2 * MIB))
        return {"parts": {"groups": 3.0}}


def probe():
    count = ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    size = ctypes.c_size_t()
    call("cuDeviceTotalMem_v2", ctypes.byref(size), 0)
    return {"torch": "none", "cuda": "none", "nccl": "none", "gpu": "software driver", "gpus": count.value,
            "gpu_bytes": size.value, "uuids": [""] * count.value}


def obey(engine, words):
    began = time.monotonic()
    answer = {"command": words[0], "ok": True}
    try:
        answer.update(getattr(engine, words[0].replace("-", "_"))(*words[1:]))
    except Exception as error:  # pylint: disable=broad-except
        answer.update(ok=False, error="%s: %s" % (type(error).__name__, error))
    answer["ms"] = 1e3 * (time.monotonic() - began)
    return answer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=("trainer", "rollout"))
    parser.add_argument("--gib", type=float)
    parser.add_argument("--cache", type=int)
    parser.add_argument("--meet")
    parser.add_argument("--probe", action="store_true")
    options = parser.parse_args()
    if options.probe:
        print(json.dumps(probe()))
        return
    warnings.filterwarnings("ignore", "lien.tag")
    engine = (Trainer if options.role == "trainer" else Rollout)(options)
    print(json.dumps({"command": "start", "ok": True, "pid": os.getpid()}), flush=True)
    for line in iter(sys.stdin.readline, ""):
        words = line.split()
        if words == ["quit"]:
            print(json.dumps({"command": "quit", "ok": True}), flush=True)
            return
        print(json.dumps(obey(engine, words)), flush=True)


if __name__ == "__main__":
    main()
