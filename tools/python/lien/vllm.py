# SPDX-License-Identifier: BSD-2-Clause
"""A sleep-mode backend for vLLM, ``lien``: NCCL's memory and workspaces leave the GPU as well, and come back.

vLLM finds it by the package's entry point in ``vllm.general_plugins``. It sleeps with it where the configuration says
``sleep_mode_backend="lien"``, or with ``LIEN_VLLM_SLEEP=1`` in the environment of its workers (``vllm serve`` has no
option for it). docs/frameworks.md has the lines to type.

vLLM's own backend, ``cumem``, frees weights and key-value cache, which vLLM's allocator made. This backend leaves these
two to it, and lien moves all else that the worker owns: NCCL's buffers, workspaces, PyTorch's pools, CUDA graphs' memory.
The reason: vLLM may wake the weights alone and run kernels, and lien holds kernels until all that it moved is back.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from typing import Any, List, Optional, Tuple

from . import SELF, LienError, memory, offload, restore

NAME = "lien"
DEFAULT = "cumem"  # vLLM's
ASKED = "LIEN_VLLM_SLEEP"
TIMEOUT_S = 60.0  # the most that others than root may ask for

_log = logging.getLogger("vllm.lien")  # where vLLM's configuration of logging applies


@functools.lru_cache(maxsize=None)  # vLLM calls it again
def register() -> None:
    """Makes the backend known to vLLM, and the default if ``LIEN_VLLM_SLEEP=1``.

    Never raises. A vLLM without this interface keeps its own sleep mode; if lien was asked for, a logged line says so.
    """
    asked = os.environ.get(ASKED) == "1"
    try:
        factory = _interface().SleepModeBackendFactory
        _backend()
        factory.register_backend(NAME, __name__, "Backend")
        if asked:
            _prefer(factory)
    except Exception as error:  # pylint: disable=broad-except  # whatever it is, vLLM has to start
        if asked:
            _log.warning("%s=1 has no effect, vLLM's own sleep mode stays: this vLLM has no sleep-mode backends that "
                         "lien knows (%s: %s)", ASKED, type(error).__name__, error)


def _interface() -> Any:
    return importlib.import_module("vllm.device_allocator.sleep_mode_backend")


def _prefer(factory: Any) -> None:
    """vLLM's commands cannot name a backend, so what they leave at vLLM's default is lien's."""
    create = factory.create_backend

    def create_backend(model_config: Any) -> Any:
        if model_config.sleep_mode_backend == DEFAULT:
            model_config.sleep_mode_backend = NAME
        return create(model_config)

    factory.create_backend = staticmethod(create_backend)


def _exchange(value: Any) -> List[Any]:
    """The values of all workers of the engine, once each has got here."""
    groups = importlib.import_module("vllm.distributed.parallel_state")
    values = [value]
    for group in groups.get_tp_group(), groups.get_pp_group():
        if group.world_size > 1:
            found: List[Any] = [None] * group.world_size
            importlib.import_module("torch.distributed").all_gather_object(found, values, group=group.cpu_group)
            values = [one for part in found for one in part]
    return values


def _myself() -> Tuple[str, List[int], Optional[LienError]]:
    """The node, this process's pid as the agent has it (none: it has no memory), and why it cannot take part."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        node = file.read()
    try:
        offload(pids=[SELF], with_closure=True, dry_run=True)
        return node, sorted({row.pid for row in memory(pid=SELF) if row.pid}), None
    except LienError as error:
        return node, [], error


@functools.lru_cache(maxsize=None)
def _backend() -> Any:
    base: Any = _interface().CuMemBackend

    class Backend(base):  # type: ignore[misc]
        """What a worker of vLLM sleeps by. All workers of an engine call it, as vLLM's executors do."""

        def __init__(self) -> None:
            super().__init__()
            self._away: List[int] = []

        def suspend(self, level: int = 1) -> None:
            """Moves the weights to host memory (level 1) or drops them (2), drops the key-value cache, and moves all
            else that the engine's workers own to host memory: those of a node in one transaction.

            Raises:
                LienError: no agent answers, or it refuses one of the workers; nothing has been freed, and all are
                    awake. What fails later is a logged line, and all but vLLM's own memory stays on the GPU: a worker
                    that raised would be taken for awake.
            """
            myself = _myself()
            workers = _exchange(myself)
            for _node, _pids, error in workers:
                if error:
                    raise LienError("nothing was put to sleep: " + error.message, error.code, error.process,
                                    error.holder, error.remedy)
            failure = None
            try:
                super().suspend(level)
            except Exception as error:  # pylint: disable=broad-except  # after the others know
                failure = error
            # A call of a worker that still copies its weights could bring everything back.
            failed = any(_exchange(failure is not None))
            if failure:
                raise failure
            pids = sorted({pid for node, found, _error in workers if node == myself[0] for pid in found})
            if pids and not failed:
                self._move(pids)

        def _move(self, pids: List[int]) -> None:
            try:
                # Nothing should need the memory now. If something does, it gets it back, and does not wait for us.
                result = offload("all", pids, timeout=TIMEOUT_S, with_closure=True, on_use="restore")
            except LienError as error:
                self._away = pids if error.code == "no-agent" else []  # it hung up: nobody knows
                _log.warning("weights and key-value cache sleep, all else stays on the GPU: %s", error)
                return
            self._away = pids
            _log.info("lien moved %d MiB of %d processes to host memory in %.0f ms; %d MiB stay on the GPU%s",
                      result.bytes >> 20, len(result.per_process), result.ms,
                      sum(left.bytes for left in result.left) >> 20,
                      ": " + result.left[0].reason if result.left else "")

        def resume(self, tags: Optional[List[str]] = None) -> None:
            """Brings back what lien moved, whatever the tags, for kernels run from now on; then weights and key-value
            cache, or one of them, as the tags say.

            Raises:
                LienError: it cannot come back (the GPU is full, no agent answers). The worker sleeps on, and another
                    attempt may succeed.
            """
            if self._away:
                try:
                    restore(self._away, TIMEOUT_S)
                except LienError as error:
                    raise LienError("still asleep: " + error.message, error.code, error.process, error.holder,
                                    error.remedy) from None
                self._away = []
            super().resume(tags)

        @classmethod
        def preserves_graphs_with_communicators(cls) -> bool:
            """Communicators stay, and all memory comes back at its address."""
            return True

    return Backend


def __getattr__(name: str) -> Any:  # vLLM takes the class from here by its name
    if name == "Backend":
        return _backend()
    raise AttributeError("module %r has no attribute %r" % (__name__, name))
