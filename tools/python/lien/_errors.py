# SPDX-License-Identifier: BSD-2-Clause
"""The one exception that this package raises for what the agent, or its absence, makes impossible."""

from __future__ import annotations

from typing import Any, Mapping, Optional


class LienError(Exception):
    """An offload, restore or question failed. ``str(error)`` says in one line what failed, on what, and why.

    Attributes:
        code: a word that a program can rely on (docs/python.md lists them), such as ``"no-agent"``,
            ``"invalid"``, ``"refused"``, ``"not-at-rest"``, ``"busy"`` or ``"cancelled"``.
        process: pid of the process that it is about; None: none, or not known.
        holder: pid of another process that holds the memory in question; None: none.
        remedy: what to do, in one line; None: the message has all there is to say.

    >>> try:
    ...     lien.offload(pids=[999999])
    ... except lien.LienError as error:
    ...     print(error.code, error.process, error.remedy)
    invalid 999999 None
    """

    def __init__(self, message: str, code: str = "failed", process: Optional[int] = None,
                 holder: Optional[int] = None, remedy: Optional[str] = None) -> None:
        super().__init__(message)
        self.code = code
        self.process = process
        self.holder = holder
        self.remedy = remedy

    def __reduce__(self) -> Any:  # with all of it to the parent, from a worker of multiprocessing
        return type(self), (str(self), self.code, self.process, self.holder, self.remedy)


def of_reply(reply: Mapping[str, Any]) -> LienError:
    return LienError(str(reply.get("error")), reply.get("code") or "failed", reply.get("process"),
                     reply.get("holder"), reply.get("remedy"))
