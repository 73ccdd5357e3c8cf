"""A fresh interpreter for a module of ours, which finds what we find and nothing else.

``python -m`` and ``python -c`` look into the current folder first, and that may be anybody's: whoever leaves an
``accelctl/`` or a ``json.py`` there would run as us, as root too. So a child starts isolated (``-I``) and is handed our
own search path, without the current folder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

_OURS = str(Path(__file__).resolve().parents[2])
"""The folder that accelctl lies in; an editable checkout may be known to an import hook only."""
_joined: set[str] = set()


def join(folder: str) -> None:
    """Let this process, and none of its children, find what is in that folder: each chooses its own version. The last
    one: what is in it shadows nothing."""
    if folder not in sys.path:
        sys.path.append(folder)
        _joined.add(folder)


def search_path() -> list[str]:
    """What a child of ours may import from."""
    found = [place for place in sys.path if isinstance(place, str) and place not in ("", ".", *_joined)]
    return found if _OURS in found else [*found, _OURS]


def command(module: str, words: Sequence[str]) -> list[str]:
    """What to run for ``python -m module words``."""
    return script(f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)", words)


def script(code: str, words: Sequence[str] = ()) -> list[str]:
    """What to run for ``python -c code words``."""
    return [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {search_path()!r}; {code}", *words]
