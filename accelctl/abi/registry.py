"""Which chips there are, and the one door through which their code comes in.

Names and versions are known without importing anything of a chip: those in the tree stand in a static table, a third
party's are entry points (group ``accelctl.backends``; name: the chip, value: a module with
``load_backend(registry)``). Code is imported when one chip is asked for by name, passes the same handshake wherever it
comes from, and is refused with one line otherwise. What is broken in one chip never keeps another from loading.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from accelctl import __version__
from accelctl.abi import shelf
from accelctl.abi.dists import Dist
from accelctl.abi.handshake import Chip, Given, check, load_module
from accelctl.abi.manifest import NAME, Manifest
from accelctl.abi.shelf import OFF
from accelctl.abi.version import ABI
from accelctl.errors import AbiError

if TYPE_CHECKING:
    from accelctl.abi.lifecycle import Memory
    from accelctl.abi.ops import Ops
    from accelctl.abi.queue import Queue
    from accelctl.abi.schedule import Schedule
    from accelctl.abi.telemetry import Telemetry

IN_THE_TREE = "in-tree"


class Row(NamedTuple):
    """Where a chip's code is, unimported. ``nodes``: globs of device nodes that are no DRM or accel minors; ``abi`` is
    None where only the code knows it (a third party's)."""

    module: str
    abi: int | None = ABI
    nodes: tuple[str, ...] = ()
    origin: str = IN_THE_TREE
    """Or the distribution."""
    version: str = __version__
    folder: str = ""
    """Of a version on the shelf, which joins the search path when it is loaded."""

    @property
    def foreign(self) -> bool:
        """A third party's."""
        return self.origin != IN_THE_TREE


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
        schedule: Schedule | None = None,
    ) -> None:
        """Offer a chip: its manifest, and the objects of the contracts that it claims there. A module may offer
        several; each one is judged when it is asked for."""
        if not self.open:
            raise AbiError(f"{self.module}: register() was called after load_backend had returned")
        if not isinstance(manifest, Manifest):
            raise AbiError(f"register() was given a {type(manifest).__name__}, not an accelctl.abi.manifest.Manifest")
        contracts = {"memory": memory, "queue": queue, "ops": ops, "telemetry": telemetry, "schedule": schedule}
        self.given.append(Given(manifest, contracts))


class Chips:
    """The chips of one process. Loading is done once a module; a refusal is remembered as well."""

    def __init__(self, in_tree: dict[str, Row] | None = None) -> None:
        self._tree = IN_TREE if in_tree is None else in_tree
        self._foreign: dict[str, Row] | None = None
        self._problems: list[tuple[str, str]] = []
        self._disputed: set[str] = set()
        self._manifests: dict[str, Manifest] = {}
        self._modules: dict[str, list[Given] | AbiError] = {}
        self._loaded: dict[str, Chip | AbiError] = {}
        self._tried: set[str] = set()
        """Third parties' chips that passed in a child process."""

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

    def ask(self, name: str, question: Callable[[Chip], Any]) -> Any:
        """What the chip answers (JSON values); a third party's in a child process, so that nothing of it comes in here
        and it may hang or crash. AbiError for a chip that does, or is refused; what else it raises as an AccelError."""
        row = self.row(name)
        known = self._loaded.get(name)
        if not row.foreign or known is not None:
            return question(self.load(name))
        from accelctl.abi.trial import Lost, apart

        def work() -> Any:
            return question(self.load_tried(name))

        try:
            answer = apart(work, f"{label(name, row)}: loading it")
        except Lost as error:  # waited for once, not for each question
            self._loaded[name] = error
            raise
        self._tried.add(name)
        return answer

    def manifest(self, name: str) -> Manifest:
        """Of a chip in the tree, without its code: the module that offers it holds it as data. A third party's is asked
        in a child process, once; AbiError where it is refused."""
        row = self.row(name)
        if row.foreign:
            if name not in self._manifests:
                self._manifests[name] = _made_again(self.ask(name, _plain))
            return self._manifests[name]
        module: Any = import_module(row.module)
        offered = getattr(module, "MANIFESTS", None) or (module.MANIFEST,)
        found: Manifest = next(one for one in offered if one.name == name)
        return found

    def load_tried(self, name: str) -> Chip:
        """As :meth:`load`, in a process that may be lost: a child that was made for it."""
        self._tried.add(name)
        return self.load(name)

    def _try(self, name: str, row: Row) -> None:
        """AbiError for a third party's chip that cannot be loaded; nothing of it stays."""
        if row.foreign and name not in self._tried:
            from accelctl.abi.trial import apart

            apart(lambda: bool(self.load_tried(name)), f"{label(name, row)}: loading it")
            self._tried.add(name)

    def _handshake(self, name: str, row: Row) -> Chip:
        self._try(name, row)
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
            load_module(row.module, registry, foreign=row.foreign, folder=row.folder)
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
            found = shelf.in_use()
            self._problems = [("", line) for line in found.problems]
            rows = [(name, value, dist) for dist in found.dists for name, value in dist.entries]
            for name, value, dist in sorted(rows, key=lambda row: (row[0], row[2].name)):
                self._add(name, value, dist, self._foreign)
            for name in self._disputed:  # of two that want one name neither gets it
                self._foreign.pop(name, None)
        return self._foreign

    def _add(self, name: str, value: str, dist: Dist, found: dict[str, Row]) -> None:
        module, _, function = value.partition(":")
        row = Row(module.strip(), None, (), dist.name, dist.version, dist.base if dist.shelved else "")
        problem = ""
        if not NAME.match(name):
            problem = "its name is not lower-case letters, digits and underscores"
        elif name in self._tree:
            problem = "not used: the name is that of a chip in the tree"
        elif function.strip() not in ("", "load_backend"):
            problem = f"its entry point names {function.strip()!r}, not load_backend"
        elif name in found and found[name].origin != dist.name:
            problem = f"{found[name].origin} offers the same name: uninstall one of them"
            self._disputed.add(name)
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


def _plain(chip: Chip) -> dict[str, Any]:
    """Its manifest as JSON values."""
    values = {one.name: getattr(chip.manifest, one.name) for one in fields(Manifest) if one.init}
    return {key: [*value] if isinstance(value, (tuple, frozenset)) else value for key, value in values.items()}


def _made_again(said: dict[str, Any]) -> Manifest:
    tuples = {key: tuple(value) for key, value in said.items() if isinstance(value, list)}
    return Manifest(**{**said, **tuples, "features": frozenset(said["features"])})


def label(name: str, row: Row) -> str:
    """How a chip is called in a line about it."""
    return f"chip {name}" if not row.foreign else f"plug-in {name} ({row.origin} {row.version})"


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


def ask(name: str, question: Callable[[Chip], Any]) -> Any:
    """See :meth:`Chips.ask`."""
    return chips().ask(name, question)


def manifest(name: str) -> Manifest:
    """See :meth:`Chips.manifest`."""
    return chips().manifest(name)
