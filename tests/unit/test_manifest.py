"""The manifest of a capture: understood, or refused with one line."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.errors import UsageError
from accelctl.hal.manifest import SCHEMA, Manifest, Process
from accelctl.hal.tree import NodeStat

NODE = {"mode": "0660", "uid": 0, "gid": 109, "major": 226, "minor": 128, "access": "EACCES"}


def document(**fields: Any) -> bytes:
    return json.dumps({"schema": SCHEMA, **fields}).encode()


def refusal(data: bytes) -> str:
    with pytest.raises(UsageError) as caught:
        Manifest.parse(data, "some.tar")
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300
    assert caught.value.message.startswith("some.tar: accelctl-capture.json is not a capture manifest (")
    return caught.value.message


def test_everything_in_it() -> None:
    manifest = Manifest.parse(
        document(
            nodes={"dev/kfd": {**NODE, "kind": "c", "acl": "u::rw-,u:1000:rw-,g::---,m::rw-,o::---"}, "dev/x": NODE},
            errors={"sys/x/y": "EPERM"},
            process={"uid": 1000, "gid": 1000, "groups": [44, 109], "capabilities": "000000000000000a"},
            environ={"HIP_VISIBLE_DEVICES": "1"},
            complete=True,
            redacted=True,
        ),
        "x",
    )
    node = manifest.nodes["dev/kfd"]
    assert node.stat == NodeStat("c", 0o660, 0, 109, 226, 128)
    assert (node.access, node.acl_text) == ("EACCES", "u::rw-,u:1000:rw-,g::---,m::rw-,o::---")
    assert manifest.errors == {"sys/x/y": errno.EPERM}
    assert manifest.process == Process(1000, 1000, (44, 109), 10)
    assert manifest.environ == {"HIP_VISIBLE_DEVICES": "1"}
    assert (manifest.complete, manifest.redacted) == (True, True)


def test_nothing_in_it() -> None:
    manifest = Manifest.parse(document(), "x")
    assert manifest == Manifest()


@pytest.mark.parametrize(("access", "kept"), [("", ""), (None, None), ("denied", "denied"), ("EPERM", "EPERM")])
def test_answers_of_the_kernel(access: str | None, kept: str | None) -> None:
    assert Manifest.parse(document(nodes={"dev/x": {**NODE, "access": access}}), "x").nodes["dev/x"].access == kept


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"3",
        b'"text"',
        b"{}",
        b'{"schema": 1}',
        b'{"schema": ["accelctl.capture/1"]}',
        b'{"schema": "accelctl.capture/2"}',
        b"[" * 100_000,
        b'{"schema": ' + b"9" * 5000 + b"}",
        document() + b"x",
    ],
)
def test_what_is_no_manifest(data: bytes) -> None:
    refusal(data)


@pytest.mark.parametrize(
    "fields",
    [
        {"nodes": []},
        {"nodes": {"dev/x": None}},
        {"nodes": {"dev/x": {}}},
        {"errors": {"x": "EWHAT"}},
        {"errors": {"x": 13}},
        {"errors": {"x": "ERANGE_"}},
        {"errors": ["x"]},
        {"process": []},
        {"process": {"uid": 0}},
        {"process": {"uid": 0, "gid": 0, "groups": "44"}},
        {"process": {"uid": 0, "gid": 0, "groups": {"4": 4}}},
        {"process": {"uid": 0, "gid": 0, "groups": ["44"]}},
        {"process": {"uid": True, "gid": 0}},
        {"process": {"uid": 1.5, "gid": 0}},
        {"process": {"uid": 0, "gid": 0, "capabilities": "xyz"}},
        {"process": {"uid": 0, "gid": 0, "capabilities": "-1"}},
        {"process": {"uid": 0, "gid": 0, "capabilities": 1 << 64}},
        {"environ": {"A": 1}},
        {"environ": {"A": "b\0c"}},
        {"environ": []},
    ],
)
def test_fields_that_are_not_as_they_should_be(fields: dict[str, Any]) -> None:
    refusal(document(**fields))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "p"},
        {"kind": None},
        {"kind": []},
        {"mode": "8"},
        {"mode": "-660"},
        {"mode": "6_6"},
        {"mode": "77777"},
        {"mode": None},
        {"mode": 6.6},
        {"uid": -1},
        {"uid": 1 << 32},
        {"uid": "0"},
        {"uid": False},
        {"gid": None},
        {"major": -1},
        {"minor": 1e300},
        {"access": "maybe"},
        {"access": {}},
        {"access": 0},
        {"access": ["EPERM"]},
        {"acl": "u::rw-"},
        {"acl": 5},
        {"acl": "u::rw-,u:1:rw-,g::---,o::---"},
    ],
)
def test_nodes_that_are_not_as_they_should_be(change: dict[str, Any]) -> None:
    refusal(document(nodes={"dev/x": {**NODE, **change}}))


def test_texts_that_could_not_be_printed_or_opened() -> None:
    for path in ("dev/\\ud800", "dev/\\u0000", "x" * 100_000):
        refusal(document(nodes={"HERE": NODE}).replace(b"HERE", path.encode()))


def test_infinite_and_missing_numbers() -> None:
    for word in (b"Infinity", b"-Infinity", b"NaN"):
        refusal(document(nodes={"dev/x": {**NODE, "uid": 77}}).replace(b"77", word))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(["nodes", "errors", "process", "environ", "complete", "redacted", "extra"])


@settings(max_examples=300)
@given(st.dictionaries(names, values, max_size=4))
def test_any_document_is_a_manifest_or_refused(fields: dict[str, Any]) -> None:
    try:
        Manifest.parse(document(**fields), "some.tar")
    except UsageError:
        refusal(document(**fields))


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from([*NODE, "kind", "acl"]), values, min_size=1, max_size=4))
def test_any_node_is_one_or_refused(change: dict[str, Any]) -> None:
    data = document(nodes={"dev/x": {**NODE, **change}})
    try:
        node = Manifest.parse(data, "some.tar").nodes["dev/x"]
    except UsageError:
        refusal(data)
    else:
        assert 0 <= node.stat.mode <= 0o7777
        assert 0 <= node.stat.uid < 1 << 32
