"""The rig itself: these kernels have what later tests rely on, so that a missing thing is told here and by name."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from .helpers import driver_of, needs, pci_functions

VIRTIO_GPU, QXL, BOCHS = (0x1AF4, 0x1050), (0x1B36, 0x0100), (0x1234, 0x1111)

DRM = Path("/sys/class/drm")


def cards_of(device: Path) -> list[str]:
    """Return the DRM card minors that hang on a device."""
    folder = device / "drm"
    return sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("card")) if folder.exists() else []


def test_kernel_is_6_12() -> None:
    assert os.uname().release.startswith("6.12.")


@needs("stock")
def test_stock_kernel_is_debians() -> None:
    assert "Debian" in os.uname().version


@needs("debug")
def test_debug_kernel_is_ours() -> None:
    assert os.uname().release.endswith("-accelctl")


def test_root_is_process_ones_root() -> None:
    """udevadm and user namespaces refuse to work in a chroot."""
    assert os.stat("/proc/1/root").st_ino == os.stat("/").st_ino
    assert os.stat("/proc/1/root").st_dev == os.stat("/").st_dev


def test_runs_as_root_on_the_checkout() -> None:
    assert os.getuid() == 0
    assert Path(__file__).is_relative_to(Path.cwd())


def test_host_devices_and_daemons_are_hidden() -> None:
    assert not Path("/run/udev").exists()
    assert not Path("/dev/vda").exists()
    assert not Path("/dev/sda").exists()


@pytest.mark.parametrize(
    ("ids", "count", "driver"), [(VIRTIO_GPU, 2, "virtio-pci"), (QXL, 1, "qxl"), (BOCHS, 2, "bochs-drm")]
)
def test_pci_driver_and_card(ids: tuple[int, int], count: int, driver: str) -> None:
    found = pci_functions(*ids)
    assert len(found) == count
    for address in found:
        device = Path("/sys/bus/pci/devices") / address
        assert driver_of(device) == driver
        assert len(cards_of(device)) == 1, "the card hangs on the PCI function itself"


def test_virtio_gpu_has_two_levels() -> None:
    """The PCI function belongs to virtio-pci; what drives the GPU is bound to the virtio device below it."""
    for address in pci_functions(*VIRTIO_GPU):
        below = list((Path("/sys/bus/pci/devices") / address).glob("virtio[0-9]*"))
        assert [driver_of(device) for device in below] == ["virtio_gpu"]


@pytest.mark.parametrize("name", ["vgem", pytest.param("vkms", marks=needs("debug"))])
def test_virtual_drm_hangs_on_a_platform_device(name: str) -> None:
    device = Path("/sys/devices/platform") / name
    assert len(cards_of(device)) == 1
    assert (DRM / cards_of(device)[0]).resolve().is_relative_to(device)


def test_every_card_has_its_node() -> None:
    cards = [entry.name for entry in DRM.iterdir() if entry.name.startswith("card") and "-" not in entry.name]
    assert len(cards) >= 6
    for card in cards:
        major, minor = (DRM / card / "dev").read_text(encoding="ascii").strip().split(":")
        node = os.stat(f"/dev/dri/{card}").st_rdev
        assert (os.major(node), os.minor(node)) == (int(major), int(minor))


@needs("stock")
def test_kfd_has_a_cpu_node_and_no_gpu() -> None:
    assert os.stat("/dev/kfd").st_rdev != 0
    nodes = list(Path("/sys/class/kfd/kfd/topology/nodes").iterdir())
    assert len(nodes) == 1
    assert (nodes[0] / "gpu_id").read_text(encoding="ascii").strip() == "0"
    rows = (line.split() for line in (nodes[0] / "properties").read_text(encoding="ascii").splitlines())
    properties = {name: int(value) for name, value in rows}
    assert properties["cpu_cores_count"] == 2
    assert properties["simd_count"] == 0


@pytest.mark.parametrize("node", ["/dev/udmabuf", "/dev/dma_heap/system", "/dev/vfio/vfio", "/dev/fuse", "/dev/cuse"])
def test_node_is_here(node: str) -> None:
    assert os.stat(node).st_rdev != 0


@needs("debug")
def test_iommufd_is_here() -> None:
    assert os.stat("/dev/iommu").st_rdev != 0


def test_display_functions_have_iommu_groups() -> None:
    for address in [*pci_functions(*QXL), *pci_functions(*BOCHS), *pci_functions(*VIRTIO_GPU)]:
        assert (Path("/sys/bus/pci/devices") / address / "iommu_group").is_symlink()


def test_debugfs_is_mounted() -> None:
    assert (Path("/sys/kernel/debug/dri")).is_dir()


@needs("debug")
def test_fail_nth_fails_the_nth_allocation() -> None:
    """Documentation/fault-injection/fault-injection.rst: N counts down in this task; 0 read back means it struck."""
    Path("/sys/kernel/debug/failslab/ignore-gfp-wait").write_text("N", encoding="ascii")
    fd = os.open(f"/proc/self/task/{threading.get_native_id()}/fail-nth", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.write(fd, b"1")
        with pytest.raises(OSError, match=r"Cannot allocate memory|Too many open files"):
            os.close(os.memfd_create("fail"))
        assert os.pread(fd, 20, 0).strip() == b"0"
    finally:
        os.write(fd, b"0")
        os.close(fd)


@needs("debug")
@pytest.mark.parametrize("name", ["failslab", "fail_page_alloc", "fail_usercopy", "fail_function"])
def test_fault_kind_is_here(name: str) -> None:
    assert (Path("/sys/kernel/debug") / name / "probability").exists()


@needs("debug")
def test_kmemleak_scans() -> None:
    """Documentation/dev-tools/kmemleak.rst; a kernel booted without it answers the write with EPERM."""
    file = Path("/sys/kernel/debug/kmemleak")
    file.write_text("scan", encoding="ascii")
    assert isinstance(file.read_text(encoding="ascii"), str)


@needs("stock")
def test_stock_kernel_has_no_fault_injection() -> None:
    """So a test that needs it must say so with `needs("debug")` rather than pass here by doing nothing."""
    assert not Path("/proc/self/fail-nth").exists()
    assert not Path("/sys/kernel/debug/kmemleak").exists()
