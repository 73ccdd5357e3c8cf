"""`accelctl backends COMMAND`: chips and their plug-ins: what is there, does it keep its promises, how to make one.

A chip is a plug-in: those of accelctl itself, and distributions with an entry point in the group accelctl.backends,
installed by pip or kept side by side on a shelf ($XDG_DATA_HOME/accelctl/backends) whose pointer says which version is
used. ACCELCTL_PLUGINS=none leaves out all but accelctl's own."""

from typing import Annotated

import typer

from accelctl.commands.shelf import Json, Name, add, canary, promote, rollback, versions

EXAMPLES = {
    "list": (
        ("accelctl backends", "all chips with code, and what is wrong with plug-ins"),
        ("accelctl backends list --load", "ask third parties' code as well, in child processes"),
    ),
    "show": (("accelctl backends show amdgpu", "what it promises, where it was proven, what it lacks"),),
    "check": (
        ("accelctl backends check sim", "the conformance suite, on the simulated chip"),
        ("accelctl backends check zork --device zork:0 --junit zork.xml", "on one device, for a CI server"),
    ),
    "new": (("accelctl backends new zork --at .", "a distribution of a chip, which passes `check` as it is"),),
    "add": (("accelctl backends add ./accelctl-zork", "put a version on the shelf; it is not used yet"),),
    "versions": (("accelctl backends versions zork", "what is on the shelf, and which one is used"),),
    "canary": (("accelctl backends canary zork 1.1", "smoke and bench on the version in use and on 1.1"),),
    "promote": (("accelctl backends promote zork 1.1", "from now on 1.1 is used"),),
    "rollback": (("accelctl backends rollback zork", "back to the version before"),),
}
DEFAULT = "list"


def list_(
    load: Annotated[bool, typer.Option("--load", help="also load third parties' code, in child processes")] = False,
    as_json: Json = False,
) -> None:
    """List every chip with code: where it is from, which ABI it was written for, its contracts, where it is proven.

    Nothing of a third party is imported for this; what only its code knows is shown as ?. With --load each is asked in
    a child process, so that one that hangs or crashes costs a line and nothing else.
    """
    from accelctl.accept.plugins.listing import listing
    from accelctl.render import backends as render

    render.show_list(listing(load=load), as_json=as_json)


def show(name: Name, as_json: Json = False) -> None:
    """Show one chip: its manifest, contracts, where it is proven, drivers, nodes, toolchains, and what it lacks."""
    from accelctl.accept.plugins.listing import detail
    from accelctl.render import backends as render

    render.show_chip(detail(name), as_json=as_json)


def check(
    name: Name,
    device: Annotated[str, typer.Option("--device", help="where to try it", metavar="DEVICE")] = "",
    as_json: Json = False,
    junit: Annotated[str, typer.Option("--junit", help="also write JUnit XML", metavar="FILE")] = "",
) -> int:
    """Run the conformance suite on what a chip promises: promised, observed, and where these differ.

    Each contract is tried in a child process of its own, on a device that nobody else uses. 1: something differs. 3: a
    promise could not be tried, as no device of it is here or nothing can be allocated. 4: the chip is refused.
    """
    from accelctl.accept.plugins import check as checking
    from accelctl.render import backends as render
    from accelctl.render import output

    output.check(junit)
    report = checking.check(name, device)
    render.show_check(report, as_json=as_json, junit=junit)
    return report.exit_code


def new(
    name: Annotated[
        str, typer.Argument(help="of the new chip: lower-case letters, digits, underscores", metavar="NAME")
    ],
    at: Annotated[str, typer.Option("--at", help="folder to make it in", metavar="DIR")] = ".",
    title: Annotated[str, typer.Option("--title", help="for people", metavar="TEXT")] = "",
    as_json: Json = False,
) -> None:
    """Write the distribution of a new chip: metadata, chip.toml, four contracts over a toy device, tests, README.

    It passes `accelctl backends check` as it is; replace the toy piece by piece. Nothing is ever overwritten.
    """
    from accelctl.accept.plugins import scaffold
    from accelctl.render import backends as render

    folder, files = scaffold.new(name, at, title)
    render.show_new(name, folder, files, as_json=as_json)


backends = {
    "list": (list_, "every chip with code, and what is wrong with plug-ins"),
    "show": (show, "one chip: what it promises, where it is proven, what it lacks"),
    "check": (check, "the conformance suite: promised, observed, differs"),
    "new": (new, "the distribution of a new chip, which passes as it is"),
    "add": (add, "put a version on the shelf"),
    "versions": (versions, "versions on the shelf, and which one is used"),
    "canary": (canary, "smoke and bench on two versions, compared"),
    "promote": (promote, "use a version from now on"),
    "rollback": (rollback, "use the version before again"),
}
