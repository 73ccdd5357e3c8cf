"""The root of the command line: help, version, switches, and what a person sees after a typing error."""

import json
import os
from typing import Any

import pytest

import accelctl
from accelctl import cli
from tests.helpers import run_cli
from tools import tree


def test_version_as_text_and_json() -> None:
    assert run_cli("--version", code=0).stdout == f"accelctl {accelctl.__version__}\n"
    document = json.loads(run_cli("--version", "--json", code=0).stdout)
    assert document == {"schema": "accelctl.version/1", "version": accelctl.__version__}
    assert run_cli("--json", "--version", code=0).stdout == run_cli("--version", "--json").stdout


def test_bare_call_tells_what_to_try_first() -> None:
    done = run_cli(code=0)
    assert "accelctl probe" in done.stdout
    assert "accelctl --help" in done.stdout
    assert len(done.stdout.splitlines()) <= 10
    assert done.stderr == ""


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["--help", "probe"]])
def test_root_help_lists_every_command_in_80_columns(words: list[str]) -> None:
    done = run_cli(*words, code=0)
    for name, row in cli.COMMANDS.items():
        assert f"  {name:<10}  {row.summary}\n" in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert "\x1b" not in done.stdout


def test_examples_come_before_the_list_of_commands() -> None:
    text = cli.root_help()
    assert text.index("Try first") < text.index(cli.COMMANDS["probe"].panel) < text.index("Options:")


@pytest.mark.parametrize("words", [["completion", "--help"], ["completion", "-h"], ["help", "completion"]])
def test_help_of_a_command(words: list[str]) -> None:
    done = run_cli(*words, code=0)
    assert done.stdout.startswith("Usage: accelctl completion [OPTIONS] SHELL\n")
    assert done.stdout.index("Examples:") < done.stdout.index("Arguments:") < done.stdout.index("\nOptions:")
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("name", [" ".join(one.path) for top in tree.load() for one in top.walk()])
def test_every_command_has_help_in_80_columns(name: str) -> None:
    """Examples are exempt: command lines are for copying and are never wrapped."""
    done = run_cli(*name.split(), "--help", code=0)
    examples = done.stdout.partition("Examples:\n")[2].partition("\n\n")[0]
    long = [line for line in done.stdout.splitlines() if len(line) > 80 and line not in examples]
    assert long == []
    assert done.stdout.startswith(f"Usage: accelctl {name} ")
    assert "Examples:" in done.stdout, "a command shows examples first (EXAMPLES in its module)"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prob"], "no such command: prob (did you mean probe?)"),
        (["xyzzy"], "no such command: xyzzy"),
        (["--versoin"], "no such option: --versoin (did you mean --version?)"),
        (["--json"], "no such option: --json"),
        ([""], "no such command:"),
        (["--color", "red"], "--color takes auto, always or never, not 'red'"),
        (["--color"], "--color takes auto, always or never, not ''"),
        (["completion", "zhs"], "Invalid value for 'SHELL': 'zhs' is not one of 'bash', 'zsh', 'fish'."),
        (["completion"], "Missing argument 'SHELL'."),
        (["completion", "bash", "zsh"], "Got unexpected extra argument(s) (zsh)"),
        (["completion", "--hlep"], "No such option: --hlep"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(words: list[str], message: str) -> None:
    done = run_cli(*words, code=2)
    first, *rest = done.stderr.splitlines()
    assert message in first
    assert first.startswith("accelctl")
    assert [line for line in rest if not line.startswith("  try: accelctl")] == []
    assert done.stdout == ""


def test_switches_may_stand_anywhere() -> None:
    plain = run_cli("completion", "bash", code=0).stdout
    for words in (["--ascii", "completion", "bash"], ["completion", "--color=never", "bash", "--debug"]):
        assert run_cli(*words, code=0).stdout == plain


def test_switches_end_at_two_dashes() -> None:
    done = run_cli("completion", "--", "--debug", code=2)
    assert "'--debug' is not one of" in done.stderr


@pytest.mark.parametrize("color", ["always", "never"])
def test_color_switch_reaches_help_in_a_pipe(color: str) -> None:
    for words in (["--help"], ["completion", "--help"]):
        assert ("\x1b[1m" in run_cli(*words, "--color", color, code=0).stdout) is (color == "always")


def test_table_is_honest() -> None:
    """One line of at most 60 characters per command, so that help fits; names that a shell need not quote."""
    for name, row in cli.COMMANDS.items():
        assert name.isidentifier(), name
        assert row.module == f"accelctl.commands.{name}", name
        assert len(row.summary) <= 62, name
        assert not row.summary.endswith("."), name


# -- commands below a command --


def test_the_default_stands_in_where_none_is_named() -> None:
    assert run_cli("config", code=0).stdout == run_cli("config", "show", code=0).stdout
    assert run_cli("config", "probe", code=0).stdout == run_cli("config", "show", "probe", code=0).stdout
    assert run_cli("config", "--json", code=0).stdout == run_cli("config", "show", "--json", code=0).stdout


def test_a_group_lists_what_is_below_it() -> None:
    done = run_cli("config", "--help", code=0)
    assert done.stdout.startswith("Usage: accelctl config [OPTIONS] COMMAND\n")
    assert done.stdout.index("Examples:") < done.stdout.index("Options:") < done.stdout.index("Commands:\n  show ")


def test_commands_of_a_group_share_variables() -> None:
    assert run_cli("config", "show", "probe", env={"ACCELCTL_CONFIG_JSON": "1"}, code=0).stdout.startswith("{")
    done = run_cli("config", "show", env={"ACCELCTL_CONFIG_JSNO": "1"}, code=2)
    assert done.stderr.startswith("accelctl config: ACCELCTL_CONFIG_JSNO: no such option (did you mean ")


# -- no configuration --


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_no_config_counts_for_programs_that_a_command_starts_and_no_longer(
    before: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ACCELCTL_NO_CONFIG", raising=False)
    if before is not None:
        monkeypatch.setenv("ACCELCTL_NO_CONFIG", before)
    seen: list[str | None] = []
    real = cli._flush

    def flush(code: int, state: Any) -> int:
        seen.append(os.environ.get("ACCELCTL_NO_CONFIG"))
        return real(code, state)

    monkeypatch.setattr(cli, "_flush", flush)
    assert cli.main(["--no-config", "explain", "asleep", "--no-config"]) == 0
    assert seen == ["1"]
    assert os.environ.get("ACCELCTL_NO_CONFIG") == before
    capsys.readouterr()
