"""The shape of the code: who may import whom, who may touch the system, and how large things may grow."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from tests.helpers import ROOT

PACKAGE = ROOT / "accelctl"

ROWS = (
    ("exits",),
    ("errors",),
    ("model",),
    ("hal",),
    ("abi",),
    ("memory",),
    ("backends",),
    ("probes",),
    ("stress", "umd", "smoke", "telemetry"),
    ("accept",),
    ("render",),
    ("tui",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""Lowest first: a part imports only from rows above its own, and siblings of one row not from each other."""

RANK = {part: rank for rank, row in enumerate(ROWS) for part in row}

SIBLINGS = {("smoke", "umd.client"), ("smoke", "umd.listen"), ("telemetry", "umd.client")}
"""The exceptions: both speak to the service as a client, and smoke has one of its own at an address that it chooses."""

ONLY_IN = {
    "textual": (r"tui/",),
    "grpc": (r"umd/",),
    "google": (r"umd/",),
    "numpy": (r"umd/", r"smoke/", r"backends/[^/]+/ops(\.py$|/)"),
    "ml_dtypes": (r"umd/", r"smoke/", r"backends/[^/]+/ops(\.py$|/)"),
    "torch": (r"backends/[^/]+/ops(\.py$|/)",),
    "pyopencl": (r"backends/opencl/",),
    "asyncio": (r"tui/", r"umd/"),
    "typer": (r"cli\.py$", r"commands/"),
    "rich": (r"render/", r"tui/"),
    "psutil": (r"hal/", r"telemetry/"),
    "fcntl": (r"hal/",),
    "mmap": (r"hal/",),
    "socket": (r"hal/",),
    "pyudev": (),
    "pydantic": (),
    "ctypes": (),
    "cffi": (),
    "_ctypes": (),
}
"""Module -> where it may be imported (paths below accelctl/); ctypes and its like: nowhere."""

HAL_CALLS = {"open", "listdir", "scandir", "walk", "readlink", "mknod", "ioctl"}
"""Functions of os that touch the file system and belong behind hal."""

SYSTEM_PATH = re.compile(r"/(sys|proc|dev|run)(/\S*)?\Z")
BARE_PREFIX = "/dev/"
"""Turns a node's name into what people type, and back; a path to open is longer."""

READING = ("fileno", "isatty", "encoding")
"""What others than render/ may ask of sys.stdout: nothing of it writes."""


class Module:
    """One source file: its tree, and the part of the layout it belongs to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self._imports: list[tuple[int, str]] | None = None
        self.where = path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else ""
        self.part = self.where.partition("/")[0].removesuffix(".py")
        self.name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")

    def imports(self) -> list[tuple[int, str]]:
        """(line, full module name) of every import, at the top or inside functions; `from a import b` gives a.b."""
        if self._imports is None:
            self._imports = list(self._find_imports())
        return self._imports

    def _find_imports(self) -> Iterator[tuple[int, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._parents(node.level) + ([node.module] if node.module else [])
                yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)

    def _parents(self, level: int) -> list[str]:
        """The package that a relative import of that many dots starts from."""
        words = self.name.split(".")
        package = words if self.path.name == "__init__.py" else words[:-1]
        return package[: len(package) - level + 1] if level else []

    def exempt(self) -> set[int]:
        """Identities of strings that name no place: docstrings, and the later parts of f-strings ({base}/dev)."""
        nodes = list(ast.walk(self.tree))
        documented = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        return documented | {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values[1:]}


@cache
def modules(folder: Path = PACKAGE) -> tuple[Module, ...]:
    return tuple(Module(path) for path in sorted(folder.rglob("*.py")) if "/proto/" not in path.as_posix())


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(module.tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def direction_faults(module: Module) -> Iterator[str]:
    for line, name in module.imports():
        words = name.split(".")
        if words[0] != "accelctl" or len(words) < 2 or words[1].startswith("__version"):
            continue
        fault = fault_of(module, words)
        if fault:
            yield f"{module.where}:{line} imports {name}: {fault}"


def fault_of(module: Module, words: list[str]) -> str:
    other, mine = words[1], RANK.get(module.part)
    if other not in RANK or (mine is None and module.where != "__init__.py"):
        return "a part that this test does not know; add it to a row"
    if module.part == "backends":
        same_chip = len(words) > 2 and module.where.startswith(f"backends/{words[2]}/")
        if other == "backends":
            return "" if same_chip else "chips do not know each other"
    elif other == "backends":
        return "chips are reached through abi.registry only"
    if other == module.part:
        return ""
    if mine is None or RANK[other] > mine:
        return "a row below its own"
    if RANK[other] == mine and (module.part, ".".join(words[1:3])) not in SIBLINGS:
        return "a sibling of its own row"
    return ""


def test_every_part_has_a_row() -> None:
    parts = {module.part for module in modules()} - {"__init__"}
    assert parts - set(RANK) == set()


def test_imports_go_one_way() -> None:
    assert [fault for module in modules() for fault in direction_faults(module)] == []


@pytest.mark.parametrize(
    ("where", "source", "fault"),
    [
        ("model/x.py", "from accelctl.hal import root", "a row below"),
        ("model/x.py", "def f():\n    import accelctl.render.term", "a row below"),
        ("hal/x.py", "from accelctl import cli", "a row below"),
        ("hal/sub/x.py", "from ..root import SysRoot", ""),
        ("hal/x.py", "from ..probes import pci", "a row below"),
        ("commands/x.py", "from accelctl.backends.amdgpu import rules", "abi.registry"),
        ("backends/xe/rules.py", "from accelctl.backends.amdgpu import rules", "each other"),
        ("backends/xe/rules.py", "from accelctl.backends.xe import memory", ""),
        ("stress/x.py", "from accelctl.umd import client", "sibling"),
        ("smoke/x.py", "from accelctl.umd import client", ""),
        ("smoke/x.py", "from accelctl.umd.server import Server", "sibling"),
        ("new_part/x.py", "from accelctl import errors", "does not know"),
        ("probes/x.py", "from accelctl.model.reading import Reading", ""),
    ],
)
def test_the_direction_test_itself(where: str, source: str, fault: str) -> None:
    module = Module.__new__(Module)
    module.path, module.where, module.part = PACKAGE / where, where, where.partition("/")[0]
    module._imports = None
    module.tree, module.name = ast.parse(source), "accelctl." + where.removesuffix(".py").replace("/", ".")
    found = list(direction_faults(module))
    assert bool(found) is bool(fault)
    assert all(fault in text for text in found)


@pytest.mark.parametrize("package", list(ONLY_IN))
def test_packages_stay_where_they_belong(package: str) -> None:
    wrong = [
        f"{module.where}:{line}"
        for module in modules()
        for line, name in module.imports()
        if name.split(".")[0] == package and not any(re.match(place, module.where) for place in ONLY_IN[package])
    ]
    assert wrong == []


def test_only_hal_touches_the_system() -> None:
    """os.open and its like."""
    calls = {f"os.{name}" for name in HAL_CALLS}
    wrong = []
    for module in modules():
        if module.part == "hal":
            continue
        used = [(n.lineno, ast.unparse(n)) for n in ast.walk(module.tree) if isinstance(n, ast.Attribute)]
        wrong += [f"{module.where}:{line} {name}" for line, name in [*used, *module.imports()] if name in calls]
    assert wrong == []


def test_only_hal_knows_absolute_system_paths() -> None:
    """Paths below /sys, /proc, /dev and /run as literals; elsewhere they are below a root. render/ may print them."""
    wrong = []
    for module in modules():
        exempt = module.exempt()
        for node in ast.walk(module.tree):
            if module.part in ("hal", "render") or id(node) in exempt:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and SYSTEM_PATH.match(node.value):
                wrong += [f"{module.where}:{node.lineno} {node.value}"] if node.value != BARE_PREFIX else []
    assert wrong == []


def test_only_render_writes_to_the_standard_streams() -> None:
    """print and sys.stdout/stderr: render/ and the dashboard; cli.py only to answer --version and to flush, and
    hal/ownstdout.py to keep them from foreign code."""
    wrong = []
    for module in modules():
        if module.part in ("render", "tui", "cli") or module.where == "hal/ownstdout.py":
            continue
        nodes = list(ast.walk(module.tree))
        reads = {id(n.value) for n in nodes if isinstance(n, ast.Attribute) and n.attr in READING}
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                wrong.append(f"{module.where}:{node.lineno} print")
            elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.stderr"):
                wrong += [] if id(node) in reads else [f"{module.where}:{node.lineno} {ast.unparse(node)}"]
    assert wrong == []


FOLDERS = [PACKAGE, ROOT / "tools", ROOT / "tests"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_files_stay_small(folder: Path) -> None:
    sizes = {str(m.path.relative_to(ROOT)): m.text.count("\n") for m in modules(folder)}
    assert {name: lines for name, lines in sizes.items() if lines > 500} == {}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_functions_stay_small(folder: Path) -> None:
    sizes = {
        f"{m.path.relative_to(ROOT)}:{f.lineno} {f.name}": length(f) for m in modules(folder) for f in functions(m)
    }
    assert {name: lines for name, lines in sizes.items() if lines > 60} == {}
    assert median(sizes.values()) <= 15


def test_commands_are_thin() -> None:
    sizes = {m.where: m.text.count("\n") for m in modules() if m.part == "commands"}
    assert {name: lines for name, lines in sizes.items() if lines > 150} == {}


def test_every_module_says_what_it_is_for() -> None:
    assert [m.where for m in modules() if not ast.get_docstring(m.tree)] == []


def test_public_names_are_sane() -> None:
    """__all__, where a module has one, names what is there, once each."""
    for module in modules():
        if module.name.endswith("__main__") or "__all__" not in module.text:
            continue
        loaded = importlib.import_module(module.name)
        names = list(loaded.__all__)
        assert len(names) == len(set(names)), module.name
        assert [name for name in names if not hasattr(loaded, name)] == [], module.name


def test_every_module_can_be_imported_alone() -> None:
    """Catches import cycles that only work in a lucky order; optional packages may be missing."""
    for module in modules():
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name not in ("grpc", "numpy", "ml_dtypes", "google", "pyopencl", "crc32c", "torch"):
                raise
