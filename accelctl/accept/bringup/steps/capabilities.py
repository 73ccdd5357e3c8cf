"""Step "capabilities": is what was once proven of this device's kernels still about this device? (`accelctl caps`)"""

from __future__ import annotations

import shlex

from accelctl.abi import capabilityfile
from accelctl.accept.bringup.needs import records_of
from accelctl.accept.bringup.step import FAIL, PASS, Came, Job, finding, skipped
from accelctl.accept.caps import check
from accelctl.model.bringupreport import Fact

IDS = ("CAPS-STALE",)


def work(job: Job) -> Came:
    """Records of this device whose toolchain or device is another one now."""
    path, device = records_of(job.order), job.device.ops_device
    known = [one for one in capabilityfile.read(path) if one.platform.device == device]
    if not known:
        return skipped(f"{path} has no record of {device} (accelctl smoke --device {device} --save FILE writes them)")
    stale = check.stale(path, device)
    gone = {(one.kernel, one.op): one.why for one in stale}
    command = f"accelctl caps verify --file {shlex.quote(path)} --device {device}"
    facts = tuple(
        Fact(
            f"{one.kernel}/{one.op}",
            "stale" if (one.kernel, one.op) in gone else "holds",
            path,
            gone.get((one.kernel, one.op)) or ", ".join(rung.rung for rung in one.evidence),
            owner=device,
        )
        for one in known
    )
    if not stale:
        return Came(PASS, f"{len(known)} records, all of this device and its toolchain", (), facts, (), command)
    names = ", ".join(dict.fromkeys(one.kernel for one in stale))
    title = f"{len(stale)} capability record{'s' if len(stale) > 1 else ''} stale: {names}"
    seen = tuple((path, f"{one.kernel} ({one.op}): {one.why}") for one in stale)
    fix = (f"accelctl smoke --device {device} --save {shlex.quote(path)}   (proves them again)",)
    found = finding("CAPS-STALE", title, device, seen, fix)
    return Came(FAIL, title, (found,), facts, (), command)
