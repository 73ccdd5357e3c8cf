"""The list of what may be opened: no trigger, no way around it, and no chip row that overrules it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.hal.allowlist import BLOCKS, FREE, PRIVILEGED, WAKES, AllowList, fold

CARD = "sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0"

#: Files whose read or write acts on hardware or hands out secrets; each is named in kernel documents or driver sources.
TRIGGERS = [
    "sys/kernel/debug/dri/0/amdgpu_gpu_recover",
    "sys/kernel/debug/dri/0/amdgpu_firmware_info",
    "sys/kernel/debug/dri/0/name",
    "sys/kernel/debug/vendor",
    f"{CARD}/reset",
    f"{CARD}/remove",
    f"{CARD}/rescan",
    f"{CARD}/rom",
    f"{CARD}/resource0",
    f"{CARD}/resource0_wc",
    f"{CARD}/eeprom",
    f"{CARD}/hard_reset",
    f"{CARD}/soft_reset",
    f"{CARD}/mode2_reset",
    f"{CARD}/drm/card0/error",
    "sys/bus/pci/rescan",
    "sys/bus/pci/drivers/amdgpu/unbind",
    "sys/bus/pci/drivers/amdgpu/bind",
    "sys/bus/pci/drivers/amdgpu/new_id",
    "sys/class/devcoredump/devcd1/data",
]


@pytest.mark.parametrize("path", TRIGGERS)
def test_triggers_are_never_opened_even_when_a_room_lists_them(path: str) -> None:
    allow = AllowList()
    assert allow.effect(path) is None
    for glob in (path, path.rpartition("/")[2], "*", "*/*", path.replace("0000:03:00.0", "*")):
        for effect in (FREE, WAKES, BLOCKS, PRIVILEGED):
            allow.add(glob, effect)
    assert allow.effect(path) is None
    assert allow.effect(path + "\n") is None


@pytest.mark.parametrize(
    "path",
    [
        "etc/shadow",
        "root/.ssh/id_rsa",
        "dev/mem",
        "dev/dri/renderD128",
        "proc/kcore",
        "proc/1/mem",
        "proc/1/environ/x",
        "etc/vendor",
        "tmp/device",
        "home/x/name",
        "",
        "sys",
        "run/udev/control",
    ],
)
def test_what_is_not_listed_is_not_opened(path: str) -> None:
    assert AllowList().effect(path) is None


@pytest.mark.parametrize(
    "path",
    [
        "run/udev/data/../../../etc/shadow",
        "sys/module/../../etc/shadow",
        "sys/module/../devices/x/rom",
        "sys/class/../../etc/vendor",
        "../etc/group",
        "sys/..",
        "proc/self/../1/status",
    ],
)
def test_no_way_around_through_the_parent_folder(path: str) -> None:
    allow = AllowList()
    allow.add(path, FREE)
    assert allow.effect(path) is None


@pytest.mark.parametrize(
    ("path", "effect"),
    [
        (f"{CARD}/vendor", FREE),
        (f"{CARD}/uevent", FREE),
        (f"{CARD}/power/runtime_status", FREE),
        (f"{CARD}/d3cold_allowed", FREE),
        (f"{CARD}/current_link_speed", WAKES),
        (f"{CARD}/config", WAKES),
        (f"{CARD}/resource0_resize", WAKES),
        (f"{CARD}/hwmon/hwmon3/name", FREE),
        (f"{CARD}/hwmon/hwmon3/temp12_label", FREE),
        (f"{CARD}/hwmon/hwmon3/temp1_input", WAKES),
        (f"{CARD}/hwmon/hwmon3/power1_cap_max", WAKES),
        ("sys/module/nvidia/version", FREE),
        ("sys/module/amdgpu/parameters/gpu_recovery", FREE),
        ("run/udev/data/c226:128", FREE),
        ("proc/4711/stat", FREE),
        ("proc/self/status", FREE),
        ("etc/group", FREE),
        ("dev/kmsg", FREE),
        ("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", FREE),
    ],
)
def test_listed_files_and_what_they_do(path: str, effect: str) -> None:
    assert AllowList().effect(path) == effect


def test_sensors_are_known_only_below_hwmon() -> None:
    assert AllowList().effect(f"{CARD}/temp1_input") is None


def test_links_of_a_module_do_not_open_its_devices() -> None:
    """sys/module/M/drivers/pci:M/BDF leads on to the device, whose files keep their own effects."""
    allow = AllowList()
    base = "sys/module/amdgpu/drivers/pci:amdgpu/0000:03:00.0"
    assert allow.effect(f"{base}/pcie_bw") is None
    assert allow.effect(f"{base}/gpu_metrics") is None
    assert allow.effect(f"{base}/current_link_speed") == WAKES
    allow.add("pcie_bw", BLOCKS)
    assert allow.effect(f"{base}/pcie_bw") == BLOCKS


def test_globs_of_rooms_stay_within_folder_borders() -> None:
    allow = AllowList()
    allow.add("tile*/gt*/freq0/act_freq", WAKES)
    allow.add("tt_*", FREE)
    allow.add("sensor_[0-9]", FREE)
    allow.add("left_[!0-9]", FREE)
    allow.add("one?", FREE)
    assert allow.effect(f"{CARD}/tile0/gt1/freq0/act_freq") == WAKES
    assert allow.effect(f"{CARD}/tile0/x/gt1/freq0/act_freq") is None
    assert allow.effect(f"{CARD}/xtile0/gt1/freq0/act_freq") is None
    assert allow.effect(f"{CARD}/tt_aiclk") == FREE
    assert allow.effect(f"{CARD}/tt_aiclk/below") is None
    assert allow.effect(f"{CARD}/not_tt_aiclk") is None
    assert [allow.effect(f"{CARD}/sensor_{name}") for name in ("1", "a", "12")] == [FREE, None, None]
    assert [allow.effect(f"{CARD}/left_{name}") for name in ("1", "a", "/")] == [None, FREE, None]
    assert [allow.effect(f"{CARD}/one{name}") for name in ("1", "", "/")] == [FREE, None, None]


def test_globs_outside_sysfs_name_the_whole_path() -> None:
    allow = AllowList()
    allow.add("shadow", FREE)
    allow.add("proc/driver/nvidia/gpus/*/information", FREE)
    allow.add("usr/local/Ascend/driver/version.info", FREE)
    assert allow.effect("etc/shadow") is None
    assert allow.effect("proc/driver/nvidia/gpus/0000:03:00.0/information") == FREE
    assert allow.effect("proc/driver/nvidia/gpus/a/b/information") is None
    assert allow.effect("usr/local/Ascend/driver/version.info") == FREE
    assert allow.effect("home/x/usr/local/Ascend/driver/version.info") is None


def test_effects_are_checked() -> None:
    with pytest.raises(ValueError, match="unknown effect"):
        AllowList().add("x", "harmless")


def test_special_characters_in_globs_are_no_regular_expressions() -> None:
    allow = AllowList()
    for glob in ("a.b", "(x", "a+", "[", "]", "^$", "a|etc/shadow", "\\"):
        allow.add(glob, FREE)
    assert allow.effect("sys/x/a.b") == FREE
    assert allow.effect("sys/x/aXb") is None
    assert allow.effect("sys/x/(x") == FREE
    assert allow.effect("etc/shadow") is None


def test_folding() -> None:
    assert fold("temp12_input") == fold("temp3_input") == "temp#_input"


@given(st.text(max_size=60))
def test_any_text_has_an_answer(path: str) -> None:
    assert AllowList().effect(path) in (FREE, WAKES, BLOCKS, PRIVILEGED, None)
