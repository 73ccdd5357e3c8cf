"""The one chip of a service: opened once per client session, and its kernels by op and by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from accelctl.abi.lifecycle import AddressSpace, Env, Lifecycle, Memory, Session, Target
from accelctl.abi.ops import Ops, Template
from accelctl.abi.schedule import Schedule
from accelctl.errors import AbiError, NoDeviceError, UsageError
from accelctl.memory.va import GoodFit, space
from accelctl.model.configtext import near
from accelctl.umd.dispatch import Dispatch

if TYPE_CHECKING:
    from accelctl.abi.handshake import Chip as Registered


class Off(NamedTuple):
    """What is switched off -> where that is said."""

    ops: Mapping[str, str] = {}
    kernels: Mapping[str, str] = {}
    """General ones; special ones are dispatch's."""


ALL_ON = Off()


class Chip:
    """A device that computes. Raises AbiError for kernel tables that make no sense, NoDeviceError for a chip that has
    no kernels."""

    def __init__(
        self,
        memory: Memory,
        ops: Ops,
        target: Target,
        options: Mapping[str, str] | None = None,
        *,
        schedule: Schedule | None = None,
        off: Off = ALL_ON,
    ) -> None:
        self.memory, self.ops, self.target, self.schedule, self.off = memory, ops, target, schedule, off
        env = Env(space=space, options=dict(options or {}))
        beneath = getattr(memory, "syscalls", None)
        self._env = replace(env, syscalls=beneath(target, env)) if beneath is not None else env
        self.by_op: dict[str, tuple[Template, ...]] = {}
        """General kernels."""
        self.dispatch = Dispatch()
        """Of special kernels; to be set before the first op."""
        self._numbers: dict[int, Template] = {}
        self.by_number: dict[int, Template] = {}
        self.routes: dict[str, Any] = {}
        self.plans: dict[Any, Any] = {}
        """What the pipeline has found out about this chip: op -> its route, description of a request -> its plan."""
        self.lock = Lock()
        self.age = 0
        """How often something has changed."""
        self.watchers: list[Callable[[str, str], None]] = []
        """Who is told the kind of a change (``switch``, ``kernels``), and why."""
        for template in ops.templates():
            self._add(template)
        if "copy" not in self.by_op:
            raise AbiError(f"chip {target.chip}: it has no kernel for copy, which every chip with ops needs")
        self._every = dict(self.by_op)
        self._switch()

    def switch(self, off: Off) -> None:
        """Other ops and kernels are off from now on. UsageError for what cannot be."""
        before, self.off = self.off, off
        try:
            self._switch()
        except UsageError:
            self.off = before
            raise
        self.changed("ops or kernels were switched", "switch")

    def _switch(self) -> None:
        """What is off is not among the kernels that are there. UsageError."""
        names = {one.name for several in self._every.values() for one in several}
        for name, where in self.off.kernels.items():
            if name not in names:
                raise UsageError(f"{where}: {self.target.chip} has no kernel {name}{near(name, names)}")
        off = self.off.kernels
        left = {op: tuple(one for one in several if one.name not in off) for op, several in self._every.items()}
        if not left["copy"]:
            where = ", ".join(dict.fromkeys(off[one.name] for one in self._every["copy"]))
            raise UsageError(f"{where}: without any copy kernel no other op can be sure to run")
        self.by_op = {op: several for op, several in left.items() if several and op not in self.off.ops}
        self.copies = left["copy"]
        self.dark = {
            op: [f"{one.name}: switched off by {off[one.name]}" for one in several if one.name in off]
            for op, several in self._every.items()
            if any(one.name in off for one in several)
        }
        self.by_number = {
            number: one
            for number, one in self._numbers.items()
            if one.name not in off and (one.op not in self.off.ops or one.op == "copy")
        }

    def why_not(self, number: int) -> str:
        """Why there is no kernel of that number."""
        found = self._numbers.get(number)
        if found is None:
            return f"{self.target.chip} has no kernel {number}"
        where = self.off.kernels.get(found.name) or self.off.ops.get(found.op, "")
        return f"kernel {found.name} is switched off by {where}"

    def changed(self, why: str, kind: str = "kernels") -> None:
        """Kernels, switches or the choice between kernels are not what they were: nothing that was translated before
        counts any more, for any session."""
        with self.lock:
            self.age += 1
            self.routes, self.plans = {}, {}
        for watcher in tuple(self.watchers):
            watcher(kind, why)

    @classmethod
    def registered(
        cls, chip: Registered, target: Target, options: Mapping[str, str] | None = None, *, off: Off = ALL_ON
    ) -> Chip:
        """Of the registry, made ready for ops (Ops). NoDeviceError where it cannot compute."""
        if chip.memory is None or chip.ops is None:
            raise NoDeviceError(f"{target.id}: chip {chip.manifest.name} has no kernels here, so it cannot be served")
        if (prepare := getattr(chip.ops, "prepare", None)) is not None:
            prepare(target)
        return cls(chip.memory, chip.ops, target, options, schedule=chip.schedule, off=off)

    def _add(self, template: Template) -> None:
        if template.kernel_id < 1 or template.kernel_id in self._numbers:
            raise AbiError(f"chip {self.target.chip}: kernel {template.name} has the number {template.kernel_id}, "
                           "which must be 1 or more and nobody else's")  # fmt: skip
        self._numbers[template.kernel_id] = template
        general = self.by_op.get(template.op, ())
        if not template.fallback:
            self.by_op[template.op] = (*general, template)
        elif template.fallback not in [one.name for one in general]:
            text = f"kernel {template.name} falls back to {template.fallback!r}, which is no earlier kernel of its op"
            raise AbiError(f"chip {self.target.chip}: {text}")

    def total_bytes(self) -> int:
        """Memory of the device; 0: it does not say. AccelError where it cannot be opened."""
        session, _ = self.open()
        try:
            return session.total_bytes
        finally:
            session.close()

    def open(self, spaces: Callable[[GoodFit], object] = lambda made: None) -> tuple[Session, Lifecycle]:
        """A session of the device, and the lifecycle whose blocks its kernels use; ``spaces`` is told of each address
        space that the session hands out. AccelError."""

        def made(base: int, size: int, granule: int) -> AddressSpace:
            fresh = space(base, size, granule)
            spaces(fresh)
            return fresh

        session = self.memory.open(self.target, replace(self._env, space=made))
        wanted = self.ops.lifecycle()
        found = next((one for one in session.lifecycles if one.name == wanted), None)
        if found is None or found.unsupported:
            session.close()
            why = found.unsupported if found else f"it has no lifecycle {wanted}"
            raise NoDeviceError(f"{self.target.id}: its memory cannot be used for kernels: {why}")
        return session, found
