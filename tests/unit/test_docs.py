"""Examples in the documents are run: commands run as they stand, Python examples define rules that work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from accelctl.abi.rules import rules_of
from tests.helpers import run_cli

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"])
#: Commands that wait for events, write files or need something that is not everywhere.
NOT_RUN = re.compile(r"accelctl (watch|capture|top --demo)|FILE|SHELL|\.tar|ssh |\| |> |\[|A B")


def commands() -> list[str]:
    found = []
    for path in DOCUMENTS:
        for line in path.read_text(encoding="utf-8").splitlines():
            match = re.match(r"^\s*\$ (accelctl .*)$", line)
            if match and not NOT_RUN.search(match.group(1)):
                found.append(match.group(1))
    return sorted(set(found))


@pytest.mark.parametrize("command", commands())
def test_a_command_in_the_documents_works(command: str) -> None:
    done = run_cli(*shlex.split(command)[1:])
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr


def test_the_captured_machine_in_the_readme_is_what_probe_says(shared: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"    \$ accelctl probe --root (topo\S+)\n((?:    .*\n|\n)+?)(?=\S)", text)
    assert shown is not None
    done = run_cli("probe", "--root", shown.group(1), cwd=shared / "machines", env={"COLUMNS": "100"})
    expected = "\n".join(f"    {line}".rstrip() for line in done.stdout.rstrip().splitlines())
    assert shown.group(2).rstrip() == expected


def test_the_rule_in_the_guide_is_a_rule() -> None:
    text = (ROOT / "docs" / "add-a-rule.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    import types

    module = types.ModuleType("guide")
    exec(compile(source, "add-a-rule.md", "exec"), module.__dict__)
    from accelctl.model.device import Device
    from accelctl.model.reading import Reading
    from accelctl.model.report import Report

    (found,) = rules_of(module)
    assert found.ids == ("ZORK-HOT",)
    hot = Reading(95.5, "sys/devices/x/zork_temp", "95500")
    device = Device("0000:05:00.0", "physical", "sys/devices/x", chip="zork", facts={"zork/temperature_celsius": hot})

    class Context:
        report = Report("t", False, devices=[device])

        def devices(self, chip: str) -> list[Device]:
            return [one for one in self.report.devices if one.chip == chip]

    (finding,) = found.run(Context())  # type: ignore[arg-type]
    assert finding.device == "0000:05:00.0"
    assert finding.evidence[0].raw == "95500"


def test_every_absence_has_a_line_in_the_document() -> None:
    from accelctl.model.reading import ABSENCES

    text = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert [kind for kind in ABSENCES if f"`{kind}`" not in text] == []
