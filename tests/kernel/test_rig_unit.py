"""The rig's pure parts; these run everywhere, without QEMU and without a network."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest

from .rig import __main__ as rig_main
from .rig import cache, host, kernels, modules, packages, qemu, run, sources, udev
from .rig.cpio import Initramfs
from .rig.errors import RigError
from .rig.sources import Source

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

DEB822 = f"""\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: {KEYRING}

Types: deb
URIs: http://mirror.example/debian-security
suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
 -----END PGP PUBLIC KEY BLOCK-----

Enabled: no
Types: deb
URIs: http://mirror.example/off
Suites: bookworm
Components: main

Types: deb-src
URIs: http://mirror.example/src
Suites: bookworm
Components: main

Types: deb
URIs: http://mirror.example/flat
Suites: ./
"""

ONE_LINE = f"""\
# deb http://mirror.example/off bookworm main
deb [arch=amd64,arm64 signed-by={KEYRING} trusted=yes] http://mirror.example/debian bookworm main contrib # why
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian-security bookworm-security main
deb http://mirror.example/flat ./
deb [arch=amd64] https://packages.example/apt cloud-bookworm main
nonsense
"""


def test_deb822_is_read_with_its_key_and_without_what_is_off() -> None:
    found = sources.parse_deb822(DEB822)
    assert [source.uris[0].rpartition("/")[2] for source in found] == ["debian", "debian-security"]
    assert found[0].suites == ("bookworm", "bookworm-updates")
    assert found[0].options == (("Signed-By", KEYRING),)
    assert "\n -----BEGIN PGP" in dict(found[1].options)["Signed-By"]


def test_rendered_stanzas_read_back_the_same() -> None:
    for source in sources.parse_deb822(DEB822):
        assert sources.parse_deb822(source.render()) == [source]


def test_one_line_format_is_read_with_its_options() -> None:
    found = sources.parse_one_line(ONE_LINE)
    assert [source.suites[0] for source in found] == ["bookworm", "bookworm-security", "cloud-bookworm"]
    assert dict(found[0].options) == {"Architectures": "amd64 arm64", "Signed-By": KEYRING, "Trusted": "yes"}
    assert found[0].components == ("main", "contrib")
    assert "Trusted: yes" in found[0].render()
    assert "Architectures" not in found[0].render()


def test_both_formats_are_read_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(ONE_LINE)
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (folder / "debian.sources").write_text(DEB822)
    (folder / "old.list.disabled").write_text(ONE_LINE)
    assert len(sources.read_sources(tmp_path)) == 5
    assert sources.read_sources(tmp_path / "none") == []


def test_suites_are_tried_from_near_to_far_and_only_debians() -> None:
    groups = sources.derive(sources.parse_one_line(ONE_LINE), "bookworm")
    assert [title for title, _ in groups] == [
        "bookworm-security",
        "bookworm",
        "bookworm-backports",
        "trixie, trixie-security",
    ]
    last = groups[-1][1]
    assert [source.uris[0].rpartition("/")[2] for source in last] == ["debian", "debian-security"]
    assert all(source.components == ("main",) for _, group in groups for source in group)


def test_a_machine_of_the_newer_release_tries_nothing_twice() -> None:
    own = [Source(("http://mirror.example/debian",), ("trixie", "trixie-updates"), ("main",))]
    assert [title for title, _ in sources.derive(own, "trixie")] == ["trixie-updates", "trixie", "trixie-backports"]


@pytest.mark.parametrize("text", ["", "\n\n", ":\n", " continuation first\n", "Types deb\n", "Types: deb\nURIs: x\n"])
def test_broken_sources_are_no_sources(text: str) -> None:
    assert sources.parse_deb822(text) == []
    assert sources.parse_one_line(text) == []


def test_newest_release_with_both_parts_wins_and_signed_before_unsigned() -> None:
    images = {
        "linux-image-6.12.99+deb12-amd64": ["6.12.99-1"],
        "linux-image-6.12.100+deb12-amd64": ["6.12.100-1"],
        "linux-image-6.12.100+deb12-amd64-unsigned": ["6.12.100-1"],
        "linux-image-6.12.115+deb13.1-amd64-unsigned": ["6.12.115-2"],
        "linux-image-6.12.117+deb12-rt-amd64": ["6.12.117-1"],
        "linux-image-6.12-amd64": ["6.12.117-1"],
    }
    assert kernels.choose(["6.12.99-1", "6.12.100-1", "6.12.117-1"], images) == kernels.Release(
        "6.12.100-1", "linux-image-6.12.100+deb12-amd64"
    )
    assert kernels.choose(["6.12.115-2"], images) == kernels.Release(
        "6.12.115-2", "linux-image-6.12.115+deb13.1-amd64-unsigned"
    )
    assert kernels.choose(["6.12.117-1"], images) is None
    assert kernels.choose([], images) is None


def test_a_config_line_that_was_dropped_is_named() -> None:
    kernels.check_config("# c\nCONFIG_A=y\nCONFIG_B=n\nCONFIG_C=n\n", "CONFIG_A=y\n# CONFIG_B is not set\n")
    with pytest.raises(RigError, match=r"does not take: CONFIG_A=y CONFIG_B=n$"):
        kernels.check_config("CONFIG_A=y\nCONFIG_B=n\n", "CONFIG_A=m\nCONFIG_B=y\n")


def test_debug_config_asks_for_each_symbol_once() -> None:
    lines = [line for line in (cache.HERE / "debug.config").read_text().splitlines() if line.startswith("CONFIG_")]
    names = [line.partition("=")[0] for line in lines]
    assert len(names) == len(set(names))
    assert {"CONFIG_FAULT_INJECTION=y", "CONFIG_DEBUG_KMEMLEAK=y", "CONFIG_FUSE_FS=y"} <= set(lines)


def test_recipe_follows_every_ingredient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "debug.config").write_text("CONFIG_A=y\n")
    (tmp_path / "init.sh").write_text("#!/bin/sh\n")
    monkeypatch.setattr(cache, "HERE", tmp_path)
    before = cache.recipe("stock"), cache.recipe("debug"), cache.initrd_name(b"busybox")
    assert len(set(before)) == 3
    (tmp_path / "debug.config").write_text("CONFIG_A=n\n")
    (tmp_path / "init.sh").write_text("#!/bin/sh \n")
    monkeypatch.setattr(cache, "DEVICE_MODULES", (*cache.DEVICE_MODULES, "other"))
    after = cache.recipe("stock"), cache.recipe("debug"), cache.initrd_name(b"busybox")
    assert not set(before) & set(after)
    assert cache.initrd_name(b"other busybox") != after[2]
    assert cache.digest([b"ab", b"c"]) != cache.digest([b"a", b"bc"])


def test_only_whole_kernels_of_todays_recipe_are_found_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    recipe = cache.recipe("stock")
    for name in (f"stock-6.12.99-1-{recipe}", f"stock-6.12.100-1-{recipe}", "stock-6.12.117-1-0123456789ab"):
        (cache.root() / name).mkdir(parents=True)
        (cache.root() / name / "vmlinuz").touch()
    (cache.root() / f"stock-6.12.118-1-{recipe}").mkdir()
    found = cache.find("stock")
    assert found is not None
    assert found.name == f"stock-6.12.100-1-{recipe}"
    assert cache.find("debug") is None


def test_cache_folder_follows_the_base_directory_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache.root() == Path("/home/someone/.cache/accelctl/kernels")


def test_workshop_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def build() -> None:
        with cache.workshop() as work:
            (work / "file").touch()
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        build()
    assert list(cache.root().iterdir()) == []


def module(name: str, needs: str) -> bytes:
    """Return bytes with a .modinfo section's text as modpost writes it."""
    return b"\x7fELF\0license=GPL\0depends=" + needs.encode() + b"\0name=" + name.encode() + b"\0"


def test_modules_load_after_what_they_need(tmp_path: Path) -> None:
    (tmp_path / "modules.builtin").write_text("kernel/lib/inside.ko\n")
    (tmp_path / "top-gpu.ko").write_bytes(module("top_gpu", "middle,inside"))
    (tmp_path / "middle.ko.xz").write_bytes(lzma.compress(module("middle", "base")))
    (tmp_path / "base.ko").write_bytes(module("base", ""))
    order = modules.load_order(["top_gpu", "inside", "base"], tmp_path)
    assert [name for name, _ in order] == ["base.ko", "middle.ko", "top_gpu.ko"]
    assert order[1][1] == module("middle", "base")
    with pytest.raises(RigError, match="no module absent"):
        modules.load_order(["absent"], tmp_path)


def test_initramfs_is_a_newc_archive(tmp_path: Path) -> None:
    archive = Initramfs()
    archive.folder("bin")
    archive.file("bin/tool", b"odd")
    archive.write(tmp_path / "image")
    data = gzip.decompress((tmp_path / "image").read_bytes())
    assert len(data) % 4 == 0
    seen, place = {}, 0
    while place < len(data):
        assert data[place : place + 6] == b"070701"
        fields = [int(data[place + 6 + 8 * n : place + 14 + 8 * n], 16) for n in range(13)]
        name = data[place + 110 : place + 110 + fields[11] - 1].decode()
        start = (place + 110 + fields[11] + 3) // 4 * 4
        seen[name] = (fields[1], data[start : start + fields[6]], fields[9:11])
        place = (start + fields[6] + 3) // 4 * 4
    assert list(seen) == ["dev", "dev/console", "bin", "bin/tool", "TRAILER!!!"]
    assert seen["bin/tool"][:2] == (0o100755, b"odd")
    assert seen["dev/console"] == (0o020600, b"", [5, 1])


def report(name: str, when: str, outcome: str, text: str = "") -> str:
    """Return one line as the guest's plugin writes it."""
    return json.dumps({"event": "report", "id": name, "when": when, "outcome": outcome, "seconds": 0.5, "text": text})


def test_results_are_folded_and_a_crash_leaves_its_test_unfinished() -> None:
    lines = [
        *(report("good", when, "passed") for when in ("setup", "call", "teardown")),
        report("late", "call", "passed"),
        report("late", "teardown", "failed", "left a mess"),
        report("skips", "setup", "skipped", "no card"),
        report("skips", "teardown", "passed"),
        report("bad", "call", "failed", "assert 0"),
        report("bad", "teardown", "passed"),
        json.dumps({"event": "start", "id": "died"}),
        report("died", "setup", "passed"),
        '{"event": "rep',
    ]
    tests = run.parse_results(lines)
    assert {name: (test.outcome, test.text) for name, test in tests.items()} == {
        "good": ("passed", ""),
        "late": ("failed", "left a mess"),
        "skips": ("skipped", "no card"),
        "bad": ("failed", "assert 0"),
        "died": ("unfinished", ""),
    }
    assert tests["good"].seconds == 1.5


def test_what_follows_two_dashes_is_pytests() -> None:
    assert rig_main.split(["run", "stock", "--results", "x", "--", "-k", "a", "--", "b"]) == (
        ["run", "stock", "--results", "x"],
        ["-k", "a", "--", "b"],
    )
    assert rig_main.split(["missing"]) == (["missing"], [])


def test_job_quotes_what_the_shell_would_take_apart() -> None:
    text = run.job("debug", ["tests/kernel/guest", "-k", "a or 'b'"], Path("/a folder"), "/venv/bin/python")
    assert "cd '/a folder' || exit 3" in text
    assert "export ACCELCTL_GUEST=debug" in text
    assert text.rstrip().endswith("""tests/kernel/guest -k 'a or '"'"'b'"'"''""")


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ('ID=debian\nVERSION_ID="12"\n', False),
        ('ID=debian\nVERSION_ID="13"\n', True),
        ("ID=other\nVERSION_ID=40\n", False),
    ],
)
def test_packages_by_the_names_of_the_release(tmp_path: Path, text: str, split: bool) -> None:
    (tmp_path / "os-release").write_text(text)
    assert (packages.QXL_SPLIT in packages.wanted(tmp_path / "os-release")) is split


def test_a_missing_program_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "program", lambda name: None if name == "qemu-system-x86_64" else f"/bin/{name}")
    assert packages.missing(packages.BOOT) == ["qemu-system-x86"]
    assert packages.install_line(["qemu-system-x86"]).endswith("install -y --no-install-recommends qemu-system-x86")


def test_udev_is_not_fetched_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(udev, "PROGRAMS", (tmp_path,))
    udev.prepare()
    assert not cache.root().exists()


DEAD = run.Guest("stock", qemu.Boot(None, 3.0, "the guest stopped before its job ended"))
BEGUN = run.Guest("stock", qemu.Boot(None, 9.0, "it died"), {"a": run.Outcome()}, "a line")
WELL = run.Guest("stock", qemu.Boot(0, 9.0, ""), {"a": run.Outcome("passed")}, "a line")


@pytest.mark.parametrize(
    ("boots", "wanted"), [([WELL], WELL), ([BEGUN], BEGUN), ([DEAD, WELL], WELL), ([DEAD, DEAD], DEAD)]
)
def test_only_a_boot_that_never_began_is_tried_again(
    boots: list[run.Guest], wanted: run.Guest, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    left = iter(boots)
    monkeypatch.setattr(run, "in_guest", lambda *_: next(left))
    assert host._in_guest("stock", []) is wanted
    assert next(left, None) is None
    assert [("booted once more" in str(one.message)) for one in recwarn] == [True] * (len(boots) - 1)
