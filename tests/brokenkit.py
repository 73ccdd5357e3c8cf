"""Plug-ins that are broken, one for each way to be: all of them may be installed at once, and none harms the others."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.abikit import HEAD, Plugins, loads

GOOD = loads("registry.register(manifest(__name__.removesuffix('_chip')), memory=Memory())")

USES = """
from accelctl.abi.lifecycle import Target
from accelctl.abi.ops import Device

class Ops:
    def devices(self): raise RuntimeError("no firmware")
    def templates(self): raise RuntimeError("no firmware")
    def lifecycle(self): return "plain"
    def open(self, session, depth): raise RuntimeError("no firmware")
"""

PRINTS = """
import os, sys
print("banner at import")
sys.__stdout__.write("banner past sys.stdout") if sys.__stdout__ else None
os.write(1, b"banner of native code\\n")
"""


def offering(name: str, *lines: str, head: str = HEAD) -> str:
    """Registers a chip with Ops, after these lines."""
    body = (
        *lines,
        f"registry.register(manifest({name!r}, features=frozenset({{'memory', 'ops'}})), memory=Memory(), ops=Ops())",
    )
    return loads(*body, head=head + USES)


class Broken(NamedTuple):
    """One of them: its chip, its code, and what the line about it says."""

    name: str
    code: str | None
    line: str


BROKEN = (
    Broken("noentry", HEAD, "module noentry_chip has no function load_backend"),
    Broken("nomodule", None, "module nomodule_chip is missing"),
    Broken("oldabi", loads("registry.register(manifest('oldabi', abi=99), memory=Memory())"), "written for ABI 99"),
    Broken("nomethod", loads("registry.register(manifest('nomethod'), memory=object())"), "has no method open"),
    Broken(
        "raises", loads("raise RuntimeError('no driver\\nhere')"), "load_backend failed: RuntimeError: no driver here"
    ),
    Broken("atuse", offering("atuse"), "asked for its devices, it failed: RuntimeError: no firmware"),
    Broken("hangs", loads("import time", "time.sleep(3600)"), "did not come back within"),
    Broken("spins", "while True:\n    pass\n", "did not come back within"),
    Broken("sysexit", "raise SystemExit(0)", "SystemExit: 0"),
    Broken("osexit", loads("import os", "os._exit(0)"), "ended the process (exit status 0)"),
    Broken(
        "crashes",
        loads("import os, signal", "os.kill(os.getpid(), signal.SIGSEGV)"),
        "ended the process (killed by SIGSEGV)",
    ),
    Broken("interrupts", loads("raise KeyboardInterrupt"), "KeyboardInterrupt"),
    Broken(
        "weird",
        "class Odd(Exception):\n    __module__ = 'os'\n    def __str__(self): 1 / 0\n" + loads("raise Odd"),
        "failed",
    ),
)
"""Those that are refused or fail when they are asked; the ones below load."""

HANGS = {"hangs", "spins"}


def install(plug: Plugins, broken: Broken) -> None:
    """One of them."""
    plug(broken.code, names=(broken.name,), module=f"{broken.name}_chip", dist=f"{broken.name}-chip")


def install_all(plug: Plugins, *, but: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """All of them, with those that want another's name."""
    for broken in BROKEN:
        if broken.name not in but:
            install(plug, broken)
    plug("raise SystemExit('imported')", names=("vgem",), module="shadow_chip", dist="shadow")
    for dist in ("first", "second"):
        plug("raise SystemExit('imported')", names=("twice",), module=f"{dist}_chip", dist=dist)


SOURCE = """
#include <Python.h>
int accel_answer(void) { return @answer@; }
static PyObject *ask(PyObject *self, PyObject *none) { return PyLong_FromLong(accel_answer()); }
static PyMethodDef methods[] = {{"ask", ask, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "@name@", "", -1, methods};
PyMODINIT_FUNC PyInit_@name@(void) { return PyModule_Create(&module); }
"""
"""A library with a global symbol that it calls itself by way of the dynamic linker, as all do without -Bsymbolic."""

CLASHING = """
import sys, os
from accelctl.abi.lifecycle import Target
from accelctl.abi.ops import Device
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
from {name}_chip import native_{name}

class Ops:
    def devices(self):
        return (Device(Target("{name}:0", "{name}", "{name}", ""), "answers " + str(native_{name}.ask()), True),)
    def templates(self): return ()
    def lifecycle(self): return "plain"
    def open(self, session, depth): raise NotImplementedError
"""


def native(plug: Plugins, name: str, answer: int, cc: str) -> None:
    """A plug-in with a library that shows its symbols to everybody; its device says what its library answers."""
    code = CLASHING.format(name=name)
    good = f"registry.register(manifest({name!r}, features=frozenset({{'memory', 'ops'}})), memory=Memory(), ops=Ops())"
    check = f"if native_{name}.ask() != {answer}: raise RuntimeError('symbols of another library')"
    package = plug(loads(check, good, head=HEAD + code), names=(name,), module=f"{name}_chip", dist=f"{name}-chip")
    source = package / "native.c"
    source.write_text(SOURCE.replace("@answer@", str(answer)).replace("@name@", f"native_{name}"), encoding="utf-8")
    library = package / f"native_{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    command = [cc, "-shared", "-fPIC", "-O0", f"-I{include}", str(source), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True)


def compiler() -> str:
    """A C compiler with Python's header; the test is skipped, loudly, where there is none."""
    from shutil import which

    cc = which("cc") or which("gcc") or ""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not cc or not header.is_file():
        pytest.skip(f"no C compiler with {header}: clashing symbols cannot be made")
    return cc


Install = Callable[[Plugins], None]
