"""Cases DRV-01 to DRV-04, each as its whole kind: the published one, its neighbours, and what must not be said."""

from typing import Any

import pytest

from accelctl.model.finding import Finding
from accelctl.model.report import Report
from tests.cases import advice, case, findings, function, words

RELEASE = "6.8.0-50-generic"
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
REJECTED = "Loading of module with unavailable key is rejected"
NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Mon Jan  1 00:00:00 UTC 2024"
OPEN_NVRM = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U16)"


def nvidia(address: str = "0000:41:00.0") -> dict[str, str | bytes]:
    return function(address, "0x10de", "0x2204")


def bound(driver: str, address: str = "0000:41:00.0") -> dict[str, str]:
    return {f"$D({address})/driver": f"../../../../bus/pci/drivers/{driver}"}


#: These cases list few files: other subjects may miss theirs (a DRM minor, a limit); they have their own tests.
SUBJECTS = ("DRV-", "FW-", "NODE-", "LIB-", "AMD-", "NV-")


def said(report: Report, level: str = "info") -> list[Finding]:
    """Findings of these subjects at this level or worse."""
    return [one for one in findings(report, at_least=level) if one.id.startswith(SUBJECTS)]


def only(report: Report, *, level: str = "warn") -> Finding:
    """The single finding at this level or worse."""
    found = said(report, level)
    assert len(found) == 1, [(one.id, one.title) for one in found]
    return found[0]


# -- DRV-01: kernel module older than the user-space library --


def mismatch(module: str, library: str, **more: Any) -> Report:
    files = {**nvidia(), "/sys/module/nvidia/version": module, "/proc/driver/nvidia/version": NVRM.format(module)}
    links = {"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": f"libnvidia-ml.so.{library}", **bound("nvidia")}
    return case(files={**files, **more.pop("files", {})}, links=links, **more)


def test_drv_01_module_older_than_library() -> None:
    report = mismatch("550.90.07", "550.107.02")
    found = only(report)
    assert (found.id, found.level, found.certainty) == ("DRV-MISMATCH", "error", "certain")
    assert "550.90.07" in found.title
    assert "550.107.02" in found.title
    assert "library is the newer one" in found.title
    assert any("550.90.07" in one.raw for one in found.evidence)
    assert any("550.107.02" in one.raw for one in found.evidence)
    steps = " ".join(found.fix)
    assert "reboot" in steps
    assert "modprobe" in steps
    assert "hold" in steps
    assert [device.id for device in report.devices] == ["0000:41:00.0"]
    for wrong in ("no gpu", "not installed", "driver missing"):
        assert wrong not in words(found)


@pytest.mark.parametrize(
    ("module", "library", "newer"),
    [
        ("550.90.07", "550.107.02", "library"),
        ("550.107.02", "550.90.07", "module"),
        ("535.183.01", "550.54.14", "library"),
        ("550.54.15", "550.54.14", "module"),
        ("99.1", "100.0", "library"),
    ],
)
def test_drv_01_parts_are_numbers(module: str, library: str, newer: str) -> None:
    assert f"the {newer} is the newer one" in only(mismatch(module, library)).title


@pytest.mark.parametrize("version", ["550.90.07", "580.65.06", "595.45.04"])
def test_drv_01_equal_versions_say_nothing(version: str) -> None:
    assert said(mismatch(version, version), "info") == []


def test_drv_01_version_only_in_the_drivers_own_file() -> None:
    files = {**nvidia(), "/proc/driver/nvidia/version": OPEN_NVRM.format("580.65.06")}
    links = {"usr/lib64/libnvidia-ml.so.1": "libnvidia-ml.so.580.82.09", **bound("nvidia")}
    found = only(case(files=files, links=links))
    assert (found.id, found.device) == ("DRV-MISMATCH", "0000:41:00.0")
    assert "580.65.06" in found.title


def test_drv_01_through_the_chain_of_alternatives() -> None:
    """Debian: the loader's name is a link to a link in another folder."""
    links = {
        "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "/etc/alternatives/glx--libnvidia-ml.so.1",
        "etc/alternatives/glx--libnvidia-ml.so.1": "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1",
        "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1": "libnvidia-ml.so.535.247.01",
        **bound("nvidia"),
    }
    found = only(case(files={**nvidia(), "/sys/module/nvidia/version": "535.230.02"}, links=links))
    assert "535.247.01" in found.title


def test_drv_01_eight_devices_are_one_finding() -> None:
    addresses = [f"0000:4{index}:00.0" for index in range(8)]
    files: dict[str, Any] = {"/sys/module/nvidia/version": "550.90.07"}
    links = {"usr/lib64/libcuda.so.1": "libcuda.so.550.107.02"}
    for address in addresses:
        files |= nvidia(address)
        links |= bound("nvidia", address)
    report = case(files=files, links=links)
    assert only(report).device is None
    assert len(report.devices) == 8


def test_drv_01_in_a_container_the_image_is_blamed() -> None:
    found = only(mismatch("550.90.07", "535.54.03", files={"/.dockerenv": ""}))
    assert "container" in found.fix[0]
    assert not any("modprobe" in step for step in found.fix)


def test_drv_01_the_drivers_complaint_about_a_stranger() -> None:
    """The libraries here agree; some program (an image, a static copy) came with another version."""
    lines = [
        "NVRM: API mismatch: the client 'nvidia-smi' (pid 4218)",
        "NVRM: has the version 595.84, but this kernel module has",
        "NVRM: the version 550.90.07.  Please make sure that this",
    ]
    found = only(mismatch("550.90.07", "550.90.07", dmesg=lines))
    assert (found.id, found.level, found.certainty) == ("DRV-MISMATCH", "warn", "likely")
    assert "595.84" in found.title


def test_drv_01_a_complaint_about_an_earlier_module_is_history() -> None:
    lines = [
        "NVRM: API mismatch: the client has the version 535.247.01, but",
        "NVRM: this kernel module has the version 535.230.02.  Please",
    ]
    assert said(mismatch("550.90.07", "550.90.07", dmesg=lines), "info") == []


# -- DRV-02: nouveau owns the card --


NOT_CALLED = "NVRM: The NVIDIA probe routine was not called for 1 device(s)."


def test_drv_02_nouveau_has_the_card() -> None:
    files = {**nvidia("0000:01:00.0"), "/sys/module/nvidia/version": "550.90.07", "/sys/module/nouveau": None}
    report = case(files=files, links=bound("nouveau", "0000:01:00.0"), dmesg=[NOT_CALLED])
    found = only(report)
    assert (found.id, found.level, found.device) == ("DRV-WRONG-OWNER", "error", "0000:01:00.0")
    assert "nouveau" in found.title
    steps = "\n".join(found.fix)
    assert "blacklist nouveau" in steps
    assert "initramfs" in steps
    assert "reboot" in steps
    assert any(NOT_CALLED in one.raw for one in found.evidence)


def test_drv_02_nouveau_alone_is_a_choice() -> None:
    files = {**nvidia("0000:01:00.0"), "/sys/module/nouveau": None}
    report = case(files=files, links=bound("nouveau", "0000:01:00.0"))
    assert said(report, "warn") == []
    assert [one.id for one in said(report)] == ["DRV-OPEN"]


def test_drv_02_driver_override_is_a_choice() -> None:
    files = {
        **function("0000:01:00.0", "0x10de", "0x2204", driver_override="nouveau"),
        "/sys/module/nvidia/version": "5.1",
    }
    assert said(case(files=files, links=bound("nouveau", "0000:01:00.0")), "warn") == []


def test_drv_02_one_card_each_may_be_meant() -> None:
    """A second card runs with the vendor's module and the log is quiet: at most a question."""
    files = {**nvidia("0000:01:00.0"), **nvidia("0000:02:00.0"), "/sys/module/nvidia/version": "550.90.07"}
    links = {**bound("nouveau", "0000:01:00.0"), **bound("nvidia", "0000:02:00.0")}
    found = findings(case(files=files, links=links), "DRV-WRONG-OWNER")
    assert [(one.level, one.certainty) for one in found] == [("warn", "possible")]


@pytest.mark.parametrize("driver", ["vfio-pci", "pci-stub", "xen-pciback", "nvgrace_gpu_vfio_pci"])
def test_drv_02_a_virtual_machines_card_is_no_fault(driver: str) -> None:
    files = {**nvidia(), "/sys/module/nvidia/version": "550.90.07"}
    report = case(files=files, links=bound(driver))
    assert said(report, "warn") == []
    assert [one.id for one in said(report)] == ["DRV-PASSTHROUGH"]


@pytest.mark.parametrize(
    ("vendor", "device", "driver", "loaded"),
    [
        ("0x1002", "0x6818", "radeon", "amdgpu"),
        ("0x8086", "0x56a5", "xe", "i915"),
        ("0x8086", "0x56a5", "i915", "xe"),
        ("0x10de", "0x2204", "nvidia", "nouveau"),
    ],
)
def test_drv_02_two_full_drivers_of_one_vendor(vendor: str, device: str, driver: str, loaded: str) -> None:
    files = {**function("0000:01:00.0", vendor, device), f"/sys/module/{loaded}": None, f"/sys/module/{driver}": None}
    report = case(files=files, links=bound(driver, "0000:01:00.0"))
    assert [one.id for one in findings(report, at_least="warn") if one.id.startswith("DRV-")] == []


# -- DRV-03: module signature refused under Secure Boot --


def boot(value: int) -> dict[str, str | bytes | None]:
    return {
        "/proc/sys/kernel/osrelease": RELEASE,
        f"/lib/modules/{RELEASE}/updates/dkms/nvidia.ko": b"\x7fELF",
        SECURE_BOOT: bytes([6, 0, 0, 0, value]),
    }


@pytest.mark.parametrize("with_device", [False, True])
@pytest.mark.parametrize(
    "line",
    [
        REJECTED,
        "nvidia: loading of module with unavailable key is rejected",
        "nvidia: Loading of unsigned module is rejected",
        "Loading of module with unsupported crypto is rejected",
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
    ],
)
def test_drv_03_signature_refused(line: str, with_device: bool) -> None:
    files = {**boot(1), **(nvidia() if with_device else {})}
    report = case(files=files, missing=["/sys/module/nvidia"], dmesg=[line])
    found = only(report)
    assert (found.id, found.level) == ("DRV-SIGNATURE", "error")
    assert found.device == ("0000:41:00.0" if with_device else None)
    assert "secure boot is on" in words(found)
    steps = "\n".join(found.fix)
    assert "mokutil --import" in steps
    assert "reboot" in steps
    for wrong in ("module missing", "not built", "not installed"):
        assert wrong not in advice(found)


def test_drv_03_secure_boot_off() -> None:
    report = case(files={**boot(0), **nvidia()}, dmesg=["nothing of note"])
    assert findings(report, "DRV-SIGNATURE") == []
    found = only(report)
    assert found.id == "DRV-NOT-LOADED"
    assert "not loaded" in found.title
    assert "secure boot" not in words(found)


def test_drv_03_secure_boot_on_without_a_refusal() -> None:
    """Secure Boot alone proves nothing: the log was read and holds no refusal."""
    assert only(case(files={**boot(1), **nvidia()}, dmesg=["nothing"])).id == "DRV-NOT-LOADED"


def test_drv_03_without_a_log_it_is_possible() -> None:
    files = {**boot(1), **nvidia(), "/sys/kernel/security/lockdown": "none [integrity] confidentiality"}
    found = only(case(files=files))
    assert (found.id, found.certainty) == ("DRV-SIGNATURE", "possible")


def test_drv_03_another_module_was_refused() -> None:
    files = {**boot(1), **nvidia()}
    report = case(files=files, dmesg=["vboxdrv: loading of module with unavailable key is rejected"])
    assert [one.id for one in findings(report, at_least="warn")] == ["DRV-NOT-LOADED"]


@pytest.mark.parametrize(
    "line", [REJECTED, "nvidia: module verification failed: signature and/or required key missing - tainting kernel"]
)
def test_drv_03_a_module_that_is_loaded_was_not_refused(line: str) -> None:
    files = {**boot(1), **nvidia(), "/sys/module/nvidia/version": "550.90.07"}
    assert said(case(files=files, links=bound("nvidia"), dmesg=[line]), "info") == []


# -- DRV-04: firmware absent, or absent only in the initramfs --


TOC = "amdgpu/psp_13_0_8_toc.bin"
AMD_LINES = [
    f"amdgpu 0000:03:00.0: Direct firmware load for {TOC} failed with error -2",
    "amdgpu 0000:03:00.0: amdgpu: Fatal error during GPU init",
]


def amd() -> dict[str, str | bytes]:
    return function("0000:03:00.0", "0x1002", "0x1681")


def test_drv_04_file_absent() -> None:
    found = only(case(files=amd(), dmesg=AMD_LINES, missing=[f"/lib/firmware/{TOC}"]))
    assert (found.id, found.level, found.device) == ("FW-MISSING", "error", "0000:03:00.0")
    assert TOC in found.title
    steps = "\n".join(found.fix)
    assert "firmware package" in steps
    assert "initramfs" in steps
    assert "AMD-INIT" in "\n".join(found.consequences)


@pytest.mark.parametrize("ending", ["", ".zst", ".xz"])
@pytest.mark.parametrize(
    "folder", ["lib/firmware", "lib/firmware/updates", f"lib/firmware/{RELEASE}", "usr/lib/firmware"]
)
def test_drv_04_file_on_disk_but_not_in_the_initramfs(ending: str, folder: str) -> None:
    files = {**amd(), f"/{folder}/{TOC}{ending}": b"x", "/proc/sys/kernel/osrelease": RELEASE}
    found = only(case(files=files, dmesg=[(2.9, line) for line in AMD_LINES]))
    assert (found.id, found.level) == ("FW-INITRAMFS", "error")
    assert "initramfs" in found.fix[0]
    assert "package" not in advice(found)


def npu(**more: Any) -> dict[str, Any]:
    return {**function("0000:00:0b.0", "0x8086", "0x7d1d", "0x120000"), "/sys/module/intel_vpu": None, **more}


NPU_LINES = [
    "intel_vpu 0000:00:0b.0: [drm] *ERROR* ivpu_fw_request(): Failed to request firmware: -2",
    "intel_vpu 0000:00:0b.0: probe with driver intel_vpu failed with error -2",
]


def test_drv_04_npu_without_firmware() -> None:
    report = case(files=npu(), dmesg=NPU_LINES, missing=["/dev/accel"])
    found = only(report, level="info")
    assert (found.id, found.level, found.device) == ("FW-MISSING", "error", "0000:00:0b.0")
    assert "intel/vpu/vpu_37xx_v1.bin" in words(found)
    assert "DRV-UNBOUND" in "\n".join(found.consequences)


def test_drv_04_npu_firmware_on_disk() -> None:
    report = case(files=npu(**{"/lib/firmware/intel/vpu/vpu_37xx_v1.bin.zst": b"x"}), dmesg=NPU_LINES)
    assert only(report).id == "FW-INITRAMFS"


def test_drv_04_another_generations_file_does_not_help() -> None:
    report = case(files=npu(**{"/lib/firmware/intel/vpu/vpu_40xx_v1.bin.zst": b"x"}), dmesg=NPU_LINES)
    assert only(report).id == "FW-MISSING"


def test_drv_04_module_loaded_alone_is_not_healthy() -> None:
    """The same without a word about firmware: the driver is there and has not taken the device."""
    assert [one.id for one in findings(case(files=npu(), dmesg=NPU_LINES[1:]), at_least="error")] == ["DRV-UNBOUND"]
    assert [one.id for one in findings(case(files=npu()), at_least="error")] == ["DRV-UNBOUND"]


@pytest.mark.parametrize("error", ["-22", "-110", "-12"])
def test_drv_04_other_errors_are_not_a_missing_file(error: str) -> None:
    lines = [f"amdgpu 0000:03:00.0: Direct firmware load for {TOC} failed with error {error}", AMD_LINES[1]]
    found = only(case(files=amd(), dmesg=lines))
    assert found.id == "FW-LOAD"
    assert "install the firmware package" not in advice(found)


def test_drv_04_a_driver_that_runs_asks_for_optional_files() -> None:
    report = case(files=amd(), links=bound("amdgpu", "0000:03:00.0"), dmesg=AMD_LINES[:1])
    assert said(report, "warn") == []
    healed = {**amd(), f"/lib/firmware/{TOC}": b"x"}
    assert said(case(files=healed, links=bound("amdgpu", "0000:03:00.0"), dmesg=AMD_LINES)) == []


def test_drv_04_a_network_cards_firmware_is_not_ours() -> None:
    line = "iwlwifi 0000:07:00.0: Direct firmware load for iwlwifi-ty-a0-gf-a0-86.ucode failed with error -2"
    assert said(case(files=amd(), links=bound("amdgpu", "0000:03:00.0"), dmesg=[line])) == []


def test_drv_04_eight_cards_lack_one_file() -> None:
    files: dict[str, Any] = {}
    lines = []
    for index in range(8):
        files |= function(f"0000:0{index}:00.0", "0x1002", "0x74a1", "0x120000")
        lines += [line.replace("0000:03:00.0", f"0000:0{index}:00.0") for line in AMD_LINES]
    found = only(case(files=files, dmesg=lines))
    assert (found.id, found.device) == ("FW-MISSING", None)
    assert sum("no driver" in effect for effect in found.consequences) == 8
