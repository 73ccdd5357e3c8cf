"""Which chips there are, and the one door through which their code comes in.

Names and versions are known without importing anything of a chip: those in the tree stand in a static table, a third
party's are entry points (group ``accelctl.backends``; name: the chip, value: a module with
``load_backend(registry)``). Code is imported when one chip is asked for by name, passes the same handshake wherever it
comes from, and is refused with one line otherwise. What is broken in one chip never keeps another from loading.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from accelctl import __version__
from accelctl.abi.handshake import Chip, Given, check, load_module
from accelctl.abi.manifest import NAME, Manifest
from accelctl.abi.rooms import GROUP, may_be_installed
from accelctl.abi.version import ABI
from accelctl.errors import AbiError

if TYPE_CHECKING:
    from accelctl.abi.lifecycle import Memory
    from accelctl.abi.ops import Ops
    from accelctl.abi.queue import Queue
    from accelctl.abi.telemetry import Telemetry

OFF = "none"
"""Value of ACCELCTL_PLUGINS that leaves only the chips in the tree."""


class Row(NamedTuple):
    """Where a chip's code is, unimported. ``nodes``: globs of device nodes that are no DRM or accel minors; ``abi`` is
    None where only the code knows it (a third party's)."""

    module: str
    abi: int | None = ABI
    nodes: tuple[str, ...] = ()
    origin: str = "in-tree"
    """Or the distribution."""
    version: str = __version__


def _tree(names: str, module: str = "", nodes: tuple[str, ...] = ()) -> dict[str, Row]:
    return {name: Row(f"accelctl.backends.{module or name}", nodes=nodes) for name in names.split()}


IN_TREE: dict[str, Row] = {
    **_tree("vgem vkms bochs qxl virtio_gpu"),
    **_tree("dma_heap", nodes=("dev/dma_heap/*",)),
    **_tree("udmabuf", nodes=("dev/udmabuf",)),
    **_tree("prime"),
    **_tree("vfio", nodes=("dev/vfio/vfio",)),
    **_tree("iommufd", nodes=("dev/iommu",)),
    **_tree("amdgpu intel_gpu nvidia habanalabs"),
    **_tree("mali adreno v3d vivante ivpu amdxdna qaic rockchip_npu", "gem_rows"),
    **_tree("sim opencl torch"),
}
"""Chips of this tree with code; a room without code (only chip.toml) is not here."""


class Version(NamedTuple):
    """Where a chip comes from, in which release; ``abi`` None: known when it is loaded."""

    origin: str
    release: str
    abi: int | None


class Registry:
    """What ``load_backend`` is given: the door, and nothing else."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.given: list[Given] = []
        self.open = True

    def register(
        self,
        manifest: Manifest,
        *,
        memory: Memory | None = None,
        queue: Queue | None = None,
        ops: Ops | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """Offer a chip: its manifest, and the objects of the contracts that it claims there. A module may offer
        several; each one is judged when it is asked for."""
        if not self.open:
            raise AbiError(f"{self.module}: register() was called after load_backend had returned")
        if not isinstance(manifest, Manifest):
            raise AbiError(f"register() was given a {type(manifest).__name__}, not an accelctl.abi.manifest.Manifest")
        self.given.append(Given(manifest, {"memory": memory, "queue": queue, "ops": ops, "telemetry": telemetry}))


class Entry(Protocol):
    """What is used of importlib.metadata.EntryPoint."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def value(self) -> str: ...  # noqa: D102

    @property
    def dist(self) -> object: ...  # noqa: D102


def installed() -> tuple[list[Entry], list[str]]:
    """Entry points of the group, from the metadata of what is installed, and a line for each that cannot be read.

    importlib.metadata costs 50 ms and comes in only here. Its own entry_points() fails as a whole where one file of any
    package is malformed.
    """
    if not may_be_installed():
        return [], []
    from importlib.metadata import distributions

    found: dict[str, list[Entry]] = {}
    problems: list[str] = []
    for dist in distributions():
        name = "?"
        try:
            if GROUP not in (dist.read_text("entry_points.txt") or ""):
                continue
            name = dist.name
            key = re.sub(r"[-_.]+", "-", name).lower()
            if key not in found:  # the first one on sys.path is the one that is imported
                found[key] = [entry for entry in dist.entry_points if entry.group == GROUP]
        except Exception as error:
            problems.append(f"plug-in of {name}: its metadata cannot be read ({type(error).__name__})")
    return [entry for entries in found.values() for entry in entries], problems


class Chips:
    """The chips of one process. Loading is done once a module; a refusal is remembered as well."""

    def __init__(self, in_tree: dict[str, Row] | None = None) -> None:
        self._tree = IN_TREE if in_tree is None else in_tree
        self._foreign: dict[str, Row] | None = None
        self._problems: list[tuple[str, str]] = []
        self._modules: dict[str, list[Given] | AbiError] = {}
        self._loaded: dict[str, Chip | AbiError] = {}

    def names(self) -> tuple[str, ...]:
        """Every chip that can be asked for: those in the tree first, then third parties'."""
        return (*self._tree, *sorted(self._third_party()))

    def versions(self) -> dict[str, Version]:
        """Name -> where from, and which release."""
        rows = {**self._tree, **self._third_party()}
        return {name: Version(row.origin, row.version, row.abi) for name, row in rows.items()}

    def row(self, name: str) -> Row:
        """Where that chip's code is. AbiError for a name that nobody has."""
        found = self._tree.get(name) or self._third_party().get(name)
        if found is None:
            raise self._unknown(name)
        return found

    def problems(self) -> tuple[str, ...]:
        """One line for each entry point that cannot be used, and for each chip that was refused when it was asked for
        (nothing is imported for this)."""
        self._third_party()
        refused = [str(chip.message) for chip in self._loaded.values() if isinstance(chip, AbiError)]
        return tuple(dict.fromkeys([*(line for _, line in self._problems), *refused]))

    def load(self, name: str) -> Chip:
        """The chip, its code imported. AbiError in one line for whatever is wrong with it."""
        chip = self._loaded.get(name)
        if chip is None:
            row = self.row(name)
            try:
                chip = self._handshake(name, row)
            except AbiError as error:
                chip = error
            self._loaded[name] = chip
        if isinstance(chip, AbiError):
            raise AbiError(chip.message, chip.hint)  # a new one: the first one's traceback is not this call's
        return chip

    def _handshake(self, name: str, row: Row) -> Chip:
        who = label(name, row)
        given = self._modules.get(row.module)
        if given is None:
            try:
                given = self._call(row, who)
            except AbiError as error:
                given = error
            self._modules[row.module] = given
        if isinstance(given, AbiError):
            raise AbiError(f"{who}: {given.message}", given.hint)
        return self._judge(name, row, given, who)

    def _call(self, row: Row, who: str) -> list[Given]:
        registry = Registry(row.module)
        try:
            load_module(row.module, registry, foreign=row.origin != "in-tree")
        finally:
            registry.open = False
        return registry.given

    def _judge(self, name: str, row: Row, given: list[Given], who: str) -> Chip:
        names = [one.manifest.name for one in given]
        if not given:
            raise AbiError(f"{who}: load_backend registers nothing")
        if name not in names:
            raise AbiError(f"{who}: load_backend registers {', '.join(names)}, not {name}")
        for other in names:
            there = self._tree.get(other) or self._third_party().get(other)  # metadata is read only where it is needed
            if there is None or there.module != row.module:
                what = "no entry point names" if there is None else f"belongs to {there.origin}"
                raise AbiError(f"{who}: load_backend also registers {other}, which {what}")
        if names.count(name) > 1:
            raise AbiError(f"{who}: load_backend registers {name} twice")
        return check(given[names.index(name)], who, row.origin, row.abi)

    def _third_party(self) -> dict[str, Row]:
        if self._foreign is None:
            self._foreign = {}
            entries, lines = ([], []) if os.environ.get("ACCELCTL_PLUGINS") == OFF else installed()
            self._problems = [("", line) for line in lines]
            for entry in sorted(entries, key=lambda entry: (entry.name, _origin(entry))):
                self._add(entry, self._foreign)
            for name, _ in self._problems:  # of two that want one name neither gets it
                self._foreign.pop(name, None)
        return self._foreign

    def _add(self, entry: Entry, found: dict[str, Row]) -> None:
        name, (origin, release) = entry.name, _origin(entry)
        module, _, function = entry.value.partition(":")
        row = Row(module.strip(), None, (), origin, release)
        problem = ""
        if not NAME.match(name):
            problem = "its name is not lower-case letters, digits and underscores"
        elif name in self._tree:
            problem = "not used: the name is that of a chip in the tree"
        elif function.strip() not in ("", "load_backend"):
            problem = f"its entry point names {function.strip()!r}, not load_backend"
        elif name in found and found[name].origin != origin:
            problem = f"{found[name].origin} offers the same name: uninstall one of them"
        if problem:
            self._problems.append((name, f"{label(name, row)}: {problem}"))
        else:
            found[name] = row

    def _unknown(self, name: str) -> AbiError:
        for refused, line in self._problems:
            if refused == name:
                return AbiError(line)
        from difflib import get_close_matches

        near = get_close_matches(name, self.names(), 1)
        guess = f" (did you mean {near[0]}?)" if near else ""
        off = "; plug-ins are off: ACCELCTL_PLUGINS=none" if os.environ.get("ACCELCTL_PLUGINS") == OFF else ""
        return AbiError(f"no chip named {name[:40]!r}{guess}{off}", f"one of {', '.join(self.names())}")


def label(name: str, row: Row) -> str:
    """How a chip is called in a line about it."""
    return f"chip {name}" if row.origin == "in-tree" else f"plug-in {name} ({row.origin} {row.version})"


def _origin(entry: Entry) -> tuple[str, str]:
    dist = entry.dist
    return str(getattr(dist, "name", None) or "?"), str(getattr(dist, "version", None) or "?")


@lru_cache(maxsize=1)
def chips() -> Chips:
    """The chips of this process."""
    return Chips()


def names() -> tuple[str, ...]:
    """See :meth:`Chips.names`."""
    return chips().names()


def versions() -> dict[str, Version]:
    """See :meth:`Chips.versions`."""
    return chips().versions()


def row(name: str) -> Row:
    """See :meth:`Chips.row`."""
    return chips().row(name)


def problems() -> tuple[str, ...]:
    """See :meth:`Chips.problems`."""
    return chips().problems()


def load(name: str) -> Chip:
    """See :meth:`Chips.load`."""
    return chips().load(name)
