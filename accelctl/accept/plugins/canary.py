"""`accelctl backends canary`: the version in use and another one, each in processes of its own, by smoke and by bench.

Results decide: a case that the version in use passes and the new one does not is worse. Times decide only through
bench, which knows what is noise; how long smoke took is told and judges nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory
from typing import Any

from accelctl.abi import shelf
from accelctl.accept.bench import compare
from accelctl.accept.bench import store as reports
from accelctl.accept.plugins import store
from accelctl.errors import AccelError, UsageError
from accelctl.hal import ownpython
from accelctl.model.pluginreport import Canary, Trial
from accelctl.model.stressreport import FAIL, PASS, SKIP

LIMIT_S = 1800.0
BENCH_S = 10.0
"""All rounds of one version together."""
Tick = Callable[[str], None]


def canary(name: str, version: str, device: str = "", *, bench: bool = True, tick: Tick = lambda text: None) -> Canary:
    """Run both and compare. UsageError for a version that is not on the shelf; AbiError for one that is refused."""
    known = store.versions(name)
    if version not in {row.version for row in known.rows}:
        there = ", ".join(row.version for row in known.rows) or "none"
        raise UsageError(f"{name} {version[:40]} is not on the shelf (there: {there})")
    store.loaded(name, version)
    current = next((row.version for row in known.rows if row.current), "")
    if current == version:
        raise UsageError(f"{name} {version} is the version in use: there is nothing to compare it with")
    device = device or f"{name}:0"
    base = _smoked(name, current, device, tick) if current else None
    new = _smoked(name, version, device, tick)
    worse, slower = _worse(base, new), tuple[str, ...]()
    trials = [base[0] if base else None, new[0]]
    if bench and base is not None and not worse:  # how fast a wrong answer comes is no question
        with TemporaryDirectory(prefix="accelctl-canary-") as folder:
            trials = [_benched(name, one, device, folder, tick) for one in (base[0], new[0])]
            slower = _slower(folder, current, version)
    assert trials[1] is not None
    return Canary(name, device, new[1].get("simulated") is True, trials[0], trials[1], worse, slower)


def _smoked(name: str, version: str, device: str, tick: Tick) -> tuple[Trial, dict[str, Any]]:
    tick(f"smoke of {name} {version}")
    start = time.monotonic()
    code, out, err = _run(name, version, "smoke", "--device", device, "--json")
    seconds = time.monotonic() - start
    document = _document(out)
    counts = document.get("counts", {})
    trial = Trial(
        version,
        code,
        str(document.get("result", "no answer")),
        int(counts.get(PASS, 0)),
        int(counts.get(FAIL, 0)),
        int(counts.get(SKIP, 0)),
        round(seconds, 3),
        tuple(str(case.get("id")) for case in document.get("cases", ()) if case.get("result") == FAIL),
        "" if document else _last(err) or f"exit status {code}",
    )
    return trial, document


def _run(name: str, version: str, *words: str) -> tuple[int, str, str]:
    """One command of ours on that version. A child that does not end is a failure of that version."""
    command = ownpython.command("accelctl", ["--no-config", *words])
    env: Mapping[str, str] = {**os.environ, shelf.CHOICE: f"{name}={version}"}
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 6, "", f"it did not end within {LIMIT_S:g} s"
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def _document(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("  try:")]
    return " ".join(lines[-1].split())[:200] if lines else ""


def _benched(name: str, trial: Trial, device: str, folder: str, tick: Tick) -> Trial:
    """With the median of each figure; without any where bench has no answer for this device."""
    tick(f"bench of {name} {trial.version}")
    path = f"{folder}/{trial.version}.json"
    _run(name, trial.version, "bench", "--device", device, "--seconds", f"{BENCH_S:g}", "--save", path)
    try:
        found = reports.read(path).figures
    except AccelError:
        return trial
    return trial._replace(bench=tuple((one.id, one.spread.median, one.unit) for one in found))


def _slower(folder: str, current: str, version: str) -> tuple[str, ...]:
    """What bench calls slower, outside its noise."""
    try:
        found = compare.compare(reports.read(f"{folder}/{current}.json"), reports.read(f"{folder}/{version}.json"))
    except AccelError:
        return ()
    return tuple(row.id for row in found.of("slower"))


def _worse(base: tuple[Trial, dict[str, Any]] | None, new: tuple[Trial, dict[str, Any]]) -> tuple[str, ...]:
    """What the new version does worse, one line each."""
    trial, document = new
    if trial.error:
        return (f"{trial.version} gave no answer: {trial.error}",)
    before = {case["id"]: case["result"] for case in base[1].get("cases", ())} if base else {}
    lines = []
    for case in document.get("cases", ()):
        identity, result, was = case["id"], case["result"], before.get(case["id"], PASS if base is None else "absent")
        if result == FAIL and was != FAIL:
            lines.append(f"{identity}: fails ({' '.join(str(case.get('detail', '')).split())[:120]})")
        elif result == SKIP and was == PASS and base is not None:
            lines.append(f"{identity}: is not supported any more")
    gone = [identity for identity in before if identity not in {case["id"] for case in document.get("cases", ())}]
    lines += [f"{identity}: was not run" for identity in gone]
    if not lines and trial.exit_code and not (base and base[0].exit_code):
        lines.append(f"exit status {trial.exit_code}: {trial.verdict}")
    return tuple(lines)
