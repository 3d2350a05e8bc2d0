# SPDX-License-Identifier: BSD-2-Clause
"""Takes the place of vLLM in a python_job.py: modules with the names, classes and signatures of vLLM's sleep mode (its
repository at 0327d59, its documentation of 0.31), and memory of the software driver that it makes, maps and unmaps as
vLLM's allocator does.

    vllm_standin.start("registry")      one with sleep-mode backends
    vllm_standin.start("before")        one from before there were any
    vllm_standin.start("other")         one whose backends are registered in another way

A worker is one of a tensor-parallel and one of a pipeline-parallel group: lists of ranks, whose processes exchange
objects by files in a folder.
"""

import abc
import contextlib
import ctypes
import importlib
import importlib.metadata
import logging
import os
import pickle
import sys
import time
import types

job = sys.modules["__main__"]  # python_job.py


class Allocation:
    def __init__(self, size, tag):
        self.size, self.tag, self.backup = size, tag, None
        self.handle = job.create(size)
        self.address = job.show(self.handle, size)

    def unmap(self, save):
        if save:
            self.backup = ctypes.create_string_buffer(self.size)
            job.call("cuMemcpyDtoH_v2", self.backup, job.number(self.address), job.number(self.size))
        job.call("cuMemUnmap", job.number(self.address), job.number(self.size))
        job.call("cuMemRelease", job.number(self.handle))
        self.handle = None

    def map(self):
        self.handle = job.create(self.size)
        job.call("cuMemMap", job.number(self.address), job.number(self.size), job.number(0), job.number(self.handle),
                 job.number(0))
        job.call("cuMemSetAccess", job.number(self.address), job.number(self.size), ctypes.byref(job.Access(1, 0, 3)),
                 job.number(1))
        if self.backup:
            job.call("cuMemcpyHtoD_v2", job.number(self.address), self.backup, job.number(self.size))
            self.backup = None


class CuMemAllocator:
    def __init__(self):
        self.allocations, self.current_tag = [], "default"
        self.busy = ""  # while there is such a file, it does not get to sleep

    @contextlib.contextmanager
    def use_memory_pool(self, tag=None):
        before, self.current_tag = self.current_tag, tag or "default"
        try:
            yield
        finally:
            self.current_tag = before

    def malloc(self, size):
        self.allocations.append(Allocation(size, self.current_tag))
        return self.allocations[-1].address

    def sleep(self, offload_tags=None):
        while os.path.exists(self.busy):
            time.sleep(0.001)
        for allocation in self.allocations:
            allocation.unmap(allocation.tag in offload_tags)

    def wake_up(self, tags=None):
        for allocation in self.allocations:
            if not allocation.handle and (tags is None or allocation.tag in tags):
                allocation.map()


ALLOCATOR = CuMemAllocator()


class SleepModeBackend(abc.ABC):
    def __init__(self):
        self._state = "RUNNING"

    @abc.abstractmethod
    def suspend(self, level=1):
        ...

    @abc.abstractmethod
    def resume(self, tags=None):
        ...

    def state(self):
        return self._state

    @classmethod
    def is_supported(cls):
        return True

    @classmethod
    def preserves_communicators(cls):
        return False

    @classmethod
    def preserves_graphs_with_communicators(cls):
        return False


class CuMemBackend(SleepModeBackend):
    def suspend(self, level=1):
        self._state = "SUSPENDED"
        ALLOCATOR.sleep(offload_tags=("weights",) if level == 1 else ())

    def resume(self, tags=None):
        self._state = "RESUMING"
        ALLOCATOR.wake_up(tags)
        self._state = "RUNNING"

    @classmethod
    def preserves_communicators(cls):
        return True


class SleepModeBackendFactory:
    _registry = {}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        if name in cls._registry:
            raise ValueError("already registered: " + name)
        cls._registry[name] = (module_path, class_name)

    @classmethod
    def get_backend_class(cls, name):
        if name not in cls._registry:
            raise ValueError("not registered: " + name)
        module_path, class_name = cls._registry[name]
        return getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def create_backend(cls, model_config):
        found = cls.get_backend_class(model_config.sleep_mode_backend)
        if not found.is_supported():
            raise ValueError("not supported")
        return found()


class Group:
    """vLLM's GroupCoordinator, and torch.distributed's group in one."""

    def __init__(self, folder="", rank=0, ranks=(0,)):
        self.folder, self.rank, self.ranks = folder, rank, ranks
        self.world_size, self.cpu_group, self.times = len(ranks), self, 0

    def path(self, rank):
        return os.path.join(self.folder, "%s.%d.%d" % ("-".join(map(str, self.ranks)), self.times, rank))


def all_gather_object(found, value, group):
    group.times += 1
    with open(group.path(group.rank) + ".new", "wb") as file:
        pickle.dump(value, file)
    os.rename(group.path(group.rank) + ".new", group.path(group.rank))
    for i, rank in enumerate(group.ranks):
        while not os.path.exists(group.path(rank)):
            time.sleep(0.001)
        with open(group.path(rank), "rb") as file:
            found[i] = pickle.load(file)


class Worker:
    """As far as it sleeps: what vLLM's calls before and after the backend's."""

    def __init__(self, weights, cache, sleep_mode_backend="cumem"):
        self.config = types.SimpleNamespace(sleep_mode_backend=sleep_mode_backend)
        self.backend = None
        with ALLOCATOR.use_memory_pool(tag="weights"):
            self.weights = ALLOCATOR.malloc(weights)
        with ALLOCATOR.use_memory_pool(tag="kv_cache"):
            self.cache = ALLOCATOR.malloc(cache)

    def _backend(self):
        if self.backend is None:
            module = importlib.import_module("vllm.device_allocator.sleep_mode_backend")
            self.backend = module.SleepModeBackendFactory.create_backend(self.config)
        return self.backend

    def sleep(self, level=1):
        job.call("cuCtxSynchronize")
        before = self.free()
        self._backend().suspend(level)
        job.call("cuCtxSynchronize")
        assert self.free() >= before

    def wake_up(self, tags=None):
        self._backend().resume(tags)

    @staticmethod
    def free():
        free, total = ctypes.c_uint64(), ctypes.c_uint64()
        job.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value


def load_general_plugins():
    """Twice, as its plug-ins have to bear. Returns their names."""
    plugins = importlib.metadata.entry_points(group="vllm.general_plugins")
    for plugin in [*plugins, *plugins]:
        plugin.load()()
    return [plugin.name for plugin in plugins]


def start(kind, folder="", rank=0, tensor=(0,), pipeline=(0,)):
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    for name in "vllm", "vllm.device_allocator", "vllm.distributed", "vllm.distributed.parallel_state", "torch", \
            "torch.distributed":
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    groups = Group(folder, rank, tensor), Group(folder, rank, pipeline)
    sys.modules["vllm.distributed.parallel_state"].get_tp_group = lambda: groups[0]
    sys.modules["vllm.distributed.parallel_state"].get_pp_group = lambda: groups[1]
    sys.modules["torch.distributed"].all_gather_object = all_gather_object
    if kind != "before":
        module = types.ModuleType("vllm.device_allocator.sleep_mode_backend")
        module.CuMemBackend, module.SleepModeBackendFactory = CuMemBackend, SleepModeBackendFactory
        SleepModeBackendFactory.register_backend("cumem", __name__, "CuMemBackend")
        if kind == "other":
            module.SleepModeBackendFactory = type("SleepModeBackendFactory", (), {})
        sys.modules[module.__name__] = module
    return load_general_plugins()
