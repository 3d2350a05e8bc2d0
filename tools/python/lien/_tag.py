# SPDX-License-Identifier: BSD-2-Clause
"""Tags: functions of the control library in this process (include/lien/tag.h)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
import warnings
from typing import Any, List, Optional

LOOK_AGAIN_S = 1.0
# However the process got it, this is its name there.
NAME = "liblien-control.so"


class _Library:
    """The control library, once it is there: the agent may attach at any time."""

    def __init__(self) -> None:
        self._found: Any = None
        self._looked = 0.0
        self._said = False

    @staticmethod
    def _look() -> Any:
        try:
            library = ctypes.CDLL(NAME, mode=os.RTLD_NOLOAD)
        except OSError:
            return None
        return library if hasattr(library, "lien_tag_push") else None

    def get(self) -> Any:
        """None: it is not there. Then says so, once. (No lock: a child forked meanwhile would wait for it.)"""
        now = time.monotonic()
        if self._found is None and (not self._looked or now - self._looked > LOOK_AGAIN_S):
            self._found = self._look()
            self._looked = now
        if self._found is None and not self._said:
            self._said = True
            warnings.warn(
                "lien.tag() has no effect: this process has no control library; start it with `lien run`, or attach "
                "to it with `lien attach`", RuntimeWarning, stacklevel=4)
        return self._found


_library = _Library()


def _valid(name: str) -> bool:
    return 0 < len(name) < 64 and all(" " <= c <= "~" for c in name)


class tag(contextlib.ContextDecorator):
    """Marks what the calling thread allocates inside the block; of nested tags the innermost counts.

    :func:`memory` shows memory by tag, :func:`offload` moves it by tag. A name has 1 to 63 printable ASCII
    characters, and a user has at most 64 tags. PyTorch keeps freed blocks and gives them out again, whatever tag
    they were allocated with: give what you tag a pool of its own (``torch.cuda.use_mem_pool``).

    Do not ``await`` inside the block: other tasks of the thread would have the tag, too. In a process without
    the control library it has no effect, and says so once.

    >>> with lien.tag("kv_cache"):
    ...     cache = tensor(2 << 20)
    >>> [(row.key, row.bytes) for row in lien.memory(by="tag")]
    [('no tag', 4194304), ('kv_cache', 2097152)]
    >>> lien.offload(tags=["kv_cache"], drop=["tag:kv_cache"]).raw["discarded_bytes"]  # comes back as zeros
    2097152
    >>> lien.restore().outcome
    'done'
    >>> free(cache, 2 << 20)
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not _valid(name):
            raise ValueError("a tag has 1 to 63 printable ASCII characters, not %r" % (name,))
        self.name = name
        self._pushed: List[Optional[Any]] = []

    def _recreate_cm(self) -> tag:  # for use as a decorator: each call has a block of its own
        return type(self)(self.name)

    def __enter__(self) -> tag:
        library = _library.get()
        if library is not None:
            result = -library.lien_tag_push(self.name.encode())
            if result:
                raise OSError(result, "too many tags inside each other" if result == errno.E2BIG
                              else os.strerror(result), self.name)
        self._pushed.append(library)
        return self

    def __exit__(self, *_exception: Any) -> None:
        library = self._pushed.pop()
        if library is not None:
            library.lien_tag_pop()
