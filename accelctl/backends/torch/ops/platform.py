"""Which devices PyTorch has here. It is imported on the first question: that takes seconds."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from accelctl.errors import NoDeviceError

HINT = "pip install torch"


class Place(NamedTuple):
    """A device: as ``--device`` calls it, as PyTorch does, and for people."""

    id: str
    name: str
    title: str


@cache
def module() -> Any:
    """torch, told to compute in fp32 what is fp32, and twice the same. NoDeviceError where it is not installed."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library of it is missing
        raise NoDeviceError(f"PyTorch cannot be used: {said(error)}", HINT) from error
    torch.set_float32_matmul_precision("highest")  # else a GPU may round operands to TF32
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    return torch


def version() -> str:
    """PyTorch's, and that of the vendor's runtime below it."""
    torch = module()
    below = [f"{name} {found}" for name in ("cuda", "hip", "xpu") if (found := getattr(torch.version, name, None))]
    return " ".join((f"PyTorch {torch.__version__}", *below[-1:]))


@cache
def devices() -> tuple[Place, ...]:
    """Accelerators, then the CPU. NoDeviceError without PyTorch."""
    torch, found = module(), []
    for kind in ("cuda", "xpu", "npu"):
        room = getattr(torch, kind, None)  # npu is there when Ascend's torch_npu is installed
        if room is None or not room.is_available():
            continue
        called = "hip" if kind == "cuda" and torch.version.hip else kind  # ROCm answers to CUDA's name
        for number in range(room.device_count()):
            title = f"{room.get_device_name(number)} ({version()})"
            found.append(Place(f"torch:{called}:{number}", f"{kind}:{number}", title))
    return (*found, Place("torch:cpu", "cpu", f"CPU ({version()})"))


def device_of(name: str) -> Any:
    """The torch.device that ``torch:...`` means. NoDeviceError."""
    for place in devices():
        if place.id == name:
            return module().device(place.name)
    raise NoDeviceError(f"{name} is not here: PyTorch has {', '.join(place.id for place in devices())}")


def on_host(device: Any) -> bool:
    """Whether its memory is the CPU's."""
    return bool(device.type == "cpu")


def finish(device: Any) -> None:
    """Wait until the device has done all that it was told. RuntimeError where it failed."""
    if device.type != "cpu":
        getattr(module(), device.type).synchronize(device)


def said(error: Exception) -> str:
    """What went wrong, in one line: PyTorch's own texts go on with advice."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
