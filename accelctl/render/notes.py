"""Talk on stderr: errors, warnings and remarks. Nothing else in accelctl writes to stderr.

stdout is flushed first, so that on a terminal the talk stands after the data it is about. A broken stderr is ignored:
there is no one left to tell.
"""

import sys

PROGRAM = "accelctl"


def error(message: str, hint: str | None = None, *, who: str = PROGRAM) -> None:
    """Say what is wrong in one line, and on a second line what to type (`hint`)."""
    _write(f"{who}: {one_line(message)}\n" + (f"  try: {one_line(hint)}\n" if hint else ""))


def warn(message: str) -> None:
    """Something the user should know although the command goes on."""
    _write(f"{PROGRAM}: warning: {one_line(message)}\n")


def note(message: str) -> None:
    """A remark that changes nothing, such as progress on a long step."""
    _write(f"{PROGRAM}: {one_line(message)}\n")


def trace(exc: BaseException) -> None:
    """The traceback, for `--debug` only."""
    from traceback import format_exception

    _write("".join(format_exception(type(exc), exc, exc.__traceback__)))


def one_line(text: str) -> str:
    """Fold white space, so that text from files or exceptions cannot break the one-line rule; control characters go."""
    folded = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in folded)


def _write(text: str) -> None:
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        pass  # the entry point reports a broken stdout itself
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass
