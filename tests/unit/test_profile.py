"""Profiles: what a file may say, what applies to a device, and what is told about mistakes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.abi.switches import ops_off
from accelctl.errors import UsageError
from accelctl.model.configtext import tables
from accelctl.model.profile import KEYS, MATCHES, InForce, Profile, Said, for_device, read, table
from accelctl.model.toml import loads
from tests.helpers import ROOT


def profiles(*files: str) -> tuple[Profile, ...]:
    """Of texts of files, the highest one first; they are called /0, /1, ..."""
    return read((f"/{number}", tables(f"/{number}", text.encode(), ["serve"])) for number, text in enumerate(files))


def force(*files: str, chip: str = "sim", device: str = "sim:0", title: str = "simulated accelerator") -> InForce:
    return for_device(profiles(*files), chip, device, title)


def values(found: InForce) -> dict[str, Any]:
    return {key: said[0].value for key, said in found.said.items()}


# -- what may be said


def test_every_key_is_read() -> None:
    text = """
    [profile.sim]
    ops.off = ["attention_*", "relu"]
    kernels.off = ["matvec"]
    memory.fraction = 0.5
    memory.limit = "8GiB"
    memory.pool = 1048576
    [profile.sim.limits]
    sessions = 8
    queue-depth = 16
    message = "16MiB"
    batch = 100
    lists = 3
    list-bytes = "1MiB"
    """
    found = values(force(text))
    assert found == {
        "ops.off": ["attention_*", "relu"],
        "kernels.off": ["matvec"],
        "memory.fraction": 0.5,
        "memory.limit": 8 << 30,
        "memory.pool": 1 << 20,
        "limits.sessions": 8,
        "limits.queue-depth": 16,
        "limits.message": 16 << 20,
        "limits.batch": 100,
        "limits.lists": 3,
        "limits.list-bytes": 1 << 20,
    }
    assert list(found) == list(KEYS)


WRONG = [
    ("sim", "ops.of = []", "[profile.sim] ops.of: no such key (did you mean ops.off?)"),
    ("sim", "opps.off = []", "[profile.sim] opps.off: no such key (did you mean ops.off?)"),
    ("sim", "limits.session = 3", "[profile.sim] limits.session: no such key (did you mean limits.sessions?)"),
    ("sim", "limits = 3", "[profile.sim] limits: no such key (did you mean limits.lists?)"),
    ("sim", "limits.lists.most = 3", "[profile.sim] limits.lists.most: no such key (did you mean limits.lists?)"),
    ("sim", "ops = {}", "[profile.sim] ops: no such key (did you mean ops.off?)"),
    ("sim", "chips = 'a'", "[profile.sim] chips: no such key (did you mean chip?)"),
    ("sim", "ops.off = 'relu'", '[profile.sim] ops.off: a list, ["...", "..."], is expected, not "relu"'),
    ("sim", "ops.off = [true]", "[profile.sim] ops.off: a text is expected, not true"),
    ("sim", "ops.off = ['']", "[profile.sim] ops.off: names of 1 to 80 characters are expected"),
    ("sim", 'ops.off = ["a\\nb"]', "[profile.sim] ops.off: holds a control character"),
    ("sim", "memory.fraction = 0", "[profile.sim] memory.fraction: 0.001 to 1 is possible, not 0"),
    ("sim", "memory.fraction = 50", "[profile.sim] memory.fraction: 0.001 to 1 is possible, not 50"),
    ("sim", "memory.fraction = nan", "[profile.sim] memory.fraction: 0.001 to 1 is possible, not nan"),
    ("sim", "memory.fraction = '50%'", '[profile.sim] memory.fraction: a number is expected, not "50%"'),
    ("sim", "memory.limit = '8 apples'", "[profile.sim] memory.limit '8 apples': not a size such as 256MiB"),
    ("sim", "memory.limit = true", "[profile.sim] memory.limit: a text is expected, not true"),
    ("sim", "memory.limit = {}", "[profile.sim] memory.limit: a text is expected, not a table"),
    ("sim", "limits.message = '7MiB'", "[profile.sim] limits.message: 8MiB to 64MiB is possible, not 7MiB"),
    ("sim", "limits.message = '65MiB'", "[profile.sim] limits.message: 8MiB to 64MiB is possible, not 65MiB"),
    ("sim", "limits.sessions = 2.5", "[profile.sim] limits.sessions: a whole number is expected, not a number"),
    ("sim", "limits.sessions = 0", "[profile.sim] limits.sessions: 1 to 4096 is possible, not 0"),
    ("sim", f"limits.sessions = {10**30}", "[profile.sim] limits.sessions: the number is too large"),
    ("sim", "title = 3.5e400", "[profile.sim] title: the number is too large"),
    ("sim", "title = ''", "[profile.sim] title: 1 to 200 characters are expected"),
    ("sim", "device = ['sim:0']", "[profile.sim] device: a text is expected, not a list"),
    ('"MI 300"', "x = 1", '[profile."MI 300"] x: no such key'),
]


@pytest.mark.parametrize(("name", "line", "said"), WRONG, ids=[line for _, line, _ in WRONG])
def test_a_mistake_is_one_line_with_its_place(name: str, line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        profiles(f"[profile.{name}]\n{line}\n")
    assert caught.value.message == f"/0: {said}"


def test_mistakes_of_the_table_itself() -> None:
    for text, said in (
        ("profile = 3", "/0: profile: stands outside of a table; options stand below a command, as in [probe]"),
        ("[profile]\nsim = 3", "/0: [profile] sim: a profile is a table, as in [profile.sim]"),
        ("[[profile.sim]]\nchip = 'a'", "/0: [profile] sim: a profile is a table, as in [profile.sim]"),
        (f"[profile.{'x' * 65}]", "/0: [profile]: a profile's name is 1 to 64 printable characters"),
        ('[profile."a\\nb"]', "/0: [profile]: a profile's name is 1 to 64 printable characters"),
        ("\n".join(f"[profile.p{n}]" for n in range(257)), "/0: [profile]: 257 profiles: at most 256"),
        ("[profil.sim]\nx = 1", "/0: [profil]: no such command"),
    ):
        with pytest.raises(UsageError) as caught:
            profiles(text)
        assert caught.value.message == said


def one_line(error: UsageError, start: str) -> None:
    assert error.message.startswith(start)
    assert "\n" not in error.message


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_break_it(data: bytes) -> None:
    try:
        read([("/f", tables("/f", b"[profile.sim]\n" + data, ["serve"]))])
    except UsageError as error:
        one_line(error, "/f: ")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
TREES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
NAMES = st.sampled_from([*KEYS, *MATCHES, *(key.partition(".")[0] for key in KEYS)]) | st.text(max_size=12)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in flat.items():
        head, point, tail = key.partition(".")
        if point and isinstance(found.setdefault(head, {}), dict):
            found[head][tail] = value
        elif not point:
            found[head] = value
    return found


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=10), st.dictionaries(NAMES, TREES | st.sampled_from(["8GiB", 0.5, 3, ["relu"]]), max_size=5))
def test_no_document_breaks_it(name: str, content: dict[str, Any]) -> None:
    """Whatever a TOML parser may hand over: profiles with values in range, or one line."""
    try:
        (found,) = read([("/f", {"profile": {name: nested(content)}})])
    except UsageError as error:
        one_line(error, "/f: [profile")
        return
    for key, value in found.values.items():
        limit = KEYS[key]
        assert isinstance(value, list) or limit.least <= float(str(value)) <= limit.most
    force = for_device([found], "sim", "sim:0", "title")
    assert set(force.said) <= set(found.values)


# -- what applies


def test_a_profile_is_for_the_chip_of_its_name() -> None:
    text = "[profile.sim]\nlimits.sessions = 2\n[profile.opencl]\nlimits.sessions = 3\n"
    assert values(force(text)) == {"limits.sessions": 2}
    assert values(force(text, chip="opencl", device="opencl:0")) == {"limits.sessions": 3}
    assert values(force(text, chip="torch", device="torch:cpu")) == {}


def test_patterns_must_all_fit() -> None:
    text = "[profile.x]\nchip = 'opencl'\ntitle = '*mi300*'\nlimits.sessions = 2\n"
    fits = {"chip": "opencl", "device": "opencl:1", "title": "AMD Instinct MI300X (ROCm)"}
    assert values(force(text, **fits)) == {"limits.sessions": 2}
    for change in ({"chip": "torch"}, {"title": "AMD Instinct MI250"}):
        assert values(force(text, **{**fits, **change})) == {}
    assert values(force("[profile.x]\ndevice = 'sim:?'\nlimits.sessions = 4\n")) == {"limits.sessions": 4}


def test_the_upper_file_wins_key_by_key_and_lists_replace() -> None:
    found = force(
        "[profile.sim]\nops.off = []\nlimits.lists = 5\n",
        "[profile.sim]\nops.off = ['relu']\nlimits.sessions = 7\n[profile.y]\ndevice = 'sim:0'\nlimits.lists = 9\n",
    )
    assert values(found) == {"ops.off": [], "limits.sessions": 7, "limits.lists": 5}
    assert [(one.value, one.place) for one in found.said["limits.lists"]] == [
        (5, "/0: [profile.sim] limits.lists"),
        (9, "/1: [profile.y] limits.lists"),
    ]


def test_within_a_file_what_says_more_wins() -> None:
    text = (
        "[profile.sim]\nlimits.lists = 1\n"
        "[profile.a]\ntitle = 'sim*'\nlimits.lists = 2\n"
        "[profile.b]\ndevice = 'sim:0'\nlimits.lists = 3\n"
        "[profile.c]\ndevice = 'sim:0'\ntitle = '*'\nlimits.lists = 4\n"
    )
    assert [one.value for one in force(text).said["limits.lists"]] == [4, 3, 2, 1]


def test_two_that_fit_equally_well_are_a_mistake_only_where_they_differ() -> None:
    text = "[profile.sim]\nlimits.lists = {}\n[profile.z]\nchip = 's*'\nlimits.lists = 2\nlimits.sessions = 2\n"
    assert values(force(text.format(2))) == {"limits.sessions": 2, "limits.lists": 2}
    with pytest.raises(UsageError) as caught:
        force(text.format(3))
    assert caught.value.message == (
        "/0: [profile.sim] limits.lists: [profile.z] fits sim:0 equally well and says otherwise"
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["reluu"], "here: there is no op reluu (did you mean relu?)"),
        (["copy"], "here: copy: copy cannot be switched off, other ops are made with it"),
        (["*"], "here: *: copy cannot be switched off, other ops are made with it"),
        (["z*"], "here: there is no op z*"),
    ],
)
def test_names_of_ops(names: list[str], said: str) -> None:
    assert sorted(ops_off(["attention_*", "relu"], "x")) == ["attention_decode", "attention_prefill", "relu"]
    with pytest.raises(UsageError) as caught:
        ops_off(names, "here")
    assert caught.value.message == said


# -- the document

DOCUMENT = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_profiles_in_the_document_are_read() -> None:
    (block,) = (one for one in re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL) if "[profile." in one)
    found = read([("/f", loads(block))])
    assert [one.name for one in found] == ["sim", "mi300"]
    names = found[0].values["ops.off"]
    assert isinstance(names, list)
    ops_off(names, "x")


def test_the_document_names_every_key_and_its_default() -> None:
    section = DOCUMENT.partition("## Profiles of chips")[2].partition("\n## ")[0]
    rows: dict[str, str] = {}
    for row in re.findall(r"^\| (`.*?) \|.*\| ([^|]*) \|$", section, re.MULTILINE):
        keys = re.findall(r"`([^`]+)`", row[0])
        rows.update(zip(keys, [one.strip() for one in row[1].split(",")] * len(keys), strict=False))
    assert {*rows} == {*KEYS, *MATCHES}
    assert {key: rows[key] for key in KEYS} == {key: one.default for key, one in KEYS.items()}


def test_the_mistakes_in_the_document_are_what_is_said() -> None:
    lines = [line.strip() for line in DOCUMENT.splitlines() if line.startswith("    accelctl serve: /home/ada")]
    assert len(lines) == 2
    for line, text in zip(lines, ("ops.of = []", "memory.fraction = 50"), strict=True):
        with pytest.raises(UsageError) as caught:
            read([("/home/ada/bench/accelctl.toml", loads(f"[profile.sim]\n{text}\n"))])
        assert line == f"accelctl serve: {caught.value.message}"


def test_names_of_tables() -> None:
    assert [table(name) for name in ("sim", "a-b_1", "MI 300", "a.b")] == [
        "[profile.sim]",
        "[profile.a-b_1]",
        '[profile."MI 300"]',
        '[profile."a.b"]',
    ]
    assert Said(1, profiles("[profile.'MI 300']\nlimits.lists = 1\n")[0], "limits.lists").place == (
        '/0: [profile."MI 300"] limits.lists'
    )
