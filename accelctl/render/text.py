"""The report for people: devices, how they reach each other, what matters of the machine, findings, and one closing
line.

A terminal gets lines wrapped at its width; a pipe gets every line whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.model.device import Device
from accelctl.model.report import Report
from accelctl.render import blocks, machine, units
from accelctl.render.findings import findings_section
from accelctl.render.layout import Page, Span, clean, sentence
from accelctl.render.tally import PARTS, WHOLE, tally
from accelctl.render.term import Term

if TYPE_CHECKING:
    from accelctl.accept.expect import Comparison


def report_text(report: Report, term: Term, expected: Comparison | None = None) -> str:
    """The whole report as text; ``expected`` is what ``--expect`` compared."""
    page = Page(term)
    _header(page, report)
    page.blank()
    whole = [device for device in report.devices if _stands_alone(report, device)]
    if whole:
        blocks.accelerators(page, report, whole)
    else:
        _nothing_found(page, report)
    blocks.others(page, report)
    machine.topology(page, report)
    machine.ordinals(page, report)
    machine.facts(page, report)
    if expected is not None:
        from accelctl.render.delta import comparison_section

        comparison_section(page, expected)
    findings_section(page, report)
    _closing(page, report)
    return page.text()


def _stands_alone(report: Report, device: Device) -> bool:
    """Whole accelerators, and parts whose whole is out of sight (a VF given to this virtual machine)."""
    return device.kind == WHOLE or (device.kind in PARTS and report.device(device.parent or "") is None)


def _header(page: Page, report: Report) -> None:
    """One line: the machine, its kernel, and what was read."""
    names = [clean(report.value(f"system/{key}") or "") for key in ("vendor", "product")]
    product = " ".join(dict.fromkeys(word for word in names if word))
    kernel, system = report.value("kernel/release"), report.value("os/name")
    container = report.value("container/kind")
    here = "this machine" if report.live else "captured machine"
    items = [(Span(product or here[0].upper() + here[1:], "bold"),)]
    items += [(Span(f"Linux {clean(kernel)}"),)] if kernel else []
    items += [(Span(clean(system)),)] if system else []
    items += [(Span(f"in a container ({clean(container)})", "info"),)] if container not in (None, "none") else []
    items.append((Span("read live" if report.live else f"from {clean(report.root)}", "dim"),))
    page.flow((), items, hang=0)


def _nothing_found(page: Page, report: Report) -> None:
    page.line(Span("No accelerator found.", "bold"))
    if report.looked_for:
        page.line(Span("Looked for", "dim"))
    for what in report.looked_for:
        page.flow((Span(page.term.glyphs.bullet),), [(Span(clean(what)),)], indent=2, hang=2)


_MORE = {"vf": "virtual function", "partition": "partition", "virtual": "virtual device"}


def _closing(page: Page, report: Report) -> None:
    """How many accelerators are well, what was not evaluated, and where to read on."""
    page.blank()
    counts = tally(report)
    total = counts.kinds[WHOLE]
    health = [
        (Span(level if total == 1 else f"{number} {level}", level),)
        for level, number in counts.health.items()
        if number
    ]
    more = [(Span(units.counted(counts.kinds[kind], word)),) for kind, word in _MORE.items() if counts.kinds[kind]]
    lead = units.counted(total, "accelerator") if total else "no accelerator"
    groups = [group for group in (health, more) if group]
    if total or groups:  # else it was said at the top
        page.flow((Span(f"{lead}: " if groups else lead, "bold"),), sentence(groups), comma="")
    for words, command in not_evaluated(report):
        page.flow((), [(Span(words, "warn"),)])
        page.line(Span(command, "command"), indent=2)
    if report.findings:
        page.line(
            Span(f"accelctl explain {report.findings[0].id}", "command"),
            Span("   what a finding means and what to do"),
        )


def not_evaluated(report: Report) -> list[tuple[str, str]]:
    """(what was not looked at and why, what to type to get it) of this run."""
    gaps: list[tuple[str, str]] = []
    if report.rules_not_run:
        log = report.machine.get("log/source")
        gone = None if log is None else log.absence
        why = f"{_WHY_NO_LOG.get(gone.kind, gone.kind)}" if gone else "it was not read"
        rules = units.counted(len(report.rules_not_run), "check")
        fix = gone.fix if gone and gone.fix else "accelctl probe --kmsg FILE"
        gaps.append((f"{rules} of the kernel log not made: {why}", fix))
    hidden = report.value("processes_not_visible")
    if isinstance(hidden, int) and hidden:
        words = f"{units.counted(hidden, 'process', 'processes')} not visible: some users of a device may be missing"
        gaps.append((words, "sudo $(command -v accelctl) probe"))
    if report.stuck:
        words = f"did not answer and {'was' if len(report.stuck) == 1 else 'were'} left out: "
        gaps.append((words + units.listed([clean(path) for path in report.stuck], 3), "accelctl explain HANG-READ"))
    return gaps


_WHY_NO_LOG = {
    "no_permission": "this user may not read it",
    "not_captured": "the capture holds none",
    "hidden_by_container": "the container does not show it",
    "no_node": "there is no /dev/kmsg",
    "empty": "it is empty",
    "timed_out": "reading it did not come back",
}
