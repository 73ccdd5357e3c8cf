"""IOMMU, driver overrides, and views of the machine that should agree."""

from __future__ import annotations

from typing import Any

import pytest

from accelctl.model.report import Report
from tests.cases import case, findings, function

GPU, AUDIO, NIC, ROOT = "0000:01:00.0", "0000:01:00.1", "0000:02:00.0", "0000:00:01.0"
AMD = ("0x1002", "0x744c")


def driver(address: str, name: str) -> dict[str, str]:
    return {f"$D({address})/driver": f"../../../../bus/pci/drivers/{name}"}


# -- IOMMU groups --


def group_case(members: list[str], accelerators: tuple[str, ...] = (GPU,)) -> Report:
    files: dict[str, Any] = {f"sys/kernel/iommu_groups/7/devices/{name}": None for name in members}
    links = {}
    for address in accelerators:
        files |= function(address, *AMD)
        links[f"$D({address})/iommu_group"] = "../../../../kernel/iommu_groups/7"
    return case(files=files, links=links, parents={GPU: [ROOT]})


@pytest.mark.parametrize("members", [[GPU], [GPU, AUDIO], [GPU, AUDIO, ROOT]])
def test_the_card_s_own_functions_and_bridges_may_share_its_group(members: list[str]) -> None:
    assert not findings(group_case(members), "PCI-IOMMU-SHARED")


def test_strangers_in_the_group_are_information() -> None:
    found = findings(group_case([GPU, AUDIO, NIC]), "PCI-IOMMU-SHARED")
    assert [(one.level, one.device) for one in found] == [("info", GPU)]
    assert NIC in found[0].title
    assert AUDIO not in found[0].title


def test_one_group_is_one_finding() -> None:
    other = "0000:03:00.0"
    found = findings(group_case([GPU, other], (GPU, other)), "PCI-IOMMU-SHARED")
    assert [one.device for one in found] == [None]


# -- IOMMU off --

NPU: dict[str, Any] = dict(function("0000:c5:00.1", "0x1022", "0x17f0", "0x118000"))
IDLE = {"sys/kernel/iommu_groups": None}


@pytest.mark.parametrize(
    ("files", "links", "found"),
    [
        ({**NPU, **IDLE}, {}, 1),
        (NPU, {}, 0),  # a kernel without IOMMU groups, or a capture without them
        ({**NPU, **IDLE}, driver("0000:c5:00.1", "amdxdna"), 0),  # the driver took it: newer ones can do without
        ({**NPU, "sys/kernel/iommu_groups/0/devices/0000:00:00.0": None}, {}, 0),
        ({**function(GPU, *AMD), **IDLE}, {}, 0),  # nothing here needs it
        ({**function(GPU, *AMD), **IDLE}, driver(GPU, "amdgpu"), 0),
        ({**function(GPU, *AMD), **IDLE}, driver(GPU, "vfio-pci"), 1),
    ],
)
def test_iommu_off_matters_only_where_it_is_needed(files: dict[str, Any], links: dict[str, str], found: int) -> None:
    assert len(findings(case(files=files, links=links), "IOMMU-OFF")) == found


# -- IOMMU faults --

FAULTS = [
    "DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0xdceff000 [fault reason 0x06] PTE Read access",
    "DMAR: [DMA Write] Request device [01:00.0] fault addr fffff000 [fault reason 05] PTE Write access is not set",
    "DMAR:[DMA Read] Request device [0000:01:00.0] fault addr 2231b8000",
    "AMD-Vi: Event logged [IO_PAGE_FAULT device=01:00.0 domain=0x0013 address=0x1000 flags=0x0000]",
    "AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:01:00.0 domain=0x0013 address=0x1000 flags=0x0000]",
    "amdgpu 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000e address=0x1000 flags=0x0020]",
    "arm-smmu-v3 arm-smmu-v3.0.auto: event: F_TRANSLATION client: 0000:01:00.0 sid: 0x100 ssid: 0x0 iova: 0x1000",
]


@pytest.mark.parametrize("line", FAULTS)
def test_a_fault_names_its_device(line: str) -> None:
    found = findings(case(files=function(GPU, *AMD), dmesg=[line] * 40), "IOMMU-FAULT")
    assert [(one.device, one.level) for one in found] == [(GPU, "warn")]
    assert "40 times" in found[0].title


def test_faults_of_others_and_of_interrupts_are_not_ours() -> None:
    lines = [line.replace("01:00.0", "05:00.0") for line in FAULTS]
    lines.append(
        "DMAR: [INTR-REMAP] Request device [01:00.0] fault index 0x8080 [fault reason 0x25] Blocked an interrupt"
    )
    assert not findings(case(files=function(GPU, *AMD), dmesg=lines), "IOMMU-FAULT")


# -- driver_override --


@pytest.mark.parametrize(
    ("override", "bound", "found"),
    [
        ("vfio-pci", "amdgpu", 1),
        ("amdgpu", "amdgpu", 0),
        ("(null)", "amdgpu", 0),
        ("", "amdgpu", 0),
        ("vfio-pci", "vfio-pci", 0),
    ],
)
def test_a_left_over_override(override: str, bound: str, found: int) -> None:
    report = case(files=function(GPU, *AMD, driver_override=override), links=driver(GPU, bound))
    assert len(findings(report, "PCI-DRIVER-OVERRIDE", at_least="warn")) == found


# -- PCI and DRM --


def drm(address: str, minor: int, name: str) -> tuple[dict[str, str], dict[str, str]]:
    base = f"$D({address})/drm/{name}"
    links = {
        f"sys/class/drm/{name}": f"../../devices/pci{address[:7]}/{address}/drm/{name}",
        f"{base}/device": f"../../../{address}",
    }
    return {f"{base}/dev": f"226:{minor}"}, links


@pytest.mark.parametrize(
    ("name", "with_minor", "found"),
    [("amdgpu", False, 1), ("amdgpu", True, 0), ("nvidia", False, 0), ("vfio-pci", False, 0), (None, False, 0)],
)
def test_a_bound_gpu_driver_makes_a_node(name: str | None, with_minor: bool, found: int) -> None:
    files: dict[str, Any] = function(GPU, *AMD)
    links = driver(GPU, name) if name else {}
    if with_minor:
        more, extra = drm(GPU, 128, "renderD128")
        files, links = {**files, **more}, {**links, **extra}
    assert len(findings(case(files=files, links=links), "COUNT-PCI-DRM")) == found


# -- PCI and KFD --

TOPOLOGY = "sys/devices/virtual/kfd/kfd/topology/nodes"


def kfd_case(
    nodes: dict[int, str],
    functions: list[str],
    more: dict[str, Any] | None = None,
    devices: dict[str, str] | None = None,
) -> Report:
    """KFD nodes (properties text each) and bound amdgpu functions."""
    files: dict[str, Any] = {f"{TOPOLOGY}/{node}/properties": text for node, text in nodes.items()} | (more or {})
    links = {"sys/class/kfd/kfd": "../../devices/virtual/kfd/kfd"}
    for number, address in enumerate(functions):
        files |= function(address, "0x1002", (devices or {}).get(address, "0x740f"))
        minor, extra = drm(address, 128 + number, f"renderD{128 + number}")
        files, links = {**files, **minor}, {**links, **extra, **driver(address, "amdgpu")}
    return case(files=files, links=links)


CPU = "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\ndomain 0\ndrm_render_minor 0"


def gpu(location: int, minor: int) -> str:
    return f"cpu_cores_count 0\nsimd_count 416\nlocation_id {location}\ndomain 0\ndrm_render_minor {minor}"


TWO = ["0000:03:00.0", "0000:26:00.0"]


def test_kfd_that_agrees_says_nothing_and_its_cpu_node_is_no_gpu() -> None:
    report = kfd_case({0: CPU, 1: CPU, 2: gpu(0x300, 128), 3: gpu(0x2600, 129)}, TWO)
    assert not [one.id for one in report.findings if one.id.startswith("COUNT")]
    assert len(report.accelerators) == 2


def test_kfd_names_a_function_that_is_not_there() -> None:
    found = findings(kfd_case({0: CPU, 1: gpu(0x300, 128), 2: gpu(0x4300, 130)}, TWO[:1]), "COUNT-PCI-KFD")
    assert [one.level for one in found] == ["warn"]
    assert "0000:43:00.0" in found[0].title


def test_kfd_leaves_out_one_of_two_equal_cards() -> None:
    report = kfd_case({0: CPU, 1: gpu(0x300, 128)}, TWO)
    assert [(one.id, one.device) for one in findings(report, "COUNT-PCI-KFD")] == [("COUNT-PCI-KFD", TWO[1])]
    # Another model may be one that KFD does not support; without any GPU node there is nothing to compare.
    assert not findings(kfd_case({0: CPU, 1: gpu(0x300, 128)}, TWO, devices={TWO[1]: "0x67df"}), "COUNT-PCI-KFD")
    assert not findings(kfd_case({0: CPU}, TWO), "COUNT-PCI-KFD")
    # A container's device cgroup hides the properties of nodes it was not given.
    boxed = kfd_case({0: CPU, 1: gpu(0x300, 128)}, TWO, {"run/.containerenv": ""})
    assert not findings(boxed, "COUNT-PCI-KFD")


def test_kfd_and_drm_swap_a_render_minor() -> None:
    report = kfd_case({0: CPU, 1: gpu(0x300, 129), 2: gpu(0x2600, 128)}, TWO)
    assert {one.device for one in findings(report, "COUNT-KFD-RENDER", at_least="warn")} == set(TWO)
    missing = kfd_case({0: CPU, 1: gpu(0x300, 140)}, TWO[:1])
    assert len(findings(missing, "COUNT-KFD-RENDER")) == 1


@pytest.mark.parametrize(
    ("bank", "cores", "found"),
    [
        (64 << 30, 0, 0),
        ((64 << 30) - (200 << 20), 0, 0),  # what firmware keeps for itself
        (128 << 30, 0, 0),  # the GTT: an APU
        (192 << 30, 0, 0),
        (16 << 30, 8, 0),  # cores of its own: an APU
        (16 << 30, 0, 1),
    ],
)
def test_device_memory_by_kfd_and_by_the_driver(bank: int, cores: int, found: int) -> None:
    node = gpu(0x300, 128).replace("cpu_cores_count 0", f"cpu_cores_count {cores}")
    more = {
        f"{TOPOLOGY}/1/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {bank}",
        f"$D({TWO[0]})/mem_info_vram_total": str(64 << 30),
        f"$D({TWO[0]})/mem_info_gtt_total": str(128 << 30),
    }
    assert len(findings(kfd_case({0: CPU, 1: node}, TWO[:1], more), "COUNT-VRAM")) == found
