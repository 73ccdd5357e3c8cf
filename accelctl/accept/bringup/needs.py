"""Why a step does not apply, or nothing: asked in the process that keeps the time, so nothing heavy is loaded here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from accelctl.abi import capabilityfile
from accelctl.accept.bringup.step import Order
from accelctl.errors import NoDeviceError, extra
from accelctl.model.bringupreport import Subject

Needs = Callable[[Order, "Subject | None"], str]


COMPUTING = ("numpy", "ml_dtypes", "grpc", "grpc_health", "grpc_reflection", "crc32c", "prometheus_client")
"""What the steps of a device that computes load, in children of their own (the extra ``umd``)."""


def packages(subjects: Sequence[Subject]) -> None:
    """A package of Python's that is missing says nothing about a device, so it is told before any step: NoDeviceError
    (exit 3). What a chip without ops is asked needs none of them."""
    if all(one.ops for one in subjects):
        return
    missing = next((name for name in COMPUTING if find_spec(name) is None), "")
    if missing:
        raise NoDeviceError(f"{missing} is not installed; it comes with an extra", extra("umd"))


def nothing(order: Order, subject: Subject | None) -> str:
    """It always applies."""
    return ""


def expected(order: Order, subject: Subject | None) -> str:
    """Nobody said what the machine must be."""
    return "" if order.expect else "no --expect FILE (accelctl probe --save-expect FILE writes one)"


def memory(order: Order, subject: Subject | None) -> str:
    """The chip has no lifecycles."""
    return subject.memory if subject is not None else ""


def ops(order: Order, subject: Subject | None) -> str:
    """It does not compute."""
    return subject.ops if subject is not None else ""


def records_of(order: Order) -> str:
    """The file of capability records that was named, else the user's own."""
    return order.caps or capabilityfile.default_path()


def records(order: Order, subject: Subject | None) -> str:
    """It does not compute, or nothing was ever proven."""
    if os.path.exists(records_of(order)):
        return ops(order, subject)
    return ops(order, subject) or "no capability records (accelctl smoke --save FILE, then --caps FILE)"


def figures(order: Order, subject: Subject | None) -> str:
    """What has neither ops nor memory cannot be measured."""
    return ops(order, subject) if memory(order, subject) else ""


def disruptive(order: Order, subject: Subject | None) -> str:
    """It can leave a real device in need of a reset, so it must be asked for."""
    return memory(order, subject) or ("" if order.disruptive else "no --disruptive: it can make a reset necessary")
