"""`accelctl export`: what `top` shows, as OpenMetrics."""

from contextlib import ExitStack
from typing import Annotated, Any

import typer

from accelctl.errors import UsageError

EXAMPLES = (
    ("accelctl export --once", "one look, as OpenMetrics text"),
    ("accelctl export --listen 127.0.0.1:9401", "for a collector on this machine, at /metrics"),
    ("accelctl export --listen unix:/run/user/1000/accelctl.prom", "on a Unix socket, which only this user can open"),
    ("accelctl export --once --service unix:/run/user/1000/accelctl/serve.sock", "with pools and queues of a service"),
)

WHAT, HOW = "What to export", "How"


def _option(name: str, text: str, panel: str, metavar: str | None = None, **rest: Any) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar, **rest)


Texts = list[str] | None
Once = Annotated[bool, _option("--once", "print to standard output, and end", HOW)]
Listen = Annotated[str, _option("--listen", "unix:/path or a loopback host:port; port 0: any", HOW, "ADDRESS")]
Device = Annotated[Texts, _option("--device", "only these devices; repeat for alternatives", WHAT, "FILTER")]
Service = Annotated[Texts, _option("--service", "also a running `accelctl serve`; repeat for more", WHAT, "ADDRESS")]
Demo = Annotated[bool, _option("--demo", "a simulated device under load instead of this machine", WHAT)]
Period = Annotated[float, _option("--period", "seconds between two looks", HOW, "SECONDS")]
Count = Annotated[int, _option("--count", "end after so many looks; 0: go on", HOW, "N", min=0)]
Root = Annotated[str, _option("--root", "a captured machine", WHAT, hidden=True)]


def export(
    once: Once = False,
    listen: Listen = "",
    device: Device = None,
    service: Service = None,
    demo: Demo = False,
    period: Period = 1.0,
    count: Count = 0,
    root: Root = "/",
) -> int:
    """Give the numbers of this machine's devices, pools, queues and processes to a collector.

    Reads nothing that `top` does not read, wakes no sleeping device, and listens on this machine only. A number that
    is missing has no line.
    """
    from accelctl.render import openmetrics
    from accelctl.telemetry import exporting, feeds

    if once == bool(listen):
        raise UsageError("either --once or --listen ADDRESS", "accelctl export --once")
    wish = feeds.Wish(demo=demo, service=tuple(service or ()), device=tuple(device or ()), root=root, period_s=period)
    with ExitStack() as held:
        stop = held.enter_context(exporting.stopping())
        endpoint = _endpoint(listen, held) if listen else None
        feed = feeds.open_feed(wish)
        held.callback(feed.close)
        if endpoint is None:
            for snapshot in exporting.snapshots(feed, count or 1, stop):
                openmetrics.show(snapshot)
            return 128 + stop.number if stop.number else 0
        openmetrics.announce(endpoint.place, feed.title)
        text, kind = openmetrics.metrics_text, openmetrics.CONTENT_TYPE
        exporting.listen(feed, endpoint, text, kind, count, stop)
    return 0


def _endpoint(address: str, held: ExitStack) -> Any:
    from accelctl.hal.scrape import Endpoint
    from accelctl.umd import listen

    place = listen.parse(address)
    listen.claim(place, held)
    return held.enter_context(Endpoint(place.path, place.host, place.port))
