"""TOML reading on every supported Python: tomllib from 3.11 on, its back-port tomli before."""

from __future__ import annotations

import sys
from typing import Any


def loads(text: str) -> dict[str, Any]:
    """Parse TOML text; raises ValueError with the parser's one-line reason (TOMLDecodeError is a ValueError)."""
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib.loads(text)
    import tomli

    document: dict[str, Any] = tomli.loads(text)
    return document
