"""probe against real kernels: what it finds is what the kernel's own links say, and a hang cannot hold it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import environment

from .helpers import FuseHang, driver_of, needs, pci_functions

CARDS = Path("/sys/class/drm")
#: seccomp stops the child at these calls alone: without it every call is a stop, and the guest takes minutes.
STRACE = ("strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=open,openat,openat2")
VIRTIO_GPU = (0x1AF4, 0x1050)


def accelctl(*args: str, timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accelctl", *args],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )


@lru_cache(maxsize=1)
def report() -> dict[str, Any]:
    done = accelctl("probe", "--json")
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def owner_of(minor: str) -> dict[str, Any]:
    (device,) = [one for one in report()["devices"] if minor in one.get("drm", {})]
    return dict(device)


def minors() -> list[str]:
    return sorted(path.name for path in CARDS.iterdir() if (path / "dev").exists())


def test_every_minor_belongs_to_one_device_with_the_kernels_driver_and_parent() -> None:
    names = minors()
    assert len(names) >= 4
    for name in names:
        device = owner_of(name)
        parent = Path(os.path.realpath(CARDS / name / "device"))
        assert device["drm"][name]["dev"] == (CARDS / name / "dev").read_text().strip()
        hardware = parent.parent if parent.name.startswith("virtio") else parent
        assert device["path"] == str(hardware).lstrip("/")
        drivers = {device.get("driver"), device.get("driver_of_minor")}
        assert driver_of(parent) in drivers
        assert Path("/dev", device["drm"][name]["node"].removeprefix("dev/")).is_char_device()


def test_the_virtual_devices_are_those_the_machine_was_given() -> None:
    ids = {(one["pci"]["vendor_id"], one["pci"]["device_id"]) for one in report()["devices"] if "pci" in one}
    assert {("0x1af4", "0x1050"), ("0x1b36", "0x0100"), ("0x1234", "0x1111")} <= ids
    for one in report()["devices"]:
        assert one["kind"] in ("virtual", "display"), one["id"]
    assert any("vgem" in one["id"] for one in report()["devices"])


@needs("debug")
def test_vkms_is_a_software_device() -> None:
    assert any("vkms" in one["id"] and one["kind"] == "virtual" for one in report()["devices"])


@needs("stock")
def test_kfds_cpu_node_is_no_accelerator() -> None:
    assert Path("/dev/kfd").is_char_device()
    nodes = report()["machine"]["kfd"]["nodes"]
    assert nodes
    assert {node["kind"] for node in nodes.values()} == {"cpu"}
    assert all("node" not in one.get("kfd", {}) for one in report()["devices"])
    assert report()["summary"]["accelerators"] == 0


def test_iommu_groups_are_the_kernels() -> None:
    for one in report()["devices"]:
        link = Path("/", one["path"], "iommu_group")
        if link.is_symlink():
            assert one["iommu"]["group"] == int(os.path.basename(os.readlink(link)))


@needs("stock")
def test_evidence_can_be_read_again() -> None:
    """Stable facts of free files: the raw text in evidence is what stands in the file."""
    document = report()
    checked = 0
    for pointer, entry in document["evidence"].items():
        path = Path("/", entry.get("source") or "")
        if pointer.startswith("/devices/") and entry.get("raw") and path.is_file() and "\n" not in entry["raw"]:
            text = path.read_bytes().replace(b"\0", b"").decode("utf-8", "replace")
            assert entry["raw"] in text, (pointer, entry)
            checked += 1
    assert checked > 40


@needs("stock")
def test_two_runs_are_equal_byte_for_byte() -> None:
    first, second = (accelctl("probe", "--json", "--no-evidence") for _ in range(2))
    assert first.stdout == second.stdout
    assert json.loads(first.stdout)["devices"]


def test_nothing_is_wrong_with_the_guest() -> None:
    loud = [one for one in report()["findings"] if one["level"] in ("warn", "error", "critical")]
    assert loud == []


@needs("stock")
def test_no_device_node_is_opened_and_nothing_outside_the_list() -> None:
    """strace of a whole probe: every file opened below /sys, /proc, /run, /dev is one the list allows."""
    from accelctl.abi.rooms import in_tree
    from accelctl.hal.allowlist import AllowList

    log = Path("/run/strace-probe")
    done = subprocess.run(
        [*STRACE, "-o", str(log), sys.executable, "-m", "accelctl", "probe", "--json"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode in (0, 1), done.stderr
    allow = AllowList()
    for room in in_tree():
        for row in room.table("attr"):
            allow.add(row["path"], row.get("effect", "free"))
        for row in room.table("proc"):
            allow.add(row["path"].replace("{bdf}", "*").replace("{index}", "*"), row.get("effect", "free"))
    opened = set()
    for line in log.read_text(errors="replace").splitlines():
        if '"' in line and "= -1" not in line and "O_DIRECTORY" not in line:
            opened.add(line.split('"')[1])
    kernel_files = {path for path in opened if path.startswith(("/sys/", "/proc/", "/run/", "/dev/"))}
    # The interpreter and its libraries look at these themselves; /dev/null stands in for a child's closed streams.
    ours = {path for path in kernel_files if path not in ("/dev/null", "/dev/urandom")}
    assert ours
    refused = sorted(path for path in ours if allow.effect(path.lstrip("/")) is None)
    assert refused == []
    assert not [path for path in ours if path.startswith("/dev/") and path != "/dev/kmsg"]


def test_a_read_that_never_returns_is_named_and_probe_ends() -> None:
    target = Path("/sys/bus/pci/devices") / pci_functions(*VIRTIO_GPU)[0] / "revision"
    real = os.path.realpath(target)
    with FuseHang() as hang:
        hang.bind_over(target)
        start = time.monotonic()
        done = accelctl("probe", "--json")
        took = time.monotonic() - start
        hang.wait_taken()
        assert done.returncode in (0, 1, 6), done.stderr
        document = json.loads(done.stdout)
        assert took < 90
    (finding,) = [one for one in document["findings"] if one["id"] == "HANG-READ"]
    assert real.lstrip("/") in finding["title"] + json.dumps(finding["evidence"])
    assert {one["id"] for one in document["devices"]} == {one["id"] for one in report()["devices"]}


@needs("stock")
def test_a_pipe_reader_sees_the_end_although_a_child_is_stuck() -> None:
    """The stuck child must not hold the pipe: `accelctl probe | cat` has to end while it hangs."""
    target = Path("/sys/bus/pci/devices") / pci_functions(*VIRTIO_GPU)[0] / "revision"
    with FuseHang() as hang:
        hang.bind_over(target)
        shell = f"{sys.executable} -m accelctl probe --brief 2>&1 | cat"
        done = subprocess.run(["sh", "-c", shell], env=environment(), capture_output=True, timeout=150, check=True)
        assert done.stdout


@needs("stock")
def test_a_capture_replays_the_machine(tmp_path: Path) -> None:
    """What equal nodes share is the same from the machine and from its capture."""
    archive = tmp_path / "guest.tar.xz"
    done = accelctl("capture", str(archive))
    assert done.returncode == 0, done.stderr
    live = json.loads(accelctl("probe", "--json", "--no-evidence").stdout)
    replay = json.loads(accelctl("probe", "--json", "--no-evidence", "--root", str(archive)).stdout)
    assert replay["devices"] == live["devices"]


@needs("stock")
@pytest.mark.parametrize("arguments", [("--device", "driver=nosuch"), ("--root", "/nowhere"), ("--device", "x=y=z")])
def test_bad_arguments_are_one_line(arguments: tuple[str, ...]) -> None:
    done = accelctl("probe", *arguments)
    assert done.returncode in (2, 3)
    assert done.stdout == ""
    assert 0 < len(done.stderr.splitlines()) <= 3
