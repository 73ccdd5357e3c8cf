"""Recording what a scan was told, and taking secrets out of it: equal stays equal, shapes stay shapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.accept.capture import acl_text
from accelctl.accept.redact import Redactor
from accelctl.hal.access import parse_acl, parse_acl_text
from accelctl.hal.recording import RecordingTree
from accelctl.hal.tree import MemoryTree, NodeStat

KEY = b"0123456789abcdef"

# -- recording --


def tree() -> MemoryTree:
    made = MemoryTree("t")
    made.add_file("sys/real/a", b"1\n")
    made.add_file("sys/real/b", b"2\n")
    made.add_folder("sys/real/sub")
    made.add_link("sys/real/up", "../real")
    made.add_link("sys/link", "/sys/real")
    made.add_file("usr/lib/secret-package.so", b"x")
    return made


def test_recording_keeps_real_paths_links_and_kinds() -> None:
    recording = RecordingTree(tree())
    assert recording.read("sys/link/a", 100) == b"1\n"
    assert recording.listdir("sys/link") == ["a", "b", "sub", "up"]
    assert recording.listdir("usr/lib") == ["secret-package.so"]
    assert recording.readlink("sys/link/up") == "../real"
    record = recording.complete()
    assert record.files == {"sys/real/a": b"1\n"}
    assert record.links == {"sys/link": "/sys/real", "sys/real/up": "../real"}
    assert record.unread == {"sys/real/b"}
    assert record.stats["sys/real/sub"].kind == "d"
    assert not any("secret-package" in path for path in (*record.stats, *record.files, *record.links))


class Refusing(MemoryTree):
    """Files that give errors."""

    def read(self, path: str, limit: int) -> bytes:
        if path.endswith("denied"):
            raise PermissionError(13, "Permission denied", path)
        return super().read(path, limit)


def test_recording_keeps_refusals_but_not_what_is_missing() -> None:
    recording = RecordingTree(Refusing("t"))
    for path in ("sys/denied", "sys/none"):
        with pytest.raises((PermissionError, FileNotFoundError)):
            recording.read(path, 10)
    assert recording.record.errors == {"sys/denied": "EACCES"}


def test_the_longer_of_two_reads_is_kept() -> None:
    recording = RecordingTree(tree())
    recording.read("sys/real/a", 100)
    recording.read("sys/real/a", 1)
    assert recording.record.files["sys/real/a"] == b"1\n"


def test_access_lists_survive_the_text_form() -> None:
    text = "u::rw-,u:1000:rw-,g::r--,g:44:rw-,m::rw-,o::---"
    entries = parse_acl_text(text)
    data = (2).to_bytes(4, "little") + b"".join(
        one.tag.to_bytes(2, "little") + one.perm.to_bytes(2, "little") + one.id.to_bytes(4, "little") for one in entries
    )
    written = acl_text(NodeStat("c", 0o660, 0, 44, 226, 128, data))
    assert written is not None
    assert parse_acl_text(written) == parse_acl(data)
    assert acl_text(NodeStat("c", 0o660, 0, 44)) is None


# -- redaction --


@given(st.text(max_size=60), st.binary(min_size=16, max_size=16))
def test_tokens_keep_their_shape_and_are_a_function_of_key_and_text(text: str, key: bytes) -> None:
    hidden = Redactor(key).token(text)
    assert len(hidden) == len(text)
    assert hidden == Redactor(key).token(text)
    for before, after in zip(text, hidden, strict=True):
        assert before.isdigit() == after.isdigit() or not before.isascii()
        assert before.isspace() == after.isspace()
        if before.isascii():
            assert before.isalpha() == after.isalpha()
            assert before.isupper() == after.isupper()


@given(st.integers(0, (1 << 64) - 1))
def test_numbers_keep_their_length_and_agree_in_both_notations(value: int) -> None:
    redactor = Redactor(KEY)
    assert redactor.number(value).bit_length() == value.bit_length()
    if value >> 32:
        assert int(redactor.hexadecimal(f"{value:016x}"), 16) == redactor.number(value)
    else:
        assert redactor.number(value) == value


@pytest.mark.parametrize(
    "text", ["", "0000000000000000", "ffffffff", "FFFF-FFFF", "00:00:00:00:00:00", "unknown", "N/A"]
)
def test_what_identifies_nothing_stays(text: str) -> None:
    assert Redactor(KEY).token(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "firmware version 20.3.0.1 of 0000:03:00.0",
        "pci 0000:01:00.0: BAR 1 [mem size 0x400000000 64bit pref]: can't assign; no space",
        "NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "TLP Header: 40009001 0000000f 00000102 00000000",
        "[drm] ring gfx_0.0.0 uses VM inv eng 0 on hub 0",
        "16.0 GT/s PCIe",
        "class::method at 12:30:45",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor(KEY).log_line(text) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("eth0: aa:bb:cc:dd:ee:77 up", "aa:bb:cc:dd:ee:77"),
        ("ib0 aa:bb:cc:dd:ee:77:88:99", "aa:bb:cc:dd:ee:77:88:99"),
        ("from 10.20.30.40:22", "10.20.30.40"),
        ("addr fe80::1:2:3", "fe80::1:2:3"),
        ("disk 5ec12e7a-1111-2222-3333-444455556666", "5ec12e7a-1111-2222-3333-444455556666"),
        ("mail someone@example.com now", "someone@example.com"),
        ("Serial Number: AB12", "AB12"),
        ("SN=AB12;", "AB12"),
        ("unique_id 5ec12e7a55e71a11", "5ec12e7a55e71a11"),
        ("file /home/someone/x", "someone"),
        ("Comm: python3 Tainted", "python3"),
        ("task python3:77 blocked for more than 120 seconds", "python3"),
        ("Process train.py pid 4711 thread train.py:cs0 pid 4712", "train.py"),
    ],
)
def test_secrets_in_log_lines_are_hashed(text: str, secret: str) -> None:
    hidden = Redactor(KEY).log_line(text)
    assert secret not in hidden
    assert len(hidden) == len(text)


def test_names_of_host_and_people_only_as_whole_words_and_not_in_driver_files() -> None:
    redactor = Redactor(KEY, ["vega", "ed", "root"])
    assert redactor.text("vega: Vega 10 of vegas by ed and root") != "vega: Vega 10 of vegas by ed and root"
    assert "vegas by ed and root" in redactor.text("vega: Vega 10 of vegas by ed and root")
    assert redactor.text("Vega 10", names=False) == "Vega 10"
