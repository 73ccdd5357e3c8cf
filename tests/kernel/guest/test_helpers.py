"""Each helper of `helpers.py` does what it says, on both kernels: later tests are only as good as these."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from .helpers import (
    HANG,
    FuseHang,
    Udevd,
    pci_functions,
    pci_remove,
    pci_rescan,
    set_acl,
    state,
    unprivileged,
    wait_state,
)

VIRTIO_GPU = (0x1AF4, 0x1050)


def open_as(uid: int, path: str, groups: tuple[int, ...] = ()) -> int:
    """Return 0, or the errno with which an unprivileged open for reading and writing fails."""

    def attempt() -> int:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            return error.errno or -1
        return 0

    return unprivileged(uid, uid, groups, attempt)


def test_hanging_read_is_in_d_state_even_when_killed() -> None:
    with FuseHang({"ok": b"42\n", "hang": HANG}) as hang:
        assert hang.path("ok").read_bytes() == b"42\n"
        assert sorted(os.listdir(hang.folder)) == [".warm", "hang", "ok"]
        assert hang.path("hang").stat().st_size == 4096
        reader = hang.reader("hang")
        hang.wait_taken()
        assert wait_state(reader.pid, "D") == "D"
        reader.send_signal(signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(timeout=2)
        assert state(reader.pid) == "D"
    assert reader.wait(timeout=30) == -signal.SIGKILL


def test_hang_ends_with_an_error_when_aborted() -> None:
    with FuseHang() as hang:
        reader = hang.reader()
        hang.wait_taken()
        hang.abort()
        _, said = reader.communicate(timeout=30)
        assert reader.returncode == 1
        assert said
    assert not hang.folder.exists()


def test_hang_over_a_sysfs_attribute() -> None:
    target = Path("/sys/bus/pci/devices") / pci_functions(*VIRTIO_GPU)[0] / "revision"
    before = target.read_bytes()
    with FuseHang() as hang:
        hang.bind_over(target)
        reader = subprocess.Popen(["cat", str(target)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        hang.wait_taken()
        assert wait_state(reader.pid, "D") == "D"
    reader.communicate(timeout=30)
    assert target.read_bytes() == before


def test_unprivileged_is_really_another_user() -> None:
    def who() -> tuple[tuple[int, int, int], list[int], str]:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
        return os.getresuid(), os.getgroups(), line.split()[1]

    ids, groups, capabilities = unprivileged(1234, 1234, (44,), who)
    assert ids == (1234, 1234, 1234)
    assert groups == [44]
    assert int(capabilities, 16) == 0
    with pytest.raises(ZeroDivisionError):
        unprivileged(1234, 1234, (), lambda: 1 // 0)


def test_group_opens_the_node() -> None:
    node = "/dev/dri/card0"
    before = os.stat(node)
    os.chmod(node, 0o660)
    os.chown(node, 0, 4321)
    try:
        assert open_as(1234, node) == errno.EACCES
        assert open_as(1234, node, groups=(4321,)) == 0
    finally:
        os.chown(node, before.st_uid, before.st_gid)
        os.chmod(node, before.st_mode & 0o7777)


def test_acl_opens_the_node_to_one_user() -> None:
    node = Path("/dev/dri/card0")
    before = node.stat().st_mode & 0o7777
    node.chmod(0o600)
    try:
        set_acl(node, "u:1234:rw")
        assert "system.posix_acl_access" in os.listxattr(node)
        assert open_as(1234, str(node)) == 0
        assert open_as(1235, str(node)) == errno.EACCES
    finally:
        os.removexattr(node, "system.posix_acl_access")
        node.chmod(before)


def test_udevd_fills_its_database_and_leaves_none() -> None:
    assert not Path("/run/udev").exists()
    with Udevd() as udevd:
        said = udevd.udevadm("info", "--query=property", "--name=/dev/dri/card0")
        assert "SUBSYSTEM=drm" in said.splitlines()
        assert "DEVNAME=/dev/dri/card0" in said.splitlines()
        number = os.stat("/dev/dri/card0").st_rdev
        assert Path(f"/run/udev/data/c{os.major(number)}:{os.minor(number)}").exists()
    assert not Path("/run/udev").exists()


def test_unplug_and_rescan_bring_the_same_nodes_back() -> None:
    address = pci_functions(*VIRTIO_GPU)[1]
    folder = Path("/sys/bus/pci/devices") / address / "drm"
    before = sorted(entry.name for entry in folder.iterdir())
    node = f"/dev/dri/{next(name for name in before if name.startswith('card'))}"
    assert os.path.exists(node)
    pci_remove(address)
    try:
        assert not os.path.exists(node)
    finally:
        pci_rescan(address)
    assert sorted(entry.name for entry in folder.iterdir()) == before
    assert os.path.exists(node)


def test_user_namespace_can_be_made() -> None:
    """Tests of containers need one; the kernel refuses it to a process in a chroot."""
    done = subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
