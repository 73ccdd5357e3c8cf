"""`accelctl caps COMMAND`: which kernels may be trusted for what, on which evidence.

A record is about one kernel on one device and toolchain: when it may be used, what it means to a framework, and how far
it was proven (by `accelctl smoke --save FILE`). Special kernels are used by `accelctl serve` only where a fresh record
allows it. Without --file, records are in accelctl/capabilities.toml in $XDG_DATA_HOME (or ~/.local/share)."""

import sys
from typing import Annotated

import typer

EXAMPLES = {
    "list": (
        ("accelctl caps", "all records, one line each"),
        ("accelctl caps list --device opencl:0 --json", "those of one device, for programs"),
    ),
    "show": (("accelctl caps show matvec", "conditions, meaning, evidence and fallback of one kernel"),),
    "diff": (("accelctl caps diff before.toml after.toml", "what changed; exit status 1 if anything did"),),
    "verify": (
        ("accelctl caps verify", "show the evidence again, in short, on every device that is here"),
        ("accelctl caps verify --device opencl:0 --json", "on one, for programs"),
    ),
    "merge": (
        ("accelctl caps merge node1.toml node2.toml --file all.toml", "records of several machines in one file"),
    ),
}
DEFAULT = "list"

File = Annotated[str, typer.Option("--file", help="records, TOML or JSON", metavar="FILE")]
Devices = Annotated[
    list[str] | None, typer.Option("--device", help="only of this one; several times", metavar="DEVICE")
]
Json = Annotated[bool, typer.Option("--json", help="one JSON document")]


def list_(file: File = "", device: Devices = None, as_json: Json = False) -> None:
    """List the records: kernel, op, device, how far it is proven, when, and what is used instead."""
    from accelctl.accept.caps import listing
    from accelctl.render import caps as render

    path, records = listing.records(file, device or ())
    render.show_list(records, path, as_json=as_json)


def show(
    kernel: Annotated[str, typer.Argument(help="as `accelctl caps list` names it", metavar="KERNEL")],
    file: File = "",
    device: Devices = None,
    as_json: Json = False,
) -> None:
    """Show all that is known of one kernel, on each device and toolchain that it was tried on."""
    from accelctl.accept.caps import listing
    from accelctl.render import caps as render

    render.show_one(listing.of_kernel(file, device or (), kernel), as_json=as_json)


def diff(
    a: Annotated[str, typer.Argument(help="before", metavar="A")],
    b: Annotated[str, typer.Argument(help="after", metavar="B")],
    as_json: Json = False,
) -> int:
    """Compare two files of records: kernels that are new or gone, and what changed. 1: something differs."""
    from accelctl.accept.caps import diff as comparing
    from accelctl.render import caps as render

    found = comparing.diff(a, b)
    render.show_diff(found, a, b, as_json=as_json)
    return int(bool(found))


def verify(file: File = "", device: Devices = None, as_json: Json = False) -> int:
    """Run the evidence of each record again, in short: bytes, the kernel alone, and through the service.

    1: a record does not hold, or is stale (another driver, toolchain or source than it was written for). 77: no record
    is about a device that is here.
    """
    from accelctl.accept.caps import listing
    from accelctl.accept.caps.verify import verify as again
    from accelctl.render import caps as render
    from accelctl.render.progress import progress

    with progress(enabled=sys.stderr.isatty() and not as_json) as tick:
        found = again(listing.place(file), device or (), tick)
    render.show_verified(found, as_json=as_json)
    return found.exit_code


def merge(
    files: Annotated[list[str], typer.Argument(help="files of records", metavar="FILES")],
    file: File = "",
    as_json: Json = False,
) -> None:
    """Add the records of other files. Of one kernel on one platform, each rung keeps its newest evidence."""
    from accelctl.accept.caps import listing
    from accelctl.render import caps as render

    path, records = listing.merge(file, files)
    render.show_merged(records, files, path, as_json=as_json)


caps = {
    "list": (list_, "all records, one line each"),
    "show": (show, "conditions, meaning, evidence and fallback of one kernel"),
    "diff": (diff, "what two files say differently"),
    "verify": (verify, "show the evidence again on what is here"),
    "merge": (merge, "add the records of other files"),
}
