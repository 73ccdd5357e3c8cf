"""Error codes of the stacks below, each of one kind of accelctl.errors: what every chip raises and ``explain`` tells.

One JSON file per stack in data/codes/, opened when that stack is asked for and not before. Names and numbers are facts
of public headers (each file names its own); the words are ours. Numbers are signed, as the API returns them.
"""

from __future__ import annotations

import errno
import json
from functools import cache, lru_cache
from typing import Any, NamedTuple

from accelctl.abi.rooms import BACKENDS

CODES = BACKENDS.parent / "data" / "codes"
UNKNOWN = "internal"
"""The kind of a number that the table does not have: the stack failed, for no reason known here."""


class Stack(NamedTuple):
    """One vocabulary: how people write it before a code, and how its numbers are written."""

    prefix: str
    title: str
    also: tuple[str, ...] = ()
    hexadecimal: bool = False
    """People write its numbers in hexadecimal."""
    negated: bool = False
    """Its calls also return the number with a minus sign (a kernel's -ENOSPC)."""


STACKS: dict[str, Stack] = {
    "cuda_runtime": Stack("cuda", "CUDA runtime", ("cudart", "cudaerror", "cudaerror_t")),
    "cuda_driver": Stack("cuda", "CUDA driver API", ("cu", "curesult")),
    "hip": Stack("hip", "HIP", ("rocm", "hiperror_t")),
    "acl": Stack("acl", "Ascend ACL", ("ascend", "cann", "aclerror")),
    "nvml": Stack("nvml", "NVML", ("nvmlreturn_t",)),
    "nv_status": Stack("nv", "NVIDIA resource manager", ("rm", "uvm"), True),
    "xid": Stack("xid", "NVIDIA Xid"),
    "opencl": Stack("cl", "OpenCL", ("cl_int",)),
    "level_zero": Stack("ze", "Level Zero", ("l0", "zes", "ze_result_t"), True),
    "errno": Stack("errno", "Linux errno", ("ioctl",), negated=True),
    "cnrt": Stack("cnrt", "Cambricon runtime", ("cnrtret_t",)),
    "cndrv": Stack("cndrv", "Cambricon driver API", ("cn", "cnresult")),
    "musa": Stack("musa", "MUSA", ("musaerror_t",)),
    "xpu_kunlun": Stack("xpu", "Kunlunxin XPU runtime", ("kunlun", "xpurt", "xpuerror_t"), negated=True),
    "nccl": Stack("nccl", "NCCL", ("rccl", "ncclresult_t")),
    "hccl": Stack("hccl", "HCCL", ("hcclresult",)),
    "hsa": Stack("hsa", "HSA runtime (ROCR)", ("rocr", "hsa_status_t"), True),
}
"""Stack -> how it is written. The order is that of a list of candidates."""


class Code(NamedTuple):
    """One entry. ``when``: sync, async (an earlier call is to blame), sync_or_async, query_result, or kernel_log;
    ``sticky``: what is lost: no, context, process, device, capture, communicator or unknown; ``next`` and ``vendor``
    are steps of its own, before those of its kind; ``retry`` replaces the kind's own."""

    stack: str
    name: str
    number: int
    kind: str
    meaning: str
    detail: str = ""
    when: str = "sync"
    sticky: str = "no"
    note: str = ""
    since: str = ""
    retry: str = ""
    vendor: str = ""
    next: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def written(self) -> str:
        """The number as people write it in this stack."""
        return f"{self.number:#x}" if STACKS[self.stack].hexadecimal else str(self.number)

    @property
    def address(self) -> str:
        """What ``accelctl explain`` takes for this one and no other of another stack's."""
        return f"{STACKS[self.stack].prefix}:{self.written}"


class Table(NamedTuple):
    """Everything about one stack: its codes by number and by name in lower case, and what holds for all of them."""

    by_number: dict[int, Code]
    by_name: dict[str, Code]
    head: dict[str, Any]
    """type, sources, notes, async (earlier, seen_at, find), refine, ranges: as in the file, where it has them."""


@cache
def table(stack: str) -> Table:
    """The table of a stack. KeyError for a name that is no stack."""
    STACKS[stack]
    head = json.loads((CODES / f"{stack}.json").read_bytes())
    columns, rows = head.pop("columns"), head.pop("entries")
    own = _of_room(head["room"]) if "room" in head else {}
    usual = head.pop("when", "sync")
    by_number, by_name = {}, {}
    for row in rows:
        values = {"when": usual, **dict(zip(columns, row))}  # noqa: B905 - a row ends before its last defaults
        values |= own.get(values["number"], {})
        code = Code(stack, **{**values, "aliases": tuple(values.get("aliases", ()))})
        by_number[code.number] = code
        for name in (code.name, *code.aliases):
            by_name[name.lower()] = code
    return Table(by_number, by_name, head)


def _of_room(chip: str) -> dict[int, dict[str, str]]:
    """Words that a chip's room has already, for the findings of its kernel log."""
    entries = json.loads((BACKENDS / chip / "codes.json").read_bytes())["codes"]
    return {
        int(number): {"meaning": entry["meaning"], "next": entry["next"].replace("{device}", "DEVICE")}
        for number, entry in entries.items()
    }


def find(stack: str, number: int) -> Code | None:
    """The entry of a number in any form that calls of this stack return it in; None where there is none."""
    known = table(stack).by_number
    forms = [number, number - (1 << 32), number - (1 << 64)]
    forms += [-form for form in forms] if STACKS[stack].negated else []
    return next((known[form] for form in forms if form in known), None)


def named(stack: str, name: str) -> Code | None:
    """The entry of a name or an alias; case does not count."""
    return table(stack).by_name.get(name.lower())


def kind_of(stack: str, number: int) -> str:
    """The kind of a stack's number, for whoever raises it; UNKNOWN for a number that is not in the table."""
    code = find(stack, number)
    return code.kind if code is not None else UNKNOWN


def errno_of(stack: str, number: int) -> int:
    """The errno that a driver with errnos would have answered; EIO where there is none."""
    return _ERRNOS.get(kind_of(stack, number), errno.EIO)


_ERRNOS = {
    "invalid_argument": errno.EINVAL,
    "invalid_handle": errno.EINVAL,
    "invalid_state": errno.EINVAL,
    "version_mismatch": errno.EINVAL,
    "already_exists": errno.EEXIST,
    "not_found": errno.ENOENT,
    "not_supported": errno.EOPNOTSUPP,
    "permission": errno.EPERM,
    "no_device": errno.ENODEV,
    "device_lost": errno.ENODEV,
    "busy": errno.EBUSY,
    "not_ready": errno.EAGAIN,
    "timeout": errno.ETIMEDOUT,
    "cancelled": errno.ECANCELED,
    "out_of_memory": errno.ENOMEM,
    "out_of_resources": errno.ENOSPC,
    "out_of_address_space": errno.ENOSPC,
}


@lru_cache(maxsize=1)
def mistakes() -> tuple[tuple[str, str, str, str, dict[str, int]], ...]:
    """(id, kind, what was done wrong, note, stack -> the number it answers) of mistakes that every stack knows."""
    rows = json.loads((CODES / "mistakes.json").read_bytes())["entries"]
    return tuple((identity, kind, text, note, dict(numbers)) for identity, kind, text, note, numbers in rows)
