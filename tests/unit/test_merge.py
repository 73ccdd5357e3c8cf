"""accelctl merge: equal nodes are one group, the others are shown with where they differ, and garbage is a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.accept import fleetread
from accelctl.accept.fleet import CHANGED, EXTRA, MISSING, Difference, Fleet, differences, judged, merge
from accelctl.accept.fleetread import Rules, members, resolve, rules
from accelctl.accept.fleetslow import figures, slow
from accelctl.errors import UsageError
from accelctl.render import fleet as view
from accelctl.render.document import dumps
from accelctl.render.layout import cells
from accelctl.render.term import Term
from tests.helpers import run_cli

PIPE = Term(False, None, None, True)
ALL = Rules()


def report(**changes: Any) -> dict[str, Any]:
    """A small report of probe; ``changes`` replace parts of it."""
    return {
        "schema": "accelctl.probe/1",
        "tool": {"name": "accelctl", "version": "1"},
        "simulated": False,
        "summary": {"accelerators": 2, "health": {"ok": 2, "warn": 0}},
        "machine": {"kernel": {"release": "6.1"}, "memory": None},
        "devices": [
            {"id": "0000:01:00.0", "name": "A", "link": {"width": 16}},
            {"id": "0000:02:00.0", "name": "B", "link": {"width": 16}},
        ],
        "findings": [],
        "stuck": [],
    } | changes


def narrow() -> dict[str, Any]:
    """The same with a link that is half as wide, and a finding."""
    found = report(findings=[{"id": "PCI-LINK-WIDTH", "level": "warn", "device": "0000:02:00.0", "title": "x8 of x16"}])
    found["devices"] = [found["devices"][0], {"id": "0000:02:00.0", "name": "B", "link": {"width": 8}}]
    return found


def written(folder: Path, documents: Mapping[str, Any]) -> str:
    for name, document in documents.items():
        text = document if isinstance(document, str) else json.dumps(document)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return str(folder)


def text(fleet: Fleet, term: Term = PIPE, everything: bool = False) -> str:
    return view.text_of(fleet, term, everything)


def test_equal_nodes_are_one_group(tmp_path: Path) -> None:
    place = written(tmp_path, {f"node{n:02d}": report() for n in range(1, 13)})
    fleet = merge([place], ALL)
    assert [group.nodes for group in fleet.groups] == [tuple(f"node{n:02d}" for n in range(1, 13))]
    assert (fleet.equal, fleet.exit_code, fleet.level, fleet.nodes) == (True, 0, "ok", 12)
    shown = text(fleet)
    assert shown.startswith("accelctl.probe/1: 12 nodes, all equal\n\n  node[01-12]  12 nodes\n")
    assert shown.endswith("\n12 nodes: none odd\n")


def test_odd_ones_are_shown_with_where_they_differ(tmp_path: Path) -> None:
    place = written(tmp_path, {f"node{n}": narrow() if n in (3, 4) else report() for n in range(1, 9)})
    fleet = merge([place], ALL)
    assert [group.nodes for group in fleet.odd] == [("node3", "node4")]
    assert fleet.odd[0].differences == (
        Difference("/devices/0000:02:00.0/link/width", CHANGED, 16, 8),
        Difference("/findings/PCI-LINK-WIDTH", EXTRA, None, narrow()["findings"][0]),
    )
    assert (fleet.exit_code, fleet.level) == (1, "warn")
    shown = text(fleet)
    assert "node[1-2,5-8]  6 nodes" in shown
    assert "node[3-4]  2 nodes, 2 differences" in shown
    assert "/devices/0000:02:00.0/link/width  16 → 8" in shown
    assert "/findings/PCI-LINK-WIDTH  only here: x8 of x16" in shown
    assert shown.endswith("8 nodes: 2 odd\n")


def test_a_missing_device_does_not_shift_the_others() -> None:
    base, other = report(), report(devices=report()["devices"][1:])
    found = list(differences(base, other))
    assert found == [Difference("/devices/0000:01:00.0", MISSING, base["devices"][0])]
    assert list(differences(other, base)) == [Difference("/devices/0000:01:00.0", EXTRA, None, base["devices"][0])]


def test_what_changes_by_itself_does_not_count_unless_asked(tmp_path: Path) -> None:
    one = report(volatile={"t": 1}, evidence={"/a": 1}, identity={"serial": "x"}, root="/", live=True)
    two = report(volatile={"t": 2}, evidence={"/a": 2}, identity={"serial": "y"}, root="/x", live=False)
    three = report()
    one["findings"] = two["findings"] = three["findings"] = [{"id": "X-Y", "level": "info", "title": "t"}]
    two["findings"] = [{**two["findings"][0], "evidence": [{"source": "a", "raw": "b"}]}]
    place = written(tmp_path, {"n1": one, "n2": two, "n3": three})
    assert merge([place], ALL).equal
    assert len(merge([place], Rules(volatile=True)).groups) == 3


@pytest.mark.parametrize(
    ("noun", "part", "differs"),
    [
        ("smoke", {"cases": [{"id": "a", "result": "pass", "seconds": 1.5}]}, False),
        ("smoke", {"cases": [{"id": "a", "result": "fail", "seconds": 0.5}]}, True),
        ("smoke", {"cases": [{"id": "a", "result": "pass", "seconds": 0.5}], "evidence": [{"kernel": "k"}]}, False),
        ("stress", {"lifecycles": [{"lifecycle": "a", "result": "pass", "cycles": 9, "series": [1]}]}, False),
        ("bringup", {"volatile": {"started": "now"}}, False),
        ("probe", {"machine": {"seconds": 1}}, True),
    ],
)
def test_what_a_run_measured_does_not_count(noun: str, part: dict[str, Any], differs: bool, tmp_path: Path) -> None:
    base: dict[str, Any] = {"schema": f"accelctl.{noun}/1"}
    parts: dict[str, dict[str, Any]] = {
        "smoke": {"cases": [{"id": "a", "result": "pass", "seconds": 0.5}]},
        "stress": {"lifecycles": [{"lifecycle": "a", "result": "pass", "cycles": 3, "series": []}]},
        "probe": {"machine": {"seconds": 0}},
    }
    base |= parts.get(noun, {})
    place = written(tmp_path, {"n1": base, "n2": base | part})
    assert merge([place], ALL).equal is not differs


def test_keys_choose_and_leave_out_places(tmp_path: Path) -> None:
    place = written(tmp_path, {"n1": report(), "n2": report(), "n3": narrow()})
    assert not merge([place], ALL).equal
    assert merge([place], rules(["/machine"], [])).equal
    assert merge([place], rules(["/machine/kernel/*", "/devices/0000:01*"], [])).equal
    assert merge([place], rules([], ["/devices/*/link", "/findings"])).equal
    odd = merge([place], rules(["/devices/*/link/width"], [])).odd
    assert [one.pointer for one in odd[0].differences] == ["/devices/0000:02:00.0/link/width"]
    odd = merge([place], rules(["/devices"], ["/devices/0000:01:00.0"])).odd
    assert [one.pointer for one in odd[0].differences] == ["/devices/0000:02:00.0/link/width"]
    assert merge([place], rules(["/machine/memory"], [])).equal  # a null is a value
    assert merge([place], rules(["/nothing/there"], [])).equal
    with pytest.raises(UsageError, match="no JSON pointer"):
        rules(["machine"], [])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty"),
        ("{", "no JSON"),
        ("\x00\x01", "no JSON"),
        ("[]", "no report of accelctl"),
        ('{"schema": "other/1"}', "no report of accelctl"),
        ('{"schema": 5}', "no report of accelctl"),
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({"schema": "accelctl.smoke/1", "x": json.loads("[" * 200 + "]" * 200)}), "nested too deeply"),
    ],
)
def test_garbage_is_a_line_and_the_others_are_folded(content: str, reason: str, tmp_path: Path) -> None:
    place = written(tmp_path, {"n1": report(), "n2": report(), "bad": content})
    fleet = merge([place], ALL)
    assert [group.nodes for group in fleet.groups] == [("n1", "n2")]
    assert (fleet.exit_code, fleet.level) == (2, "unknown")
    assert len(fleet.bad) == 1
    assert reason in fleet.bad[0].reason
    assert f"{tmp_path}/bad.json: {reason}" in text(fleet)
    assert text(fleet).endswith("2 nodes: none odd, 1 file that is no report\n")


def test_files_that_cannot_be_read_are_lines_too(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.json").write_bytes(b'{"schema": "\xff"}')
    places = [str(tmp_path / "no-such.json"), str(tmp_path / "empty"), str(tmp_path / "latin.json"), "nul\0name"]
    fleet = merge(places, ALL)
    assert [one.where for one in fleet.bad] == places
    assert fleet.exit_code == 2
    assert not fleet.groups
    assert text(fleet).endswith("0 nodes: none odd, 4 files that are no report\n")


def test_a_second_report_of_one_node_is_said(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, {"n1": report()})
    fleet = merge([str(tmp_path / "a"), str(tmp_path / "b")], ALL)
    assert "a second report of n1" in fleet.bad[0].reason
    assert merge([str(tmp_path / "a"), str(tmp_path / "b")], Rules(name_from="folder")).groups[0].nodes == ("a", "b")


def test_schemas_are_compared_with_their_own_kind(tmp_path: Path) -> None:
    for noun in ("probe", "smoke"):
        (tmp_path / noun).mkdir()
        written(tmp_path / noun, {f"n{n}": {"schema": f"accelctl.{noun}/1", "result": "passed"} for n in (1, 2)})
    fleet = merge([str(tmp_path / "probe"), str(tmp_path / "smoke")], ALL)
    assert [group.schema for group in fleet.groups] == ["accelctl.probe/1", "accelctl.smoke/1"]
    assert fleet.equal
    assert fleet.nodes == 2


def test_names_of_nodes_may_stand_in_the_reports(tmp_path: Path) -> None:
    place = written(tmp_path, {"x": report(identity={"host": "n7"}), "y": report()})
    assert merge([place], rules([], [], name_from="/identity/host")).groups[0].nodes == ("n7", "y")


def test_nodes_that_did_not_report_are_named(tmp_path: Path) -> None:
    place = written(tmp_path, {"n1": report(), "n2": report()})
    fleet = merge([place], ALL, "n[1-4,7]")
    assert fleet.absent == ("n3", "n4", "n7")
    assert (fleet.equal, fleet.exit_code, fleet.level) == (False, 1, "warn")
    assert "No report of 3 nodes: n[3-4,7]" in text(fleet)
    with pytest.raises(UsageError):
        merge([place], ALL, "n[1-")


def piped(monkeypatch: pytest.MonkeyPatch, data: str) -> Fleet:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(data.encode())))
    return merge(["-"], ALL)


def test_standard_input_as_clush_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {node: json.dumps(report(), indent=1).splitlines() for node in ("n1", "n2", "n3")}
    mixed = "".join(
        f"{node}: {line}\n" for row in zip(*lines.values(), strict=True) for node, line in zip(lines, row, strict=True)
    )
    fleet = piped(monkeypatch, mixed + "n4: sh: accelctl: not found\n")
    assert fleet.groups[0].nodes == ("n1", "n2", "n3")
    assert [(one.node, one.reason[:7]) for one in fleet.bad] == [("n4", "no JSON")]


def test_standard_input_as_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    one = json.dumps(report())
    assert piped(monkeypatch, f"{one}\n{json.dumps(report(), indent=2)} {one}").groups[0].nodes == ("1", "2", "3")
    fleet = piped(monkeypatch, f"{one}\n{one}\n{{broken")
    assert (fleet.nodes, len(fleet.bad)) == (2, 1)
    assert piped(monkeypatch, "").bad[0].reason == "empty"
    assert "neither JSON nor" in piped(monkeypatch, "hello world\n").bad[0].reason


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_arbitrary_bytes_are_a_report_or_a_line(data: bytes) -> None:
    assert fleetread.Reader(ALL)._parsed("n", "file", data).reason


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.just("id"), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(max_size=4), VALUES, max_size=4), st.dictionaries(st.text(max_size=4), VALUES, max_size=4)
)
def test_differences_of_any_documents(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert list(differences(one, one)) == []
    for found in differences(one, two):
        assert (resolve(one, found.pointer) is None) or found.state != EXTRA
        assert found.state != CHANGED or found.expected != found.found or type(found.expected) is not type(found.found)
    judged(one | {"schema": "accelctl.x/1"})


@given(st.lists(VALUES, max_size=5))
def test_members_keep_every_entry(entries: list[Any]) -> None:
    assert list(members(entries).values()) == entries


def test_equal_bytes_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = written(tmp_path, {f"n{n}": report() for n in range(100)})
    parsed: list[bytes] = []
    judge = fleetread.Reader._report

    def spy(reader: fleetread.Reader, data: bytes) -> fleetread.Read:
        parsed.append(data)
        return judge(reader, data)

    monkeypatch.setattr(fleetread.Reader, "_report", spy)
    assert merge([place], ALL).nodes == 100
    assert len(parsed) == 1


def test_many_groups_and_differences_are_cut_where_it_is_said(tmp_path: Path) -> None:
    place = written(tmp_path, {f"n{n}": report(machine={f"k{k}": n for k in range(20)}) for n in range(30)})
    fleet = merge([place], ALL)
    shown = text(fleet)
    assert "no majority" in shown
    assert "12 more: --all" in shown
    assert "17 more groups: --all" in shown
    whole = text(fleet, everything=True)
    assert "--all" not in whole
    assert whole.count(" differences") == 29


def test_nothing_is_wider_than_a_terminal_but_what_is_copied(tmp_path: Path) -> None:
    place = written(tmp_path, {"n1": report(), "n2": report(), "n3": report(machine={"a\x1b[2J\n" * 3: "x y " * 60})})
    shown = text(merge([place], ALL), Term(True, 80, None, True))
    assert "\x1b" not in shown
    assert max(map(cells, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("document", "level", "words"),
    [
        (report(), "ok", "2 accelerators (2 ok)"),
        (narrow(), "warn", "2 accelerators (2 ok); PCI-LINK-WIDTH 0000:02:00.0 x8 of x16"),
        ({"result": "passed (simulated)"}, "ok", "passed (simulated)"),
        ({"verdict": "rejected"}, "error", "rejected"),
        ({"verdict": "accepted"}, "ok", "accepted"),
        ({"verdict": "not accepted: incomplete"}, "unknown", "not accepted: incomplete"),
        ({"result": "nothing ran"}, "unknown", "nothing ran"),
        ({"result": "failed", "findings": [{"level": "critical", "id": "A-B"}]}, "critical", "failed; A-B"),
        ({"findings": "rubbish", "summary": 3, "verdict": []}, "ok", "nothing found"),
    ],
)
def test_what_a_report_says(document: dict[str, Any], level: str, words: str) -> None:
    assert judged(document) == (level, words)


@pytest.mark.parametrize(
    ("documents", "status", "words"),
    [
        ({"n1": report()}, 0, "ACCELCTL OK - 2 accelerators (2 ok) | nodes=1 odd=0 bad=0"),
        ({"n1": narrow()}, 1, "ACCELCTL WARNING - 2 accelerators (2 ok); PCI-LINK-WIDTH"),
        ({"n1": {"schema": "accelctl.smoke/1", "result": "failed"}}, 2, "ACCELCTL CRITICAL - failed"),
        ({"n1": {"schema": "accelctl.smoke/1", "result": "nothing ran"}}, 3, "ACCELCTL UNKNOWN - nothing ran"),
        ({"n1": "rubbish"}, 3, "ACCELCTL UNKNOWN - "),
        (
            {"n1": report(), "n2": report(), "n3": report(stuck=["x"])},
            1,
            "ACCELCTL WARNING - 3 nodes, 1 odd (n3); 2 acc",
        ),
        ({"n1": {"schema": "accelctl.smoke/1", "result": "failed"}, "n2": "rubbish"}, 2, "ACCELCTL CRITICAL - "),
        (
            {"n1": {"schema": "accelctl.bringup/1", "verdict": "passed (simulated)", "simulated": True}},
            0,
            "ACCELCTL OK - simulated: passed (simulated)",
        ),
    ],
)
def test_a_line_for_nagios(documents: dict[str, Any], status: int, words: str, tmp_path: Path) -> None:
    line, code = view.nagios_line(merge([written(tmp_path, documents)], ALL))
    assert code == status
    assert line.startswith(words)
    assert "\n" not in line
    assert line.count("|") == 1


def test_document(tmp_path: Path) -> None:
    place = written(tmp_path, {"n1": report(), "n2": report(), "n3": narrow(), "n4": "rubbish"})
    found = json.loads(json.dumps(view.document(merge([place], ALL, "n[1-5]"))))
    assert found["schema"] == "accelctl.merge/1"
    assert [(group["nodes"], group["odd"], group["count"]) for group in found["groups"]] == [
        ("n[1-2]", False, 2),
        ("n3", True, 1),
    ]
    assert found["groups"][1]["differences"][0]["pointer"] == "/devices/0000:02:00.0/link/width"
    assert (found["absent"], found["equal"], found["nodes"]) == ("n5", False, 3)
    assert found["bad"][0]["node"] == "n4"


def test_command(tmp_path: Path) -> None:
    place = written(tmp_path, {"n1": report(), "n2": report()})
    assert "all equal" in run_cli("merge", place, code=0).stdout
    assert json.loads(run_cli("merge", place, "--json", code=0).stdout)["equal"] is True
    assert run_cli("merge", place, "--nagios", code=0).stdout.startswith("ACCELCTL OK - 2 nodes, 0 odd")
    written(tmp_path, {"n3": narrow()})
    assert "1 odd" in run_cli("merge", place, code=1).stdout
    assert run_cli("merge", place, "--nagios", code=1).stdout.startswith("ACCELCTL WARNING - ")
    written(tmp_path, {"n4": "x"})
    assert "n4.json: no JSON" in run_cli("merge", place, code=2).stdout
    assert "exclude each other" in run_cli("merge", place, "--json", "--nagios", code=2).stderr
    assert run_cli("merge", code=2).stdout == ""
    live = run_cli("probe", "--json", "--no-evidence", code=0).stdout
    assert run_cli("merge", "-", "--nagios", stdin=live, code=0).stdout.startswith("ACCELCTL OK - ")


def bench(h2d: float, latency: float, noise: float = 0.01) -> dict[str, Any]:
    """A report of bench with a bandwidth in GB/s and a time in microseconds."""

    def figure(name: str, unit: str, value: float) -> dict[str, Any]:
        spread = {"median": value, "low": value * (1 - noise), "high": value * (1 + noise)}
        return {"id": name, "unit": unit, "spread": spread}

    rows = [figure("bandwidth/h2d", "bytes_per_s", h2d * 1e9), figure("roundtrip/null", "seconds", latency * 1e-6)]
    return {"schema": "accelctl.bench/1", "verdict": "measured", "device": "x", "volatile": {"figures": rows}}


def test_slow_nodes_are_told_by_the_median_of_the_fleet(tmp_path: Path) -> None:
    reports = {f"n{n}": bench(25 + n / 10, 10) for n in range(1, 7)} | {"n7": bench(11, 10), "n8": bench(25, 14)}
    fleet = merge([written(tmp_path, reports)], ALL)
    assert [(one.figure, [node for node, _ in one.nodes]) for one in fleet.slow] == [
        ("bandwidth/h2d", ["n7"]),
        ("roundtrip/null", ["n8"]),
    ]
    assert (fleet.exit_code, fleet.level, len(fleet.groups)) == (1, "warn", 1)
    shown = text(fleet)
    assert "bandwidth/h2d  median of 8: 25.2 GB/s\n    n7  11 GB/s, 44%" in shown
    assert "    n8  14 us, 71%" in shown
    assert shown.endswith("8 nodes: none odd, 2 slow\n")
    assert "slow: n[7-8] (bandwidth/h2d)" in view.nagios_line(fleet)[0]
    assert view.document(fleet)["slow"][0]["nodes"] == [{"node": "n7", "value": 11e9}]
    assert merge([str(tmp_path)], ALL, slack=60).equal


def test_noise_and_small_fleets_blame_nobody(tmp_path: Path) -> None:
    reports = {f"n{n}": bench(25, 10) for n in range(1, 6)} | {"n6": bench(20, 10, noise=0.3)}
    assert merge([written(tmp_path, reports)], ALL).equal
    few = tmp_path / "few"
    few.mkdir()
    assert merge([written(few, {"a": bench(25, 10), "b": bench(25, 10), "c": bench(5, 10)})], ALL).equal


@given(
    st.dictionaries(
        st.sampled_from(["volatile", "figures"]),
        VALUES | st.lists(st.fixed_dictionaries({"id": VALUES, "unit": VALUES, "spread": VALUES})),
        max_size=2,
    )
)
def test_any_figures_are_read_or_left(rows: dict[str, Any]) -> None:
    slow([(str(n), figures({"volatile": rows})) for n in range(5)])


HUGE = "9" * 400
"""A whole number that no float holds."""


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("place", ["odd", "figure"])
def test_a_number_that_is_none_spoils_only_its_own_report(number: str, place: str, tmp_path: Path) -> None:
    good = json.dumps(bench(25, 10))
    bad = good.replace("25000000000.0", number) if place == "figure" else good.replace('"x"', number)
    assert bad != good
    fleet = merge([written(tmp_path, {**{f"n{n}": good for n in range(1, 6)}, "n6": bad})], ALL)
    assert [(one.node, one.reason) for one in fleet.bad] == [("n6", f"no JSON: {number} is no number")]
    assert [group.nodes for group in fleet.groups] == [("n1", "n2", "n3", "n4", "n5")]
    assert dumps(view.document(fleet))


@pytest.mark.parametrize("number", [HUGE, "1" * 5000, "5e-324", "1.7e308", "1e-19", "1e19"])
@pytest.mark.parametrize("odd", [1, 3])
def test_figures_that_nothing_measures_do_not_end_it(number: str, odd: int, tmp_path: Path) -> None:
    good = json.dumps(bench(25, 10))
    bad = good.replace("25000000000.0", number).replace("1e-05", number)
    fleet = merge([written(tmp_path, {f"n{n}": bad if n <= odd else good for n in range(1, 7)})], ALL)
    assert fleet.nodes + len(fleet.bad) == 6
    assert not fleet.slow
    assert text(fleet)
    assert dumps(view.document(fleet))
    assert view.nagios_line(fleet)[0]


def test_a_document_of_a_pipe_with_such_a_number_leaves_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    good = json.dumps(report())
    fleet = piped(monkeypatch, f"{good} {good.replace('16', 'NaN')}\n{good}")
    assert [group.nodes for group in fleet.groups] == [("1", "3")]
    assert [one.node for one in fleet.bad] == ["2"]


class Counted(str):
    """A text that counts what is copied out of it."""

    copied = 0

    def __getitem__(self, key: Any) -> str:
        found = super().__getitem__(key)
        self.copied += len(found)
        return found


@pytest.mark.parametrize("between", ["", "\n", " " * 50 + "\r\n\t"])
def test_a_pipe_is_copied_once_however_many_documents_it_has(between: str) -> None:
    one = json.dumps(report())
    stream = Counted(between + (one + between) * 500)
    assert list(fleetread._documents(stream)) == [one] * 500
    assert stream.copied <= len(stream)
