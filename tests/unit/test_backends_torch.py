"""The torch chip where PyTorch is not installed, and the thread that runs its work, which needs no PyTorch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accelctl.abi.compute import named
from accelctl.abi.queue import IDLE, LOST, QueueClosed, Timeline
from accelctl.backends.torch.ops import kernels, platform
from accelctl.backends.torch.ops.line import Fault, Line
from accelctl.errors import DeviceUnusable, NoDeviceError
from tests.helpers import ROOT, run_cli


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    remembered = (platform.module, platform.devices)
    for one in remembered:
        one.cache_clear()
    yield
    for one in remembered:
        one.cache_clear()


@pytest.fixture
def line() -> Iterator[Line]:
    found = Line(lambda: None)
    yield found
    found.close()


def test_without_pytorch_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NoDeviceError) as caught:
        named("torch:cpu")
    assert caught.value.hint == "pip install torch"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("error", ["ImportError('no module')", "OSError('libtorch.so: cannot be read\\nadvice')"])
def test_the_command_says_it_too(error: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(f"raise {error}\n", encoding="utf-8")
    done = run_cli("smoke", "--device", "torch:cpu", env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, code=3)
    assert done.stderr.splitlines()[1:] == ["  try: pip install torch"]
    assert "PyTorch cannot be used" in done.stderr


class Fake:
    """As much of PyTorch as naming devices needs."""

    def __init__(self, hip: str | None, **kinds: int) -> None:
        self.__version__ = "2.9"
        self.version = SimpleNamespace(cuda=None if hip else "12.8", hip=hip)
        for kind, count in kinds.items():
            setattr(self, kind, self._kind(kind, count))

    @staticmethod
    def _kind(kind: str, count: int) -> Any:
        return SimpleNamespace(
            is_available=lambda: count > 0, device_count=lambda: count, get_device_name=lambda n: f"{kind} card {n}"
        )


@pytest.mark.parametrize(
    ("fake", "ids", "names"),
    [
        (Fake(None, cuda=2), ["torch:cuda:0", "torch:cuda:1"], ["cuda:0", "cuda:1"]),
        (Fake("6.4", cuda=1), ["torch:hip:0"], ["cuda:0"]),
        (Fake(None, cuda=0, xpu=1), ["torch:xpu:0"], ["xpu:0"]),
        (Fake(None, cuda=0, npu=1), ["torch:npu:0"], ["npu:0"]),
        (Fake(None, cuda=0), [], []),
    ],
)
def test_names_of_devices(fake: Fake, ids: list[str], names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCm answers to CUDA's name inside PyTorch; people say hip."""
    monkeypatch.setattr(platform, "module", lambda: fake)
    found = platform.devices()
    assert [one.id for one in found] == [*ids, "torch:cpu"]
    assert [one.name for one in found] == [*names, "cpu"]


def test_a_kernel_for_every_op() -> None:
    assert sorted(kernels.BY_ID) == list(range(1, 16))


def test_work_is_done_in_order_and_passes_its_points(line: Line) -> None:
    ring, done = Timeline(8), list[int]()
    for number in range(5):
        assert line.put(ring, lambda number=number: done.append(number)) == number + 1  # type: ignore[misc]
    assert ring.wait(5, 10.0)
    assert done == [0, 1, 2, 3, 4]
    assert ring.state == IDLE


def test_handing_over_does_not_wait_and_settling_does(line: Line) -> None:
    ring, go, done = Timeline(8), threading.Event(), list[int]()
    line.put(ring, lambda: done.append(int(go.wait(10.0))))
    line.put(ring, lambda: done.append(2))
    assert (done, ring.state) == ([], "busy")
    go.set()
    line.settle()
    assert done == [1, 2]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Fault("offs: [3, 1] fall"), "instruction 1 failed: offs: [3, 1] fall"),
        (RuntimeError("CUDA error\nadvice"), "instruction 1 failed: RuntimeError: CUDA error"),
        (MemoryError(), "instruction 1 failed: MemoryError: MemoryError"),
    ],
)
def test_what_fails_ends_its_ring_and_no_other(line: Line, error: Exception, said: str) -> None:
    ring, other, ran, go = Timeline(8), Timeline(8), list[int](), threading.Event()

    def hold() -> None:
        go.wait(10.0)

    def fail() -> None:
        raise error

    line.put(other, hold)  # until all are in: a ring that is lost takes no more
    line.put(ring, fail)
    line.put(ring, lambda: ran.append(1))
    line.put(other, lambda: None)
    go.set()
    assert other.wait(2, 10.0)
    with pytest.raises(DeviceUnusable) as caught:
        ring.wait(2, 10.0)
    assert caught.value.message == f"the ring is lost: {said}"
    assert (ring.state, ring.passed(), ran) == (LOST, 0, [])


def test_a_failure_of_the_device_is_the_failure_of_that_work() -> None:
    def finish() -> None:
        raise RuntimeError("illegal access")

    line, ring = Line(finish), Timeline(8)
    line.put(ring, lambda: None)
    with pytest.raises(DeviceUnusable, match="instruction 1 failed: RuntimeError: illegal access"):
        ring.wait(1, 10.0)
    line.close()


def test_what_a_closed_ring_had_waiting_is_not_done(line: Line) -> None:
    ring, go, began, ran = Timeline(8), threading.Event(), threading.Event(), list[int]()

    def first() -> None:
        began.set()
        go.wait(10.0)

    line.put(ring, first)
    line.put(ring, lambda: ran.append(1))
    assert began.wait(10.0)
    ring.close()
    line.forget(ring)
    go.set()
    line.settle()
    assert ran == []


def test_after_closing_nothing_is_taken() -> None:
    line = Line(lambda: None)
    line.put(Timeline(8), lambda: None)
    line.close()
    line.close()
    with pytest.raises(QueueClosed):
        line.put(Timeline(8), lambda: None)
    assert not [one for one in threading.enumerate() if one.name == "accelctl-torch"]
