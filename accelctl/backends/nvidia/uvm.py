"""NVIDIA's unified memory: which object of RM lies at which address of the GPU.

UVM's numbers say no size, and the kernel copies its own: every call gets a buffer that no release outgrows, filled with
a pattern behind the structure and in its status. What the kernel changes behind the structure, or a status that it does
not touch, means that it has another layout in mind than the one of its release: AbiError, nothing is guessed.
"""

from __future__ import annotations

from typing import Any

from accelctl.backends.nvidia.rm import require_ok
from accelctl.errors import AbiError
from accelctl.hal.devfile import DevFile
from accelctl.hal.uapi import nvidia
from accelctl.hal.uapi._struct import Ioctl

_FILL = 0x5A
_UNTOUCHED = 0x5A5A5A5A
"""No status of any release."""


def call(file: DevFile, what: Ioctl, **values: Any) -> dict[str, Any]:
    """One call: what is in its structure afterwards. Raises OSError, DriverStatus, AbiError."""
    layout = what.layout
    buffer = nvidia.uvm_buffer(layout.pack(rmStatus=_UNTOUCHED, **values), _FILL)
    try:
        file.ioctl(what.number, buffer)
    except OSError as error:
        error.filename = error.filename or what.name
        raise
    answer = layout.unpack(buffer)
    if answer["rmStatus"] == _UNTOUCHED or buffer.count(_FILL, layout.size) != len(buffer) - layout.size:
        raise AbiError(f"{what.name}: the kernel's structure is not the one of {layout.size} bytes that was expected")
    require_ok(what.name, answer["rmStatus"])
    return answer
