"""Libraries on the disk, and a runtime of which only half is there."""

from typing import Any

import pytest

from accelctl.model.finding import Finding
from accelctl.model.report import Report
from accelctl.probes.rules.library_files import Libraries
from tests.cases import case, findings, function, machine

AMD = {**function("0000:03:00.0", "0x1002", "0x744c"), "/sys/module/amdgpu": None}
BOUND = {"$D(0000:03:00.0)/driver": "../../../bus/pci/drivers/amdgpu"}


def absent(report: Report) -> list[Finding]:
    return findings(report, "LIB-ABSENT")


def test_management_without_a_runtime_is_an_information() -> None:
    (found,) = absent(case(files={**AMD, "/opt/rocm/lib/libamd_smi.so.26": b"x"}, links=BOUND))
    assert (found.level, found.device, found.certainty) == ("info", "0000:03:00.0", "likely")
    assert "libamdhip64.so" in found.title


@pytest.mark.parametrize(
    "files",
    [
        {"/opt/rocm/lib/libamd_smi.so.26": b"x", "/opt/rocm/lib/libamdhip64.so.6": b"x"},
        {"/usr/lib/x86_64-linux-gnu/librocm_smi64.so.1": b"x", "/usr/lib/x86_64-linux-gnu/libhsa-runtime64.so.1": b"x"},
        {"/usr/lib/libc.so.6": b"x"},
        {},
    ],
)
def test_whole_or_nothing_is_quiet(files: dict[str, Any]) -> None:
    assert absent(case(files={**AMD, **files}, links=BOUND)) == []


def nvidia(**extra: Any) -> Report:
    files = {**function("0000:41:00.0", "0x10de", "0x2330"), "/sys/module/nvidia/version": "550.90.07"}
    files |= {"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": b"x", **{f"/{name}": data for name, data in extra.items()}}
    return case(files=files, links={"$D(0000:41:00.0)/driver": "../../../bus/pci/drivers/nvidia"})


def test_only_a_container_can_have_half_of_a_driver() -> None:
    assert absent(nvidia()) == []
    (found,) = absent(nvidia(**{".dockerenv": ""}))
    assert "container toolkit" in found.fix[0]


def test_another_version_of_the_library_is_named() -> None:
    files = {**AMD, "/opt/rocm/lib/libamdhip64.so.5": b"x"}
    line = (
        "python3: error while loading shared libraries: libamdhip64.so.6: cannot open shared object file: No such file"
    )
    (found,) = findings(case(files=files, links=BOUND, dmesg=[line]), "LIB-MISSING")
    assert "another version is there" in found.fix[0]
    assert "libamdhip64.so.5" in found.fix[0]


def test_equal_lines_are_one_finding() -> None:
    line = "libamdhip64.so.6: cannot open shared object file: No such file or directory"
    assert len(findings(case(files=AMD, links=BOUND, dmesg=[line] * 50), "LIB-MISSING")) == 1


def test_a_merged_usr_is_listed_once() -> None:
    root = machine(
        files={
            "/usr/lib/libx.so.1": b"",
            "/usr/lib/x86_64-linux-gnu/libx.so.2": b"",
            "/opt/v/libx.so.3": b"",
            "/usr/lib/libxy.so": b"",
        },
        links={"lib": "usr/lib"},
    )
    assert sorted(Libraries(root).files("libx.so*", ["/opt/v"])) == [
        "opt/v/libx.so.3",
        "usr/lib/libx.so.1",
        "usr/lib/x86_64-linux-gnu/libx.so.2",
    ]
    assert list(Libraries(root).files("libz.so*")) == []
