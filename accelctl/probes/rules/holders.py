"""Processes that hold an accelerator and can neither work nor be killed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from accelctl.abi.rules import RuleContext, rule
from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding

#: State is the first letter after the command name, which may hold anything, also ")" (proc(5), proc_pid_stat).
_STATE = re.compile(r"\) ([A-Za-z])[^)]*$")
_WORDS = {"D": "waits in the kernel and cannot be killed (state D)", "Z": "is dead but not reaped (state Z)"}


@rule("HOLDER-DSTATE")
def stuck(ctx: RuleContext) -> Iterator[Finding]:
    """Holders in state D or Z, both when the scan looked and now: a moment in D is every disk read's state."""
    for device in ctx.report.devices:
        for holder in _held(device):
            pid, state = holder.get("pid"), _state_now(ctx, holder.get("pid")) or holder.get("state")
            if holder.get("state") not in _WORDS or state not in _WORDS:
                continue
            name = f"process {pid} ({holder.get('command')})"
            title = f"{name} holds {holder.get('node')} and {_WORDS[str(state)]}"
            shown = (Evidence(f"proc/{pid}/stat", f"state {state}"),)
            fix = (
                f"where it waits: sudo cat /proc/{pid}/stack",
                f"sudo dmesg | grep -E '{device.id}|blocked for more'",
            )
            cure = (
                "stop its parent: ps -o ppid= -p " + str(pid) if state == "Z" else "if it stays, only a reboot ends it"
            )
            yield Finding("HOLDER-DSTATE", "warn", title, device.id, shown, (*fix, cure), "likely")


def _held(device: Device) -> list[dict[str, object]]:
    holders = device.value("holders")
    return [entry for entry in holders if isinstance(entry, dict)] if isinstance(holders, list) else []


def _state_now(ctx: RuleContext, pid: object) -> str | None:
    text = ctx.root.text(f"proc/{pid}/stat") if isinstance(pid, int) else None
    match = _STATE.search(text or "")
    return match.group(1) if match else None
