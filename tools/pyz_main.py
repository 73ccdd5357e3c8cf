"""What runs first inside accelctl.pyz: refuse an old Python, and find a folder to unpack into.

Copied in by tools/pyz.py. Written for any Python 3, so that an old one gets a sentence instead of a syntax error.
"""

import os
import stat
import sys
import tempfile


def usable(folder: str) -> bool:
    """Whether we can write there, and nobody else can (it will hold code, perhaps run by root)."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError:
        return False
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others and os.access(folder, os.W_OK)


def choose() -> None:
    """Set SHIV_ROOT when the home folder cannot be used, as on a rescue system with a read-only root."""
    if sys.version_info < (3, 10):  # noqa: UP036 - an older one may well run this file
        sys.exit("accelctl needs Python 3.10 or newer; this is " + sys.version.split()[0])
    if os.environ.get("SHIV_ROOT") or usable(os.path.join(os.path.expanduser("~"), ".shiv")):
        return
    try:
        folder = os.path.join(tempfile.gettempdir(), "accelctl-" + str(os.getuid()))
        os.environ["SHIV_ROOT"] = folder if usable(folder) else tempfile.mkdtemp(prefix="accelctl-")
    except OSError as error:
        sys.exit("accelctl cannot unpack itself: no writable folder (" + str(error) + "); set SHIV_ROOT to one")


if __name__ == "__main__":
    choose()
    from _bootstrap import bootstrap

    bootstrap()
