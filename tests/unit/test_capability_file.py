"""Evidence in a file: what is written can be read again, what is damaged is one clear error, nothing is half written,
and of two writers none loses what the other one wrote."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.capability import LADDER, Capability, Platform, Semantics
from accelctl.abi.capabilityfile import MOST_BYTES, OLDER, SCHEMA, default_path, merged, present, read, save, update
from accelctl.abi.condition import MOST, Conditions
from accelctl.abi.opset import OPS
from accelctl.abi.tensors import DTYPES
from accelctl.errors import AccelError, UsageError
from accelctl.hal import lockfile
from accelctl.model import toml, tomltext
from accelctl.model.smokereport import Evidence

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FIGURES = st.dictionaries(WORDS, st.floats(allow_nan=False, allow_infinity=False), max_size=3)
DAYS = st.dates().map(lambda day: day.isoformat())
TYPES = st.sets(st.sampled_from(list(DTYPES))).map(frozenset)
LENGTHS = st.integers(0, MOST)


@st.composite
def conditions(draw: st.DrawFn, op: str) -> Conditions:
    axes = [f"{one.name}.{axis}" for one in OPS[op].inputs for axis in ("0", "-1", "rank")]
    optional = [one.name for one in OPS[op].inputs if one.optional]
    return Conditions(
        dtypes=draw(TYPES),
        results=draw(TYPES),
        dims={
            name: (min(pair), max(pair))
            for name, pair in draw(
                st.dictionaries(st.sampled_from(axes), st.tuples(LENGTHS, LENGTHS), max_size=2)
            ).items()
        },
        dense=draw(st.booleans()),
        absent=frozenset(draw(st.sets(st.sampled_from(optional)))) if optional else frozenset(),
        needs=draw(st.dictionaries(WORDS, LENGTHS, max_size=2)),
        instructions=tuple(draw(st.lists(WORDS, max_size=2))),
        words=tuple(draw(st.lists(WORDS, max_size=2))),
    )  # fmt: skip


@st.composite
def capabilities(draw: st.DrawFn) -> Capability:
    held = draw(st.sets(st.sampled_from(list(LADDER))))
    op = draw(st.sampled_from(list(OPS)))
    versions = tuple(sorted(draw(st.dictionaries(WORDS, WORDS, max_size=2)).items()))
    meaning = st.builds(Semantics, WORDS, WORDS, WORDS, st.lists(WORDS, max_size=2).map(tuple), st.booleans())
    return Capability(
        kernel=draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)),
        op=op,
        platform=Platform(
            draw(WORDS), draw(WORDS), draw(WORDS), tuple(draw(st.lists(WORDS, max_size=2))), versions
        ),
        preconditions=draw(conditions(op)),
        semantics=draw(st.dictionaries(WORDS, meaning, max_size=2)),
        evidence=tuple(
            Evidence(rung, draw(DAYS), draw(FIGURES), draw(WORDS)) for rung in LADDER if rung in held
        ),
        fallback=draw(WORDS),
        simulated=draw(st.booleans()),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


def one(**more: Any) -> Capability:
    platform = Platform("sim:0", "card", "driver 1", ("tool 2",), (("library", "3"),))
    evidence = (Evidence("blob golden", "2026-03-01", {"cases": 12.0}, "all"),)
    facts = {
        "kernel": "relu",
        "op": "relu",
        "platform": platform,
        "evidence": evidence,
        "preconditions": Conditions(dtypes=frozenset({"fp32"}), dims={"X.0": (1, 8)}, dense=True),
        "semantics": {"torch": Semantics("relu", "accelctl::relu(Tensor X) -> Tensor", "Y: as X")},
    }
    return Capability(**{**facts, **more})


# -- writing and reading


@given(st.lists(capabilities(), max_size=3, unique_by=lambda record: record.key), st.sampled_from(["toml", "json"]))
def test_what_was_written_is_read(folder: Path, records: list[Capability], kind: str) -> None:
    path = str(folder / f"round.{kind}")
    save(path, records)
    assert sorted(read(path), key=lambda record: record.key) == sorted(records, key=lambda record: record.key)


VALUES = st.recursive(
    st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3).filter(lambda several: not any(isinstance(x, dict) for x in several)),
    max_leaves=4,
)
TABLES = st.recursive(
    st.dictionaries(WORDS, VALUES, max_size=3),
    lambda inner: st.dictionaries(WORDS, inner | VALUES | st.lists(inner, min_size=1, max_size=2), max_size=3),
    max_leaves=6,
)


@given(TABLES)
def test_toml_is_what_it_says(table: dict[str, Any]) -> None:
    text = tomltext.dumps(table)
    assert toml.loads(text) == table


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 1 << 63, [{"a": 1}, 2], "\ud800", [None]])
def test_what_toml_does_not_have(value: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        tomltext.dumps({"name": value})


def test_the_same_records_make_the_same_bytes(tmp_path: Path) -> None:
    records = [one(kernel=name, platform=Platform(device, "", "")) for name in "ab" for device in ("z:0", "a:0")]
    for name, order in (("f.toml", records), ("g.toml", records[::-1])):
        save(str(tmp_path / name), order)
    text = (tmp_path / "f.toml").read_text(encoding="utf-8")
    assert text == (tmp_path / "g.toml").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line.startswith(("device", "kernel"))] == [
        'kernel = "a"', 'device = "a:0"', 'kernel = "b"', 'device = "a:0"',
        'kernel = "a"', 'device = "z:0"', 'kernel = "b"', 'device = "z:0"',
    ]  # fmt: skip


def test_no_file_holds_no_records(tmp_path: Path) -> None:
    assert read(str(tmp_path / "none")) == []
    with pytest.raises(UsageError, match="none: there is no such file"):
        present(str(tmp_path / "none"))


def test_an_older_file_is_read_and_its_words_never_hold(tmp_path: Path) -> None:
    record = {
        "kernel": "relu", "op": "relu", "simulated": True, "preconditions": ["fp32", "any strides"], "fallback": "",
        "platform": {"device": "sim:0", "architecture": "card", "driver": "sim", "toolchain": ["accelctl 0.0.9"]},
        "semantics": {"torch": "relu"}, "reached": "", "missing": "",
        "evidence": [{"rung": "blob golden", "date": "2026-03-01", "figures": {"cases": 1}, "detail": ""}],
    }  # fmt: skip
    (tmp_path / "f").write_text(json.dumps({"schema": OLDER, "accelctl": "0", "capabilities": [record]}))
    (found,) = read(str(tmp_path / "f"))
    assert found.preconditions == Conditions(words=("fp32", "any strides"))
    assert found.semantics == {"torch": Semantics("relu")}
    assert found.platform == Platform("sim:0", "card", "sim", ("accelctl 0.0.9",))


# -- damage


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(found for key, part in inner for found in places(part, (*at, key)))]


def whole() -> dict[str, Any]:
    return {"schema": SCHEMA, "accelctl": "1", "capabilities": [one().document()]}


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def refused_in_one_line(path: str) -> bool:
    """Whether a file is refused, and then in one line that names it; False: it is still good, and can be written."""
    try:
        found = read(path)
    except UsageError as error:
        said = error.message
        assert said.startswith(f"{path}: no capabilities of accelctl: ")
        assert "\n" not in said
        return True
    save(f"{path}.toml", found)
    return False


NEEDED = {"schema", "capabilities", "kernel", "op", "platform", "evidence", "rung", "date", "device", "toolchain"}


@given(st.sampled_from(places(whole())[1:]), JUNK, st.booleans())
def test_a_part_that_is_missing_or_something_else(folder: Path, at: tuple[Any, ...], junk: Any, remove: bool) -> None:
    document: Any = whole()
    holder = document
    for key in at[:-1]:
        holder = holder[key]
    if remove:
        del holder[at[-1]]
    else:
        holder[at[-1]] = junk
    path = folder / "damaged"
    path.write_text(json.dumps(document), encoding="utf-8")
    refused = refused_in_one_line(str(path))
    assert refused or not (remove and at[-1] in NEEDED)


@given(st.data(), st.booleans())
def test_bytes_that_are_missing_or_wrong(folder: Path, data: st.DataObject, as_toml: bool) -> None:
    raw = (tomltext.dumps(whole()) if as_toml else json.dumps(whole())).encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    path = folder / "bytes"
    path.write_bytes(raw[:start] + data.draw(st.binary(max_size=8)) + raw[end:])
    refused_in_one_line(str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("[]", "the file cannot be '[]'"),
        ("{}", "schema is None, not 'accelctl.capabilities/2'"),
        ('{"schema": "accelctl.capabilities/3"}', "schema is 'accelctl.capabilities/3'"),
        (f'{{"schema": "{SCHEMA}"}}', "capabilities is missing"),
        ("[" * 100_000, "recursion"),
        (" " * (MOST_BYTES + 1), "more than 16777216 bytes"),
        ("schema = 1\nschema = 2\n", "overwrite"),
        ("\x00", "Invalid"),
    ],
    ids=["empty", "list", "object", "later", "bare", "deep", "long", "twice", "zero"],
)
def test_what_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "f").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read(str(tmp_path / "f"))
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"preconditions": {"warp": 32}}, "preconditions: 'warp' is none that this accelctl can evaluate"),
        ({"preconditions": {"dims": {"M": [1]}}}, "conditions: relu has no dimension 'M'"),
        ({"preconditions": {"dims": {"X.0": [2, 1]}}}, "X.0 from 2 to 1: no call has that"),
        ({"preconditions": {"dims": {"X.0": [1, 2, 3]}}}, "X.0 needs its least, and its most where there is one"),
        ({"preconditions": {"absent": ["X"]}}, "relu has no optional operand 'X'"),
        ({"preconditions": {"attrs": {"tf32": "true"}}}, "relu has no such attribute"),
        ({"preconditions": {"dtypes": ["fp8"]}}, "no element type 'fp8'"),
        ({"kernel": ""}, "a capability without a kernel"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_never_left_out(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    document = whole()
    document["capabilities"][0] |= change
    (tmp_path / "f").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read(str(tmp_path / "f"))
    assert said in caught.value.message


def test_one_kernel_on_one_platform_is_there_once(tmp_path: Path) -> None:
    document = whole()
    document["capabilities"] *= 2
    (tmp_path / "f").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UsageError, match=r"relu \(relu\) on sim:0 is there twice"):
        read(str(tmp_path / "f"))


def test_whether_one_is_there_twice_is_one_look_at_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many as a file may hold, a look at each pair would take minutes."""
    document = whole()
    (template,) = document["capabilities"]
    document["capabilities"] = [{**template, "kernel": f"k{n}"} for n in (*range(200), 199)]
    path = tmp_path / "f.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    looks: list[str] = []
    key = Capability.key.fget  # type: ignore[attr-defined]

    def looked(self: Capability) -> object:
        looks.append(self.kernel)
        return key(self)

    monkeypatch.setattr(Capability, "key", property(looked))
    with pytest.raises(UsageError, match=r"k199 .* is there twice"):
        read(str(path))
    assert len(looks) <= 201


def test_a_folder_or_a_pipe_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="Expecting value"):
        read(str(tmp_path / "pipe"))


# -- replacing


def test_what_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    save(str(path), [one()])
    before = path.read_bytes()

    def fail(*words: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("replace", "fsync"):
        monkeypatch.setattr(os, step, fail)
        with pytest.raises(AccelError, match="no space left") as caught:
            save(str(path), [one(), one(kernel="other")])
        assert caught.value.exit_code == 7
        monkeypatch.undo()
        assert path.read_bytes() == before
        assert sorted(os.listdir(tmp_path)) == [".f.lock", "f"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_plain_file_is_never_replaced(tmp_path: Path, kind: str) -> None:
    """A device node's place taken by a file would break the whole machine."""
    path = tmp_path / "f"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/null")
    before, beside = os.stat(path), sorted(os.listdir(path.parent))
    with pytest.raises(UsageError, match="cannot be written"):
        save(str(path), [one()])
    with pytest.raises(UsageError, match="cannot be written"):
        lockfile.replaced(str(path), b"x")
    after = os.stat(path)
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert sorted(os.listdir(path.parent)) == beside


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "f")
    lockfile.replaced(str(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "f").read_bytes() == b"new"


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o640])
def test_a_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "f"
    save(str(path), [])
    path.chmod(mode)
    save(str(path), [one()])
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077, 0])
def test_a_new_file_is_read_as_the_umask_says_and_written_by_its_owner(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "f"
    before = os.umask(umask)
    try:
        save(str(path), [one()])
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644 & ~umask


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "f").symlink_to("there/f")
    save(str(tmp_path / "f"), [one()])
    assert (tmp_path / "f").is_symlink()
    assert read(str(tmp_path / "there/f")) == [one()]


@pytest.mark.parametrize("path", ["none/f", "plain/f", "nul\0l"])
def test_a_place_that_cannot_be_written(tmp_path: Path, path: str) -> None:
    (tmp_path / "plain").touch()
    with pytest.raises(UsageError, match="cannot be written") as caught:
        save(str(tmp_path / path), [])
    assert "\n" not in caught.value.message


def test_the_folder_of_the_default_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    update(default_path(), lambda known: [*known, one()])
    assert (tmp_path / "data/accelctl/capabilities.toml").read_text(encoding="utf-8").startswith(f'schema = "{SCHEMA}"')
    (tmp_path / "data/accelctl/capabilities.toml").unlink()
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/none")
    with pytest.raises(UsageError, match=r"^/proc/none/accelctl: cannot be made \("):
        update(default_path(), list)


# -- two writers


def writer(path: str, name: str, start: Any) -> None:
    start.wait()
    for number in range(20):
        update(path, lambda known, number=number: [*known, one(kernel=f"{name}{number}")])  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_of_many_writers_none_loses_what_another_one_wrote(tmp_path: Path, kind: str) -> None:
    path, context = str(tmp_path / f"f.{kind}"), multiprocessing.get_context("fork")
    start = context.Event()
    writers = [context.Process(target=writer, args=(path, name, start)) for name in "abc"]
    for process in writers:
        process.start()
    start.set()
    for process in writers:
        process.join(60)
        assert process.exitcode == 0
    assert {record.kernel for record in read(path)} == {f"{name}{number}" for name in "abc" for number in range(20)}


def test_a_lock_that_is_kept_is_said(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    with (
        lockfile.locked(path),
        pytest.raises(AccelError, match=r"another process has held its lock for 0 s") as caught,
        lockfile.locked(path, patience_s=0),
    ):
        pass
    assert caught.value.kind == "busy"
    with lockfile.locked(path, patience_s=0):  # and is free again afterwards
        pass


def test_a_lock_file_is_no_way_to_write_elsewhere(tmp_path: Path) -> None:
    (tmp_path / ".f.lock").symlink_to(tmp_path / "target")
    with pytest.raises(UsageError, match="cannot be written"):
        save(str(tmp_path / "f"), [])
    assert not (tmp_path / "target").exists()


# -- merging


def test_each_rung_keeps_its_newest_evidence_and_other_platforms_stay() -> None:
    old = one(evidence=(Evidence("blob golden", "2026-05-01", {}), Evidence("kernel alone", "2026-05-01", {})))
    new = one(evidence=(Evidence("blob golden", "2026-06-01", {}),), fallback="other")
    elsewhere = one(platform=Platform("opencl:0", "", ""))
    both, other = merged([old, elsewhere], [new])
    assert other == elsewhere
    assert both.fallback == "other"
    assert [(rung.rung, rung.date) for rung in both.evidence] == [
        ("blob golden", "2026-06-01"),
        ("kernel alone", "2026-05-01"),
    ]
    assert [rung.date for rung in merged([new], [old])[0].evidence] == ["2026-06-01", "2026-05-01"]


# -- staleness


@pytest.mark.parametrize("field", ["architecture", "driver", "toolchain", "versions"])
def test_a_record_is_stale_where_anything_of_its_platform_changed(field: str) -> None:
    record = one()
    changed: Any = {"toolchain": ("tool 3",), "versions": (("library", "4"),)}.get(field, "another")
    now = record.platform._replace(**{field: changed})
    assert record.stale(record.platform) == ""
    assert {"versions": "library: 3, now 4", "toolchain": "toolchain: tool 2, now tool 3"}.get(
        field, "now another"
    ) in (record.stale(now))


def test_a_record_that_was_changed_by_hand_proves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    save(str(path), [one()])
    text = path.read_text(encoding="utf-8")
    now = one().platform
    path.write_text(text.replace('library = "3"', 'library = "2"'), encoding="utf-8")
    assert read(str(path))[0].stale(now) == "library: 2, now 3"
    path.write_text(text.replace(now.fingerprint, "0" * 16), encoding="utf-8")
    assert read(str(path))[0].stale(now) == "its fingerprint is not that of what it says"
