"""Results instead of times: what each op gave on fixed data, kept, and compared with what it gives later.

Bytes that differ are not wrong at once: another order of summing is another last bit. What smoke's float64 reference
still allows is told as drift, with its distance in units of the last place; what it does not allow has changed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import accelctl
from accelctl.accept.bench.compare import differs
from accelctl.accept.bench.run import Chosen, choose, fingerprint
from accelctl.accept.bench.store import parsed, plain
from accelctl.errors import NoDeviceError, UsageError
from accelctl.hal.endings import in_order
from accelctl.hal.lockfile import replaced
from accelctl.hal.root import open_root
from accelctl.model.benchreport import MISSING, Drift, Golden, GoldenDelta, GoldenSet
from accelctl.model.snapshotjson import read_as

SCHEMA = "accelctl.golden/1"
SEED = 0
MOST_KEPT = 64 << 10
"""Bytes of a result that are kept as they are; of a longer one there is only its digest."""
CASES_EACH = 2
"""Of an op and element type: the first ones of smoke's catalogue, which are its plain ones."""
_HEAD = ("schema", "tool")
_BITS = {"fp32": 32, "fp16": 16, "bf16": 16}


def gather(
    device: Sequence[str], tick: Callable[[str, int, int], None] = lambda name, number, count: None
) -> GoldenSet:
    """Results of a device on the fixed seed. NoDeviceError where it is not here or computes nothing."""
    root = open_root("/")
    chosen = choose(root, device)
    if chosen.chip.ops is None:
        raise NoDeviceError(f"{chosen.target.id}: chip {chosen.chip.manifest.name} has no kernels, so no results")
    notes: list[str] = []
    with in_order(), ExitStack() as held:
        rows = tuple(_results(chosen, held, notes, tick))
    return GoldenSet(fingerprint=fingerprint(root, chosen), seed=SEED, rows=rows, notes=tuple(notes))


def _results(
    chosen: Chosen, held: ExitStack, notes: list[str], tick: Callable[[str, int, int], None]
) -> Iterator[Golden]:
    from accelctl.smoke import compare, through
    from accelctl.smoke.ownservice import OwnService
    from accelctl.umd.client import Client

    cases = list(_cases())
    tick(f"starting a service for {chosen.target.id}", 0, 0)
    service = held.enter_context(OwnService(chosen.target.id))
    session = held.enter_context(held.enter_context(Client(service.address, deadline_s=20.0)).session())
    names = {one.kernel_id: one.name for one in chosen.chip.ops.templates()}  # type: ignore[union-attr]
    for number, case in enumerate(cases):
        tick(case.id, number, len(cases))
        trial = case.load(SEED)
        ran = through.run(session, trial)
        if ran.refused is not None:
            notes.append(f"{case.id}: {'not supported' if ran.unsupported else 'refused'}: {ran.refused}")
            continue
        kernel = ", ".join(names.get(one.kernel_id, "") for one in ran.response.instructions)
        judged = {one.output: one for one in compare.judge(trial, ran.results, chosen.flushes)}
        for name, array in ran.results.items():
            found = judged.get(name)
            right, said = (found.passed, found.detail) if found is not None else (True, "")
            data = array.tobytes()
            if name not in trial.unjudged:
                yield _row(case, name, trial.outputs[name], kernel, data)._replace(right=right, detail=said)


def _row(case: Any, output: str, out: Any, kernel: str, data: bytes) -> Golden:
    kept = base64.b64encode(zlib.compress(data, 9)).decode() if len(data) <= MOST_KEPT else ""
    digest = hashlib.sha256(data).hexdigest()
    return Golden(case.id, case.op, output, out.dtype, tuple(out.shape), kernel, digest, kept)


def _cases() -> Iterator[Any]:
    """The first ones of each op and element type that have a result."""
    from accelctl.smoke.cases import select

    seen: dict[tuple[str, str], int] = {}
    for case in select():
        key = (case.op, case.dtype)
        if seen.get(key, 0) < CASES_EACH and "refused" not in case.id:
            seen[key] = seen.get(key, 0) + 1
            yield case


def save(path: str, found: GoldenSet) -> None:
    """Write it as a whole. UsageError where that is impossible, and for a set with a wrong result: nothing may be
    compared with it."""
    wrong = [row for row in found.rows if not row.right]
    if wrong:
        text = f"{wrong[0].case}: {wrong[0].detail}"
        raise UsageError(f"{path}: not written, because a result is wrong: {text}", "accelctl smoke")
    replaced(path, (json.dumps(document(found), indent=1) + "\n").encode())


def document(found: GoldenSet) -> dict[str, Any]:
    """As JSON values."""
    return {"schema": SCHEMA, "tool": {"name": "accelctl", "version": accelctl.__version__}, **plain(found)}


def read(path: str) -> GoldenSet:
    """UsageError, in one line, for what is no such file."""
    found = {name: value for name, value in parsed(path, SCHEMA).items() if name not in _HEAD}
    made = read_as(GoldenSet, found, path)
    if made.seed != SEED:
        raise UsageError(f"{path}: made from seed {made.seed}, these results are from {SEED}")
    return made


def compare(base: GoldenSet, now: GoldenSet) -> GoldenDelta:
    """In the order of the set. Of another device too: then most of it is drift."""
    there = {(row.case, row.output): row for row in now.rows}
    why = dict(note.partition(": ")[::2] for note in now.notes)
    rows: list[Drift] = []
    equal = 0
    for old in base.rows:
        new = there.pop((old.case, old.output), None)
        if new is None:
            said = f"; {why[old.case]}" if old.case in why else ""
            rows.append(Drift(old.case, old.op, MISSING, f"{old.output}: there is no such result now{said}"))
        elif new.digest == old.digest:
            equal += 1
        else:
            rows.append(_drift(old, new))
    rows += [Drift(one.case, one.op, "new", f"{one.output}: not in the set") for one in there.values()]
    return GoldenDelta(
        rows=tuple(rows),
        equal=equal,
        device=now.fingerprint.device,
        base_device=base.fingerprint.device,
        simulated=now.fingerprint.simulated,
        differs=_differs(base, now),
    )


def _differs(base: GoldenSet, now: GoldenSet) -> tuple[str, ...]:
    places = [
        f"{name} {old} -> {now.fingerprint.place[name]}"
        for name, old in base.fingerprint.place.items()
        if old != now.fingerprint.place[name]
    ]
    return (*places, *differs(base.fingerprint, now.fingerprint))


def _drift(old: Golden, new: Golden) -> Drift:
    other = f"; kernel {old.kernel} -> {new.kernel}" if old.kernel != new.kernel else ""
    word = "drift" if new.right else "changed"
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        detail = f"{new.output}: {old.dtype} {list(old.shape)} -> {new.dtype} {list(new.shape)}"
        return Drift(old.case, old.op, "changed", detail + other)
    why = "" if new.right else f"; {new.detail}"
    one, two = _bytes(old), _bytes(new)
    if one is None or two is None or len(one) != len(two):
        return Drift(old.case, old.op, word, f"{new.output}: other bytes{why}{other}")
    width = {"int8": 1, "uint8": 1, "fp16": 2, "bf16": 2}.get(new.dtype, 4)
    values = [memoryview(data).cast("B") for data in (one, two)]
    at = [
        place
        for place in range(0, len(one), width)
        if values[0][place : place + width] != values[1][place : place + width]
    ]
    far = max((ulps(one[place : place + width], two[place : place + width], new.dtype) for place in at), default=0)
    unit = "ulp" if new.dtype in _BITS else "apart"
    detail = f"{new.output}: {len(at)} of {len(one) // width} elements, at most {far} {unit}, first at {at[0] // width}"
    return Drift(old.case, old.op, word, detail + why + other, far)


def _bytes(row: Golden) -> bytes | None:
    """What is kept of it, if it is what the digest says."""
    if not row.data:
        return None
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(row.data, validate=True), MOST_KEPT + 1)
    except (ValueError, zlib.error):
        return None
    return data if hashlib.sha256(data).hexdigest() == row.digest else None


def ulps(one: bytes, other: bytes, dtype: str) -> int:
    """How many numbers of that format lie between two of them, by their bits: floating formats count up from 0 in
    either direction (IEEE 754, sign and magnitude). Of whole numbers the difference."""
    bits = _BITS.get(dtype)
    if bits is None:
        signed = dtype != "uint8"
        return abs(int.from_bytes(one, "little", signed=signed) - int.from_bytes(other, "little", signed=signed))
    half = 1 << (bits - 1)

    def order(data: bytes) -> int:
        number = int.from_bytes(data, "little")
        return number if number < half else half - number

    return abs(order(one) - order(other))


def kinds(rows: Iterable[Drift]) -> dict[str, int]:
    """Word -> how many."""
    found: dict[str, int] = {}
    for row in rows:
        found[row.word] = found.get(row.word, 0) + 1
    return found
