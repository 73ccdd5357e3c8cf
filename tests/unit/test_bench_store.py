"""Reports as files: the same after reading, and one line for whatever is none."""

from __future__ import annotations

import copy
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.accept.bench import store
from accelctl.accept.bench.compare import compare
from accelctl.errors import UsageError
from accelctl.model.benchreport import BYTES_PER_S, BenchReport, Ceiling, OpRow, Skipped
from tests.benchkit import figure, noisy

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def made() -> BenchReport:
    found = noisy(random.Random(1), 3, 7)
    spread = found.figures[0].spread
    ops = (OpRow("add", "3x4", "add_f", spread, spread, {"rpc": 0.5, "queue": -0.1}, "rpc", 0.9),)
    wide = figure("wide", [1e9, 2e9], part="bandwidth", unit=BYTES_PER_S)
    wide = wide._replace(ceiling=Ceiling(4e9, "PCIe", "so"))
    kept = {"figures": (*found.figures, wide), "ops": ops, "skipped": (Skipped("peer", "none"),), "notes": ("a note",)}
    return BenchReport(**(vars(found) | kept))


def test_a_report_comes_back(tmp_path: Path) -> None:
    path = str(tmp_path / "base.json")
    store.save(path, made())
    found = store.read(path)
    store.save(str(tmp_path / "again.json"), found)
    assert store.document(store.read(str(tmp_path / "again.json"))) == store.document(found)
    assert (found.fingerprint, found.skipped, found.notes) == (made().fingerprint, made().skipped, made().notes)
    assert [one.id for one in found.figures] == [one.id for one in made().figures]
    assert store.document(found)["volatile"]["figures"][-1]["of_ceiling"] == 0.375


@pytest.mark.parametrize(("sample", "floor"), [(9.9e17, 1.1e-18), (1.1e-18, 9.9e17)])
def test_the_furthest_numbers_that_are_taken_can_be_compared(sample: float, floor: float) -> None:
    now = made()
    document = store.document(now)
    for row in document["volatile"]["figures"]:
        count = len(row["samples"])
        for key, odd in (("samples", sample), ("floor", floor)):
            row[key] = [odd if at % 2 else one for at, one in enumerate(row[key])]
        assert count == len(row["samples"])
    found = compare(store.of_document(document, "x"), now)
    assert found.verdict in ("slower", "hidden", "no regression")


def test_medians_of_a_file_are_not_believed(tmp_path: Path) -> None:
    document = store.document(made())
    document["volatile"]["figures"][0]["spread"]["median"] = 1e-9
    assert store.of_document(document, "x").figures[0].spread.median == pytest.approx(made().figures[0].spread.median)


def test_saving_replaces_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    path.write_text("before")
    store.save(str(path), made())
    assert json.loads(path.read_text())["schema"] == "accelctl.bench/1"
    with pytest.raises(UsageError, match="cannot be written"):
        store.save(str(tmp_path / "none" / "base.json"), made())
    assert [one.name for one in tmp_path.iterdir()] == ["base.json"]


def changed(change: Any) -> dict[str, Any]:
    document = copy.deepcopy(store.document(made()))
    change(document, document["volatile"]["figures"][0])
    return document


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d, f: f.update(samples=[]), "1 to 200 samples"),
        (lambda d, f: f.update(samples=[1.0] * 300), "1 to 200 samples"),
        (lambda d, f: f.update(floor=[1.0]), "of the floor beside"),
        (lambda d, f: f.update(samples=[0.0] * 7), "between 1e-18 and 1e"),
        (lambda d, f: f.update(samples=[-1.0] * 7), "between 1e-18 and 1e"),
        (lambda d, f: f.update(samples=[1e18] * 7), "between 1e-18 and 1e"),
        (lambda d, f: f.update(floor=[5e-324] * 7), "between 1e-18 and 1e"),
        (lambda d, f: f.update(floor=[1e-290] * 7), "between 1e-18 and 1e"),
        (lambda d, f: f.update(unit="furlongs"), "unit 'furlongs'"),
        (lambda d, f: f.update(samples=["1"]), "a number is expected"),
        (lambda d, f: d.pop("fingerprint"), "fingerprint is missing"),
        (lambda d, f: d.update(more=1), "no field is called 'more'"),
        (lambda d, f: d.update(volatile=[]), "is missing"),
        (lambda d, f: d["volatile"].update(figures=[f] * 1001), "more than 1000 figures"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(change: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        store.of_document(changed(change), "base.json")
    assert caught.value.message.startswith("base.json")
    assert "\n" not in caught.value.message


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_document_breaks_it(data: st.DataObject) -> None:
    """A right one with one place of it exchanged for anything."""
    document = copy.deepcopy(store.document(made()))
    where: Any = document
    while isinstance(where, (dict, list)) and where:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = data.draw(st.sampled_from(keys))
        if data.draw(st.booleans()) or not isinstance(where[key], (dict, list)) or not where[key]:
            where[key] = data.draw(JSON)
            break
        where = where[key]
    with suppress(UsageError):
        assert isinstance(store.of_document(document, "x"), BenchReport)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "schema is null"),
        (b'{"schema": "accelctl.probe/1"}', "schema is"),
    ],
)
def test_files_that_are_something_else(text: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=said):
        store.read(str(path))


def test_no_file() -> None:
    with pytest.raises(UsageError, match="no such file"):
        store.read("/nonexistent/base.json")


def test_where_nothing_can_be_written_is_told_before_a_run(tmp_path: Path) -> None:
    store.writable("")
    store.writable(str(tmp_path / "new.json"))
    for path in (tmp_path, tmp_path / "none" / "x"):
        with pytest.raises(UsageError, match="cannot be written"):
            store.writable(str(path))
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    """An earlier result is: that is how a baseline is renewed."""
    path = tmp_path / "a.json"
    for text, taken in (
        ('{"schema": "accelctl.bench/1"}', True),
        ("", True),
        ("int main;", False),
        ('{"a": 1}', False),
    ):
        path.write_text(text)
        if taken:
            store.writable(str(path))
        else:
            with pytest.raises(UsageError, match="it is not replaced"):
                store.writable(str(path))
        assert path.read_text() == text
