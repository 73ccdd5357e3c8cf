"""`accelctl merge`: fold reports of many nodes, and show the odd ones out."""

from typing import Annotated

import typer

EXAMPLES = (
    ("accelctl merge reports/", "every *.json of a folder; a node's name is that of its file"),
    ("accelctl merge reports/ --nodes 'node[001-256]'", "also say who did not report"),
    ("clush -a accelctl probe --json --no-evidence | accelctl merge -", "without files"),
    ("accelctl merge reports/ --key '/devices/*/link*'", "only what is below these places"),
    ("accelctl merge reports/ --ignore /machine/system/bios_date", "all but this"),
    ("accelctl probe --json | accelctl merge --nagios -", "one line and an exit status for Nagios"),
)

COUNT, PRINT = "What counts", "What to print"


def _option(name: str, text: str, panel: str, metavar: str | None = None) -> typer.models.OptionInfo:
    return typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar)  # type: ignore[no-any-return]


def merge(
    files: Annotated[
        list[str], typer.Argument(help="reports, folders of reports, or - for standard input", metavar="FILES")
    ],
    nodes: Annotated[str, _option("--nodes", "who should have reported, as node[001-016,020]", COUNT, "SET")] = "",
    key: Annotated[
        list[str] | None, _option("--key", "only places that fit; may be given several times", COUNT, "POINTER")
    ] = None,
    ignore: Annotated[
        list[str] | None, _option("--ignore", "not these places; may be given several times", COUNT, "POINTER")
    ] = None,
    volatile: Annotated[bool, _option("--volatile", "also what changes by itself, and identities", COUNT)] = False,
    slack: Annotated[
        float, _option("--slack", "how much worse than the median a figure of bench may be", COUNT, "PERCENT")
    ] = 10.0,
    name_from: Annotated[
        str, _option("--name-from", "a node's name: file, folder, or a JSON pointer into its report", COUNT, "WHERE")
    ] = "file",
    everything: Annotated[bool, _option("--all", "every difference of every odd group", PRINT)] = False,
    as_json: Annotated[bool, _option("--json", "as JSON", PRINT)] = False,
    nagios: Annotated[bool, _option("--nagios", "one line and Nagios' exit status (0, 1, 2, 3)", PRINT)] = False,
) -> int:
    """Fold reports of many nodes (any JSON document of accelctl) into groups of equal ones.

    The largest group is the norm; every other is shown with where it differs. The exit status is 0 if all are equal,
    1 if there are odd, missing or slow ones, 2 if something is no report; the others are folded all the same.
    """
    from accelctl.accept.fleet import merge as fold_all
    from accelctl.accept.fleetread import rules
    from accelctl.render import fleet as view

    view.check(as_json=as_json, as_nagios=nagios, everything=everything)
    found = fold_all(files, rules(key or [], ignore or [], volatile=volatile, name_from=name_from), nodes, slack)
    return view.show(found, as_json=as_json, as_nagios=nagios, everything=everything)
