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
from accelctl.hal.uapi._struct import Ioctl

_NOTHING: Mapping[str, int] = MappingProxyType({})


class GemRow(NamedTuple):
    """One driver. ``size``, ``handle``, ``address`` are fields of ``create``; ``offset`` one of ``locate``.

    ``create_also`` and ``locate_also`` are further fields that must be set. ``locate`` takes the handle in ``handle``;
    None means that the offset comes with ``create``. ``address_in`` names the call that gives the device address:
    "create", "locate", or "" where there is none without submitting work. ``size_bits`` is how wide ``size`` is.
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

    @property
    def size_bits(self) -> int:
        """The widest size that can be asked for, in bits."""
        return self.create.layout.field(self.size).size * 8


ROWS = (
    GemRow("panfrost", panfrost.CREATE_BO, "size", "handle", panfrost.MMAP_BO, "offset", "create", "offset"),
    GemRow("panthor", panthor.BO_CREATE, "size", "handle", panthor.BO_MMAP_OFFSET, "offset"),
    GemRow(
        "msm",
        msm.GEM_NEW,
        "size",
        "handle",
        msm.GEM_INFO,
        "value",
        create_also={"flags": msm.MSM_BO_WC},
        locate_also={"info": msm.MSM_INFO_GET_OFFSET},
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
    ),
    GemRow("rocket", rocket.CREATE_BO, "size", "handle", None, "offset", "create", "dma_address"),
)
"""habanalabs is not here: its handles are not GEM's, one call does everything (see habanalabs)."""
