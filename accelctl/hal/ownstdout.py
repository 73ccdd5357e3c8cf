"""Standard output belongs to our documents: foreign code that prints does so on stderr.

Native code writes to descriptor 1, and may do so late: C's own buffer is emptied when the process ends. So before
foreign code comes in, descriptor 1 becomes another name of stderr for good, and sys.stdout goes on under a number that
nobody else knows. A print() of Python code while it is loaded goes to stderr as well.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

_FIRST = 3


def set_apart() -> None:
    """Do so, once; nothing where sys.stdout is not descriptor 1 (a test, an embedding program)."""
    try:
        if sys.stdout is None or sys.stdout.fileno() != 1:
            return
        sys.stdout.flush()
        own = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _FIRST)
        os.dup2(2, 1)
    except (OSError, ValueError, io.UnsupportedOperation):
        return
    old = sys.stdout
    sys.stdout = open(  # noqa: SIM115 - lives as long as the process
        own, "w", encoding=old.encoding, errors=old.errors, buffering=1 if old.isatty() else -1
    )
    with suppress(OSError, ValueError):
        old.flush()


@contextmanager
def not_theirs() -> Iterator[None]:
    """While foreign code is loaded."""
    set_apart()
    with redirect_stdout(sys.stderr):
        yield
