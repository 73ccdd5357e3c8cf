"""`accelctl smoke`: does this device compute the right thing, through the whole path that a framework uses?"""

import sys
from typing import Annotated, Any

import typer

EXAMPLES = (
    ("accelctl smoke", "every op on the accelerator of this machine"),
    ("accelctl smoke --list", "devices that compute, and which of them are only taken by name"),
    ("accelctl smoke --device opencl:0 --op matmul --op softmax", "two ops on an OpenCL device"),
    ("accelctl smoke --device sim:0", "the simulated chip, which proves the service and not a device"),
    ("accelctl smoke --target unix:/run/user/1000/accelctl/serve.sock", "a service that runs already"),
    ("accelctl smoke --device opencl:0 --case 'softmax/fp16/*' --json", "some cases, for programs"),
    ("accelctl smoke --device opencl:0 --save proven.json", "and keep which kernel was proven, how far and when"),
    (
        "accelctl smoke --device sim:0 --semantics",
        "streams, events, memory, errors: does the runtime keep its contract?",
    ),
    ("accelctl smoke --device opencl:0 --align sim:0", "two devices op by op, and the first op that drifts"),
)

WHAT, OUTPUT = "What to test", "What to print"


def _option(name: str, text: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar)


Texts = list[str] | None
Device = Annotated[Texts, _option("--device", "opencl:0, torch:cpu, sim:0; the first that is here", WHAT, "DEVICE")]
Target = Annotated[str, _option("--target", "a service that runs already, instead of an own one", WHAT, "ADDRESS")]
Op = Annotated[Texts, _option("--op", "only this op; may be given several times", WHAT, "NAME")]
DType = Annotated[Texts, _option("--dtype", "only this element type; may be given several times", WHAT, "NAME")]
Case = Annotated[str, _option("--case", "only cases whose id fits, as in 'softmax/fp16/*'", WHAT, "PATTERN")]
Long = Annotated[bool, _option("--long", "also cases that take long", WHAT)]
Model = Annotated[bool, typer.Option("--model/--no-model", help="run the small transformer", rich_help_panel=WHAT)]
Seed = Annotated[int, _option("--seed", "all data follow from it", WHAT, "N")]
Semantics = Annotated[bool, _option("--semantics", "the runtime's contract instead of ops: 106 assertions", WHAT)]
Intent = Annotated[Texts, _option("--intent", "with --semantics: only this intent; several times", WHAT, "NAME")]
Align = Annotated[str, _option("--align", "compare known samples with this device, op by op", WHAT, "DEVICE")]
Listing = Annotated[bool, _option("--list", "devices that compute; runs nothing", WHAT)]
Cases = Annotated[bool, _option("--list-cases", "cases that would run; runs nothing", WHAT)]
Json = Annotated[bool, _option("--json", "one JSON document", OUTPUT)]
TraceFile = Annotated[str, _option("--trace", "cases, calls and stages, as Chrome trace JSON", OUTPUT, "FILE")]
Save = Annotated[str, _option("--save", "keep the evidence in this file, beside what it holds", OUTPUT, "FILE")]
Junit = Annotated[str, _option("--junit", "also write JUnit XML for CI servers", OUTPUT, "FILE")]


def smoke(
    device: Device = None,
    target: Target = "",
    op: Op = None,
    dtype: DType = None,
    case: Case = "",
    long: Long = False,
    model: Model = True,
    seed: Seed = 0,
    listing: Listing = False,
    list_cases: Cases = False,
    as_json: Json = False,
    junit: Junit = "",
    trace: TraceFile = "",
    save: Save = "",
    semantics: Semantics = False,
    intent: Intent = None,
    align: Align = "",
) -> int:
    """Run ops through the service on a device and compare each result with a float64 reference.

    Without --target a service is started for the run, on a private Unix socket. Without a usable accelerator the exit
    status is 3; nothing falls back to the simulated chip. 1: a result is wrong. 6: something did not come back. 7: the
    service died.
    """
    from accelctl.abi import compute
    from accelctl.render import smoke as render

    if listing:
        found, problems = compute.everything()
        render.show_devices(found, problems, as_json=as_json)
        return 0
    if semantics or align or intent:
        return _instead(locals())
    from accelctl.smoke import run

    wanted = run.Request(
        device=tuple(device or ()),
        target=target,
        ops=tuple(op or ()),
        dtypes=tuple(dtype or ()),
        cases=case,
        seed=seed,
        long=long,
        model=model,
        trace=trace,
        save=save,
    )
    if list_cases:
        render.show_cases(run.chosen(wanted), as_json=as_json)
        return 0
    return _carried_out(wanted, as_json=as_json, junit=junit)


def _carried_out(wanted: Any, *, as_json: bool, junit: str) -> int:
    from accelctl.accept.plugins import store
    from accelctl.errors import AccelError
    from accelctl.render import smoke as render
    from accelctl.render.progress import progress
    from accelctl.smoke import run

    mine = not wanted.target  # a service that runs already has a version of its own
    try:
        with progress(enabled=sys.stderr.isatty() and not as_json, junit=junit) as tick:
            report = run.carry_out(wanted, tick)
    except AccelError as error:
        render.remark(store.after_no_smoke(wanted.device, error.exit_code) if mine else "")
        raise
    render.show(report, as_json=as_json, junit=junit)
    whole = wanted.model and not (wanted.ops or wanted.dtypes or wanted.cases)
    render.remark(store.after_smoke(report.device, report.exit_code, whole=whole) if mine else "")
    return report.exit_code


def _instead(given: dict[str, Any]) -> int:
    from accelctl.render import semantics as render
    from accelctl.render.progress import progress
    from accelctl.smoke import beside

    wanted, as_json, junit = beside.wanted(given), bool(given["as_json"]), str(given["junit"])
    device = beside.device_for(wanted)
    with progress(enabled=sys.stderr.isatty() and not as_json, junit=junit) as tick:
        if wanted.align:
            pair = beside.align(device, wanted.align, tick, wanted.seed)
        else:
            report = beside.semantics(device, wanted.intents, tick)
    if wanted.align:
        render.show_align(pair, as_json=as_json, junit=junit)
        return pair.exit_code
    render.show(report, as_json=as_json, junit=junit)
    return report.exit_code
