"""What is done of a run, in a file that is replaced as a whole after each step: a run may be ended at any moment."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from types import TracebackType
from typing import Any

import accelctl
from accelctl.accept.bringup.needs import records_of
from accelctl.accept.bringup.step import Order
from accelctl.accept.capture import save
from accelctl.errors import AccelError, UsageError
from accelctl.hal.boot import BOOT_ID
from accelctl.hal.claim import Claim
from accelctl.hal.lockfile import content
from accelctl.model.bringupreport import RESULTS, Bar, Chart, Fact, StepResult, Subject
from accelctl.model.finding import LEVELS, Evidence, Finding
from accelctl.model.stressreport import FAIL, PASS

UNSEEN = "whether this is the machine of the earlier run cannot be told"
SCHEMA = "accelctl.bringup-state/1"
FILE, LOCK = "state.json", "lock"
MOST_BYTES = 64 << 20


def default_folder(order: Order) -> str:
    """$XDG_STATE_HOME/accelctl/bringup/NAME: one for each choice of devices and level."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = os.path.expanduser("~/.local/state")
    words = ["-".join(order.device) or "machine", str(order.level)]
    name = "".join(letter if letter.isalnum() or letter in "-.=" else "-" for letter in "-".join(words))[:80]
    return os.path.join(base, "accelctl", "bringup", name.strip(".") or "machine")


def key(order: Order, subjects: Iterable[Subject]) -> dict[str, str]:
    """What must be the same for a step not to be done again; names are what changed, for people."""
    files = {"expect": order.expect, "baseline": order.baseline, "caps": records_of(order)}
    options = {name: value for name, value in asdict(order).items() if name not in (*files, "time_s", "sim", "kmsg")}
    return {
        "accelctl": accelctl.__version__,
        "options": json.dumps(options | {"sim": dict(order.sim)}, sort_keys=True),
        "devices": json.dumps([asdict(one) for one in subjects], sort_keys=True),
        "boot": digest(BOOT_ID),
        **{name: digest(path) for name, path in files.items()},
    }


def digest(path: str) -> str:
    """Of a file's bytes; empty where there is none. What is wrong with it is said by who reads it."""
    if not path:
        return ""
    try:
        found = content(path, MOST_BYTES)
    except UsageError:
        return ""
    return hashlib.sha256(found).hexdigest()[:16] if found is not None else ""


class State:
    """The folder of one run, held by this process alone."""

    def __init__(self, folder: str) -> None:
        """Makes it where it is not there. UsageError, in one line, where that is impossible or another run has it."""
        self.folder = folder
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made ({(error.strerror or str(error)).lower()})") from None
        try:
            self._claim = Claim(os.path.join(folder, LOCK), f"the bring-up in {folder}")
        except AccelError as error:
            if error.kind != "already_exists":
                raise
            message = error.message.replace("serves it", "runs it")
            raise UsageError(message, "wait for it, or take another folder: --state DIR") from None
        self._path = os.path.join(folder, FILE)
        self._head: dict[str, str] = {}
        self._done: list[StepResult] = []
        self._earlier: tuple[str, list[StepResult]] = ("", [])
        """Which machine an earlier run was on, and what it did."""

    def begin(self, head: dict[str, str]) -> None:
        """A new run: nothing is done yet."""
        self._head, self._done = head, []
        self._save()

    def resume(self, head: dict[str, str]) -> str:
        """Take over what an earlier run did, once it is :meth:`seen` that it was on this machine; until then its file
        stays as it is. Empty where that is possible; else why this is a new run."""
        why, machine, done = self._read(head)
        if why:
            self.begin(head)
        else:
            self._head, self._earlier = head, (machine, done)
        return why

    def seen(self, machine: str) -> str:
        """The fingerprint of the machine as it is now, empty where it could not be looked at: what an earlier run did
        is kept where it was on the same. Empty, or why nothing is kept."""
        before, done = self._earlier
        self._earlier, self._head["machine"] = ("", []), machine
        if machine and before == machine:
            self._done = done
        elif done:
            return "the machine is not what it was: another one, or changed since" if before and machine else UNSEEN
        return ""

    def kept(self, name: str, device: str) -> StepResult | None:
        """The result of a step that was finished before."""
        return next((one for one in self._done if (one.name, one.device) == (name, device)), None)

    def add(self, step: StepResult) -> None:
        """A step is finished. It is worth keeping where it was decided: what hung, or could not be done, may be another
        thing the next time. UsageError where the file cannot be written."""
        if step.result not in (PASS, FAIL) or step.hang or step.cut:
            return
        self._done = [one for one in self._done if (one.name, one.device) != (step.name, step.device)] + [step]
        self._save()

    def _save(self) -> None:
        document = {"schema": SCHEMA, "head": self._head, "steps": [packed(one) for one in self._done]}
        save((json.dumps(document) + "\n").encode(), self._path, force=True)

    def _read(self, head: dict[str, str]) -> tuple[str, str, list[StepResult]]:
        """(why there is nothing to take over, the machine, the steps)."""
        try:
            raw = content(self._path, MOST_BYTES)
            if raw is None:
                return "there is no earlier run", "", []
            document = json.loads(raw.decode("utf-8"))
            if document["schema"] != SCHEMA:
                raise ValueError("another schema")
            before = {str(name): str(value) for name, value in document["head"].items()}
            done = [unpacked(one) for one in document["steps"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return f"{self._path} is not what accelctl wrote", "", []
        changed = [name for name in head if before.get(name) != head[name]]
        if changed:
            return f"not the same any more: {', '.join(changed)}", "", []
        return "", before.get("machine", ""), done

    def close(self) -> None:
        """Give the folder back."""
        self._claim.close()

    def __enter__(self) -> State:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


# -- a step as JSON values ---------------------------------------------------------------------------------------------


def packed(step: StepResult) -> dict[str, Any]:
    """As JSON values."""
    return asdict(step) | {
        "findings": [one._asdict() | {"evidence": [list(seen) for seen in one.evidence]} for one in step.findings],
        "facts": [list(one) for one in step.facts],
        "charts": [one._asdict() | {"bars": [list(bar) for bar in one.bars]} for one in step.charts],
    }


def unpacked(found: dict[str, Any]) -> StepResult:
    """What :func:`packed` was given. ValueError, KeyError or TypeError for anything else."""
    facts = tuple(Fact(*one) for one in found["facts"])
    charts = tuple(Chart(**one | {"bars": tuple(Bar(*bar) for bar in one["bars"])}) for one in found["charts"])
    findings = tuple(_finding(one) for one in found["findings"])
    step = StepResult(**found | {"findings": findings, "facts": facts, "charts": charts})
    texts = (step.name, step.device, step.reason, step.command, step.hang)
    if step.result not in RESULTS or not all(isinstance(text, str) for text in texts):
        raise ValueError("no result of a step")
    return step


def _finding(found: dict[str, Any]) -> Finding:
    lists = {name: tuple(map(str, found[name])) for name in ("fix", "consequences")}
    one = Finding(**found | {"evidence": tuple(Evidence(*map(str, seen)) for seen in found["evidence"])} | lists)
    if one.level not in LEVELS:
        raise ValueError("no level of a finding")
    return one
