"""Joining: minors to functions, KFD nodes to GPUs, links to a matrix, masks to an order."""

from __future__ import annotations

import pytest

from accelctl.hal.manifest import Manifest
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import MemoryTree, NodeStat
from accelctl.model.device import Device
from accelctl.model.reading import computed
from accelctl.probes import container, topology
from accelctl.probes.context import Scan
from accelctl.probes.kfd import address_of
from accelctl.probes.machine import words_of
from accelctl.probes.ordinals import apply_mask, default_order
from accelctl.probes.scan import look
from accelctl.probes.upstream import bandwidth_gbs


def function(tree: MemoryTree, path: str, vendor: str, device: str, class_: str, driver: str | None = None) -> None:
    base = f"sys/devices/{path}"
    address = path.rpartition("/")[2]
    for name, text in {"vendor": vendor, "device": device, "class": class_, "uevent": ""}.items():
        tree.add_file(f"{base}/{name}", text.encode() + b"\n")
    if driver:
        tree.add_link(f"{base}/driver", f"../../../bus/pci/drivers/{driver}")
    tree.add_link(f"sys/bus/pci/devices/{address}", f"../../../devices/{path}")


def minor(tree: MemoryTree, parent: str, name: str, number: str, device: str = "../../../") -> None:
    path = f"sys/devices/{parent}/drm/{name}"
    tree.add_file(f"{path}/dev", number.encode() + b"\n")
    tree.add_file(f"{path}/uevent", f"MAJOR={number.split(':', maxsplit=1)[0]}\nDEVNAME=dri/{name}\n".encode())
    tree.add_link(f"{path}/device", "../..")
    tree.add_link(f"sys/class/drm/{name}", f"../../devices/{parent}/drm/{name}")


def test_virtio_has_two_levels_and_keeps_both_drivers() -> None:
    tree = MemoryTree("guest")
    function(tree, "pci0000:00/0000:00:02.0", "0x1af4", "0x1050", "0x038000", "virtio-pci")
    tree.add_link("sys/devices/pci0000:00/0000:00:02.0/virtio0/driver", "../../../../bus/virtio/drivers/virtio_gpu")
    minor(tree, "pci0000:00/0000:00:02.0/virtio0", "card0", "226:0")
    minor(tree, "pci0000:00/0000:00:02.0/virtio0", "renderD128", "226:128")
    scan = look(SysRoot(tree))
    device = scan.devices["0000:00:02.0"]
    assert len(scan.devices) == 1
    assert (device.value("driver"), device.value("driver_of_minor")) == ("virtio-pci", "virtio_gpu")
    assert device.value("drm/card0/minor") == 0
    assert device.value("drm/renderD128/node") == "dev/dri/renderD128"
    assert device.kind == "virtual"


def test_software_devices_have_no_bus_parent() -> None:
    tree = MemoryTree("guest")
    tree.add_link("sys/devices/platform/vgem/subsystem", "../../../bus/platform")
    minor(tree, "platform/vgem", "card7", "226:7")
    scan = look(SysRoot(tree))
    (device,) = scan.devices.values()
    assert device.kind == "virtual"
    assert "vgem" in device.id


def test_more_than_ten_cards_are_all_found() -> None:
    tree = MemoryTree("big")
    for index in range(17):
        path = f"pci0000:{index:02x}/0000:{index:02x}:00.0"
        function(tree, path, "0x1002", "0x74a1", "0x120000", "amdgpu")
        minor(tree, path, f"card{index}", f"226:{index}")
    scan = look(SysRoot(tree))
    assert len(scan.devices) == 17
    assert scan.devices["0000:10:00.0"].value("drm/card16/minor") == 16


def test_functions_at_odd_classes_need_an_exact_row() -> None:
    tree = MemoryTree("odd")
    function(tree, "pci0000:00/0000:01:00.0", "0x1ac1", "0x089a", "0x00ff00")  # Coral: class ff, named by its room
    function(tree, "pci0000:00/0000:02:00.0", "0x8086", "0x1572", "0x020000")  # an Intel network card is none
    function(tree, "pci0000:00/0000:03:00.0", "0x10de", "0x228b", "0x040300")  # the audio function of a GPU is none
    assert list(look(SysRoot(tree)).devices) == ["0000:01:00.0"]


def test_wide_pci_domains_are_addresses_too() -> None:
    tree = MemoryTree("vmd")
    function(tree, "pci10000:00/10000:01:00.0", "0x10de", "0x2330", "0x030200", "nvidia")
    assert list(look(SysRoot(tree)).devices) == ["10000:01:00.0"]


@pytest.mark.parametrize(
    ("location", "domain", "address"),
    [
        (17152, 0, "0000:43:00.0"),
        (25600, 0, "0000:64:00.0"),
        (0x0301, 2, "0002:03:00.1"),
        (0xFF_FF, 0, "0000:ff:1f.7"),
        (1 << 20, 0, None),
    ],
)
def test_kfd_location_is_bus_device_function(location: int, domain: int, address: str | None) -> None:
    properties = {"location_id": computed(location, "t"), "domain": computed(domain, "t")}
    assert address_of(properties) == address


def test_a_partition_hangs_below_its_gpu() -> None:
    tree = MemoryTree("mi300")
    function(tree, "pci0000:00/0000:01:00.0", "0x1002", "0x74a1", "0x120000", "amdgpu")
    minor(tree, "pci0000:00/0000:01:00.0", "renderD128", "226:128")
    tree.add_link("sys/devices/platform/amdgpu_xcp_0/subsystem", "../../../bus/platform")
    minor(tree, "platform/amdgpu_xcp_0", "renderD129", "226:129")
    for node, minor_number in ((0, None), (1, 128), (2, 129)):
        lines = (
            "simd_count 0\n"
            if minor_number is None
            else f"simd_count 304\nlocation_id 256\ndomain 0\ndrm_render_minor {minor_number}\n"
        )
        tree.add_file(f"sys/devices/virtual/kfd/kfd/topology/nodes/{node}/properties", lines.encode())
    tree.add_link("sys/class/kfd/kfd", "../../devices/virtual/kfd/kfd")
    scan = look(SysRoot(tree))
    assert scan.machine["kfd/nodes/0/kind"].value == "cpu"
    whole, part = scan.devices["0000:01:00.0"], scan.devices["platform:amdgpu_xcp_0"]
    assert (part.kind, part.parent, part.chip) == ("partition", "0000:01:00.0", "amdgpu")
    assert (whole.value("kfd/node"), part.value("kfd/node")) == (1, 2)


def test_the_matrix_uses_the_words_of_the_field() -> None:
    """Root port 00:01.0 with a switch of two GPUs, a GPU right below root port 00:02.0, one below another host bridge,
    one far away.
    """
    paths = {
        "0000:03:00.0": "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
        "0000:04:00.0": "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0",
        "0000:05:00.0": "pci0000:00/0000:00:02.0/0000:05:00.0",
        "0000:41:00.0": "pci0000:40/0000:40:01.0/0000:41:00.0",
        "0000:81:00.0": "pci0000:80/0000:80:01.0/0000:81:00.0",
    }
    scan = Scan(SysRoot(MemoryTree("t")), look(SysRoot(MemoryTree("t")), ()).rooms)
    for identity, path in paths.items():
        node = 1 if identity == "0000:81:00.0" else 0
        scan.add(Device(identity, "physical", f"sys/devices/{path}", facts={"numa/node": computed(node, "t")}))
    topology.describe(scan)
    matrix = scan.machine["topology"].value
    assert matrix["rows"][0] == ["X", "PIX", "PHB", "NODE", "SYS"]
    assert all(matrix["rows"][i][j] == matrix["rows"][j][i] for i in range(5) for j in range(5))


def test_unknown_numa_is_a_question_mark_not_a_guess() -> None:
    scan = Scan(SysRoot(MemoryTree("t")), look(SysRoot(MemoryTree("t")), ()).rooms)
    for identity, path in {"a": "pci0000:00/a", "b": "pci0000:40/b"}.items():
        scan.add(Device(identity, "physical", f"sys/devices/{path}", facts={"numa/node": computed(-1, "t")}))
    topology.describe(scan)
    assert scan.machine["topology"].value["rows"] == [["X", "?"], ["?", "X"]]


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        ("0,2", ["a", "c"]),
        ("2,0", ["c", "a"]),
        ("", []),
        ("-1", []),
        ("1,9,0", ["b"]),
        ("0,0", ["a"]),
        ("c", ["c"]),
        (" 1 , 2 ", ["b", "c"]),
        ("all", ["a", "b", "c"]),
        ("1-2", ["b", "c"]),
    ],
)
def test_masks_renumber_and_a_bad_entry_ends_the_list(mask: str, left: list[str]) -> None:
    assert apply_mask(["a", "b", "c"], mask, ["a", "b", "c"]) == left


def test_two_masks_apply_one_after_the_other() -> None:
    order = ["a", "b", "c", "d"]
    assert apply_mask(apply_mask(order, "3,1", order), "1", order) == ["b"]


def test_rocm_counts_kfd_nodes_not_addresses() -> None:
    devices = [
        Device(name, "physical", "", facts={"kfd/node": computed(node, "t")})
        for name, node in (("0000:03:00.0", 5), ("0000:63:00.0", 2))
    ]
    assert default_order(devices)[0] == ["0000:63:00.0", "0000:03:00.0"]


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        ({"proc/1/cgroup": "0::/system.slice/docker-abc.scope"}, {}, "docker"),
        ({"proc/1/cgroup": "0::/init.scope", "proc/self/cgroup": "0::/user.slice"}, {}, "none"),
        ({"proc/self/cgroup": "0::/kubepods/burstable/x"}, {}, "kubernetes"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({".dockerenv": "", "proc/self/cgroup": "0::/"}, {}, "docker"),
        ({"proc/self/cgroup": "0::/"}, {"container": "lxc"}, "lxc"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {}, None),
    ],
)
def test_containers_are_told_by_their_marks(files: dict[str, str], environ: dict[str, str], kind: str | None) -> None:
    tree = MemoryTree("t")
    for path, text in files.items():
        tree.add_file(path, text.encode())
    scan = Scan(SysRoot(tree, manifest=Manifest(environ=environ)), look(SysRoot(MemoryTree("t")), ()).rooms)
    container.describe(scan)
    assert scan.machine["container/kind"].value == kind


def test_command_line_quotes_keep_words_together() -> None:
    assert words_of('quiet dyndbg="file a.c +p" pci=nommconf') == ["quiet", "dyndbg=file a.c +p", "pci=nommconf"]


@pytest.mark.parametrize(
    ("speed", "width", "rate"),
    [
        (16.0, 16, 31.51),
        (16.0, 8, 15.75),
        (8.0, 16, 15.75),
        (2.5, 1, 0.25),
        (5.0, 4, 2.0),
        (32.0, 16, 63.02),
        (64.0, 16, 121.0),
    ],
)
def test_bandwidth_after_encoding(speed: float, width: int, rate: float) -> None:
    assert bandwidth_gbs(speed, width) == pytest.approx(rate, abs=0.006)


@pytest.mark.parametrize(("speed", "width"), [(None, 16), (16.0, 0), (16.0, None), (0.0, 8), (99.0, 8)])
def test_an_unknown_link_has_no_bandwidth(speed: float | None, width: int | None) -> None:
    assert bandwidth_gbs(speed, width) is None


def test_a_node_without_any_bus_is_still_a_device() -> None:
    """In a container /sys may be empty of it: three of seven Ascend reports look like this."""
    tree = MemoryTree("container")
    tree.add_node("dev/davinci7", NodeStat("c", 0o660, 0, 0, 236, 7))
    tree.add_node("dev/davinci_manager", NodeStat("c", 0o660, 0, 0, 237, 0))
    scan = look(SysRoot(tree))
    assert [(one.id, one.chip) for one in scan.devices.values()] == [("node:davinci7", "ascend")]
    assert scan.machine["nodes/davinci_manager/chip"].value == "ascend"


@pytest.mark.parametrize("numbers", [(0, 1), (7, 3)])
def test_sensor_folders_go_by_their_name_not_by_their_number(numbers: tuple[int, int]) -> None:
    """hwmon numbers follow the order of loading: equal machines must give equal keys."""
    tree = MemoryTree("t")
    function(tree, "pci0000:00/0000:05:00.0", "0x8086", "0xe20b", "0x030000", "xe")
    for number, name in zip(sorted(numbers), ("xe", "xe"), strict=True):
        folder = f"sys/devices/pci0000:00/0000:05:00.0/hwmon/hwmon{number}"
        tree.add_file(f"{folder}/name", name.encode())
        tree.add_file(f"{folder}/temp1_input", b"41000")
    device = look(SysRoot(tree)).devices["0000:05:00.0"]
    assert {key for key in device.facts if key.endswith("_celsius")} == {
        "sensors/xe/temp1/input_celsius",
        "sensors/xe_2/temp1/input_celsius",
    }
    assert device.facts["sensors/xe/temp1/input_celsius"].source.endswith(f"hwmon{min(numbers)}/temp1_input")


def test_a_link_inside_an_intel_card_is_not_the_narrowest() -> None:
    tree = MemoryTree("arc")
    root, switch, port = "pci0000:00/0000:00:01.0", "0000:01:00.0", "0000:02:01.0"
    widths = {root: ("16.0 GT/s PCIe", 8), f"{root}/{switch}": ("16.0 GT/s PCIe", 8)}
    widths |= {f"{root}/{switch}/{port}": ("2.5 GT/s PCIe", 1), f"{root}/{switch}/{port}/0000:03:00.0": ("2.5 GT/s", 1)}
    for path, (speed, width) in widths.items():
        class_ = "0x030000" if path.endswith("03:00.0") else "0x060400"
        function(tree, path, "0x8086", "0x56a5", class_)
        tree.add_file(f"sys/devices/{path}/max_link_speed", speed.encode())
        tree.add_file(f"sys/devices/{path}/max_link_width", str(width).encode())
    device = look(SysRoot(tree)).devices["0000:03:00.0"]
    assert device.value("link/narrowest") == "0000:00:01.0"
    assert device.value("link/narrowest_gbs") == 15.75
