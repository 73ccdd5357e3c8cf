"""Choosing what is measured, a device that only has memory, and where an op's time goes."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from accelctl.abi import compute, registry
from accelctl.abi.lifecycle import Block
from accelctl.accept.bench import bandwidth, ops, run
from accelctl.accept.bench.compare import compare
from accelctl.accept.bench.run import Chosen, Run, _computing
from accelctl.accept.bench.subject import MOST_BYTES, SHARES, Subject
from accelctl.errors import DeviceUnusable, NoDeviceError, UsageError
from accelctl.hal.devfile import open_files
from accelctl.hal.root import open_root
from accelctl.model.benchreport import PARTS, SECONDS, SLOWER, BenchReport
from accelctl.model.device import Device
from tests import stresskit
from tests.benchkit import figure
from tests.stresskit import TARGET, Toy, ToyMemory

ROOT = open_root("/")


def chosen(memory: Any) -> Chosen:
    manifest = SimpleNamespace(name="toy", proven="in tests", toolchains=())
    chip: Any = SimpleNamespace(manifest=manifest, memory=memory, ops=None)
    return Chosen(chip, TARGET, "a toy", False, Device("toy:0", "virtual", ""))


def measured(memory: Any, parts: tuple[str, ...] = PARTS, seconds: float = 0.3) -> BenchReport:
    return Run(ROOT, chosen(memory), parts, seconds, "").everything(lambda name, number, count: None)


def test_a_device_without_kernels_has_bandwidth_and_memory() -> None:
    before = open_files()
    report = measured(ToyMemory())
    found = {one.part for one in report.figures}
    assert found == {"bandwidth", "lifecycles", "pool"}
    assert {one.name for one in report.figures if one.part == "lifecycles"} == {"plain"}
    told = {one.what: one.why for one in report.skipped}
    assert told["roundtrip, batch, stream, cache, channel, ops"] == "toy has no kernels, so there is no service"
    assert told["lifecycles"] == "never: the toy is small"
    assert report.verdict == "measured"
    assert report.exit_code == 0
    assert open_files() == before


def test_every_figure_has_its_spread_and_its_floor() -> None:
    report = measured(ToyMemory(), ("bandwidth", "lifecycles", "pool"))
    for one in report.figures:
        assert one.spread.low <= one.spread.median <= one.spread.high
        assert one.spread.n == len(one.samples) == len(one.floor) == report.rounds
        assert one.floor_name
    ceilings = {one.ceiling.name for one in report.figures if one.part == "bandwidth" and one.ceiling}
    assert ceilings == {"a plain copy in this machine's memory"}


def test_a_service_that_does_not_start_is_tried_once_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def fails(device: str) -> None:
        started.append(device)
        raise DeviceUnusable("the service did not start: why")

    monkeypatch.setattr("accelctl.smoke.ownservice.OwnService", fails)
    found = compute.named("sim:0")
    run = Run(ROOT, _computing(found), ("roundtrip", "batch", "ops"), 0.3, "")
    report = run.everything(lambda name, number, count: None)
    assert started == ["sim:0"]
    assert [(one.what, one.why) for one in report.skipped] == [
        ("roundtrip, batch, ops", "the service did not start: why")
    ]


def test_a_stage_that_is_refused_leaves_the_rest() -> None:
    def refuse(toy: Toy) -> None:
        toy.refuse["cpu_map"] = errno.ENOMEM

    before = open_files()
    report = measured(ToyMemory(refuse))
    assert report.figures == ()
    assert report.verdict == "nothing was measured"
    assert report.exit_code == 77
    assert any("as ordered" in one.why for one in report.skipped)
    assert open_files() == before


def test_an_interrupt_is_a_report_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[str] = []

    def tick(name: str, number: int, count: int) -> None:
        ticks.append(name)
        if name == "round 3":
            raise KeyboardInterrupt

    before = open_files()
    report = Run(ROOT, chosen(ToyMemory()), ("lifecycles",), 5.0, "").everything(tick)
    assert report.ended == report.exit_code == 130
    assert report.rounds == 2
    assert [one.spread.n for one in report.figures] == [2]
    assert report.verdict == "stopped"
    assert open_files() == before


class Doubled(Toy):
    """Maps everything twice."""

    def map(self, block: Block) -> int:
        super().map(block)
        super().unmap(block)
        return super().map(block)


def test_a_driver_that_takes_longer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By real runs, on a machine with whatever else it does; the same driver is not called slower."""
    first, second = (measured(ToyMemory(), ("lifecycles",), 1.0) for _ in range(2))
    monkeypatch.setattr(stresskit, "Toy", Doubled)
    slow = measured(ToyMemory(), ("lifecycles",), 1.0)
    assert [row.word for row in compare(second, slow).rows] == [SLOWER]
    assert compare(first, second, 25).of(SLOWER) == ()


def test_memory_is_bounded() -> None:
    chip: Any = SimpleNamespace(ops=None)
    for room in (0, 1 << 20, 100 << 20, MOST_BYTES):
        subject = Subject(chip, TARGET, accelerator=False, room=room)
        assert subject.largest * SHARES <= max(room, SHARES * (64 << 10))
        assert subject.largest & (subject.largest - 1) == 0


@pytest.mark.parametrize("parts", [("nope",), ("bandwidth", "Bandwidth")])
def test_unknown_parts(parts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="not one of bandwidth"):
        run.checked(parts, 1)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 3601])
def test_times_that_are_none(seconds: float) -> None:
    with pytest.raises(UsageError, match="--seconds"):
        run.checked((), seconds)


def test_parts_come_in_their_order() -> None:
    assert run.checked((), 1) == PARTS
    assert run.checked(("pool", "bandwidth", "pool"), 1) == ("bandwidth", "pool")


def test_nothing_falls_back_to_the_simulator() -> None:
    with pytest.raises(NoDeviceError):
        run.choose(ROOT, ["sim:9"])
    with pytest.raises(NoDeviceError):
        run.choose(ROOT, ["pci:0000:99:00.0"])


def test_the_processor_is_named_once() -> None:
    name, count = run.processor(ROOT)
    assert name
    assert count >= 1
    assert "\n" not in name


def test_a_second_device_of_the_chip_is_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated chip with two: bytes go down to the host and up to the other one."""
    chip = registry.load("sim")
    assert chip.ops is not None
    (first,) = [one for one in chip.ops.devices() if one.target.id == "sim:0"]
    second = first._replace(target=first.target._replace(id="sim:1"))
    monkeypatch.setattr(type(chip.ops), "devices", lambda self: (first, second))
    subject = Subject(chip, first.target, accelerator=False, room=8 << 20)
    try:
        (task,) = bandwidth._peer(subject, None)
        subject.places[0].write(subject.host[0])
        subject.host[0][:] = bytes(len(subject.host[0]))
        task.call()
        assert task.name == "to sim:1 by host 512 KiB"
        assert task.amount == 512 << 10
        assert subject.host[0][: 512 << 10] == b"\x01" * (512 << 10)
        assert "two ways" in task.detail
    finally:
        subject.close()


CALL = ops.Call((1e-5, 0.0, 0.0, 0.0, 0.0, 2e-5), 9e-5, 1.5e-4)


def row_of(native: float, service: float, calls: list[ops.Call]) -> Any:
    spread = [native * one for one in (0.99, 1.0, 1.01, 1.0, 0.995)]
    other = [service * one for one in (0.99, 1.0, 1.01, 1.0, 0.995)]
    return ops.row("add", "3", "k", figure("n", spread, unit=SECONDS), figure("s", other, unit=SECONDS), calls)


def test_the_stage_that_holds_most_of_the_difference() -> None:
    found = row_of(2e-5, 1.5e-4, [CALL])
    assert found.blame == "rpc"
    assert sum(found.stages.values()) == pytest.approx(found.difference)
    assert found.stages["queue"] == pytest.approx(1e-5)
    assert found.share == pytest.approx(9 / 13)


def test_a_stage_of_the_pipeline_can_be_blamed() -> None:
    slow = CALL._replace(stages=(4e-4, 0.0, 0.0, 0.0, 0.0, 2e-5))
    assert row_of(2e-5, 6e-4, [CALL, slow, slow]).blame == "validate"


def test_a_device_that_began_early_does_not_hide_the_rest() -> None:
    """The kernel ran while the answer was on its way: the queue's share is below nothing."""
    found = row_of(1e-4, 1.5e-4, [CALL])
    assert found.stages["queue"] < 0
    assert found.blame == "rpc"
    assert 0 < found.share <= 1


def test_no_difference_blames_nobody() -> None:
    assert row_of(1.5e-4, 1.5e-4, [CALL]).blame == ""
