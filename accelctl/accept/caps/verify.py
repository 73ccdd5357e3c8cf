"""`accelctl caps verify`: the evidence of each record of a device that is here, shown again in short: bytes, the kernel
alone, and through the service."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from accelctl.abi import capabilityfile, compute
from accelctl.abi.capability import LADDER, Capability
from accelctl.abi.compute import Found
from accelctl.abi.platforms import templates_of
from accelctl.accept.caps.check import reasons_of
from accelctl.accept.caps.choosing import cases_for
from accelctl.errors import AccelError, NoDeviceError, UsageError
from accelctl.exits import ExitCode
from accelctl.model.smokereport import SmokeReport
from accelctl.model.stressreport import FAIL
from accelctl.smoke.run import Request, Tick, carry_out

HOLDS, DIFFERS, STALE, REPLACED, ABSENT = "holds", "differs", "stale", "replaced", "absent"
"""Shown again; not so; of another platform; likewise, but there is a newer record; its device is not here."""
UNPROVEN, UNSEEN = "unproven", "unseen"
"""It has no evidence that could be shown again; the run failed before it came to that."""
_AGAIN = tuple(LADDER)[:3]
"""The rungs that are climbed again; the others take the whole of smoke."""


class Verified(NamedTuple):
    """What became of one record."""

    record: Capability
    state: str
    detail: str


class Verification(NamedTuple):
    """All of it."""

    path: str
    rows: tuple[Verified, ...]

    @property
    def exit_code(self) -> int:
        """1: something does not hold; 7: a run failed, so nobody knows; 77: there was nothing to look at."""
        states = {one.state for one in self.rows}
        if states & {DIFFERS, STALE}:
            return int(ExitCode.FINDINGS)
        if UNSEEN in states:
            return int(ExitCode.UNUSABLE)
        return int(ExitCode.OK if HOLDS in states else ExitCode.SKIPPED)


def verify(path: str, devices: Sequence[str], tick: Tick) -> Verification:
    """Of the devices that are named, or of all. NoDeviceError for one that is named and not here; UsageError for a file
    that is none, or has no record of a device that is named."""
    records = capabilityfile.read(path)
    recorded = list(dict.fromkeys(one.platform.device for one in records))
    for name in devices:
        if name not in recorded:
            raise UsageError(f"--device {name}: {path} has no record of it", "accelctl caps list")
    rows: list[Verified] = []
    for device in devices or recorded:
        mine = [one for one in records if one.platform.device == device]
        try:
            found = compute.named(device)
        except (NoDeviceError, UsageError) as error:
            if devices:
                raise
            rows += [Verified(one, ABSENT, error.message) for one in mine]
            continue
        rows += _of_device(mine, found, tick)
    return Verification(path, tuple(rows))


def _of_device(records: Sequence[Capability], found: Found, tick: Tick) -> list[Verified]:
    reasons = reasons_of(records, found)
    fresh = [one for one in records if not reasons[one.key]]
    report = _again(fresh, found, tick) if fresh else None
    replaced = {(one.kernel, one.op) for one in fresh}
    rows = []
    for one in records:
        why = reasons[one.key]
        if why:
            rows.append(Verified(one, REPLACED if (one.kernel, one.op) in replaced else STALE, why))
        elif isinstance(report, SmokeReport):
            rows.append(Verified(one, *judged(one, report)))
        else:
            rows.append(Verified(one, UNSEEN, report or ""))
    return rows


def _again(fresh: Sequence[Capability], found: Found, tick: Tick) -> SmokeReport | str:
    """A short run of smoke; or why there was none, where the device failed."""
    templates = templates_of(found)
    wanted = [templates[one.kernel] for one in fresh]
    ids = cases_for(tuple(templates.values()), wanted)
    ops = tuple(dict.fromkeys(one.op for one in wanted))
    try:
        return carry_out(Request(device=(found.device.target.id,), ops=ops, only=ids, model=False), tick)
    except NoDeviceError:
        raise
    except AccelError as error:
        return error.message


def judged(record: Capability, report: SmokeReport) -> tuple[str, str]:
    """What a run says of a record, and why: its state."""
    wrong = [row for row in report.rows if row.result == FAIL]
    for row in wrong:
        if _concerns(row.id, row.kernel, record):
            return DIFFERS, f"{row.id}: {row.detail}"
    ended = report.hang or report.gone or next((f"{row.id}: {row.detail}" for row in wrong if row.op == "service"), "")
    if ended:
        return UNSEEN, ended
    asked = [one.rung for one in record.evidence if one.rung in _AGAIN]
    if not asked:
        return UNPROVEN, f"no evidence of: {', '.join(_AGAIN)}"
    climbed: Iterable[str] = ()
    for one in report.evidence:
        if (one.kernel, one.op) == (record.kernel, record.op):
            climbed = [rung.rung for rung in one.rungs]
    missing = [rung for rung in asked if rung not in climbed]
    return (DIFFERS, f"not shown again: {', '.join(missing)}") if missing else (HOLDS, "")


def _concerns(case: str, kernels: str, record: Capability) -> bool:
    """Whether a failure says something about a kernel: it ran, its own evidence is wrong, or no result can be
    trusted."""
    kind, _, what = case.partition("/")
    if kind in ("dispatch", "order"):
        return True
    if kind == "evidence":
        return what == record.kernel
    return record.kernel in kernels.split(", ") if kernels else kind == record.op
