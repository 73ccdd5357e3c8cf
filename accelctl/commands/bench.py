"""`accelctl bench`: how fast are this device and the way to it, against what is possible, and against last time?"""

import sys
from typing import Annotated, Any

import typer

EXAMPLES = (
    ("accelctl bench", "every figure of this machine's accelerator, in about half a minute"),
    ("accelctl bench --part bandwidth", "only what the link carries, against its ceiling"),
    ("accelctl bench --save base.json", "and keep it, with what tells this machine from others"),
    ("accelctl bench --compare base.json", "exit status 1 where something takes 5 % longer than it did"),
    ("accelctl bench --device opencl:0 --part ops", "each op by itself and through the service"),
    ("accelctl bench --golden-save golden.json", "results instead of times; later --golden golden.json"),
    ("accelctl bench --device sim:0 --json", "the simulated chip, for programs"),
)

WHAT, COMPARE, OUTPUT = "What to measure", "What to compare with", "What to print"


def _option(name: str, text: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar)


Texts = list[str] | None
Device = Annotated[
    Texts, _option("--device", "opencl:0, sim:0, pci:ADDRESS, driver=NAME; the first that is here", WHAT, "DEVICE")
]
Part = Annotated[
    Texts,
    _option(
        "--part",
        "bandwidth, roundtrip, batch, stream, cache, channel, lifecycles, pool or ops; may be given several times",
        WHAT,
        "NAME",
    ),
]
Seconds = Annotated[float, _option("--seconds", "for all rounds together; more give narrower intervals", WHAT, "N")]
Link = Annotated[
    str, _option("--link", "PCI device whose link is the ceiling, where that is not known", WHAT, "DEVICE")
]
Save = Annotated[str, _option("--save", "keep the figures in this file", COMPARE, "FILE")]
Base = Annotated[str, _option("--compare", "figures that --save kept on this machine", COMPARE, "FILE")]
Regress = Annotated[float, _option("--max-regress", "percent that something may take longer", COMPARE, "N")]
GoldenSave = Annotated[str, _option("--golden-save", "keep results on fixed data in this file", COMPARE, "FILE")]
GoldenSet = Annotated[str, _option("--golden", "results that --golden-save kept, to compare with", COMPARE, "FILE")]
Json = Annotated[bool, _option("--json", "one JSON document, the one that --save writes", OUTPUT)]


def bench(
    device: Device = None,
    part: Part = None,
    seconds: Seconds = 20.0,
    link: Link = "",
    save: Save = "",
    base: Base = "",
    max_regress: Regress = 5.0,
    golden_save: GoldenSave = "",
    golden: GoldenSet = "",
    as_json: Json = False,
) -> int:
    """Measure bandwidths, latencies and rates of a device, in turns with what they cannot be faster than.

    Each figure is a median with the interval that it lies in. With --compare one is slower only where its whole
    interval is beyond --max-regress, and where the noise hides the answer that is said. Without a usable accelerator
    the exit status is 3; nothing falls back to the simulated chip. 1: something is slower, a result changed, or what
    the base has could not be measured now. 7: the device or the service stopped.
    """
    from accelctl.accept.bench import asked
    from accelctl.render import bench as render
    from accelctl.render.progress import progress

    wanted = asked.Request(
        device=tuple(device or ()),
        parts=tuple(part or ()),
        seconds=seconds,
        link=link,
        save=save,
        base=base,
        max_regress=max_regress,
        golden=golden,
        golden_save=golden_save,
    )
    with progress(enabled=sys.stderr.isatty(), redraws=False) as tick:
        outcome = asked.carry_out(wanted, tick)
    render.show(outcome, as_json=as_json)
    return outcome.exit_code
