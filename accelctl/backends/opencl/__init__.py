"""opencl: any OpenCL device, through the system's ICD loader. A CPU with PoCL is one, and is only taken by name.

Not a kernel driver of ours, so `stress` has nothing to look at here: it is a chip for `serve` and `smoke`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry

MANIFEST = Manifest(
    name="opencl",
    title="OpenCL device",
    features=frozenset({"memory", "ops", "schedule", "user_va"}),
    control_plane="opencl",
    address_space="user",
    toolchains=("OpenCL C 1.2",),
    tier="proven",
    proven="PoCL 3.0 on a CPU",
)


def load_backend(registry: Registry) -> None:
    """Offer this chip; its code is imported only now, pyopencl when a device is asked for."""
    from accelctl.backends.opencl.contract import OPS
    from accelctl.backends.opencl.memory import MEMORY
    from accelctl.backends.opencl.schedule import SCHEDULE

    registry.register(MANIFEST, memory=MEMORY, ops=OPS, schedule=SCHEDULE)
