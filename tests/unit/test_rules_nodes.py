"""Nodes that may not be opened, and nodes that are not there: on a host, and in a container."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.rules import RuleContext
from accelctl.model.device import Device
from accelctl.model.finding import Finding
from accelctl.model.reading import Reading
from accelctl.model.report import Report
from accelctl.probes.rules.holders import stuck
from accelctl.probes.rules.nodes import cgroup_gives
from tests.cases import case, findings, function, machine

ROOT = {"uid": 0, "gid": 0, "capabilities": 0x1FFFFFFFFFF}
USER = {"uid": 1000, "gid": 1000, "groups": [1000]}
HOST = {"/proc/self/cgroup": "0::/user.slice", "/etc/group": "root:x:0:\nvideo:x:44:\nrender:x:105:\n"}
DOCKER = {"/.dockerenv": "", "/etc/group": "root:x:0:\n"}


def said(report: Report, at_least: str = "info") -> list[Finding]:
    return [one for one in findings(report, at_least=at_least) if one.id.startswith("NODE-")]


def minor(address: str, driver: str, name: str, number: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A DRM or accel minor of a function, with the driver bound."""
    kind = "accel" if name.startswith("accel") else "drm"
    folder = "accel" if kind == "accel" else "dri"
    base = f"$D({address})/{kind}/{name}"
    files = {f"{base}/dev": number, f"{base}/uevent": f"DEVNAME={folder}/{name}"}
    real = f"sys/devices/pci{address[:7]}/{address}"
    links = {
        f"sys/class/{kind}/{name}": f"../../../{real}/{kind}/{name}",
        f"{base}/device": f"../../../{address}",
        f"$D({address})/driver": f"../../../bus/pci/drivers/{driver}",
    }
    return files, links


def amd(
    nodes: dict[str, Any], extra: dict[str, Any], process: dict[str, Any] = USER, address: str = "0000:03:00.0"
) -> Report:
    files, links = minor(address, "amdgpu", "renderD128", "226:128")
    card, card_links = minor(address, "amdgpu", "card0", "226:0")
    files = {**function(address, "0x1002", "0x744c"), **files, **card, **extra}
    return case(files=files, links={**links, **card_links}, nodes=nodes, process=process)


CARD = {"/dev/dri/card0": {"mode": 0o660, "gid": 44, "major": 226, "minor": 0}}
RENDER = {"/dev/dri/renderD128": {"mode": 0o660, "gid": 105, "major": 226, "minor": 128}}
KFD = {"/dev/kfd": {"mode": 0o660, "gid": 105, "major": 509}}


def test_one_missing_group_is_one_finding_with_the_right_name() -> None:
    (found,) = said(amd({**CARD, **RENDER, **KFD}, HOST))
    assert (found.id, found.level) == ("NODE-PERMISSION", "error")
    assert "/dev/kfd" in found.title
    assert "/dev/dri/renderD128" in found.title
    assert "card0" not in found.title
    assert "render (105)" in found.title
    assert "usermod -aG render" in "\n".join(found.fix)


def test_in_a_container_the_number_is_given() -> None:
    (found,) = said(amd({**CARD, **RENDER}, DOCKER))
    assert found.fix == ("start the container with --group-add 105",)


def test_a_card_node_beside_an_open_render_node_is_the_displays() -> None:
    assert said(amd({**CARD, **RENDER}, HOST, {"uid": 1000, "gid": 1000, "groups": [105]})) == []


def test_root_may_everything() -> None:
    assert said(amd({**CARD, **RENDER, **KFD}, HOST, ROOT)) == []


def test_an_acl_of_the_seat_counts() -> None:
    nodes = {"/dev/dri/renderD128": {**RENDER["/dev/dri/renderD128"], "acl": "u::rw-,u:1000:rw-,g::rw-,m::rw-,o::---"}}
    assert said(amd({**CARD, **nodes}, HOST)) == []


def test_administrators_nodes_alone_are_no_finding() -> None:
    """/dev/nvidia-caps/nvidia-cap1 is root's on every healthy machine (mode 0400)."""
    nodes = {
        "/dev/nvidia0": {"mode": 0o666, "major": 195},
        "/dev/nvidiactl": {"mode": 0o666, "major": 195, "minor": 255},
        "/dev/nvidia-uvm": {"mode": 0o666, "major": 510},
        "/dev/nvidia-caps/nvidia-cap1": {"mode": 0o400, "major": 238, "minor": 1},
    }
    files = {**HOST, **function("0000:41:00.0", "0x10de", "0x2330"), "/sys/module/nvidia/version": "550.90.07"}
    links = {"$D(0000:41:00.0)/driver": "../../../bus/pci/drivers/nvidia"}
    assert said(case(files=files, links=links, nodes=nodes, process=USER)) == []


def test_a_control_node_that_the_cgroup_keeps_shut_matters() -> None:
    nodes = {
        "/dev/nvidia0": {"mode": 0o666, "major": 195, "open": None},
        "/dev/nvidiactl": {"mode": 0o666, "major": 195, "minor": 255, "open": "EPERM"},
    }
    (found,) = said(case(files=DOCKER, nodes=nodes, process=ROOT))
    assert (found.id, found.certainty) == ("NODE-CGROUP", "likely")
    assert "nvidiactl" in found.title
    assert "nvidia0," not in found.title


def test_the_answer_of_a_running_machine_has_no_number() -> None:
    """access(2) as Python shows it says only "denied"."""
    nodes = {"/dev/nvidia0": {"mode": 0o666, "major": 195, "open": "denied"}}
    (found,) = said(case(files=DOCKER, nodes=nodes, process=USER))
    assert (found.id, found.certainty) == ("NODE-CGROUP", "likely")


def test_a_service_on_a_host_is_sent_to_its_unit() -> None:
    nodes = {"/dev/nvidia0": {"mode": 0o666, "major": 195, "open": "EPERM"}}
    (found,) = said(case(files=HOST, nodes=nodes, process=USER))
    assert "DeviceAllow" in "\n".join(found.fix)


@given(
    st.lists(
        st.sampled_from(["c 195:* rwm", "c 195:0 rw", "c 1:3 rwm", "b 195:* rwm", "junk", "a *:* rwm", "c 195:1 rwm"])
    )
)
def test_cgroup_lists_are_a_union(lines: list[str]) -> None:
    gives = cgroup_gives("\n".join(lines), "195:0")
    wide = {"c 195:* rwm", "a *:* rwm"} & set(lines)
    assert gives == ("rwm" if wide else "rw" if "c 195:0 rw" in lines else "")


# -- nodes that are not there --


def test_a_host_without_the_node_has_a_fault() -> None:
    (found,) = said(amd(CARD, HOST, ROOT))
    assert (found.id, found.level, found.device) == ("NODE-MISSING", "error", "0000:03:00.0")
    assert "/dev/dri/renderD128" in found.title
    assert "udev" in "\n".join(found.fix)


def test_in_a_container_it_is_only_not_given() -> None:
    (found,) = said(amd({"/dev/null": {"mode": 0o666, "major": 1, "minor": 3}}, DOCKER, ROOT))
    assert (found.id, found.level) == ("NODE-HIDDEN", "info")
    kinds = [step.partition(":")[0] for step in found.fix]
    assert kinds == ["docker", "cdi", "kubernetes"]
    assert "amd.com/gpu" in "\n".join(found.fix)


def test_the_shared_compute_node_is_missed_too() -> None:
    extra = {**DOCKER, "/sys/class/kfd/kfd/dev": "509:0"}
    (found,) = said(amd({**CARD, **RENDER}, extra, ROOT))
    assert (found.id, "/dev/kfd" in found.title) == ("NODE-HIDDEN", True)
    (found,) = said(amd({**CARD, **RENDER}, {**HOST, "/sys/class/kfd/kfd/dev": "509:0"}, ROOT))
    assert (found.id, "/dev/kfd" in found.title) == ("NODE-MISSING", True)


def test_a_plain_capture_of_sys_says_nothing_about_nodes() -> None:
    files, links = minor("0000:03:00.0", "amdgpu", "renderD128", "226:128")
    report = case(files={**function("0000:03:00.0", "0x1002", "0x744c"), **files}, links=links)
    assert said(report) == []


NVIDIA = {
    "/sys/module/nvidia/version": "550.90.07",
    "/proc/devices": "Character devices:\n195 nvidia\n510 nvidia-uvm\n",
}


def gpus(count: int, nodes: dict[str, Any], extra: dict[str, Any]) -> Report:
    files: dict[str, Any] = {**NVIDIA, **extra}
    links = {}
    for index in range(count):
        files |= function(f"0000:4{index}:00.0", "0x10de", "0x2330", "0x030200")
        links[f"$D(0000:4{index}:00.0)/driver"] = "../../../bus/pci/drivers/nvidia"
    return case(files=files, links=links, nodes=nodes, process=ROOT)


NULL = {"/dev/null": {"mode": 0o666, "major": 1, "minor": 3}}


def test_nodes_that_are_made_at_first_use_are_no_fault_yet() -> None:
    (found,) = said(gpus(2, NULL, HOST))
    assert (found.id, found.level) == ("NODE-MISSING", "info")
    assert "nvidia-modprobe" in found.fix[0]


def test_a_container_without_any_of_eight() -> None:
    (found,) = said(gpus(8, NULL, DOCKER))
    assert (found.id, found.level, found.device) == ("NODE-HIDDEN", "info", None)
    assert "--gpus" in "\n".join(found.fix)


def test_nodes_that_cannot_be_told_apart_leave_every_device_in_doubt() -> None:
    nodes = {f"/dev/nvidia{index}": {"mode": 0o666, "major": 195, "minor": index} for index in range(2)}
    nodes["/dev/nvidia-uvm"] = {"mode": 0o666, "major": 510}
    assert said(gpus(8, nodes, DOCKER)) == []


def test_an_unbound_device_has_no_node_to_miss() -> None:
    files = {**function("0000:00:0b.0", "0x8086", "0x7d1d", "0x120000"), "/sys/module/intel_vpu": None, **HOST}
    assert said(case(files=files, nodes=NULL, process=ROOT)) == []


def test_a_display_only_driver_has_no_render_node_to_miss() -> None:
    files, links = minor("0000:03:00.0", "amdgpu", "card0", "226:0")
    files = {**function("0000:03:00.0", "0x1002", "0x744c"), **files, **HOST}
    assert said(case(files=files, links=links, nodes=CARD, process=ROOT)) == []


# -- processes that hold a device --


def holding(state: str, now: str | None) -> list[Finding]:
    """The rule on a hand-made report: what the scan saw, and what /proc says at the second look."""
    files = {} if now is None else {"/proc/4711/stat": f"4711 (py) S) {now} 1 4711 4711 0 -1 4194560"}
    holder = {"pid": 4711, "command": "py) S", "state": state, "node": "/dev/nvidia0"}
    device = Device("0000:41:00.0", "physical", "x", facts={"holders": Reading([holder], "proc/*/fd")})
    report = Report("case", False, devices=[device])
    root = machine(files=files)
    from accelctl.abi.rooms import Directory

    return list(stuck(RuleContext(root, report, Directory(()), None)))


@pytest.mark.parametrize(
    ("state", "now", "count"),
    [("D", "D", 1), ("Z", "Z", 1), ("D", None, 1), ("D", "S", 0), ("S", "D", 0), ("R", "R", 0)],
)
def test_holders_in_an_uninterruptible_state(state: str, now: str | None, count: int) -> None:
    found = holding(state, now)
    assert len(found) == count
    assert all((one.id, one.level, one.device) == ("HOLDER-DSTATE", "warn", "0000:41:00.0") for one in found)
    assert all("4711" in one.title for one in found)
