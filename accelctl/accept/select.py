"""``--device``: a report about some of the devices only."""

from __future__ import annotations

from collections.abc import Sequence

from accelctl.errors import NoDeviceError
from accelctl.model.report import Report
from accelctl.probes.filters import parse_filters


def select(report: Report, filters: Sequence[str] | None) -> Report:
    """The report with the devices that fit, their findings and those of the machine; NoDeviceError if none fits."""
    if not filters:
        return report
    wanted = parse_filters(filters)
    report.devices, every = [device for device in report.devices if wanted(device)], report.devices
    if not report.devices:
        there = ", ".join(device.id for device in every[:8]) + (" ..." if len(every) > 8 else "")
        raise NoDeviceError(f"no device fits --device {wanted.text}; here: {there or 'no device at all'}")
    names = {device.id for device in report.devices}
    report.findings = [one for one in report.findings if one.device is None or one.device in names]
    return report
