"""Archives that are small on disk and large in memory, measured in a process of their own that may have 1 GiB.

Damage and malice in general stand in test_archive.py; here is what only shows in a real process.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.rooms import in_tree
from accelctl.accept import manifest as expectations
from accelctl.hal.archive import read_archive
from accelctl.hal.manifest import SCHEMA, Manifest
from accelctl.model.device import Device
from accelctl.probes.filters import parse_filter, parse_filters
from accelctl.probes.scan import probe
from tests import mutate
from tests.helpers import ROOT, environment
from tests.hostile import JSON_VALUES, NUMBERS
from tests.mutate import tried
from tests.unit.test_fuzz_rules import VALUES, toml
from tests.unit.test_fuzz_trees import examples, machine

MOST_MIB = 700
"""Resident memory that reading any archive may take; 256 MiB of it may be the files themselves."""

CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from accelctl.hal.archive import read_archive
from accelctl.errors import UsageError
try:
    said = f"read {len(read_archive(sys.argv[1]).files)}"
except UsageError as error:
    said = error.message
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
print(said)
"""
MIB = 1 << 20
END = b"\0" * 1024


def header(kind: bytes, size: int = 0, name: str = "x") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def extended(kind: bytes, records: int, value: int) -> bytes:
    """An extended header with that many records of that many bytes each."""
    body = b"".join(_record(f"r{number}={'v' * value}\n") for number in range(records))
    return header(kind, len(body)) + body + b"\0" * (-len(body) % 512)


def _record(text: str) -> bytes:
    size = len(text) + 1
    while len(str(size)) + 1 + len(text) != size:
        size = len(str(size)) + 1 + len(text)
    return f"{size} {text}".encode()


def zeros(size: int, count: int) -> Iterator[bytes]:
    for number in range(count):
        yield header(b"0", size, f"f{number}")
        yield b"\0" * size
    yield END


def packed(blocks: Iterator[bytes], how: str) -> bytes:
    """Compressed piece by piece: the whole need not be in memory here either."""
    buffer = io.BytesIO()
    out: io.BufferedIOBase = (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1) if how == "gzip"
        else lzma.LZMAFile(buffer, "wb", preset=0) if how == "xz" else bz2.BZ2File(buffer, "wb", compresslevel=1)
    )  # fmt: skip
    with out:
        for one in blocks:
            out.write(one)
    return buffer.getvalue()


def deep() -> Iterator[bytes]:
    """Folders that no two members share: every header makes sixty of them."""
    for number in range(45_000):
        yield header(b"5", 0, f"{number}/" + "a/" * 45)
    yield header(b"0", 0, "x") + END


def copied() -> Iterator[bytes]:
    """Global records that tarfile copies for every member with an extended header."""
    for number in range(60):
        yield extended(b"g", 2000, 3).replace(b"r", bytes([97 + number % 17]))
    for number in range(9000):
        yield extended(b"x", 1, 1) + header(b"0", 0, f"f{number}")
    yield END


def in_front(*blocks: bytes) -> Iterator[bytes]:
    """Headers before the one member."""
    yield from (*blocks, header(b"0"), END)


BOMBS: dict[str, Callable[[], Iterator[bytes]]] = {
    "gzip of zeros": lambda: zeros(16 * MIB, 17),
    "xz of zeros": lambda: zeros(16 * MIB, 17),
    "bz2 of zeros": lambda: zeros(16 * MIB, 17),
    "as much as is read": lambda: zeros(15 * MIB, 16),
    "deep folders": deep,
    "an extended header of 200 MiB": lambda: in_front(header(b"x", 200 * MIB), b"1" * (200 * MIB)),
    "a long name of 200 MiB": lambda: in_front(header(b"L", 200 * MIB), b"a" * (200 * MIB)),
    "an extended header of a million records": lambda: in_front(extended(b"x", 1_000_000, 5)),
    "a global header of a million records": lambda: in_front(extended(b"g", 1_000_000, 5)),
    "global headers, then extended ones": copied,
    "many empty members": lambda: (header(b"0", 0, f"f{number}") for number in range(60_000)),
}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", list(BOMBS))
def test_bombs_stay_small_in_memory(bomb: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    first = bomb.partition(" ")[0]
    path.write_bytes(packed(BOMBS[bomb](), first if first in ("xz", "bz2") else "gzip"))
    assert path.stat().st_size < 4 * MIB
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peak, said = done.stdout.splitlines()
    assert int(peak) < MOST_MIB, f"{peak} MiB: {said}"
    assert said.startswith("read" if bomb == "as much as is read" else str(path)), said


def test_flipped_and_cut_archives_of_machines(tmp_path: Path) -> None:
    """Real archives with some bits flipped, bytes exchanged or the end missing, also below the compression."""
    mutate.pack(machine("amdgpu"), tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    plain = lzma.decompress(good)
    path = tmp_path / "bad"

    @examples(120)
    @given(
        inside=st.booleans(),
        cut=st.integers(0, 1 << 20),
        changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(max_size=9)), max_size=6),
    )
    def holds(inside: bool, cut: int, changes: list[tuple[int, bytes]]) -> None:
        data = bytearray(plain if inside else good)
        for where, new in changes:
            data[where % len(data) : where % len(data) + len(new)] = new
        path.write_bytes(data[: cut % len(data)] if cut % 3 == 0 else data)
        tree, refusal = tried(lambda: read_archive(str(path)))
        if tree is None:
            assert refusal.startswith(str(path))
            return
        assert not [
            name for name in (*tree.files, *tree.links, *tree.nodes) if name.startswith("/") or ".." in name.split("/")
        ]

    holds()


# -- manifests, expectations, filters ----------------------------------------------------------------------------------

json_values = st.recursive(
    st.sampled_from([*JSON_VALUES, *NUMBERS]) | st.text(max_size=20) | st.integers() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.sampled_from(["mode", "uid", "kind", "acl"]), inner, max_size=4)
    ),
    max_leaves=8,
)
FIELDS = ("schema", "nodes", "errors", "process", "environ", "complete", "redacted", "x")


@examples(250)
@given(
    document=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=6),
    known=st.booleans(),
    raw=st.none() | st.binary(max_size=60),
)
def test_any_manifest_is_read_or_refused(document: dict[str, object], known: bool, raw: bytes | None) -> None:
    data = json.dumps({**document, **({"schema": SCHEMA} if known else {})}).encode() if raw is None else raw
    parsed, refusal = tried(lambda: Manifest.parse(data, "some file"))
    assert parsed is not None or refusal.startswith("some file")


KEYS = (
    "schema", "machine", "kernel_parameters", "tolerance", "device", "count", "match", "facts", "min", "max", "nodes",
    "x",
)  # fmt: skip


@examples(250)
@given(
    values=st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES) | json_values, max_size=5),
    known=st.booleans(),
    raw=st.none() | st.binary(max_size=60) | st.text(max_size=60).map(str.encode),
)  # fmt: skip
def test_any_expectation_is_read_or_refused(values: dict[str, object], known: bool, raw: bytes | None) -> None:
    rows = {**values, **({"schema": expectations.SCHEMA} if known else {})}
    text = "\n".join(f"{key} = {'0' if value is None else toml(value)}" for key, value in rows.items())
    data = text.encode("utf-8", "surrogatepass") if raw is None else raw
    parsed, refusal = tried(lambda: expectations.parse(data, "some file"))
    assert parsed is not None or refusal.startswith("some file")


PARTS = (
    "pci", "drm", "vendor", "driver", "class", "device", "sim", "torch", ":", "=", ",", "0000:03:00.0", "*", "[", "²",
    "\n", "é", " ", "0x",
)  # fmt: skip


@examples(250)
@given(
    texts=st.lists(
        st.lists(st.sampled_from(PARTS) | st.text(max_size=5), max_size=6).map("".join), min_size=1, max_size=3
    )
)
def test_any_filter_is_used_or_refused(texts: list[str]) -> None:
    chosen, _ = tried(lambda: parse_filters(texts))
    if chosen is None:
        return
    assert all(parse_filter(one.text) == one for one in chosen.filters)
    for device in shown():
        assert chosen(device) in (True, False)


@lru_cache(maxsize=1)
def shown() -> tuple[Device, ...]:
    names = ("amdgpu", "software")
    return tuple(device for name in names for device in probe(mutate.root_of(machine(name)), in_tree()).devices)
