"""Per op family: which operands fit together, and what comes out.

A check takes an op as it was asked for and returns its outputs, or refuses it and names the field. It knows nothing of
a chip; what a chip's kernels cannot take is the pipeline's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from accelctl.umd.translators import attention, contraction, elementwise, norm, position, routing
from accelctl.umd.translators.common import Ask, Output

Check = Callable[[Ask], tuple[Output, ...]]

FAMILIES: Mapping[str, Mapping[str, Check]] = {
    "contraction": contraction.CHECKS,
    "elementwise": elementwise.CHECKS,
    "norm": norm.CHECKS,
    "position": position.CHECKS,
    "attention": attention.CHECKS,
    "routing": routing.CHECKS,
}
"""Family -> op -> its check."""
