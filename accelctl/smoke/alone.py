"""A kernel by itself: the chip opened without any service, one instruction submitted by hand.

What goes wrong here is the chip's; what goes wrong only through the service is the service's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from accelctl.abi import blob, call
from accelctl.abi.compute import Found
from accelctl.abi.lifecycle import Block, Env, Lifecycle, Session
from accelctl.abi.ops import Template
from accelctl.abi.opset import OPS
from accelctl.abi.trial import said
from accelctl.errors import AbiError, AccelError, TimeoutFailure
from accelctl.memory.va import space
from accelctl.smoke.cases import Trial
from accelctl.smoke.numbers import NUMPY, Array
from accelctl.smoke.through import WAIT_S


class Alone:
    """One open device, its ring, and the blocks of one trial after the other."""

    def __init__(self, found: Found) -> None:
        memory, self._ops = found.chip.memory, found.chip.ops
        assert memory is not None
        assert self._ops is not None
        env = Env(space=space)
        self._name = found.name
        with self._asked("opened"):
            self.session: Session = memory.open(found.device.target, env)
            wanted = self._ops.lifecycle()
            self._life: Lifecycle = next(one for one in self.session.lifecycles if one.name == wanted)
            self._ring = self._ops.open(self.session, 4)

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        """Whatever a chip raises is an AccelError of ours: it ends smoke with a line, and is one of its results."""
        try:
            yield
        except (AccelError, MemoryError):
            raise
        except Exception as error:
            raise AbiError(f"chip {self._name}: {what} without the service, it failed: {said(error)}") from error

    def close(self) -> None:
        """Ring, then session."""
        with self._asked("closed"):
            self._ring.close()
            self.session.close()

    def run(self, trial: Trial, instruction: Any, by: Template | None = None) -> dict[str, Array]:
        """Results of a trial whose operands are all dense or as the instruction says, by one instruction; ``by``: by
        another kernel of the same op."""
        found = blob.decode(instruction.instruction_blob)
        if by is not None:
            launch = by.launch(call.decode(OPS[by.op], found.body, found.params))
            found = found._replace(kernel_id=by.kernel_id, launch=launch)
        with self._asked("given an instruction"), ExitStack() as held:
            inputs = [self._put(arg.storage.tobytes(), held) for arg in trial.inputs.values()]
            outputs = [self._put(bytes(out.nbytes), held) for out in trial.outputs.values()]
            starts = [arg.offset * arg.storage.itemsize for arg in trial.inputs.values()]
            params = [block.address + start for block, start in zip(inputs, starts, strict=True)]
            params += [block.address for block in outputs]
            work = blob.encode(found.kernel_id, found.launch.encode(), params, found.body)
            if not self._ring.wait(self._ring.submit(work), WAIT_S):
                raise TimeoutFailure(f"kernel {found.kernel_id} did not end in {WAIT_S:g} s")
            names = [one.name for one in OPS[trial.case.op].outputs if one.name in trial.outputs]
            return {name: self._get(block, trial, name) for name, block in zip(names, outputs, strict=True)}

    def _put(self, data: bytes, held: ExitStack) -> Block:
        block = Block(max(1, len(data)))
        for stage in self._life.stages:
            stage.acquire(block)
            if stage.release is not None:
                held.callback(stage.release, block)
        if block.map is None:
            raise AccelError(f"{self._life.name}: a block has no CPU mapping")
        self._sync(block, True)
        block.map[: len(data)] = data
        self._sync(block, False)
        return block

    def _get(self, block: Block, trial: Trial, name: str) -> Array:
        out = trial.outputs[name]
        assert block.map is not None
        self._sync(block, True)
        raw = bytes(block.map[: out.nbytes])
        self._sync(block, False)
        dtype = NUMPY[out.dtype]
        steps = tuple(stride * dtype.itemsize for stride in out.strides)
        flat = np.frombuffer(raw, dtype)
        found: Array = np.lib.stride_tricks.as_strided(flat, out.shape, steps).copy()
        return found

    def _sync(self, block: Block, begin: bool) -> None:
        if self._life.sync is not None:
            self._life.sync(block, begin)
