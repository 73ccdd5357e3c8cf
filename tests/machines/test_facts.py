"""Every fact that a hand-written reader found in a real machine's tree stands in our document with its evidence and the
same value.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from accelctl.hal.root import open_root
from accelctl.probes.scan import probe
from accelctl.render.document import document
from tests.conftest import shared_folder

#: Our units against those of the facts files, which count W, MHz, J and GiB. Everything else is the same number.
SCALE = {"mW": 1000, "Hz": 1_000_000, "hz": 1_000_000, "uJ": 1_000_000, "mw": 1000, "uj": 1_000_000}
#: Identifiers: text for us, because their leading zeros and width carry meaning; the facts reader turned them into
#: numbers.
IDENTIFIERS = frozenset({"serial", "chip_id"})


#: Keys of the facts files that are the reader's own notes about a file, not something written in it.
NO_FACTS = frozenset(
    {"file", "derived", "node", "kind", "bdf", "pci_function", "vram_bytes", "caches_found", "file_size"}
)


class Fact(NamedTuple):
    where: str
    file: str
    value: Any
    raw: str | None


def names() -> list[str]:
    return sorted(path.stem for path in (shared_folder() / "machines").glob("*.json"))


def facts_of(node: Any, where: str = "") -> Iterator[Fact]:
    """Leaves {value, raw, file}, and objects that name one file for several plain values."""
    if isinstance(node, list):
        for index, entry in enumerate(node):
            yield from facts_of(entry, f"{where}/{index}")
    elif isinstance(node, dict):
        if "file" in node and "value" in node:
            yield Fact(where, node["file"], node["value"], node.get("raw"))
            return
        if isinstance(node.get("file"), str):
            for key, value in node.items():
                if key in ("cpulist", "cpumap"):
                    yield Fact(f"{where}/{key}", node["file"].replace("meminfo", key), value, value)
                elif key not in NO_FACTS and isinstance(value, (int, str)) and not isinstance(value, bool):
                    yield Fact(f"{where}/{key}", node["file"], value, None)
        for key, value in node.items():
            if key == "properties" and isinstance(value, dict):
                yield from (
                    Fact(f"{where}/{key}/{name}", node["file"], number, None)
                    for name, number in value.items()
                    if number is not None
                )
            elif isinstance(value, (dict, list)):
                yield from facts_of(value, f"{where}/{key}")


def at(document_: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        document_ = document_[int(key)] if isinstance(document_, list) else document_[key]
    return document_


def same(fact: Fact, value: Any, unit: str | None, raw: str) -> bool:
    """Equal as numbers in one unit; a fact of None is an absence of ours."""
    leaf = fact.where.rpartition("/")[2]
    if "/properties/" in fact.where and not raw.startswith(f"{leaf} "):
        return False  # many facts of one file: the line must be the property's own
    if leaf in IDENTIFIERS:
        return bool(value == fact.raw)
    if isinstance(fact.value, (int, float)) and isinstance(value, (int, float)):
        candidates = [fact.value]
        if unit in SCALE:
            candidates.append(fact.value * SCALE[unit])
        if unit in ("bytes", "B"):
            candidates += [fact.value * 1024, fact.value * 1024**3]
        return any(abs(value - one) <= 1e-6 * max(1, abs(one)) for one in candidates)
    return bool(value == fact.value)


@pytest.fixture(scope="module", params=names() or ["missing"])
def machine(request: pytest.FixtureRequest, shared: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    folder, name = shared / "machines", request.param
    expected = json.loads(Path(folder, f"{name}.json").read_text())
    found = document(probe(open_root(str(Path(folder, f"{name}.tar.xz")))))
    return expected, json.loads(json.dumps(found))


def test_every_fact_is_in_evidence(machine: tuple[dict[str, Any], dict[str, Any]]) -> None:
    expected, found = machine
    by_file: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for pointer, entry in found["evidence"].items():
        by_file[entry.get("source", "")].append((pointer, entry))
    missing = []
    total = 0
    for section in ("devices", "kfd", "platform_drm", "numa"):
        for fact in facts_of(expected.get(section), section):
            total += 1
            matches = [
                pointer
                for pointer, entry in by_file[fact.file]
                if (fact.raw is None or entry.get("raw") == fact.raw)
                and same(fact, at(found, pointer), entry.get("unit"), entry.get("raw") or "")
            ]
            if not matches:
                near = [(p, e.get("raw"), at(found, p)) for p, e in by_file[fact.file]][:3]
                missing.append(f"{fact.where} = {fact.value!r} ({fact.file}); we have {near}")
    assert total > 0
    assert not missing, f"{len(missing)} of {total} facts are not in evidence:\n" + "\n".join(missing[:40])


def test_devices_are_those_of_the_machine(machine: tuple[dict[str, Any], dict[str, Any]]) -> None:
    expected, found = machine
    accelerators = [device["bdf"] for device in expected["devices"] if device["role"] == "accelerator"]
    ours = [device["id"] for device in found["devices"] if device["kind"] != "display"]
    assert ours == accelerators
    for device in expected["devices"]:
        mine = next(one for one in found["devices"] if one["id"] == device["bdf"])
        minors = {node["node"]: f"{node['major']}:{node['minor']}" for node in device["drm"]}
        assert {name: node["dev"] for name, node in mine.get("drm", {}).items()} == minors
        assert mine["path"] == device["path"]


def test_kfd_nodes_are_told_apart(machine: tuple[dict[str, Any], dict[str, Any]]) -> None:
    expected, found = machine
    nodes = (expected["kfd"] or {}).get("nodes", [])
    ours = found["machine"].get("kfd", {}).get("nodes", {})
    assert {str(node["node"]): node["kind"] for node in nodes} == {
        number: node["kind"] for number, node in ours.items()
    }
    for node in nodes:
        if node["kind"] == "gpu":
            assert ours[str(node["node"])]["device"] == node["bdf"]


def test_nothing_above_info_on_a_healthy_machine(machine: tuple[dict[str, Any], dict[str, Any]]) -> None:
    _, found = machine
    loud = [one for one in found["findings"] if one["level"] in ("warn", "error", "critical")]
    assert not loud, loud
