"""Makes host tests of the guest's tests; the guest's own files are collected only where they may run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from .rig import host, qemu, run
from .rig.cache import KINDS

collect_ignore = [] if os.environ.get("ACCELCTL_GUEST") else ["guest"]
"""On the host, guest tests would unplug the host's own devices."""


REQUIRED = bool(os.environ.get("ACCELCTL_REQUIRE_KERNEL"))
"""Fail instead of skipping; read here, since other fixtures clean the environment of a test."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, for a run that reads no pyproject.toml."""
    config.addinivalue_line("markers", "kernel: boots a kernel in QEMU (tests/kernel/README.md)")
    config.addinivalue_line("markers", "needs(kernel): a guest test for only one of the kernels, stock or debug")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `guest_test` one value per guest test of the module's kernel."""
    if "guest_test" in metafunc.fixturenames:
        metafunc.parametrize("guest_test", host.tests_for(metafunc.module.KERNEL))


@pytest.fixture(scope="session")
def _boots(request: pytest.FixtureRequest) -> Iterator[Callable[[str], run.Guest]]:
    """Boots all kernels that this session has tests for at the same time, when the first one is asked for."""
    asked: dict[str, Future[run.Guest]] = {}
    with ThreadPoolExecutor(len(KINDS)) as threads:

        def boot(kind: str) -> run.Guest:
            reason = host.why_not(kind)
            if reason is not None:
                if REQUIRED:
                    pytest.fail(reason, pytrace=False)
                pytest.skip(reason)
            others = [one for one in KINDS if not asked and _selected(request.session, one) and not host.why_not(one)]
            for one in {kind, *others} - asked.keys():
                asked[one] = threads.submit(host.boot_once, one, _selected(request.session, one))
            return asked[kind].result()

        qemu.STOP.clear()
        try:
            yield boot
        finally:  # also of a run that is ended by a key
            qemu.STOP.set()


def _selected(session: pytest.Session, kind: str) -> list[str]:
    found = []
    for item in session.items:
        if isinstance(item, pytest.Function) and "guest_test" in item.fixturenames and kind == item.module.KERNEL:
            found.append(str(item.callspec.params["guest_test"]))
    return found


@pytest.fixture
def guest(request: pytest.FixtureRequest, _boots: Callable[[str], run.Guest]) -> run.Guest:
    """Boot the module's kernel, once per session, with the selected tests."""
    kind = request.module.KERNEL
    assert kind in KINDS
    return _boots(kind)
