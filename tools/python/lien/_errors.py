# SPDX-License-Identifier: BSD-2-Clause
"""The one exception that this package raises for what the agent, or its absence, makes impossible."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Set


class LienError(Exception):
    """An offload, restore or question failed. ``str(error)`` says in one line what failed, on what, why, and what to do.

    Attributes:
        code: a word that a program can rely on (docs/python.md lists them), such as ``"no-agent"``,
            ``"invalid"``, ``"refused"``, ``"not-at-rest"``, ``"busy"`` or ``"cancelled"``.
        process: pid of the process that it is about; None: none, or not known.
        holder: pid of another process that holds the memory in question; None: none.
        message: ``str(error)`` without the remedy.
        remedy: what to do, in one line; None: the message has all there is to say.

    >>> try:
    ...     lien.offload(pids=[999999])
    ... except lien.LienError as error:
    ...     print(error.code, error.process, error.remedy)
    invalid 999999 None
    """

    def __init__(self, message: str, code: str = "failed", process: Optional[int] = None,
                 holder: Optional[int] = None, remedy: Optional[str] = None) -> None:
        super().__init__("%s: %s" % (message, remedy) if remedy else message)
        self.message = message
        self.code = code
        self.process = process
        self.holder = holder
        self.remedy = remedy

    def __reduce__(self) -> Any:  # with all of it to the parent, from a worker of multiprocessing
        return type(self), (self.message, self.code, self.process, self.holder, self.remedy)


SAME_VERSION = "install the Python package and the agent of one version"


def of_reply(reply: Mapping[str, Any]) -> LienError:
    message, remedy = str(reply["error"]), reply.get("remedy")
    # The package asks for nothing that an agent of its version does not know.
    if not remedy and (" has no member " in message or message.startswith("no such operation")):
        remedy = SAME_VERSION
    return LienError(message, reply.get("code") or ("invalid" if reply.get("invalid") else "failed"),
                     reply.get("process"), reply.get("holder"), remedy)


def without_ended(pids: Set[int], error: LienError) -> Set[int]:
    """Those that are still to be restored when this error names one that has ended; else raises it."""
    if error.code != "invalid" or error.process not in pids:
        raise error
    return pids - {error.process}


def other_version(why: str) -> LienError:
    return LienError("what answers is no agent of this version: " + why, "no-agent", remedy=SAME_VERSION)
