"""Archives from strangers: read into memory, or refused with one line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import struct
import tarfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelctl.errors import UsageError
from accelctl.hal import archive
from accelctl.hal.archive import read_archive
from accelctl.hal.tree import MemoryTree

END = b"\0" * 1024


def member(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=kind, linkname=target)


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as file:
        for info, data in members:
            file.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def block(kind: bytes, size: int = 0, name: str = "x", **raw: bytes) -> bytes:
    """One header as it stands on tape, with fields overwritten by raw bytes and the checksum made right."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = size
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    places = {"raw_size": 124, "devmajor": 329, "sparse": 386}
    for field, data in raw.items():
        head[places[field] : places[field] + len(data)] = data
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def pax(**records: bytes) -> bytes:
    """An extended header with records; underscores in the names stand for dots."""
    body = b""
    for field, value in records.items():
        rest = b" " + field.replace("_", ".").encode() + b"=" + value + b"\n"
        size = len(rest)
        while len(str(size)) + len(rest) != size:
            size = len(str(size)) + len(rest)
        body += str(size).encode() + rest
    return block(b"x", len(body)) + body + b"\0" * (-len(body) % 512)


def read(data: bytes, folder: Path) -> MemoryTree:
    path = folder / "archive.tar"
    path.write_bytes(data)
    return read_archive(str(path))


def refusal(data: bytes, folder: Path) -> str:
    """The one line of a refusal."""
    with pytest.raises(UsageError) as caught:
        read(data, folder)
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith(str(folder))
    return caught.value.message


GOOD = tar(
    member("sys", type=tarfile.DIRTYPE),
    member("./sys/devices/card/vendor", b"0x10de\n"),
    link("sys/class/card", "/sys/devices/card"),
    link("sys/up", "../../../sys/devices"),
    link("sys/hard", "sys/devices/card/vendor", tarfile.LNKTYPE),
    member("dev/dri/renderD128", type=tarfile.CHRTYPE, devmajor=226, devminor=128, mode=0o20660, gid=109),
    member("dev/fifo", type=tarfile.FIFOTYPE),
)
PACKERS: list[Callable[[bytes], bytes]] = [bytes, gzip.compress, lzma.compress, bz2.compress]


@pytest.mark.parametrize("pack", PACKERS)
def test_good_archive_however_it_is_packed(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    tree = read(pack(GOOD), tmp_path)
    assert tree.read("sys/class/card/vendor", 99) == b"0x10de\n"
    assert tree.read("sys/up/card/vendor", 99) == b"0x10de\n"
    assert tree.read("sys/hard", 99) == b"0x10de\n"
    assert tree.listdir("sys") == ["class", "devices", "hard", "up"]
    node = tree.stat("dev/dri/renderD128")
    assert (node.kind, node.mode, node.gid, node.major, node.minor) == ("c", 0o660, 109, 226, 128)
    with pytest.raises(OSError, match="Invalid argument"):
        tree.read("dev/fifo", 1)


def test_captured_machines_are_read(shared: Path) -> None:
    for path in sorted((shared / "machines").glob("*.tar.xz")):
        with tarfile.open(path) as file:
            expected = {info.name: file.extractfile(info) for info in file if info.isreg()}
            tree = read_archive(str(path))
            assert set(tree.files) == set(expected)
            for name, source in expected.items():
                assert source is not None
                assert tree.files[name] == source.read()


# -- damage --


@pytest.mark.parametrize("pack", PACKERS)
def test_cut_at_every_length(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """A shorter file is refused, or holds everything (only padding or the end of a checksum was cut)."""
    whole = pack(GOOD)
    full = read(whole, tmp_path)
    for size in [*range(0, len(whole), 1 if len(whole) < 2000 else 61), *range(512, len(whole), 512)]:
        tree = attempt(whole[:size], tmp_path)
        if tree is not None:
            assert (tree.files, tree.links, tree.nodes) == (full.files, full.links, full.nodes), size


@pytest.mark.parametrize("pack", PACKERS[1:])
def test_damage_behind_the_last_member_is_seen(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """The checksum stands at the end of a compressed file; tar itself stops reading before it."""
    data = bytearray(pack(GOOD + os.urandom(64 << 10)))
    data[-5000] ^= 0xFF
    assert "archive (" in refusal(bytes(data), tmp_path)  # and the decompressor's own words


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 512 * 9), st.binary(max_size=12)), min_size=1, max_size=8))
def test_any_change_is_read_or_refused(changes: list[tuple[int, bytes]], tmp_path: Path) -> None:
    changed = bytearray(GOOD)
    for at, data in changes:
        changed[at : at + 1] = data
    read_or_refuse(bytes(changed), tmp_path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=2000))
def test_any_bytes_are_read_or_refused(data: bytes, tmp_path: Path) -> None:
    read_or_refuse(data, tmp_path)


def test_many_headers_put_together_at_random(tmp_path: Path) -> None:
    """2,000 archives of well-formed headers with wild contents."""
    source = random.Random(20260105)
    kinds = [b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"L", b"K", b"x", b"g", b"S", b"Z"]
    numbers = [
        b"\xff" * 12,
        b"\x80" + b"\xff" * 11,
        b"77777777777\0",
        b"garbage!!!!\0",
        b"00000001000\0",
        b"00000000000\0",
    ]
    for _ in range(2000):
        data = b""
        for _ in range(source.randrange(1, 6)):
            raw = {"raw_size": source.choice(numbers)} if source.random() < 0.4 else {}
            body = source.choice([b"", b"a/b\0".ljust(512, b"\0"), os.urandom(512), b"12 path=a/b\n".ljust(512, b"\0")])
            data += (
                block(source.choice(kinds), source.choice([0, len(body)]), source.choice(["a", "a/b", "./"]), **raw)
                + body
            )
        read_or_refuse(data + (END if source.random() < 0.8 else b""), tmp_path)


def attempt(data: bytes, folder: Path) -> MemoryTree | None:
    """The tree, or None after a refusal in one line; never anything else."""
    path = folder / f"changed-{os.getpid()}.tar"
    path.write_bytes(data)
    try:
        return read_archive(str(path))
    except UsageError as error:
        message = error.message
    assert "\n" not in message
    return None


def read_or_refuse(data: bytes, folder: Path) -> None:
    start = time.monotonic()
    tree = attempt(data, folder)
    for name in (*tree.files, *tree.links, *tree.nodes) if tree is not None else ():
        assert not name.startswith("/")
        assert ".." not in name.split("/")
    assert time.monotonic() - start < 20


# -- malice --


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (tar(member("/etc/passwd", b"x")), "absolute name"),
        (tar(member("a/../../b", b"x")), "leaves the root"),
        (tar(member("a/" * 65 + "b", b"x")), "nested deeper than 64"),
        (tar(member("a" * 256, b"x")), "no file system holds"),
        (tar(member("/".join(["abc"] * 1100), b"x")), "no file system holds"),
        (tar(link("a", "b/" * 2100)), "no file system holds"),
        (pax(linkpath=b"a\0b") + block(b"2") + END, "no file system holds"),
        (pax(path=b"a\0b") + block(b"0") + END, "no file system holds"),
        (pax(path=b"a/" * 100_000) + block(b"0") + END, "no file system holds"),
        (pax(path=b"a/" * 2000) + block(b"5") + END, "nested deeper than 64"),
        (block(b"0", raw_size=b"\xff" * 12) + END * 4, "claims -"),
        (block(b"0", raw_size=b"\x80" + b"\0" * 6 + b"\xff" * 5) + END, "unpacks to more than"),
        (block(b"0", (16 << 20) + 1) + END, "claims 16777217 bytes"),
        (block(b"Z", raw_size=b"\x80" + b"\xff" * 11) + END, "unpacks to more than"),
        (block(b"S", raw_size=b"\x80" + b"\xff" * 11) + END, "unpacks to more than"),
        (block(b"Z", raw_size=b"\xff" * 10 + b"\0\0") + END, "unpacks to more than"),
        (b"", "empty file"),
        (END, "archive is empty"),
        (b"hello world\n" * 100, "not a readable tar"),
        (tar(member("only", type=tarfile.DIRTYPE)), "archive is empty"),
    ],
)
def test_refused_with_the_reason(data: bytes, words: str, tmp_path: Path) -> None:
    assert words in refusal(data, tmp_path)


@pytest.mark.parametrize("kind", [b"L", b"K", b"x"])
def test_chained_headers_do_not_exhaust_the_stack(kind: bytes, tmp_path: Path) -> None:
    body = {b"x": b"12 path=abc\n"}.get(kind, b"abc\0")
    chain = (block(kind, len(body)) + body.ljust(512, b"\0")) * 5000
    assert "recursion" in refusal(chain + block(b"0") + END, tmp_path)


def test_sparse_members_that_unpack_from_nothing(tmp_path: Path) -> None:
    """Tiny headers that each stand for 16 MiB of zeros."""
    sparse = b""
    for number in range(40):
        records = {"GNU_sparse_size": b"16777216", "GNU_sparse_numblocks": b"1", "GNU_sparse_map": b"16777216,0"}
        sparse += pax(**records) + block(b"0", 0, f"f{number}")
    assert "unpacks to more than 256 MiB" in refusal(sparse + END, tmp_path)


def test_bombs_end_at_the_caps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 8 << 20)
    big = tar(*(member(f"f{number}", b"\0" * (1 << 20)) for number in range(12)))
    for pack in PACKERS:
        assert "unpacks to more than 8 MiB" in refusal(pack(big), tmp_path)
    behind_the_end = gzip.compress(GOOD + b"\0" * (64 << 20))
    assert "unpacks to more than 8 MiB" in refusal(behind_the_end, tmp_path)
    monkeypatch.setattr(archive, "MAX_MEMBERS", 10)
    assert "more than 10 members" in refusal(block(b"5", 0, "d") * 11 + END, tmp_path)


def test_dictionary_out_of_thin_air(tmp_path: Path) -> None:
    """An xz block header that asks for a dictionary of 4 GiB; with little memory the allocation fails."""
    data = bytearray(lzma.compress(GOOD))
    start, size = 12, (data[12] + 1) * 4
    data[start + 4] = 40  # LZMA2 dictionary size 4 GiB - 1 (the .xz format, 5.3.1)
    data[start + size - 4 : start + size] = struct.pack("<I", zlib.crc32(bytes(data[start : start + size - 4])))
    read_or_refuse(bytes(data), tmp_path)


# -- oddities that are no reason to refuse --


def test_of_two_members_of_one_name_the_later_wins(tmp_path: Path) -> None:
    tree = read(tar(member("a", b"old"), link("a", "/c"), member("c", b"c"), member("a", b"new")), tmp_path)
    assert tree.read("a", 9) == b"new"
    assert tree.links == {}
    tree = read(tar(member("a", b"old"), link("a", "/c"), member("c", b"c")), tmp_path)
    assert tree.read("a", 9) == b"c"
    tree = read(tar(member("a", b"file"), member("a/b", b"now a folder")), tmp_path)
    assert tree.listdir("a") == ["b"]
    assert tree.stat("a").kind == "d"
    with pytest.raises(IsADirectoryError):
        tree.read("a", 9)


def test_root_itself_as_a_member(tmp_path: Path) -> None:
    tree = read(tar(member("./", type=tarfile.DIRTYPE), link(".", "/etc"), member("x", b"1")), tmp_path)
    assert tree.listdir("") == ["x"]


def test_links_in_circles_and_out_of_the_root(tmp_path: Path) -> None:
    tree = read(
        tar(
            link("a", "b", tarfile.LNKTYPE),
            link("b", "a", tarfile.LNKTYPE),
            link("out", "../../../../etc/passwd"),
            link("etc/passwd", "/proc/self/environ"),
            member("x", b"1"),
        ),
        tmp_path,
    )
    for name in ("a", "b"):
        with pytest.raises(OSError, match="Too many levels"):
            tree.read(name, 9)
    with pytest.raises(FileNotFoundError):
        tree.read("out", 9)


def test_links_that_multiply_are_given_up_quickly(tmp_path: Path) -> None:
    """Thirty links, each a long detour through the next: a path of 2^30 names if one followed them all."""
    links = [link(f"l{number}", f"/l{number + 1}/" + "./" * 500 + f"../l{number + 1}") for number in range(30)]
    tree = read(tar(*links, member("l30/x", b"1")), tmp_path)
    start = time.monotonic()
    with pytest.raises(OSError, match=r"too long|Too many"):
        tree.read("l0/x", 9)
    assert time.monotonic() - start < 5


def test_unreadable_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read as an archive"):
        read_archive(str(tmp_path / "absent"))
