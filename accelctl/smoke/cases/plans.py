"""Tensors that are only described: their sizes do not fit 32 bits, or not 64 (OPS-07). Nothing is allocated."""

from __future__ import annotations

from typing import NamedTuple

from accelctl.abi.tensors import Shape


class Plan(NamedTuple):
    """A description and its right sizes; ``nbytes`` is from the first element to the end of the last one. None: it must
    be refused, its size needs more than 64 bits."""

    name: str
    dtype: str
    shape: Shape
    elements: int
    nbytes: int | None
    strides: Shape = ()


PLANS = (
    Plan("ops-07a", "fp32", (65536, 32768), 2147483648, 8589934592),
    Plan("ops-07b", "fp32", (40000, 40000), 1600000000, 6400000000),
    Plan("ops-07c", "int8", (65536, 32768), 2147483648, 2147483648),
    Plan("ops-07d", "fp16", (65536, 16384), 1073741824, 2147483648),
    Plan("ops-07e", "fp32", (2, 3), 6, 4294967308, (1073741824, 1)),
    Plan("ops-07f", "fp32", (65536, 65536, 65536, 65536, 16), 1 << 68, None),
)
