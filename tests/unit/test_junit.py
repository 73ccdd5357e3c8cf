"""JUnit XML: what CI servers read back is what was found, and every reader can read it."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.rules import rules_of
from accelctl.accept.evaluated import evaluated
from accelctl.model.finding import Evidence
from accelctl.model.report import Report
from accelctl.probes import engine
from accelctl.render.junit import junit
from tests.reports import finding, full_machine, gpu, report

TABLE = {None: ["LIM-MEMLOCK"], "0000:01:00.0": ["PCI-LINK-WIDTH", "PCI-AER-FATAL", "X-OK"]}


def parsed(made: Report, fail_on: str = "error") -> ElementTree.Element:
    return ElementTree.fromstring(junit(made, TABLE, fail_on=fail_on).encode())


def case(root: ElementTree.Element, name: str) -> ElementTree.Element:
    (found,) = root.iterfind(f".//testcase[@name='{name}']")
    return found


def test_one_case_per_rule_and_device() -> None:
    root = parsed(report(gpu(0), findings=(finding(device="0000:01:00.0"),)))
    assert root.tag == "testsuites"
    assert [(suite.get("name"), suite.get("tests")) for suite in root] == [("machine", "1"), ("0000:01:00.0", "3")]
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("4", "1", "0")
    assert case(root, "X-OK").get("classname") == "accelctl.probe.0000:01:00.0"
    assert len(case(root, "X-OK")) == 0


def test_a_finding_at_the_level_is_a_failure_with_everything_that_is_known() -> None:
    bad = finding(device="0000:01:00.0", consequences=("slow",), certainty="likely")
    (failure,) = case(parsed(report(gpu(0), findings=(bad,))), "PCI-LINK-WIDTH")
    assert (failure.tag, failure.get("type"), failure.get("message")) == ("failure", "error", "link is x8 of x16")
    assert failure.text == (
        "error: link is x8 of x16 (likely)\n  seen sys/x/current_link_width: 8\n  do   reseat the card\n  then slow"
    )


def test_a_finding_below_the_level_passes_with_its_words() -> None:
    made = report(gpu(0), findings=(finding(level="warn", device="0000:01:00.0"),))
    (output,) = case(parsed(made), "PCI-LINK-WIDTH")
    assert output.tag == "system-out"
    assert (output.text or "").startswith("warn: ")
    assert case(parsed(made, "warn"), "PCI-LINK-WIDTH")[0].tag == "failure"
    critical = report(gpu(0), findings=(finding(level="critical", device="0000:01:00.0"),))
    assert parsed(critical, "never").get("failures") == "0"


def test_the_worst_of_two_findings_of_one_rule_names_the_failure() -> None:
    two = (finding(device="0000:01:00.0"), finding(level="critical", device="0000:01:00.0", title="gone"))
    (failure,) = case(parsed(report(gpu(0), findings=two)), "PCI-LINK-WIDTH")
    assert (failure.get("type"), failure.get("message")) == ("critical", "link is x8 of x16; gone")


def test_a_rule_that_could_not_run_is_skipped() -> None:
    made = report(gpu(0))
    made.rules_not_run = ["PCI-AER-FATAL"]
    root = parsed(made)
    assert [one.tag for one in case(root, "PCI-AER-FATAL")] == ["skipped"]
    assert root.get("skipped") == "1"


def test_equal_runs_give_equal_bytes() -> None:
    assert junit(full_machine(), TABLE) == junit(full_machine(), TABLE)
    assert "timestamp" not in junit(full_machine(), TABLE)


@given(st.text(alphabet=st.characters(codec=None), max_size=40))
def test_any_text_can_be_read_back(text: str) -> None:
    """Control characters and lone surrogates, which XML cannot hold, become question marks; all else survives."""
    bad = finding(device="0000:01:00.0", title=text, evidence=(Evidence(text, text),), fix=(text,))
    made = report(gpu(0), findings=(bad,))
    made.root = text
    written = junit(made, TABLE)
    (failure,) = case(ElementTree.fromstring(written.encode("utf-8")), "PCI-LINK-WIDTH")
    allowed = "".join(one if one in "\t\n\r" or ("\x1f" < one < "\ud800") or one > "\udfff" else "?" for one in text)
    assert failure.get("message") == allowed.replace("\ufffe", "?").replace("\uffff", "?")


def test_table_of_what_was_evaluated() -> None:
    """Generic rules at everything, a chip's rules at its own devices, and ids that no rule owns where they were
    found."""
    made = full_machine()
    made.findings.append(finding("HANG-READ", device="0000:05:00.0"))
    table = evaluated(made)
    assert list(table) == [None, *(device.id for device in made.devices)]
    generic = {name for module in engine.generic_modules() for rule in rules_of(module) for name in rule.ids}
    assert generic <= set(table[None])
    assert set(table["drm:card9"]) == generic
    assert "HANG-READ" in table["0000:05:00.0"]
    assert "HANG-READ" not in table["0000:01:00.0"]
    assert all(len(ids) == len(set(ids)) for ids in table.values())
    ElementTree.fromstring(junit(made, table).encode())
