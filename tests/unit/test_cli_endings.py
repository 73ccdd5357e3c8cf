"""How a command ends: errors in one line, closed pipes, full disks, signals, odd terminals and encodings.

A made-up command that does what its first argument says stands in for real ones; it lies in a folder on the path of
the child process, and a small start script adds its row to the table.
"""

import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from accelctl.errors import extra
from tests.helpers import ROOT, environment, run_cli

COMMAND = '''
import sys, time
from accelctl import errors
from accelctl.render import notes, term


def act(what: str, count: int = 1) -> int:
    """Do what the argument says."""
    if what == "accel":
        raise errors.NoDeviceError("no such device: pci:1", "accelctl probe")
    if what == "bug":
        raise KeyError("gone\\nmissing")
    if what == "package":
        import not_installed_package
    if what == "extra":
        raise ModuleNotFoundError("No module named 'grpc'", name="grpc")
    if what == "part":
        import accelctl.no_such_part
    if what == "readonly":
        raise PermissionError(13, "Permission denied", "/out/report.xml")
    if what == "misuse":
        errors.AccelError("x", kind="no_such_kind")
    if what == "absent":
        open("/nonexistent/file")
    if what == "inner-pipe":
        raise BrokenPipeError(32, "Broken pipe")
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "wait":
        term.emit("waiting")
        sys.stdout.flush()
        time.sleep(60)
    if what == "exit":
        sys.exit(5)
    if what == "exit-text":
        sys.exit("gave up")
    if what == "code":
        return errors.ExitCode.SKIPPED
    if what == "memory":
        raise MemoryError
    if what == "deep":
        raise RecursionError("maximum recursion depth exceeded")  # not for real: CPython 3.13.0 may never stop
    if what == "letters":
        term.emit("K\\u00f6ln \\u2713 \\udcff" + term.current().glyphs.degree)
        notes.warn("K\\u00f6ln \\u2713")
    for _ in range(count if what == "lines" else 0):
        term.emit("x" * 100)
    return 0
'''

START = """
import sys
from accelctl import cli
cli.COMMANDS["act"] = cli.Row("acting_command", "act", "act", "Test")
sys.exit(cli.main())
"""


class Act:
    """Runs the made-up command."""

    def __init__(self, folder: Path) -> None:
        (folder / "acting_command.py").write_text(textwrap.dedent(COMMAND), encoding="utf-8")
        self.env = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        self.argv = [sys.executable, "-c", START, "act"]

    def __call__(self, *args: str, env: Mapping[str, str | None] | None = None) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [*self.argv, *args],
            env=self.environment(env),
            capture_output=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )

    def environment(self, env: Mapping[str, str | None] | None = None) -> dict[str, str]:
        return environment({**self.env, **(env or {})})

    def shell(self, line: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """Run one bash line in which `act` is the command; pipefail, so that its own exit status counts."""
        command = f'act() {{ {" ".join(map(_quote, self.argv))} "$@"; }}; set -o pipefail; {line}'
        return subprocess.run(
            ["bash", "-c", command], env=self.environment(env), capture_output=True, text=True, check=False, timeout=60
        )


def _quote(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


@pytest.fixture(scope="module")
def act(tmp_path_factory: pytest.TempPathFactory) -> Act:
    return Act(tmp_path_factory.mktemp("act"))


@pytest.mark.parametrize(
    ("what", "code", "lines"),
    [
        ("accel", 3, ["accelctl act: no such device: pci:1", "  try: accelctl probe"]),
        (
            "extra",
            3,
            ["accelctl act: grpc is not installed; it comes with an extra", f"  try: {extra('umd')}"],
        ),
        ("readonly", 5, ["accelctl act: /out/report.xml: permission denied"]),
        ("absent", 2, ["accelctl act: /nonexistent/file: no such file or directory"]),
        ("exit", 5, []),
        ("exit-text", 7, ["accelctl act: gave up"]),
        ("code", 77, []),
        ("interrupt", 130, []),
        ("none", 0, []),
    ],
)
def test_endings(act: Act, what: str, code: int, lines: list[str]) -> None:
    done = act(what)
    assert (done.stderr.decode().splitlines(), done.returncode) == (lines, code)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("bug", "internal error: KeyError: 'gone\\nmissing' (in accelctl."),
        ("misuse", "internal error: ValueError: unknown error kind 'no_such_kind' (in accelctl.errors, line"),
        ("part", "internal error: ModuleNotFoundError: No module named 'accelctl.no_such_part'"),
        ("memory", "internal error: MemoryError: no message"),
        ("deep", "internal error: RecursionError: maximum recursion depth exceeded"),
        ("inner-pipe", "internal error: BrokenPipeError: [Errno 32] Broken pipe"),
    ],
)
def test_a_bug_is_one_line_and_exit_7(act: Act, what: str, says: str) -> None:
    done = act(what)
    text = done.stderr.decode()
    assert done.returncode == 7
    assert says in text
    assert text.count("\n") == 1
    assert "--debug" in text


@pytest.mark.parametrize("how", ["option", "variable"])
def test_debug_shows_the_traceback(act: Act, how: str) -> None:
    done = act("bug", "--debug") if how == "option" else act("bug", env={"ACCELCTL_DEBUG": "1"})
    text = done.stderr.decode()
    assert text.startswith("Traceback (most recent call last):")
    assert text.splitlines()[-1].startswith("accelctl act: internal error: KeyError")
    assert done.returncode == 7


def test_missing_package_names_interpreter_and_command(act: Act) -> None:
    done = act("package")
    first, second = done.stderr.decode().splitlines()
    assert done.returncode == 3
    assert first == f"accelctl act: the Python package 'not_installed_package' is not installed for {sys.executable}"
    assert second.startswith("  try: make run")


def test_plain_checkout_without_typer() -> None:
    """`python -m accelctl` from a checkout, with an interpreter that has no third-party package at all."""
    argv = [sys.executable, "-S", "-E", "-m", "accelctl"]
    for words, code in ((["--version"], 0), (["--help"], 0), ([], 0), (["completion", "bash"], 3)):
        done = subprocess.run([*argv, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[0].startswith("accelctl completion: the Python package 'typer' is not installed")


def test_too_old_typer_is_named(tmp_path: Path) -> None:
    for name, text in {
        "__init__": "from .main import Typer\n__version__ = '0.7.0'",
        "core": "class TyperCommand: pass\nclass TyperGroup: pass",
        "main": "def get_command(x): pass\nclass Typer: pass",
    }.items():
        (tmp_path / "typer").mkdir(exist_ok=True)
        (tmp_path / "typer" / f"{name}.py").write_text(text, encoding="utf-8")
    done = run_cli("completion", "bash", code=3, env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    assert done.stderr.splitlines()[0] == "accelctl completion: typer 0.7.0 is too old, accelctl needs 0.26 to 0.28"


@pytest.mark.parametrize(
    "line",
    [
        "PYTHONUNBUFFERED=1 act lines --count 5 | head -c 1",
        "act lines --count 5000 | true",
        "act lines --count 1 | true",
        "act lines --count 100000 | head -1",
        "act lines --count 5000 | (exec <&-; sleep 0.2)",
    ],
)
def test_reader_closes_the_pipe(act: Act, line: str) -> None:
    done = act.shell(line)
    assert done.stderr == ""
    assert done.returncode in (0, 141)


@pytest.mark.parametrize("count", ["1", "5000"])
def test_full_disk_is_one_line(act: Act, count: str) -> None:
    done = act.shell(f"act lines --count {count} > /dev/full")
    assert (done.stderr, done.returncode) == ("accelctl act: cannot write output: no space left on device\n", 7)


@pytest.mark.parametrize("words", ["--version", "--help", ""])
def test_full_disk_on_the_fast_paths(words: str) -> None:
    line = f"{sys.executable} -m accelctl {words} > /dev/full"
    done = subprocess.run(
        ["bash", "-c", line], env=environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.returncode) == ("accelctl: cannot write output: no space left on device\n", 7)


@pytest.mark.parametrize(("line", "code"), [("act lines >&-", 0), ("act accel 2>&-", 3), ("act accel 2>/dev/full", 3)])
def test_missing_streams(act: Act, line: str, code: int) -> None:
    done = act.shell(line)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", code)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_signals(act: Act, number: int, code: int) -> None:
    with subprocess.Popen([*act.argv, "wait"], env=act.environment(), stdout=-1, stderr=-1) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"waiting\n"
        child.send_signal(number)
        out, err = child.communicate(timeout=20)
    assert (out, err, child.returncode) == (b"", b"", code)


@pytest.mark.parametrize(
    "env",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LANG": None}],
)
def test_output_without_utf8(act: Act, env: dict[str, str | None]) -> None:
    done = act("letters", env=env)
    assert done.returncode == 0
    assert done.stdout == b"K?ln ? ?\n"
    assert done.stderr == b"accelctl: warning: K?ln ?\n"
    assert run_cli("--help", code=0, env=env).stdout.isascii()
    assert run_cli("completion", "--help", code=0, env=env).stdout.isascii()


def test_output_in_c_locale_is_utf8(act: Act) -> None:
    """The control: Python itself switches to UTF-8 here, so the letters arrive; an undecodable byte becomes `?`."""
    done = act("letters", env={"LC_ALL": "C", "PYTHONUTF8": None, "PYTHONIOENCODING": None})
    assert done.stdout.decode() == "Köln ✓ ?°\n"


@pytest.mark.parametrize(
    ("env", "coloured"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": None}, False),
    ],
)
@pytest.mark.parametrize("words", [["--help"], ["completion", "--help"]])
def test_help_on_a_real_terminal(words: list[str], env: dict[str, str | None], coloured: bool) -> None:
    text = _on_terminal([sys.executable, "-m", "accelctl", *words], environment({**env, "COLUMNS": None}))
    assert "Usage: accelctl" in text
    assert ("\x1b[" in text) is coloured


def _on_terminal(argv: list[str], env: dict[str, str]) -> str:
    """Run with stdout on a pseudo-terminal and return all that was sent to it."""
    leader, follower = pty.openpty()
    with subprocess.Popen(argv, env=env, cwd=ROOT, stdout=follower, stdin=follower, stderr=follower) as child:
        os.close(follower)
        text, deadline = b"", time.monotonic() + 30
        while time.monotonic() < deadline:
            ready, _, _ = select.select([leader], [], [], 1)
            try:
                data = os.read(leader, 65536) if ready else b""
            except OSError:  # EIO: the other side is closed
                break
            text += data
            if not data and child.poll() is not None:
                break
    os.close(leader)
    return text.decode()
