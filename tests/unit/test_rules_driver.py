"""Drivers that are not there, not loaded, built for another kernel, kept away, or did not take the device."""

from typing import Any

import pytest

from accelctl.hal.root import SysRoot
from accelctl.hal.tree import MemoryTree
from accelctl.model.finding import Finding
from accelctl.model.report import Report
from accelctl.probes.rules.kernel_modules import Disk
from accelctl.probes.rules.library_files import parts, version_of
from accelctl.probes.scan import probe
from tests.cases import case, findings, function, machine, words

RELEASE = "6.8.0-50-generic"
HERE = f"/lib/modules/{RELEASE}"
KERNEL = {"/proc/sys/kernel/osrelease": RELEASE, f"{HERE}/modules.dep": "x"}
GPU = function("0000:41:00.0", "0x10de", "0x2204")


def drivers(report: Report, at_least: str = "info") -> list[Finding]:
    """Findings of this subject."""
    return [one for one in findings(report, at_least=at_least) if one.id.startswith("DRV-")]


def only(report: Report, at_least: str = "info") -> Finding:
    found = drivers(report, at_least)
    assert len(found) == 1, [(one.id, one.title) for one in found]
    return found[0]


@pytest.mark.parametrize(
    "path",
    [
        "updates/dkms/nvidia.ko",
        "updates/dkms/nvidia.ko.zst",
        "updates/nvidia.ko.xz",
        "extra/nvidia/nvidia.ko.gz",
        "kernel/nvidia-550/nvidia.ko",
        "kernel/drivers/video/nvidia.ko.zst",
        "updates/dkms/nvidia-current.ko",
    ],
)
def test_built_but_not_loaded(path: str) -> None:
    found = only(case(files={**KERNEL, **GPU, f"{HERE}/{path}": b"x"}))
    assert (found.id, found.level, found.device) == ("DRV-NOT-LOADED", "error", "0000:41:00.0")
    assert "modprobe nvidia" in found.fix[0]
    assert any(one.source.endswith(path) for one in found.evidence)


@pytest.mark.parametrize(
    "path", ["updates/dkms/nvidia-drm.ko", "updates/dkms/nvidia-uvm.ko", "updates/dkms/i2c-nvidia-gpu.ko"]
)
def test_a_neighbours_file_is_not_the_module(path: str) -> None:
    assert only(case(files={**KERNEL, **GPU, f"{HERE}/{path}": b"x"})).id == "DRV-NOT-INSTALLED"


def test_not_installed_names_what_to_install() -> None:
    found = only(case(files={**KERNEL, **GPU}))
    assert (found.id, found.level) == ("DRV-NOT-INSTALLED", "error")
    assert RELEASE in found.title
    assert "nvidia-driver" in found.fix[0]


def test_built_for_another_kernel() -> None:
    files = {**KERNEL, **GPU, "/lib/modules/6.8.0-49-generic/updates/dkms/nvidia.ko": b"x"}
    found = only(case(files=files))
    assert found.id == "DRV-OTHER-KERNEL"
    assert "6.8.0-49-generic" in found.title
    assert RELEASE in found.title
    assert any("dkms autoinstall" in step for step in found.fix)


def test_the_module_of_this_kernel_wins_over_another_kernels() -> None:
    other = "/lib/modules/6.8.0-49-generic/updates/dkms/nvidia.ko"
    files = {**KERNEL, **GPU, other: b"x", f"{HERE}/updates/dkms/nvidia.ko": b"x"}
    assert only(case(files=files)).id == "DRV-NOT-LOADED"


def test_a_kernels_own_module() -> None:
    files = {
        **KERNEL,
        **function("0000:03:00.0", "0x1002", "0x744c"),
        f"{HERE}/kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko.zst": b"x",
    }
    found = only(case(files=files))
    assert (found.id, "amdgpu" in found.title) == ("DRV-NOT-LOADED", True)


def test_without_a_view_of_the_modules_nothing_is_said() -> None:
    """A container or a plain capture: no lib/modules, so nothing is known of what is installed."""
    assert drivers(case(files=GPU)) == []
    assert drivers(case(files={**GPU, "/proc/sys/kernel/osrelease": RELEASE})) == []


def test_a_partial_capture_proves_no_missing_driver() -> None:
    tree = MemoryTree("partial")
    for name, text in {"vendor": "0x10de", "device": "0x2204", "class": "0x030000"}.items():
        tree.add_file(f"sys/bus/pci/devices/0000:41:00.0/{name}", text.encode())
    tree.add_file("proc/sys/kernel/osrelease", RELEASE.encode())
    tree.add_file(f"lib/modules/{RELEASE}/modules.dep", b"")
    assert drivers(probe(SysRoot(tree))) == []


def test_eight_devices_without_a_driver_are_one_finding() -> None:
    files: dict[str, Any] = dict(KERNEL)
    for index in range(8):
        files |= function(f"0000:4{index}:00.0", "0x10de", "0x2330", "0x030200")
    found = only(case(files=files))
    assert found.device is None
    assert len(found.consequences) == 8


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("nvidia 0000:41:00.0: probe with driver nvidia failed with error -1", "-1"),
        ("nvidia: probe of 0000:41:00.0 failed with error -110", "-110"),
    ],
)
def test_a_failed_probe_is_certain(line: str, error: str) -> None:
    found = only(case(files={**GPU, "/sys/module/nvidia/version": "550.90.07"}, dmesg=[line]))
    assert (found.id, found.level, found.certainty) == ("DRV-UNBOUND", "error", "certain")
    assert f"error {error}" in found.title
    assert line in words(found) or line.lower() in words(found)


def test_loaded_and_not_bound_is_likely() -> None:
    found = only(case(files={**GPU, "/sys/module/nvidia/version": "550.90.07"}))
    assert (found.id, found.certainty) == ("DRV-UNBOUND", "likely")


def test_a_built_in_driver_without_parameters_shows_on_its_bus() -> None:
    files = {
        **KERNEL,
        **function("0000:00:0b.0", "0x8086", "0x643e", "0x120000"),
        "/sys/bus/pci/drivers/intel_vpu": None,
    }
    assert only(case(files=files)).id == "DRV-UNBOUND"


@pytest.mark.parametrize(
    ("words_on_line", "part"),
    [
        ("quiet modprobe.blacklist=nouveau,nvidia", "modprobe.blacklist"),
        ("module_blacklist=nvidia quiet", "module_blacklist"),
        ("rd.driver.blacklist=nvidia", "rd.driver.blacklist"),
        ("nomodeset", "nomodeset"),
    ],
)
def test_kept_away_by_the_command_line(words_on_line: str, part: str) -> None:
    files = {**KERNEL, **GPU, "/proc/cmdline": words_on_line, f"{HERE}/updates/dkms/nvidia.ko": b"x"}
    found = only(case(files=files))
    assert (found.id, found.level) == ("DRV-BLOCKED", "warn")
    assert part in found.title


@pytest.mark.parametrize("line", ["modprobe.blacklist=nouveau", "module_blacklist=nvidia_drm", "quiet splash"])
def test_other_blacklists_do_not_matter(line: str) -> None:
    files = {**KERNEL, **GPU, "/proc/cmdline": line, f"{HERE}/updates/dkms/nvidia.ko": b"x"}
    assert only(case(files=files)).id == "DRV-NOT-LOADED"


def test_driver_override_left_over() -> None:
    files = {
        **KERNEL,
        **function("0000:41:00.0", "0x10de", "0x2204", driver_override="vfio-pci"),
        "/sys/module/nvidia": None,
    }
    found = only(case(files=files))
    assert (found.id, "vfio-pci" in found.title) == ("DRV-BLOCKED", True)


@pytest.mark.parametrize("text", ["(null)", ""])
def test_an_unset_driver_override_is_none(text: str) -> None:
    files = {**KERNEL, **function("0000:41:00.0", "0x10de", "0x2204", driver_override=text), "/sys/module/nvidia": None}
    assert only(case(files=files)).id == "DRV-UNBOUND"


def test_the_second_function_of_an_old_integrated_gpu_never_has_a_driver() -> None:
    files = {
        **KERNEL,
        **function("0000:00:02.0", "0x8086", "0x2a42"),
        **function("0000:00:02.1", "0x8086", "0x2a43", "0x038000"),
        "/sys/module/i915": None,
    }
    assert drivers(case(files=files, links={"$D(0000:00:02.0)/driver": "../../../bus/pci/drivers/i915"})) == []


def test_virtual_functions_may_be_kept_for_guests() -> None:
    files = {**KERNEL, **function("0000:00:02.1", "0x8086", "0x56c0"), "/sys/module/i915": None}
    assert drivers(case(files=files, links={"$D(0000:00:02.1)/physfn": "../0000:00:02.0"})) == []


@pytest.mark.parametrize(("vendor", "device"), [("0x1a03", "0x2000"), ("0x1234", "0x1111"), ("0x1013", "0x00b8")])
def test_displays_of_boards_and_emulators_need_no_driver(vendor: str, device: str) -> None:
    assert drivers(case(files={**KERNEL, **function("0000:05:00.0", vendor, device)})) == []


def test_an_idle_build_without_a_device_is_an_information() -> None:
    found = only(case(files={**KERNEL, f"{HERE}/updates/dkms/nvidia.ko": b"x"}))
    assert (found.id, found.level, found.device) == ("DRV-NOT-LOADED", "info", None)


def test_versions_are_numbers() -> None:
    assert parts("550.107.02") > parts("550.90.07")
    assert parts("550.90.07") == parts("550.90.7")
    assert parts("550.54") < parts("550.54.14")


def test_the_version_of_a_name_is_that_of_the_file_behind_it() -> None:
    root = machine(links={"usr/lib/liba.so.1": "liba.so.1.2.3", "usr/lib/libb.so.1": "libb.so.1"})
    assert version_of(root, "usr/lib/liba.so.1") == "1.2.3"
    assert version_of(root, "usr/lib/libb.so.1") is None


def test_the_disk_is_only_walked_below_a_release() -> None:
    root = machine(files={"/lib/modules/1.0/updates/a.ko": b"x"})
    assert not Disk(root, None).known
    assert not Disk(root, "2.0").known
    disk = Disk(root, "1.0")
    assert disk.known
    assert disk.find("a") == "lib/modules/1.0/updates/a.ko"
    assert disk.find("b") is None


def test_merged_usr_is_found_too() -> None:
    root = machine(files={"/usr/lib/modules/1.0/extra/a-b.ko.xz": b"x"})
    assert Disk(root, "1.0").find("a_b") == "usr/lib/modules/1.0/extra/a-b.ko.xz"
