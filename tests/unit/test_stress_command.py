"""`accelctl stress` as a program: exit status, one line for what is wrong, and what goes where."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.helpers import loaded_modules, run_cli

SIM = ("stress", "--device", "sim:0", "--lifecycle", "vram", "--cycles", "300")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--cycles", "x"], "--cycles 'x': not a number"),
        (["--cycles", "0"], "--cycles 0: at least one"),
        (["--duration", "9q"], "--duration '9q': not a time"),
        (["--bytes-limit", "-1"], "--bytes-limit '-1': not a size"),
        (["--bytes-limit", "1k"], "--bytes-limit 1024: must be between"),
        (["--sizes", "odd"], "--sizes odd: not one of page, small, mixed, large"),
        (["--order", "odd"], "--order odd: not one of"),
        (["--touch", "odd"], "--touch odd: not one of"),
        (["--books", "odd"], "--books odd: not one of none, near, all"),
        (["--va", "odd"], "--va odd: not one of recycle, bump"),
        (["--hold", "0"], "--hold 0: must be between 1 and"),
        (["--workers", "999"], "--workers 999: must be between 1 and"),
        (["--fault", "object"], "not a fault: 'object'"),
        (["--fault", "object:1=EODD@before"], "no such errno: EODD"),
        (["--fault", "odd:1=ENOMEM@before"], "no such stage; the stages are"),
        (["--limit", "odd=1"], "odd"),
        (["--sim", "odd"], "not KEY=VALUE"),
        (["--sim", "odd=1"], "odd"),
        (["--replay", "odd"], "--replay"),
        (["--lifecycle", "odd", "--device", "sim:0"], "none of the lifecycles named"),
        (["--kill"], "lives in the worker"),
        (["--device", "odd"], "--device 'odd'"),
        (["--peer", "odd"], "accelctl stress: --peer 'odd'"),
        (["--duration", "0"], "--duration 0: no time at all"),
        (["--duration", "0ms"], "--duration 0ms: no time at all"),
        (["--limit", "nofile=3"], "--limit nofile=3: too low for the worker itself, which needs "),
        (["--limit", "as=1M"], "--limit as=+1MiB: so much more than that"),
    ],
)
def test_bad_input_is_one_line(words: list[str], text: str) -> None:
    device = [] if "--device" in words else ["--device", "sim:0"]
    lifecycle = [] if "--lifecycle" in words else ["--lifecycle", "vram"]
    done = run_cli("stress", *device, *lifecycle, *words, code=2)
    assert done.stdout == ""
    assert text in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert "Traceback" not in done.stderr


def test_a_run_on_the_simulated_chip_says_so_everywhere(tmp_path: Path) -> None:
    junit, trace = tmp_path / "junit.xml", tmp_path / "trace.json"
    done = run_cli(*SIM, "--json", "--junit", str(junit), "--trace", str(trace), code=0)
    document = json.loads(done.stdout)
    assert (document["simulated"], document["result"], document["tier"]) == (True, "pass", "simulated")
    suite = ElementTree.parse(junit).getroot()[0]
    assert {p.get("name"): p.get("value") for p in suite.iter("property")}["simulated"] == "true"
    names = {event["name"] for event in json.loads(trace.read_text(encoding="utf-8"))}
    assert {"open", "mmap", "munmap"} <= names
    assert run_cli(*SIM, code=0).stdout.rstrip().endswith("passed (simulated)")


def test_a_time_that_ends_before_the_cycles_is_said() -> None:
    words = ["stress", "--device", "sim:0", "--lifecycle", "vram", "--duration", "1", "--cycles"]
    assert "the time ended before the 900,000,000 cycles of --cycles" in run_cli(*words, "900M", code=0).stdout
    few = json.loads(run_cli(*words, "300", "--json", code=0).stdout)["lifecycles"][0]
    assert (300 <= few["cycles"] <= 400, few["notes"]) == (True, [])


def test_a_limit_above_what_the_worker_needs_is_taken() -> None:
    run_cli(*SIM, "--limit", "nofile=64", "--limit", "as=+1G", code=0)


def test_a_limit_that_is_too_low_is_no_finding_of_a_sweep() -> None:
    done = run_cli("stress", "--device", "sim:0", "--lifecycle", "vram", "--sweep", "--limit", "nofile=5", code=2)
    assert done.stdout == ""
    assert "too low for the worker itself" in done.stderr


def test_a_file_that_cannot_be_written_does_not_cost_the_report(tmp_path: Path) -> None:
    done = run_cli(*SIM, "--junit", str(tmp_path / "none" / "junit.xml"), code=2)
    assert "passed (simulated)" in done.stdout
    assert "cannot be written" in done.stderr


def test_a_leak_is_exit_status_one() -> None:
    done = run_cli(*SIM, "--cycles", "2000", "--sim", "leak=object:100", "--no-ledger", code=1)
    assert "FAILED (simulated)" in done.stdout
    assert "leak: 1 handle every 100 cycles, stage object" in done.stdout


def test_address_space_that_is_never_reused_is_named_with_a_true_forecast() -> None:
    """MEM-03, and within five per cent of where it really ends."""
    words = [*SIM, "--va", "bump", "--va-limit", "64MiB", "--sizes", "small", "--json"]
    early = json.loads(run_cli(*words, "--cycles", "1000", code=1).stdout)["lifecycles"][0]
    (judgement,) = (j for j in early["verdict"]["judgements"] if j["counter"] == "address space")
    assert "address space not reused after free" in judgement["why"]
    late = json.loads(run_cli(*words, "--cycles", "20000", code=1).stdout)["lifecycles"][0]
    real = next(stage["acquired"] for stage in late["stages"] if stage["name"] == "va")
    assert judgement["at_stake"]["cycles"] == pytest.approx(real, rel=0.05)


def test_sweep_and_list() -> None:
    swept = run_cli("stress", "--device", "sim:0", "--lifecycle", "vram", "--sweep", code=0).stdout
    assert "reply lost" in swept
    listed = run_cli("stress", "--list", "--json", code=0).stdout
    sim = next(device for device in json.loads(listed)["devices"] if device["device"] == "sim:0")
    assert [one["name"] for one in sim["lifecycles"]] == ["vram", "export", "queue"]


def test_without_fault_injection_the_kernel_sweep_says_so() -> None:
    done = run_cli("stress", "--device", "sim:0", "--sweep-kernel")
    assert done.returncode in (2, 3)
    assert "no kernel sweep: " in done.stderr


def test_nothing_heavy_is_loaded() -> None:
    modules = loaded_modules("stress", "--device", "sim:0", "--lifecycle", "vram", "--cycles", "100", "--json")
    heavy = {"textual", "grpc", "numpy", "ctypes", "_ctypes", "pydantic", "asyncio", "rich", "scipy"}
    assert {name.partition(".")[0] for name in modules} & heavy == set()
