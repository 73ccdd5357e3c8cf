"""sim: a chip that does not exist, for the one question that real chips cannot answer: would a leak be seen?

It has VRAM, page tables, queues and handles, noise and leaks that are ordered, and it always says that it is simulated.
It computes as well (sim.ops): numpy in its VRAM, behind a queue, told what to do by instructions.
Only ``--device sim:0`` reaches it; nothing falls back to it, so it has no chip.toml and probe never finds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry

MANIFEST = Manifest(
    name="sim",
    title="simulated accelerator",
    features=frozenset({"memory", "queue", "ops", "telemetry", "schedule", "export", "user_va", "wake_safe"}),
    control_plane="sim",
    address_space="user",
    tier="simulated",
    proven="simulated",
)


def load_backend(registry: Registry) -> None:
    """Offer this chip; its code is imported only now."""
    from accelctl.backends.sim.memory import MEMORY
    from accelctl.backends.sim.ops.contract import OPS
    from accelctl.backends.sim.queue import QUEUE
    from accelctl.backends.sim.schedule import SCHEDULE
    from accelctl.backends.sim.telemetry import TELEMETRY

    registry.register(MANIFEST, memory=MEMORY, queue=QUEUE, ops=OPS, telemetry=TELEMETRY, schedule=SCHEDULE)
