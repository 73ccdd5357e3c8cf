"""abi.codes: the table of error codes agrees with the collected facts, and opens only what it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accelctl.abi import codes
from accelctl.abi.codes import CODES, STACKS, Code, find, kind_of, mistakes, named, table
from accelctl.accept.codes import answer, may_be, mistakes_of
from accelctl.errors import KINDS

WHEN = {"sync", "async", "sync_or_async", "query_result", "kernel_log"}
STICKY = {"no", "context", "process", "device", "capture", "communicator", "unknown"}


@pytest.fixture(scope="module")
def facts(shared: Path) -> Path:
    folder = shared / "errors"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: the table cannot be compared with the collected facts")
    return folder


def entries(facts: Path, stack: str) -> list[dict[str, Any]]:
    return list(json.loads((facts / f"{stack}.json").read_text())["entries"])


def everything() -> Iterator[Code]:
    for stack in STACKS:
        yield from table(stack).by_number.values()


def test_kinds_are_those_of_the_collection(facts: Path) -> None:
    given = {one["kind"]: one for one in json.loads((facts / "kinds.json").read_text())["kinds"]}
    assert len(given) == 33
    assert set(KINDS) == set(given)
    assert {name: (one.group, one.retryable) for name, one in KINDS.items()} == {
        name: (one["group"], one["retryable"]) for name, one in given.items()
    }


@pytest.mark.parametrize("stack", STACKS)
def test_every_entry_agrees(stack: str, facts: Path) -> None:
    given = entries(facts, stack)
    assert {one["number"] for one in given} == set(table(stack).by_number)
    for one in given:
        code = find(stack, one["number"])
        assert code is not None
        assert (code.name, code.kind, code.detail) == (one["name"], one["kind"], one.get("detail", ""))
        assert (code.when, code.sticky) == (one["when"], one["sticky"])
        assert list(code.aliases) == one.get("aliases", [])
        assert all(named(stack, name) is code for name in (one["name"], *one.get("aliases", [])))
        if "hex" in one:
            assert int(code.written, 16) == int(one["hex"], 16) == code.number
        if "since_note" in one or "number_in_hicann_runtime_2026_08" in one:
            assert code.since


def test_there_is_a_file_for_every_stack_and_no_other() -> None:
    assert {path.stem for path in CODES.glob("*.json")} == {*STACKS, "mistakes"}


def test_every_entry_makes_sense_by_itself() -> None:
    seen = list(everything())
    assert len(seen) > 1500
    assert {code.kind for code in seen} == set(KINDS)
    assert all(code.meaning and code.when in WHEN and code.sticky in STICKY for code in seen)
    assert all(table(code.stack).head["async"] for code in seen if code.when in ("async", "sync_or_async"))
    prefixes = [word for one in STACKS.values() for word in one.also]
    assert len(prefixes) == len(set(prefixes))


def test_scenarios_name_the_kind_of_the_mistake_for_every_code(facts: Path) -> None:
    scenarios = json.loads((facts / "scenarios.json").read_text())["scenarios"]
    assert len(scenarios) == len(mistakes()) == 44
    for one in scenarios:
        for stack, cell in one["stacks"].items():
            code = find(stack, cell["number"])
            assert code is not None, (one["id"], stack)
            assert named(stack, cell["code"]) is code
            assert code.kind == cell.get("kind_of_code", one["kind"]), (one["id"], stack)
            assert one["kind"] in (code.kind, *may_be(code)), (one["id"], stack)
            assert one["id"] in [mistake.id for mistake in mistakes_of(code)]


def test_collisions_are_listed_with_every_meaning(facts: Path) -> None:
    document = json.loads((facts / "collisions.json").read_text())
    assert len(document["collisions"]) == 109
    for one in [*document["collisions"], *document["cuda_family_differences"]]:
        found = {(code.stack, code.name, code.kind) for code in answer(str(one["number"])).codes}
        assert found >= {(mean["stack"], mean["name"], mean["kind"]) for mean in one["means"]}
        assert len({kind for _, _, kind in found}) > 1


def test_the_cuda_family_disagrees_only_where_it_is_told() -> None:
    family = ("cuda_runtime", "cuda_driver", "hip", "musa")
    numbers = {number for stack in family for number in table(stack).by_number}
    differ = {
        number
        for number in numbers
        if len({code.kind for stack in family if (code := find(stack, number)) is not None}) > 1
    }
    assert differ == {911, 912, 916}


@pytest.mark.parametrize(
    ("stack", "number", "name"),
    [
        ("opencl", 0xFFFFFFFB, "CL_OUT_OF_RESOURCES"),
        ("opencl", 0xFFFFFFFFFFFFFFFB, "CL_OUT_OF_RESOURCES"),
        ("errno", -28, "ENOSPC"),
        ("errno", 0xFFFFFFE4, "ENOSPC"),
        ("xpu_kunlun", -705, "XPUERR_NOMEM"),
        ("level_zero", 0x70000001, "ZE_RESULT_ERROR_DEVICE_LOST"),
    ],
)
def test_numbers_are_found_in_every_form_that_calls_return(stack: str, number: int, name: str) -> None:
    code = find(stack, number)
    assert code is not None
    assert code.name == name


def test_no_other_form_is_made_up() -> None:
    assert find("opencl", 5) is None
    assert find("cuda_runtime", -700) is None
    assert find("nvml", 31337) is None
    assert named("hip", "cudaErrorIllegalAddress") is None


def test_whoever_raises_gets_a_kind_for_every_number() -> None:
    assert kind_of("opencl", -5) == "out_of_resources"
    assert kind_of("nv_status", 0x51) == "out_of_memory"
    assert kind_of("acl", 123456) == "internal"
    with pytest.raises(KeyError):
        kind_of("no such stack", 1)


def test_words_of_a_room_are_used_and_not_repeated() -> None:
    room = json.loads((CODES.parent.parent / "backends" / "nvidia" / "codes.json").read_text())["codes"]
    kept = json.loads((CODES / "xid.json").read_text())
    at = kept["columns"].index("meaning")
    assert set(map(int, room)) <= set(table("xid").by_number)
    for row in kept["entries"]:
        assert (row[at] == "") == (str(row[1]) in room)
    code = find("xid", 48)
    assert code is not None
    assert code.meaning == room["48"]["meaning"]
    assert "{" not in code.next


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files of the table that are read from now on, which has forgotten what it knew."""
    codes.table.cache_clear()
    codes.mistakes.cache_clear()
    names: list[str] = []
    read = Path.read_bytes

    def spy(path: Path) -> bytes:
        names.append(path.name)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", spy)
    return names


@pytest.mark.parametrize(
    ("query", "files"),
    [
        ("cuda:700", ["cuda_runtime.json", "cuda_driver.json"]),
        ("hip:700", ["hip.json"]),
        ("cl:CL_OUT_OF_RESOURCES", ["opencl.json"]),
        ("xid:79", ["xid.json", "codes.json"]),
    ],
)
def test_only_the_stacks_that_are_named_are_opened(query: str, files: list[str], opened: list[str]) -> None:
    assert answer(query).codes
    assert opened == files


def test_a_table_is_read_once(opened: list[str]) -> None:
    for _ in range(3):
        assert len(answer("705").codes) == 5
    assert len(opened) == len(STACKS) + 1
