"""`accelctl serve`: the user-mode-driver service of one device."""

from typing import Annotated, Any

import typer

EXAMPLES = (
    ("accelctl serve", "the accelerator of this machine, on a Unix socket in a private folder"),
    ("accelctl serve --device opencl:0 --listen unix:/run/user/1000/ocl.sock", "one device, at a place of your choice"),
    ("accelctl serve --device sim:0 --listen 127.0.0.1:0", "the simulated chip, on a loopback port"),
    ("accelctl serve --device sim:0 --metrics 127.0.0.1:9400", "with OpenMetrics at /metrics"),
    ("accelctl serve --device opencl:0 --trace trace.json", "every call and every stage, for chrome://tracing"),
)

WHAT, HOW = "What to serve", "How"


def _option(name: str, text: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar)


Device = Annotated[
    list[str] | None, _option("--device", "opencl:0, torch:cpu, sim:0; the first that is here", WHAT, "DEVICE")
]
Listen = Annotated[str, _option("--listen", "unix:/path or a loopback host:port; port 0: any", WHAT, "ADDRESS")]
Metrics = Annotated[str, _option("--metrics", "also serve OpenMetrics at this loopback host:port", WHAT, "ADDRESS")]
KeepAlive = Annotated[
    float, _option("--keepalive", "seconds after which a silent session is reclaimed", HOW, "SECONDS")
]
Memory = Annotated[str, _option("--memory", "device memory of all sessions together; default: all", HOW, "SIZE")]
Grace = Annotated[float, _option("--grace", "seconds that running calls get when it stops", HOW, "SECONDS")]
Eof = Annotated[bool, _option("--stop-on-eof", "stop when standard input ends: for a parent process", HOW)]
TraceFile = Annotated[str, _option("--trace", "calls and pipeline stages, as Chrome trace JSON", HOW, "FILE")]
Sim = Annotated[str, _option("--sim", "how the simulated chip behaves: KEY=VALUE;KEY=VALUE", WHAT, "OPTIONS")]
Capabilities = Annotated[
    str, _option("--capabilities", "evidence for special kernels; default: that of `caps`", WHAT, "FILE")
]
Evidence = Annotated[
    str, _option("--evidence", "least evidence of a special kernel: none, blob, ..., model (see caps)", WHAT, "RUNG")
]
KernelOff = Annotated[
    list[str] | None, _option("--kernel-off", "do not use this special kernel; several times", WHAT, "NAME")
]
Json = Annotated[bool, _option("--json", "say the address as one JSON document", HOW)]


def serve(
    ctx: typer.Context,
    device: Device = None,
    address: Listen = "",
    metrics: Metrics = "",
    keepalive: KeepAlive = 30.0,
    memory: Memory = "",
    grace: Grace = 5.0,
    stop_on_eof: Eof = False,
    trace: TraceFile = "",
    sim: Sim = "",
    capabilities: Capabilities = "",
    evidence: Evidence = "service",
    kernel_off: KernelOff = None,
    as_json: Json = False,
) -> int:
    """Translate ops for one device and run them, for clients on this machine.

    Prints its address, and ends with Ctrl-C, SIGTERM or SIGHUP after the calls that run. Without a usable accelerator
    the exit status is 3; nothing falls back to the simulated chip.
    """
    from accelctl.commands import settings
    from accelctl.model import profile
    from accelctl.render import serving as render
    from accelctl.umd import serving

    wanted = serving.Request(
        device=tuple(device or ()),
        address=address,
        metrics=metrics,
        keepalive_s=keepalive,
        memory=memory,
        grace_s=grace,
        stop_on_eof=stop_on_eof,
        trace=trace,
        sim=sim,
        capabilities=capabilities,
        evidence=evidence,
        kernels_off=tuple(kernel_off or ()),
        profiles=profile.read(settings.layers_of(ctx).tables),
    )
    serving.run(wanted, lambda ready: render.show(ready, as_json=as_json))
    return 0
