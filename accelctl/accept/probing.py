"""What ``accelctl probe`` does before anything is printed: scan, select, compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from accelctl.accept.watched import scan, scanned
from accelctl.model.finding import rank
from accelctl.model.report import Report

if TYPE_CHECKING:  # a plain probe needs none of them
    from accelctl.accept.diff import Delta
    from accelctl.accept.expect import Comparison

T = TypeVar("T")


def look(
    root: str,
    filters: Sequence[str] | None = None,
    *,
    allow_wake: bool = False,
    kmsg: str | None = None,
    expected: str | None = None,
    trace: str = "",
) -> tuple[Report, Comparison | None]:
    """The report, cut down to what ``--device`` asks for, with the findings of ``--expect``. Filters and manifest are
    checked before the machine is read, so that a typing error costs nothing."""
    _check(filters)
    if expected is None:
        return _selected(scan(root, allow_wake=allow_wake, kmsg=kmsg, trace=trace), filters), None
    from accelctl.accept import expect, manifest

    wanted = manifest.load(expected)
    report = scan(root, allow_wake=allow_wake, kmsg=kmsg, trace=trace)
    compared = expect.compare(wanted, report)  # the whole machine: a device that is not asked for is not a missing one
    report.findings += compared.findings
    report.findings.sort(key=lambda one: (-rank(one.level), one.device or "", one.id, one.title))
    return _selected(report, filters), compared


def made(
    root: str,
    filters: Sequence[str] | None,
    make: Callable[[Report], T],
    *,
    allow_wake: bool = False,
    kmsg: str | None = None,
    trace: str = "",
) -> T:
    """What ``make`` makes of the report of :func:`look`, made where the machine is read: the report itself stays
    there."""
    _check(filters)
    return scanned(root, lambda report: make(_selected(report, filters)), allow_wake, kmsg, trace=trace)


def _check(filters: Sequence[str] | None) -> None:
    if filters:
        from accelctl.probes.filters import parse_filters

        parse_filters(filters)


def _selected(report: Report, filters: Sequence[str] | None) -> Report:
    if not filters:
        return report
    from accelctl.accept.select import select

    return select(report, filters)


def difference(a: str, b: str, document: Any) -> Delta:
    """Two looks compared; each a captured machine or a JSON document. ``document`` makes a document of a report."""
    from accelctl.accept import diff

    sides = [diff.load(path) if diff.is_document(path) else document(scan(path)) for path in (a, b)]
    return diff.compare(sides[0], sides[1], (a, b))
