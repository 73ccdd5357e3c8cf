"""Evidence that outlives a run: capability records (abi.capability) in a file, one for each kernel and platform.

A run adds to what is there: a rung that it stood on takes the place of the older one, and a kernel whose op failed
loses what it had on this platform. The file is replaced as a whole, or not at all.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import accelctl
from accelctl.abi.capability import Capability, Platform
from accelctl.abi.compute import Found
from accelctl.abi.opset import OPS
from accelctl.errors import AbiError, UsageError
from accelctl.model.smokereport import Evidence, SmokeReport
from accelctl.model.stressreport import FAIL

SCHEMA = "accelctl.capabilities/1"
MOST_BYTES = 16 << 20
"""Of such a file; a thousand kernels need one tenth."""
T = TypeVar("T")


def read(path: str) -> list[Capability]:
    """The records of a file; none where there is no file. UsageError, in one line, for what is no such file."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    try:
        if len(raw) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        return _records(json.loads(raw.decode("utf-8")))
    except (ValueError, KeyError, OverflowError, RecursionError, AbiError) as error:
        why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise UsageError(f"{path}: no capabilities of accelctl: {' '.join(why.split())[:200]}") from None


def _records(document: Any) -> list[Capability]:
    found = _a(dict, document, "the file")
    if found.get("schema") != SCHEMA:
        raise ValueError(f"schema is {found.get('schema')!r}, not {SCHEMA!r}")
    return [_record(_a(dict, one, "a capability")) for one in _a(list, found["capabilities"], "capabilities")]


def _record(one: dict[str, Any]) -> Capability:
    on = _a(dict, one["platform"], "platform")
    where = [_a(str, on[name], name) for name in ("device", "architecture", "driver")]
    semantics = _a(dict, one["semantics"], "semantics")
    return Capability(
        kernel=_a(str, one["kernel"], "kernel"),
        op=_a(str, one["op"], "op"),
        platform=Platform(where[0], where[1], where[2], _texts(on["toolchain"], "toolchain")),
        preconditions=_texts(one["preconditions"], "preconditions"),
        semantics={name: _a(str, text, "semantics") for name, text in semantics.items()},
        evidence=tuple(_evidence(_a(dict, rung, "evidence")) for rung in _a(list, one["evidence"], "evidence")),
        fallback=_a(str, one["fallback"], "fallback"),
        simulated=_a(bool, one["simulated"], "simulated"),
    )


def _evidence(one: dict[str, Any]) -> Evidence:
    figures = {
        name: float(_a((int, float), value, name)) for name, value in _a(dict, one["figures"], "figures").items()
    }
    return Evidence(
        _a(str, one["rung"], "rung"), _a(str, one["date"], "date"), figures, _a(str, one["detail"], "detail")
    )


def _a(kind: type[T] | tuple[type[T], ...], value: Any, name: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} cannot be {json.dumps(value)[:40]}")
    return value


def _texts(value: Any, name: str) -> tuple[str, ...]:
    return tuple(_a(str, one, name) for one in _a(list, value, name))


def save(path: str, records: Iterable[Capability]) -> None:
    """Write them, under another name first. UsageError where that is impossible; what was there stays then."""
    document = {
        "schema": SCHEMA,
        "accelctl": accelctl.__version__,
        "capabilities": [one.document() for one in records],
    }
    path = os.path.realpath(path)
    temporary = ""
    try:
        fd, temporary = tempfile.mkstemp(prefix=".accelctl-", dir=os.path.dirname(path))
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(fd)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise UsageError(f"{path}: cannot be written ({(error.strerror or str(error)).lower()})") from None


def gathered(before: Iterable[Capability], report: SmokeReport, found: Found | None) -> list[Capability]:
    """What was known, with what a run has shown. Nothing of a run is taken whose service could not be trusted: a
    failure that is about no op."""
    platform = _platform(report, found)
    failed = {row.op for row in report.rows if row.result == FAIL}
    records = {(one.kernel, one.op, one.platform): one for one in before}
    if not failed <= set(OPS) or any(run.result == FAIL for run in report.decode):
        return list(records.values())
    takes = _preconditions(found)
    for one in report.evidence:
        key = (one.kernel, one.op, platform)
        known = records.pop(key, None)
        if one.op in failed or one.op not in OPS:
            continue
        record = Capability(
            kernel=one.kernel,
            op=one.op,
            platform=platform,
            preconditions=takes(one.kernel),
            semantics=known.semantics if known else {},
            evidence=known.evidence if known else (),
            simulated=report.simulated,
        )
        for rung in one.rungs:
            record = record.climbed(rung)
        records[key] = record
    return list(records.values())


def _platform(report: SmokeReport, found: Found | None) -> Platform:
    """What can be told of the machine: the device's own name stands for its architecture."""
    tools = (f"accelctl {accelctl.__version__}",)
    if found is None:
        return Platform(report.device, "", "", tools)
    toolchain = (*found.chip.manifest.toolchains, *tools)
    return Platform(report.device, found.device.title, found.device.target.driver, toolchain)


def _preconditions(found: Found | None) -> Callable[[str], tuple[str, ...]]:
    templates = found.chip.ops.templates() if found is not None and found.chip.ops is not None else ()
    known = {
        one.name: (", ".join(sorted(one.dtypes)), "any strides" if one.strided else "dense operands")
        for one in templates
    }
    return lambda kernel: known.get(kernel, ())
