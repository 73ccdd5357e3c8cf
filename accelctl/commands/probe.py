"""`accelctl probe`: what is in this machine, is it healthy, and if not: why, and what to type."""

from enum import Enum
from functools import partial
from typing import Annotated

import typer

EXAMPLES = (
    ("accelctl probe", "this machine"),
    ("accelctl probe --brief", "one line per device"),
    ("accelctl probe --why gpu0.memory", "where the values come from, or why there are none"),
    ("accelctl probe --json --no-evidence", "equal nodes give equal bytes"),
    ("accelctl probe --root machine.tar.xz", "a captured machine"),
    ("accelctl probe --save-expect type.toml", "what this machine type must have; later: --expect type.toml"),
    ("accelctl probe --diff before.tar.xz after.tar.xz", "what changed; exit status 1 if anything did"),
)

SCOPE, OUTPUT, COMPARE = "What to look at", "What to print", "What to compare"


class Level(str, Enum):
    """Levels that can fail a run; `never` lets findings pass."""

    info = "info"
    warn = "warn"
    error = "error"
    critical = "critical"
    never = "never"


def _option(name: str, text: str, panel: str, metavar: str | None = None) -> typer.models.OptionInfo:
    return typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar)  # type: ignore[no-any-return]


Root = Annotated[str, _option("--root", "a captured machine instead of this one", SCOPE, "DIR|TAR")]
Devices = Annotated[
    list[str] | None, _option("--device", "only devices that fit; may be given several times", SCOPE, "FILTER")
]
Wake = Annotated[bool, _option("--allow-wake", "also read what wakes a sleeping device or blocks for a moment", SCOPE)]
Log = Annotated[str | None, _option("--kmsg", "kernel log as dmesg prints it; - is standard input", SCOPE, "FILE|-")]
Json = Annotated[bool, _option("--json", "one JSON document with evidence for each value", OUTPUT)]
Bare = Annotated[bool, _option("--no-evidence", "with --json: only what equal nodes share, byte for byte", OUTPUT)]
Brief = Annotated[bool, _option("--brief", "one line per device, always the same columns", OUTPUT)]
Why = Annotated[
    str | None, _option("--why", "a value, its source and raw text, or why it is missing", OUTPUT, "DEVICE.FIELD")
]
Junit = Annotated[str | None, _option("--junit", "also write findings as JUnit XML for CI servers", OUTPUT, "FILE")]
FailOn = Annotated[Level, _option("--fail-on", "exit status 1 from this level of findings on", OUTPUT)]
TraceFile = Annotated[str, _option("--trace", "every read, as Chrome trace JSON", OUTPUT, "FILE")]
Expect = Annotated[
    str | None, _option("--expect", "what this machine type must have: differences are findings", COMPARE, "FILE")
]
Save = Annotated[
    str | None, _option("--save-expect", "write such a file of this machine; - is stdout", COMPARE, "FILE")
]
Diff = Annotated[
    tuple[str, str] | None,
    _option("--diff", "two captures or JSON documents: what changed; exit status 1 if anything", COMPARE, "A B"),
]


def probe(
    root: Root = "/",
    device: Devices = None,
    allow_wake: Wake = False,
    kmsg: Log = None,
    as_json: Json = False,
    no_evidence: Bare = False,
    brief: Brief = False,
    why: Why = None,
    junit_file: Junit = None,
    fail_on: FailOn = Level.error,
    trace: TraceFile = "",
    expect: Expect = None,
    save_expect: Save = None,
    diff: Diff = None,
) -> int:
    """Find every accelerator of this machine, judge its health, and say what to type where something is wrong.

    Reads only files that change nothing: no device is opened, none is woken. The exit status is 0 also without any
    accelerator, 1 with a finding at the --fail-on level or worse, 3 when no device fits --device.
    """
    from accelctl.hal.uncollected import uncollected

    with uncollected():
        from accelctl.accept import probing
        from accelctl.render import output, tally

        _check(as_json, no_evidence, brief, why, junit_file, save_expect, diff, trace)
        output.check(junit_file or "")
        if diff is not None:
            from accelctl.render.document import document

            delta = probing.difference(*diff, document)
            output.show_delta(delta, as_json=as_json)
            return 0 if delta.same else 1
        if as_json and why is None and junit_file is None and expect is None:
            view = partial(output.json_and_verdict, evidence=not no_evidence, level=fail_on.value)
            text, bad = probing.made(root, device, view, allow_wake=allow_wake, kmsg=kmsg, trace=trace)
            output.write("-", text)
            return int(bad)
        report, compared = probing.look(root, device, allow_wake=allow_wake, kmsg=kmsg, expected=expect, trace=trace)
        if why is not None:
            from accelctl.accept.why import ask

            output.show_why(*ask(report, why), as_json=as_json)
            return 0
        if save_expect is not None:
            from accelctl.accept.saveexpect import manifest_of

            output.write(save_expect, manifest_of(report), replace=False)
        elif junit_file != "-":
            output.show(report, compared, as_json=as_json, evidence=not no_evidence, brief=brief)
        if junit_file is not None:  # last: a full disk must not cost the report
            from accelctl.accept.evaluated import evaluated
            from accelctl.render.junit import junit

            output.write(junit_file, junit(report, evaluated(report), fail_on=fail_on.value))
        return int(fail_on is not Level.never and tally.at_least(report, fail_on.value))


def _check(
    as_json: bool, bare: bool, brief: bool, why: object, junit: str | None, save: object, diff: object, trace: str
) -> None:
    """Options that contradict each other are refused before anything is read."""
    from accelctl.errors import UsageError

    if bare and not as_json:
        raise UsageError("--no-evidence only goes with --json")
    given = {"--brief": brief, "--why": why is not None, "--junit -": junit == "-", "--save-expect": save is not None}
    given |= {"--trace": bool(trace) and diff is not None}
    given |= {"--diff": diff is not None, "--json": as_json and why is None and diff is None}
    if len(chosen := [name for name, there in given.items() if there]) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other")
