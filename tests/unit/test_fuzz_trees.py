"""Damaged and hostile machines: whatever a tree holds, probe ends with a report that can be shown, in bounded time.

More than 2,000 mutated trees a run; the examples are the same in every run. To search for new ones, with other
examples each time: ``ACCELCTL_FUZZ=20000 pytest tests/unit/test_fuzz_trees.py`` (so many per property and seed).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelctl.abi.rooms import in_tree
from accelctl.hal.root import SysRoot, open_root
from accelctl.hal.tree import DirTree, MemoryTree
from accelctl.probes.scan import probe
from tests import mutate, seeds
from tests.conftest import ROOT, shared_folder
from tests.examine import examine
from tests.helpers import run_cli
from tests.mutate import Link, Machine, Mutation
from tests.synthetic import make_machine

SEARCH = os.environ.get("ACCELCTL_FUZZ", "")
"""Read before the fixtures clean the environment."""

LARGE = ("amdgpu", "xe", "crowd", "ailing", "class_folders")
PER_LARGE, PER_SMALL, PER_ROOM, PER_SIZE, PER_CAPTURE, ON_DISK, AS_PROGRAM = 90, 210, 5, 60, 6, 100, 10
"""Examples of each property: a large machine takes three times as long as a small one."""


def examples(count: int) -> settings:
    """Settings of one property: repeatable unless somebody is searching."""
    return settings(
        max_examples=int(SEARCH) if SEARCH else count,
        derandomize=not SEARCH,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


mutations = st.lists(
    st.tuples(st.integers(0, 999), st.integers(0, 65535), st.integers(0, 65535)), min_size=1, max_size=8
)


@lru_cache(maxsize=100)
def machine(name: str) -> Machine:
    """A seed as flat data: of a family, of a room ("room:NAME"), of a synthetic size ("synthetic:N")."""
    kind, _, rest = name.partition(":")
    if kind == "room":
        root = seeds.every_room()[rest]()
    elif kind == "synthetic":
        root = synthetic(int(rest))
    elif kind == "captured":
        root = open_root(str(shared_folder() / "machines" / f"{rest}.tar.xz"))
    else:
        root = seeds.FAMILIES[name]()
    return mutate.record(root, lambda one: probe(one, in_tree()))


def synthetic(devices: int) -> SysRoot:
    """The machine of the speed measurements, taken into memory."""
    tree = MemoryTree("synthetic")
    with tempfile.TemporaryDirectory() as folder:
        base = make_machine(Path(folder), devices)
        for path in sorted(base.rglob("*")):
            name = path.relative_to(base).as_posix()
            if path.is_symlink():
                tree.add_link(name, os.readlink(path))
            elif path.is_file():
                tree.add_file(name, path.read_bytes())
    return SysRoot(tree)


@contextmanager
def awake(seconds: int) -> Iterator[None]:
    """Ends a read that waits, of a FIFO for instance: such a mistake must fail the test instead of stopping it."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(name: str, damage: list[Mutation]) -> None:
    damaged = mutate.apply(machine(name), damage)
    with awake(120):
        examine(lambda: mutate.root_of(damaged), in_tree(), whole=damage[0][2] % 8 == 0)


def test_enough_trees_without_captured_machines() -> None:
    families = PER_LARGE * len(LARGE) + PER_SMALL * (len(seeds.FAMILIES) - len(LARGE))
    assert families + PER_ROOM * len(seeds.rooms()) + PER_SIZE * len(SIZES) + ON_DISK >= 2000


@pytest.mark.parametrize("name", [*seeds.FAMILIES, *(f"room:{name}" for name in seeds.rooms())])
def test_seeds_are_worth_damaging(name: str) -> None:
    """Each is found to hold what it was made for; a seed without devices would test nothing."""
    report = examine(lambda: mutate.root_of(machine(name)), in_tree())
    assert name == "empty" or len(report.devices) >= 1
    assert len(machine(name).targets) > 150


@pytest.mark.slow
@pytest.mark.parametrize("name", list(seeds.FAMILIES))
def test_families(name: str) -> None:
    @examples(PER_LARGE if name in LARGE else PER_SMALL)
    @given(damage=mutations)
    def holds(damage: list[Mutation]) -> None:
        check(name, damage)

    holds()


@pytest.mark.slow
def test_every_room() -> None:
    @examples(PER_ROOM * len(seeds.rooms()))
    @given(name=st.sampled_from([f"room:{name}" for name in seeds.rooms()]), damage=mutations)
    def holds(name: str, damage: list[Mutation]) -> None:
        check(name, damage)

    holds()


SIZES = (1, 3)


@pytest.mark.parametrize("size", SIZES)
def test_synthetic_machines(size: int) -> None:
    @examples(PER_SIZE)
    @given(damage=mutations)
    def holds(damage: list[Mutation]) -> None:
        check(f"synthetic:{size}", damage)

    holds()


def captured() -> list[str]:
    return sorted(path.name.removesuffix(".tar.xz") for path in (shared_folder() / "machines").glob("*.tar.xz"))


@pytest.mark.slow
@pytest.mark.parametrize("name", captured() or ["missing"])
def test_captured_machines(name: str, shared: Path) -> None:
    @examples(PER_CAPTURE)
    @given(damage=mutations)
    def holds(damage: list[Mutation]) -> None:
        check(f"captured:{name}", damage)

    holds()


# -- on disk -----------------------------------------------------------------------------------------------------------

SECRET = "CANARY-of-another-machine"
_opened: list[str] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes)):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_hook)


@contextmanager
def listening() -> Iterator[list[str]]:
    """What this process opens or lists meanwhile."""
    global _opened
    found: list[str] = []
    _opened = found
    try:
        yield found
    finally:
        _opened = None


def outside(paths: list[str], root: Path) -> list[str]:
    """Paths that are neither below the root nor the interpreter's own; names of PCI ids may come from this machine."""
    own = (
        str(root),
        sys.prefix,
        sys.base_prefix,
        str(ROOT / "accelctl"),
        "/usr/share/misc/pci.ids",
        "/usr/share/hwdata/pci.ids",
        "/usr/share/pci.ids",
    )
    return [path for path in paths if not path.startswith(own)]


def lead_out(damaged: Machine, secret: Path, damage: list[Mutation]) -> None:
    """Links that would leave the root if the system followed them."""
    for number, (_, where, what) in enumerate(damage[:4]):
        path = damaged.targets[(where + 31 * number) % len(damaged.targets)]
        damaged.put(path, Link((str(secret), "../" * 40 + str(secret)[1:], str(secret.parent))[what % 3]))


def as_nobody(work: Callable[[], object]) -> None:
    """Run in a child without root's rights, and raise here what it raised there."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:4000]
        os.write(writer, said)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert not said, said.decode("utf-8", "replace")


SMALL = [name for name in seeds.FAMILIES if name not in ("crowd", "xe", "ailing", "class_folders")]
"""Seeds of at most 300 entries: making and removing files is what takes the time here."""


MEMORY = next((folder for folder in ("/dev/shm",) if os.access(folder, os.W_OK)), None)
"""Files in memory where there are such; None is the usual place."""


def few(damaged: Machine) -> Machine:
    """Without the thousands of equal entries that a crowd brings."""
    for path in list(damaged.entries)[900:]:
        del damaged.entries[path]
    return damaged


@pytest.mark.slow
def test_folders_on_disk() -> None:
    """Real FIFOs, devices, loops, unreadable files, and links that lead out of the root."""

    @examples(ON_DISK)
    @given(name=st.sampled_from(SMALL), damage=mutations)
    def holds(name: str, damage: list[Mutation]) -> None:
        base = Path(tempfile.mkdtemp(dir=MEMORY))
        base.chmod(0o755)
        secret, root = base / "outside" / "secret", base / "root"
        secret.parent.mkdir()
        secret.write_text(SECRET)
        root.mkdir()
        damaged = few(mutate.apply(machine(name), damage))
        lead_out(damaged, secret, damage)
        mutate.write(damaged, root)
        with awake(120), listening() as found:
            report = examine(lambda: mutate.root_of(damaged, DirTree(str(root))), in_tree(), whole=False)
        assert SECRET not in repr(report)
        assert outside(found, root) == []
        refuse(root, damage)
        if os.geteuid() == 0 and damage[0][1] % 3 == 0:
            as_nobody(lambda: examine(lambda: mutate.root_of(damaged, DirTree(str(root))), in_tree(), whole=False))
        remove(base)

    holds()


def refuse(root: Path, damage: list[Mutation]) -> None:
    """Some files and folders that only root may read."""
    paths = sorted(path for path in root.rglob("*") if not path.is_symlink())
    for _, where, what in damage:
        if paths:
            paths[where % len(paths)].chmod((0, 0o111, 0o444, 0o600)[what % 4])


def remove(base: Path) -> None:
    if os.geteuid() != 0:
        for path in base.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
    shutil.rmtree(base)


# -- the whole program -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_program() -> None:
    """A folder, then the same machine as an archive: the right exit status, one line at most, the same bytes again."""

    @examples(AS_PROGRAM)
    @given(name=st.sampled_from(SMALL), damage=mutations)
    def holds(name: str, damage: list[Mutation]) -> None:
        base = Path(tempfile.mkdtemp(dir=MEMORY))
        damaged = few(mutate.apply(machine(name), damage))
        mutate.write(damaged, base / "root")
        mutate.pack(damaged, base / "root.tar.xz")
        first = program("--root", str(base / "root"), "--json", seed="1")
        assert first == program("--root", str(base / "root"), "--json", seed="2")
        assert first is None or json.loads(first)["schema"] == "accelctl.probe/1"
        program("--root", str(base / "root.tar.xz"), *(("--brief",), ("--json",), ())[damage[0][2] % 3])
        remove(base)

    holds()


def program(*args: str, seed: str = "0") -> str | None:
    """Output of ``accelctl probe``; None where it refused the machine in one line."""
    done = run_cli("probe", *args, env={"PYTHONHASHSEED": seed, "ACCELCTL_PLUGINS": "none"})
    assert done.returncode in (0, 1, 2), done.stderr
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr, done.stderr
    assert "internal error" not in done.stderr, done.stderr
    assert len(lines) <= 2, done.stderr  # a message and a hint
    assert (done.returncode == 2) == bool(lines), done.stderr
    return done.stdout if done.returncode != 2 else None
