"""`accelctl completion SHELL`: print the completion script that was generated from the command tree."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from accelctl.errors import NoDeviceError
from accelctl.render import term

EXAMPLES = (
    ('eval "$(accelctl completion bash)"', "in ~/.bashrc"),
    ('accelctl completion zsh > "${fpath[1]}/_accelctl"', "zsh, then start a new shell"),
    ("accelctl completion fish > ~/.config/fish/completions/accelctl.fish", "fish"),
)

FILES = {"bash": "accelctl.bash", "zsh": "_accelctl", "fish": "accelctl.fish"}
"""Shell -> file name below completions/: the names under which each shell looks for them."""


class Shell(str, Enum):
    """The shells there is a script for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="the shell to complete in", metavar="SHELL")]) -> None:
    """Print the completion script for a shell.

    The scripts are static: pressing TAB starts no Python and reads no device.
    """
    term.emit(script(shell.value))


def script(shell: str) -> str:
    """The committed text; it lies inside an installed package, and beside the package in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "data" / "completions", package.parent / "completions"):
        try:
            return (folder / FILES[shell]).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
    raise NoDeviceError(
        f"this installation has no completion script for {shell}", "reinstall accelctl", kind="not_supported"
    )
