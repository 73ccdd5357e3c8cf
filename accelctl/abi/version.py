"""The version of the contracts in this folder, as one integer: what a chip was written for either fits or does not.

It rises when a chip that fitted would stop fitting, or may promise something new. Fields and functions that old chips
do not notice are added without a new number.
"""

from typing import NamedTuple

ABI = 2
"""What this accelctl speaks."""
OLDEST = 1
"""The oldest it still accepts."""


class Change(NamedTuple):
    """One step of the ABI: the first release of accelctl that speaks it, and what changed."""

    release: str
    changed: str


HISTORY: dict[int, Change] = {
    1: Change(
        "0.1.0",
        "Memory: lifecycles as lists of stages, counters, census. Queue: rings, fence points. Ops: op set, instruction "
        "blob, kernel templates. Manifest, handshake. Telemetry: gauges of devices.",
    ),
    2: Change(
        "0.1.0",
        "Schedule: lists of instructions that are recorded once and replayed as one work. All that fitted ABI 1 fits.",
    ),
}

CONTRACTS: dict[str, int] = {"memory": 1, "queue": 1, "ops": 1, "telemetry": 1, "schedule": 2}
"""Contract -> the ABI that brought it: who was written for an older one cannot claim it. Who claims one gives its
object to ``Registry.register``."""

FEATURES: dict[str, str] = {
    "memory": "allocates, maps and frees (abi.lifecycle.Memory)",
    "queue": "takes work and says when it is done (abi.queue.Queue)",
    "ops": "computes operators (abi.ops.Ops)",
    "schedule": "records lists of instructions and replays each as one work (abi.schedule.Schedule)",
    "telemetry": "tells memory, load, clocks, pools and queues of a device (abi.telemetry.Telemetry)",
    "host_map": "maps pages of the user's own memory for the device",
    "peer_map": "maps one object on a second device as well",
    "export": "gives an object out as dma-buf",
    "import": "takes a dma-buf of another driver",
    "user_va": "device addresses are chosen in user space, and may be used again only after they are unmapped",
    "wake_safe": "opening the node does not wake a sleeping device",
}
"""Flag -> what a chip promises with it. The first five are contracts; the others say more about Memory."""


def accepts(abi: int) -> bool:
    """Whether a chip written for that ABI can be used."""
    return OLDEST <= abi <= ABI


def remedy(abi: int, package: str) -> str:
    """What to install when it cannot: the newer of the two sides stays, the older one is replaced.

    package: what the chip was installed as.
    """
    if abi > ABI:
        return "pip install --upgrade accelctl"
    return f"pip install --upgrade {package} (one for ABI {OLDEST} or later: accelctl {HISTORY[OLDEST].release})"
