"""The empty gRPC server that calls are compared with: as many bytes as the real ones, and nothing left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.umd.echo import Echo
from accelctl.umd.proto import umd_pb2 as pb


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_several_answers_are_told_apart_and_nothing_is_left(folder: Path) -> None:
    request = pb.OpRequest(session_id=7)
    with Echo() as echo:
        calls = [echo.like(request, pb.OpResponse(request_id=number)) for number in (1, 300)]
        assert [call().request_id for call in calls * 2] == [1, 300, 1, 300]
        echo.upload([b"x" * 1000, b"", b"y"])
        assert len(list(folder.glob("accelctl/echo-*"))) == 1
    assert list(folder.glob("accelctl/*")) == []


def test_it_ends_with_its_parent(folder: Path) -> None:
    """Its standard input ends when whoever started it is gone, however that went."""
    echo = Echo()
    assert echo._child.stdin is not None
    echo._child.stdin.close()
    assert echo._child.wait(30) == 0
    echo.close()
    assert list(folder.glob("accelctl/*")) == []


def test_one_that_hangs_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelctl.umd.echo.STOP_S", 0.1)
    echo = Echo()
    os.kill(echo._child.pid, signal.SIGSTOP)
    echo.close()
    assert echo._child.returncode == -signal.SIGKILL
