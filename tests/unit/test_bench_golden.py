"""Results that are kept: what counts as the same, as drift, and as changed."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.accept.bench import golden
from accelctl.errors import UsageError
from accelctl.model.benchreport import Golden, GoldenSet
from tests.benchkit import PLACE


def row(case: str, values: list[float], *, right: bool = True, dtype: str = "fp32", kept: bool = True) -> Golden:
    data = struct.pack(f"<{len(values)}f", *values)
    packed = base64.b64encode(zlib.compress(data)).decode() if kept else ""
    digest = hashlib.sha256(data).hexdigest()
    return Golden(case, "add", "Y", dtype, (len(values),), "add_f", digest, packed, right, "" if right else "Y: wrong")


def of(*rows: Golden) -> GoldenSet:
    return GoldenSet(fingerprint=PLACE, seed=0, rows=rows)


NEXT = struct.unpack("<f", struct.pack("<I", 0x3F800003))[0]
"""Three fp32 numbers above 1."""


def test_the_same_bytes() -> None:
    found = golden.compare(of(row("a", [1.0, 2.0])), of(row("a", [1.0, 2.0])))
    assert (found.equal, found.rows, found.first, found.exit_code) == (1, (), None, 0)


def test_other_bytes_within_what_is_allowed_are_drift() -> None:
    found = golden.compare(of(row("a", [1.0, 1.0, 1.0])), of(row("a", [1.0, NEXT, 1.0])))
    assert found.exit_code == 0
    assert found.first is not None
    assert (found.first.word, found.first.ulps) == ("drift", 3)
    assert "1 of 3 elements, at most 3 ulp, first at 1" in found.first.detail


def test_a_wrong_result_has_changed() -> None:
    found = golden.compare(of(row("a", [1.0]), row("b", [1.0])), of(row("a", [1.0]), row("b", [7.0], right=False)))
    assert found.exit_code == 1
    assert found.first is not None
    assert (found.first.case, found.first.word) == ("b", "changed")
    assert "Y: wrong" in found.first.detail


def test_the_first_one_in_the_order_of_the_set_is_named() -> None:
    base = of(*(row(name, [1.0]) for name in "abc"))
    now = of(row("c", [NEXT]), row("b", [NEXT]), row("a", [1.0]))
    found = golden.compare(base, now)
    assert found.first is not None
    assert found.first.case == "b"


def test_another_shape_or_type_has_changed() -> None:
    assert golden.compare(of(row("a", [1.0])), of(row("a", [1.0, 2.0]))).exit_code == 1
    assert golden.compare(of(row("a", [1.0], dtype="int32")), of(row("a", [2.0]))).exit_code == 1


def test_what_only_one_side_has() -> None:
    found = golden.compare(of(row("a", [1.0]), row("gone", [1.0])), of(row("a", [1.0]), row("fresh", [1.0])))
    assert [(one.case, one.word) for one in found.rows] == [("gone", "missing"), ("fresh", "new")]
    assert found.exit_code == 1
    assert golden.compare(of(row("gone", [1.0])), of()).exit_code == 1
    assert golden.compare(of(row("a", [1.0])), of(row("a", [1.0]), row("fresh", [1.0]))).exit_code == 0
    assert golden.compare(of(), of(row("fresh", [1.0]))).exit_code == 77


def test_a_missing_result_says_why() -> None:
    now = replace(of(row("a", [1.0])), notes=("gone: refused: matmul is switched off",))
    (found,) = golden.compare(of(row("a", [1.0]), row("gone", [1.0])), now).rows
    assert found.detail == "Y: there is no such result now; refused: matmul is switched off"


def test_long_results_are_compared_by_digest() -> None:
    found = golden.compare(of(row("a", [1.0], kept=False)), of(row("a", [NEXT], kept=False)))
    assert found.first is not None
    assert (found.first.word, found.first.ulps) == ("drift", 0)


def test_kept_bytes_that_are_not_what_their_digest_says_are_not_used() -> None:
    bad = row("a", [1.0])._replace(data=row("a", [3.0]).data)
    found = golden.compare(of(bad), of(row("a", [NEXT])))
    assert found.first is not None
    assert "other bytes" in found.first.detail
    for data in ("!", "AAAA", base64.b64encode(zlib.compress(bytes(1 << 20))).decode()):
        assert golden.compare(of(bad._replace(data=data)), of(row("a", [NEXT]))).first is not None


def test_another_device_is_told() -> None:
    other = replace(PLACE, device="opencl:0", versions={"accelctl": "0.9", "kernel": "6.12"})
    found = golden.compare(replace(of(row("a", [1.0])), fingerprint=other), of(row("a", [1.0])))
    assert found.differs == ("device opencl:0 -> sim:0", "accelctl 0.9 -> 1.0")
    assert found.base_device == "opencl:0"


def test_a_set_comes_back(tmp_path: Path) -> None:
    path = str(tmp_path / "golden.json")
    made = of(row("a", [1.0]), row("b", [2.0], kept=False))
    golden.save(path, made)
    assert golden.read(path) == made


def test_a_set_with_a_wrong_result_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    with pytest.raises(UsageError, match="a result is wrong"):
        golden.save(str(path), of(row("a", [1.0], right=False)))
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 3}, "seed 3"),
        ({"rows": 1}, "a list is expected"),
        ({"schema": "x"}, "schema is"),
        ({"y": 1}, "no field"),
    ],
)
def test_files_that_are_none(change: dict[str, object], said: str, tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(golden.document(of(row("a", [1.0]))) | change))
    with pytest.raises(UsageError, match=said):
        golden.read(str(path))


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(FLOATS, FLOATS)
def test_distances_agree_with_smoke_and_are_symmetric(one: float, other: float) -> None:
    numpy = pytest.importorskip("numpy")
    from accelctl.smoke.numbers import ulp_distance

    first, second = (struct.pack("<f", value) for value in (one, other))
    found = golden.ulps(first, second, "fp32")
    assert found == golden.ulps(second, first, "fp32")
    left, right = (numpy.frombuffer(data, numpy.float32) for data in (first, second))
    assert found == int(ulp_distance(left, right)[0])


@pytest.mark.parametrize(
    ("one", "other", "dtype", "distance"),
    [
        (b"\x00\x00", b"\x00\x80", "fp16", 0),
        (b"\x01\x00", b"\x01\x80", "fp16", 2),
        (b"\x80\x3f", b"\x81\x3f", "bf16", 1),
        (b"\xff", b"\x01", "int8", 2),
        (b"\xff", b"\x01", "uint8", 254),
        (b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", "int32", 1),
    ],
)
def test_distances_by_bits(one: bytes, other: bytes, dtype: str, distance: int) -> None:
    assert golden.ulps(one, other, dtype) == distance


def test_cases_are_the_same_in_every_run() -> None:
    pytest.importorskip("numpy")
    first, second = [[case.id for case in golden._cases()] for _ in range(2)]
    assert first == second
    assert len(first) == len(set(first)) > 50
    assert not any("refused" in one for one in first)
