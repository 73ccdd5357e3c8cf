"""Expectations: a machine compared with what its type must have, and manifests that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.accept import expect
from accelctl.accept.expect import Comparison, compare
from accelctl.accept.manifest import EXACT, Expectation, Tolerance, fits, load, parse
from accelctl.accept.saveexpect import manifest_of
from accelctl.errors import UsageError
from accelctl.model.device import Device
from accelctl.model.reading import absent
from accelctl.model.report import Report
from accelctl.model.toml import loads
from tests.reports import full_machine, gpu, read, report

HEAD = 'schema = "accelctl.expect/1"\n'
CARD = '[[device]]\nmatch = { vendor_id = "0x1002", device_id = "0x744c" }\n'


def manifest(text: str) -> Expectation:
    return parse((HEAD + text).encode(), "type.toml")


def compared(text: str, made: Report) -> Comparison:
    return compare(manifest(text), made)


def levels(found: Comparison) -> list[tuple[str, str, str | None]]:
    return [(one.id, one.level, one.device) for one in found.findings]


# -- what was saved is met by the machine it was saved from --


@pytest.mark.parametrize("make", [full_machine, lambda: report(gpu(0)), report])
def test_a_saved_manifest_fits_its_own_machine(make: Any) -> None:
    found = compare(parse(manifest_of(make()).encode(), "type.toml"), make())
    assert found.findings == []
    assert found.differences == []


def test_saved_manifest_holds_what_belongs_to_a_type_and_no_identity() -> None:
    text = manifest_of(report(gpu(0), gpu(1)))
    (entry,) = loads(text)["device"]
    assert entry["match"] == {"kind": "physical", "vendor_id": "0x1002", "device_id": "0x744c"}
    assert entry["count"] == 2
    assert entry["addresses"] == ["0000:01:00.0", "0000:02:00.0"]
    assert entry["nodes"] == ["dri/card*", "dri/renderD*"]
    assert entry["facts"] == {
        "driver": "amdgpu",
        "link/max_speed_gts": 16.0,
        "link/max_width": 16,
        "link/narrowest_gbs": 31.51,
        "memory/vram_total_bytes": 25753026560,
        "numa/node": -1,
        "vbios/version": "113-D70201-00",
    }
    assert loads(text)["machine"] == {"iommu/active": True, "numa/online": "0"}
    assert loads(text)["kernel_parameters"] == {"iommu": "pt"}
    assert "a0000000" not in text


def test_equal_devices_that_differ_in_a_fact_become_one_of() -> None:
    made = report(gpu(0), gpu(1))
    made.devices[1].facts["numa/node"] = read(1)
    (entry,) = loads(manifest_of(made))["device"]
    assert entry["facts"]["numa/node"] == [-1, 1]


def test_wildcards_in_saved_texts_are_taken_literally() -> None:
    made = report(gpu(0))
    made.devices[0].facts["vbios/version"] = read('a*b?[c]"\\\n\x00é')
    text = manifest_of(made)
    assert compare(parse(text.encode(), "x"), made).findings == []
    made.devices[0].facts["vbios/version"] = read("aXbY[c]")
    assert compare(parse(text.encode(), "x"), made).findings != []


# -- devices --


def test_a_missing_device_is_an_error_that_names_the_empty_slot() -> None:
    text = CARD + 'count = 2\naddresses = ["0000:01:00.0", "0000:02:00.0"]\n'
    found = compared(text, report(gpu(0)))
    assert levels(found) == [("EXPECT-MISSING-DEVICE", "error", None)]
    (missing,) = found.findings
    assert missing.title == "1 of 2 found: 1002:744c"
    assert any("0000:02:00.0" in one.raw for one in missing.evidence)
    assert "lspci -nn -d 1002:744c" in missing.fix


def test_an_extra_device_is_a_warning() -> None:
    assert levels(compared("", report(gpu(0)))) == [("EXPECT-EXTRA-DEVICE", "warn", "0000:01:00.0")]
    found = compared(CARD + "count = 1\n", report(gpu(0), gpu(1)))
    assert levels(found) == [("EXPECT-EXTRA-DEVICE", "warn", "0000:02:00.0")]


def test_display_and_virtual_devices_are_never_extra() -> None:
    made = report(Device("drm:card9", "virtual", "sys/x"), Device("0000:05:00.0", "display", "sys/y"))
    assert compared("", made).findings == []


@pytest.mark.parametrize(
    ("count", "there", "fine"),
    [
        ("", 0, False),
        ("", 1, True),
        ("count = { min = 1 }", 3, True),
        ("count = { max = 1 }", 2, False),
        ("count = 0", 0, True),
    ],
)
def test_counts(count: str, there: int, fine: bool) -> None:
    found = compared(f"{CARD}{count}\n", report(*(gpu(n) for n in range(there))))
    assert (found.findings == []) is fine


def test_match_by_kind_chip_id_and_wildcards() -> None:
    made = full_machine()
    for text, count in (
        ('kind = "vf"', 2),
        ('chip = "amdgpu"', 4),
        ('id = "0000:0*:00.0", kind = "physical"', 4),
        ('vendor_id = "0x8086"', 1),
        ('vendor_id = "0x10??"', 4),
    ):
        wanted = manifest(f"[[device]]\nmatch = {{ {text} }}\ncount = {count}\n").devices[0]
        assert sum(expect.matches(wanted.match, device) for device in made.devices) == count, text


# -- facts --


def test_facts_that_differ_are_one_error_per_device_with_both_values() -> None:
    text = CARD + 'facts = { driver = "xe", "link/max_width" = 8, "numa/node" = -1 }\n'
    found = compared(text, report(gpu(0)))
    assert levels(found) == [("EXPECT-DIFFERS", "error", "0000:01:00.0")]
    assert found.findings[0].title == "not as expected: driver, link/max_width"
    assert [(one.fact, one.expected, one.found) for one in found.differences] == [
        ("driver", "xe", "amdgpu"),
        ("link/max_width", "8", "16"),
    ]
    assert found.differences[1].source.endswith("max_link_width")


def test_what_could_not_be_read_is_a_warning_not_a_difference() -> None:
    made = report(gpu(0))
    made.devices[0].facts["link/max_width"] = absent("sys/x", "asleep")
    made.devices[0].facts["vbios/version"] = absent("sys/y", "not_offered")
    found = compared(CARD + 'facts = { "link/max_width" = 16, "vbios/version" = "*" }\n', made)
    assert levels(found) == [
        ("EXPECT-DIFFERS", "error", "0000:01:00.0"),
        ("EXPECT-DIFFERS", "warn", "0000:01:00.0"),
    ]
    assert found.findings[1].certainty == "possible"
    assert [one.open for one in found.differences] == [True, False]


def test_a_fact_nobody_knows_differs() -> None:
    found = compared(CARD + 'facts = { "no/such" = 1 }\n', report(gpu(0)))
    assert found.differences[0].found == "no such fact"
    assert levels(found)[0][1] == "error"


def test_nodes() -> None:
    assert compared(CARD + 'nodes = ["dri/renderD*"]\n', report(gpu(0))).findings == []
    found = compared(CARD + 'nodes = ["accel/accel*"]\n', report(gpu(0)))
    assert [(one.fact, one.expected, one.found) for one in found.differences] == [
        ("node", "/dev/accel/accel*", "no such node")
    ]


def test_machine_facts_and_kernel_parameters() -> None:
    text = '[machine]\n"iommu/active" = false\n[kernel_parameters]\niommu = "on"\nquiet = ""\n"pci" = "x*"\n'
    found = compared(text, report())
    assert [(one.fact, one.expected, one.found) for one in found.differences] == [
        ("iommu/active", "false", "true"),
        ("kernel parameter iommu", "on", "pt"),
        ("kernel parameter quiet", "", "not on the command line"),
        ("kernel parameter pci", "x*", "not on the command line"),
    ]
    assert levels(found) == [("EXPECT-DIFFERS", "error", None)]
    assert compared('[kernel_parameters]\nro = ""\niommu = "p?"\n', report()).findings == []


def test_tolerance_of_the_first_pattern_that_fits() -> None:
    for tolerance, total, fine in (
        ('"1%"', 25_700_000_000, True),
        ('"0.1%"', 25_700_000_000, False),
        ("60000000", 25_700_000_000, True),
        ("50000000", 25_700_000_000, False),
    ):
        text = f'[tolerance]\n"memory/*" = {tolerance}\n{CARD}facts = {{ "memory/vram_total_bytes" = {total} }}\n'
        assert (compared(text, report(gpu(0))).findings == []) is fine, tolerance


@pytest.mark.parametrize(
    ("expected", "found", "fine"),
    [
        (16, 16, True), (16, 16.0, True), (16, 8, False), (16, "16", False), (16, None, False),
        (True, True, True), (True, 1, False), (1, True, False), (False, 0, False),
        ("6.*", "6.10.5", True), ("6.*", "5.1", False), ("6.*", 6.1, False), ("x", None, False),
        ([1, 2], 2, True), ([1, 2], 3, False), (["a", "b*"], "bc", True),
        ({"min": 1, "max": 4}, 4, True), ({"min": 1, "max": 4}, 5, False), ({"min": 1}, 0, False),
        ({"min": 1}, "2", False), ({"max": 4}, None, False), ({"min": 0}, True, False),
        ({"equals": [1, 2]}, [1, 2], True), ({"equals": [1, 2]}, [2, 1], False),
        ({"present": True}, 0, True), ({"present": False}, None, True), ({"present": False}, 0, False),
    ],
)  # fmt: skip
def test_fits(expected: Any, found: Any, fine: bool) -> None:
    assert fits(expected, found, EXACT) is fine


def test_tolerance_reaches_beyond_a_range() -> None:
    assert fits({"min": 100}, 99, Tolerance(0.01, 0.0))
    assert not fits({"min": 100}, 98, Tolerance(0.01, 0.0))


# -- manifests that are none --


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "type.toml: "),
        ("schema = 1", "schema is '1'"),
        ('schema = "accelctl.probe/1"', "this version reads 'accelctl.expect/1'"),
        (HEAD + "devices = []", "did you mean 'device'"),
        (HEAD + "device = 1", "[[device]]"),
        (HEAD + "[[device]]\ncount = 1", "[[device]] 1: match must name"),
        (HEAD + "[[device]]\nmatch = { vendor = 'x' }", "unknown key 'vendor'"),
        (HEAD + "[[device]]\nmatch = { kind = 1 }", "match must name texts"),
        (HEAD + CARD + "count = -1", "count must be a number"),
        (HEAD + CARD + "count = true", "count must be a number"),
        (HEAD + CARD + "count = { of = 1 }", "count must be a number"),
        (HEAD + CARD + "nodes = 'dri'", "nodes must be a list of texts"),
        (HEAD + CARD + "facts = { a = {} }", "must be a number, text, flag"),
        (HEAD + CARD + "facts = { a = [] }", "must be a number, text, flag"),
        (HEAD + CARD + "facts = { a = 2020-01-01 }", "must be a number, text, flag"),
        (HEAD + CARD + "facts = { a = { mim = 1 } }", "did you mean 'min'"),
        (HEAD + CARD + "facts = { a = { min = 'x' } }", "min must be a number"),
        (HEAD + CARD + "facts = { a = { min = 2, max = 1 } }", "min is larger than max"),
        (HEAD + "[tolerance]\na = '1'", "must be a share"),
        (HEAD + "[tolerance]\na = '-1%'", "must be a share"),
        (HEAD + "[tolerance]\na = 'nan%'", "must be a share"),
        (HEAD + "machine = 3", "[machine] must be a table"),
    ],
)
def test_a_bad_manifest_says_where_it_is_bad(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text.encode(), "type.toml")
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith("type.toml: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            load(str(path))
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(5 << 20)
    with pytest.raises(UsageError, match="larger than 4 MiB"):
        load(str(big))


def judged(data: bytes) -> None:
    """A manifest or one line, nothing else; a manifest can be compared with."""
    try:
        wanted = parse(data, "fuzz")
    except UsageError as error:
        message = error.message
    else:
        message = ""
        compare(wanted, full_machine())
    assert "\n" not in message
    assert len(message) < 300


@given(st.binary(max_size=200))
def test_random_bytes_never_trace_back(data: bytes) -> None:
    judged(data)
    judged(HEAD.encode() + data)


VALUES = st.recursive(
    st.one_of(
        st.sampled_from(["1", "-1", "1.5", "nan", "inf", "true", '"x*"', '"["', "1979-05-27", "9" * 30, '"1%"', "''"]),
        st.text(alphabet='ab*?["=,{}.', max_size=5).map(lambda text: "'" + text.replace("'", "") + "'"),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ", ".join(items) + "]"),
        st.dictionaries(st.sampled_from(["min", "max", "equals", "present", "kind", "x"]), inner, max_size=3).map(
            lambda table: "{ " + ", ".join(f"{key} = {value}" for key, value in table.items()) + " }"
        ),
    ),
    max_leaves=6,
)
LINES = st.lists(
    st.one_of(
        st.sampled_from(["[machine]", "[tolerance]", "[kernel_parameters]", "[[device]]", "[device.facts]", CARD]),
        st.tuples(
            st.sampled_from(
                ["count", "nodes", "match", "facts", "addresses", '"iommu/active"', '"memory/*"', "iommu", "driver"]
            ),
            VALUES,
        ).map(" = ".join),
    ),
    max_size=8,
).map("\n".join)


@given(LINES)
def test_random_toml_never_traces_back(text: str) -> None:
    judged((HEAD + text).encode())


def test_deeply_nested_toml_is_one_line() -> None:
    judged((HEAD + "a = " + "[" * 5000 + "]" * 5000).encode())
    judged((HEAD + "a." * 5000 + "b = 1").encode())
