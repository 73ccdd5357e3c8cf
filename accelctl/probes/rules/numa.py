"""NUMA affinity that the firmware does not tell.

numa_node is -1 where there is no affinity to report (Documentation/ABI/testing/sysfs-bus-pci): normal with one node,
a gap with several. Memory of a GPU or of CXL can be a node of its own; nodes without CPUs are no place to run on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.finding import Finding
from accelctl.probes.rules._common import name_list, physical

#: MAX_NUMNODES of the largest kernel configuration (CONFIG_NODES_SHIFT 10).
_MOST = 1024


def node_list(text: str) -> list[int]:
    """Node numbers of a kernel list such as "0-1,8"; what does not read as one, and a flood, is left out."""
    found: list[int] = []
    for part in text.split(",", _MOST)[:_MOST]:
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            found.extend(range(first, min(last, first + _MOST) + 1))
    return found


def host_nodes(ctx: RuleContext) -> list[int]:
    """Online nodes that have CPUs; a node whose CPU list is not known counts."""
    nodes = node_list(str(ctx.report.value("numa/online") or ""))
    return [node for node in nodes if ctx.report.value(f"numa/nodes/{node}/cpulist") != ""]


@rule("PCI-NUMA-UNKNOWN")
def unknown_node(ctx: RuleContext) -> Iterator[Finding]:
    """One finding: it is one firmware that does not say it, for however many cards."""
    if len(host_nodes(ctx)) < 2:
        return
    unknown = [device for device in physical(ctx) if isinstance(node := device.value("numa/node"), int) and node < 0]
    if not unknown:
        return
    names = [device.id for device in unknown]
    title = f"NUMA affinity of {name_list(names)} is unknown: the firmware does not say which node is near"
    facts = evidence(unknown[0].reading("numa/node"), ctx.report.machine.get("numa/online"))
    fix = (
        "update the system firmware (ACPI _PXM); some offer a NUMA option for the PCIe root ports",
        "until then measure transfers from each node: numactl --cpunodebind=N --membind=N COMMAND",
    )
    yield Finding("PCI-NUMA-UNKNOWN", "info", title, names[0] if len(names) == 1 else None, facts, fix)
