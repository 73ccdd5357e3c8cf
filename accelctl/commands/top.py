"""`accelctl top`: live memory pools, queues, address spaces and processes of all accelerators."""

from typing import Annotated, Any

import typer

EXAMPLES = (
    ("accelctl top", "all accelerators of this machine; ? shows the keys, q quits"),
    ("accelctl top --demo", "without hardware: a simulated device under load"),
    ("accelctl top --once --json", "one Snapshot for programs"),
    ("accelctl top --device vendor=amd --period 0.5", "AMD devices only, twice a second"),
    ("accelctl top --service unix:/run/user/1000/accelctl/serve.sock", "also what a service has"),
    ("accelctl top --record slow.jsonl.gz", "and write it down, for a bug report"),
    ("accelctl top --replay slow.jsonl.gz --speed 4", "look at it again: Left and Right wind, Space stops"),
    ("accelctl top --demo --screen memory --screenshot memory.svg", "a picture of one screen"),
)

WHAT, HOW, OUTPUT = "What to watch", "How to show it", "What to print"


def _option(name: str, text: str, panel: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar, **more)


Device = Annotated[list[str] | None, _option("--device", "only these devices; repeat for alternatives", WHAT, "FILTER")]
Service = Annotated[
    list[str] | None, _option("--service", "also the sessions of a service; may be repeated", WHAT, "ADDRESS")
]
Demo = Annotated[bool, _option("--demo", "a simulated device under load", WHAT)]
Replay = Annotated[str, _option("--replay", "a recording", WHAT, "FILE")]
Speed = Annotated[float, _option("--speed", "of a recording", WHAT, "FACTOR", min=0.01, max=1000)]
Period = Annotated[float, _option("--period", "between two looks", HOW, "SECONDS")]
Budget = Annotated[
    float, _option("--budget", "share of one core that looking may cost; it looks less often", HOW, "RATIO")
]
Screen = Annotated[str, _option("--screen", "overview, memory, queues, spaces, processes or events", HOW, "NAME")]
Mouse = Annotated[
    bool, typer.Option("--mouse/--no-mouse", help="use the mouse, or leave it to the terminal", rich_help_panel=HOW)
]
Once = Annotated[bool, _option("--once", "one Snapshot as text, then end", OUTPUT)]
Json = Annotated[bool, _option("--json", "one Snapshot as JSON, then end", OUTPUT)]
Record = Annotated[str, _option("--record", "write everything into a new file as well; .gz packs it", OUTPUT, "FILE")]
Screenshot = Annotated[str, _option("--screenshot", "write one screen as SVG, then end; - is stdout", OUTPUT, "FILE")]
Size = Annotated[str, _option("--size", "columns and lines of the screenshot", OUTPUT, "WxH")]
Ticks = Annotated[int, _option("--ticks", "looks before the screenshot is taken", OUTPUT, "N", min=1, max=3600)]


def top(
    device: Device = None,
    service: Service = None,
    demo: Demo = False,
    replay: Replay = "",
    speed: Speed = 1.0,
    period: Period = 1.0,
    budget: Budget = 0.02,
    screen: Screen = "",
    mouse: Mouse = True,
    once: Once = False,
    as_json: Json = False,
    record: Record = "",
    screenshot: Screenshot = "",
    size: Size = "120x40",
    ticks: Ticks = 10,
    root: Annotated[str, typer.Option("--root", hidden=True)] = "/",
) -> int:
    """Watch memory pools, queues, address spaces, processes and events of accelerators, and change nothing.

    Sleeping devices stay asleep. A driver that does not answer is named and left alone, and the rest goes on. Enter on
    a row shows where each number comes from, or why there is none. Needs a terminal; --once does not.
    """
    from accelctl.telemetry.feeds import Wish
    from accelctl.tui import entry

    wish = Wish(
        replay=replay,
        demo=demo,
        service=tuple(service or ()),
        device=tuple(device or ()),
        root=root,
        period_s=period,
        budget=budget,
        speed=speed,
    )
    ask = entry.Ask(
        once=once,
        as_json=as_json,
        record=record,
        screenshot=screenshot,
        screen=screen,
        size=size,
        ticks=ticks,
        mouse=mouse,
    )
    return entry.run(wish, ask)
