"""`accelctl serve` and `accelctl smoke` as people run them."""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from accelctl.smoke.ownservice import OwnService
from accelctl.umd.client import Client, wait_until_ready
from tests.helpers import ROOT, run_cli


@contextmanager
def serve(*options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """A service as a child, and what it says when it is ready."""
    command = [sys.executable, "-m", "accelctl", "serve", "--device", "sim:0", "--json", *options]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        lines = []
        while (line := child.stdout.readline()) and not line.startswith("}"):
            lines.append(line)
        said = json.loads("".join(lines) + "}") if line else {}
        yield child, said
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        child.stderr.close()


def test_it_says_where_it_listens_and_ends_on_sigterm(tmp_path: Path) -> None:
    with serve("--listen", f"unix:{tmp_path}/s", "--metrics", "127.0.0.1:0") as (child, said):
        assert said["address"] == f"unix:{tmp_path}/s"
        assert said["simulated"] is True
        with Client(str(said["address"]), deadline_s=20) as client:
            client.session().close()
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(str(said["metrics"]), timeout=10) as answer:
            assert b"umd_sessions_created_total 1.0" in answer.read()
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_closed_terminal_stops_it_in_order(tmp_path: Path) -> None:
    with serve("--listen", f"unix:{tmp_path}/s") as (child, _):
        child.send_signal(signal.SIGHUP)
        assert child.wait(20) == 0
    assert list(tmp_path.iterdir()) == []


def test_with_nohup_it_outlives_the_terminal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with serve("--listen", f"unix:{tmp_path}/s") as (child, said):
            child.send_signal(signal.SIGHUP)
            wait_until_ready(str(said["address"]), 10)
            child.send_signal(signal.SIGTERM)
            assert child.wait(20) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_without_a_standard_input_it_has_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "accelctl", "serve", "--device", "sim:0", "--stop-on-eof"]
    line = shlex.join([*command, "--listen", f"unix:{tmp_path}/s"]) + " <&-"
    done = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--listen", "--metrics"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_that_is_taken_is_one_line(option: str, host: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        try:
            taken.bind((host, 0))
        except OSError:
            pytest.skip(f"{host} is not on this machine")
        taken.listen()
        port = taken.getsockname()[1]
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        other = () if option == "--listen" else ("--listen", f"unix:{tmp_path}/s")
        done = run_cli("serve", "--device", "sim:0", option, where, *other)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == f"accelctl serve: {where} is taken by another process"
    assert len(done.stderr.splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


def test_metrics_on_an_ipv6_address(tmp_path: Path) -> None:
    with serve("--listen", f"unix:{tmp_path}/s", "--metrics", "[::1]:0") as (child, said):
        assert child.stderr is not None
        if not said:
            assert "internal" not in child.stderr.read()
            pytest.skip("::1 is not on this machine")
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        assert str(said["metrics"]).startswith("http://[::1]:")
        with direct.open(str(said["metrics"]), timeout=10) as answer:
            assert answer.read().endswith(b"# EOF\n")


def test_a_full_disk_ends_the_trace_and_not_the_calls(tmp_path: Path) -> None:
    """A limit on the size of files stands in for it: write(2) gives EFBIG, as ENOSPC on a disk that is full."""
    command = [sys.executable, "-m", "accelctl", "serve", "--device", "sim:0", "--stop-on-eof"]
    command += ["--listen", f"unix:{tmp_path}/s", "--trace", f"{tmp_path}/t"]
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe)
    try:
        wait_until_ready(f"unix:{tmp_path}/s", 60, lambda: child.poll() is None)
        with Client(f"unix:{tmp_path}/s", deadline_s=20) as client, client.session() as session:
            x = session.alloc((4,), "fp32")
            limit = (tmp_path / "t").stat().st_size + 10_000
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (limit, limit))
            for _ in range(50):
                fence = session.translate(session.request("relu", [x], [x], submit=True)).fence
            assert session.wait(fence)
            assert fence == 50
        _, said = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 0
    assert said.decode() == f"no more is traced: {tmp_path}/t: cannot be written (file too large)\n"
    assert (tmp_path / "t").stat().st_size == limit


def test_a_second_one_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with serve("--listen", f"unix:{tmp_path}/s") as (child, said):
        assert said
        second = run_cli("serve", "--device", "sim:0", "--listen", f"unix:{tmp_path}/s")
        assert second.returncode == 1
        assert str(child.pid) in second.stderr
        assert second.stderr.count("\n") <= 2
        wait_until_ready(str(said["address"]), 10)


def test_what_a_killed_one_left_is_no_hindrance(tmp_path: Path) -> None:
    with serve("--listen", f"unix:{tmp_path}/s") as (child, _):
        child.kill()
        child.wait()
    assert (tmp_path / "s").exists()
    with serve("--listen", f"unix:{tmp_path}/s") as (_, said):
        wait_until_ready(str(said["address"]), 10)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--device", "sim:0", "--listen", "0.0.0.0:9"), 2, "loopback"),
        (("--device", "sim:9"), 3, "sim:9 is not here"),
        (("--device", "driver=amdgpu"), 2, "named by chip"),
        (("--device", "sim:0", "--metrics", "unix:/x"), 2, "loopback port"),
        (("--device", "sim:0", "--grace", "inf"), 2, "--grace inf: 0 to 3600 seconds"),
        (("--device", "sim:0", "--grace", "nan"), 2, "--grace nan: 0 to 3600 seconds"),
        (("--device", "sim:0", "--grace", "-1"), 2, "--grace -1: 0 to 3600 seconds"),
        (("--device", "sim:0", "--memory", "0"), 2, "--memory 0"),
        (("--device", "sim:0", "--memory", "0.1"), 2, "--memory 0.1"),
        (
            ("--device", "sim:0", "--memory", "1"),
            2,
            "--memory 1: no tensor fits into that, a page of this device is 4 KiB",
        ),
        (("--device", "sim:0", "--memory", "4095"), 2, "--memory 4095: no tensor fits"),
        (("--device", "sim:0", "--listen", "unix:/nonexistent/s"), 2, "/nonexistent: there is no such folder"),
    ],
)
def test_what_cannot_be_is_one_line(options: tuple[str, ...], code: int, says: str) -> None:
    done = run_cli("serve", *options)
    assert done.returncode == code
    assert says in done.stderr
    assert done.stdout == ""


def test_a_service_of_ones_own_dies_with_its_parent() -> None:
    code = (
        "import os, sys\nfrom accelctl.smoke.ownservice import OwnService\n"
        "s = OwnService('sim:0')\nprint(s.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    pid = int(done.stdout)
    end = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")


def test_smoke_on_the_simulated_chip_says_so_everywhere(tmp_path: Path) -> None:
    junit = tmp_path / "j.xml"
    words = ("smoke", "--device", "sim:0", "--op", "relu", "--op", "moe_align", "--junit", str(junit))
    done = run_cli(*words)
    assert done.returncode == 0, done.stderr
    assert "sim:0: passed (simulated)" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    suite = ElementTree.parse(junit).getroot()
    assert len([case for case in suite.iter("testcase") if str(case.get("name")).startswith("relu/")]) > 50
    as_json = json.loads(run_cli(*words[:5], "--json").stdout)
    assert as_json["schema"] == "accelctl.smoke/1"
    assert as_json["simulated"] is True
    assert as_json["result"] == "passed (simulated)"
    assert all(case["result"] == "pass" for case in as_json["cases"])


def test_without_an_accelerator_smoke_says_what_it_looked_for() -> None:
    done = run_cli("smoke")
    if done.returncode == 0:
        pytest.skip("an accelerator is here")
    assert done.returncode == 3
    assert "looked for: OpenCL" in done.stderr
    assert "--device sim:0" in done.stderr
    assert "accelctl smoke --device" not in run_cli("serve").stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--op", "nope"), "no op 'nope'"),
        (("--dtype", "fp64"), "no element type 'fp64'"),
        (("--case", "zzz*"), "no case fits"),
    ],
)
def test_wrong_names_are_one_line_and_start_nothing(options: tuple[str, ...], says: str) -> None:
    done = run_cli("smoke", "--device", "sim:0", *options)
    assert done.returncode == 2
    assert says in done.stderr


def test_smoke_against_a_service_that_runs() -> None:
    with OwnService("sim:0") as service:
        done = run_cli("smoke", "--target", service.address, "--op", "softmax", "--dtype", "fp32")
        assert done.returncode == 0, done.stderr
        assert f"service at {service.address}" in done.stdout
        other = run_cli("smoke", "--target", service.address, "--device", "opencl:0")
        assert other.returncode == 3
        assert "has sim:0, not opencl:0" in other.stderr
    gone = run_cli("smoke", "--target", service.address, "--op", "relu")
    assert gone.returncode == 3
    assert "no service answers" in gone.stderr


def test_the_lists() -> None:
    cases = run_cli("smoke", "--list-cases", "--op", "softmax").stdout.splitlines()
    assert len(cases) > 50
    assert all(line.startswith("softmax/") for line in cases)
    devices = json.loads(run_cli("smoke", "--list", "--json").stdout)
    assert {"sim:0"} <= {row["device"] for row in devices["devices"]}


def test_the_simulated_chip_does_as_it_is_told(tmp_path: Path) -> None:
    with (
        serve("--listen", f"unix:{tmp_path}/s", "--sim", "va_bytes=64M") as (_, said),
        Client(str(said["address"]), deadline_s=20) as client,
        client.session(),
    ):
        ((space,),) = [one.spaces for one in client.telemetry().sessions]
        assert space.size_bytes == 64 << 20


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--device", "sim:0", "--sim", "nonsense"), "not KEY=VALUE"),
        (("--device", "sim:0", "--sim", "colour=red"), "no such option"),
    ],
)
def test_wrong_orders_for_the_simulated_chip(options: tuple[str, ...], says: str) -> None:
    ended = run_cli("serve", *options)
    assert ended.returncode == 2
    assert says in ended.stderr
