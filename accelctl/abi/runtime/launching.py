"""Launches: a kernel, a grid and a block, typed arguments, a stream.

The kernels are those of the chip's Ops contract, made ready for shapes. Besides them there is ``ECHO``, which every
chip has because it is a copy: it stores its whole argument block, as the device got it, at its first pointer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from accelctl.abi.call import Call
from accelctl.abi.launch import Launch
from accelctl.abi.opset import OPS, Value
from accelctl.abi.runtime import arguments, kernels
from accelctl.abi.runtime.arguments import Arg
from accelctl.abi.runtime.core import runtime_call
from accelctl.abi.runtime.device import Device
from accelctl.abi.runtime.failure import fail
from accelctl.abi.runtime.pointer import Pointer
from accelctl.abi.runtime.stream import Do, Stream, Work
from accelctl.abi.runtime.streams import StreamCalls
from accelctl.abi.tensors import DType, Tensor, tensor
from accelctl.errors import AccelError, UsageError

MOST_SHARED = 48 << 10
"""Bytes that a launch may ask for besides: what every GPU of the last ten years gives without being asked twice."""


class Operand(NamedTuple):
    """An operand without its place."""

    shape: tuple[int, ...]
    dtype: DType


class Kernel(NamedTuple):
    """A kernel made ready. ``op`` is empty for ECHO."""

    op: str
    operands: tuple[Operand, ...] = ()
    """Inputs, then outputs."""
    inputs: int = 0


ECHO = Kernel("")


class LaunchCalls(StreamCalls):
    """Mixed into Runtime."""

    @runtime_call
    def kernel(self, op: str, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> Kernel:
        """Of an op and its shapes. not_found for an op that there is not."""
        if op not in OPS:
            raise fail("not_found", f"there is no op {op!r}")
        return Kernel(op, (*inputs, *outputs), len(inputs))

    @runtime_call
    def launch_shape(self, kernel: Kernel, args: Sequence[Arg]) -> Launch:
        """Grid and block that a kernel needs for its shapes."""
        if not kernel.op:
            return Launch()
        made = self._call(kernel, args)
        return kernels.choose(self.device().ops, made).launch(made)

    @runtime_call
    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[Arg],
        shared: int,
        stream: Stream | None,
    ) -> None:
        """Values are copied now. launch_config for what can never run: it fails here, and nothing runs."""
        live, device = self.live_stream(stream), self.device()
        shape = Launch(grid, block)
        shape.encode()
        if not 0 <= shared <= MOST_SHARED:
            raise fail("launch_config", f"{shared} bytes of shared memory: {MOST_SHARED} are possible")
        with self._lock:
            if kernel.op:
                self._launch_op(device, kernel, shape, args, live)
            else:
                self._echo(device, args, live)
        self.relieve(live)

    def _launch_op(self, device: Device, kernel: Kernel, shape: Launch, args: Sequence[Arg], stream: Stream) -> None:
        made = self._call(kernel, args)
        template = kernels.choose(device.ops, made)
        if template.launch(made) != shape:
            raise fail("launch_config", f"{template.name}: a launch of {shape}, it needs {template.launch(made)}")
        try:
            self.enqueue(stream, Work(kernels.instruction(template, made, shape)))
        except UsageError as error:
            raise fail("invalid_argument", error.message) from error

    def _call(self, kernel: Kernel, args: Sequence[Arg]) -> Call:
        op = OPS[kernel.op]
        found = arguments.as_op(op, len(kernel.operands), args)
        attrs: dict[str, Value] = {one.name: one.default for one in op.attrs if one.default is not None}
        attrs |= found.attrs
        missing = [one.name for one in op.attrs if one.name not in attrs]
        if missing:
            raise fail("invalid_argument", f"{op.name}: {', '.join(missing)} must be said")
        placed = [
            tensor(one.shape, one.dtype, address) for one, address in zip(kernel.operands, found.addresses, strict=True)
        ]
        inputs: list[Tensor | None] = [*placed[: kernel.inputs]]
        outputs: list[Tensor | None] = [*placed[kernel.inputs :]]
        inputs += [None] * (len(op.inputs) - len(inputs))
        outputs += [None] * (len(op.outputs) - len(outputs))
        return Call(op, tuple(inputs), tuple(outputs), {one.name: attrs[one.name] for one in op.attrs})

    def _echo(self, device: Device, args: Sequence[Arg], stream: Stream) -> None:
        """The block goes into memory of its own for each launch, as a driver puts it into a constant buffer."""
        data = arguments.as_block(args)
        places = [one.value for one in args if isinstance(one.value, Pointer)]
        if not places:
            raise fail("invalid_argument", "ECHO stores at its first pointer, and there is none")
        device.find(places[0], len(data))
        block = device.acquire(len(data))
        try:
            device.write_block(block, 0, data)
            for one in kernels.copies(device.ops, places[0].address, block.address, len(data)):
                self.enqueue(stream, Work(one))
        except AccelError:
            device.release(block)
            raise
        if stream.graph is None:  # a capture keeps it, for every replay
            self.enqueue(stream, Do(partial(device.release, block)))
