"""A pytest plugin for `--collect-only` on the host: writes which guest tests there are and which kernel each needs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write {test id: kernel it needs, or null for both} to the file the rig named."""
    found: dict[str, str | None] = {}
    for item in session.items:
        mark = item.get_closest_marker("needs")
        found[item.nodeid] = str(mark.args[0]) if mark is not None else None
    Path(os.environ["ACCELCTL_GUEST_COLLECT"]).write_text(json.dumps(found), encoding="utf-8")
