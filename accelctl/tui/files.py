"""What the `w` key writes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from accelctl.render import output
from accelctl.render.layout import Line
from accelctl.tui.lines import plain


def write(lines: Sequence[Line]) -> str:
    """The screen as text into a new file of this folder; its name. UsageError where that cannot be."""
    name = time.strftime("accelctl-top-%Y%m%d-%H%M%S.txt")
    output.write(name, "\n".join(plain(line) for line in lines) + "\n", replace=False)
    return name
