"""Views of the machine that should agree: the bus, the DRM class, the KFD topology, and what each says of memory.

Traps that real files hold: a KFD CPU node is no accelerator; a topology may lack mem_banks; on an APU the bank that KFD
calls VRAM is the GTT; in a container the device cgroup hides the properties of KFD nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding
from accelctl.model.reading import Reading
from accelctl.probes.kfd import TOPOLOGY
from accelctl.probes.rules._common import by_file, in_container, is_pci, is_whole, name_list, size_words

#: Drivers that register DRM minors whenever they are bound (drivers/gpu/drm/...: drm_dev_register in their probe).
DRM_DRIVERS = frozenset({"amdgpu", "radeon", "i915", "xe"})
#: KFD counts memory without what firmware reserves; a real disagreement is larger.
_TOLERANCE = 0.05


def _has_minor(device: Device) -> bool:
    return bool(device.under("drm"))


@rule("COUNT-PCI-DRM")
def no_minor(ctx: RuleContext) -> Iterator[Finding]:
    """A GPU driver is bound and yet there is no DRM node: its start failed after the bind, or the node was removed."""
    if not ctx.root.listdir("sys/class/drm") and not is_whole(ctx):
        return
    for device in ctx.report.devices:
        driver = device.value("driver")
        if (
            driver not in DRM_DRIVERS
            or not is_pci(device)
            or device.kind not in ("physical", "vf")
            or _has_minor(device)
        ):
            continue
        title = f"{driver} is bound but made no DRM node: PCI and DRM disagree about the number of GPUs"
        facts = (
            *evidence(device.reading("driver")),
            Evidence("sys/class/drm", f"no entry whose device is {device.id}"),
        )
        fix = (f"dmesg | grep -F {device.id}", f"look for a failed start of {driver}; then reload it or reboot")
        yield Finding("COUNT-PCI-DRM", "warn", title, device.id, facts, fix, "likely")


def _gpu_nodes(ctx: RuleContext) -> dict[int, str | None]:
    """KFD GPU nodes and the PCI address each names."""
    found: dict[int, str | None] = {}
    for key, reading in ctx.report.machine.items():
        parts = key.split("/")
        if parts[:2] == ["kfd", "nodes"] and parts[3:] == ["kind"] and reading.value == "gpu":
            found[int(parts[2])] = ctx.report.value(f"kfd/nodes/{parts[2]}/device")
    return found


def _property(ctx: RuleContext, node: int, name: str) -> Reading | None:
    return ctx.report.machine.get(f"kfd/nodes/{node}/properties/{name}")


@rule("COUNT-PCI-KFD", explains=("COUNT-KFD-RENDER",))
def pci_and_kfd(ctx: RuleContext) -> Iterator[Finding]:
    """KFD names a function the bus has not got, or leaves out one of several equal ones."""
    nodes = _gpu_nodes(ctx)
    functions = set(ctx.root.listdir("sys/bus/pci/devices"))
    for node, address in nodes.items():
        if address is not None and functions and address not in functions:
            title = f"KFD node {node} is GPU {address}, but the bus has no such function"
            facts = evidence(_property(ctx, node, "location_id"), _property(ctx, node, "domain"))
            fix = ("dmesg | grep -iE 'kfd|amdgpu'", "a GPU that left without its driver noticing: reboot")
            yield Finding("COUNT-PCI-KFD", "warn", title, None, facts, fix, "likely")
    if nodes and not in_container(ctx):
        yield from _without_node(ctx, nodes)


def _without_node(ctx: RuleContext, nodes: dict[int, str | None]) -> Iterator[Finding]:
    """Bound functions without a node although an equal one (same vendor, device, driver) has one."""
    named = set(nodes.values())
    served = {
        _kind(device): device for device in ctx.report.devices if device.id in named or "kfd/node" in device.facts
    }
    for device in ctx.report.devices:
        twin = served.get(_kind(device))
        if twin is None or device.kind != "physical" or device.id in named or "kfd/node" in device.facts:
            continue
        title = (
            f"{device.value('driver')} is bound, but KFD has no node for it; it has one for {twin.id}, the same model"
        )
        facts = (*evidence(device.reading("driver")), Evidence(f"{TOPOLOGY}/nodes", f"GPU nodes: {sorted(nodes)}"))
        fix = (
            f"dmesg | grep -F {device.id} | grep -iE 'kfd|error'",
            "compute (ROCm) cannot use this GPU until KFD takes it",
        )
        yield Finding("COUNT-PCI-KFD", "warn", title, device.id, facts, fix)


def _kind(device: Device) -> tuple[object, ...] | None:
    words = tuple(device.value(key) for key in ("pci/vendor_id", "pci/device_id", "driver"))
    return None if None in words else words


@rule("COUNT-KFD-RENDER")
def render_minors(ctx: RuleContext) -> Iterator[Finding]:
    """KFD and DRM must mean the same device by a render minor; frameworks join them by it."""
    owners = {
        key.split("/")[1]: device
        for device in ctx.report.devices
        for key in device.under("drm")
        if key.startswith("drm/renderD")
    }
    for node, address in _gpu_nodes(ctx).items():
        minor = _property(ctx, node, "drm_render_minor")
        if not owners or minor is None or not isinstance(minor.value, int) or minor.value < 128 or address is None:
            continue
        device = owners.get(f"renderD{minor.value}")
        if device is not None and (device.id == address or not is_pci(device)):
            continue
        says = f"DRM gives it to {device.id}" if device else "DRM has no such node"
        title = f"KFD node {node} ({address}) names renderD{minor.value}, but {says}"
        fix = ("dmesg | grep -iE 'kfd|drm'", "reboot; if it stays, report it with accelctl capture")
        yield Finding("COUNT-KFD-RENDER", "warn", title, address, evidence(minor), fix)


def _banks(ctx: RuleContext, node: int) -> list[Reading]:
    """Sizes of the banks that KFD calls device memory (heap_type 1 public, 2 private: include/uapi kfd_crat)."""
    found, index = [], 0
    while (kind := ctx.report.machine.get(f"kfd/nodes/{node}/mem_banks/{index}/heap_type")) is not None:
        size = ctx.report.machine.get(f"kfd/nodes/{node}/mem_banks/{index}/size_in_bytes")
        if kind.value in (1, 2) and size is not None:
            found.append(size)
        index += 1
    return found


@rule("COUNT-VRAM")
def memory_sizes(ctx: RuleContext) -> Iterator[Finding]:
    """Device memory by KFD and by the driver. An APU's bank is its GTT, a partition's a share: no comparison there."""
    for device in ctx.report.devices:
        node, vram = device.value("kfd/node"), by_file(device, "mem_info_vram_total")
        if node is None or vram is None or not vram.value or device.kind != "physical":
            continue
        banks = _banks(ctx, node)
        sizes = [bank.value for bank in banks]
        size = 0 if None in sizes else sum(sizes)  # a size that is not understood: nothing to compare
        gtt = by_file(device, "mem_info_gtt_total")
        known = [vram.value, *([gtt.value, gtt.value + vram.value] if gtt is not None and gtt.value else [])]
        cores = _property(ctx, node, "cpu_cores_count")
        apu = cores is not None and cores.value
        if not size or apu or any(abs(size - one) <= _TOLERANCE * one for one in known) or _is_divided(ctx, device):
            continue
        title = f"KFD counts {size_words(size)} of device memory, the driver {size_words(vram.value)}"
        fix = ("report it with accelctl capture; runtimes believe KFD, monitors the driver",)
        yield Finding("COUNT-VRAM", "warn", title, device.id, evidence(vram, *banks), fix, "possible")


def _is_divided(ctx: RuleContext, device: Device) -> bool:
    """True where partitions share the memory of this device."""
    return any(one.parent == device.id for one in ctx.report.devices)


@rule("COUNT-VF")
def active_vfs(ctx: RuleContext) -> Iterator[Finding]:
    """The number of VFs that the physical function says are on, and those that the bus has."""
    for device in ctx.report.devices:
        active = device.reading("sriov/active_vfs")
        links = (
            [name for name in ctx.root.listdir(device.path) if name.startswith("virtfn")] if active is not None else []
        )
        if active is None or active.value is None or active.value == len(links) or not is_whole(ctx):
            continue
        title = f"{active.value} VFs are said to be active, the bus has {len(links)} ({name_list(links) or 'none'})"
        fix = (f"cat /{device.path}/sriov_numvfs; ls -d /{device.path}/virtfn*",)
        yield Finding("COUNT-VF", "warn", title, device.id, evidence(active), fix, "likely")
