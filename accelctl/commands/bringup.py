"""`accelctl bringup`: the whole acceptance of a machine in one command: accepted or not, and why."""

import sys
from typing import Annotated, Any

import typer

EXAMPLES = (
    ("accelctl bringup", "every accelerator of this machine, in seconds"),
    ("accelctl bringup --device pci:0000:03:00.0 --level 2", "one device, in minutes"),
    ("accelctl bringup --level 3 --time 1h --disruptive", "an hour, also what can leave a device in need of a reset"),
    ("accelctl bringup --level 3 --resume", "go on where the last run of this kind was ended"),
    ("accelctl bringup --expect type.toml --baseline bench.json", "against what the machine type must have and reach"),
    ("accelctl bringup --device sim:0", "the simulated chip: how a report looks"),
)

WHAT, COMPARE, SAFETY, OUTPUT = "What to accept", "What to compare with", "Safety", "What to print"


def _option(name: str, text: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar)


Device = Annotated[
    list[str] | None, _option("--device", "only devices that fit; may be given several times", WHAT, "FILTER")
]
Level = Annotated[int, _option("--level", "1: seconds, 2: minutes, 3: an hour", WHAT, "N")]
Time = Annotated[str, _option("--time", "for all steps together; what does not fit is named", WHAT, "TIME")]
Resume = Annotated[bool, _option("--resume", "keep the steps that the last such run finished", WHAT)]
State = Annotated[str, _option("--state", "where a run keeps what it has done", WHAT, "DIR")]
Seed = Annotated[int, _option("--seed", "everything random follows from it", WHAT, "N")]
Sim = Annotated[str, _option("--sim", "how the simulated chip behaves: KEY=VALUE;KEY=VALUE", WHAT, "OPTIONS")]
Log = Annotated[str, _option("--kmsg", "kernel log as dmesg prints it", WHAT, "FILE")]
Plan = Annotated[bool, _option("--plan", "which steps would run; runs nothing", WHAT)]
Expect = Annotated[str, _option("--expect", "what this machine type must have (probe --save-expect)", COMPARE, "FILE")]
Baseline = Annotated[str, _option("--baseline", "figures to reach (bench --save)", COMPARE, "FILE")]
Regress = Annotated[float, _option("--max-regress", "percent below the baseline that are still right", COMPARE, "N")]
Caps = Annotated[str, _option("--caps", "capability records to check; default: the user's own", COMPARE, "FILE")]
Disruptive = Annotated[bool, _option("--disruptive", "level 3: also fault sweeps and SIGKILL on real devices", SAFETY)]
Unproven = Annotated[bool, _option("--unproven", "also back-ends that nobody has seen work", SAFETY)]
Shared = Annotated[bool, _option("--shared", "also a device that others have open", SAFETY)]
Wake = Annotated[bool, _option("--allow-wake", "also a device that sleeps", SAFETY)]
Html = Annotated[str, _option("--html", "where the report goes; default: beside what the run keeps", OUTPUT, "FILE")]
Json = Annotated[bool, _option("--json", "one JSON document", OUTPUT)]
Junit = Annotated[str, _option("--junit", "also write JUnit XML for CI servers", OUTPUT, "FILE")]
Nagios = Annotated[bool, _option("--nagios", "one line and a status for a monitoring system", OUTPUT)]


def bringup(
    device: Device = None,
    level: Level = 1,
    time: Time = "",
    resume: Resume = False,
    state: State = "",
    seed: Seed = 1,
    sim: Sim = "",
    kmsg: Log = "",
    plan: Plan = False,
    expect: Expect = "",
    baseline: Baseline = "",
    max_regress: Regress = 5.0,
    caps: Caps = "",
    disruptive: Disruptive = False,
    unproven: Unproven = False,
    shared: Shared = False,
    allow_wake: Wake = False,
    html: Html = "",
    as_json: Json = False,
    junit: Junit = "",
    nagios: Nagios = False,
) -> int:
    """Look, compare, allocate, compute, measure: one step after the other, then the verdict and a report to attach.

    A failed step does not stop the others. Without an accelerator the exit status is 3; a simulated device is never
    accepted, it has "passed (simulated)". 1: rejected, or something could not be decided. 6: something hung, or the
    time was up.
    """
    from accelctl.accept.bringup import request
    from accelctl.render import bringup as render
    from accelctl.render.output import check

    wanted = request.Request(**{name: value for name, value in locals().items() if name in request.FIELDS})
    request.check_outputs(html, junit, as_json=as_json, nagios=nagios)
    if plan:
        render.show_plan(request.plan(wanted), as_json=as_json)
        return 0
    check(junit)
    with render.progress(enabled=sys.stderr.isatty()) as tick:
        report = request.carry_out(wanted, tick, check)
    return render.show(report, as_json=as_json, junit=junit, as_nagios=nagios)
