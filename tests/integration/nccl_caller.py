#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A rank that calls NCCL through ctypes, in the manner of vLLM's and SGLang's pynccl: it opens libnccl.so.2,
and binds each function by getattr(). It evaluates the expressions that it is given, one a line, and answers
"ok VALUE" or "error TEXT". nccl_caller.py DEVICE."""

import ctypes
import os
import sys
import threading

COUNT = 4096
UINT32, SUM, SUSPEND_MEM = 3, 0, 1
NON_BLOCKING = 1  # a stream that waits for no other: ranks would wait for each other on two communicators


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


cuda = ctypes.CDLL("libcuda.so.1")
nccl = ctypes.CDLL(os.environ.get("NCCL_LIBRARY", "libnccl.so.2"))
comms, stream, memory, threads = [], ctypes.c_void_p(), [ctypes.c_uint64(), ctypes.c_uint64()], {}


def driver(name, *args):
    result = getattr(cuda, name)(*args)
    if result:
        raise RuntimeError("%s: %d" % (name, result))


def start(device):
    context = ctypes.c_void_p()
    driver("cuInit", 0)
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver("cuCtxSetCurrent", context)
    driver("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
    for buffer in memory:
        driver("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(4 * COUNT))
    return context


def free_bytes():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def has(name):
    return hasattr(nccl, name)


def call(name, *args):
    return getattr(nccl, name)(*args)


def unique():
    ident = UniqueId()
    call("ncclGetUniqueId", ctypes.byref(ident))
    return bytes(ident).hex()


def init(ident, nranks, rank):
    """The communicator's number here."""
    comm = ctypes.c_void_p()
    result = call("ncclCommInitRank", ctypes.byref(comm), nranks, UniqueId.from_buffer_copy(bytes.fromhex(ident)), rank)
    if result:
        raise RuntimeError("ncclCommInitRank: %d" % result)
    comms.append(comm)
    return len(comms) - 1


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int), ("more", ctypes.c_int * 32)]


def init_later(ident, nranks, rank):
    """A communicator that does not block, when it is made."""
    comm, error = ctypes.c_void_p(), ctypes.c_int(7)
    config = Config(ctypes.sizeof(Config), 0xcafebeef, 22809, 0)
    call("ncclCommInitRankConfig", ctypes.byref(comm), nranks, UniqueId.from_buffer_copy(bytes.fromhex(ident)), rank,
         ctypes.byref(config))
    while error.value == 7:
        call("ncclCommGetAsyncError", comm, ctypes.byref(error))
    comms.append(comm)
    return len(comms) - 1


def tag(name):
    """What this thread allocates from now on has the tag."""
    return ctypes.CDLL(None).lien_tag_push(name.encode())


def untag():
    return ctypes.CDLL(None).lien_tag_pop()


def split(number, color, key):
    comm = ctypes.c_void_p()
    result = call("ncclCommSplit", comms[number], color, key, ctypes.byref(comm), None)
    if result:
        raise RuntimeError("ncclCommSplit: %d" % result)
    comms.append(comm)
    return len(comms) - 1


def address(number):
    return comms[number].value


def all_reduce(number, value, on=None, buffers=memory):
    """What all have in the end, if all of it is equal."""
    on = on or stream
    data = (ctypes.c_uint32 * COUNT)(*([value] * COUNT))
    driver("cuMemcpyHtoDAsync_v2", buffers[0], data, ctypes.c_size_t(4 * COUNT), on)
    result = call("ncclAllReduce", ctypes.c_void_p(buffers[0].value), ctypes.c_void_p(buffers[1].value),
                  ctypes.c_size_t(COUNT), UINT32, SUM, comms[number], on)
    if result:
        return "result %d" % result
    driver("cuMemcpyDtoHAsync_v2", data, buffers[1], ctypes.c_size_t(4 * COUNT), on)
    driver("cuStreamSynchronize", on)
    return data[0] if len(set(data)) == 1 else list(set(data))


def apart(number, value):
    """The same, with a stream and memory of its own, so that it can wait beside others."""
    on, buffers = ctypes.c_void_p(), [ctypes.c_uint64(), ctypes.c_uint64()]
    driver("cuStreamCreate", ctypes.byref(on), NON_BLOCKING)
    for buffer in buffers:
        driver("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(4 * COUNT))
    return all_reduce(number, value, on, buffers)


def refused(number):
    """A call that NCCL does not make: there is no such type."""
    return call("ncclAllReduce", ctypes.c_void_p(memory[0].value), ctypes.c_void_p(memory[1].value),
                ctypes.c_size_t(COUNT), 99, SUM, comms[number], stream)


def traffic(number, steps):
    """All-reduces of 0, 1, 2, ...; what they give."""
    on, buffers = ctypes.c_void_p(), [ctypes.c_uint64(), ctypes.c_uint64()]
    driver("cuStreamCreate", ctypes.byref(on), NON_BLOCKING)
    for buffer in buffers:
        driver("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(4 * COUNT))
    return [all_reduce(number, step, on, buffers) for step in range(steps)]


def grouped(numbers, value):
    """The same on several communicators, in one group of NCCL's."""
    buffers = [[ctypes.c_uint64(), ctypes.c_uint64()] for _ in numbers]
    data = (ctypes.c_uint32 * COUNT)(*([value] * COUNT))
    for pair in buffers:
        for buffer in pair:
            driver("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(4 * COUNT))
        driver("cuMemcpyHtoDAsync_v2", pair[0], data, ctypes.c_size_t(4 * COUNT), stream)
    results = [call("ncclGroupStart")]
    for number, (source, target) in zip(numbers, buffers):
        results.append(call("ncclAllReduce", ctypes.c_void_p(source.value), ctypes.c_void_p(target.value),
                            ctypes.c_size_t(COUNT), UINT32, SUM, comms[number], stream))
    results.append(call("ncclGroupEnd"))
    values = []
    for _, target in buffers:
        driver("cuMemcpyDtoHAsync_v2", data, target, ctypes.c_size_t(4 * COUNT), stream)
        driver("cuStreamSynchronize", stream)
        values.append(data[0])
    return values if not any(results) else results


def window(number):
    """Makes memory known to all ranks, which meet in it."""
    buffer, made = ctypes.c_void_p(), ctypes.c_void_p()
    return [call("ncclMemAlloc", ctypes.byref(buffer), ctypes.c_size_t(2 << 20)),
            call("ncclCommWindowRegister", comms[number], buffer, ctypes.c_size_t(2 << 20), ctypes.byref(made), 1)]


def suspend(number, flags=SUSPEND_MEM):
    return call("ncclCommSuspend", comms[number], flags)


def resume(number):
    return call("ncclCommResume", comms[number])


def statistic(number, which):
    value = ctypes.c_uint64(99)
    return call("ncclCommMemStats", comms[number], which, ctypes.byref(value)), value.value


def destroy(number):
    return call("ncclCommDestroy", comms[number])


def group_id():
    value = ctypes.c_int(-1)
    return call("ncclGetGroupID", ctypes.byref(value)), value.value


def version():
    value = ctypes.c_int(0)
    return call("ncclGetVersion", ctypes.byref(value)), value.value


def last_error():
    function = nccl.ncclGetLastError
    function.restype = ctypes.c_char_p
    return function(None).decode()


def in_thread(name, expression):
    """Begins it in a thread of its own; joined(name) has its value."""
    def work():
        driver("cuCtxSetCurrent", context)
        threads[name][1].append(eval(expression))  # pylint: disable=eval-used
    threads[name] = threading.Thread(target=work, daemon=True), []
    threads[name][0].start()


def joined(name, limit=300.0):
    threads[name][0].join(limit)
    return threads[name][1][0] if threads[name][1] else None


def in_child(expression):
    """Its value, a small number, in a child."""
    child = os.fork()
    if not child:
        os._exit(eval(expression))  # pylint: disable=eval-used,protected-access
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


context = start(int(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    try:
        print("ok %r" % (eval(line),), flush=True)  # pylint: disable=eval-used
    except Exception as error:  # pylint: disable=broad-except
        print("error %s" % " ".join(str(error).split()), flush=True)
