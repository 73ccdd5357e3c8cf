"""Options that are not typed: which layer wins, for every kind of option, and what the user is told about mistakes."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from accelctl import cli
from accelctl.commands import frame, settings
from accelctl.errors import UsageError
from accelctl.model.setting import Setup
from tests.helpers import ROOT, loaded_modules, run_cli
from tests.synthetic import make_machine


class Layered:
    """The layers below the command line, each as TOML or as variables, and what a command makes of them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here, self.user = folder / "here" / "accelctl.toml", folder / "home" / "accelctl" / "config.toml"
        self.patch = monkeypatch
        for path in (self.here, self.user):
            path.parent.mkdir(parents=True)
        monkeypatch.chdir(self.here.parent)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "home"))
        # everybody can write /tmp, so nothing there counts for root; test_settings_files.py is about that
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() or 65534)

    def set(self, layer: str, command: str, option: str, value: Any) -> list[str]:
        """Set an option in a layer; returns the words to type, which only the layer `typed` has."""
        if layer == "typed":
            values = value if isinstance(value, list) else [value]
            return [f"--{option}" if one is True else f"--{option}={one}" for one in values]
        if layer == "environment":
            text = " ".join(value) if isinstance(value, list) else str(value)
            self.patch.setenv(f"ACCELCTL_{command}_{option}".upper().replace("-", "_"), text)
        else:
            path = self.here if layer == "folder" else self.user
            path.write_text(f"[{command}]\n{option} = {json.dumps(value)}\n", encoding="utf-8")
        return []

    def params(self, command: str, *words: str) -> dict[str, Any]:
        """The values that the command's function would get."""
        row = cli.COMMANDS[command]
        loaded = frame.load(command, row.module, row.function, row.summary)
        with loaded.make_context(command, list(words), obj=Setup(cli.COMMANDS, True), **frame.presentation()) as ctx:
            return {name: list(value) if isinstance(value, tuple) else value for name, value in ctx.params.items()}

    def below(self, group: str, name: str, *words: str) -> dict[str, Any]:
        """The values that a command of a group would get."""
        row = cli.COMMANDS[group]
        loaded = frame.load(group, row.module, row.function, row.summary).commands[name]
        with loaded.make_context(name, list(words), obj=Setup(cli.COMMANDS, True), **frame.presentation()) as ctx:
            return dict(ctx.params)


@pytest.fixture
def layered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layered:
    return Layered(tmp_path, monkeypatch)


# -- precedence --

LAYERS = ("typed", "environment", "folder", "user")
PAIRS = list(itertools.combinations(LAYERS, 2))
KINDS: dict[str, tuple[str, str, str, Any, Any]] = {
    "choice": ("probe", "fail-on", "fail_on", "warn", "critical"),
    "text": ("probe", "root", "root", "/a", "/b"),
    "whole": ("watch", "count", "count", 3, 5),
    "number": ("watch", "duration", "duration", 2.5, 60.0),
    "list": ("probe", "device", "device", ["vendor=amd", "driver=xe"], ["driver=i915"]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("upper", "lower"), PAIRS)
def test_the_upper_layer_wins(layered: Layered, upper: str, lower: str, kind: str) -> None:
    command, option, name, first, second = KINDS[kind]
    words = layered.set(lower, command, option, second)
    assert layered.params(command, *words)[name] == second
    words = layered.set(upper, command, option, first)
    assert layered.params(command, *words)[name] == first


@pytest.mark.parametrize(("upper", "lower"), [pair for pair in PAIRS if pair[0] != "typed"])
@pytest.mark.parametrize("value", [True, False])
def test_a_flag_can_be_set_and_taken_back(layered: Layered, upper: str, lower: str, value: bool) -> None:
    layered.set(lower, "probe", "json", not value)
    assert layered.params("probe")["as_json"] is not value
    layered.set(upper, "probe", "json", value)
    assert layered.params("probe")["as_json"] is value


@pytest.mark.parametrize("lower", LAYERS[1:])
def test_a_typed_flag_wins(layered: Layered, lower: str) -> None:
    layered.set(lower, "probe", "json", False)
    assert layered.params("probe", "--json")["as_json"] is True


def test_files_are_merged_option_by_option(layered: Layered) -> None:
    layered.here.write_text("[probe]\njson = true\ndevice = []\n[watch]\npoll = true\n", encoding="utf-8")
    layered.user.write_text('[probe]\nfail-on = "info"\ndevice = ["driver=xe"]\n', encoding="utf-8")
    found = layered.params("probe")
    assert (found["as_json"], found["fail_on"], found["device"]) == (True, "info", [])
    assert layered.params("watch")["poll"] is True


def test_without_any_layer_the_defaults_stand(layered: Layered) -> None:
    found = layered.params("probe")
    assert (found["root"], found["device"], found["fail_on"], found["as_json"]) == ("/", [], "error", False)


def test_numbers_stand_for_texts_that_hold_one(layered: Layered) -> None:
    layered.user.write_text("[stress]\ncycles = 2000\nworkers = 2\n", encoding="utf-8")
    found = layered.params("stress")
    assert (found["cycles"], found["workers"]) == ("2000", 2)


def test_an_empty_variable_is_no_variable(layered: Layered) -> None:
    layered.patch.setenv("ACCELCTL_PROBE_JSON", "")
    layered.patch.setenv("ACCELCTL_STRESS_KILL", "")
    assert layered.params("probe")["as_json"] is False
    assert layered.params("stress")["kill"] is False


def test_help_reads_nothing(layered: Layered) -> None:
    layered.here.write_bytes(b"\xff not toml")
    layered.patch.setenv("ACCELCTL_PROBE_NONSENSE", "1")
    for words in (["--help"], ["--json", "-h"]):
        with pytest.raises(typer.Exit):
            layered.params("probe", *words)


# -- commands of a group --


@pytest.mark.parametrize("layer", LAYERS)
def test_commands_of_a_group_share_a_table(layered: Layered, layer: str) -> None:
    words = layered.set(layer, "config", "json", True)
    assert layered.below("config", "show", *words)["as_json"] is True


def test_what_no_command_of_a_group_has_is_refused(layered: Layered) -> None:
    layered.set("folder", "config", "jsno", True)
    with pytest.raises(UsageError, match="no such option"):
        layered.below("config", "show")


# -- what only the command line sets --


def all_options() -> list[tuple[str, str, Any]]:
    found = []
    for name, row in cli.COMMANDS.items():
        command = frame.load(name, row.module, row.function, row.summary)
        for one in getattr(command, "commands", {}).values() or [command]:
            ctx = one.context_class(one, info_name=name)
            found += [(name, key, option) for key, option in settings.options_of(one, ctx).items()]
    return found


TYPED_ONLY = sorted((name, key) for name, key, _ in all_options() if not settings.variable_of(name, key))


def test_what_can_cost_something_is_typed_only() -> None:
    """An option under these headings is dangerous until somebody shows that it is not."""
    panels = ("Safety", "What to break")
    dangerous = {(name, key) for name, key, option in all_options() if option.rich_help_panel in panels}
    assert dangerous - set(TYPED_ONLY) == set()
    assert {("stress", "disruptive"), ("stress", "kill"), ("stress", "sweep"), ("probe", "allow-wake")} <= set(
        TYPED_ONLY
    )


def test_every_typed_only_option_exists() -> None:
    listed = settings.DANGEROUS | settings.ASKING
    assert {word for name, key in TYPED_ONLY for word in (key, f"{name} {key}") if word in listed} == listed


@pytest.mark.parametrize(("command", "option"), TYPED_ONLY, ids=str)
@pytest.mark.parametrize("layer", LAYERS[1:])
def test_typed_only_is_refused_everywhere_else(layered: Layered, layer: str, command: str, option: str) -> None:
    layered.set(layer, command, option, True)
    row = cli.COMMANDS[command]
    below = list(getattr(frame.load(command, row.module, row.function, row.summary), "commands", {}))
    with pytest.raises(UsageError, match="only taken from the command line") as caught:
        layered.below(command, below[0]) if below else layered.params(command)
    assert caught.value.hint == f"accelctl {command} --{option}"


def test_no_option_names_code() -> None:
    """./accelctl.toml may be anybody's checkout: what it can name is read or written as data, never run."""
    words = ("plugin", "module", "library", "path", "exec", "command", "pager", "hook")
    assert [key for _, key, _ in all_options() if any(word in key for word in words)] == []


# -- mistakes --

MISTAKES = [
    ("[probe]\nfail_on = 'warn'", "[probe] fail_on: no such option (did you mean fail-on?)"),
    ("[probe]\nxyzzy = 1", "[probe] xyzzy: no such option"),
    ("[probe]\nhelp = true", "[probe] help: no such option"),
    ("[watch]\nroot = '/'", "[watch] root: no such option"),
    ("[prob]\njson = true", "[prob]: no such command (did you mean [probe]?)"),
    ("[[probe]]\njson = true", "probe: is a command; its options stand below [probe]"),
    ("probe = true", "probe: is a command; its options stand below [probe]"),
    ("json = true", "json: stands outside of a table; options stand below a command, as in [probe]"),
    ("[probe]\njson = 'yes'", '[probe] json: true or false is expected, not "yes"'),
    ("[probe]\njson = 1", "[probe] json: true or false is expected, not a number"),
    ("[probe]\nfail-on = 'wran'", "[probe] fail-on: 'wran' is not one of 'info', 'warn', 'error', 'critical', 'never'"),
    ("[probe]\nfail-on = true", "[probe] fail-on: a text is expected, not true"),
    ("[probe]\nfail-on = ['warn']", "[probe] fail-on: a text is expected, not a list"),
    ("[probe]\nfail-on = {a = 1}", "[probe] fail-on: a text is expected, not a table"),
    ("[probe]\nroot = 2020-01-01", "[probe] root: a text is expected, not a date or time"),
    ("[probe]\nroot = 'a\\u0000b'".replace("'", '"'), "[probe] root: holds a control character"),
    ("[probe]\ndevice = 'vendor=amd'", '[probe] device: a list, ["...", "..."], is expected, not "vendor=amd"'),
    ("[probe]\ndevice = ['a', ['b']]", "[probe] device: a text is expected, not a list"),
    ("[watch]\ncount = 2.0", "[watch] count: a whole number is expected, not a number"),
    ("[watch]\ncount = 0", "[watch] count: 0 is not in the range x>=1"),
    ("[watch]\ncount = 0x" + "f" * 9000, "[watch] count: the number is too large"),
    ("[stress]\ncycles = 0x" + "f" * 9000, "[stress] cycles: the number is too large"),
    ("[watch]\nduration = '60'", '[watch] duration: a number is expected, not "60"'),
    ("[probe]\njson = true\n[probe]\n", "(at line 3"),
    ("[probe]\njson =", "(at "),
    ("x = " + "[" * 5000, "nested too deeply"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[message[:50] for _, message in MISTAKES])
@pytest.mark.parametrize("layer", ["folder", "user"])
def test_a_mistake_in_a_file_is_one_line(layered: Layered, layer: str, text: str, message: str) -> None:
    path = layered.here if layer == "folder" else layered.user
    path.write_text(text, encoding="utf-8")
    command = message[1:].partition("]")[0] if message.startswith("[") else "probe"
    with pytest.raises(UsageError) as caught:
        layered.params(command if command in cli.COMMANDS else "probe")
    assert caught.value.message.startswith(f"{path}: ")
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < len(str(path)) + 200


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "ACCELCTL_PROBE_FAILON",
            "warn",
            "ACCELCTL_PROBE_FAILON: no such option (did you mean ACCELCTL_PROBE_FAIL_ON?)",
        ),
        ("ACCELCTL_PROBE_FAIL_ON", "wran", "ACCELCTL_PROBE_FAIL_ON: 'wran' is not one of 'info', "),
        ("ACCELCTL_PROBE_JSON", "maybe", "ACCELCTL_PROBE_JSON: 'maybe' is not a valid boolean"),
        ("ACCELCTL_PROBE_AS_JSON", "1", "ACCELCTL_PROBE_AS_JSON: no such option (did you mean ACCELCTL_PROBE_JSON?)"),
    ],
)
def test_a_mistake_in_a_variable_is_one_line(layered: Layered, variable: str, value: str, message: str) -> None:
    layered.patch.setenv(variable, value)
    with pytest.raises(UsageError) as caught:
        layered.params("probe")
    assert caught.value.message.startswith(message)


def test_a_mistake_in_a_lower_layer_is_told_too(layered: Layered) -> None:
    layered.set("user", "probe", "fail-on", "wran")
    with pytest.raises(UsageError, match="'wran' is not one of"):
        layered.params("probe", "--fail-on", "warn")


def test_the_table_of_another_command_is_not_looked_into(layered: Layered) -> None:
    layered.here.write_text("[stress]\nsede = 1\n", encoding="utf-8")
    assert layered.params("probe")["fail_on"] == "error"


# -- the program --


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that is trusted also by root, and two cards in it."""
    make_machine(tmp_path / "cards", 2)
    return tmp_path


def run_in(folder: Path, *words: str, env: Mapping[str, str | None] | None = None, **more: Any) -> Any:
    changes = {"ACCELCTL_NO_CONFIG": None, "XDG_CONFIG_HOME": str(folder / "none"), **(env or {})}
    return run_cli(*words, env={**changes, "PYTHONPATH": str(ROOT)}, cwd=folder, **more)


def test_variables_reach_the_program(folder: Path) -> None:
    done = run_in(folder, "probe", env={"ACCELCTL_PROBE_ROOT": "cards", "ACCELCTL_PROBE_BRIEF": "1"}, code=0)
    assert done.stdout == run_in(folder, "probe", "--root", "cards", "--brief", code=0).stdout
    assert done.stderr == ""


def test_an_error_names_the_layer_it_comes_from(folder: Path) -> None:
    done = run_in(folder, "probe", "--root", "cards", "--brief", env={"ACCELCTL_PROBE_JSON": "1"}, code=2)
    assert done.stderr == (
        "accelctl probe: --brief and --json exclude each other (--json is set by ACCELCTL_PROBE_JSON)\n"
    )
    done = run_in(folder, "probe", "--root", "cards", env={"ACCELCTL_PROBE_DEVICE": "driver=xe"}, code=3)
    assert "driver=xe" in done.stderr
    assert "(--device is set by ACCELCTL_PROBE_DEVICE)" in done.stderr
    done = run_in(
        folder, "probe", "--root", "cards", "--device", "driver=xe", env={"ACCELCTL_PROBE_DEVICE": "driver=xe"}
    )
    assert "is set by" not in done.stderr, "typed options are the user's own words"


def test_a_mistake_ends_the_program_with_2(folder: Path) -> None:
    done = run_in(folder, "probe", env={"ACCELCTL_PROBE_FAIL": "1"}, code=2)
    first, second = done.stderr.splitlines()
    assert first.startswith("accelctl probe: ACCELCTL_PROBE_FAIL: no such option (did you mean ")
    assert (second, done.stdout) == ("  try: accelctl probe --help", "")


def test_nothing_is_imported_for_a_file_that_is_not_there(tmp_path: Path) -> None:
    env = {"ACCELCTL_NO_CONFIG": None, "XDG_CONFIG_HOME": str(tmp_path)}
    modules = loaded_modules("explain", "asleep", env=env, cwd=tmp_path)
    assert modules & {"tomllib", "tomli", "accelctl.model.configtext"} == set()
    assert "accelctl.hal.configfile" in modules


def test_the_tests_read_nobody_s_configuration(tmp_path: Path) -> None:
    (tmp_path / "accelctl").mkdir()
    (tmp_path / "accelctl" / "config.toml").write_text("not toml", encoding="utf-8")
    assert run_cli("explain", "asleep", env={"XDG_CONFIG_HOME": str(tmp_path)}, code=0).stderr == ""


# -- accelctl config --


def test_config_shows_where_each_value_is_from(folder: Path) -> None:
    done = run_in(folder, "config", "probe", env={"ACCELCTL_PROBE_DEVICE": "vendor=amd driver=xe"}, code=0)
    assert f"{folder}/accelctl.toml: absent\n" in done.stdout
    assert f"{folder}/none/accelctl/config.toml: absent\n" in done.stdout
    rows = {line.split()[0]: line.split(None, 1)[1] for line in done.stdout.splitlines() if line.startswith("  --")}
    assert " ".join(rows["--device"].split()) == '["vendor=amd", "driver=xe"] ACCELCTL_PROBE_DEVICE'
    assert rows["--fail-on"].split() == ['"error"', "default"]
    assert rows["--why"].split() == ["-", "default,", "typed", "only"]


def test_config_as_json_has_every_option(folder: Path) -> None:
    document = json.loads(run_in(folder, "config", "--json", env={"ACCELCTL_WATCH_COUNT": "4"}, code=0).stdout)
    assert document["schema"] == "accelctl.config/1"
    assert {(n, o) for n, table in document["commands"].items() for o in table} == {(n, k) for n, k, _ in all_options()}
    assert document["commands"]["watch"]["count"] == {
        "value": 4,
        "origin": "environment",
        "place": "ACCELCTL_WATCH_COUNT",
        "variable": "ACCELCTL_WATCH_COUNT",
    }
    assert document["commands"]["stress"]["disruptive"]["variable"] is None


def test_config_checks_all_commands(folder: Path) -> None:
    done = run_in(folder, "config", env={"ACCELCTL_STRESS_SEED": "one"}, code=2)
    assert done.stderr.startswith("accelctl config: ACCELCTL_STRESS_SEED: 'one' is not a valid int")
    done = run_in(folder, "config", "stres", code=2)
    assert done.stderr.startswith("accelctl config: no such command: stres (did you mean stress?)")


@pytest.mark.parametrize("how", ["switch", "variable"])
def test_no_config_leaves_files_out(layered: Layered, how: str) -> None:
    layered.here.write_text("not toml", encoding="utf-8")
    words, env = (["--no-config"], None) if how == "switch" else ([], "1")
    done = run_in(layered.here.parent, "config", "explain", *words, env={"ACCELCTL_NO_CONFIG": env}, code=0)
    assert "  none: --no-config\n" in done.stdout
    assert done.stderr == ""


# -- the document --

DOCUMENT = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_files_in_the_document_are_taken(layered: Layered) -> None:
    blocks = [one for one in re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL) if "[profile." not in one]
    assert len(blocks) == 2
    seen = set()
    for block in blocks:
        layered.here.write_text(block, encoding="utf-8")
        for command in re.findall(r"^\[(\w+)\]", block, re.MULTILINE):
            layered.params(command)
            seen.add(command)
    assert seen == {"probe", "watch", "stress", "capture"}


def test_the_document_lists_what_is_typed_only() -> None:
    section = DOCUMENT.partition("## Only on the command line")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `")]
    named = {word.replace("--", "") for row in rows for word in re.findall(r"`((?:\w+ )?--[\w-]+)`", row)}
    assert named == settings.DANGEROUS | settings.ASKING


def test_the_variables_in_the_document_do_what_they_say(layered: Layered) -> None:
    for assignment in re.findall(r"^    (ACCELCTL_\w+=(?:\"[^\"]*\"|\S*)) accelctl", DOCUMENT, re.MULTILINE):
        name, _, value = assignment.partition("=")
        layered.patch.setenv(name, value.strip('"'))
    found = layered.params("probe")
    assert (found["fail_on"], found["device"], found["as_json"]) == ("warn", ["vendor=amd", "driver=xe"], False)
    assert layered.params("stress")["seed"] == 7


def test_the_lines_in_the_document_are_what_is_said(layered: Layered) -> None:
    """The mistakes it shows, made for real; the paths differ."""
    texts = {"fail_on": "[probe]\nfail_on = 1", "json:": "[probe]\njson = 'yes'", "line 2": "[probe]\njson = maybe"}
    lines = [line.strip() for line in DOCUMENT.splitlines() if line.startswith("    accelctl probe: /home/ada")]
    for word, text in texts.items():
        layered.here.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError) as caught:
            layered.params("probe")
        said = caught.value.message.replace(str(layered.here), "/home/ada/bench/accelctl.toml")
        assert [line for line in lines if word in line] == [f"accelctl probe: {said}"]
