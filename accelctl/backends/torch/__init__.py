"""torch: whatever device PyTorch computes on here (cpu, cuda, hip, xpu, npu), through PyTorch's own kernels.

Not a kernel driver of ours, so `stress` has nothing to look at here: it is a chip for `serve` and `smoke`. It says what
a framework's kernels give on this machine, beside what a chip's own kernels give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry

MANIFEST = Manifest(
    name="torch",
    title="device of PyTorch",
    features=frozenset({"memory", "queue", "ops", "user_va"}),
    control_plane="torch",
    address_space="user",
    toolchains=("PyTorch 2",),
    tier="proven",
    proven="PyTorch 2.13 on a CPU",
)


def load_backend(registry: Registry) -> None:
    """Offer this chip; its code is imported only now, PyTorch when a device is asked for."""
    from accelctl.backends.torch.memory import MEMORY
    from accelctl.backends.torch.ops.contract import OPS, QUEUE

    registry.register(MANIFEST, memory=MEMORY, queue=QUEUE, ops=OPS)
