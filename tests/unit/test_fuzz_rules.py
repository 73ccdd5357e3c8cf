"""Hostile kernel logs against every pattern, and chip rooms of strangers with anything in their rows."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import accelctl.abi.logrules
import accelctl.abi.rules
from accelctl.abi.roomcheck import explodes
from accelctl.abi.rooms import BACKENDS, in_tree, parse_room
from accelctl.hal.manifest import KMSG
from accelctl.model.toml import loads
from accelctl.probes import engine
from accelctl.probes.scan import probe
from tests import hostile, mutate, seeds
from tests.examine import examine
from tests.mutate import Machine, Mutation, tried
from tests.unit.test_fuzz_trees import awake, examples, machine, mutations

LOG_LINE = 2000
"""hal.kmsg cuts lines there."""


@lru_cache(maxsize=1)
def asked() -> tuple[tuple[str, str, str], ...]:
    """(machine, literal, pattern) of every question that rules ask of a log, found by letting them ask."""
    found: dict[tuple[str, str], str] = {}
    plain = accelctl.abi.rules.search
    names = ["ailing", *(f"room:{name}" for name in seeds.rooms())]
    current = ""

    def note(text: str, literal: str, pattern: str, lines: int = 0) -> Iterator[re.Match[str]]:
        found.setdefault((literal, pattern), current)
        return plain(text, literal, pattern, lines)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelctl.abi.rules, "search", note)
        for module in [accelctl.abi.logrules, *engine.generic_modules()]:
            if hasattr(module, "find"):
                patch.setattr(module, "find", note)
        for current in names:
            probe(
                mutate.root_of(with_log(machine(current), "pciehp [mem size assigned blocked for more than")), in_tree()
            )
    return tuple((name, literal, pattern) for (literal, pattern), name in found.items())


def with_log(of: Machine, text: str) -> Machine:
    changed = of.copy()
    before = changed.entries.get(KMSG)
    changed.put(KMSG, (before if isinstance(before, bytes) else b"") + text.encode("utf-8", "replace") + b"\n")
    return changed


def about(of: Machine, text: str, pattern: str) -> str:
    """The text with the device it names replaced by one that the machine has."""
    devices = [path.rpartition("/")[2] for path in of.entries if path.startswith("sys/bus/pci/devices/")]
    match = re.search(pattern, text, re.MULTILINE)
    if match is None or "device" not in match.re.groupindex or match["device"] is None or not devices:
        return text
    return text[: match.start("device")] + devices[-1] + text[match.end("device") :]


def test_every_kind_of_rule_asks() -> None:
    """Rows of tables, rules that search by themselves, and the hints of chips."""
    assert len(asked()) >= 60
    assert {name for name, _, _ in asked()} >= {"ailing", "room:intel_gpu", "room:ivpu"}


def test_whatever_a_pattern_matches_can_be_told() -> None:
    """Texts made from the patterns themselves, with digits of other scripts and numbers of any length where they
    allow them."""

    @examples(200)
    @given(
        data=st.data(), question=st.sampled_from(asked()), times=st.sampled_from([1, 2, 12, 150]), ours=st.booleans()
    )
    def holds(data: st.DataObject, question: tuple[str, str, str], times: int, ours: bool) -> None:
        name, _, pattern = question
        text = data.draw(st.from_regex(re.compile(pattern, re.MULTILINE)))
        of = machine(name)
        with awake(120):
            examine(
                lambda: mutate.root_of(with_log(of, "\n".join([about(of, text, pattern) if ours else text] * times))),
                in_tree(),
                whole=False,
            )

    holds()


def test_no_pattern_takes_long_for_a_line() -> None:
    """Matching texts, with any part of them repeated to the longest line there is, and a wrong end."""

    @examples(400)
    @given(data=st.data(), question=st.sampled_from(asked()), part=st.tuples(st.integers(0, 200), st.integers(1, 20)))
    def holds(data: st.DataObject, question: tuple[str, str, str], part: tuple[int, int]) -> None:
        _, literal, pattern = question
        compiled = re.compile(pattern, re.MULTILINE)
        text = data.draw(st.from_regex(compiled)) or "x"
        start = part[0] % len(text)
        piece = text[start : start + part[1]]
        line = (text[:start] + piece * (LOG_LINE // len(piece)))[: LOG_LINE - len(literal) - 1] + "!" + literal
        started = time.process_time()
        compiled.search(line)
        assert time.process_time() - started < 0.25, pattern

    holds()


@pytest.mark.parametrize("filling", ["x", "f" * 1500, "0000:52:00.0: " * 120, "(" * 1000, "lib.so" * 300])
def test_a_long_log_of_hostile_lines_takes_seconds(filling: str) -> None:
    """4,000 lines, each with the literal of some rule, each about another device: up to 8 MiB."""
    text = "\n".join(
        line.replace("{b}", f"0000:{index >> 8 & 255:02x}:{index >> 3 & 31:02x}.{index & 7}")
        .replace("{n}", str(index)).replace("{t}", filling)
        for index in range(4000) for line in (hostile.LINES[index % len(hostile.LINES)],)
    )  # fmt: skip
    started = time.process_time()
    probe(mutate.root_of(with_log(machine("ailing"), text)), in_tree())
    assert time.process_time() - started < 5


# -- rooms of strangers ------------------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    "", "x", "*", "**", "..", "../../etc/shadow", "/etc/shadow", "dev/mem", "proc/kcore",
    "sys/kernel/debug/dri/0/amdgpu_gpu_recover", "[", "(", "(a", "(a)(b)", "a{99999999}", "(?P<x>.)", "0x1002", "0x",
    "0xZZZZ", 0, -1, 1 << 70, 1.5, float("inf"), True, [], {}, [[]], [{}], [1], {"a": 1}, ["../x"], "a\nb",
    "\x1b[31m", "core*_x*_y*/z", "int", "kv", "gpu_metrics", "blocks", "free", "identity", "kernel", "sys/class/drm",
    "dev/dri/*", "dev/*", "x" * 5000, "{bdf}", "{index}", "{nope}", "card*/dev", "device", "display", "²", "٣",
    "vendor", [{"name": "x", "conv": "nope"}], [{"name": "Model", "key": "a/b", "conv": "hex_int"}], [{"name": 5}],
    "proc/{bdf}", "sys/module/x/version",
)  # fmt: skip


def toml(value: Any) -> str:
    """A value in TOML; a document's own top level is written by :func:`written`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else str(value)


def written(document: dict[str, Any]) -> str:
    return "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in document.items())


def damaged_room(name: str, damage: list[Mutation]) -> str:
    """A room's chip.toml under another name with some values, keys or rows changed."""
    document: dict[str, Any] = loads((BACKENDS / name / "chip.toml").read_text(encoding="utf-8"))
    document["name"] = "stranger"
    for kind, where, what in damage:
        value = VALUES[what % len(VALUES)]
        tables = [
            key for key, entry in document.items() if isinstance(entry, list) and entry and isinstance(entry[0], dict)
        ]
        if kind % 8 == 0 or not tables:
            document[list(document)[where % len(document)]] = value
            continue
        rows = document[tables[where % len(tables)]]
        row = rows[what % len(rows)]
        if not isinstance(row, dict) or not row:
            continue
        key = list(row)[(where >> 4) % len(row)]
        if kind % 8 == 1:
            del row[key]
        elif kind % 8 == 2:
            row["surplus"] = value
        else:
            row[key] = value
    return written(document)


@pytest.mark.slow
def test_rooms_of_strangers() -> None:
    """Refused in one line, or used without harm."""
    used = 0

    @examples(250)
    @given(name=st.sampled_from(list(seeds.rooms())), damage=mutations)
    def holds(name: str, damage: list[Mutation]) -> None:
        nonlocal used
        text = damaged_room(name, damage)
        room, refusal = tried(lambda: parse_room(text, Path("/nowhere/stranger"), "a-distribution"))
        if room is None:
            assert refusal.startswith("stranger/chip.toml (a-distribution): ")
            return
        used += 1
        others = tuple(one for one in in_tree() if one.name != name)
        with awake(120):
            examine(lambda: mutate.root_of(machine(f"room:{name}")), (*others, room), whole=False)

    holds()
    assert used >= 10


def test_every_room_in_the_tree_would_pass_as_a_stranger() -> None:
    for path in sorted(BACKENDS.glob("*/chip.toml")):
        assert parse_room(path.read_text(encoding="utf-8"), path.parent, "a-distribution").name == path.parent.name


@pytest.mark.parametrize(
    ("pattern", "bad"),
    [
        (r"(\d+(?:\.\d+)+)", False), (r"(?m)^Version=(\S+)", False), (r"^v(\d+)[a-z]*", False), (r"\(x+\)+(y)", False),
        (r"(a+)+$", True), (r"(?:(?:a+)+)+$(b)", True), (r"((a+))+", True), (r"(a|aa)*$", True), (r"(\w+\s?)*$", True),
        (r"(?P<v>[^a]*x){5,}", True), (r"([)(]+)", False),
    ],
)  # fmt: skip
def test_patterns_of_exponential_time_are_known(pattern: str, bad: bool) -> None:
    assert explodes(pattern) is bad


def test_a_rule_that_fails_costs_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """And while the tests run, it fails the test."""
    module = import_module("accelctl.probes.rules.heat")

    def broken(ctx: Any) -> list[Any]:
        raise ZeroDivisionError("one\ntwo")

    broken.__module__ = module.__name__
    root = mutate.root_of(machine("amdgpu"))
    monkeypatch.setattr(module, "hot", accelctl.abi.rules.rule("SENSOR-HOT")(broken))
    with pytest.raises(ZeroDivisionError):
        probe(root, in_tree())
    monkeypatch.delenv("ACCELCTL_STRICT")
    report = examine(lambda: mutate.root_of(machine("amdgpu")), in_tree())
    (failed,) = [one for one in report.findings if one.id == "RULE-FAILED"]
    assert failed.level == "warn"
    assert "SENSOR-HOT" in failed.title
    assert failed.evidence[0].source.startswith("accelctl.probes.rules.heat.")
    assert failed.evidence[0].raw == "ZeroDivisionError: one"
