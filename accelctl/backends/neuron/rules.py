"""What the Neuron driver counts: memory errors beyond repair (aws-neuron-driver neuron_sysfs_metrics.c)."""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.finding import Finding
from accelctl.model.reading import Reading

#: AWS Neuron documentation (containers, EKS device plugin).
CONTAINER = {
    "docker": "docker run --device /dev/neuron0 IMAGE",
    "kubernetes": 'resources: {limits: {"aws.amazon.com/neuron": 1}} with the Neuron device plugin',
}
LIBRARY_PREFIXES = ("libnrt", "libnccom", "libneuron")


@rule("NEURON-ECC")
def damaged(ctx: RuleContext) -> Iterator[Finding]:
    """Uncorrected errors. A repairable one is cured by the repair that the next driver load or reboot does."""
    for device in ctx.devices("neuron"):
        bad = {key: one for key, one in device.under("ras").items() if "uncorrected" in key and _number(one) > 0}
        hard = {key: one for key, one in bad.items() if "repairable" not in key}
        if not bad:
            continue
        words = ", ".join(f"{key.rpartition('/')[2]} {one.value}" for key, one in bad.items())
        fix: tuple[str, ...] = (
            "stop its work, then reload the driver or reboot: repairable rows are repaired by that",
        )
        if hard:
            fix = (*fix, "if they return: stop and start the instance, which moves it to other hardware")
        title = f"{device.id} counts memory errors beyond repair: {words}"
        level = "error" if hard else "warn"
        yield Finding("NEURON-ECC", level, title, device.id, evidence(*bad.values()), fix)


def _number(reading: Reading) -> int:
    return reading.value if isinstance(reading.value, int) else 0
