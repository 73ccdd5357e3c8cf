"""The programs that kernels are in: source/, built once for a device, each with the options that it is needed with."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from accelctl.backends.opencl.platform import module

ACC = {"int8": "char", "uint8": "uchar", "int32": "int"}
"""Whole numbers that contractions take, as OpenCL C calls them."""
IN_FLOATS = "-DT=float -DACC=float -DFLOATS"
_CONTRACTED = (IN_FLOATS, *(f"-DT={kind} -DACC=int" for kind in ACC.values()))
_PROGRAMS = (
    *(("contraction", options) for options in _CONTRACTED),
    *((name, "") for name in ("elementwise", "attention", "matvec", "routing", "rows")),
)
"""All that there are: source and options."""


@cache
def kernel(context: Any, source: str, options: str, name: str) -> Any:
    """A kernel of a program that is built for a context."""
    return module().Kernel(_program(context, source, options), name)


@cache
def _program(context: Any, name: str, options: str) -> Any:
    return module().Program(context, _source(name)).build(options.split())


@cache
def _source(name: str) -> str:
    return files("accelctl.backends.opencl").joinpath(f"source/{name}.cl").read_text(encoding="utf-8")


@cache
def source_digest(kernel: str) -> str:
    """Twelve hexadecimal digits of the source that a kernel is in: another source is another kernel."""
    text = next(text for text in map(_source, dict(_PROGRAMS)) if f"void {kernel}(" in text)
    return sha256(text.encode()).hexdigest()[:12]


def build(context: Any) -> None:
    """Every program that is not built yet. A compiler takes a second or more for each; drivers keep that on disk."""
    for name, options in _PROGRAMS:
        _program(context, name, options)
