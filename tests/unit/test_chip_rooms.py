"""The rooms' chip.toml files: well-formed, sourced row by row, no two after one device, nothing generic repeated.

The checker is in this file and is itself tested: a document with each kind of mistake must be found out, and the
README's example must pass.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from accelctl.abi.rooms import BACKENDS, SCHEMA, Directory, in_tree
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import MemoryTree
from accelctl.model.convert import CONVERTERS
from accelctl.model.toml import loads
from accelctl.probes.scan import look

Document = dict[str, Any]


def words(text: str) -> set[str]:
    """A set written as words."""
    return set(text.split())


KINDS = words("gpu npu dcu xpu tpu fpga vector virtual display")
PROVEN = {"captured machines", "kernel guest 6.12", "unproven"}
ROLES = {
    "module": words("kernel helper open"),
    "node": words("render card control device compute mgmt"),
    "library": words("compute management runtime"),
}
CONV = words("int hex text mhz khz hz bytes kib mib milli micro percent bool list_int dpm gpu_metrics kv")
FIELD_CONV = words("int hex_int text")
SCOPES = words("stable volatile identity")
EFFECTS = words("free wakes blocks privileged")
#: table -> (keys a row must have, keys it may have); "source" is always demanded.
TABLES: dict[str, tuple[set[str], set[str]]] = {
    "pci": (words("vendor"), words("device class subsystem_device name")),
    "module": (words("name role"), words("version_file")),
    "node": (words("glob role per_device"), words("major")),
    "library": (words("name role"), words("dirs")),
    "version": (words("file pattern what"), set()),
    "platform": (set(), words("driver compatible")),
    "sysclass": (words("dir"), words("entry link bdf_file")),
    "attr": (words("path key conv scope effect"), words("unit driver fields")),
    "proc": (words("path key conv scope effect"), words("unit fields")),
}
TOP = words("schema name title vendor kind proven visible_env container_env env_source never install")
#: Read for every PCI function by probes/; a room that repeats one would read it twice under two names.
GENERIC = words(
    """
    vendor device subsystem_vendor subsystem_device class revision driver driver_override enable numa_node local_cpulist
    local_cpus iommu_group resource current_link_speed current_link_width max_link_speed max_link_width d3cold_allowed
    power_state sriov_numvfs sriov_totalvfs physfn reset_method aer_dev_correctable aer_dev_nonfatal aer_dev_fatal
    boot_vga uevent modalias
    """
)
#: Variables that several families understand: their runtimes imitate CUDA or HIP.
SHARED_ENV = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}
#: CPU vendors and other broad ids: a row without class or device would claim bridges, network cards and more.
BROAD = words(
    "0x8086 0x1002 0x1022 0x10de 0x19e5 0x1d94 0x1ded 0x1d0f 0x1ae0 0x10ee 0x1af4 0x15ad 0x17cb 0x1e30 0x1f1c 0x1eed"
)


def _id_problems(row: Document) -> Iterator[str]:
    for key in ("vendor", "device", "subsystem_device"):
        if key in row and not re.fullmatch(r"0x[0-9a-f]{4}", str(row[key])):
            yield f"{key} {row[key]!r} is not 0x and four lower-case digits"
    if "class" in row and not re.fullmatch(r"0x([0-9a-f]{2}){1,3}", str(row["class"])):
        yield f"class {row['class']!r} is not 0x and two, four or six digits"
    if row.get("vendor") in BROAD and not {"device", "class"} & row.keys():
        yield f"vendor {row['vendor']} makes more than accelerators: the row needs a device or a class"


def _value_problems(row: Document) -> Iterator[str]:
    for key, allowed in (("conv", CONV), ("scope", SCOPES), ("effect", EFFECTS)):
        if row.get(key) not in allowed:
            yield f"{key} {row.get(key)!r} is not one of {sorted(allowed)}"
    unit = row.get("unit")
    if unit is not None and row.get("conv") != "dpm" and not str(row.get("key")).endswith(f"_{unit}"):
        yield f"key {row.get('key')!r} does not end in its unit _{unit}"
    for field in row.get("fields", ()):
        if row.get("conv") != "kv":
            yield "fields go with conv kv only"
        if not {"name", "key", "conv"} <= field.keys() <= {"name", "key", "conv", "unit", "scope"}:
            yield f"field {field} has wrong keys"
        elif field["conv"] not in FIELD_CONV or field.get("scope", "stable") not in SCOPES:
            yield f"field {field['name']!r}: conv or scope not allowed"


def _path_problems(row: Document, prefix: tuple[str, ...] = ()) -> Iterator[str]:
    path, key = str(row.get("path", "")), str(row.get("key", ""))
    if path.startswith("/") or "//" in path or ".." in path or (prefix and not path.startswith(prefix)):
        yield f"path {path!r} is not a path below {' or '.join(prefix) or 'the device folder'}"
    if re.search(r"[\[\]?]", path):
        yield f"path {path!r}: only * is a wild card here"
    if key.count("*") > path.count("*"):
        yield f"key {key!r} has more * than its path"
    if not re.fullmatch(r"[a-z0-9_*]+(/[a-z0-9_*]+)*", key):
        yield f"key {key!r} is not lower-case words with /"


def _attr_problems(row: Document) -> Iterator[str]:
    yield from _value_problems(row)
    yield from _path_problems(row)
    head = str(row.get("path", "")).split("/")[0]
    if row.get("path") in GENERIC or head in ("hwmon", "power") or re.match(r"resource\d", head):
        yield f"path {row.get('path')!r} is generic: probes/ reads it for every device"


def _proc_problems(row: Document) -> Iterator[str]:
    yield from _value_problems(row)
    yield from _path_problems(row, ("proc/", "sys/"))
    if set(re.findall(r"\{.*?\}", str(row.get("path")))) - {"{bdf}", "{index}"}:
        yield f"path {row.get('path')!r}: only {{bdf}} and {{index}} are filled in"


def _version_problems(row: Document) -> Iterator[str]:
    try:
        if re.compile(row["pattern"]).groups != 1:
            yield "a version pattern has exactly one group"
    except (re.error, TypeError) as error:
        yield f"version pattern: {error}"


def _other_problems(table: str, row: Document) -> Iterator[str]:
    roles = ROLES.get(table)
    if roles and row.get("role") not in roles:
        yield f"role {row.get('role')!r} is not one of {sorted(roles)}"
    if table == "node" and not str(row.get("glob", "")).startswith("dev/"):
        yield f"node {row.get('glob')!r} is not below dev/"
    if table == "platform" and not {"driver", "compatible"} & row.keys():
        yield "a platform row needs driver or compatible"
    if table == "sysclass" and len({"link", "bdf_file"} & row.keys()) != 1:
        yield "a sysclass row has either link or bdf_file"
    if table == "module" and "version_file" in row and row["version_file"] != f"sys/module/{row['name']}/version":
        yield f"version_file {row['version_file']!r} is another module's"


CHECKS: dict[str, Callable[[Document], Iterator[str]]] = {
    "pci": _id_problems,
    "attr": _attr_problems,
    "proc": _proc_problems,
    "version": _version_problems,
}


def row_problems(table: str, row: Document) -> Iterator[str]:
    """What is wrong with one row."""
    must, may = TABLES[table]
    if missing := (must | {"source"}) - row.keys():
        yield f"{sorted(missing)} missing"
        return
    if surplus := row.keys() - must - may - {"source"}:
        yield f"{sorted(surplus)} unknown"
    if len(str(row["source"]).strip()) < 6:
        yield f"source {row['source']!r} says nothing"
    if table in CHECKS:
        yield from CHECKS[table](row)
    yield from _other_problems(table, row)


def _head_problems(document: Document, folder: str) -> Iterator[str]:
    for key, good in (("schema", {SCHEMA}), ("name", {folder}), ("kind", KINDS), ("proven", PROVEN)):
        if document.get(key) not in good:
            yield f"{key} is {document.get(key)!r}, not one of {sorted(good)}"
    for key in ("title", "vendor"):
        if not str(document.get(key, "")).strip():
            yield f"{key} is empty"
    environment = [*document.get("visible_env", ()), *document.get("container_env", ())]
    if "visible_env" not in document or not all(re.fullmatch(r"[A-Z][A-Z0-9_]+", str(name)) for name in environment):
        yield "visible_env is missing, or a name in it is no variable"
    if environment and not document.get("env_source"):
        yield "environment variables without env_source"
    for line in document.get("never", ()):
        if not re.fullmatch(r"\S+: .+ \[.+\]", line):
            yield f"never {line!r} is not 'path: reason [source]'"
    if set(document.get("install", {})) != {"driver", "runtime", "source"}:
        yield "[install] has exactly driver, runtime and source"
    if surplus := set(document) - TOP - set(TABLES):
        yield f"unknown top-level keys {sorted(surplus)}"


def problems(document: Document, folder: str) -> list[str]:
    """Everything that is wrong with a chip.toml, one line each."""
    found = list(_head_problems(document, folder))
    for table in TABLES:
        entries = document.get(table, [])
        if not isinstance(entries, list) or not all(isinstance(row, dict) for row in entries):
            found.append(f"{table} is not an array of tables")
            continue
        found += [f"{table}[{index}]: {line}" for index, row in enumerate(entries) for line in row_problems(table, row)]
    forbidden = {line.partition(":")[0] for line in document.get("never", ()) if isinstance(line, str)}
    paths = {row.get("path") for row in document.get("attr", ()) if isinstance(row, dict)}
    found += [f"attr {path!r} is under never" for path in sorted(forbidden & paths)]
    if not any(document.get(table) for table in ("pci", "platform", "node", "module")):
        found.append("nothing here would ever find the chip")
    return found


def texts() -> dict[str, str]:
    """Room name -> text of its chip.toml."""
    return {path.parent.name: path.read_text(encoding="utf-8") for path in sorted(BACKENDS.glob("*/chip.toml"))}


DOCUMENTS = {name: loads(text) for name, text in texts().items()}


def rows(*tables: str) -> Iterator[Document]:
    """The rows of some tables, of all rooms."""
    for document in DOCUMENTS.values():
        for table in tables:
            yield from document.get(table, ())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_room_is_well_formed(name: str) -> None:
    assert problems(DOCUMENTS[name], name) == []
    assert (BACKENDS / name / "__init__.py").read_text(encoding="utf-8").startswith('"""')


def test_no_two_rows_claim_the_same_device() -> None:
    keys = ("vendor", "device", "class", "subsystem_device")
    claims = Counter(tuple(map(row.get, keys)) for row in rows("pci"))
    assert [claim for claim, count in claims.items() if count > 1] == []


def test_no_two_rooms_share_a_driver() -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for name, document in DOCUMENTS.items():
        for row in document.get("module", ()):
            if row["role"] != "helper":
                owners[row["name"]].add(name)
        for row in document.get("platform", ()):
            owners[row.get("driver", "")].add(name)
    owners.pop("")
    assert {driver: rooms for driver, rooms in owners.items() if len(rooms) > 1} == {}


def test_environment_names_are_unique_or_shared_on_purpose() -> None:
    names: Counter[str] = Counter()
    for document in DOCUMENTS.values():
        names.update([*document["visible_env"], *document.get("container_env", ())])
    assert {one for one, count in names.items() if count > 1} == SHARED_ENV


def test_every_conversion_exists() -> None:
    used = {row["conv"] for row in rows("attr", "proc")}
    assert used - {"gpu_metrics"} <= CONVERTERS.keys()


def test_rooms_stay_small_enough_to_read_at_every_start() -> None:
    """tomllib reads about 3 MB a second: 140 kB are some 40 ms of probe's start."""
    assert sum(len(text.encode()) for text in texts().values()) < 140_000


def test_the_vendors_of_the_survey_have_their_room() -> None:
    assert len(DOCUMENTS) >= 60
    survey = words(
        """
        10de 1002 1d94 8086 1af4 1022 1da3 17cb 19e5 1d22 cabc 1ed5 9999 1e3e 1e36 1ded 1d0f 1ae0 1ac1 1e52 1bcf 1ed2
        1eff 1e60 1ec6 1eed 6766 4c54 0731 1f1c 1e30 1d95 1de0 1f9d 1fe9 1ff4 1f82 1e38 cdfa 10ee 15ad
        """
    )
    assert survey <= {row["vendor"][2:] for row in rows("pci")}


@pytest.mark.parametrize(
    ("ids", "room"),
    [
        (("0x8086", "0x643e", "0x120000", None), "ivpu"),
        (("0x8086", "0x56a5", "0x030000", None), "intel_gpu"),
        (("0x8086", "0x09c4", "0x120000", None), "altera"),
        (("0x8086", "0x1533", "0x020000", None), None),
        (("0x1022", "0x17f0", "0x118000", None), "amdxdna"),
        (("0x1022", "0x1480", "0x060000", None), None),
        (("0x1002", "0x74a1", "0x120000", None), "amdgpu"),
        (("0x1002", "0xab28", "0x040300", None), None),
        (("0x19e5", "0x1711", "0x030000", None), "bmc_display"),
        (("0x19e5", "0xd802", "0x120000", None), "ascend"),
        (("0x1ae0", "0x0027", "0x120000", "0x004e"), "tpu"),
        (("0x1ae0", "0x0027", "0x120000", "0x9999"), None),
        (("0x1d94", "0x1450", "0x060000", None), None),
        (("0x1eed", "0x10a1", "0x040300", None), None),
        (("0x1e30", "0x2042", "0x060400", None), None),
    ],
)
def test_the_right_room_for_a_function(ids: tuple[str | None, ...], room: str | None) -> None:
    found = Directory(in_tree()).pci(*ids)
    assert (found[0].name if found else None) == room


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Mon Jan  1 00:00:00 UTC 2024\nGCC 12.2.0\n",
            "550.90.07",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build\n", "595.45.04"),
        ("GCC version:  gcc version 12.2.0\n", None),
    ],
)
def test_the_driver_version_is_read_from_both_wordings(text: str, version: str | None) -> None:
    row = next(row for row in DOCUMENTS["nvidia"]["version"] if row["file"] == "proc/driver/nvidia/version")
    match = re.search(row["pattern"], text)
    assert (match.group(1) if match else None) == version


FREE_TEXT: Document = {"key": "x", "conv": "text", "scope": "stable", "effect": "free", "source": "made up"}
GOOD: Document = {
    "schema": SCHEMA,
    "name": "zork",
    "title": "Zork",
    "vendor": "Zork",
    "kind": "npu",
    "proven": "unproven",
    "visible_env": [],
    "pci": [{"vendor": "0xabcd", "source": "made up"}],
    "attr": [{**FREE_TEXT, "path": "a/b*", "key": "x/*_bytes", "conv": "int", "unit": "bytes"}],
    "install": {"driver": "d", "runtime": "r", "source": "made up"},
}


def changed(table: str, **keys: Any) -> Document:
    """GOOD with the first row of ``table`` changed; None removes a key."""
    row = {**GOOD.get(table, [{}])[0], **keys}
    return {**GOOD, table: [{key: value for key, value in row.items() if value is not None}]}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({**GOOD, "name": "other"}, "name is"),
        ({**GOOD, "schema": "accelctl.chip/2"}, "schema is"),
        ({**GOOD, "kind": "toaster"}, "kind is"),
        ({**GOOD, "proven": "sure"}, "proven is"),
        ({**GOOD, "colour": "red"}, "unknown top-level"),
        ({**GOOD, "visible_env": ["ZORK_VISIBLE_DEVICES"]}, "env_source"),
        ({**GOOD, "visible_env": ["zork"], "env_source": "made up"}, "no variable"),
        ({**GOOD, "never": ["reset"]}, "never"),
        ({**GOOD, "never": ["a/b*: clears it [made up]"]}, "is under never"),
        ({**GOOD, "install": {}}, "[install]"),
        ({**GOOD, "pci": {}}, "array of tables"),
        ({**GOOD, "pci": []}, "ever find"),
        (changed("pci", source=None), "missing"),
        (changed("pci", source="?"), "says nothing"),
        (changed("pci", vendor="abcd"), "four lower-case"),
        (changed("pci", device="0xABCD"), "four lower-case"),
        (changed("pci", vendor="0x8086"), "more than accelerators"),
        (changed("pci", **{"class": "0x3"}), "class"),
        (changed("pci", colour="red"), "unknown"),
        (changed("attr", conv="magic"), "conv"),
        (changed("attr", effect="destroys"), "effect"),
        (changed("attr", effect=None), "missing"),
        (changed("attr", scope="eternal"), "scope"),
        (changed("attr", key="x/*"), "unit"),
        (changed("attr", key="x/*/*_bytes"), "more *"),
        (changed("attr", key="X/y_bytes"), "lower-case"),
        (changed("attr", path="/a/b*"), "below"),
        (changed("attr", path="../b*"), "below"),
        (changed("attr", path="b[0-9]*"), "wild card"),
        (changed("attr", path="current_link_speed", key="link/x_bytes"), "generic"),
        (changed("attr", path="hwmon/hwmon*/temp1_input"), "generic"),
        (changed("attr", fields=[{"name": "a", "key": "b", "conv": "int"}]), "kv only"),
        (changed("attr", conv="kv", fields=[{"name": "a"}]), "wrong keys"),
        (changed("proc", **FREE_TEXT, path="proc/{pid}/x"), "{index}"),
        (changed("proc", **FREE_TEXT, path="etc/passwd"), "below"),
        (changed("version", file="a", pattern="x", what="y", source="made up"), "one group"),
        (changed("version", file="a", pattern="(x", what="y", source="made up"), "pattern"),
        (changed("node", glob="tmp/x", role="device", per_device=True, source="made up"), "below dev/"),
        (changed("module", name="zork", role="king", source="made up"), "role"),
        (
            changed("module", name="z", role="kernel", version_file="sys/module/y/version", source="made up"),
            "another module",
        ),
        (changed("platform", source="made up"), "driver or compatible"),
        (changed("sysclass", dir="sys/class/zork", source="made up"), "link or bdf_file"),
    ],
)
def test_the_checker_finds_each_mistake(document: Document, words: str) -> None:
    assert problems(GOOD, "zork") == []
    found = problems(document, "zork")
    assert any(words in line for line in found), found


def test_the_example_of_the_readme_passes() -> None:
    text = (BACKENDS / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 1
    document = loads(blocks[0])
    assert problems(document, document["name"]) == []
    assert {"pci", "module", "node", "attr", "install"} <= document.keys()
    unsaid = {key for table, (must, may) in TABLES.items() for key in {table, *must, *may} if key not in text}
    assert unsaid == set(), "the README does not explain these"


def test_keys_take_the_last_stars_of_the_path() -> None:
    """The card number of ``drm/card1/gt/gt0`` is no part of a key; equal machines number their cards differently."""
    base = "sys/devices/pci0000:00/0000:03:00.0"
    tree = MemoryTree("made up")
    files = {"vendor": "0x8086", "device": "0x56a5", "class": "0x030000", "drm/card1/gt/gt0/rps_max_freq_mhz": "2450"}
    files["drm/card1/gt/gt0/throttle_reason_pl1"] = "0"
    for name, text in files.items():
        tree.add_file(f"{base}/{name}", text.encode())
    tree.add_link("sys/bus/pci/devices/0000:03:00.0", "../../../devices/pci0000:00/0000:03:00.0")
    device = look(SysRoot(tree), in_tree()).devices["0000:03:00.0"]
    assert device.value("clocks/gt0/max_mhz") == 2450
    assert device.value("throttle/gt0/pl1") == 0


def test_kv_fields_are_typed() -> None:
    """nvidia's numa_status prints sizes in hexadecimal without 0x (nv-procfs.c nv_procfs_read_numa_status)."""
    tree = MemoryTree("made up")
    tree.add_file("sys/bus/pci/devices/0004:04:00.0/class", b"0x030200")
    text = b"Node:      255\nStatus:    online\nAddress:   40000000000\nSize:      3f0000000\n"
    tree.add_file("proc/driver/nvidia/gpus/0004:04:00.0/numa_status", text)
    device = look(SysRoot(tree), in_tree()).devices["0004:04:00.0"]
    assert device.chip == "nvidia"
    assert device.value("nvidia/numa/size_bytes") == 0x3F0000000
    assert device.value("nvidia/numa/address") == 0x40000000000
    assert device.value("nvidia/numa/node") == 255


LEAVES = words(
    """
    memory vbios vbios_version vbios_build fw_versions busy dpm clocks_mhz throttle gt_idle performance_level dpm_state
    pcie_bw pcie_replay_count unique_id serial_number product_name gpu_metrics ve nvidia_numa_status
    """
)


def _files(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("file"), str):
            yield node["file"]
        else:
            for value in node.values():
                yield from _files(value)
    elif isinstance(node, list):
        for value in node:
            yield from _files(value)


def _covered(file: str, device: Document, document: Document) -> bool:
    below = file.removeprefix(f"{device['path']}/")
    paths = [row["path"] for row in document.get("attr", ())]
    if any(below.count("/") == path.count("/") and fnmatchcase(below, path) for path in paths):
        return True
    return any(row["path"].replace("{bdf}", device["bdf"]) == file for row in document.get("proc", ()))


def test_every_driver_file_of_the_captured_machines_has_a_row(shared: Path) -> None:
    directory = Directory(in_tree())
    seen, bare = 0, []
    for path in sorted((shared / "machines").glob("*.json")):
        for device in json.loads(path.read_text())["devices"]:
            ids = [(device[key] or {}).get("value") for key in ("vendor_id", "device_id", "class")]
            found = directory.pci(*ids)
            document = DOCUMENTS[found[0].name if found else "nvidia"]
            files = [file for key in LEAVES for file in _files(device.get(key))]
            seen += len(files)
            bare += [f"{path.stem}: {file}" for file in files if not _covered(file, device, document)]
    assert seen > 500
    assert bare == []


def test_captures_hold_no_file_that_a_room_forbids_to_read(shared: Path) -> None:
    """Tools have read what these trees hold and the cards lived: such a path under ``never`` needs a second look."""
    lines = DOCUMENTS["amdgpu"]["never"]
    forbidden = {line.partition(":")[0] for line in lines if not line.startswith("sys/")}
    held = set()
    for path in sorted((shared / "machines").glob("*.tar.xz")):
        with tarfile.open(path) as archive:
            held |= forbidden & {name.rpartition("/")[2] for name in archive.getnames()}
    assert forbidden
    assert held == set()
