"""Gets the two kernels: Debian's own image, and the same release built with fault injection and leak search."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import cache, modules, packages, udev
from .apt import PrivateApt
from .cpio import Initramfs
from .errors import RigError
from .say import say, step
from .sources import derive, os_codename, read_sources

SOURCE_PACKAGE = f"linux-source-{cache.SERIES}"

LARGE = 8 << 20
"""Bytes; of the modules in use only amdgpu is larger."""

_IMAGE = re.compile(rf"^linux-image-{re.escape(cache.SERIES)}\.\d+\+[a-z0-9.]+-amd64(-unsigned)?$")


@dataclass(frozen=True)
class Release:
    """One kernel release for which the archive offers both the image and the source."""

    version: str
    image: str


def choose(source_versions: Sequence[str], images: Mapping[str, Sequence[str]]) -> Release | None:
    """Return the newest release with source and image; the signed image before the unsigned one.

    Both hold the same kernel, and the rig checks no signature at boot. The signed one comes later than the source,
    so in the hours between, the unsigned one is what fits.
    """
    for version in sorted(source_versions, key=cache.version_key, reverse=True):
        fitting = sorted(name for name, versions in images.items() if _IMAGE.match(name) and version in versions)
        if fitting:
            return Release(version, min(fitting, key=lambda name: name.endswith("-unsigned")))
    return None


def find_release(apt: PrivateApt) -> Release:
    """Try the machine's suites and then the derived ones until one offers the kernel; leaves `apt` set to it."""
    codename = os_codename()
    tried = []
    for title, sources in derive(read_sources(), codename):
        with step(f"reading the package index of {title}"):
            complaint = apt.use(sources)
        sources_on_offer = apt.versions([SOURCE_PACKAGE]).get(SOURCE_PACKAGE, [])
        release = choose(sources_on_offer, apt.versions(_image_names(apt)))
        if release is not None:
            return release
        tried.append(f"{title} ({complaint})" if complaint else title)
    where = "; ".join(tried) if tried else "this machine has no Debian source in /etc/apt"
    raise RigError(f"no Debian suite offers Linux {cache.SERIES} as image and source; tried: {where}")


def _image_names(apt: PrivateApt) -> list[str]:
    return [name for name in apt.names(f"linux-image-{cache.SERIES}") if _IMAGE.match(name)]


def prepare(kinds: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each kind, filled now if it was not before."""
    with cache.locked():
        udev.prepare()
        needed = [kind for kind in kinds if cache.find(kind) is None]
        lack = packages.missing() if needed else packages.missing(packages.BOOT)
        if lack:
            raise RigError(f"packages are missing; type: {packages.install_line(lack)}")
        if needed:
            with cache.workshop() as work:
                apt = PrivateApt(work / "apt")
                release = find_release(apt)
                for kind in needed:
                    _place(kind, release, apt, work)
        found = {kind: folder for kind in kinds if (folder := cache.find(kind)) is not None}
        for kind, folder in found.items():
            initrd(folder)
            say(f"{kind} kernel is ready: {folder}")
    return found


def _place(kind: str, release: Release, apt: PrivateApt, work: Path) -> None:
    target = cache.root() / f"{kind}-{release.version}-{cache.recipe(kind)}"
    folder = work / target.name
    folder.mkdir()
    with step(f"making the {kind} kernel {release.version}"):
        if kind == "debug":
            _build_debug(release, apt, folder, work)
        else:
            _take_stock(release, apt, folder, work)
    if target.exists():
        shutil.rmtree(target)
    folder.rename(target)


def _take_stock(release: Release, apt: PrivateApt, folder: Path, work: Path) -> None:
    unpacked = work / "image"
    with step(f"downloading {release.image} (about 105 MB)"):
        apt.unpack(release.image, release.version, unpacked)
    images = list((unpacked / "boot").glob("vmlinuz-*"))
    if len(images) != 1:
        raise RigError(f"{release.image} {release.version} holds {len(images)} kernel images, one was expected")
    (folder / "modules").mkdir()
    first = [name for name, _ in modules.load_order(cache.ROOT_MODULES, unpacked)]
    every = modules.load_order((*cache.ROOT_MODULES, *cache.DEVICE_MODULES), unpacked)
    for name, data in every:
        (folder / "modules" / name).write_bytes(data)
        if len(data) > LARGE:
            _drop_call_sites(folder / "modules" / name)
    rest = [name for name, _ in every if name not in first]
    for title, names in (("order-root", first), ("order-devices", rest)):
        (folder / "modules" / title).write_text("".join(f"{name}\n" for name in names), encoding="ascii")
    shutil.copy(next((unpacked / "boot").glob("config-*")), folder / "config")
    images[0].rename(folder / "vmlinuz")


def _drop_call_sites(module: Path) -> None:
    """Take out the list of places where ftrace could hook in, which is most of the time that loading amdgpu takes.

    For each of its 20,000 places the kernel walks all 45,000 symbols (test_for_valid_rec, kernel/trace/ftrace.c):
    half a minute under emulation. Without the list the module is loaded as ever and only cannot be function-traced.
    """
    sections = [f"--remove-section={name}" for name in ("__mcount_loc", ".rela__mcount_loc")]
    subprocess.run(["objcopy", *sections, str(module)], check=True)


def _build_debug(release: Release, apt: PrivateApt, folder: Path, work: Path) -> None:
    unpacked = work / "source"
    with step(f"downloading {SOURCE_PACKAGE} (about 150 MB)"):
        apt.unpack(SOURCE_PACKAGE, release.version, unpacked)
    archive = unpacked / "usr" / "src" / f"{SOURCE_PACKAGE}.tar.xz"
    with step("unpacking the source"):
        tree = work / "tree"
        tree.mkdir()
        subprocess.run(["tar", "-xf", str(archive), "-C", str(tree), "--strip-components=1"], check=True)
        shutil.rmtree(unpacked)
    fragment = cache.HERE / "debug.config"
    log = cache.root() / "debug-build.log"
    with log.open("wb") as out, step("configuring and building (about 5 minutes on 2 cores)"):
        _make(tree, ["tinyconfig"], out)
        _run(["scripts/kconfig/merge_config.sh", "-m", ".config", str(fragment)], tree, out)
        _make(tree, ["olddefconfig"], out)
        check_config(fragment.read_text(encoding="utf-8"), (tree / ".config").read_text(encoding="utf-8"))
        _make(tree, [f"-j{os.cpu_count() or 1}", "bzImage"], out)
    (tree / "arch/x86/boot/bzImage").rename(folder / "vmlinuz")
    (tree / ".config").rename(folder / "config")


def check_config(asked: str, got: str) -> None:
    """Raise when a line asked for did not survive: `olddefconfig` drops what lacks a dependency without a word."""
    have = set(got.splitlines())
    lost = [line for line in asked.splitlines() if line.startswith("CONFIG_") and not _holds(line, have)]
    if lost:
        raise RigError(f"the kernel's configuration does not take: {' '.join(lost)}")


def _holds(line: str, have: set[str]) -> bool:
    name, _, value = line.partition("=")
    if value == "n":
        return not any(other.startswith(f"{name}=") for other in have)
    return line in have


def _make(tree: Path, words: Sequence[str], out: object) -> None:
    _run(["make", "LOCALVERSION=-accelctl", "KBUILD_BUILD_USER=rig", "KBUILD_BUILD_HOST=rig", *words], tree, out)


def _run(command: Sequence[str], tree: Path, out: object) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    environment.pop("MAKEFLAGS", None)  # of a `make test` around this: its job server is not ours
    environment.pop("MAKELEVEL", None)
    done = subprocess.run(  # type: ignore[call-overload]
        command, cwd=tree, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        log = Path(str(getattr(out, "name", "")))
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:] if log.exists() else []
        raise RigError("\n".join([f"`{' '.join(command)}` failed, the log is {log}", *tail]))


def initrd(folder: Path) -> Path:
    """Return the initramfs for a kernel folder, made now if its ingredients changed; takes a second."""
    busybox = packages.program("busybox")
    if busybox is None:
        raise RigError(f"busybox is not here; type: {packages.install_line(['busybox-static'])}")
    program = Path(busybox).read_bytes()
    if b"/ld-linux" in program:
        raise RigError(f"{busybox} is not static; type: {packages.install_line(['busybox-static'])}")
    target = folder / cache.initrd_name(program)
    if not target.exists():
        archive = Initramfs()
        archive.folder("bin")
        archive.file("bin/busybox", program)
        archive.file("init", (cache.HERE / "init.sh").read_bytes())
        if (folder / "modules").is_dir():
            archive.folder("modules")
            for file in sorted((folder / "modules").iterdir()):
                archive.file(f"modules/{file.name}", file.read_bytes(), 0o644)
        draft = target.with_suffix(f".{os.getpid()}")
        archive.write(draft)
        draft.rename(target)
        for old in folder.glob("initrd-*.img"):
            if old != target:
                old.unlink(missing_ok=True)
    return target
