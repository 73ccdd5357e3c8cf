"""The --device grammar: what it accepts, what it matches, and that nothing that is typed ends in a traceback."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.errors import UsageError
from accelctl.model.device import Device
from accelctl.model.reading import Reading, absent
from accelctl.probes import filters
from accelctl.probes.filters import Filter, parse_filter, parse_filters


def device(identity: str, kind: str = "physical", chip: str | None = None, **facts: object) -> Device:
    made = Device(identity, kind, f"sys/devices/{identity}", chip=chip)
    for key, value in facts.items():
        made.facts[key.replace("__", "/")] = Reading(value, "test")
    return made


AMD = device(
    "0000:03:00.0", chip="amdgpu", driver="amdgpu", vendor="Advanced Micro Devices, Inc. [AMD/ATI]",
    pci__vendor_id="0x1002", pci__device_id="0x744c", pci__class="0x030000",
)  # fmt: skip
AMD.facts["nodes/dri/renderD128/path"] = Reading("/dev/dri/renderD128", "dev/dri/renderD128")
AMD.facts["nodes/dri/card1/path"] = absent("dev/dri/card1", "no_node")
INTEL = device(
    "10000:00:02.0", kind="vf", chip="xe", driver="xe", vendor="Intel Corporation", pci__vendor_id="0x8086",
    pci__device_id="0x0bd5", pci__class="0x038000",
)  # fmt: skip
INTEL.facts["drm/card0/node"] = Reading("dev/dri/card0", "sys/x/uevent")
VIRTIO = device("0000:00:02.0", driver="virtio-pci", driver_of_minor="virtio_gpu", pci__vendor_id="0x1af4")
MALI = device("platform:fd800000.gpu", chip="panthor", driver="panthor")
VGEM = device("faux:vgem", kind="virtual")
TENSTORRENT = device("node:tenstorrent/0")
TENSTORRENT.facts["nodes/tenstorrent/0/path"] = Reading("/dev/tenstorrent/0", "dev/tenstorrent/0")
VE = device("ve:ve0")
SIM = device("sim:0", kind="virtual")
ALL = (AMD, INTEL, VIRTIO, MALI, VGEM, TENSTORRENT, VE, SIM)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:03:00.0", [AMD]),
        ("03:00.0", [AMD]),
        ("pci:0000:03:00.0", [AMD]),
        ("pci:03:00.0", [AMD]),
        (" PCI:0000:03:00.0 ", [AMD]),
        ("10000:00:02.0", [INTEL]),
        ("00:02.0", [VIRTIO]),
        ("renderD128", [AMD]),
        ("/dev/dri/renderD128", [AMD]),
        ("drm:renderD128", [AMD]),
        ("drm:render*", [AMD]),
        ("drm:card0", [INTEL]),
        ("card1", []),  # a node that is not there is not a node
        ("drm:renderD12", []),
        ("vendor=amd", [AMD]),
        ("vendor=AMD", [AMD]),
        ("vendor=ATI", [AMD]),
        ("vendor=micro devices", [AMD]),
        ("vendor=or", []),  # not inside "Corporation"
        ("vendor=intel", [INTEL]),
        ("vendor=0x8086", [INTEL]),
        ("vendor=8086", [INTEL]),
        ("vendor=0x1AF4", [VIRTIO]),
        ("driver=xe", [INTEL]),
        ("driver=virtio_gpu", [VIRTIO]),
        ("driver=virtio-pci", [VIRTIO]),
        ("driver=amd*", [AMD]),
        ("driver=amd", []),
        ("chip=panthor", [MALI]),
        ("device=0x744c", [AMD]),
        ("device=bd5", [INTEL]),
        ("class=0x03", [AMD, INTEL]),
        ("class=0380", [INTEL]),
        ("kind=vf", [INTEL]),
        ("platform:fd800000.gpu", [MALI]),
        ("faux:vgem", [VGEM]),
        ("id=ve:ve0", [VE]),
        ("tenstorrent/0", [TENSTORRENT]),
        ("node:tenstorrent/0", [TENSTORRENT]),
        ("/dev/tenstorrent/0", [TENSTORRENT]),
        ("sim:0", [SIM]),
        ("sim:1", []),
        ("opencl:0", []),
        ("opencl:0:1", []),
        ("torch:cpu", []),
        ("torch:cuda:1", []),
        ("vendor=amd,driver=amdgpu", [AMD]),
        ("vendor=amd,driver=xe", []),
        ("class=03, kind=vf", [INTEL]),
    ],
)
def test_matching(text: str, expected: list[Device]) -> None:
    assert [one for one in ALL if parse_filter(text)(one)] == expected


def test_repeated_options_are_alternatives_and_none_is_everything() -> None:
    some = parse_filters(["vendor=amd", "driver=xe"])
    assert [one for one in ALL if some(one)] == [AMD, INTEL]
    assert some.text == "vendor=amd or driver=xe"
    every = parse_filters(None)
    assert all(every(one) for one in ALL)
    assert every.text == "every device"


def test_devices_of_the_tools_own_back_ends_are_recognised() -> None:
    assert parse_filter("sim:0").virtual == "sim:0"
    assert parse_filter("torch:cuda:1").virtual == "torch:cuda:1"
    assert parse_filter("pci:03:00.0").virtual is None


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ",", "a0,,b0", "colour=red", "=amd", "vendor=", "vendor=[]", "driver=a b", "device=xyz",
        "class=", "kind=gpu", "sim:٣", "pci:", "pci:03:00", "pci:0000:03:00.8", "pci:0000:03:20.0",
        "sim:", "sim:x", "opencl:a", "torch:", "torch:0",
        "usb:1", "drm:", "drm:a b", "amdgpu", "xe", "/dev/", "-", "a b0", "card0\n", "x" * 257, "\0", "pci:٣:00.0",
    ],
)  # fmt: skip
def test_what_is_no_filter_is_one_clear_line(text: str) -> None:
    # "card0\n" is white space around a good filter; everything else must be refused.
    if text == "card0\n":
        assert parse_filter(text).terms[0].value == "card0"
        return
    with pytest.raises(UsageError) as caught:
        parse_filter(text)
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith("--device")


def test_an_unknown_key_names_the_valid_ones() -> None:
    with pytest.raises(UsageError) as caught:
        parse_filter("colour=red")
    for key in filters.KEYS:
        assert key in caught.value.message


def test_a_driver_name_alone_is_told_how_to_write_it() -> None:
    with pytest.raises(UsageError) as caught:
        parse_filter("amdgpu")
    assert caught.value.hint == "driver=amdgpu or vendor=amdgpu"


PIECES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["pci:", "drm:", "vendor=", "driver=", "sim:", "torch:", "kind=", "class=", "0000:03:00.0", "card0",
         ",", "*", "[", "]", "!", "?", "\\", "=", ":", ".", "/dev/", "0x", "\0", "\n", "\ud800", "٣"]
    ),
)  # fmt: skip


def _try(text: str) -> tuple[Filter | None, str]:
    try:
        return parse_filter(text), ""
    except UsageError as error:
        return None, error.message + (error.hint or "")


@settings(max_examples=2500, deadline=None)
@given(st.lists(PIECES, max_size=6).map("".join))
def test_any_text_parses_or_is_refused_in_one_line(text: str) -> None:
    parsed, refusal = _try(text)
    assert "\n" not in refusal
    if parsed is None:
        assert refusal.startswith("--device")
        return
    for one in ALL:
        assert parsed(one) in (True, False)
    assert parse_filter(parsed.text) == parsed  # what was understood is understood again


@given(st.sampled_from(ALL), st.sampled_from([*filters.KEYS, *filters.SCHEMES]), st.text(min_size=1, max_size=8))
def test_matching_never_raises_on_devices_without_facts(one: Device, key: str, value: str) -> None:
    bare = Device(one.id, one.kind, one.path)
    for joint in "=:":
        try:
            parsed = parse_filter(key + joint + value)
        except UsageError:
            continue
        parsed(bare)
