"""Profiles at work: what a service makes of them, and what the commands show."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from accelctl.errors import UsageError
from accelctl.model.profile import KEYS, MATCHES
from tests.helpers import ROOT, run_cli
from tests.unit.test_profile import force, profiles
from tests.unit.test_settings_files import as_somebody

# -- the service


def limited(text: str, total: int = 1 << 30) -> Any:
    pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")
    from accelctl.umd.profiles import limited as limited_by
    from accelctl.umd.service import USUAL

    class OneChip:
        def total_bytes(self) -> int:
            return total

    return limited_by(force(text), USUAL, OneChip())  # type: ignore[arg-type]


def test_limits_of_a_service() -> None:
    text = "[profile.sim]\nlimits.sessions = 2\nlimits.queue-depth = 8\nlimits.message = '8MiB'\nlimits.batch = 9\n"
    found = limited(text + "limits.lists = 4\nlimits.list-bytes = '64KiB'\nmemory.pool = '1MiB'\n")
    assert (found.sessions, found.most_depth, found.depth, found.batch) == (2, 8, 8, 9)
    assert (found.message_bytes, found.lists, found.list_bytes, found.pool_bytes) == (8 << 20, 4, 64 << 10, 1 << 20)
    assert found.memory_bytes == 0


def test_a_fraction_of_the_memory() -> None:
    assert limited("[profile.sim]\nmemory.fraction = 0.25\n").memory_bytes == 1 << 28
    both = "[profile.sim]\nmemory.fraction = 0.25\nmemory.limit = '{}'\n"
    assert limited(both.format("1MiB")).memory_bytes == 1 << 20
    assert limited(both.format("1GiB")).memory_bytes == 1 << 28
    with pytest.raises(UsageError, match="sim:0 does not say how much memory it has"):
        limited("[profile.sim]\nmemory.fraction = 0.25\n", 0)


def test_defaults_that_are_told_are_the_service_s() -> None:
    pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")
    from accelctl.umd.profiles import _LIMITS
    from accelctl.umd.service import USUAL

    for key, field in _LIMITS.items():
        told, there = KEYS[key].default, getattr(USUAL, field)
        size = {"MiB": 1 << 20}.get(told[-3:])
        assert (0 if told == "all" else int(told[:-3]) * size if size else int(told)) == there, key


def serving(text: str, use: Callable[[Any], None], **more: Any) -> None:
    """A service with a profile, in this process, for as long as ``use`` lasts."""
    pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")
    from accelctl.umd import serving as module
    from accelctl.umd.client import Client

    failures: list[BaseException] = []

    def ready(one: Any) -> None:
        try:
            with Client(one.address, deadline_s=10) as client:
                use(client)
        except BaseException as error:
            failures.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    with tempfile.TemporaryDirectory() as folder:
        wanted = module.Request(
            device=("sim:0",), address=f"unix:{folder}/s", profiles=profiles(text), evidence="none", **more
        )
        module.run(wanted, ready)
    if failures:
        raise failures[0]


def test_a_service_does_what_its_profile_says() -> None:
    def use(client: Any) -> None:
        from accelctl.umd.client import ServiceError
        from accelctl.umd.proto import umd_pb2 as pb

        ops = [pb.OpType.Name(one) for one in client.handshake().ops]
        assert "RELU" not in ops
        assert "ADD" in ops
        assert client.telemetry().limit_bytes == (1 << 30) // 4
        with client.session() as session, client.session():
            with pytest.raises(ServiceError, match="2 sessions are open"):
                client.session()
            with pytest.raises(ServiceError, match="queue_depth: 9: at most 8"):
                client.session(queue_depth=9)
            x = session.alloc((4,), "fp32")
            with pytest.raises(ServiceError) as caught:
                session.translate(session.request("relu", [x]))
            assert (caught.value.kind, caught.value.code) == ("not_supported", "UNIMPLEMENTED")
            assert caught.value.message == ("op_type: relu is switched off for sim:0 by /0: [profile.sim] ops.off")
            with pytest.raises(ServiceError, match="this session may hold"):
                session.alloc_bytes(3 << 20)
            with pytest.raises(ServiceError, match="larger than max"):
                session.translate(session.request("add", [x, x], attrs={"alpha": "1" * (9 << 20)}))
            (copied,) = session.translate(session.request("add", [x, x])).outputs
            assert copied.tensor_id

    text = "[profile.sim]\nops.off = ['relu']\nmemory.fraction = 0.25\nmemory.pool = '2MiB'\nlimits.sessions = 2\n"
    serving(text + "limits.queue-depth = 8\nlimits.message = '8MiB'\n", use)


def test_what_is_typed_stands_above_the_profile() -> None:
    def use(client: Any) -> None:
        assert client.telemetry().limit_bytes == 5 << 20

    serving("[profile.sim]\nmemory.fraction = 0.25\nmemory.limit = '1MiB'\n", use, memory="5MiB")


def test_kernels_that_are_off() -> None:
    """A special kernel leaves its calls to the general one; without a general one the op is refused with the reason."""

    def kernel(text: str) -> list[int]:
        found: list[int] = []

        def use(client: Any) -> None:
            with client.session() as session:
                a, b = session.alloc((4, 4), "fp32"), session.alloc((4, 1), "fp32")
                found.extend(one.kernel_id for one in session.translate(session.request("matmul", [a, b])).instructions)

        serving(text, use)
        return found

    special, general = kernel("[profile.sim]\n"), kernel("[profile.sim]\nkernels.off = ['matvec']\n")
    assert len(special) == len(general) == 1
    assert special != general
    from accelctl.umd.client import ServiceError

    with pytest.raises(ServiceError, match=r"matmul_f: switched off by /0: \[profile.sim\] kernels.off"):
        kernel("[profile.sim]\nkernels.off = ['matvec', 'matmul_f']\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("kernels.off = ['matmull']", r"/0: \[profile.sim\] kernels.off: sim has no kernel matmull \(did you mean"),
        ("ops.off = ['reluu']", r"/0: \[profile.sim\] ops.off: there is no op reluu"),
    ],
)
def test_a_service_does_not_start_with_a_name_that_means_nothing(line: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        serving(f"[profile.sim]\n{line}\n", lambda client: None)


# -- the commands


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a configuration file counts also for root."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="accelctl-test-", dir="/run"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def run_in(folder: Path, *words: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    changes = {"ACCELCTL_NO_CONFIG": None, "XDG_CONFIG_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT), **env}
    return run_cli(*words, env=changes, cwd=folder, code=code)


TEXT = """
[probe]
fail-on = "warn"
[profile.sim]
ops.off = ["relu"]
limits.sessions = 8
[profile.only]
title = "simulated*"
limits.sessions = 4
"""


@pytest.fixture
def configured(folder: Path) -> Path:
    (folder / "accelctl.toml").write_text(TEXT, encoding="utf-8")
    (folder / "home" / "accelctl").mkdir(parents=True)
    lower = '[probe]\nfail-on = "info"\n[profile.sim]\nlimits.sessions = 9\n'
    (folder / "home" / "accelctl" / "config.toml").write_text(lower, encoding="utf-8")
    return folder


def test_config_show_origin_has_every_layer(configured: Path) -> None:
    done = run_in(configured, "config", "show", "probe", "--origin", ACCELCTL_PROBE_FAIL_ON="critical")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    at = lines.index("--fail-on")
    assert lines[at + 1 : at + 5] == [
        'ACCELCTL_PROBE_FAIL_ON "critical" in force',
        f'{configured}/accelctl.toml "warn" overridden',
        f'{configured}/home/accelctl/config.toml "info" overridden',
        'default "error" overridden',
    ]
    assert "--why - default, typed only" in lines
    assert f"[profile.sim] in {configured}/accelctl.toml, for chip sim" in lines
    at = lines.index("limits.sessions", lines.index("sim, every device:"))
    assert lines[at + 1 : at + 3] == [
        f"{configured}/accelctl.toml: [profile.sim] limits.sessions 8 in force",
        f"{configured}/home/accelctl/config.toml: [profile.sim] limits.sessions 9 overridden",
    ]


def test_config_show_origin_as_json(configured: Path) -> None:
    document = json.loads(run_in(configured, "config", "show", "probe", "--origin", "--json").stdout)
    assert document["schema"] == "accelctl.config/1"
    assert [one["state"] for one in document["files"]] == ["taken", "taken"]
    layers = document["commands"]["probe"]["fail-on"]["layers"]
    assert [(one["origin"], one["value"]) for one in layers] == [
        ("file", "warn"),
        ("file", "info"),
        ("default", "error"),
    ]
    assert [(one["name"], one["for"]) for one in document["profiles"]] == [
        ("sim", {"chip": "sim"}),
        ("only", {"title": "simulated*"}),
        ("sim", {"chip": "sim"}),
    ]
    assert document["chips"]["sim"]["limits.sessions"]["value"] == 8
    plain = json.loads(run_in(configured, "config", "show", "probe", "--json").stdout)
    assert {"profiles", "chips"} & plain.keys() == set()
    assert "layers" not in plain["commands"]["probe"]["fail-on"]


def test_config_profile_of_a_device(configured: Path) -> None:
    done = run_in(configured, "config", "profile", "sim:0")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    at = lines.index("limits.sessions")
    assert [line.rpartition(" limits.sessions ")[2] for line in lines[at + 1 : at + 4]] == [
        "4 in force",
        "8 overridden",
        "9 overridden",
    ]
    assert "limits.message 64MiB default" in lines
    document = json.loads(run_in(configured, "config", "profile", "sim:0", "--json").stdout)
    (device,) = document["devices"]
    assert (document["schema"], device["device"], device["title"]) == (
        "accelctl.profile/1",
        "sim:0",
        "simulated accelerator",
    )
    assert device["values"]["ops.off"]["value"] == ["relu"]
    assert [one["value"] for one in device["values"]["limits.sessions"]["layers"]] == [4, 8, 9]


def test_config_tells_what_a_profile_may_say() -> None:
    lines = run_cli("config", "profile", "--keys", code=0).stdout.splitlines()
    assert [line.split()[0] for line in lines] == [*MATCHES, *KEYS]


def test_mistakes_in_profiles_are_told_by_who_reads_them(folder: Path) -> None:
    (folder / "accelctl.toml").write_text("[profile.sim]\nops.off = ['reluu']\n", encoding="utf-8")
    said = f"{folder}/accelctl.toml: [profile.sim] ops.off: there is no op reluu (did you mean relu?)"
    for words in (["config"], ["config", "profile", "sim:0"]):
        assert run_in(folder, *words, code=2).stderr.splitlines()[0] == f"accelctl config: {said}"
    assert run_in(folder, "explain", "asleep").stderr == "", "others have nothing to do with it"
    (folder / "accelctl.toml").write_text("[profile.sim]\nkernels.off = ['matmull']\n", encoding="utf-8")
    done = run_in(folder, "config", "profile", "sim:0", code=2)
    assert "kernels.off: sim has no kernel matmull (did you mean matmul" in done.stderr


def test_serve_reads_the_files(folder: Path) -> None:
    pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")
    (folder / "accelctl.toml").write_text("[profile.sim]\nlimits.sessions = 'many'\n", encoding="utf-8")
    done = run_in(folder, "serve", "--device", "sim:0", "--listen", f"unix:{folder}/s", code=2)
    said = f'{folder}/accelctl.toml: [profile.sim] limits.sessions: a whole number is expected, not "many"'
    assert done.stderr.splitlines()[0] == f"accelctl serve: {said}"


def test_smoke_s_own_service_has_the_profile(folder: Path) -> None:
    pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")
    (folder / "accelctl.toml").write_text("[profile.sim]\nops.off = ['relu']\n", encoding="utf-8")
    words = ["smoke", "--device", "sim:0", "--case", "relu*", "--json"]
    done = run_in(folder, *words)
    assert f"relu is switched off for sim:0 by {folder}/accelctl.toml: [profile.sim] ops.off" in done.stdout


def test_somebody_else_s_file_does_not_count(tmp_path: Path) -> None:
    """Profiles stand in the same files, under the same rule: see test_settings_files.py."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files to others")
    path = tmp_path / "accelctl.toml"
    path.write_text("[profile.sim]\nlimits.sessions = 1\n", encoding="utf-8")
    os.chown(path, 4242, 4242)
    done = as_somebody(tmp_path, "config", "show", "explain", "--origin")
    assert "not taken" in done.stderr
    assert "Profiles:\n  none\n" in done.stdout
