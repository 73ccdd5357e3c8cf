"""The guest's tests on the debug kernel: one boot, one result here for each result there."""

from __future__ import annotations

import pytest

from .rig import host
from .rig.run import Guest

KERNEL = "debug"

pytestmark = [pytest.mark.kernel, pytest.mark.xdist_group("kernel-debug")]


def test_boot(guest: Guest) -> None:
    """The guest started, ran all that it should, powered off, and its kernel reported no bug of its own."""
    host.check_boot(guest)


def test_guest(guest: Guest, guest_test: str) -> None:
    """What the guest said about this test."""
    host.settle(guest, guest_test)
