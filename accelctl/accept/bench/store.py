"""A report as a file (schema accelctl.bench/1), and back. What ``--json`` prints is the same document.

A file may come from anybody: whatever does not fit is one line that names the place. Medians and intervals are not
believed but computed again from the samples.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from math import isfinite
from typing import Any

import accelctl
from accelctl.accept.bench.statistics import spread
from accelctl.errors import UsageError, unwritable
from accelctl.hal.lockfile import content, replaceable, replaced
from accelctl.model.benchreport import LEAST, MOST, SCHEMA, UNITS, BenchReport, Figure, is_sample
from accelctl.model.snapshotjson import read_as

MOST_BYTES, MOST_FIGURES, MOST_SAMPLES = 16 << 20, 1000, 200
"""Of a file; a run of all parts has 60 figures of at most 41 samples, 120 kB."""
_DERIVED = frozenset(
    {"schema", "tool", "verdict", "device", "simulated", "findings", "comparison", "golden", "volatile"}
)
_DERIVED_OF_FIGURE = frozenset({"id", "of_ceiling"})
_VOLATILE = ("seconds", "rounds", "figures", "ops", "notes")
"""What no two runs have in common; equal machines share the rest."""
_DIGITS = 6


def document(report: BenchReport) -> dict[str, Any]:
    """Everything, typed and flat, with what programs would compute from it anyway."""
    found = plain(report)
    for row, figure in zip(found["figures"], report.figures, strict=True):
        row["id"], row["of_ceiling"] = figure.id, plain(figure.of_ceiling)
    head = {"schema": SCHEMA, "tool": {"name": "accelctl", "version": accelctl.__version__}}
    told = {"verdict": report.verdict, "device": report.device, "simulated": report.simulated}
    stable = {name: value for name, value in found.items() if name not in _VOLATILE}
    return {**head, **told, **stable, "volatile": {name: found[name] for name in _VOLATILE}}


def plain(value: Any) -> Any:
    """A record in JSON's own types; numbers with as many digits as they deserve."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if isfinite(value) else None
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items()}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    return value


def save(path: str, report: BenchReport) -> None:
    """Write it as a whole. UsageError where that is impossible; what was there stays then."""
    replaced(path, (json.dumps(document(report), indent=1, allow_nan=False) + "\n").encode())


def writable(path: str, schema: str = SCHEMA) -> None:
    """AccelError where a file cannot be written there, before hours are spent on what would go into it, or where
    another file is: a name that was mistyped must not cost one. An earlier file of this schema is replaced."""
    if not path:
        return
    place = replaceable(path)
    if content(place, 1):
        try:
            parsed(path, schema)
        except UsageError as error:
            raise UsageError(f"{error.message}; it is not replaced", "name another file, or remove it") from None
    try:
        with tempfile.TemporaryFile(prefix=".accelctl-", dir=os.path.dirname(place)):
            pass
    except OSError as error:
        raise unwritable(path, error) from None


def read(path: str) -> BenchReport:
    """The report in a file. UsageError, in one line, for what is none."""
    return of_document(parsed(path, SCHEMA), path)


def parsed(path: str, schema: str) -> dict[str, Any]:
    """A JSON object with that schema. UsageError."""
    raw = content(path, MOST_BYTES)
    if raw is None:
        raise UsageError(f"{path}: there is no such file")
    if len(raw) > MOST_BYTES:
        raise UsageError(f"{path}: it has more than {MOST_BYTES} bytes")
    try:
        found = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: no JSON ({' '.join(str(error).split())[:80]})") from None
    if not isinstance(found, dict) or found.get("schema") != schema:
        said = found.get("schema") if isinstance(found, dict) else None
        raise UsageError(f"{path}: schema is {json.dumps(said)[:60]}, not {schema!r}")
    return found


def of_document(found: dict[str, Any], where: str) -> BenchReport:
    """The report that these JSON values are. UsageError."""
    kept = {name: value for name, value in found.items() if name not in _DERIVED}
    changing = found.get("volatile")
    kept |= changing if isinstance(changing, dict) else {}
    rows = kept.get("figures")
    if isinstance(rows, list):
        kept["figures"] = [_without(row) for row in rows]
    report = read_as(BenchReport, kept, where)
    if len(report.figures) > MOST_FIGURES:
        raise UsageError(f"{where}: more than {MOST_FIGURES} figures")
    return dataclasses.replace(report, figures=tuple(_checked(one, where) for one in report.figures))


def _without(row: Any) -> Any:
    if not isinstance(row, dict):
        return row
    return {name: value for name, value in row.items() if name not in _DERIVED_OF_FIGURE}


def _checked(figure: Figure, where: str) -> Figure:
    who = f"{where}: {figure.id[:80]!r}"
    if figure.unit not in UNITS:
        raise UsageError(f"{who}: unit {figure.unit[:40]!r} is none of {', '.join(UNITS)}")
    if not 1 <= len(figure.samples) <= MOST_SAMPLES:
        raise UsageError(f"{who}: 1 to {MOST_SAMPLES} samples can be, not {len(figure.samples)}")
    if len(figure.floor) not in (0, len(figure.samples)):
        raise UsageError(f"{who}: {len(figure.floor)} samples of the floor beside {len(figure.samples)}")
    if not all(map(is_sample, (*figure.samples, *figure.floor))):
        raise UsageError(f"{who}: a sample is not between {LEAST:g} and {MOST:g}")
    return figure._replace(
        spread=spread(figure.samples),
        floor_spread=spread(figure.floor) if figure.floor else None,
        ratio=spread([a / b for a, b in zip(figure.samples, figure.floor, strict=True)]) if figure.floor else None,
    )
