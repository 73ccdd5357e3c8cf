"""Which device may be put under stress, and why the others may not.

These machines cost a fortune: one device at a time, nothing that somebody else uses, nothing asleep, nothing that only
a name on the command line can ask for. Every refusal has its reason and what lifts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from accelctl.abi import registry
from accelctl.abi.lifecycle import Target
from accelctl.abi.manifest import Manifest
from accelctl.errors import AccelError, NoDeviceError, UsageError
from accelctl.hal.root import SysRoot
from accelctl.model.device import Device
from accelctl.probes import nodes
from accelctl.probes.context import Scan
from accelctl.probes.filters import AnyOf, parse_filters
from accelctl.probes.scan import look

SIMULATED = "sim:0"
BARE_PREFIX = "/dev/"
_VFIO_GROUPS = "dev/vfio/[0-9]*"
_BUFFER_MAKERS = ("dma_heap", "udmabuf")
"""Chips whose own back-end imports what it makes into the peer."""


class Allowed(NamedTuple):
    """What the command line lifts."""

    unproven: bool = False
    shared: bool = False
    wake: bool = False


class Candidate(NamedTuple):
    """A device with memory that a chip of ours can drive. ``refusal`` and ``lift``: why it is left alone, and what to
    type to have it all the same ("" where nothing helps)."""

    device: Device
    target: Target
    manifest: Manifest
    refusal: str = ""
    lift: str = ""

    @property
    def only_by_name(self) -> bool:
        """Never taken by default: no accelerator, a simulated one, or one that the manifest protects."""
        return self.manifest.by_name_only or self.target.made_up or self.device.kind in ("virtual", "display")


class Found(NamedTuple):
    """Everything that was looked at."""

    scan: Scan
    candidates: tuple[Candidate, ...]
    problems: tuple[str, ...]
    """Devices whose chip could not be loaded, one line each."""


def simulated() -> Candidate:
    """The simulated chip; only when it is asked for by name."""
    chip = registry.load("sim")
    device = Device(SIMULATED, "virtual", "", chip="sim")
    return Candidate(device, Target(SIMULATED, "sim", "sim", BARE_PREFIX + "sim/sim0"), chip.manifest)


def find(root: SysRoot, allowed: Allowed) -> Found:
    """Look at the machine. Opens no device node."""
    scan = look(root, more=_add_plain_nodes)
    found: list[Candidate] = []
    problems: list[str] = []
    for device in scan.devices.values():
        if device.chip is None or device.chip not in registry.names():
            continue
        try:
            manifest = registry.manifest(device.chip)  # a third party's code comes in for the chosen one only
        except AccelError as error:
            problems.append(f"{device.id}: {error.message}")
            continue
        candidate = _candidate(device, manifest, allowed, _helpers(scan, device.chip))
        if candidate is not None:
            found.append(candidate)
    return Found(scan, tuple(found), tuple(problems))


def choose(found: Found, filters: Sequence[str] | None) -> Candidate:
    """The one device of this run. Raises NoDeviceError (exit 3) that says what was looked for and what to type."""
    wanted = parse_filters(filters)
    if any(one.virtual == SIMULATED for one in wanted.filters):
        return simulated()
    named = [c for c in found.candidates if wanted.filters and wanted(c.device)]
    usable = [c for c in named or found.candidates if not c.refusal and (named or not c.only_by_name)]
    if usable:
        return usable[0]
    raise _nothing(found, wanted, named)


def peer(found: Found, text: str) -> Candidate:
    """The second device of ``--peer``. Raises NoDeviceError, UsageError."""
    try:
        wanted = parse_filters([text])
    except UsageError as error:  # the grammar is that of --device, the option is not
        raise UsageError(error.message.replace("--device", "--peer", 1), error.hint) from error
    for candidate in found.candidates:
        if wanted(candidate.device) and not candidate.refusal:
            return candidate
    raise _nothing(found, wanted, [c for c in found.candidates if wanted(c.device)])


def paired(one: Candidate, other: Candidate) -> Candidate:
    """A lifecycle over two devices: objects of the first, imported by the second."""
    if one.target.node == other.target.node:
        raise UsageError(f"--peer {other.device.id}: that is the device itself")
    chip = one.target.chip if one.target.chip in _BUFFER_MAKERS else "prime"
    target = Target(
        f"{one.target.id}+{other.target.id}", chip, one.target.driver, one.target.node, (other.target.node,)
    )
    return one._replace(target=target, manifest=registry.load(chip).manifest)


def _add_plain_nodes(scan: Scan) -> None:
    """Allocators of the kernel that are no devices on any bus: dma-heaps, udmabuf, VFIO's container, iommufd."""
    judge = nodes.Judge(scan)
    for name in registry.names():
        for pattern in registry.row(name).nodes:
            for path in _matching(scan.root, pattern):
                facts = judge.facts(path)
                identity = "node:" + path.removeprefix("dev/")
                device = Device(identity, "virtual", path, chip=name)
                device.facts.update(facts)
                for group in _matching(scan.root, _VFIO_GROUPS) if name == "vfio" else ():
                    device.facts.update(judge.facts(group))  # a container works only with a group in it
                scan.devices[identity] = device


def _matching(root: SysRoot, pattern: str) -> list[str]:
    folder, _, last = pattern.rpartition("/")
    names = [name for name in root.listdir(folder) if fnmatchcase(name, last)]
    return [f"{folder}/{name}" for name in names]


def _helpers(scan: Scan, chip: str) -> frozenset[str]:
    """Drivers that stand between a bus and the chip's own (virtio-pci): they are what is bound to the function."""
    room = scan.rooms.by_name.get(chip)
    rows = room.table("module") if room is not None else []
    return frozenset(str(row["name"]).replace("_", "-") for row in rows if row.get("role") == "helper")


def _candidate(device: Device, manifest: Manifest, allowed: Allowed, helpers: frozenset[str]) -> Candidate | None:
    driver = str(device.value("driver_of_minor") or device.value("driver") or "")
    between = not driver or driver.replace("_", "-") in helpers
    if between and len(manifest.drivers) == 1:
        driver = manifest.drivers[0]  # a software device has no driver link; its name is checked at open
    paths = _paths(device)
    made_up = manifest.tier == "simulated"
    target = Target(device.id, manifest.name, driver, paths[0] if paths else "", tuple(paths[1:]), made_up)
    candidate = Candidate(device, target, manifest)
    refusal, lift = _refusal(candidate, allowed, _plain(device))
    return candidate._replace(refusal=refusal, lift=lift)


def _plain(device: Device) -> bool:
    return device.id.startswith("node:") and "driver" not in device.facts


def _paths(device: Device) -> list[str]:
    """Nodes of the device, the one to open first: the card where the driver is a display's (dumb buffers need it),
    the render or accel node elsewhere."""
    found = [
        str(r.value)
        for key, r in device.facts.items()
        if key.startswith("nodes/") and key.endswith("/path") and r.value
    ]
    display = device.kind in ("virtual", "display")
    order = ("/card", "/renderD", "/accel") if display else ("/renderD", "/accel/accel", "/nvidia", "/card")

    def rank(path: str) -> int:
        return next((number for number, part in enumerate(order) if part in path and "control" not in path), len(order))

    return sorted(found, key=rank)


def _refusal(candidate: Candidate, allowed: Allowed, plain: bool) -> tuple[str, str]:
    device, target, manifest = candidate.device, candidate.target, candidate.manifest
    driver = str(device.value("driver") or "")
    if driver == "vfio-pci":
        return "bound to vfio-pci: a virtual machine or a user-space driver owns it", ""
    if not plain and target.driver not in manifest.drivers:
        bound = f"bound to {target.driver}" if target.driver else "no driver is bound"
        return f"{bound}; {manifest.name} speaks {', '.join(manifest.drivers)}", "accelctl probe"
    if not target.node:
        return "it has no device node here", "accelctl probe"
    denied = _denied(device, target.node)
    if denied:
        return denied, "accelctl probe"
    if device.value("power/runtime_status") == "suspended" and not allowed.wake:
        return "asleep: opening its node would wake it", "--allow-wake"
    others = device.value("holders") or []
    if others and not allowed.shared:
        return "in use by " + ", ".join(f"{h['command']} (pid {h['pid']})" for h in others[:4]), "--shared"
    if manifest.tier in ("unproven", "table") and not allowed.unproven:
        return f"its back-end is unproven: {manifest.proven}", "--unproven"
    return "", ""


def _denied(device: Device, node: str) -> str:
    base = f"nodes/{node.removeprefix(BARE_PREFIX)}"
    answer = device.value(f"{base}/access/kernel")
    if answer is False:
        needs = device.value(f"{base}/access/needs")
        return f"no permission for {node}" + (f" (needs {needs})" if needs else "")
    return ""


def _typed(identity: str) -> str:
    """How a device is named on the command line; that of a driver with a class of its own only by ``id=``."""
    try:
        parse_filters([identity])
    except UsageError:
        return f"id={identity}"
    return identity


def _nothing(found: Found, wanted: AnyOf, named: Iterable[Candidate]) -> NoDeviceError:
    """What was looked for, why it will not do, and the nearest thing to type."""
    refused = [c for c in (named or found.candidates) if c.refusal]
    if refused:
        first = refused[0]
        lift = f"accelctl stress --device {first.device.id} {first.lift}" if first.lift.startswith("--") else first.lift
        return NoDeviceError(f"{first.device.id} is left alone: {first.refusal}", lift or None)
    if wanted.filters:
        return NoDeviceError(f"no device with memory to put under stress fits {wanted.text}", "accelctl stress --list")
    virtual = [_typed(c.device.id) for c in found.candidates if c.only_by_name and not c.refusal]
    looked = "no accelerator to put under stress: looked at PCI, DRM, accel, KFD and the nodes of known drivers"
    hint = f"accelctl stress --device {virtual[0]}" if virtual else "accelctl stress --device sim:0 (simulated)"
    return NoDeviceError(looked, hint)
