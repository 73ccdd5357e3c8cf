"""Which OpenCL devices are here. pyopencl is imported on the first question, and only by this module."""

from __future__ import annotations

from functools import cache
from typing import Any

from accelctl.errors import NoDeviceError, extra

HINT = extra("opencl")
MOST_LINES = 3
"""Of a driver's error, for one line of ours."""


@cache
def module() -> Any:
    """pyopencl. NoDeviceError where it is not installed, or finds no ICD loader."""
    try:
        import pyopencl
    except ImportError as error:
        raise NoDeviceError(f"OpenCL cannot be used: {error}", HINT) from error
    return pyopencl


@cache
def devices() -> tuple[Any, ...]:
    """Every device of every platform, accelerators first, in the loader's order. NoDeviceError without a platform."""
    cl = module()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise NoDeviceError(f"no OpenCL platform is installed ({error})", HINT) from error
    found = []
    for platform in platforms:
        try:
            found += platform.get_devices()
        except cl.Error:  # a platform whose hardware is not there
            continue
    return tuple(sorted(found, key=lambda device: not accelerator(device)))


@cache
def context_of(name: str) -> Any:
    """The context of a device; one for all sessions, so that a program is built once."""
    return module().Context([device_of(name)])


def said(error: BaseException) -> str:
    """What a driver's error says, in one line. Of a compiler's log the lines with errors: around them pyopencl repeats
    its own words, and tells options and files of no use to anybody."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    wrong = list(dict.fromkeys(line for line in lines if "error: " in line))
    if not wrong:
        return " ".join(lines[:MOST_LINES])
    return "; ".join(wrong[:MOST_LINES]) + (f"; {len(wrong) - MOST_LINES} more" if len(wrong) > MOST_LINES else "")


def accelerator(device: Any) -> bool:
    """No CPU."""
    return not device.type & module().device_type.CPU


def flushes(device: Any) -> bool:
    """No subnormal numbers in fp32 (CL_DEVICE_SINGLE_FP_CONFIG without CL_FP_DENORM, which OpenCL allows)."""
    return not device.single_fp_config & module().device_fp_config.DENORM


def device_of(name: str) -> Any:
    """The device that ``opencl:N`` means. NoDeviceError."""
    found = devices()
    number = name.partition(":")[2]
    if not number.isdecimal() or int(number) >= len(found):
        raise NoDeviceError(f"{name} is not here: there are {len(found)} OpenCL devices")
    return found[int(number)]
