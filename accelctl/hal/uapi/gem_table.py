"""Drivers whose memory needs no code of its own: which call plays which role, as rows.

Objects are GEM handles: drm.GEM_CLOSE frees them. What a row does not say the driver does by itself (an address that
comes with the object) or does not offer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from accelctl.hal.uapi import (
    amdxdna,
    etnaviv,
    ivpu,
    lima,
    msm,
    nouveau,
    panfrost,
    panthor,
    qaic,
    rocket,
    v3d,
)
from accelctl.hal.uapi._struct import Ioctl, Struct

_NOTHING: Mapping[str, int] = MappingProxyType({})


class Space(NamedTuple):
    """The address space that a file needs before anything is bound, and which of its addresses are ours.

    ``create`` (None: the file has one anyway) answers its id in ``id``, which binds take in ``Bind.space``. ``base``
    and ``size`` in bytes; where a driver decides, ``ask`` with ``ask_base`` or ``ask_size`` answers in ``value``.
    ``state``: a call that takes the id in ``state_id`` and answers 0 in ``state_value`` while the space is usable.
    """

    base: int
    size: int
    create: Ioctl | None = None
    create_also: Mapping[str, int] = _NOTHING
    id: str = ""
    destroy: Ioctl | None = None
    destroy_id: str = ""
    ask: Ioctl | None = None
    ask_base: Mapping[str, int] = _NOTHING
    ask_size: Mapping[str, int] = _NOTHING
    state: Ioctl | None = None
    state_id: str = ""
    state_value: str = ""


class Bind(NamedTuple):
    """How an object gets an address that user space chose, and loses it: fields of ``op``, an element of the array
    that ``pointer`` of the call points to, or of the call itself (``op`` None).

    ``size`` is empty where the whole object is bound. ``keeps``: a bound object outlives its handle, and it is unbound
    by address alone; otherwise it is unbound by its handle, at address 0.
    """

    call: Ioctl
    space: Space
    handle: str
    address: str
    size: str
    map_also: Mapping[str, int]
    unmap_also: Mapping[str, int]
    op: Struct | None = None
    pointer: str = ""
    space_id: str = ""
    call_also: Mapping[str, int] = _NOTHING
    keeps: bool = True


class UserPages(NamedTuple):
    """How pages of our own become an object."""

    create: Ioctl
    pointer: str
    size: str
    create_also: Mapping[str, int] = _NOTHING


class GemRow(NamedTuple):
    """One driver. ``size``, ``handle``, ``address`` are fields of ``create``; ``offset`` one of ``locate``.

    ``create_also`` and ``locate_also`` are further fields that must be set. ``locate`` takes the handle in ``handle``;
    None means that the offset comes with ``create``. ``address_in`` names the call that gives the device address:
    "create", "locate", or "" where there is none without submitting work. ``size_bits`` is how wide ``size`` is.

    ``names``: what DRM_IOCTL_VERSION answers where that is not ``driver``. ``heap``: fields of ``create`` for an object
    that each file needs first, for objects made with ``in_heap``, which the CPU reaches through the heap only.
    """

    driver: str
    create: Ioctl
    size: str
    handle: str
    locate: Ioctl | None
    offset: str
    address_in: str = ""
    address: str = ""
    create_also: Mapping[str, int] = _NOTHING
    locate_also: Mapping[str, int] = _NOTHING
    names: tuple[str, ...] = ()
    bind: Bind | None = None
    user: UserPages | None = None
    heap: Mapping[str, int] = _NOTHING
    in_heap: Mapping[str, int] = _NOTHING

    @property
    def size_bits(self) -> int:
        """The widest size that can be asked for, in bits."""
        return self.create.layout.field(self.size).size * 8

    def answers_to(self, name: str) -> bool:
        """Is this the driver that DRM_IOCTL_VERSION names?"""
        return name == self.driver or name in self.names


_GIB = 1 << 30
_PANTHOR = Bind(
    panthor.VM_BIND,
    # The kernel takes what lies above our 4 GiB; the smallest Mali of this kind has 40 bits of addresses or more.
    Space(
        1 << 20,
        4 * _GIB - (1 << 20),
        panthor.VM_CREATE,
        {"user_va_range": 4 * _GIB},
        "id",
        panthor.VM_DESTROY,
        "id",
        state=panthor.VM_GET_STATE,
        state_id="vm_id",
        state_value="state",
    ),
    handle="bo_handle",
    address="va",
    size="size",
    map_also={"flags": panthor.DRM_PANTHOR_VM_BIND_OP_TYPE_MAP},
    unmap_also={"flags": panthor.DRM_PANTHOR_VM_BIND_OP_TYPE_UNMAP},
    op=panthor.VM_BIND_OP,
    pointer="ops_array",
    space_id="vm_id",
    call_also={"ops_stride": panthor.VM_BIND_OP.size, "ops_count": 1},
)
_NOUVEAU = Bind(
    nouveau.VM_BIND,
    # VM_INIT gives the kernel the upper half of 40 bits, as Mesa's driver does.
    Space(
        1 << 20,
        512 * _GIB - (1 << 20),
        nouveau.VM_INIT,
        {"kernel_managed_addr": 512 * _GIB, "kernel_managed_size": 512 * _GIB},
    ),
    handle="handle",
    address="addr",
    size="range",
    map_also={"op": nouveau.DRM_NOUVEAU_VM_BIND_OP_MAP},
    unmap_also={"op": nouveau.DRM_NOUVEAU_VM_BIND_OP_UNMAP},
    op=nouveau.VM_BIND_OP,
    pointer="op_ptr",
    call_also={"op_count": 1},
)
_MSM = Bind(
    msm.GEM_INFO,
    Space(
        0,
        0,
        ask=msm.GET_PARAM,
        ask_base={"pipe": msm.MSM_PIPE_3D0, "param": msm.MSM_PARAM_VA_START},
        ask_size={"pipe": msm.MSM_PIPE_3D0, "param": msm.MSM_PARAM_VA_SIZE},
    ),
    handle="handle",
    address="value",
    size="",
    map_also={"info": msm.MSM_INFO_SET_IOVA},
    unmap_also={"info": msm.MSM_INFO_SET_IOVA},
    keeps=False,
)
_AMDXDNA_HEAP = 64 << 20  # what the driver's device memory window has on all NPUs of 7.3 (dev_mem_size)

ROWS = (
    GemRow("panfrost", panfrost.CREATE_BO, "size", "handle", panfrost.MMAP_BO, "offset", "create", "offset"),
    GemRow("panthor", panthor.BO_CREATE, "size", "handle", panthor.BO_MMAP_OFFSET, "offset", bind=_PANTHOR),
    GemRow(
        "msm",
        msm.GEM_NEW,
        "size",
        "handle",
        msm.GEM_INFO,
        "value",
        create_also={"flags": msm.MSM_BO_WC},
        locate_also={"info": msm.MSM_INFO_GET_OFFSET},
        bind=_MSM,
    ),
    GemRow("v3d", v3d.CREATE_BO, "size", "handle", v3d.MMAP_BO, "offset", "create", "offset"),
    GemRow(
        "etnaviv",
        etnaviv.GEM_NEW,
        "size",
        "handle",
        etnaviv.GEM_INFO,
        "offset",
        create_also={"flags": etnaviv.ETNA_BO_WC},
        user=UserPages(
            etnaviv.GEM_USERPTR,
            "user_ptr",
            "user_size",
            {"flags": etnaviv.ETNA_USERPTR_READ | etnaviv.ETNA_USERPTR_WRITE},
        ),
    ),
    GemRow("lima", lima.GEM_CREATE, "size", "handle", lima.GEM_INFO, "offset", "locate", "va"),
    GemRow(
        "ivpu",
        ivpu.BO_CREATE,
        "size",
        "handle",
        ivpu.BO_INFO,
        "mmap_offset",
        "create",
        "vpu_addr",
        create_also={"flags": ivpu.DRM_IVPU_BO_MAPPABLE | ivpu.DRM_IVPU_BO_WC},
        names=("intel_vpu",),
        user=UserPages(ivpu.BO_CREATE_FROM_USERPTR, "user_ptr", "size"),
    ),
    GemRow(
        "amdxdna",
        amdxdna.CREATE_BO,
        "size",
        "handle",
        amdxdna.GET_BO_INFO,
        "map_offset",
        "locate",
        "xdna_addr",
        create_also={"type": amdxdna.AMDXDNA_BO_SHMEM},
        names=("amdxdna_accel_driver",),
        heap={"type": amdxdna.AMDXDNA_BO_DEV_HEAP, "size": _AMDXDNA_HEAP},
        in_heap={"type": amdxdna.AMDXDNA_BO_DEV},
    ),
    GemRow("qaic", qaic.CREATE_BO, "size", "handle", qaic.MMAP_BO, "offset"),
    GemRow(
        "nouveau",
        nouveau.GEM_NEW,
        "info_size",
        "info_handle",
        None,
        "info_map_handle",
        create_also={"info_domain": nouveau.NOUVEAU_GEM_DOMAIN_GART | nouveau.NOUVEAU_GEM_DOMAIN_MAPPABLE},
        bind=_NOUVEAU,
    ),
    GemRow("rocket", rocket.CREATE_BO, "size", "handle", None, "offset", "create", "dma_address"),
)
"""habanalabs is not here: its handles are not GEM's, one call does everything (see habanalabs)."""
