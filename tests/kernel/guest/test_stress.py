"""`accelctl stress` against the guest's drivers: 2,000 cycles of every lifecycle, and leaks that a test makes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accelctl.errors import NoDeviceError
from accelctl.hal import devfile
from accelctl.hal.devfile import Mapped, Syscalls
from accelctl.hal.root import open_root
from accelctl.model.stressreport import FAIL, PASS, SKIP, StressReport
from accelctl.stress import run, targets
from accelctl.stress.kill import kill_run
from accelctl.stress.plan import MIB, Plan
from accelctl.stress.run import Options
from accelctl.stress.targets import Allowed, Candidate
from tests.helpers import run_cli

from .backendkit import prepared, vfio_group
from .helpers import needs

__all__ = ["prepared", "vfio_group"]  # fixtures

PLAN = Plan(seed=11, cycles=2000, bytes_limit=8 * MIB, sizes="small")
DEVICES = [
    "chip=vgem",
    "chip=bochs",
    "chip=qxl",
    "chip=virtio_gpu",
    "node:dma_heap/system",
    "udmabuf",
    "node:vfio/vfio",
]
DEBUG_ONLY = [pytest.param(name, marks=needs("debug")) for name in ("chip=vkms", "iommu")]
RELEASES = {0x40086409: "object", 0x3B80: "object", 0x3B86: "iova", 0x3B72: "iova"}
"""GEM_CLOSE, IOMMU_DESTROY, IOMMU_IOAS_UNMAP, VFIO_IOMMU_UNMAP_DMA (Linux 6.12 headers, x86-64)."""


def chosen(name: str) -> Candidate:
    return targets.choose(targets.find(open_root("/"), Allowed()), [name])


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("name", [*DEVICES, *DEBUG_ONLY])
def test_two_thousand_cycles_are_clean(name: str) -> None:
    report = run.run(chosen(name), PLAN, Options(books="near"))
    done = [outcome for outcome in report.outcomes if outcome.result != SKIP]
    assert done, [outcome.reason for outcome in report.outcomes]
    for outcome in done:
        assert (outcome.lifecycle, outcome.result, outcome.reason) == (outcome.lifecycle, PASS, outcome.reason)
        assert outcome.cycles >= PLAN.cycles
        assert outcome.failures == ()
        assert set(outcome.census.values()) <= {0}
        assert outcome.verdict is not None
        assert outcome.verdict.books
    print(f"{name}: " + ", ".join(f"{o.lifecycle} {o.cycles} cycles in {o.seconds:.1f} s" for o in done))


@pytest.mark.parametrize("pair", [("chip=vgem", "chip=vkms"), ("chip=virtio_gpu", "chip=vgem")])
def test_pairs_of_drivers(pair: tuple[str, str]) -> None:
    """What a driver does not offer is not supported, never a failure."""
    found = targets.find(open_root("/"), Allowed())
    try:
        other = targets.peer(found, pair[1])
    except NoDeviceError as error:
        pytest.skip(f"no {pair[1]} in this kernel: {error}")
    report = run.run(targets.paired(targets.choose(found, [pair[0]]), other), PLAN, Options())
    assert report.result == PASS, [(o.lifecycle, o.reason) for o in report.outcomes]


class Forgetful(Syscalls):
    """Swallows every 100th call of one kind: it is acknowledged, and nothing is done."""

    def __init__(self, kind: str) -> None:
        self.kind, self.count = kind, 0
        self.kept: list[Mapped] = []

    def _swallow(self, kind: str) -> bool:
        self.count += kind == self.kind
        return kind == self.kind and self.count % 100 == 0

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        kind = RELEASES.get(number, "")
        return 0 if kind and self._swallow(kind) else super().ioctl(fd, number, argument)

    def unmap(self, mapping: Mapped) -> None:
        if self._swallow("mapping"):
            self.kept.append(mapping)  # Python would unmap what nobody refers to
        else:
            super().unmap(mapping)

    def close(self, fd: int) -> None:
        if not self._swallow("fd"):
            super().close(fd)


LEAKS = [
    ("chip=vgem", "dumb", "object", ("gem-handles",)),
    ("chip=qxl", "dumb", "mapping", ("maps-drm",)),
    ("node:dma_heap/system", "buffer", "fd", ("fds-dmabuf",)),
    pytest.param("iommu", "ioas", "object", ("ioas",), marks=needs("debug")),
    pytest.param("iommu", "map", "iova", ("iova-bytes",), marks=needs("debug")),
    pytest.param("iommu", "map-fixed", "iova", ("iova-bytes",), marks=needs("debug")),
    ("node:vfio/vfio", "map", "iova", ("dma-mappings", "vmlck")),
]


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(("name", "lifecycle", "kind", "books"), LEAKS)
def test_a_leak_is_named_by_the_kernels_book_alone(
    name: str, lifecycle: str, kind: str, books: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = chosen(name)
    forgetful = Forgetful(kind)
    monkeypatch.setattr(run, "SYSCALLS", forgetful)
    monkeypatch.setattr(devfile, "SYSCALLS", forgetful)
    plan = Plan(seed=11, cycles=2000, bytes_limit=8 * MIB, sizes="page", hold=1, partial=0)
    report = run.run(candidate, plan, Options(lifecycles=(lifecycle,), ledger=False))
    outcome = report.outcomes[0]
    assert (report.result, outcome.result) == (FAIL, FAIL)
    assert outcome.verdict is not None
    named = {j.counter: j.why for j in outcome.verdict.judgements if j.verdict == "leak"}
    assert set(books) <= set(named), (named, outcome.reason)
    assert all("every 100 cycles" in named[book] or "KiB every 1,000 cycles" in named[book] for book in books), named
    print(f"{name} {kind}: {outcome.reason}")


def test_a_killed_worker_leaves_nothing() -> None:
    report = kill_run(chosen("chip=vgem"), PLAN, Options(lifecycles=("dumb",)))
    assert report.result == PASS, [(o.reason, o.notes) for o in report.outcomes]
    assert "back after" in report.outcomes[0].reason


def test_the_command_line_in_the_guest() -> None:
    result = run_cli("stress", "--device", "chip=vgem", "--cycles", "300", "--json", code=0)
    document: dict[str, Any] = json.loads(result.stdout)
    assert (document["schema"], document["result"], document["chip"]) == ("accelctl.stress/1", "pass", "vgem")
    assert run_cli("stress", "--device", "chip=none", code=3).stderr.count("\n") == 2
    listed = run_cli("stress", "--list", code=0).stdout
    assert "vgem" in listed
    assert "object" in listed


def test_no_worker_is_left_behind(capfd: pytest.CaptureFixture[str]) -> None:
    report: StressReport = run.run(chosen("chip=vgem"), Plan(cycles=200), Options(lifecycles=("dumb",)))
    assert report.result == PASS
    assert capfd.readouterr() == ("", "")
    assert devfile.open_files() == {}
