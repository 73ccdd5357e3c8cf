"""What commands print: one place that chooses between text, lines and JSON, and writes files it is told to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from accelctl.errors import UsageError, unwritable
from accelctl.model.reading import Reading
from accelctl.model.report import Report
from accelctl.render import term

if TYPE_CHECKING:
    from accelctl.accept.diff import Delta
    from accelctl.accept.expect import Comparison

T = TypeVar("T")


def show(
    report: Report, compared: Comparison | None, *, as_json: bool = False, evidence: bool = True, brief: bool = False
) -> None:
    """Print a report."""
    if as_json:
        from accelctl.render.document import document_text

        expected = None
        if compared is not None:  # what it imports takes 7 ms
            from accelctl.render.delta import comparison_document

            expected = comparison_document(compared)
        term.emit(document_text(report, evidence=evidence, expected=expected))
    elif brief:
        from accelctl.render.brief import brief_text

        text = brief_text(report, term.current())
        if text:
            term.emit(text)
    else:
        from accelctl.render.text import report_text

        term.emit(report_text(report, term.current(), compared))


def json_and_verdict(report: Report, *, evidence: bool, level: str) -> tuple[str, bool]:
    """What :func:`show` prints as JSON, and whether a finding is at ``level`` or worse; none is at "never"."""
    from accelctl.render.document import document_text
    from accelctl.render.tally import at_least

    return document_text(report, evidence=evidence), level != "never" and at_least(report, level)


def show_delta(delta: Delta, *, as_json: bool = False) -> None:
    """Print what ``--diff`` found."""
    from accelctl.render import delta as view
    from accelctl.render.document import dumps

    term.emit(dumps(view.delta_document(delta)) if as_json else view.delta_text(delta, term.current()))


def show_why(owner: str, facts: Mapping[str, Reading], *, as_json: bool = False) -> None:
    """Print the answer to ``--why``."""
    from accelctl.render import why as view
    from accelctl.render.document import dumps

    term.emit(dumps(view.why_document(owner, facts)) if as_json else view.why_text(owner, facts, term.current()))


def write(file: str, text: str, *, replace: bool = True) -> None:
    """Write a file that the user named; "-" is standard output. Without ``replace`` an existing file is not touched."""
    if file == "-":
        term.emit(text)
    else:
        _put(file, text, "w" if replace else "x")


def check(file: str) -> None:
    """AccelError where :func:`write` will not be able to: before the work, and not after it. Empty: no file."""
    if file not in ("", "-"):
        new = not os.path.lexists(file)
        _put(file, "", "a")
        if new:
            _remove(file)


def _put(file: str, text: str, mode: str) -> None:
    """What is new and cannot be written as a whole is not left behind."""
    new = not os.path.lexists(file)
    try:
        with open(file, mode, encoding="utf-8") as target:
            target.write(text)
    except FileExistsError:
        raise UsageError(
            f"{file}: there is such a file already", f"use - and a redirection to replace it: - > {file}"
        ) from None
    except OSError as error:
        if new:
            _remove(file)
        raise unwritable(file, error) from None


def _remove(file: str) -> None:
    with suppress(OSError):
        if os.path.isfile(file):
            os.unlink(file)


def emit_bytes(data: bytes) -> None:
    """Binary data to standard output."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def give(
    report: T,
    text: Callable[[T, term.Term], str],
    document: Callable[[T], Mapping[str, Any]],
    xml: Callable[[T], str],
    *,
    as_json: bool,
    junit: str,
) -> None:
    """Print a report, then write what else was asked for: a file that cannot be written must not cost the report of a
    long run. JUnit to ``-`` takes the place of the report."""
    from accelctl.render.document import dumps

    if junit != "-":
        term.emit(dumps(document(report)) if as_json else text(report, term.current()))
    if junit:
        write(junit, xml(report))
