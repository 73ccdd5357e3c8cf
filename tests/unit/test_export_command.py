"""`accelctl export` as collectors and scripts meet it."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accelctl.cli import main
from accelctl.errors import AccelError, TimeoutFailure, UsageError
from accelctl.hal.scrape import MOST_CONNECTIONS, MOST_REQUEST, Endpoint, Page
from accelctl.model.snapshot import ProcessLevel, Snapshot, SourceLevel
from accelctl.render.openmetrics import CONTENT_TYPE, metrics_text
from accelctl.telemetry import exporting, feeds
from tests import snapkit
from tests.feedkit import Listed
from tests.helpers import ROOT, environment, loaded_modules, run_cli

PAGE = Page("200 OK", CONTENT_TYPE, b"# EOF\n")


@contextmanager
def export(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An exporter, and the place it names."""
    command = [sys.executable, "-m", "accelctl", "export", *options]
    child = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        yield child, child.stdout.readline().rpartition(" at ")[2].strip()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        child.stderr.close()


def get(place: str) -> tuple[int, bytes]:
    """What a collector gets; it waits for the first numbers."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + 20
    while True:
        try:
            with direct.open(place, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > end:
                return error.code, error.read()
        time.sleep(0.05)


def ask(path: str, request: bytes) -> bytes:
    """The whole answer on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(10)
        sock.connect(path)
        sock.sendall(request)
        found = b""
        while data := sock.recv(65536):
            found += data
        return found


# -- once --


def test_once_prints_one_exposition() -> None:
    ended = run_cli("export", "--once")
    assert ended.returncode == 0
    assert ended.stdout.endswith("# EOF\n")
    assert "accelctl_snapshot_timestamp_seconds " in ended.stdout
    assert ended.stderr == ""


def test_count_prints_so_many() -> None:
    ended = run_cli("export", "--once", "--count", "3", "--period", "0.1")
    assert ended.returncode == 0
    assert ended.stdout.count("# EOF\n") == 3


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    command = [sys.executable, "-m", "accelctl", "export", "--once", "--count", "1000", "--period", "0.1"]
    child = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(30) == 141
    assert child.stderr.read() == b""
    child.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_once_that_is_stopped_before_its_end_says_so(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script would take nothing at all for the numbers of a machine without devices."""
    silent = Listed([])
    monkeypatch.setattr(silent, "poll", lambda timeout_s: signal.raise_signal(number))
    monkeypatch.setattr(feeds, "open_feed", lambda wish: silent)
    assert main(["export", "--once"]) == 128 + number
    assert capsys.readouterr().out == ""


def test_a_name_cannot_command_a_terminal() -> None:
    """`export --once` prints to one."""
    process = ProcessLevel(pid=1, started=1, name='a\x1b[2J\x9b\r\n"b\\', memory=(("g", "vram", 4),))
    text = metrics_text(Snapshot(taken_ns=1, processes=(process,)))
    assert all(line.isprintable() for line in text.split("\n"))
    assert 'name="a?[2J??\\n\\"b\\\\"' in text


def test_it_needs_no_extra() -> None:
    loaded = loaded_modules("export", "--once")
    assert {"grpc", "google", "numpy", "prometheus_client", "textual", "asyncio"} & loaded == set()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "either --once or --listen"),
        (("--once", "--listen", "127.0.0.1:0"), "either --once or --listen"),
        (("--listen", "0.0.0.0:9401"), "not a loopback address"),
        (("--listen", "nowhere"), "an address is unix:/path"),
        (("--listen", "127.0.0.1:99999"), "an address is unix:/path"),
        (("--listen", "unix:relative"), "begins with /"),
        (("--listen", "unix:/" + "x" * 200), "bytes"),
        (("--listen", f"unix:{ROOT}/README.md"), "is no socket"),
        (("--once", "--period", "0"), "seconds are possible"),
        (("--once", "--count", "-1"), "--count"),
        (("--once", "--service", "nothing"), "an address is unix:/path"),
        (("--once", "--demo", "--service", "unix:/x"), "do not go together"),
        (("--once", "--device", "a=b=c"), "--device"),
    ],
)
def test_wrong_words_are_refused_in_one_line(
    options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *options]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") <= 2
    assert said.out == ""


# -- listening --


def test_a_loopback_port() -> None:
    with export("--listen", "127.0.0.1:0", "--period", "0.2") as (child, place):
        status, body = get(place)
        assert status == 200
        assert body.endswith(b"# EOF\n")
        assert get(place.replace("/metrics", "/"))[0] == 404
        address = place.removeprefix("http://").removesuffix("/metrics")
        second = run_cli("export", "--listen", address)
        assert second.returncode == 1
        assert address in second.stderr
        assert second.stderr.count("\n") <= 2
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0


def test_a_unix_socket_is_this_users_alone_and_goes_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with export("--listen", f"unix:{path}", "--period", "0.2") as (child, place):
        assert place == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
        answer = ask(str(path), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 ")
        second = run_cli("export", "--listen", f"unix:{path}")
        assert second.returncode == 1
        assert str(child.pid) in second.stderr
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 0
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_one_left_is_no_hindrance(tmp_path: Path) -> None:
    with export("--listen", f"unix:{tmp_path}/m") as (child, _):
        child.kill()
        child.wait()
    assert (tmp_path / "m").exists()
    with export("--listen", f"unix:{tmp_path}/m", "--count", "1") as (child, place):
        assert place
        assert child.wait(30) == 0
    assert list(tmp_path.iterdir()) == []


# -- the endpoint itself --


@contextmanager
def endpoint(path: Path) -> Iterator[str]:
    """One that answers PAGE, attended to by a thread of the test."""
    made, stop = Endpoint(str(path)), threading.Event()

    def attend() -> None:
        while not stop.is_set():
            made.attend(0.01, lambda: PAGE)

    thread = threading.Thread(target=attend)
    thread.start()
    try:
        yield str(path)
    finally:
        stop.set()
        thread.join()
        made.close()
        made.close()


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", b"200", PAGE.body),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200", PAGE.body),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200", b""),
        (b"GET / HTTP/1.1\r\n\r\n", b"404", b"only /metrics is here\n"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405", b"GET is all there is\n"),
        (b"nonsense\r\n\r\n", b"400", b"not a request of HTTP/1.1\n"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400", b"not a request of HTTP/1.1\n"),
        (b"x" * (MOST_REQUEST + 1), b"400", b"not a request of HTTP/1.1\n"),
    ],
)
def test_answers(tmp_path: Path, request_: bytes, status: bytes, body: bytes) -> None:
    with endpoint(tmp_path / "s") as path:
        head, _, found = ask(path, request_).partition(b"\r\n\r\n")
    assert head.split()[1] == status
    assert found == body


def test_a_request_in_pieces_and_one_that_never_ends(tmp_path: Path) -> None:
    with endpoint(tmp_path / "s") as path, socket.socket(socket.AF_UNIX) as slow, socket.socket(socket.AF_UNIX) as mute:
        mute.connect(path)
        slow.connect(path)
        slow.settimeout(10)
        for piece in (b"GET /met", b"rics HTT", b"P/1.1\r\n", b"\r\n"):
            slow.sendall(piece)
            assert ask(path, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(PAGE.body)
        assert slow.recv(65536).startswith(b"HTTP/1.1 200")


def test_too_many_connections_are_turned_away_and_free_again(tmp_path: Path) -> None:
    with endpoint(tmp_path / "s") as path:
        many = [socket.socket(socket.AF_UNIX) for _ in range(MOST_CONNECTIONS)]
        for one in many:
            one.connect(path)
        time.sleep(0.1)
        with pytest.raises(OSError), socket.socket(socket.AF_UNIX) as extra:  # noqa: PT011, PT012 - which one differs
            extra.settimeout(10)
            extra.connect(path)
            extra.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            if not extra.recv(10):
                raise ConnectionResetError
        for one in many:
            one.close()
        time.sleep(0.1)
        assert ask(path, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(PAGE.body)


def test_a_client_that_leaves_in_the_middle_of_a_big_answer(tmp_path: Path) -> None:
    made = Endpoint(str(tmp_path / "s"))
    page = Page("200 OK", "text/plain", b"x" * (8 << 20))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for _ in range(4):
            made.attend(0.05, lambda: page)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    for _ in range(4):
        made.attend(0.01, lambda: page)
    assert made._visits == {}
    made.close()


def test_http_client_of_the_library_is_content(tmp_path: Path) -> None:
    made, stop = Endpoint(host="127.0.0.1"), threading.Event()

    def attend() -> None:
        while not stop.is_set():
            made.attend(0.01, lambda: PAGE)

    thread = threading.Thread(target=attend)
    thread.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", made.port, timeout=10)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Content-Type"), answer.read()) == (200, CONTENT_TYPE, PAGE.body)
        connection.close()
        with pytest.raises(AccelError) as caught:
            Endpoint(host="127.0.0.1", port=made.port)
        assert caught.value.kind == "already_exists"
    finally:
        stop.set()
        thread.join()
        made.close()


# -- which Snapshots are given --


def test_the_first_without_rates_is_kept_back() -> None:
    ticks: list[Snapshot | None] = [snapkit.snapshot(tick=tick) for tick in range(4)]
    starting = Snapshot(taken_ns=1, health=(SourceLevel(id="service x", state="starting"),))
    feed = Listed([None, starting, *ticks])
    assert list(exporting.snapshots(feed, 2, threading.Event())) == ticks[1:3]


def test_a_lone_snapshot_is_better_than_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "SECOND_S", 0.0)
    only = snapkit.snapshot()
    assert list(exporting.snapshots(Listed([only]), 1, threading.Event())) == [only]


def test_nothing_at_all_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "START_S", 0.0)
    with pytest.raises(TimeoutFailure):
        list(exporting.snapshots(Listed([]), 1, threading.Event()))


@pytest.mark.parametrize(
    "wish",
    [
        feeds.Wish(period_s=0.0),
        feeds.Wish(period_s=float("nan")),
        feeds.Wish(budget=-1),
        feeds.Wish(demo=True, replay="x"),
        feeds.Wish(replay="x", service=("unix:/x",)),
        feeds.Wish(demo=True, device=("vendor=amd",)),
        feeds.Wish(replay="x", device=("vendor=amd",)),
        feeds.Wish(replay="/nowhere/at/all"),
        feeds.Wish(service=("unix:x",)),
    ],
)
def test_wishes_that_cannot_be_met(wish: feeds.Wish) -> None:
    children = set(os.listdir("/proc/self/task"))
    with pytest.raises(UsageError):
        feeds.open_feed(wish)
    assert set(os.listdir("/proc/self/task")) == children
