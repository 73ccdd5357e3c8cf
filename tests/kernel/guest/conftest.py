"""What every guest test gets: tests of the other kernel left out, and no way to run on a host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

KIND = os.environ.get("ACCELCTL_GUEST", "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of the other kernel; while only collecting on the host, keep all."""
    if KIND == "collect":
        return
    out = [item for item in items if (mark := item.get_closest_marker("needs")) and KIND not in mark.args]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


@pytest.fixture(autouse=True, scope="session")
def _in_the_guest() -> None:
    """Stop unless the kernel's own command line says this is the guest: these tests unplug devices as root."""
    if f"accelctl.guest={KIND}" not in Path("/proc/cmdline").read_text(encoding="ascii").split():
        pytest.exit("guest tests run only in the guest: python -m tests.kernel.rig run stock|debug", returncode=3)
