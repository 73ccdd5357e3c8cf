"""The version of the contracts in this folder, as one integer: what a chip was written for either fits or does not.

It rises when a chip that fitted would stop fitting, or may promise something new. Fields and functions that old chips
do not notice are added without a new number.
"""

from typing import NamedTuple

ABI = 1
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
}

CONTRACTS = ("memory", "queue", "ops", "telemetry")
"""Contracts of this ABI: who claims one gives its object to ``Registry.register``."""
LATER = ("schedule",)
"""Contracts whose names are taken, for an ABI to come: nobody can claim them yet."""

FEATURES: dict[str, str] = {
    "memory": "allocates, maps and frees (abi.lifecycle.Memory)",
    "queue": "takes work and says when it is done (abi.queue.Queue)",
    "ops": "computes operators (abi.ops.Ops)",
    "schedule": "runs lists of translated operators at once",
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
