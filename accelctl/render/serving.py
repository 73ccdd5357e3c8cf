"""What `accelctl serve` says when it listens."""

from __future__ import annotations

import sys
from typing import Any

from accelctl.render import term
from accelctl.render.document import dumps, headed


def show(ready: Any, *, as_json: bool) -> None:
    """Device and address, flushed at once: scripts wait for this line."""
    if as_json:
        found = headed(
            "accelctl.serve/1",
            device=ready.device,
            simulated=ready.simulated,
            address=ready.address,
            metrics=ready.metrics_at or None,
        )
        term.emit(dumps(found))
    else:
        mark = " (simulated)" if ready.simulated else ""
        lines = [f"{ready.device}{mark} is served at {ready.address}"]
        lines += [f"metrics: {ready.metrics_at}"] if ready.metrics_at else []
        lines += [f"try: accelctl smoke --target {ready.address}"]
        term.emit("\n".join(lines) + "\n")
    if sys.stdout is not None:
        sys.stdout.flush()
