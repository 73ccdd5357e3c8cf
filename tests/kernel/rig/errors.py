"""The one error the rig raises for a user to read."""

from __future__ import annotations


class RigError(Exception):
    """Something the rig needs is missing or failed; the text is one line plus, where known, what to type."""
