"""`python -m tests.kernel.rig`: prepare the kernels, run pytest in one, say which packages are needed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import cache, kernels, packages
from .errors import RigError
from .say import step


def _prepare(arguments: argparse.Namespace) -> int:
    kinds = cache.KINDS if arguments.kind == "all" else (arguments.kind,)
    with step("preparing"):
        kernels.prepare(kinds)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from . import run

    return run.to_terminal(arguments.kind, arguments.pytest, arguments.limit, arguments.results)


def _packages(_: argparse.Namespace) -> int:
    print(" ".join(packages.wanted()))
    return 0


def _missing(_: argparse.Namespace) -> int:
    lack = packages.missing()
    if lack:
        print(" ".join(lack))
    return 1 if lack else 0


def parser() -> argparse.ArgumentParser:
    """Return the command line; everything after `--` of `run` is pytest's."""
    top = argparse.ArgumentParser(prog="python -m tests.kernel.rig", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    prepare = commands.add_parser("prepare", help="fetch and build what is not in the cache yet")
    prepare.add_argument("kind", nargs="?", choices=[*cache.KINDS, "all"], default="all")
    prepare.set_defaults(do=_prepare)
    run = commands.add_parser("run", help="boot one kernel and run pytest in it; the exit code is pytest's")
    run.add_argument("kind", choices=cache.KINDS)
    run.add_argument("--limit", type=int, default=900, metavar="SECONDS", help="end the guest after this long")
    run.add_argument("--results", type=Path, metavar="DIR", help="keep junit.xml, output, console and dmesg here")
    run.epilog = "After `--` come pytest's arguments; default: tests/kernel/guest."
    run.set_defaults(do=_run)
    commands.add_parser("packages", help="print the Debian packages needed").set_defaults(do=_packages)
    commands.add_parser("missing", help="print those that are not here; exit 1 if any").set_defaults(do=_missing)
    return top


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return what is ours and what, after the first `--`, is pytest's; argparse would look into the latter."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def main(words: list[str]) -> int:
    """Run one command; a failure of the rig is one line (or a log's tail) and exit code 3, which pytest means too."""
    ours, theirs = split(words)
    arguments = parser().parse_args(ours)
    arguments.pytest = theirs
    try:
        return int(arguments.do(arguments))
    except RigError as error:
        print(f"kernel rig: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
