"""NVIDIA's resource manager: a tree of objects below a client, and how the running release is found out.

RM answers 0 for "dispatched"; what became of the call is in its status field, raised as DriverStatus with RM's own
name. It takes the exact size of the running release and nothing else, so the release comes first, by two calls that are
safe before it is known: NVOS21 has one size in all releases (only its status moved), and GET_BUILD_VERSION_V2 is tried
in both of its sizes. open-gpu-kernel-modules 525.147.05 to 595.45.04.
"""

from __future__ import annotations

import array
from contextlib import ExitStack
from typing import Any

from accelctl.abi import codes
from accelctl.abi.devmem import ask
from accelctl.abi.lifecycle import DriverStatus
from accelctl.errors import AbiError, NoDeviceError
from accelctl.hal import ioc
from accelctl.hal.devfile import DevFile
from accelctl.hal.uapi import nvidia
from accelctl.hal.uapi._struct import Ioctl, Struct

_OTHER_SIZE = (nvidia.NV_ERR_INVALID_ARGUMENT, nvidia.NV_ERR_INVALID_PARAM_STRUCT)
_MOST_GPUS = 64
"""NV_MAX_DEVICES is 32; CARD_INFO is EINVAL with less room than there are GPUs."""


def errno_of(status: int) -> int:
    """The errno that a status corresponds to; EIO where there is none."""
    return codes.errno_of("nv_status", status)


def require_ok(call: str, status: int) -> None:
    """DriverStatus unless a status is NV_OK. A warning is no success either: something asked for was not done."""
    if status != nvidia.NV_OK:
        error = DriverStatus(status, nvidia.status_name(status), errno_of(status))
        error.filename = call
        raise error


class Rm:
    """One client on the control node. ``device`` and the others are handles in its tree.

    Allocated handles are RM's own choice; :meth:`handle` gives numbers for the calls that want ours.
    """

    def __init__(self, control: DevFile, held: ExitStack) -> None:
        self.file = control
        self.client = _client(control)
        held.callback(self.free, self.client, self.client)
        self.release = _release(control, self.client)
        self.calls = nvidia.calls(self.release)
        self._next = 0x1000  # RM's own begin far above

    def handle(self) -> int:
        """A number that no object of this client has."""
        self._next += 1
        return self._next

    def call(self, file: DevFile, call: Ioctl, status: str, **values: Any) -> bytearray:
        """One escape, whose status is in that field; the buffer as RM left it. Raises OSError, DriverStatus."""
        answer = ask(file, call, **values)
        require_ok(call.name, int(call.layout.field(status).get(answer)))
        return answer

    def alloc(self, parent: int, kind: int, params: bytearray) -> int:
        """RM_ALLOC of an object of a class; its handle. Raises OSError, DriverStatus."""
        call, buffer = self.calls.rm_alloc, array.array("B", params)
        values = {"hRoot": self.client, "hObjectParent": parent, "hClass": kind}
        if "paramsSize" in call.layout.fields:
            values["paramsSize"] = len(params)
        answer = self.call(self.file, call, "status", pAllocParms=buffer.buffer_info()[0], **values)
        return int(call.layout.field("hObjectNew").get(answer))

    def free(self, parent: int, handle: int) -> None:
        """RM_FREE of an object and all below it. Raises OSError, DriverStatus."""
        self.call(self.file, nvidia.RM_FREE, "status", hRoot=self.client, hObjectParent=parent, hObjectOld=handle)

    def control(self, handle: int, command: int, layout: Struct, **values: Any) -> dict[str, Any]:
        """RM_CONTROL of an object: what is in the parameters afterwards. Raises OSError, DriverStatus."""
        return _control(self.file, self.client, handle, command, layout, values)


def _control(
    file: DevFile, client: int, handle: int, command: int, layout: Struct, values: dict[str, Any]
) -> dict[str, Any]:
    params, call = array.array("B", layout.pack(**values)), nvidia.RM_CONTROL
    pointer, size = params.buffer_info()[0], layout.size
    answer = ask(file, call, hClient=client, hObject=handle, cmd=command, params=pointer, paramsSize=size)
    require_ok(f"{call.name} {command:#x}", int(call.layout.field("status").get(answer)))
    return layout.unpack(params.tobytes())


def _client(file: DevFile) -> int:
    """A root client, before the release is known: an error is wherever a release puts its status."""
    old, new = (layout for _, layout in nvidia.VERSIONED["NVOS21_PARAMETERS"])
    call = Ioctl("NV_ESC_RM_ALLOC", ioc.iowr("F", 0x2B, new.size), new)
    answer = ask(file, call, hClass=nvidia.NV01_ROOT_CLIENT)
    for layout in (old, new):
        require_ok(call.name, int(layout.field("status").get(answer)))
    return int(new.field("hObjectNew").get(answer))


def _release(file: DevFile, client: int) -> nvidia.Release:
    """The running release. AbiError for one that does not tell it in a known way."""
    for _, layout in reversed(nvidia.VERSIONED["NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_PARAMS"]):
        command = nvidia.NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2
        try:
            told = _control(file, client, client, command, layout, {})
        except DriverStatus as error:
            if error.status in _OTHER_SIZE:
                continue
            raise
        return nvidia.parse_release(told["driverVersionBuffer"].partition(b"\0")[0].decode("ascii", "replace"))
    raise AbiError(f"{file.path}: the NVIDIA driver does not tell its release in a known structure")


def gpu_id(control: DevFile, minor: int) -> int:
    """RM's id of the GPU behind /dev/nvidiaMINOR. Raises OSError; NoDeviceError where there is none."""
    layout = nvidia.CARD_INFO.layout
    room = bytearray(_MOST_GPUS * layout.size)
    control.ioctl(ioc.iowr("F", 0xC8, len(room)), room)
    for place in range(0, len(room), layout.size):
        card = layout.unpack(room[place : place + layout.size])
        if card["valid"] and card["minor_number"] == minor:
            return int(card["gpu_id"])
    raise NoDeviceError(f"{control.path}: no GPU has the minor number {minor}")
