"""hal.udev gives what libudev gives, on a real kernel, without a udevd and with one."""

from __future__ import annotations

from tests.oracles.udev_oracle import compare

from .helpers import Udevd, needs

#: All devices would keep the emulated machine's rules busy for minutes; these have tags, links and properties of udevd.
TRIGGERED = ("drm", "pci", "virtio", "mem", "misc", "input", "graphics")


def test_without_udevd_equal_to_pyudev() -> None:
    verdict = compare()
    assert verdict.differences == []
    assert verdict.devices > 100
    assert verdict.properties > 500


@needs("stock")
def test_with_udevd_equal_to_pyudev() -> None:
    with Udevd() as udevd:
        udevd.udevadm("trigger", "--action=add", *(f"--subsystem-match={name}" for name in TRIGGERED))
        udevd.settle()
        verdict = compare()
    assert verdict.differences == []
    assert verdict.devices > 100
