"""Evidence for each kernel, rung by rung (abi.capability), gathered while the cases run."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from accelctl.abi.capability import LADDER
from accelctl.abi.ops import Template
from accelctl.abi.opset import OPS
from accelctl.abi.tensors import DTYPES, dense_strides, is_dense
from accelctl.errors import AccelError
from accelctl.model.smokereport import DecodeRun, Evidence, KernelEvidence
from accelctl.model.stressreport import PASS
from accelctl.smoke import bytesof, compare
from accelctl.smoke.alone import Alone
from accelctl.smoke.cases import Trial
from accelctl.smoke.numbers import Array

BLOB, ALONE, SERVICE, DISPATCH, REPLAY, END = LADDER
Kernel = tuple[str, str]
"""Name, op."""


class Ladder:
    """Counts what each kernel has passed. ``names``: number of a kernel -> name and op. ``flush``: see compare.
    ``behind``: special kernel -> the general one that is used where it is not."""

    def __init__(
        self,
        names: Mapping[int, Kernel],
        alone: Alone | None,
        flush: bool = False,
        behind: Mapping[str, Template] = MappingProxyType({}),
    ) -> None:
        self.names, self._alone, self._flush, self._behind = names, alone, flush, behind
        self._count: dict[str, Counter[Kernel]] = defaultdict(Counter)
        self._worst: Counter[Kernel] = Counter()
        self._wrong: dict[tuple[str, Kernel], str] = {}
        self._handed: Counter[Kernel] = Counter()
        """Instructions that were handed over."""
        self._of_model: Counter[Kernel] = Counter()
        """Those of them that the small transformer needed."""

    def judge(self, trial: Trial, got: Mapping[str, Array]) -> list[compare.Result]:
        """As compare.judge, for this device."""
        return compare.judge(trial, got, self._flush)

    def kernels(self, response: Any) -> list[Kernel]:
        """What a translation uses, in order."""
        unknown = ("?", "?")
        return [self.names.get(one.kernel_id, unknown) for one in response.instructions]

    def passed(self, trial: Trial, response: Any, ulps: int) -> None:
        """A case ran through the service and was right."""
        for kernel in self.kernels(response):
            self._count[SERVICE][kernel] += 1
        self._climb(trial, response)
        for kernel in self.kernels(response):
            if kernel[1] == trial.case.op:
                self._worst[kernel] = max(self._worst[kernel], ulps)

    def counted(self, response: Any) -> None:
        """Something was submitted."""
        self._handed.update(self.kernels(response))

    def handed_over(self, kernels: Counter[Kernel]) -> None:
        """The small transformer submitted these."""
        self._handed.update(kernels)
        self._of_model.update(kernels)

    @property
    def launched(self) -> Counter[str]:
        """Op -> instructions that were handed over."""
        found: Counter[str] = Counter()
        for (_, op), count in self._handed.items():
            found[op] += count
        return found

    def _climb(self, trial: Trial, response: Any) -> None:
        """The two lowest rungs, with the first plain translation of each kernel."""
        if len(response.instructions) != 1:
            return
        (kernel,) = self.kernels(response)
        if self._count[BLOB][kernel] or (BLOB, kernel) in self._wrong or kernel[1] != trial.case.op:
            return
        self._golden(kernel, trial, response)
        if self._alone is None or any(out.alias for out in trial.outputs.values()):
            return
        self._by_itself(kernel, trial, response.instructions[0])
        general = self._behind.get(kernel[0])
        if general is not None:  # whoever is sent back to it must get the same
            self._by_itself((general.name, general.op), trial, response.instructions[0], general)

    def _golden(self, kernel: Kernel, trial: Trial, response: Any) -> None:
        (one,) = response.instructions
        op = OPS[trial.case.op]
        places = {name: _described(arg.shape, arg.strides, arg.dtype) for name, arg in trial.inputs.items()}
        made = {operand.name: one for operand, one in zip(op.outputs, response.outputs, strict=False) if one.data_type}
        operands = [*(places.get(operand.name) for operand in op.inputs), *(made.get(o.name) for o in op.outputs)]
        right = bytesof.blob_of(one, one.param_addrs, bytesof.body_of(op.name, operands, trial.attrs))
        said = bytesof.difference(one.instruction_blob, right)
        if said:
            self._wrong[BLOB, kernel] = said
        else:
            self._count[BLOB][kernel] += 1

    def _by_itself(self, kernel: Kernel, trial: Trial, instruction: Any, by: Template | None = None) -> None:
        assert self._alone is not None
        try:
            results = self.judge(trial, self._alone.run(trial, instruction, by))
        except AccelError as error:
            self._wrong[ALONE, kernel] = error.message
            return
        bad = [one.detail for one in results if not one.passed]
        if bad:
            self._wrong[ALONE, kernel] = bad[0]
        else:
            self._count[ALONE][kernel] += 1

    def replayed(self, response: Any) -> None:
        """A second request of the same op was answered from the cache, and was right."""
        for kernel in self.kernels(response):
            self._count[REPLAY][kernel] += 1

    def dispatched(self, told: Mapping[str, int]) -> str:
        """Compare with what the service counted; what is wrong, or nothing."""
        wrong = [
            f"{op}: {count} handed over, {told.get(op, 0)} launched"
            for op, count in self.launched.items()
            if told.get(op, 0) != count
        ]
        for kernel in self._count[SERVICE]:
            if not wrong and told.get(kernel[1], 0):
                self._count[DISPATCH][kernel] = self._handed[kernel]
        return "; ".join(wrong)

    def ended(self, runs: list[DecodeRun]) -> None:
        """The small transformer ran. A kernel that it did not need is not proven by it, whatever others of its op
        did."""
        if all(run.result == PASS for run in runs):
            for kernel in self._count[SERVICE]:
                if self._of_model[kernel]:
                    self._count[END][kernel] = self._of_model[kernel]

    @property
    def wrong(self) -> list[str]:
        """What failed on the way up, a line each."""
        return [f"{kernel} ({op}): {rung}: {why}" for (rung, (kernel, op)), why in self._wrong.items()]

    def evidence(self) -> tuple[KernelEvidence, ...]:
        """All of it."""
        day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        found = []
        for kernel in self._count[SERVICE]:
            rungs = [Evidence(rung, day, self._figures(rung, kernel)) for rung in LADDER if self._count[rung][kernel]]
            found.append(KernelEvidence(kernel[0], kernel[1], tuple(rungs)))
        return tuple(found)

    def _figures(self, rung: str, kernel: Kernel) -> dict[str, float]:
        count = self._count[rung][kernel]
        if rung == SERVICE:
            return {"cases": count, "max_ulps": self._worst[kernel]}
        return {"launches" if rung in (DISPATCH, END) else "cases": count}


class _Described(NamedTuple):
    """As much of a TensorDesc as a body needs."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    data_type: int


def _described(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> _Described:
    """One form for one thing: the stride of a length of 1 has no meaning, and the service writes the dense one."""
    return _Described(shape, dense_strides(shape) if is_dense(shape, strides) else strides, DTYPES[dtype].code)
