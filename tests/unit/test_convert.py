"""From text to value: what kernels write, and what nobody should take for a value."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.model.convert import CONVERTERS

#: Real lines of kernel files, or forms their documents allow.
GOOD: list[tuple[str, str, Any]] = [
    ("text", "VBIOS 113-D41203XT-X02", "VBIOS 113-D41203XT-X02"),
    ("text", "unknown", "unknown"),
    ("int", "42", 42),
    ("int", "-1", -1),
    ("int", "0x10de", 0x10DE),
    ("int", "18446744073709551615", (1 << 64) - 1),
    ("hex", "0x10de", "0x10de"),
    ("hex", "0X00C1", "0x00c1"),
    ("hex", "030000", "0x030000"),
    ("bool", "1", True),
    ("bool", "N", False),
    ("bool", "enabled", True),
    ("gts", "16.0 GT/s PCIe", 16.0),
    ("gts", "2.5 GT/s", 2.5),
    ("gts", "8 GT/s", 8.0),
    ("list", "d3cold  d0", ["d3cold", "d0"]),
    ("list_int", "0 1\t0x2", [0, 1, 2]),
    ("list_int", "07 08", [7, 8]),
    ("kv", "simd_count 64\nvendor_id 4098", {"simd_count": "64", "vendor_id": "4098"}),
    ("kv", "Model: \t\t A100\nIRQ:   \t", {"Model": "A100", "IRQ": ""}),
    ("khz", "2100000", 2_100_000_000),
    ("mhz", "2100", 2_100_000_000),
    ("kib", "4", 4096),
    ("mib", "16", 16 << 20),
    ("bytes", "17163091968", 17163091968),
    ("milli", "53000", 53.0),
    ("milli", "-5500", -5.5),
    ("micro", "203000000", 203.0),
    ("percent", "97", 97),
    ("dpm", "0: 500Mhz\n1: 2581Mhz *", {"levels": [["0", 500, False], ["1", 2581, True]], "active_mhz": [2581]}),
    ("dpm", "S: 19Mhz *\n0: 615Mhz\n1: 1.5Mhz *", None),
    ("dpm", "", {"levels": [], "active_mhz": []}),
]

TEXTS = [text for _, text, _ in GOOD]

#: No value: None, not an error and not a number.
EMPTY = [
    *((name, "") for name in CONVERTERS if name != "dpm"),
    *((name, word) for name in ("int", "hex", "bool", "milli") for word in ("(null)", "N/A", "Unknown")),
    ("text", "(null)"),
    ("gts", "Unknown"),
    ("gts", "Unknown speed"),
]

#: What int() and float() would take, or what another file holds.
BAD = [
    ("int", "1_000"),
    ("int", "0x1_0"),
    ("int", "\u0661\u0662"),
    ("int", "1.5"),
    ("int", "1e3"),
    ("int", "12 34"),
    ("int", "9" * 5000),
    ("int", str(1 << 64)),
    ("int", "0x"),
    ("int", "--1"),
    ("hex", "0x_10"),
    ("hex", "+1f"),
    ("hex", "-0x5"),
    ("hex", "0x-5"),
    ("hex", "\u0661"),
    ("hex", "0x" + "f" * 17),
    ("hex", "xyz"),
    ("bool", "2"),
    ("bool", "maybe"),
    ("gts", "fast"),
    ("gts", "9" * 400 + " GT/s"),
    ("gts", "\u0663 GT/s"),
    ("gts", "nan GT/s"),
    ("list_int", "1 two"),
    ("list_int", "1_0"),
    ("milli", "inf"),
    ("dpm", "garbage"),
    ("dpm", "0: " + "9" * 400 + "Mhz"),
]


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_values(name: str, text: str, value: Any) -> None:
    got = CONVERTERS[name](text)
    if value is None:
        assert [level[0] for level in got["levels"]] == ["S", "0", "1"]
        assert got["active_mhz"] == [19, 1.5]
    else:
        assert got == value
        assert type(got) is type(value)


@pytest.mark.parametrize(("name", "text"), EMPTY)
def test_no_value(name: str, text: str) -> None:
    assert CONVERTERS[name](text) is None


@pytest.mark.parametrize(("name", "text"), BAD)
def test_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"^(not|number) .*[a-z]$|invalid literal|64 bit"):
        CONVERTERS[name](text)


def test_scaling_is_exact() -> None:
    """Oracle: decimal shifting of the text."""
    for number in range(-3000, 3000):
        assert CONVERTERS["milli"](str(number)) == float(f"{number}e-3")
        assert CONVERTERS["micro"](str(number)) == float(f"{number}e-6")


@settings(max_examples=400)
@given(
    st.sampled_from(sorted(CONVERTERS)),
    st.text(max_size=30) | st.text("0123456789abcdefx.-+_ \n:*MhzGT/s", max_size=30) | st.sampled_from(TEXTS),
)
def test_any_text_is_a_printable_value_or_refused(name: str, text: str) -> None:
    try:
        value = CONVERTERS[name](text.strip())
    except (ValueError, ArithmeticError, LookupError):
        return
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    if isinstance(value, float):
        assert math.isfinite(value)
