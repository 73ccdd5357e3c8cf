"""What a chip says of itself: read by people and by the handshake before any of its code touches a device."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields

from accelctl.abi.version import ABI, FEATURES
from accelctl.errors import AbiError

NAME = re.compile(r"[a-z0-9_]+\Z")
DRIVER = re.compile(r"[A-Za-z0-9_-]+\Z")
"""As kernel modules and platform drivers are called."""
TIERS: dict[str, str] = {
    "proven": "run against the real driver; `proven` says where",
    "unproven": "tested against a fake driver only, until someone has the card",
    "table": "a row of the table-driven GEM back-end: facts, and no code of its own",
    "simulated": "nothing real behind it",
}
ADDRESS_SPACES: dict[str, str] = {
    "none": "the device has no addresses of its own, or they are never seen",
    "kernel": "the driver chooses device addresses",
    "user": "user space chooses them, from Env.space",
}
_KINDS: dict[str, type] = {"str": str, "int": int, "bool": bool, "frozenset[str]": frozenset, "tuple[str, ...]": tuple}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All by keyword. AbiError, in one line, for what cannot be a manifest; whether its ``abi`` fits is the
    handshake's question."""

    name: str
    """As in ``--device name:0`` and backends/<name>: lower-case letters, digits, underscores."""
    title: str
    """For people."""
    abi: int = 0
    """What it was written for. 0, only for chips in this tree: the ABI of this very accelctl (``implied``)."""
    features: frozenset[str] = frozenset({"memory"})
    """Flags of abi.version.FEATURES: what it promises."""
    drivers: tuple[str, ...] = ()
    """Kernel drivers it speaks to; empty where a node stands for none (dma-heap) or nothing is real (sim)."""
    control_plane: str = "drm"
    """What its calls go through: drm, accel, dma-buf, rm, kfd, vfio, sim, ..."""
    address_space: str = "none"
    """A key of ADDRESS_SPACES."""
    p2p: bool = False
    """Devices reach each other's memory."""
    rollback: str = "engine"
    """Who undoes what a failed stage leaves: the engine, stage by stage, or what else there is."""
    toolchains: tuple[str, ...] = ()
    """Compilers whose output it takes."""
    tier: str = "unproven"
    """A key of TIERS."""
    proven: str = "unproven"
    """Where it ran against the real thing ("kernel guest 6.12"), or "unproven"."""
    by_name_only: bool = False
    """Never taken by a filter or by default, as opening or closing it has side effects."""
    implied: bool = field(default=False, init=False, repr=False, compare=False)
    """No ``abi`` was written down: it would fit every accelctl to come, so a third party's is refused."""

    def __post_init__(self) -> None:
        if self.abi == 0 and isinstance(self.abi, int) and not isinstance(self.abi, bool):
            object.__setattr__(self, "implied", True)
            object.__setattr__(self, "abi", ABI)
        for one in fields(self):
            value = getattr(self, one.name)
            kind = _KINDS[str(one.type)]
            wrong = not isinstance(value, kind) or (kind is int and isinstance(value, bool))
            self._refuse(wrong, f"{one.name} must be a {one.type}, not {value!r}")
            if isinstance(value, (tuple, frozenset)):
                self._refuse(not all(isinstance(word, str) for word in value), f"{one.name} must hold strings")
        self._check_words()
        self._check_promises()

    def _check_words(self) -> None:
        self._refuse(not NAME.match(self.name), "a name is lower-case letters, digits and underscores")
        self._refuse(self.abi < 0, f"abi {self.abi} is no version")
        for key in ("title", "control_plane", "rollback", "proven"):
            text = getattr(self, key)
            self._refuse(not text.strip(), f"{key} is empty")
            self._refuse(not text.isprintable(), f"{key} is not one printable line")
        wrong = [name for name in self.drivers if not DRIVER.match(name)]
        self._refuse(bool(wrong), f"no name of a driver: {', '.join(map(repr, wrong))}")
        for key, known in (("tier", TIERS), ("address_space", ADDRESS_SPACES)):
            value = getattr(self, key)
            self._refuse(value not in known, f"{key} {value!r} is not one of {', '.join(known)}")

    def _check_promises(self) -> None:
        unknown = sorted(self.features - FEATURES.keys())
        self._refuse(bool(unknown), f"unknown feature {', '.join(map(repr, unknown))}")
        real = self.proven != "unproven"
        self._refuse(self.tier == "proven" and not real, "tier 'proven' needs a `proven` that says where")
        self._refuse(self.tier in ("unproven", "table") and real, f"proven {self.proven!r}, but tier {self.tier!r}")
        mine = self.address_space == "user"
        self._refuse("user_va" in self.features and not mine, "feature user_va needs address_space 'user'")

    def _refuse(self, wrong: bool, reason: str) -> None:
        if wrong:
            raise AbiError(f"manifest of {str(self.name)[:40]!r}: {' '.join(reason.split())[:200]}")
