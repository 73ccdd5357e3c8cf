"""How `accelctl smoke` ends when something else ends it: signals, a service that dies, requests that cannot be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.errors import AccelError
from accelctl.hal import ownpython
from accelctl.smoke.ownservice import LONGEST, OwnService, Said, last_words
from accelctl.smoke.run import Request, carry_out
from tests.helpers import ROOT, environment, run_cli

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Everything temporary of a run lies in here."""
    made = tmp_path_factory.mktemp("r")
    made.chmod(0o700)
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(made))
    return made


def left(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir() or path.name != "accelctl"]


def until(what: Callable[[], Any]) -> Any:
    """What it gives as soon as that is something."""
    end = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)
    return found


class Running:
    """A run on the simulated chip, in the middle of its cases."""

    def __init__(self, tmp_path: Path, *options: str) -> None:
        trace = tmp_path / "trace"
        words = ["smoke", *(options or ("--device", "sim:0")), "--json", "--trace", str(trace)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "accelctl", *words],
            env=environment({"OPENBLAS_NUM_THREADS": "1"}),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # as the foreground job of a terminal has a group of its own
        )
        self.pid = self.process.pid
        until(lambda: trace.exists() and trace.read_text(encoding="utf-8").count(f'"pid": {self.pid}') > 20)

    def service(self) -> int:
        """Pid of its own service."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    def ended(self) -> tuple[int, dict[str, Any], str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, json.loads(out) if out else {}, err


@contextmanager
def running(tmp_path: Path, *options: str) -> Iterator[Running]:
    made = Running(tmp_path, *options)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_a_report_and_leaves_nothing(tmp_path: Path, folder: Path, number: int) -> None:
    """As a terminal sends it: to the whole group."""
    with running(tmp_path) as run:
        os.killpg(run.pid, number)
        code, report, said = run.ended()
    assert (code, said) == (128 + number, "")
    assert report["interrupted"] is True
    assert report["result"] == "inconclusive"
    assert {case["result"] for case in report["cases"]} == {"pass"}
    assert left(folder) == []


def test_beside_another_service_ctrl_c_says_so_too(tmp_path: Path) -> None:
    with OwnService("sim:0") as service, running(tmp_path, "--target", service.address) as run:
        os.killpg(run.pid, signal.SIGINT)
        code, report, _ = run.ended()
        assert service.alive()
    assert (code, report["interrupted"]) == (130, True)


def test_a_killed_run_leaves_nothing(tmp_path: Path, folder: Path) -> None:
    with running(tmp_path) as run:
        service = run.service()
        assert left(folder) != []
        run.process.kill()
        until(lambda: not os.path.exists(f"/proc/{service}"))
    assert left(folder) == []


@pytest.mark.parametrize("own", [True, False])
def test_a_service_that_dies_takes_no_report_along(tmp_path: Path, folder: Path, own: bool) -> None:
    with OwnService("sim:0") as other:
        options = () if own else ("--target", other.address.removeprefix("unix:"))
        with running(tmp_path, *options) as run:
            os.kill(run.service() if own else other.pid, signal.SIGKILL)
            code, report, said = run.ended()
    assert (code, said) == (7, "")
    assert report["result"] == "failed"
    assert "no service answers" in report["gone"]
    assert report["counts"]["pass"] >= 20
    assert report["counts"]["fail"] <= 2
    assert left(folder) == []


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--target", "nonsense"), 2, "an address is unix:/path"),
        (("--target", "unix:/nonexistent/s"), 3, "no service answers"),
        (("--target", "/nonexistent/s"), 3, "no service answers at unix:/nonexistent/s"),
        (("--seed", "-1"), 2, "--seed -1"),
        (("--device", "sim:0", "--trace", "/nonexistent/t"), 2, "/nonexistent/t: cannot be written (no such file"),
        (("--device", "sim:9", "--junit", "/nonexistent/x.xml"), 2, "/nonexistent/x.xml: cannot be written"),
    ],
)
def test_what_cannot_be_is_one_line(options: tuple[str, ...], code: int, says: str) -> None:
    done = run_cli("smoke", *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unclean_end_of_the_service_is_a_failure_and_not_the_end_of_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close = OwnService.close

    def unclean(self: OwnService) -> None:
        self._child.terminate()
        self._child.wait()
        self._child.returncode = 5
        close(self)

    monkeypatch.setattr(OwnService, "close", unclean)
    report = carry_out(Request(device=("sim:0",), cases="relu/fp32/ops-08-6"))
    assert [(row.id, row.result) for row in report.rows][1:] == [("service/end", "fail")]
    assert report.rows[1].detail == "the service ended with status 5"


def test_an_own_service_that_dies_at_once_is_no_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead(OwnService):
        def __init__(self, device: str, options: tuple[str, ...] = ()) -> None:
            super().__init__(device, options)
            self._child.kill()
            self._child.wait()

    monkeypatch.setattr("accelctl.smoke.run.OwnService", Dead)
    with pytest.raises(AccelError, match="no service answers") as caught:
        carry_out(Request(device=("sim:0",), cases="relu/fp32/ops-08-6"))
    assert caught.value.exit_code == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", Said()),
        ("accelctl: warning: x\naccelctl serve: it is broken\n  try: mend it\n", Said("it is broken", "mend it")),
        ("accelctl serve: it is broken\nabort\n", Said("it is broken")),
        ("a\nb\nLLVM ERROR: no such\n  target\nabort\n", Said("LLVM ERROR: no such target abort")),
    ],
)
def test_the_last_words_of_a_service(text: str, said: Said) -> None:
    assert last_words(text) == said


def test_a_long_log_is_one_short_line_with_both_ends() -> None:
    why = last_words("accelctl serve: begin " + "x " * 1000 + "end\n").why
    assert len(why) <= LONGEST
    assert why.startswith("begin x x")
    assert why.endswith("x end")


def stands_in(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Another program in the place of a service of our own."""
    monkeypatch.setattr(ownpython, "command", lambda module, words: [sys.executable, "-c", code])


DIES = [
    ("sys.exit('accelctl serve: opencl:0: its kernels cannot be built: bad CPU')", 1, 7, "built: bad CPU"),
    (
        "print('accelctl serve: /x: no space\\n  try: df', file=sys.stderr); sys.exit(7)",
        7,
        7,
        "not start: /x: no space",
    ),
    ("print('accelctl serve: not yours', file=sys.stderr); sys.exit(5)", 5, 5, "not yours"),
    ("print('accelctl serve: gone', file=sys.stderr); sys.exit(3)", 3, 3, "gone"),
    ("sys.exit(4)", 4, 4, "ended with status 4"),
    ("print('LLVM ERROR: x', file=sys.stderr, flush=True); os.abort()", -6, 7, "LLVM ERROR: x"),
    ("os.abort()", -6, 7, "was killed by SIGABRT"),
]


@pytest.mark.parametrize(("code", "status", "becomes", "says"), DIES)
def test_what_a_service_that_does_not_start_says_reaches_the_user(
    code: str, status: int, becomes: int, says: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    stands_in(monkeypatch, f"import os, sys\n{code}")
    with pytest.raises(AccelError) as caught:
        carry_out(Request(device=("sim:0",), cases="relu/fp32/ops-08-6"))
    assert caught.value.message.startswith("the service did not start: ")
    assert says in caught.value.message
    assert caught.value.exit_code == becomes
    assert left(folder) == []


def test_how_a_service_died_stands_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def died(self: OwnService) -> None:
        self._child.send_signal(signal.SIGSEGV)
        self._child.wait()
        os.write(self._log.fileno(), b"LLVM ERROR: out of registers\n")
        close(self)

    close = OwnService.close
    monkeypatch.setattr(OwnService, "close", died)
    report = carry_out(Request(device=("sim:0",), cases="relu/fp32/ops-08-6"))
    assert report.rows[1].detail == "the service was killed by SIGSEGV: LLVM ERROR: out of registers"


def test_another_device_than_the_service_has_is_refused() -> None:
    with OwnService("sim:0") as service:
        done = run_cli("smoke", "--device", "opencl:0", "--target", service.address)
    assert (done.returncode, done.stdout) == (3, "")
    assert "has sim:0, not opencl:0" in done.stderr


def test_the_bar_begins_with_the_run_and_not_before_it_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BAR], env=environment({"TERM": "xterm", "FORCE_COLOR": "1"}),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    silent, _, after = done.stderr.partition("refused")
    assert silent == "before\n"
    assert "relu/fp32" in after


BAR = """
import sys
from accelctl.render import term
from accelctl.render.progress import progress
term.configure("always", False)
with progress(enabled=True) as tick:
    print("before", file=sys.stderr, flush=True)
with progress(enabled=True) as tick:
    print("refused", file=sys.stderr, flush=True)
    tick("relu/fp32", 1, 2)
"""
