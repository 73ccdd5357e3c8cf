"""Two versions compared: results decide, a version without an answer is worse, speed counts where bench says so."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accelctl.abi import compute, shelf
from accelctl.accept.plugins import canary as module
from accelctl.accept.plugins import scaffold, store
from accelctl.accept.plugins.canary import canary
from accelctl.commands import smoke as command
from accelctl.errors import AbiError, UsageError
from accelctl.exits import ExitCode
from accelctl.model.pluginreport import Canary
from accelctl.render import smoke as render
from accelctl.smoke import run
from accelctl.smoke.alone import Alone
from tests.helpers import run_cli


def case(identity: str, result: str, detail: str = "") -> dict[str, str]:
    return {"id": identity, "result": result, "detail": detail}


def document(*cases: dict[str, str], result: str = "passed (simulated)") -> str:
    counts = {word: sum(one["result"] == word for one in cases) for word in ("pass", "fail", "skip")}
    return json.dumps({"result": result, "simulated": True, "counts": counts, "cases": list(cases)})


GOOD = document(case("relu/a", "pass"), case("relu/b", "pass"), case("add/a", "skip"), case("add/b", "fail"))

Answers = dict[str, tuple[int, str, str]]


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compare what smoke answered for 1.0, which is in use, and for 1.1."""
    base = tmp_path / "accelctl/backends/zork"
    for version in ("1.0", "1.1"):
        package = base / version
        (package / "zork_chip").mkdir(parents=True)
        (package / f"zork_chip-{version}.dist-info").mkdir()
        (package / f"zork_chip-{version}.dist-info/entry_points.txt").write_text(
            "[accelctl.backends]\nzork = zork_chip\n"
        )
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(store, "loaded", lambda name, version: None)
    store.promote("zork", "1.0")

    def compare(answers: Answers, bench: bool = False) -> Canary:
        asked: list[tuple[str, str]] = []

        def run(name: str, version: str, *words: str) -> tuple[int, str, str]:
            asked.append((version, words[0]))
            return answers[version] if words[0] == "smoke" else (0, "", "")

        monkeypatch.setattr(module, "_run", run)
        found = canary("zork", "1.1", bench=bench)
        compare.asked = asked  # type: ignore[attr-defined]
        return found

    return compare


def test_the_same_results_are_no_worse(compared: Any) -> None:
    found = compared({"1.0": (1, GOOD, ""), "1.1": (1, GOOD, "")})
    assert (found.worse, found.slower, found.exit_code, found.simulated) == ((), (), ExitCode.OK, True)
    assert (found.base.version, found.new.version, found.new.passed, found.new.failed) == ("1.0", "1.1", 2, 1)
    assert compared.asked == [("1.0", "smoke"), ("1.1", "smoke")]


@pytest.mark.parametrize(
    ("new", "line"),
    [
        (document(case("relu/a", "fail", "got 0,\nright 1"), case("relu/b", "pass"), case("add/a", "skip"),
                  case("add/b", "fail")),
         "relu/a: fails (got 0, right 1)"),
        (document(case("relu/a", "skip"), case("relu/b", "pass"), case("add/a", "skip"), case("add/b", "fail")),
         "relu/a: is not supported any more"),
        (document(case("relu/a", "pass"), case("relu/b", "pass"), case("add/a", "skip")), "add/b: was not run"),
        (document(*json.loads(GOOD)["cases"], case("order/x", "fail", "changed")), "order/x: fails (changed)"),
    ],
)  # fmt: skip
def test_a_worse_result_is_one_line(new: str, line: str, compared: Any) -> None:
    found = compared({"1.0": (1, GOOD, ""), "1.1": (1, new, "")}, bench=True)
    assert found.worse == (line,)
    assert found.exit_code == ExitCode.FINDINGS
    assert ("1.1", "bench") not in compared.asked  # how fast a wrong answer comes is no question


def test_what_the_old_one_fails_too_is_not_worse_and_better_is_not_either(compared: Any) -> None:
    better = document(case("relu/a", "pass"), case("relu/b", "pass"), case("add/a", "pass"), case("add/b", "pass"))
    assert compared({"1.0": (1, GOOD, ""), "1.1": (0, better, "")}).worse == ()
    assert compared({"1.0": (0, better, ""), "1.1": (7, better, "")}).worse == ("exit status 7: passed (simulated)",)


@pytest.mark.parametrize("text", ["", "garbage", "[]", "3"])
def test_a_version_without_an_answer_is_worse(text: str, compared: Any) -> None:
    found = compared({"1.0": (0, GOOD, ""), "1.1": (4, text, "accelctl smoke: refused\n  try: something\n")})
    assert found.worse == ("1.1 gave no answer: accelctl smoke: refused",)
    assert found.new.verdict == "no answer"


def test_bench_is_asked_where_results_are_no_worse(compared: Any) -> None:
    found = compared({"1.0": (0, GOOD, ""), "1.1": (0, GOOD, "")}, bench=True)
    assert compared.asked[2:] == [("1.0", "bench"), ("1.1", "bench")]
    assert (found.new.bench, found.slower) == ((), ())  # it had no answer here, which is nobody's fault


def test_what_cannot_be_compared(compared: Any) -> None:
    with pytest.raises(UsageError, match="is the version in use"):
        canary("zork", "1.0")
    with pytest.raises(UsageError, match="not on the shelf"):
        canary("zork", "2.0")
    with pytest.raises(UsageError, match="no version of it is on the shelf"):
        canary("zonk", "2.0")


def test_without_a_version_in_use_the_new_one_stands_alone(compared: Any, tmp_path: Path) -> None:
    (tmp_path / "accelctl/backends/zork" / shelf.POINTER).unlink()
    found = compared({"1.1": (1, GOOD, "")})
    assert found.base is None
    assert found.worse == ("add/b: fails ()",)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({}, ("zork:0", 0, True)),
        ({"op": ["relu"]}, ("zork:0", 0, False)),
        ({"dtype": ["fp32"]}, ("zork:0", 0, False)),
        ({"case": "relu/*"}, ("zork:0", 0, False)),
        ({"model": False}, ("zork:0", 0, False)),
        ({"target": "unix:/tmp/x"}, None),  # whatever version that service has
    ],
)
def test_which_smoke_says_something_of_the_version_in_use(
    words: dict[str, Any], told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    report = SimpleNamespace(device="zork:0", exit_code=0)
    monkeypatch.setattr(run, "carry_out", lambda wanted, tick: report)
    monkeypatch.setattr(render, "show", lambda *_, **__: None)

    def after_smoke(device: str, code: int, *, whole: bool) -> str:
        heard.append((device, code, whole))
        return ""

    monkeypatch.setattr(store, "after_smoke", after_smoke)
    assert command.smoke(device=["zork:0"], **words) == 0
    assert heard == ([told] if told else [])


@pytest.mark.parametrize("target", ["", "unix:/tmp/x"])
def test_a_smoke_that_ends_early_counts_as_well(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    def fails(wanted: Any, tick: Any) -> None:
        raise AbiError("refused")

    def after(filters: tuple[str, ...], code: int) -> str:
        heard.append((filters, code))
        return ""

    monkeypatch.setattr(run, "carry_out", fails)
    monkeypatch.setattr(store, "after_no_smoke", after)
    with pytest.raises(AbiError, match="refused"):
        command.smoke(device=["zork:0"], target=target)
    assert heard == ([] if target else [(("zork:0",), ExitCode.ABI)])


def test_whatever_a_chip_raises_when_it_is_opened_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compute.named("sim:0")

    def fails(*_: Any) -> None:
        raise RuntimeError("no firmware")

    monkeypatch.setattr(type(found.chip.memory), "open", fails)
    with pytest.raises(AbiError, match="chip sim: opened without the service, it failed: RuntimeError: no firmware"):
        Alone(found)


def test_a_promoted_version_that_fails_its_first_smoke_is_told_with_the_way_back(tmp_path: Path) -> None:
    """The whole way, by commands."""
    env = {"XDG_DATA_HOME": str(tmp_path / "data"), "ACCELCTL_PLUGINS": None}
    folder, _ = scaffold.new("zork", str(tmp_path))
    run_cli("backends", "add", folder, env=env, code=0)
    run_cli("backends", "promote", "zork", "0.1.0", env=env, code=0)
    for file, old, new in (
        ("pyproject.toml", "0.1.0", "0.2.0"),
        ("accelctl_zork/compute.py", "np.where(x < x.dtype.type(0)", "np.where(x < x.dtype.type(1)"),
    ):
        text = (Path(folder) / file).read_text()
        assert old in text
        (Path(folder) / file).write_text(text.replace(old, new))
    run_cli("backends", "add", folder, env=env, code=0)
    run_cli("backends", "promote", "zork", "0.2.0", env=env, code=0)
    smoke = ("smoke", "--device", "zork:0", "--op", "relu", "--dtype", "fp32", "--json")
    failed = run_cli(*smoke, env=env, code=1)
    assert "fails its first smoke; back to 0.1.0: accelctl backends rollback zork" in failed.stderr
    assert json.loads(failed.stdout)["result"] == "failed"
    assert "its first smoke FAILED" in run_cli("backends", "versions", "zork", env=env, code=0).stdout
    run_cli("backends", "rollback", "zork", env=env, code=0)
    assert run_cli(*smoke, env=env, code=0).stderr == ""
