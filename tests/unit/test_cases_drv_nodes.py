"""Cases DRV-05 to DRV-07, each as its whole kind: the published one, its neighbours, and what must not be said."""

from collections.abc import Mapping
from typing import Any

import pytest

from accelctl.model.finding import Finding
from accelctl.model.report import Report
from tests.cases import advice, case, findings, words

SUBJECTS = ("NODE-", "LIB-", "ASCEND-", "CPU-")


def said(report: Report, level: str = "info") -> list[Finding]:
    """Findings of these subjects at this level or worse."""
    return [one for one in findings(report, at_least=level) if one.id.startswith(SUBJECTS)]


def only(report: Report) -> Finding:
    """The single finding that is a warning or worse."""
    found = said(report, "warn")
    assert len(found) == 1, [(one.id, one.title) for one in found]
    return found[0]


# -- DRV-05: group number has no name inside the container --


GROUPS = {"/etc/group": "root:x:0:\nvideo:x:44:\nrender:x:105:\n"}


def kfd(gid: int, answer: str | None = "EACCES", mode: int = 0o660) -> dict[str, dict[str, Any]]:
    return {
        "/dev/kfd": {"mode": mode, "gid": gid, "major": 509, "open": answer},
        "/dev/dri/renderD128": {"mode": mode, "gid": gid, "major": 226, "minor": 128},
    }


USER = {"uid": 1000, "gid": 1000, "groups": [1000, 44]}


def denied(nodes: Mapping[str, Any], process: Mapping[str, Any] = USER, **files: str) -> Report:
    return case(files={**GROUPS, **{f"/{name}": text for name, text in files.items()}}, nodes=nodes, process=process)


def test_drv_05_a_number_without_a_name() -> None:
    found = only(denied(kfd(109)))
    assert (found.id, found.level) == ("NODE-PERMISSION", "error")
    assert "109" in found.title
    assert "/dev/kfd" in found.title
    assert "--group-add 109" in "\n".join(found.fix)
    assert "usermod" in "\n".join(found.fix)
    for wrong in ("video", "resources", "nogroup"):
        assert wrong not in advice(found)


def test_drv_05_a_group_with_a_name_on_a_host() -> None:
    found = only(case(files={**GROUPS, "/proc/self/cgroup": "0::/user.slice"}, nodes=kfd(105), process=USER))
    assert "usermod -aG render" in "\n".join(found.fix)
    assert "video" not in advice(found)


def test_drv_05_video_is_said_where_it_is_video() -> None:
    found = only(denied(kfd(44), {"uid": 1000, "gid": 1000, "groups": [1000]}))
    assert "video" in words(found)


def test_drv_05_root_only_nodes_have_no_group_to_join() -> None:
    found = only(denied(kfd(0, mode=0o600)))
    assert "usermod" not in "\n".join(found.fix)
    assert "--group-add" not in "\n".join(found.fix)


@pytest.mark.parametrize(
    ("gid", "mode", "process"),
    [
        (109, 0o666, USER),
        (44, 0o660, USER),
        (109, 0o660, {"uid": 0, "gid": 0, "capabilities": 0x1FFFFFFFFFF}),
        (109, 0o660, {"uid": 1000, "gid": 109}),
    ],
)
def test_drv_05_who_may_open_hears_nothing(gid: int, mode: int, process: Mapping[str, Any]) -> None:
    assert said(denied(kfd(gid, None, mode), process), "info") == []


# -- DRV-06: mode bits allow, the device cgroup denies --


def opened(rules: str | None, answer: str | None, mode: int = 0o666, **more: Any) -> Report:
    files: dict[str, Any] = {"/.dockerenv": ""}
    if rules is not None:
        files["/sys/fs/cgroup/devices/devices.list"] = rules
    nodes = {"/dev/nvidia0": {"mode": mode, "major": 195, "open": answer}}
    return case(files=files, nodes=nodes, process=more.get("process", {"uid": 0, "gid": 0}))


@pytest.mark.parametrize("rules", ["c 195:* m", "c 136:* rwm\nc 195:* m", "c 195:0 r", "b 195:* rwm", ""])
def test_drv_06_version_1_says_so(rules: str) -> None:
    found = only(opened(rules, "EPERM"))
    assert (found.id, found.level, found.certainty) == ("NODE-CGROUP", "error", "certain")
    assert "cgroup" in found.title
    steps = "\n".join(found.fix)
    assert "/dev/char" in steps
    assert "recreate the container" in steps
    assert "CDI" in steps
    for wrong in ("driver broken", "unknown error", "reinstall"):
        assert wrong not in words(found)


def test_drv_06_version_2_is_likely() -> None:
    found = only(opened(None, "EPERM"))
    assert (found.id, found.level, found.certainty) == ("NODE-CGROUP", "error", "likely")


@pytest.mark.parametrize("rules", ["a *:* rwm", "c 195:* rw", "c 195:0 rwm", "c 195:* r\nc 195:* w", "c *:* rwm", None])
def test_drv_06_an_open_list_is_quiet(rules: str | None) -> None:
    assert said(opened(rules, None), "info") == []


def test_drv_06_eacces_with_permissive_bits_is_not_the_cgroup() -> None:
    assert only(opened(None, "EACCES")).id == "NODE-LSM"


def test_drv_06_eacces_with_closed_bits_is_the_mode() -> None:
    assert only(opened(None, "EACCES", 0o600, process=USER)).id == "NODE-PERMISSION"


# -- DRV-07: other vendors --


def given(*names: str) -> dict[str, dict[str, Any]]:
    return {f"/dev/{name}": {"mode": 0o666, "major": 236, "open": None} for name in names}


ASCEND = given("davinci7", "davinci_manager", "devmm_svm", "hisi_hdc")


def test_drv_07_a_code_without_a_cause() -> None:
    found = only(case(nodes=ASCEND, dmesg=["dcmi module initialize failed. ret is -8005"]))
    assert (found.id, found.level, found.certainty) == ("ASCEND-DCMI", "error", "possible")
    assert "-8005" in found.title
    held, lacks = found.title.find("held by another container"), found.title.find("lacks a privilege")
    assert 0 < held < lacks
    for wrong in ("driver is missing", "not installed", "install the driver"):
        assert wrong not in words(found)


def test_drv_07_a_missing_node_comes_first() -> None:
    report = case(nodes=given("davinci7", "davinci_manager"), dmesg=["dcmi module initialize failed. ret is -8005"])
    found = only(report)
    assert [one.source for one in found.evidence if one.raw == "absent"] == ["dev/devmm_svm", "dev/hisi_hdc"]
    assert "nodes" in found.fix[0]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("dcmi model initialized failed, because the device is used. ret is -8020", "held by another"),
        ("dcmi module initialize failed. ret is -8008", "was not given to the container"),
        ("dcmi module initialize failed. ret is -8999", "without a public meaning"),
    ],
)
def test_drv_07_other_codes(line: str, word: str) -> None:
    found = only(case(nodes=ASCEND, dmesg=[line]))
    assert word in found.title
    assert found.certainty == "possible"


@pytest.mark.parametrize(
    "prefix", ["", "ValueError: (InvalidArgument) Fail to open library: /x/libpaddle-custom-mlu.so with error: "]
)
def test_drv_07_a_library_without_its_neighbour(prefix: str) -> None:
    line = f"{prefix}libmluops.so.1: cannot open shared object file: No such file or directory"
    found = only(case(nodes=given("cambricon_dev0"), dmesg=[line]))
    assert (found.id, found.level) == ("LIB-MISSING", "error")
    assert "libmluops.so.1" in found.title
    assert "Neuware" in "\n".join(found.fix)
    for wrong in ("driver", "device"):
        assert wrong not in advice(found)


def test_drv_07_a_library_beside_the_loaders_path() -> None:
    files = {"/usr/local/neuware/lib64/libmluops.so.1": b"x"}
    line = "libmluops.so.1: cannot open shared object file: No such file or directory"
    found = only(case(files=files, nodes=given("cambricon_dev0"), dmesg=[line]))
    assert "LD_LIBRARY_PATH=/usr/local/neuware/lib64" in found.fix[0]


def test_drv_07_a_strangers_library_is_not_ours() -> None:
    line = "libpq.so.5: cannot open shared object file: No such file or directory"
    assert said(case(nodes=given("cambricon_dev0"), dmesg=[line]), "info") == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("XPU device is not set properly. CPU device will be used", "XPU"),
        (
            "You are using GPU version, but your CUDA device is not set properly. CPU device will be used by default.",
            "CUDA",
        ),
    ],
)
def test_drv_07_the_backend_that_ran_was_the_cpu(line: str, kind: str) -> None:
    found = only(case(nodes=given("xpu0"), dmesg=[line]))
    assert (found.id, found.level) == ("CPU-FALLBACK", "error")
    assert f"did not run on the {kind}" in found.title
    assert "cpu" in found.title.lower()
