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
from accelctl.accept.capture import Capture, archive, build, look, read_key, save
from accelctl.errors import UsageError
from accelctl.hal.archive import read_archive
from accelctl.hal.manifest import MANIFEST, Manifest
from accelctl.hal.root import SysRoot, open_root
from accelctl.hal.tree import MemoryTree
from accelctl.model.report import Report
from accelctl.probes.scan import probe
from accelctl.render.document import document, dumps
from tests.secrets import BOX, SECRETS, secret_machine
from tests.synthetic import make_machine

KEY = b"0123456789abcdef"


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


def test_force_does_not_take_the_place_of_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "node")
    with pytest.raises(UsageError, match="no plain file"):
        save(b"x", str(tmp_path / "node"), force=True)
    assert [one.name for one in tmp_path.iterdir()] == ["node"]


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
