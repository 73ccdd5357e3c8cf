"""The one chip of a service: opened once per client session, and its kernels by op and by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from accelctl.abi.lifecycle import AddressSpace, Env, Lifecycle, Memory, Session, Target
from accelctl.abi.ops import Ops, Template
from accelctl.errors import AbiError, NoDeviceError
from accelctl.memory.va import GoodFit

if TYPE_CHECKING:
    from accelctl.abi.handshake import Chip as Registered


def _space(base: int, size: int, granule: int) -> AddressSpace:
    return GoodFit(base, size, granule=granule)


class Chip:
    """A device that computes. Raises AbiError for kernel tables that make no sense, NoDeviceError for a chip that has
    no kernels."""

    def __init__(self, memory: Memory, ops: Ops, target: Target, options: Mapping[str, str] | None = None) -> None:
        self.memory, self.ops, self.target = memory, ops, target
        env = Env(space=_space, options=dict(options or {}))
        beneath = getattr(memory, "syscalls", None)
        self._env = replace(env, syscalls=beneath(target, env)) if beneath is not None else env
        self.by_op: dict[str, tuple[Template, ...]] = {}
        self.by_number: dict[int, Template] = {}
        self.routes: dict[str, Any] = {}
        self.plans: dict[Any, Any] = {}
        """What the pipeline has found out about this chip: op -> its route, description of a request -> its plan."""
        self.lock = Lock()
        for template in ops.templates():
            self._add(template)
        if "copy" not in self.by_op:
            raise AbiError(f"chip {target.chip}: it has no kernel for copy, which every chip with ops needs")

    @classmethod
    def registered(cls, chip: Registered, target: Target, options: Mapping[str, str] | None = None) -> Chip:
        """Of the registry, made ready for ops (Ops). NoDeviceError where it cannot compute."""
        if chip.memory is None or chip.ops is None:
            raise NoDeviceError(f"{target.id}: chip {chip.manifest.name} has no kernels here, so it cannot be served")
        if (prepare := getattr(chip.ops, "prepare", None)) is not None:
            prepare(target)
        return cls(chip.memory, chip.ops, target, options)

    def _add(self, template: Template) -> None:
        if template.kernel_id < 1 or template.kernel_id in self.by_number:
            raise AbiError(f"chip {self.target.chip}: kernel {template.name} has the number {template.kernel_id}, "
                           "which must be 1 or more and nobody else's")  # fmt: skip
        self.by_number[template.kernel_id] = template
        self.by_op[template.op] = (*self.by_op.get(template.op, ()), template)

    def open(self, spaces: Callable[[GoodFit], object] = lambda space: None) -> tuple[Session, Lifecycle]:
        """A session of the device, and the lifecycle whose blocks its kernels use; ``spaces`` is told of each address
        space that the session hands out. AccelError."""

        def made(base: int, size: int, granule: int) -> AddressSpace:
            space = GoodFit(base, size, granule=granule)
            spaces(space)
            return space

        session = self.memory.open(self.target, replace(self._env, space=made))
        wanted = self.ops.lifecycle()
        found = next((one for one in session.lifecycles if one.name == wanted), None)
        if found is None or found.unsupported:
            session.close()
            why = found.unsupported if found else f"it has no lifecycle {wanted}"
            raise NoDeviceError(f"{self.target.id}: its memory cannot be used for kernels: {why}")
        return session, found
