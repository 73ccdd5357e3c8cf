"""`accelctl bench` as people run it, on the simulated chip: what it prints, what it keeps, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.accept.bench import asked, golden, store
from accelctl.accept.bench.asked import Outcome
from accelctl.accept.bench.compare import compare
from accelctl.model.benchreport import PARTS, SLOWER, UNASKED, BenchReport, Golden, GoldenSet
from accelctl.render import bench as render
from accelctl.render.term import Term
from tests.benchkit import PLACE, figure, report
from tests.helpers import ROOT, environment, run_cli

NARROW = Term(True, 80, None, True)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Sockets of a run lie in here."""
    made = tmp_path_factory.mktemp("r")
    made.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
            patch.setenv(name, str(made))
        yield made


class Whole(NamedTuple):
    """One run of everything."""

    report: BenchReport
    out: str
    saved: Path


@pytest.fixture(scope="module")
def whole(folder: Path) -> Whole:
    saved = folder / "base.json"
    done = run_cli("bench", "--device", "sim:0", "--seconds", "8", "--save", str(saved), code=0)
    assert done.stderr == ""
    return Whole(store.read(str(saved)), done.stdout, saved)


def test_every_part_is_measured(whole: Whole) -> None:
    assert {one.part for one in whole.report.figures} == set(PARTS)
    assert [one.why for one in whole.report.skipped] == ["peer: sim has no second device here"]
    assert {one.op for one in whole.report.ops} >= {"add", "matmul", "softmax", "attention_decode"}
    assert whole.report.rounds >= 3


def test_it_says_simulated(whole: Whole) -> None:
    assert whole.report.simulated
    assert "SIMULATED" in whole.out.splitlines()[0]
    assert "sim:0: measured (simulated): " in whole.out.splitlines()[-1]


def test_every_figure_has_an_interval(whole: Whole) -> None:
    for one in whole.report.figures:
        assert one.spread.low <= one.spread.median <= one.spread.high
        assert one.spread.n == len(one.samples)
        assert one.floor_spread is not None


def test_orders_that_must_hold_on_any_machine(whole: Whole) -> None:
    """Each with room to spare: what shares a message is cheaper than a message, and what is kept than what is new."""
    median = {one.id: one.spread.median for one in whole.report.figures}
    single = median["roundtrip/TranslateOp, translated before"]
    assert median["batch/an op of 50 in a batch"] < single / 3
    assert median["stream/an op of 256 in a stream"] < single / 3
    assert median["cache/hit, within the service"] < median["cache/cold, within the service"] / 2
    assert median["pool/kept, 64 KiB"] < median["pool/new from the driver, 64 KiB"] / 3
    assert median["channel/up, data channel, 4 MiB"] > median["channel/up, gRPC messages, 4 MiB"]
    for op in ("add", "matmul"):
        assert median[f"ops/{op} native"] < median[f"ops/{op} service"]


def test_the_stages_are_told(whole: Whole) -> None:
    for row in whole.report.ops:
        assert row.kernel
        assert sum(row.stages.values()) == pytest.approx(row.difference, rel=1e-3, abs=1e-8)
        assert row.stages["validate"] > 0
        assert row.stages["submit"] > 0


def test_it_fits_80_columns(whole: Whole) -> None:
    shown = render.text(Outcome(report=whole.report), NARROW)
    assert max(map(len, shown.splitlines())) <= 80
    for one in whole.report.figures:
        if one.part != "ops":
            assert one.name in shown


def test_what_json_prints_is_what_is_saved(whole: Whole) -> None:
    found = render.documents(Outcome(report=whole.report))
    saved = json.loads(whole.saved.read_text())
    assert found.pop("findings") == []
    for part in ("volatile", "fingerprint"):
        assert list(found[part]) == list(saved[part])
    assert {name: one for name, one in found.items() if name != "volatile"} == {
        name: one for name, one in saved.items() if name != "volatile"
    }
    assert store.of_document(found, "x").fingerprint == whole.report.fingerprint


def test_a_comparison_with_itself_finds_nothing_slower(whole: Whole) -> None:
    done = run_cli(
        *("bench", "--device", "sim:0", "--seconds", "3", "--part", "lifecycles", "--json"),
        *("--compare", str(whole.saved), "--max-regress", "900"),
        code=0,
    )
    found = json.loads(done.stdout)
    rows = [one for one in found["comparison"]["rows"] if one["word"] != UNASKED]
    assert len(rows) == 3
    assert SLOWER not in {one["word"] for one in rows}
    assert found["comparison"]["exit_code"] == 0
    hidden = [one for one in rows if one["word"] == "hidden"]
    assert ("noise hides the answer" in done.stderr) is bool(hidden)


def test_a_regression_is_exit_status_1_and_a_finding(whole: Whole, tmp_path: Path) -> None:
    """The base claims to have been 50 times as fast."""
    document = json.loads(whole.saved.read_text())
    for one in document["volatile"]["figures"]:
        one["samples"] = [value * 50 for value in one["samples"]] * 3
        one["floor"] *= 3
    base = tmp_path / "fast.json"
    base.write_text(json.dumps(document))
    words = ("bench", "--device", "sim:0", "--seconds", "3", "--part", "lifecycles", "--compare", str(base))
    found = json.loads(run_cli(*words, "--json", code=1).stdout)
    assert {one["id"] for one in found["findings"]} == {"BENCH-SLOWER"}
    assert len(found["findings"]) == 3
    shown = render.text(Outcome(comparison=compare(store.read(str(base)), whole.report)), NARROW)
    assert "slower than the base: " in shown


def test_a_comparison_fits_80_columns_and_names_what_settles_it() -> None:
    calm, wild = [1.0 + n / 1000 for n in range(15)], [1.0 + n / 10 for n in range(15)]
    base = report(figure("a name that is long enough to be cut", calm), figure("b", wild), figure("c", calm))
    now = report(figure("a name that is long enough to be cut", [2 * one for one in calm]), figure("b", wild))
    found = compare(base, now)
    shown = render.text(Outcome(report=now, comparison=found), NARROW)
    assert max(map(len, shown.splitlines())) <= 80
    assert "slower" in shown
    assert "to settle it: " in shown
    assert "not measured now" in shown
    assert "ops/c" in shown


def test_what_is_missing_is_said_in_the_last_line_and_is_a_finding() -> None:
    calm = [1.0 + n / 1000 for n in range(15)]
    base = report(figure("a", calm), figure("gone", calm), figure("x", calm, part="pool"))
    now = replace(report(figure("a", calm)), parts=("ops",))
    outcome = Outcome(report=now, comparison=compare(base, now))
    shown = render.text(outcome, NARROW)
    assert "not measured now: ops/gone" in shown
    assert "not asked for: pool" in shown
    assert "no regression" not in shown
    assert "inconclusive, some of the base is missing: 1 same, 1 missing" in shown
    assert [(one["id"], one["title"]) for one in render.documents(outcome)["findings"]] == [
        ("BENCH-MISSING", "ops/gone is in the base and could not be measured now")
    ]
    assert outcome.exit_code == 1


def test_where_nothing_can_be_measured_any_more_the_base_is_missing() -> None:
    now = report()
    outcome = Outcome(report=now, comparison=compare(report(figure("a", [1.0] * 15)), now))
    assert outcome.exit_code == 1
    assert "inconclusive" in render.text(outcome, NARROW)


def test_missing_results_are_findings() -> None:
    def kept(*cases: str) -> GoldenSet:
        rows = tuple(Golden(case, "add", "Y", "fp32", (1,), "add_f", "0" * 64) for case in cases)
        return GoldenSet(fingerprint=PLACE, seed=0, rows=rows)

    now = kept("a")
    outcome = Outcome(results=now, delta=golden.compare(kept("a", "gone"), now))
    shown = render.text(outcome, NARROW)
    assert "results are missing: 1 with the same bytes, 1 missing" in shown
    assert [one["id"] for one in render.documents(outcome)["findings"]] == ["BENCH-MISSING"]
    assert outcome.exit_code == 1


def test_results_are_kept_and_compared(tmp_path: Path) -> None:
    path = str(tmp_path / "golden.json")
    kept = run_cli("bench", "--device", "sim:0", "--golden-save", path, code=0)
    assert "results kept" in kept.stdout
    assert "measured" not in kept.stdout
    document = json.loads(Path(path).read_text())
    document["rows"][3]["digest"] = "0" * 64
    document["rows"].append(document["rows"][0] | {"case": "an op that was"})
    Path(path).write_text(json.dumps(document))
    drifted = run_cli("bench", "--device", "sim:0", "--golden", path, code=1)
    assert f"{len(document['rows']) - 2} with the same bytes, 1 drift, 1 missing" in drifted.stdout
    assert f"the first one is {document['rows'][3]['case']}" in drifted.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--part", "nope"), 2, "--part nope: not one of"),
        (("--seconds", "nan"), 2, "--seconds nan"),
        (("--max-regress", "-1"), 2, "--max-regress -1"),
        (("--compare", "/nonexistent"), 2, "there is no such file"),
        (("--compare", "/etc/hostname"), 2, "no JSON"),
        (("--save", "/nonexistent/x"), 2, "cannot be written"),
        (("--golden", "/nonexistent"), 2, "there is no such file"),
        (("--device", "sim:9"), 3, "sim:9 is not here"),
        (("--device", "nochip:0"), 3, "nochip"),
        (("--device", "xyz"), 2, "xyz"),
        (("--link", "pci:0000:99:00.0", "--device", "sim:0"), 3, "no such device"),
    ],
)
def test_requests_that_cannot_be(options: tuple[str, ...], code: int, says: str) -> None:
    done = run_cli("bench", *options, code=code)
    assert done.stdout == ""
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_another_device_is_no_base(whole: Whole, tmp_path: Path) -> None:
    document = json.loads(whole.saved.read_text())
    document["fingerprint"]["cpu"] = "another CPU"
    base = tmp_path / "other.json"
    base.write_text(json.dumps(document))
    done = run_cli("bench", "--device", "sim:0", "--compare", str(base), code=2)
    assert "cpu 'another CPU'" in done.stderr


def test_only_results_are_asked_for_where_only_results_are() -> None:
    assert asked.Request().timed
    assert not asked.Request(golden="x").timed
    assert asked.Request(golden="x", parts=("pool",)).timed
    assert asked.Request(golden_save="x", base="y").timed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_report_and_leaves_nothing(number: int, folder: Path) -> None:
    words = ["bench", "--device", "sim:0", "--seconds", "60", "--part", "roundtrip", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "accelctl", *words],
        env=environment({"OPENBLAS_NUM_THREADS": "1"}),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        end = time.monotonic() + 60
        while len(list(folder.glob("accelctl/*"))) < 3:  # its service and the empty one listen
            assert time.monotonic() < end
            time.sleep(0.02)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert json.loads(out)["verdict"] == "stopped"
    assert list(folder.glob("accelctl/*")) == []


def test_a_closed_pipe_is_no_failure_of_ours(whole: Whole) -> None:
    command = f"{sys.executable} -m accelctl bench --device sim:0 --seconds 1 --part lifecycles | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], env=environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("sim:0 SIMULATED")
    assert "Traceback" not in done.stderr
