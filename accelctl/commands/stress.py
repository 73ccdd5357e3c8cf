"""`accelctl stress`: allocate, map and free against the kernel's own driver, and say what did not come back."""

import sys
from typing import Annotated, Any

import typer

EXAMPLES = (
    ("accelctl stress --list", "devices that can be put under stress, their lifecycles, and how well each is proven"),
    ("accelctl stress", "the accelerator of this machine, 30 seconds, at most 256 MiB"),
    ("accelctl stress --device driver=vgem --cycles 20k", "a device by name, so many cycles of every lifecycle"),
    ("accelctl stress --device renderD128 --fault object:3=ENOMEM@before", "the third call of a stage fails"),
    ("accelctl stress --device driver=qxl --sweep --disruptive", "fail every call once; what is left behind?"),
    ("accelctl stress --device sim:0 --sim leak=object:1000", "the simulated chip, with a leak to find"),
)

WHAT, PLAN, BREAK, SAFETY, OUTPUT = "What to put under stress", "What to do", "What to break", "Safety", "What to print"


def _option(name: str, text: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar)


Texts = list[str] | None
Device = Annotated[
    Texts, _option("--device", "the device; may be given several times, the first that fits", WHAT, "FILTER")
]
Peer = Annotated[str, _option("--peer", "a second device that imports what the first one exports", WHAT, "FILTER")]
Lifecycle = Annotated[Texts, _option("--lifecycle", "only this one; may be given several times", WHAT, "NAME")]
Listing = Annotated[bool, _option("--list", "what could be run here, and how well it is proven; runs nothing", WHAT)]
Sim = Annotated[str, _option("--sim", "how the simulated chip behaves: KEY=VALUE;KEY=VALUE", WHAT, "OPTIONS")]
Cycles = Annotated[
    str,
    _option("--cycles", "cycles of each lifecycle after 64 to warm up, instead of a time", PLAN, "N"),
]
Duration = Annotated[
    str,
    _option("--duration", "time for all lifecycles together; 320 cycles each at least", PLAN, "TIME"),
]
Workers = Annotated[int, _option("--workers", "processes", PLAN, "N")]
Threads = Annotated[int, _option("--threads", "threads in each process", PLAN, "N")]
Seed = Annotated[int, _option("--seed", "everything random follows from it", PLAN, "N")]
Bytes = Annotated[
    str, _option("--bytes-limit", "most bytes held; default: 256 MiB or 5 % of what is free", PLAN, "SIZE")
]
Sizes = Annotated[str, _option("--sizes", "page, small, mixed or large", PLAN, "WORD")]
Hold = Annotated[int, _option("--hold", "blocks each thread holds meanwhile", PLAN, "N")]
Order = Annotated[str, _option("--order", "of releasing: reverse, early or random", PLAN, "WORD")]
Touch = Annotated[str, _option("--touch", "what is written and verified: none, ends or full", PLAN, "WORD")]
Va = Annotated[str, _option("--va", "address space that is given back (recycle) or never is (bump)", PLAN, "WORD")]
VaLimit = Annotated[str, _option("--va-limit", "use only so much of the address space", PLAN, "SIZE")]
Replay = Annotated[
    str, _option("--replay", "these steps instead of the seed's, as a divergence prints them", PLAN, "STEPS")
]
Fault = Annotated[
    Texts, _option("--fault", "STAGE:nth=ERRNO@before or @after; may be given several times", BREAK, "FAULT")
]
Limit = Annotated[
    Texts, _option("--limit", "nofile, as, memlock or memory (the cgroup's), in the workers", BREAK, "NAME=VALUE")
]
Sweep = Annotated[bool, _option("--sweep", "fail every call of every stage once, before and after it is made", BREAK)]
Kernel = Annotated[bool, _option("--sweep-kernel", "fail every allocation inside every call (fail-nth)", BREAK)]
Kill = Annotated[bool, _option("--kill", "SIGKILL a worker that holds everything", BREAK)]
Leaks = Annotated[bool, _option("--kmemleak", "let the kernel scan for lost memory before and after", BREAK)]
Unproven = Annotated[bool, _option("--unproven", "also back-ends that nobody has seen work", SAFETY)]
Shared = Annotated[bool, _option("--shared", "also a device that others have open", SAFETY)]
Wake = Annotated[bool, _option("--allow-wake", "also a device that sleeps", SAFETY)]
Disruptive = Annotated[bool, _option("--disruptive", "allow sweeps and --kill on real hardware", SAFETY)]
NoLedger = Annotated[bool, _option("--no-ledger", "let the kernel's book judge alone", OUTPUT)]
Books = Annotated[
    str, _option("--books", "none: only the driver's counters; near: also process, device; all", OUTPUT, "WORD")
]
Json = Annotated[bool, _option("--json", "one JSON document", OUTPUT)]
Junit = Annotated[str, _option("--junit", "also write JUnit XML for CI servers", OUTPUT, "FILE")]
TraceFile = Annotated[str, _option("--trace", "every system call, decoded, as Chrome trace JSON", OUTPUT, "FILE")]


def stress(
    device: Device = None,
    peer: Peer = "",
    lifecycle: Lifecycle = None,
    listing: Listing = False,
    sim: Sim = "",
    cycles: Cycles = "",
    duration: Duration = "",
    workers: Workers = 1,
    threads: Threads = 1,
    seed: Seed = 1,
    bytes_limit: Bytes = "",
    sizes: Sizes = "mixed",
    hold: Hold = 8,
    order: Order = "random",
    touch: Touch = "ends",
    va: Va = "recycle",
    va_limit: VaLimit = "",
    replay: Replay = "",
    fault: Fault = None,
    limit: Limit = None,
    sweep: Sweep = False,
    sweep_kernel: Kernel = False,
    kill: Kill = False,
    kmemleak: Leaks = False,
    unproven: Unproven = False,
    shared: Shared = False,
    allow_wake: Wake = False,
    disruptive: Disruptive = False,
    no_ledger: NoLedger = False,
    books: Books = "near",
    as_json: Json = False,
    junit: Junit = "",
    trace: TraceFile = "",
) -> int:
    """Run lifecycles of a device, and compare two independent books: ours, and the kernel's.

    Bounded, one device at a time, and nothing that somebody else uses. Without a usable accelerator the exit status is
    3; nothing falls back to the simulated chip. 1: something leaked, changed or stayed. 6: a call did not come back.
    128+n: a signal ended it before it was done, and nothing had failed until then.
    """
    from accelctl.render import stressoutput
    from accelctl.stress import request

    wanted = request.Request(**{name: value for name, value in locals().items() if name in request.FIELDS})
    if listing:
        stressoutput.show_list(request.listing(wanted), as_json=as_json)
        return 0
    with stressoutput.progress(enabled=sys.stderr.isatty() and not as_json) as show:
        report = request.carry_out(wanted, show, stressoutput.say)
    stressoutput.show(report, as_json=as_json, junit=junit)
    return report.exit_code
