"""The handshake: a module is imported, asked for its chips, and each chip is looked over before anyone uses it.

The same for chips in the tree and for third parties; refusals are AbiError, one line each, and say what to do where
something can be done.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from accelctl.abi.manifest import Manifest
from accelctl.abi.version import ABI, CONTRACTS, accepts, remedy
from accelctl.errors import AbiError, AccelError

if TYPE_CHECKING:
    from accelctl.abi.lifecycle import Memory
    from accelctl.abi.ops import Ops
    from accelctl.abi.queue import Queue
    from accelctl.abi.schedule import Schedule
    from accelctl.abi.telemetry import Telemetry

METHODS: dict[str, dict[str, tuple[str, ...]]] = {
    "memory": {"open": ("target", "env")},
    "queue": {"nop": (), "open": ("session", "depth")},
    "ops": {"devices": (), "templates": (), "lifecycle": (), "open": ("session", "depth")},
    "telemetry": {"open": ("seat",)},
    "schedule": {"record": ("ring", "blobs")},
}
"""Contract -> method -> the arguments it is called with, by position."""


class Chip(NamedTuple):
    """A chip that passed. A contract that it does not claim is None."""

    manifest: Manifest
    memory: Memory | None
    queue: Queue | None
    ops: Ops | None
    origin: str
    telemetry: Telemetry | None = None
    schedule: Schedule | None = None


class Given(NamedTuple):
    """What a chip handed over, unjudged."""

    manifest: Manifest
    contracts: Mapping[str, object]


def load_module(name: str, registry: object, *, foreign: bool, folder: str = "") -> None:
    """Import a chip's module and call its ``load_backend(registry)``. AbiError without the chip's name. ``folder``: one
    that joins the end of the search path.

    Everything that a module can do wrong is caught, except being interrupted by the user; see abi.trial for the rest.
    """
    if not foreign:
        _load(name, registry)
        return
    from accelctl.hal.ownstdout import not_theirs

    if folder:
        _join(folder, name)
    if os.geteuid() == 0:
        require_trusted(name)
    flags = sys.getdlopenflags()
    try:
        with not_theirs():
            _load(name, registry)
    finally:
        sys.setdlopenflags(flags)  # whoever loads its libraries for all to see does not decide it for others


def _join(folder: str, name: str) -> None:
    """All of the folder is importable from now on, so all of it must be trusted; and the module must come from it: one
    of another version that is found first would be taken for this one."""
    from accelctl.abi.trust import require_tree
    from accelctl.hal import ownpython

    try:
        require_tree(Path(folder))
    except AccelError as error:
        raise AbiError(error.message) from error
    except OSError as error:
        raise AbiError(f"{folder} cannot be looked at: {error.strerror}") from error
    ownpython.join(folder)
    importlib.invalidate_caches()
    top = name.partition(".")[0]
    spec = _spec(top)
    places = (spec.origin, *(spec.submodule_search_locations or ())) if spec is not None else ()
    for place in places:  # a built-in has the origin "built-in", which is nowhere below
        if place and not Path(place).resolve().is_relative_to(Path(folder).resolve()):
            raise AbiError(f"module {top} is not that of {folder}: {place} is found first")


def _spec(top: str) -> Any:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError) as error:
        raise AbiError(f"module {top} cannot be found: {_said(error)}") from error


def _load(name: str, registry: object) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise AbiError(f"module {name} is missing") from error
        raise AbiError(f"module {name} cannot be imported: {_said(error)}") from error
    except (Exception, SystemExit) as error:
        raise AbiError(f"module {name} cannot be imported: {_said(error)}") from error
    function: Callable[[object], object] | None = getattr(module, "load_backend", None)
    if not callable(function):
        raise AbiError(f"module {name} has no function load_backend")
    try:
        function(registry)
    except (Exception, SystemExit) as error:
        raise AbiError(f"load_backend failed: {_said(error)}") from error


def check(given: Given, who: str, origin: str, abi: int | None) -> Chip:
    """The chip, or AbiError. ``abi``: what the table says that it was written for."""
    manifest = given.manifest
    if manifest.implied and origin != "in-tree":
        raise AbiError(f"{who}: its manifest names no abi; this accelctl speaks {ABI}")
    if not accepts(manifest.abi):
        raise AbiError(
            f"{who}: written for ABI {manifest.abi}, this accelctl speaks ABI {ABI}", remedy(manifest.abi, origin)
        )
    if abi is not None and manifest.abi != abi:
        raise AbiError(f"{who}: its manifest says ABI {manifest.abi}, the table of chips says {abi}")
    for name in CONTRACTS:
        _check_contract(name, given, who)
    if "schedule" in manifest.features and "ops" not in manifest.features:
        raise AbiError(f"{who}: claims schedule and not ops: there is nothing that it could record")
    found = given.contracts
    return Chip(
        manifest,
        cast("Memory | None", found.get("memory")),
        cast("Queue | None", found.get("queue")),
        cast("Ops | None", found.get("ops")),
        origin,
        cast("Telemetry | None", found.get("telemetry")),
        cast("Schedule | None", found.get("schedule")),
    )


def _check_contract(name: str, given: Given, who: str) -> None:
    contract, claimed = given.contracts.get(name), name in given.manifest.features
    if claimed and given.manifest.abi < CONTRACTS[name]:
        raise AbiError(f"{who}: written for ABI {given.manifest.abi}, and claims {name}, a contract of ABI "
                       f"{CONTRACTS[name]}")  # fmt: skip
    if claimed and contract is None:
        raise AbiError(f"{who}: claims {name} and registers no object for it")
    if contract is None:
        return
    if not claimed:
        raise AbiError(f"{who}: registers {name}, which is not among the features of its manifest")
    for method, words in METHODS[name].items():
        function = getattr(contract, method, None)
        if not callable(function):
            raise AbiError(f"{who}: its {name} has no method {method}({', '.join(words)})")
        if not _takes(function, words):
            shown = inspect.signature(function)
            raise AbiError(f"{who}: its {name}.{method}{shown} cannot be called as {method}({', '.join(words)})")


def _takes(function: Callable[..., object], words: tuple[str, ...]) -> bool:
    try:
        inspect.signature(function).bind(*words)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature: only calling it tells
        pass
    return True


def _said(error: BaseException) -> str:
    """An exception in one line; our own are whole sentences already."""
    text = " ".join(str(error.message if isinstance(error, AccelError) else error).split())[:200]
    return text if isinstance(error, AccelError) else f"{type(error).__name__}: {text}".removesuffix(": ")


def require_trusted(name: str) -> None:
    """As root: only code that nobody else can change. The whole package is looked at before any of it is imported (an
    import of a.b runs a first); what it imports of others is their installer's business."""
    from accelctl.abi.trust import require_trusted as require  # one rule for data and code

    for path in _files(_spec(name.partition(".")[0])):
        try:
            require(path)
        except AccelError as error:
            raise AbiError(error.message) from error
        except OSError as error:
            raise AbiError(f"{path} cannot be looked at: {error.strerror}") from error


def _files(spec: Any) -> Iterator[Path]:
    """The files of a module or package, and its folders; none where it is missing or built in."""
    if spec is None:
        return
    for folder in spec.submodule_search_locations or ():
        yield Path(folder).resolve()
        for path in Path(folder).resolve().rglob("*"):
            if path.is_symlink():  # where it leads may be changed without changing anything here
                raise AbiError(f"not used as root: {path} is a symbolic link")
            yield path
    if spec.has_location and spec.origin:
        yield Path(spec.origin).resolve()
