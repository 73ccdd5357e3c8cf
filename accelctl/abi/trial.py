"""A stranger's code is tried in a child process first: it may hang, end its process, or crash it.

What is refused here never came into this process. What passes is loaded a second time, here; that costs the chip's
import once more, and nothing for chips in the tree. A plug-in that behaves differently the second time is not caught.

Only text comes back (JSON): an object of the plug-in's own classes would bring their module in with it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from accelctl.errors import AbiError, AccelError, NoDeviceError, TimeoutFailure, UsageError
from accelctl.hal.child import Watch
from accelctl.hal.reader import Failed, Finished, Stuck, WatchedChild

DEADLINE_S = 20.0
"""An import of a large framework takes ten seconds from a slow disk."""
VARIABLE = "ACCELCTL_PLUGIN_SECONDS"

_KINDS: dict[str, type[AccelError]] = {
    kind.default_kind: kind for kind in (AbiError, NoDeviceError, UsageError, TimeoutFailure)
}


class Lost(AbiError):
    """It hung, or ended its process."""


def deadline_s() -> float:
    """How long a plug-in may take: ACCELCTL_PLUGIN_SECONDS, else DEADLINE_S."""
    with suppress(ValueError):
        wanted = float(os.environ.get(VARIABLE, ""))
        if 0 < wanted < 3600:
            return wanted
    return DEADLINE_S


def apart(work: Callable[[], Any], what: str) -> Any:
    """What ``work`` gives (JSON values), from a child. Lost (AbiError) in one line that begins with ``what`` where the
    child does not come back or ends; AccelError as it was raised there."""
    limit = deadline_s()

    def carried(watch: Watch) -> str:
        return _carried(work)

    with of_its_own(carried, limit) as child:
        event = child.poll(limit)
    if isinstance(event, Finished):
        return _opened(json.loads(event.value), what)
    if isinstance(event, Failed):
        raise AbiError(f"{what} failed: {said(event.error)}")
    if isinstance(event, Stuck) and not event.path:
        raise Lost(f"{what} ended the process ({event.state})")
    raise Lost(f"{what} did not come back within {limit:g} s")


@contextmanager
def of_its_own(work: Callable[[Watch], Any], limit_s: float) -> Iterator[WatchedChild]:
    """A running child for a stranger's code. What that code starts ends with it (one that takes a session of its own
    gets away)."""

    def alone(watch: Watch) -> Any:
        os.setsid()
        return work(watch)

    with WatchedChild(alone, deadline_s=limit_s) as child:
        child.start()
        group = child.pid
        try:
            yield child
        finally:
            child.close()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


def said(error: BaseException) -> str:
    """A stranger's exception in one line; plain text, whatever its class does."""
    try:
        words = " ".join(str(error).split())[:200]
        return "".join(f"{type(error).__name__}: {words}".removesuffix(": "))
    except BaseException:  # in the child nobody else is there to be interrupted
        return "an exception that cannot be shown"


def _carried(work: Callable[[], Any]) -> str:
    """Nothing is raised: an exception of a stranger's class would have to be made again over there."""
    try:
        return json.dumps(["value", work()])
    except AccelError as error:
        with suppress(Exception):
            return json.dumps([error.kind, str(error.message), error.hint])
        return json.dumps(["failed", said(error)])
    except BaseException as error:
        return json.dumps(["failed", said(error)])


def _opened(answer: list[Any], what: str) -> Any:
    kind = answer[0]
    if kind == "value":
        return answer[1]
    if kind == "failed":
        raise AbiError(f"{what} failed: {answer[1]}")
    if kind in _KINDS:
        raise _KINDS[kind](answer[1], answer[2])
    raise AccelError(answer[1], answer[2], kind=kind)
