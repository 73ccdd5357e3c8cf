"""What a run of `accelctl bringup` amounts to: verdict, exit status, and the reason in one line."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from accelctl.model.bringupreport import (
    ACCEPTED,
    INCOMPLETE,
    PASSED_SIMULATED,
    REJECTED,
    BringupReport,
    Fact,
    StepResult,
    Subject,
)
from accelctl.model.finding import Finding
from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP
from accelctl.render import bringup as render
from accelctl.render.document import dumps, resolve
from accelctl.render.term import Term
from tests.bringupkit import BAD, REAL, SIM, done, report

GOOD = done("lifecycles", PASS, REAL.id)
WARN, ERROR = (Finding("SOME-ID", level, "title", REAL.id) for level in ("warn", "error"))
CASES = [
    ("all right", [GOOD, done("ops", SKIP, REAL.id)], 0, ACCEPTED, 0),
    ("a warning is no rejection", [GOOD, done("probe", PASS, "", findings=(WARN,))], 0, ACCEPTED, 0),
    ("an error is, whatever the step says", [GOOD, done("probe", PASS, "", findings=(ERROR,))], 0, REJECTED, 1),
    ("a failed step", [GOOD, done("ops", FAIL, REAL.id)], 0, REJECTED, 1),
    ("a hang", [GOOD, done("ops", FAIL, REAL.id, hang="call")], 0, REJECTED, 6),
    ("undecided", [GOOD, done("ops", INCONCLUSIVE, REAL.id)], 0, INCOMPLETE, 1),
    ("out of time", [GOOD, done("ops", INCONCLUSIVE, REAL.id, cut=True)], 0, INCOMPLETE, 6),
    (
        "nothing was done with the device",
        [done("probe", PASS, ""), done("lifecycles", SKIP, REAL.id)],
        0,
        INCOMPLETE,
        77,
    ),
    ("interrupted", [GOOD, done("ops", INCONCLUSIVE, REAL.id)], 130, INCOMPLETE, 130),
    ("interrupted after a failure", [GOOD, done("ops", FAIL, REAL.id)], 130, REJECTED, 1),
]


@pytest.mark.parametrize(("name", "steps", "ended", "verdict", "code"), CASES, ids=[case[0] for case in CASES])
def test_verdict_and_exit_status(name: str, steps: list[StepResult], ended: int, verdict: str, code: int) -> None:
    found = report(*steps, found=(REAL,), ended=ended)
    assert (found.verdict, found.exit_code) == (verdict, code)
    assert found.why
    simulated = report(*steps, found=(REAL, SIM), ended=ended)
    assert "(simulated)" in simulated.verdict
    assert not simulated.verdict.startswith("accepted")


def test_a_simulated_device_is_never_accepted() -> None:
    found = report(done("lifecycles", PASS), done("ops", PASS))
    assert (found.verdict, found.exit_code, found.accepted) == (PASSED_SIMULATED, 0, True)


def test_every_device_needs_a_proof() -> None:
    other = Subject("0000:04:00.0", "another", "amdgpu")
    found = report(GOOD, done("lifecycles", SKIP, other.id), found=(REAL, other))
    assert (found.verdict, found.unproven, found.why) == (INCOMPLETE, [other.id], f"nothing was done with {other.id}")


def whole() -> BringupReport:
    facts = (
        Fact("driver", "amdgpu", "sys/bus/pci/devices/x/driver", "amdgpu", owner=REAL.id),
        Fact("a/b~c", None, "proc/x", "no permission (EACCES)"),
    )
    return report(
        done("probe", PASS, "", facts=facts),
        done("expected", SKIP, "", reason="no --expect FILE"),
        done("lifecycles", FAIL, REAL.id, findings=(BAD,), seconds=1.5, box_s=30.0),
        found=(REAL,),
        seconds=2.25,
        html="/tmp/report.html",
    )


def test_every_fact_of_the_document_has_its_evidence() -> None:
    found = json.loads(dumps(render.document(whole())))
    assert found["schema"] == "accelctl.bringup/1"
    assert (found["verdict"], found["exit_code"], found["simulated"]) == (REJECTED, 1, False)
    values = {place: resolve(found, place) for place in found["evidence"]}
    assert sorted(map(str, values.values())) == ["None", "amdgpu"]
    shown = sum(len(facts) for step in found["steps"] for facts in step["facts"].values())
    assert shown == len(values)
    assert [one["step"] for one in found["skipped"]] == ["expected"]
    assert [one["id"] for one in found["findings"]] == ["OPS-WRONG-RESULT"]
    assert "duration_s" not in json.dumps({key: found[key] for key in found if key != "volatile"})


def test_two_equal_runs_differ_only_in_what_changes_by_itself() -> None:
    one, other = whole(), whole()
    other.started, other.seconds, other.html = "2027-01-01T00:00:00Z", 9.0, "/tmp/other.html"
    first, second = render.document(one), render.document(other)
    assert first.pop("volatile") != second.pop("volatile")
    assert first == second


def test_junit_counts_what_was_not_decided_as_failed() -> None:
    found = ElementTree.fromstring(render.junit_text(report(done("ops", INCONCLUSIVE, reason="no time"))))
    assert found.attrib["failures"] == "1"
    assert "undecided: no time" in ElementTree.tostring(found, "unicode")
    assert "simulated" in ElementTree.tostring(found, "unicode")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_text_keeps_within_the_terminal(columns: int) -> None:
    found = render.text(whole(), Term(True, columns, None, True))
    lines = [line for line in found.splitlines() if not line.startswith("report: ")]
    assert max(map(len, lines)) <= columns
    assert found.splitlines()[-1] == "report: /tmp/report.html"
    assert "rejected" in found
    assert "OPS-WRONG-RESULT" in found


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("option", ["html", "junit"])
@pytest.mark.parametrize("form", ["text", "json", "nagios"])
def test_a_full_disk_does_not_cost_the_verdict(
    form: str, option: str, failed: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = "/dev/full" if option == "html" else str(tmp_path / "page.html")
    found = report(GOOD, *([done("ops", FAIL, REAL.id)] if failed else []), found=(REAL,), html=page)
    junit = "/dev/full" if option == "junit" else str(tmp_path / "cases.xml")
    code = render.show(found, as_json=form == "json", junit=junit, as_nagios=form == "nagios")
    printed = capsys.readouterr()
    assert "/dev/full: cannot be written" in printed.err
    assert (REJECTED if failed else ACCEPTED) in printed.out
    if form == "nagios":
        assert code == (2 if failed else 3)
        assert ("CRITICAL" if failed else "UNKNOWN") in printed.out
    else:
        assert code == (1 if failed else 7)
    assert "report: /dev/full" not in printed.out
    assert len(list(tmp_path.iterdir())) == 1, "the other file is there"


def test_html_on_standard_output_is_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert render.show(report(GOOD, found=(REAL,), html="-"), as_json=False, junit="", as_nagios=False) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("<!")
    assert printed.rstrip().endswith("</html>")


def test_a_pipe_gets_one_line_for_each_step() -> None:
    lines = render.text(whole(), Term(False, None, None, False)).splitlines()
    assert sum(line.startswith(("+ ", "- ", "x ")) for line in lines) == 3
    assert all(line.isascii() for line in lines)
