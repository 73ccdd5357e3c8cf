"""What amdgpu, radeon, i915 and xe say in the log and in their files."""

from typing import Any

import pytest

from accelctl.model.finding import Finding
from accelctl.model.report import Report
from tests.cases import case, findings, function

AMD = "0000:03:00.0"
INTEL = "0000:00:02.0"


def amd(*lines: str, driver: str | None = "amdgpu", extra: dict[str, Any] | None = None) -> Report:
    links = {f"$D({AMD})/driver": f"../../../bus/pci/drivers/{driver}"} if driver else {}
    return case(files={**function(AMD, "0x1002", "0x744c"), **(extra or {})}, links=links, dmesg=list(lines))


def intel(*lines: str, driver: str | None = "i915", extra: dict[str, Any] | None = None) -> Report:
    links = {f"$D({INTEL})/driver": f"../../../bus/pci/drivers/{driver}"} if driver else {}
    loaded = {f"/sys/module/{driver or 'i915'}": None}
    files = {**function(INTEL, "0x8086", "0x56a5"), **loaded, **(extra or {})}
    return case(files=files, links=links, dmesg=list(lines))


def said(report: Report) -> list[Finding]:
    subjects = ("AMD-", "INTEL-", "GPU-", "DRV-UNBOUND", "FW-")
    return [one for one in findings(report, at_least="info") if one.id.startswith(subjects)]


def only(report: Report) -> Finding:
    found = said(report)
    assert len(found) == 1, [(one.id, one.title) for one in found]
    return found[0]


HANG = [
    f"amdgpu {AMD}: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1234, emitted seq=1236",
    f"amdgpu {AMD}: amdgpu: GPU reset begin!. Source:  1",
    f"amdgpu {AMD}: amdgpu: VRAM is lost due to GPU reset!",
]
WORKED = [
    f"amdgpu {AMD}: amdgpu: GPU reset(1) succeeded!",
    f"amdgpu {AMD}: [drm] device wedged, but recovered through reset",
]
FAILED = [f"amdgpu {AMD}: amdgpu: GPU reset(1) failed", f"amdgpu {AMD}: amdgpu: GPU reset end with ret = -110"]


def test_a_hang_with_a_reset_that_worked_is_one_warning() -> None:
    found = only(amd(*HANG, *WORKED))
    assert (found.id, found.level, found.device) == ("AMD-RESET", "warn", AMD)
    assert len(found.consequences) == 2


def test_a_reset_that_failed_is_an_error() -> None:
    found = only(amd(*HANG, *FAILED))
    assert (found.id, found.level) == ("AMD-RESET", "error")
    assert "failed" in found.title


@pytest.mark.parametrize(
    ("line", "identity", "level"),
    [
        (f"amdgpu {AMD}: amdgpu: ring comp_1.0.0 timeout, but soft recovered", "AMD-RING-TIMEOUT", "info"),
        (HANG[0], "AMD-RING-TIMEOUT", "warn"),
        (
            f"amdgpu {AMD}: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32773)",
            "AMD-PAGE-FAULT",
            "warn",
        ),
        (f"amdgpu {AMD}: amdgpu: [gfxhub] page fault (src_id:0 ring:40 vmid:8 pasid:32770)", "AMD-PAGE-FAULT", "warn"),
        (f"amdgpu {AMD}: amdgpu: [mmhub0] retry page fault (src_id:0 ring:0 vmid:1)", "AMD-PAGE-FAULT", "warn"),
        (f"amdgpu {AMD}: amdgpu: 2 uncorrectable hardware errors detected in umc block", "AMD-RAS", "error"),
        (
            f"amdgpu {AMD}: amdgpu: {{1}} socket: 0, die: 1, 3 new uncorrectable hardware errors detected in gfx block",
            "AMD-RAS",
            "error",
        ),
        (f"amdgpu {AMD}: amdgpu: RAS records:193 exceed threshold:128", "AMD-BAD-PAGES", "error"),
        (f"amdgpu {AMD}: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x12", "AMD-SMU", "error"),
        (f"amdgpu {AMD}: amdgpu: ERROR: GPU over temperature range(SW CTF) detected!", "AMD-THERMAL", "critical"),
    ],
)
def test_lines_of_the_amd_driver(line: str, identity: str, level: str) -> None:
    found = only(amd(line))
    assert (found.id, found.level, found.device) == (identity, level, AMD)


@pytest.mark.parametrize(
    "line",
    [
        f"amdgpu {AMD}: amdgpu: no uncorrectable hardware errors detected in umc block",
        f"amdgpu {AMD}: amdgpu: 0 uncorrectable hardware errors detected in umc block",
        f"amdgpu {AMD}: amdgpu: 4 correctable hardware errors detected in umc block",
        "input: GPU over temperature range(SW CTF) detected as /devices/virtual/input/input45",
        f"amdgpu {AMD}: [drm] device wedged, but recovered through reset",
        f"amdgpu {AMD}: amdgpu: GPU reset end with ret = 0",
    ],
)
def test_lines_that_look_like_faults_and_are_none(line: str) -> None:
    assert said(amd(line)) == []


def test_an_older_kernel_prints_without_an_address() -> None:
    line = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=3"
    assert only(amd(line)).device == AMD


def test_a_storm_is_counted() -> None:
    line = f"amdgpu {AMD}: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32773)"
    assert "500 times" in only(amd(*[line] * 500)).title


@pytest.mark.parametrize(("tail", "word"), [(" 730<0", ""), ("", ""), (" 123<145", "too old")])
def test_pcie_atomics(tail: str, word: str) -> None:
    found = only(amd(f"kfd kfd: amdgpu: skipped device 1002:744c, PCI rejects atomics{tail}"))
    assert (found.id, found.level, found.device) == ("AMD-ATOMICS", "error", AMD)
    assert word in found.title


def test_a_start_that_failed_once_and_works_now_is_history() -> None:
    line = f"amdgpu {AMD}: amdgpu: Fatal error during GPU init"
    assert only(amd(line, driver=None)).id == "AMD-INIT"
    assert said(amd(line)) == []


def test_ras_counters_go_before_the_log() -> None:
    line = f"amdgpu {AMD}: amdgpu: 2 uncorrectable hardware errors detected in umc block"
    bad = {f"$D({AMD})/ras/umc_err_count": "ue: 2\nce: 7", f"$D({AMD})/ras/gfx_err_count": "ue: 0\nce: 0"}
    found = only(amd(line, extra=bad))
    assert "umc 2" in found.title
    assert "gfx" not in found.title
    good = {f"$D({AMD})/ras/umc_err_count": "ue: 0\nce: 7"}
    assert said(amd(extra=good)) == []


def test_few_bad_pages_are_an_information() -> None:
    pages = "0x00001000 : 0x00001000 : R\n0x00003000 : 0x00001000 : P"
    found = only(amd(extra={f"$D({AMD})/ras/gpu_vram_bad_pages": pages}))
    assert (found.id, found.level) == ("AMD-BAD-PAGES", "info")
    assert "2 bad" in found.title
    assert said(amd(extra={f"$D({AMD})/ras/gpu_vram_bad_pages": ""})) == []


def test_radeon_lockups() -> None:
    line = f"radeon {AMD}: GPU lockup (current fence id 0x00000000000001b4 last fence id 0x00000000000001ca on ring 0)"
    assert only(amd(line, driver="radeon")).id == "AMD-RING-TIMEOUT"


# -- Intel --


def test_a_hang_with_its_resets_is_one_warning() -> None:
    lines = [
        f"i915 {INTEL}: [drm] GPU HANG: ecode 12:1:859ffffb, in slack [19356]",
        f"i915 {INTEL}: [drm] Resetting chip for stopped heartbeat on rcs0",
        f"i915 {INTEL}: [drm] GT0: Resetting rcs0 for preemption time out",
    ]
    found = only(intel(*lines))
    assert (found.id, found.level, found.device) == ("INTEL-HANG", "warn", INTEL)
    assert "slack" in found.title
    assert len(found.consequences) == 1


@pytest.mark.parametrize(
    ("driver", "line", "identity", "level"),
    [
        ("xe", "[drm] *ERROR* CRITICAL: Xe has declared device 0000:00:02.0 as wedged.", "INTEL-WEDGED", "critical"),
        ("xe", "[drm] Tile0: GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=3", "INTEL-RESET", "warn"),
        ("i915", "[drm] *ERROR* GT1: Failed to initialize GPU, declaring it wedged!", "INTEL-WEDGED", "critical"),
        ("i915", "[drm] *ERROR* GT1: GuC initialization failed -ETIMEDOUT", "INTEL-FIRMWARE", "error"),
        ("xe", "In Survivability Mode", "INTEL-SURVIVABILITY", "error"),
    ],
)
def test_lines_of_the_intel_drivers(driver: str, line: str, identity: str, level: str) -> None:
    found = only(intel(f"{driver} {INTEL}: {line}", driver=driver))
    assert (found.id, found.level, found.device) == (identity, level, INTEL)


def test_a_wedged_gpu_swallows_what_led_to_it() -> None:
    lines = [
        f"i915 {INTEL}: [drm] *ERROR* GT0: GuC initialization failed -ENOENT",
        f"i915 {INTEL}: [drm] *ERROR* GT0: Failed to initialize GPU, declaring it wedged!",
    ]
    found = only(intel(*lines))
    assert found.id == "INTEL-WEDGED"
    assert len(found.consequences) == 1


FORCE = [
    f"i915 {INTEL}: Your graphics device 56a5 is not properly supported by i915 in this",
    f"xe {INTEL}: Your graphics device 56a5 is not officially supported",
]


@pytest.mark.parametrize("line", FORCE)
def test_force_probe_explains_an_unbound_gpu(line: str) -> None:
    found = only(intel(line, driver=None))
    assert (found.id, found.level) == ("INTEL-FORCE-PROBE", "error")
    assert any(one.startswith("DRV-UNBOUND") for one in found.consequences)


@pytest.mark.parametrize("line", FORCE)
def test_the_other_driver_has_it_so_all_is_well(line: str) -> None:
    assert said(intel(line, driver="xe" if line.startswith("i915") else "i915")) == []


def test_a_firmware_that_was_not_found_is_named() -> None:
    line = f"i915 {INTEL}: [drm] *ERROR* GT0: GuC firmware i915/dg2_guc_70.bin: fetch failed with error -2"
    found = only(intel(line, driver=None))
    assert (found.id, found.level) == ("FW-MISSING", "error")
    assert "i915/dg2_guc_70.bin" in found.title
    assert only(intel(line)).level == "info"


def test_throttling_is_told_with_its_reason() -> None:
    base = f"$D({INTEL})/tile0/gt0/freq0/throttle"
    files = {f"{base}/status": "1", f"{base}/reason_thermal": "1", f"{base}/reason_pl1": "0"}
    found = only(intel(driver="xe", extra=files))
    assert (found.id, found.level) == ("GPU-THROTTLE", "info")
    assert found.title.endswith("thermal")
    calm = {f"{base}/status": "0", f"{base}/reason_thermal": "0"}
    assert said(intel(driver="xe", extra=calm)) == []


@pytest.mark.parametrize(("word", "level"), [("warning", "warn"), ("critical", "critical")])
def test_the_cards_own_verdict(word: str, level: str) -> None:
    assert only(intel(driver="xe", extra={f"$D({INTEL})/gpu_health": word})).level == level
    assert said(intel(driver="xe", extra={f"$D({INTEL})/gpu_health": "ok"})) == []
