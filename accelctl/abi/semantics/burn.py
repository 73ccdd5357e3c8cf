"""Work that lasts: matrix products, one behind the other, as many as a device needs for so many seconds."""

from __future__ import annotations

import struct
from math import ceil

from accelctl.abi.runtime import Arg, Operand, Runtime, Stream
from accelctl.abi.runtime.pointer import Pointer
from accelctl.abi.tensors import FP32
from accelctl.abi.testbench import Wrong

_LEAST_S = 0.009
"""A launch lasts at least that long, so that few are needed."""
_LARGEST = 1024
_IN_A_ROW, _TRIES = 4, 5
_MOST_LAUNCHES = 4000


class Burner:
    """Measured on first use."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._length = 0
        self._each_s = 0.0
        self._places: tuple[Pointer, ...] = ()

    def measure(self, length: int = 64) -> None:
        """How large a product must be, and how long it lasts when others follow it: the shortest of several tries."""
        while not self._each_s:
            self._prepare(length)
            stream = self._runtime.create_stream()
            times = [self._time(stream) for _ in range(_TRIES)][1:]
            self._runtime.destroy_stream(stream)
            if min(times) >= _LEAST_S or length >= _LARGEST:
                self._each_s = min(times)
            length *= 2

    def _prepare(self, length: int) -> None:
        for place in self._places:
            self._runtime.free(place)
        size = 4 * length * length
        self._length = length
        self._places = tuple(self._runtime.malloc(size) for _ in range(3))
        data = struct.pack("<f", 0.5) * (length * length)
        for place in self._places[:2]:
            self._runtime.memcpy(place, data, size)

    def _time(self, stream: Stream) -> float:
        clock = self._runtime.device().clock
        start = clock()
        for _ in range(_IN_A_ROW):
            self._launch(stream)
        self._runtime.sync(stream)
        return (clock() - start) / _IN_A_ROW

    def _launch(self, stream: Stream) -> None:
        one = Operand((self._length, self._length), FP32)
        kernel = self._runtime.kernel("matmul", (one, one), (one,))
        args = [Arg("pointer", place) for place in self._places]
        shape = self._runtime.launch_shape(kernel, args)
        self._runtime.launch(kernel, shape.grid, shape.block, args, 0, stream)

    def burn(self, stream: Stream, seconds: float) -> float:
        """Put it into a stream; how long it should last."""
        self.measure()
        for _ in range(_TRIES):
            before = stream.last
            count = self._launched(stream, seconds)
            if stream.look() - before <= count / 2 or self._length >= _LARGEST:
                break
            # the machine was busy when it was measured, or hands over more slowly than it computes: fewer and larger
            self._runtime.sync(stream)
            self._each_s = 0.0
            self.measure(2 * self._length)
        return count * self._each_s

    def _launched(self, stream: Stream, seconds: float) -> int:
        count = ceil(seconds / max(self._each_s, 1e-9))
        if count > _MOST_LAUNCHES:
            raise Wrong(f"a launch takes {self._each_s:.2g} s: nothing here lasts {seconds:g} s")
        for _ in range(count):
            self._launch(stream)
        return count
