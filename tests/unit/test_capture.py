"""Captures: the same machine elsewhere, and none of its secrets."""

from __future__ import annotations

import io
import json
import lzma
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.accept import capture
from accelctl.accept.capture import Capture, acl_text, archive, build, look, read_key, save
from accelctl.accept.redact import Redactor
from accelctl.errors import UsageError
from accelctl.hal.access import parse_acl, parse_acl_text
from accelctl.hal.archive import read_archive
from accelctl.hal.manifest import MANIFEST, Manifest
from accelctl.hal.recording import RecordingTree
from accelctl.hal.root import SysRoot, open_root
from accelctl.hal.tree import MemoryTree, NodeStat
from accelctl.model.report import Report
from accelctl.probes.scan import probe
from accelctl.render.document import document, dumps
from tests.cases import function, machine
from tests.synthetic import make_machine

KEY = b"0123456789abcdef"
D, N = "$D(0000:41:00.0)", "$D(0000:81:00.0)"

UUID = "5ec12e7a-1111-2222-3333-444455556666"
DISK = "deadbeef-1234-5678-9abc-def012345678"
BOX = "0c0ffee5ec12e7a5ec12e7a5ec12e7a5"
UNIQUE = "5ec12e7a55e71a11"
SECRETS = [
    UNIQUE, str(int(UNIQUE, 16)), "SN-4711-SECRET", "PCB0815SECRET", UUID, DISK, BOX, "secrethost", "alicia",
    "bobsgroup", "rosebud", "aa:bb:cc:dd:ee:77", "10.20.30.40", "fe80::5ec1:2e7a:1:2", "nfs-server.example.com",
    "pod5ec12e7a", "topsecretjob", "EDIDSECRET", "VPDSECRET", "DSNSECRET",
]  # fmt: skip
"""Planted below; each must be gone from the archive, whatever its case."""


def secret_machine() -> SysRoot:
    """An AMD and an NVIDIA card in a machine full of names and numbers."""
    config = bytes(range(64)) + b"DSNSECRET" * 20
    return machine(
        files={
            **function("0000:41:00.0", "0x1002", "0x740f", "0x038000", current_link_width="16", numa_node="0"),
            **function("0000:81:00.0", "0x10de", "0x20b5", "0x030200"),
            f"{D}/unique_id": UNIQUE,
            f"{D}/serial_number": "SN-4711-SECRET",
            f"{D}/fru_id": "PCB0815SECRET",
            f"{D}/product_name": "Instinct MI210",
            f"{D}/mem_info_vram_total": "68702699520",
            f"{D}/uevent": "DRIVER=amdgpu\nPCI_ID=1002:740F\nASSET_OWNER=alicia\nPCI_SLOT_NAME=0000:41:00.0",
            f"{D}/config": config,
            f"{D}/edid": b"EDIDSECRET",
            f"{D}/vpd": b"VPDSECRET",
            f"{D}/drm/renderD128/dev": "226:128",
            f"{D}/drm/renderD128/uevent": "MAJOR=226\nMINOR=128\nDEVNAME=dri/renderD128",
            "sys/devices/virtual/kfd/kfd/topology/generation_id": "1",
            "sys/devices/virtual/kfd/kfd/topology/nodes/1/gpu_id": "51201",
            "sys/devices/virtual/kfd/kfd/topology/nodes/1/properties": "simd_count 416\nlocation_id 16640\ndomain 0\n"
            f"drm_render_minor 128\nunique_id {int(UNIQUE, 16)}\nvendor_id 4098",
            "proc/driver/nvidia/gpus/0000:81:00.0/information": "Model: \t\t NVIDIA A100\n"
            f"GPU UUID: \t GPU-{UUID}\nDevice Minor: \t 0",
            "proc/sys/kernel/osrelease": "6.12.0",
            "proc/version": "Linux version 6.12.0 (alicia@secrethost) (gcc 12) #1 SMP",
            "proc/cmdline": f"BOOT_IMAGE=/vmlinuz root=UUID={DISK} iommu=pt secret.pw=rosebud",
            "proc/self/cgroup": f"0::/kubepods.slice/kubepods-pod5ec12e7a.slice/docker-{BOX}.scope",
            "proc/self/status": "Name:\ttopsecretjob\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\n"
            "Groups:\t44 1000\nCapEff:\t0000000000000000\nThreads:\t1",
            "proc/self/limits": "Limit                     Soft Limit           Hard Limit           Units     \n"
            "Max locked memory         8388608              8388608              bytes     ",
            "proc/self/mountinfo": "22 1 0:20 / /proc rw - proc proc rw\n"
            "99 1 0:50 / /home/alicia rw - nfs nfs-server.example.com:/home rw,addr=10.20.30.40\n"
            "23 1 0:21 / /dev/shm rw - tmpfs tmpfs rw",
            "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nalicia:x:1000:1000:Alicia Secret:/home/alicia:/bin/sh",
            "etc/group": "root:x:0:\nvideo:x:44:alicia\nbobsgroup:x:1000:alicia\nother:x:77:alicia",
            "etc/os-release": 'PRETTY_NAME="Debian 12"\nMACHINE_OWNER=alicia',
        },
        links={
            f"{D}/driver": "../../../bus/pci/drivers/amdgpu",
            f"{N}/driver": "../../../bus/pci/drivers/nvidia",
            "sys/bus/pci/drivers/amdgpu/module": "../../../../module/amdgpu",
            "sys/class/drm/renderD128": "../../devices/pci0000:41/0000:41:00.0/drm/renderD128",
            f"{D}/drm/renderD128/device": "../../../0000:41:00.0",
            "sys/class/kfd/kfd": "../../devices/virtual/kfd/kfd",
            "usr/lib/x86_64-linux-gnu/libamdhip64.so.6": "/home/alicia/libamdhip64.so.6.1",
        },
        denied={f"{D}/power_dpm_force_performance_level": "EACCES"},
        nodes={
            "dev/dri/renderD128": {"mode": 0o660, "gid": 44, "major": 226, "minor": 128, "open": None, "acl": None},
            "dev/kfd": {"mode": 0o660, "gid": 44, "major": 509, "acl": "u::rw-,u:1234:rw-,g::rw-,m::rw-,o::---"},
        },
        process={"uid": 1000, "gid": 1000, "groups": (44, 1000)},
        environ={
            "HIP_VISIBLE_DEVICES": "0",
            "CUDA_VISIBLE_DEVICES": f"GPU-{UUID}",
            "HOME": "/home/alicia",
            "SECRET_TOKEN": "rosebud",
            "KUBERNETES_SERVICE_HOST": "10.20.30.40",
        },
        dmesg=[
            f"Command line: BOOT_IMAGE=/vmlinuz root=UUID={DISK} secret.pw=rosebud",
            "amdgpu 0000:41:00.0: amdgpu: serial number: SN-4711-SECRET, unique_id 5ec12e7a55e71a11",
            "e1000 0000:00:19.0 eth0: MAC aa:bb:cc:dd:ee:77 firmware",
            "NFS: server 10.20.30.40 fe80::5ec1:2e7a:1:2 module of secrethost for alicia in /home/alicia/x",
            "NVRM: Xid (PCI:0000:81:00): 79, pid=4711, name=topsecretjob, GPU has fallen off the bus.",
            "systemd[1]: Hostname set to <secrethost>.",
            "random: crng init done rosebud",
        ],
    )  # fmt: skip


@pytest.fixture(scope="module")
def names() -> Any:
    """Host and user as they would be known of the running machine."""
    patch = pytest.MonkeyPatch()
    patch.setattr(capture, "_names", lambda _report: ["secrethost", "alicia"])
    yield
    patch.undo()


@pytest.fixture(scope="module")
def taken(names: None) -> Capture:
    return build(look(secret_machine(), None), KEY)


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as tar:
        return {one.name: file.read() if (file := tar.extractfile(one)) else b"" for one in tar if one.isreg()}


def replayed(data: bytes, folder: Path) -> Report:
    (folder / "x.tar.xz").write_bytes(data)
    return probe(open_root(str(folder / "x.tar.xz")))


def bare(report: Report) -> dict[str, Any]:
    """Without evidence and without the two facts that a capture is documented to lack: who built the kernel,
    /dev/shm."""
    whole = document(report, evidence=False)
    whole["machine"]["kernel"].pop("version")
    whole["machine"]["shm"].pop("size_bytes")
    return whole


# -- secrets --


def leaks(data: bytes) -> list[str]:
    plain = lzma.decompress(data).lower()
    return [secret for secret in SECRETS if secret.lower().encode() in plain]


def test_no_planted_secret_is_in_the_archive(taken: Capture) -> None:
    assert leaks(taken.data) == []


def test_not_even_if_the_scan_had_read_every_file(names: None) -> None:
    """A future rule may read more of what is listed; the treatment of files does not rely on what is read today."""
    root = secret_machine()
    every = dict(getattr(root.tree, "files"))  # noqa: B009 - the tree's type is the interface
    seen = look(root, None)
    seen.record.files.update(every)
    assert leaks(build(seen, KEY).data) == []


def test_the_secrets_were_where_a_scan_reads() -> None:
    """Or the tests above would prove nothing: all of them stand in files, most of them in files that are read."""
    root = secret_machine()
    every = repr((root.tree.__dict__, root.manifest)).lower()
    assert [secret for secret in SECRETS if secret.lower() not in every] == []
    seen = look(root, None)
    text = repr((seen.record.files, seen.record.links, seen.environ, seen.log.lines))
    unread = {secret for secret in SECRETS if secret not in text}
    assert unread == {"EDIDSECRET", "VPDSECRET", "DSNSECRET", "nfs-server.example.com", "pod5ec12e7a", BOX}


def test_what_helps_is_still_there(taken: Capture) -> None:
    files = members(taken.data)
    log = files["accelctl-kmsg.txt"].decode()
    assert "GPU has fallen off the bus" in log
    assert "Xid (PCI:0000:81:00): 79, pid=4711, name=" in log
    assert "Command line" not in log
    assert "crng" not in log
    device = "sys/devices/pci0000:41/0000:41:00.0"
    assert files[f"{device}/product_name"] == b"Instinct MI210\n"
    assert "video:x:44:\n" in files["etc/group"].decode()
    assert files["proc/cmdline"] == b"iommu=pt accelctl.redacted\n"
    assert "etc/passwd" not in files
    assert [data for name, data in files.items() if name.endswith(("edid", "vpd"))] == [b"", b""]


def test_hashes_keep_length_and_class_and_equal_stays_equal(taken: Capture) -> None:
    files = members(taken.data)
    unique = files["sys/devices/pci0000:41/0000:41:00.0/unique_id"].decode().strip()
    assert len(unique) == 16
    number = int(unique, 16)
    assert f"unique_id {number}\n" in files["sys/devices/virtual/kfd/kfd/topology/nodes/1/properties"].decode() + "\n"
    assert f"unique_id {unique}" in files["accelctl-kmsg.txt"].decode()
    serial = files["sys/devices/pci0000:41/0000:41:00.0/serial_number"].decode().strip()
    assert [letter.isdigit() for letter in serial] == [letter.isdigit() for letter in "SN-4711-SECRET"]
    assert serial.isupper()
    assert serial in files["accelctl-kmsg.txt"].decode()
    mask = json.loads(files[MANIFEST])["environ"]["CUDA_VISIBLE_DEVICES"]
    assert mask in files["proc/driver/nvidia/gpus/0000:81:00.0/information"].decode()


def test_another_key_gives_other_hashes_and_the_same_key_the_same_archive(names: None, taken: Capture) -> None:
    other = members(build(look(secret_machine(), None), b"another key here").data)
    path = "sys/devices/pci0000:41/0000:41:00.0/serial_number"
    assert other[path] != members(taken.data)[path]
    assert build(look(secret_machine(), None), KEY).data == taken.data


def test_manifest_says_what_a_tar_cannot(taken: Capture) -> None:
    data = members(taken.data)[MANIFEST]
    manifest = Manifest.parse(data, "x")
    assert manifest.complete
    assert manifest.redacted
    assert manifest.process is not None
    assert (manifest.process.uid, manifest.process.groups) == (1000, (44, 1000))
    node = manifest.nodes["dev/kfd"]
    assert (node.stat.mode, node.stat.gid, node.acl_text) == (0o660, 44, "u::rw-,u:1234:rw-,g::rw-,m::rw-,o::---")
    assert manifest.nodes["dev/dri/renderD128"].access is None
    assert sorted(manifest.environ) == ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "KUBERNETES_SERVICE_HOST"]
    assert manifest.environ["KUBERNETES_SERVICE_HOST"] == "set"


# -- the same machine --


def test_probe_of_the_capture_equals_probe_of_the_machine(taken: Capture, tmp_path: Path) -> None:
    again = replayed(taken.data, tmp_path)
    assert bare(again) == bare(probe(secret_machine()))


def test_a_capture_of_a_capture_is_the_same_to_the_last_byte(taken: Capture, tmp_path: Path) -> None:
    (tmp_path / "a.tar.xz").write_bytes(taken.data)
    second = build(look(open_root(str(tmp_path / "a.tar.xz")), None), b"yet another key!")
    first_report, second_report = replayed(taken.data, tmp_path), replayed(second.data, tmp_path)
    assert dumps(document(second_report)) == dumps(document(first_report))


@pytest.mark.parametrize("count", [1, 3])
def test_a_folder_with_cards_survives(tmp_path: Path, count: int) -> None:
    root = str(make_machine(tmp_path / "m", count))
    done = build(look(open_root(root), None), KEY)
    assert bare(replayed(done.data, tmp_path)) == bare(probe(open_root(root)))


def test_the_running_machine_survives(tmp_path: Path) -> None:
    done = capture.take("/", key=KEY)
    assert bare(replayed(done.data, tmp_path)) == bare(probe(SysRoot(open_root("/").tree)))


MACHINES = ("rx580", "rx6900xt", "phoenix", "b580", "32intel64-2p8co2t+8ve", "topo-mi210-xgmi-pcie")


@pytest.mark.parametrize("name", MACHINES)
def test_captured_machines_survive(shared: Path, tmp_path: Path, name: str) -> None:
    root = str(shared / "machines" / f"{name}.tar.xz")
    done = build(look(open_root(root), None), KEY)
    assert bare(replayed(done.data, tmp_path)) == bare(probe(open_root(root)))


# -- the archive --


def test_archive_is_ordered_without_times_and_owners(taken: Capture) -> None:
    with tarfile.open(fileobj=io.BytesIO(taken.data), mode="r:xz") as tar:
        entries = tar.getmembers()
    assert [one.name for one in entries] == sorted(one.name for one in entries)
    assert {(one.mtime, one.uid, one.gid, one.uname) for one in entries} == {(0, 0, 0, "")}
    folders = {one.name for one in entries if one.isdir()}
    assert all(one.name.rpartition("/")[0] in folders | {""} for one in entries)
    assert all(one.isreg() or one.isdir() or one.issym() for one in entries)


def test_archive_with_a_name_of_more_than_a_hundred_letters(tmp_path: Path) -> None:
    name = "sys/" + "/".join(["x" * 40] * 6)
    (tmp_path / "a").write_bytes(archive({name: b"1\n", "sys/l": "x/y"}))
    tree = read_archive(str(tmp_path / "a"))
    assert tree.files[name] == b"1\n"
    assert tree.links["sys/l"] == "x/y"


def test_file_is_private_and_never_replaced_unasked(tmp_path: Path) -> None:
    file = str(tmp_path / "a.tar.xz")
    save(b"one", file)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    with pytest.raises(UsageError, match="such a file already"):
        save(b"two", file)
    assert Path(file).read_bytes() == b"one"
    save(b"two", file, force=True)
    assert Path(file).read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a.tar.xz"]


def test_a_link_is_not_followed_and_a_folder_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(UsageError):
        save(b"x", str(tmp_path / "link"))
    save(b"x", str(tmp_path / "link"), force=True)
    assert (tmp_path / "target").read_text() == "kept"
    with pytest.raises(UsageError, match="cannot be written"):
        save(b"x", str(tmp_path), force=True)
    with pytest.raises(UsageError, match="cannot be written"):
        save(b"x", str(tmp_path / "none" / "a"))


def test_two_at_once_do_not_overwrite_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one comes between the look and the write."""
    file = str(tmp_path / "a")
    monkeypatch.setattr(capture, "refuse_existing", lambda path: Path(path).write_bytes(b"theirs"))
    with pytest.raises(UsageError, match="such a file already"):
        save(b"ours", file)
    assert Path(file).read_bytes() == b"theirs"


def test_keys(tmp_path: Path) -> None:
    file = tmp_path / "key"
    assert read_key(None) is None
    file.write_bytes(b"short")
    with pytest.raises(UsageError, match="too short"):
        read_key(str(file))
    file.write_bytes(KEY)
    assert read_key(str(file)) == KEY
    with pytest.raises(UsageError, match="cannot be read"):
        read_key(str(tmp_path / "none"))


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


# -- odd trees --


@given(st.dictionaries(st.text("abc/", min_size=1, max_size=8), st.binary(max_size=8), max_size=6), st.data())
def test_any_tree_can_be_captured(files: dict[str, bytes], data: st.DataObject) -> None:
    made = MemoryTree("t")
    for path, content in files.items():
        made.add_file("sys/bus/pci/devices/0000:00:00.0/" + path.strip("/"), content)
    if data.draw(st.booleans()):
        made.add_link(
            "sys/bus/pci/devices/0000:00:01.0", data.draw(st.sampled_from(["loop", "0000:00:01.0", "/", ".."]))
        )
    done = build(look(SysRoot(made, manifest=Manifest(complete=True)), None), KEY)
    assert MANIFEST in members(done.data)


def test_a_path_that_hung_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(secret_machine(), None)
    seen.record.errors["sys/x/gpu_metrics"] = "ETIMEDOUT"
    manifest = Manifest.parse(members(build(seen, KEY).data)[MANIFEST], "x")
    root = SysRoot(MemoryTree("t"), manifest=manifest)
    root.allow.add("gpu_metrics", "free")
    absence = root.read("sys/x/gpu_metrics").absence
    assert absence is not None
    assert absence.kind == "timed_out"
