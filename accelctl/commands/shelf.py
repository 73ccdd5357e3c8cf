"""The part of `accelctl backends` that is about versions of one plug-in, side by side."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="one JSON document")]
Name = Annotated[str, typer.Argument(help="a chip, as `accelctl backends` lists it", metavar="NAME")]
Version = Annotated[str, typer.Argument(help="a version on the shelf", metavar="VERSION")]


def add(
    path: Annotated[str, typer.Argument(help="wheel, project, or folder of pip install --target", metavar="PATH")],
    as_json: Json = False,
) -> None:
    """Put a copy of a distribution on the shelf, beside other versions. It is used once it is promoted."""
    from accelctl.accept.plugins import store
    from accelctl.render import backends as render

    name, row = store.add(path)
    render.show_added(name, row, as_json=as_json)


def versions(
    name: Annotated[str | None, typer.Argument(help="only this chip", metavar="NAME")] = None, as_json: Json = False
) -> None:
    """Show the versions on the shelf, which one is used, since when, and how its first smoke ended."""
    from accelctl.accept.plugins import store
    from accelctl.render import backends as render

    names = [name] if name is not None else store.names()
    render.show_versions([store.versions(one) for one in names], as_json=as_json)


def canary(
    name: Name,
    version: Version,
    device: Annotated[str, typer.Option("--device", help="NAME:0 without it", metavar="DEVICE")] = "",
    bench: Annotated[bool, typer.Option("--bench/--no-bench", help="also compare speeds")] = True,
    as_json: Json = False,
) -> int:
    """Run smoke and bench on the version in use and on another one, and compare. 1: the other one is worse."""
    from accelctl.accept.plugins import canary as trial
    from accelctl.render import backends as render
    from accelctl.render import notes

    found = trial.canary(name, version, device, bench=bench, tick=notes.note)
    render.show_canary(found, as_json=as_json)
    return found.exit_code


def promote(name: Name, version: Version, as_json: Json = False) -> None:
    """Use this version from now on. It is loaded once, in a child process, before the pointer moves."""
    from accelctl.accept.plugins import store
    from accelctl.render import backends as render

    render.show_versions([store.promote(name, version)], as_json=as_json)


def rollback(name: Name, as_json: Json = False) -> None:
    """Use the version before again."""
    from accelctl.accept.plugins import store
    from accelctl.render import backends as render

    render.show_versions([store.rollback(name)], as_json=as_json)
