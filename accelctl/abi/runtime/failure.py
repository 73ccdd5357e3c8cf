"""How the runtime fails: a kind of the one table, and what a lost ring says about the kernel that lost it."""

from __future__ import annotations

import errno
import re

from accelctl.errors import AccelError

STICKY = frozenset({"illegal_access", "launch_failure", "misaligned_access", "ecc_uncorrectable", "device_lost"})
"""Kinds after which nothing works any more in this process."""
_NO_ROOM = (errno.ENOMEM, errno.ENOSPC)
_PLACES = re.compile(r"\b(block_table|seq_lens|offs)\b")
"""Operands whose numbers are places in memory: a kernel that ends because of one would have left its operands."""


class NotAsync(AccelError):
    """An asynchronous copy of memory that no device reaches, where waiting was not allowed. ``word`` is what programs
    look for: the kind alone does not tell it from a capability that is absent."""

    default_kind = "not_supported"
    word = "not_async"


class NoKernel(AccelError):
    """The device computes no such thing: what would have used it could not be tried."""

    default_kind = "not_supported"

    def __init__(self, op: str, message: str) -> None:
        super().__init__(message)
        self.op = op


def fail(kind: str, message: str) -> AccelError:
    """A failure of that kind."""
    return AccelError(message, kind=kind)


def fault_kind(reason: str) -> str:
    """What ended a ring. The Queue contract has one exception for all of it, so the words decide."""
    return "illegal_access" if _PLACES.search(reason) else "launch_failure"


def of_stage(error: OSError | AccelError, what: str) -> AccelError:
    """What a stage of a lifecycle could not get. Device addresses are memory to whoever asked for some."""
    if isinstance(error, OSError):
        return of_os(error, what)
    return fail("out_of_memory", error.message) if error.kind == "out_of_address_space" else error


def of_os(error: OSError, what: str) -> AccelError:
    """What a driver refused."""
    kind = "out_of_memory" if error.errno in _NO_ROOM else "os_error"
    return fail(kind, f"{what}: {error.strerror or error}")
