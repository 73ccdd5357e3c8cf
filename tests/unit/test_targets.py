"""Which device is put under stress, and why others are left alone."""

from __future__ import annotations

import pytest

from accelctl.errors import NoDeviceError, UsageError
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import MemoryTree, NodeStat
from accelctl.model.device import Device
from accelctl.model.reading import Reading
from accelctl.probes import scan as probe_scan
from accelctl.stress import targets
from accelctl.stress.targets import Allowed, Found

NOTHING_LIFTED = Allowed()
GUEST = {
    "drm:card1": ("vgem", "", ["/dev/dri/card1", "/dev/dri/renderD129"], "virtual"),
    "0000:00:02.0": ("qxl", "qxl", ["/dev/dri/card2"], "virtual"),
    "0000:03:00.0": ("amdgpu", "amdgpu", ["/dev/dri/card0", "/dev/dri/renderD128", "/dev/kfd"], "physical"),
    "0000:04:00.0": ("amdgpu", "vfio-pci", [], "physical"),
}


def device(identity: str, **facts: object) -> Device:
    chip, driver, nodes, kind = GUEST[identity]
    found = Device(identity, kind, "sys/devices/x", chip=chip)
    if driver:
        found.facts["driver"] = Reading(driver, "driver", driver)
    for node in nodes:
        found.facts[f"nodes/{node.removeprefix('/dev/')}/path"] = Reading(node, node, node)
    for key, value in facts.items():
        found.facts[key.replace("__", "/")] = Reading(value, "x", str(value))
    return found


def found(monkeypatch: pytest.MonkeyPatch, devices: list[Device], allowed: Allowed = NOTHING_LIFTED) -> Found:
    real = probe_scan.look

    def look(root: SysRoot, **_: object) -> object:
        scan = real(root)
        scan.devices = {one.id: one for one in devices}
        return scan

    monkeypatch.setattr(targets, "look", look)
    return targets.find(SysRoot(MemoryTree("empty")), allowed)


def test_a_proven_device_is_taken_by_name_only_when_it_is_virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = found(monkeypatch, [device("drm:card1")])
    with pytest.raises(NoDeviceError, match="no accelerator to put under stress") as caught:
        targets.choose(seen, None)
    assert caught.value.hint == "accelctl stress --device drm:card1"
    chosen = targets.choose(seen, ["drm:card1"])
    assert (chosen.target.node, chosen.target.driver, chosen.target.others) == (
        "/dev/dri/card1", "vgem", ("/dev/dri/renderD129",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("identity", "facts", "allowed", "why", "lift"),
    [
        ("0000:03:00.0", {}, Allowed(), "its back-end is unproven", "--unproven"),
        ("0000:04:00.0", {}, Allowed(), "bound to vfio-pci", None),
        (
            "0000:03:00.0", {"power__runtime_status": "suspended"}, Allowed(unproven=True),
            "asleep: opening its node would wake it", "--allow-wake",
        ),
        (
            "0000:03:00.0", {"holders": [{"command": "ollama", "pid": 77}]}, Allowed(unproven=True),
            r"in use by ollama \(pid 77\)", "--shared",
        ),
        (
            "0000:03:00.0", {"nodes__dri/renderD128__access__kernel": False}, Allowed(),
            "no permission for /dev/dri/renderD128", "accelctl probe",
        ),
    ],
)  # fmt: skip
def test_refusals_name_the_reason_and_what_lifts_it(
    monkeypatch: pytest.MonkeyPatch,
    identity: str,
    facts: dict[str, object],
    allowed: Allowed,
    why: str,
    lift: str | None,
) -> None:
    seen = found(monkeypatch, [device(identity, **facts)], allowed)
    with pytest.raises(NoDeviceError, match=f"left alone: {why}") as caught:
        targets.choose(seen, [identity])
    hint = caught.value.hint
    assert hint is None if lift is None else lift in str(hint)
    assert "\n" not in str(caught.value)


def test_a_driver_between_bus_and_chip_is_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GUEST, "0000:05:00.0", ("virtio_gpu", "virtio-pci", ["/dev/dri/card3"], "virtual"))
    chosen = targets.choose(found(monkeypatch, [device("0000:05:00.0")]), ["chip=virtio_gpu"])
    assert chosen.target.driver == "virtio_gpu"


def test_what_was_lifted_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = found(
        monkeypatch,
        [device("0000:03:00.0", holders=[{"command": "x", "pid": 1}], power__runtime_status="suspended")],
        Allowed(unproven=True, shared=True, wake=True),
    )
    chosen = targets.choose(seen, None)
    assert chosen.target.node == "/dev/dri/renderD128"
    assert set(chosen.target.others) == {"/dev/dri/card0", "/dev/kfd"}


def test_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = found(monkeypatch, [device("drm:card1"), device("0000:00:02.0")])
    one, other = targets.choose(seen, ["drm:card1"]), targets.peer(seen, "driver=qxl")
    both = targets.paired(one, other)
    assert (both.target.chip, both.target.node, both.target.others) == ("prime", "/dev/dri/card1", ("/dev/dri/card2",))
    with pytest.raises(UsageError, match="the device itself"):
        targets.paired(one, one)


def test_a_filter_that_fits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoDeviceError, match="no device with memory to put under stress fits driver=xe"):
        targets.choose(found(monkeypatch, [device("drm:card1")]), ["driver=xe"])


def test_the_simulator_is_never_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoDeviceError) as caught:
        targets.choose(found(monkeypatch, []), None)
    assert caught.value.exit_code == 3


def test_kernel_allocators_are_found_by_their_nodes() -> None:
    tree = MemoryTree("machine")
    for path, number in (("dev/udmabuf", 10), ("dev/dma_heap/system", 250), ("dev/vfio/vfio", 10), ("dev/vfio/7", 240)):
        tree.add_node(path, NodeStat("c", 0o666, 0, 0, number, 1))
    seen = targets.find(SysRoot(tree), Allowed())
    by_id = {candidate.device.id: candidate for candidate in seen.candidates}
    assert set(by_id) == {"node:udmabuf", "node:dma_heap/system", "node:vfio/vfio"}
    assert by_id["node:vfio/vfio"].target.others == ("/dev/vfio/7",)
    assert targets.choose(seen, ["udmabuf"]).target.chip == "udmabuf"
