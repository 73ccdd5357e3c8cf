"""Completion scripts and man pages: current, accepted by their programs, and offering the right words."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from accelctl import cli
from tests.helpers import ROOT, run_cli
from tools import completions, generate, tree

FOLDER = ROOT / "completions"


def need(program: str) -> str:
    return shutil.which(program) or pytest.skip(f"{program} is not installed (apt install {program})")


def test_committed_files_are_current() -> None:
    assert generate.stale() == [], "run: make generate"


def test_stale_and_left_over_files_are_noticed(tmp_path: Path) -> None:
    assert generate.write(tmp_path) == sorted(generate.outputs())
    assert generate.stale(tmp_path) == []
    (tmp_path / "docs/man/accelctl-gone.1").write_text("", encoding="utf-8")
    (tmp_path / "completions/_accelctl").write_text("", encoding="utf-8")
    assert generate.stale(tmp_path) == ["completions/_accelctl", "docs/man/accelctl-gone.1"]
    generate.write(tmp_path)
    assert generate.stale(tmp_path) == []


def test_one_man_page_per_command() -> None:
    pages = {page.name for page in (ROOT / "docs/man").glob("*.1")}
    assert pages >= {"accelctl.1", *(f"accelctl-{name}.1" for name in cli.COMMANDS)}


@pytest.mark.parametrize("shell", completions.SHELLS)
def test_command_prints_the_committed_file(shell: str) -> None:
    names = {"bash": "accelctl.bash", "zsh": "_accelctl", "fish": "accelctl.fish"}
    assert run_cli("completion", shell, code=0).stdout == (FOLDER / names[shell]).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("shell", "name"), [("bash", "accelctl.bash"), ("zsh", "_accelctl"), ("fish", "accelctl.fish")]
)
def test_shell_accepts_its_script(shell: str, name: str) -> None:
    done = subprocess.run([need(shell), "-n", FOLDER / name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_option_is_offered() -> None:
    texts = [(FOLDER / name).read_text(encoding="utf-8") for name in ("accelctl.bash", "_accelctl", "accelctl.fish")]
    for command in (c for top in tree.load() for c in top.walk()):
        page = (ROOT / "docs/man" / f"accelctl-{'-'.join(command.path)}.1").read_text(encoding="utf-8")
        for name in (name for option in command.options for name in option.names):
            assert name in texts[0]
            assert name in texts[1]
            assert (f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}") in texts[2]
            assert name.replace("-", "\\-") in page, f"{name} in {command.path}"


def complete_bash(*words: str, cwd: Path = ROOT, folder: Path = FOLDER) -> list[str]:
    """What bash offers for the last word, with the words split as readline does (at spaces and `=`)."""
    split = [part for word in words for part in word.replace("=", " = ").split(" ")]
    quoted = " ".join(f"'{word}'" for word in split)
    script = f"source {folder}/accelctl.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(split) - 1}; _accelctl"
    line = f'{script}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", line], cwd=cwd, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_offers_commands_options_and_values(tmp_path: Path) -> None:
    assert complete_bash("accelctl", "pro") == ["probe"]
    assert set(complete_bash("accelctl", "")) >= {*cli.COMMANDS, "--help", "--version"}
    assert complete_bash("accelctl", "completion", "") == ["bash", "zsh", "fish"]
    assert complete_bash("accelctl", "completion", "f") == ["fish"]
    assert complete_bash("accelctl", "completion", "--he") == ["--help"]
    assert complete_bash("accelctl", "--color", "n") == ["never"]
    assert complete_bash("accelctl", "completion", "--color=a") == ["auto", "always"]
    assert complete_bash("accelctl", "--color=") == ["auto", "always", "never"]
    assert "--json" in complete_bash("accelctl", "probe", "--")


def test_bash_offers_files_where_files_are_meant(tmp_path: Path) -> None:
    (tmp_path / "machine.tar").touch()
    assert complete_bash("accelctl", "probe", "--root", "mach", cwd=tmp_path) == ["machine.tar"]
    assert complete_bash("accelctl", "probe", "--root=mach", cwd=tmp_path) == ["machine.tar"]
    assert complete_bash("accelctl", "completion", "mach", cwd=tmp_path) == []


def offers_fish(line: str, folder: Path = FOLDER) -> list[str]:
    script = f"source {folder}/accelctl.fish; complete -C '{line}'"
    done = subprocess.run([need("fish"), "--no-config", "-c", script], capture_output=True, text=True, check=True)
    return [offer.split("\t")[0] for offer in done.stdout.splitlines()]


def test_fish_offers_commands_options_and_values() -> None:
    offers = offers_fish
    assert offers("accelctl pro") == ["probe"]
    assert set(offers("accelctl ")) == {*cli.COMMANDS, "help"}
    assert set(offers("accelctl completion ")) == {"bash", "zsh", "fish"}
    assert set(offers("accelctl completion --color ")) == set(cli.COLOR_WORDS)
    assert "--json" in offers("accelctl probe --j")


def offers_zsh(line: str, folder: Path = FOLDER) -> str:
    """The real completion system, in a zsh on a pseudo-terminal that lists its matches when TAB is pressed."""
    done = subprocess.run(
        [need("zsh"), "-f", "-c", ZSH_CAPTURE, "zsh", str(folder), line],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.fixture
def with_nodes(tmp_path: Path) -> Path:
    """The scripts, with /dev/ turned into a folder that holds nodes."""
    for name in ("dri/renderD128", "dri/renderD129", "dri/card0", "dri/by-path", "accel/accel0", "kfd"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("accelctl.bash", "_accelctl", "accelctl.fish"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(re.sub(r"/dev/(?=dri|accel)", f"{tmp_path}/", text), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("shell", completions.SHELLS)
def test_device_nodes_are_offered(shell: str, with_nodes: Path) -> None:
    if shell == "bash":
        assert set(complete_bash("accelctl", "probe", "--device", "", folder=with_nodes)) == NODES
        assert complete_bash("accelctl", "stress", "--peer", "card", folder=with_nodes) == ["card0"]
    elif shell == "fish":
        assert set(offers_fish("accelctl probe --device ", with_nodes)) == NODES
    else:
        shown = offers_zsh("accelctl probe --device ", with_nodes)
        assert set(re.findall(r"(?:renderD|card|accel)\d+", shown)) == NODES
        assert "by-path" not in shown


NODES = {"renderD128", "renderD129", "card0", "accel0"}


def test_without_nodes_nothing_is_offered(with_nodes: Path) -> None:
    for folder in ("dri", "accel"):
        shutil.rmtree(with_nodes / folder)
    assert complete_bash("accelctl", "probe", "--device", "", folder=with_nodes) == []
    assert offers_fish("accelctl probe --device ", with_nodes) == []


def test_zsh_offers_commands_options_and_values() -> None:
    offers = offers_zsh
    assert "probe" in offers("accelctl ")
    assert all(shell in offers("accelctl completion ") for shell in completions.SHELLS)
    assert "--json" in offers("accelctl probe --")
    assert "never" in offers("accelctl completion --color=")


ZSH_CAPTURE = r"""
zmodload zsh/zpty
zpty z zsh -f -i
{
zpty -w z "PS1= PS2= RPS1=; unsetopt zle_bracketed_paste 2>/dev/null; TERM=dumb; LISTMAX=9999
autoload -Uz compinit; compinit -D -u; source $1/_accelctl
zstyle ':completion:*' list-colors ''
complist() { print -r -- START; }
bindkey '^I' complete-word; setopt auto_list list_ambiguous no_beep; print READY"
while zpty -r z line; do [[ $line == *READY* && $line != *print* ]] && break; done
zpty -w -n z "$2"$'\t'
integer silent=0 lines=0
while (( silent++ < (lines > 3 ? 10 : 100) )); do
    if zpty -rt z line; then print -r -- "$line"; silent=0; (( lines++ )); else sleep 0.1; fi
done
} always { zpty -d z }
"""


@pytest.mark.parametrize("page", sorted(p.name for p in (ROOT / "docs/man").glob("*.1")))
def test_man_page_has_no_roff_warnings(page: str) -> None:
    done = subprocess.run(
        [need("groff"), "-man", "-Tutf8", "-ww", "-z", ROOT / "docs/man" / page],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
