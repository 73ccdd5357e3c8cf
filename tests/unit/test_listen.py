"""Where a service listens, and that only one does: addresses, the private folder, the lock, and what dead ones left."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from accelctl.errors import AccelError, PermissionDenied, UsageError
from accelctl.exits import ExitCode
from accelctl.hal import claim as claims
from accelctl.hal.claim import Claim, private_folder, private_mask
from accelctl.umd.listen import Address, claim, parse
from tests.processkit import child, open_files, said


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    yield
    assert [link for link in open_files() if str(tmp_path) in link] == []


# -- addresses

GOOD = {
    "unix:/a/b": Address("unix:/a/b", "/a/b"),
    "/a/b": Address("unix:/a/b", "/a/b"),
    "unix:/a b/50%?": Address("unix:/a%20b/50%25%3F", "/a b/50%?"),
    "127.0.0.1:0": Address("127.0.0.1:0", "", "127.0.0.1", 0),
    "127.9.8.7:65535": Address("127.9.8.7:65535", "", "127.9.8.7", 65535),
    "localhost:80": Address("127.0.0.1:80", "", "127.0.0.1", 80),
    "[::1]:80": Address("[::1]:80", "", "::1", 80),
    "[0:0::1]:80": Address("[::1]:80", "", "::1", 80),
}


@pytest.mark.parametrize("text", list(GOOD))
def test_addresses(text: str) -> None:
    assert parse(text) == GOOD[text]


def test_the_usual_address_is_in_the_private_folder(tmp_path: Path) -> None:
    path = f"{tmp_path}/run/accelctl/serve.sock"
    assert parse("") == Address(f"unix:{path}", path)
    assert stat.S_IMODE(os.stat(f"{tmp_path}/run/accelctl").st_mode) == 0o700


NETWORK = ["0.0.0.0:80", "10.0.0.1:80", "128.0.0.1:80", "126.255.255.255:80", "[::]:80", "[::2]:80", "[fe80::1]:80"]
DISGUISED = ["[::ffff:127.0.0.1]:80", "[::1%lo]:80", "[::127.0.0.1]:80"]


@pytest.mark.parametrize("text", [*NETWORK, *DISGUISED])
def test_no_network_is_listened_on(text: str) -> None:
    with pytest.raises(UsageError, match="is not a loopback address: the protocol has no passwords") as caught:
        parse(text)
    assert "\n" not in caught.value.message


NONSENSE = [
    "80", ":80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:٣", "127.0.0.1:8x",
    "127.1:80", "2130706433:80", "0x7f.1:80", "example.com:80", "localhost.:80", "[localhost]:80", "::1:80",
    "[127.0.0.1]:80", "[::1:80", "unix:relative", "unix:",
    "unix:/folder/", "unix-abstract:x", "@x", "tcp:127.0.0.1:80", "dns:localhost:80",
]  # fmt: skip


@pytest.mark.parametrize("text", NONSENSE)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "\n" not in caught.value.message


def test_a_path_that_is_too_long_for_a_unix_socket() -> None:
    assert parse("unix:/" + "x" * 106).path == "/" + "x" * 106
    with pytest.raises(UsageError, match="108 bytes are too long for the path of a Unix socket, at most 107"):
        parse("unix:/" + "x" * 107)
    with pytest.raises(UsageError, match="108 bytes are too long"):
        parse("unix:/x" + "ä" * 53)


@pytest.mark.parametrize("name", ["plain", "a b", "50%41?#x"])
def test_grpc_makes_the_socket_that_is_meant(tmp_path: Path, name: str) -> None:
    grpc = pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")
    from concurrent.futures import ThreadPoolExecutor

    address = parse(f"unix:{tmp_path}/{name}")
    old = os.umask(0)
    try:
        with ExitStack() as held, ThreadPoolExecutor(1) as pool:
            claim(address, held)
            server = grpc.server(pool)
            server.add_insecure_port(address.grpc)
            info = os.lstat(tmp_path / name)
            assert stat.S_ISSOCK(info.st_mode)
            assert stat.S_IMODE(info.st_mode) & 0o077 == 0
            server.start()
            with grpc.insecure_channel(address.grpc) as channel:
                grpc.channel_ready_future(channel).result(5)
            server.stop(None).wait()
            del server
        assert os.umask(0) == 0, "the mask is back"
    finally:
        os.umask(old)
    assert sorted(os.listdir(tmp_path)) == ["run"]


# -- the private folder


def test_without_a_runtime_folder_it_is_in_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "relative", "/nonexistent"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        there = Path(f"/tmp/accelctl-{os.geteuid()}")
        existed = there.exists()
        assert private_folder() == str(there)
        assert stat.S_IMODE(there.lstat().st_mode) == 0o700
        if not existed:
            there.rmdir()


def spoil_mode(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o750)


def spoil_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def spoil_file(folder: Path) -> None:
    folder.write_text("")


def spoil_above(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.parent.chmod(0o777)


SPOILT = {
    "others may enter": (spoil_mode, "can be entered by others: its mode is 0750, not 0700"),
    "a link": (spoil_link, "is not a folder of this user's"),
    "a file": (spoil_file, "is not a folder of this user's"),
    "others may rename": (spoil_above, "can be renamed by everybody"),
}


@pytest.mark.parametrize("name", list(SPOILT))
def test_a_folder_that_is_not_private_is_refused(tmp_path: Path, name: str) -> None:
    spoil, words = SPOILT[name]
    spoil(tmp_path / "run" / "accelctl")
    with pytest.raises(PermissionDenied, match=re.escape(words)) as caught:
        private_folder()
    assert caught.value.hint == "name a socket elsewhere: --listen unix:/path"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run" / "accelctl").mkdir(mode=0o700)
    os.chown(tmp_path / "run" / "accelctl", 65534, 65534)
    with pytest.raises(PermissionDenied, match="is not a folder of this user's"):
        private_folder()


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(PermissionDenied, match="cannot be made: No space left on device"):
        private_folder()


# -- the lock

HOLDER = """
import sys, time
from accelctl.hal.claim import Claim
claim = Claim(sys.argv[1], "it")
print("held", flush=True)
sys.stdin.read()
claim.close()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = child(HOLDER, str(tmp_path / "lock"))
    assert said(process) == "held"
    yield process
    process.kill()
    process.communicate()


def test_the_second_one_is_refused_with_the_first_ones_pid(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(AccelError) as caught:
        Claim(str(tmp_path / "lock"), "unix:/x")
    assert caught.value.message == f"unix:/x is taken: process {holder.pid} serves it"
    assert (caught.value.hint, caught.value.kind) == (f"kill {holder.pid}", "already_exists")
    holder.communicate("")
    again = f"process {os.getpid()} serves it"
    with Claim(str(tmp_path / "lock"), "unix:/x"), pytest.raises(AccelError, match=again):
        Claim(str(tmp_path / "lock"), "unix:/x")
    assert not (tmp_path / "lock").exists()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "lock").read_text().split()[0] == str(holder.pid)
    with Claim(str(tmp_path / "lock"), "x"):
        assert (tmp_path / "lock").read_text().split()[0] == str(os.getpid())


TEXTS = ["", "nonsense", f"{os.getpid()}\n", f"{os.getpid()} 1\n", "1 1 1", "9" * 60]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_what_an_old_lock_says_does_not_matter(tmp_path: Path, text: str) -> None:
    """Also a pid that lives again, as another process: no flock, no holder."""
    (tmp_path / "lock").write_text(text)
    with Claim(str(tmp_path / "lock"), "x"):
        pid, ticks = (tmp_path / "lock").read_text().split()
        assert (int(pid), int(ticks)) == (os.getpid(), claims._started(os.getpid()))
        assert int(ticks) > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{os.getpid()} 1\n", f"by a process that cannot be named; process {os.getpid()}, which took it, has ended"),
        ("", "by a process that cannot be named"),
        ("kill me", "by a process that cannot be named"),
    ],
    ids=["a pid", "nothing", "words"],  # not the pid: every worker of a parallel run has another
)
def test_a_pid_that_came_back_is_not_named_as_the_holder(tmp_path: Path, text: str, words: str) -> None:
    """The holder's child may hold the lock on; then nobody is told to kill a process that has nothing to do with it."""
    path = tmp_path / "lock"
    path.write_text(text)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(AccelError) as caught:
            Claim(str(path), "x")
    assert caught.value.message == f"x is taken {words}"
    assert caught.value.hint == f"fuser {path}"


def test_a_holder_that_is_just_writing_its_name_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    path.touch()
    answers = [None, None, (os.getpid(), claims._started(os.getpid()))]
    monkeypatch.setattr(claims, "_said", lambda fd: answers.pop(0))
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(AccelError, match=f"process {os.getpid()} serves it"):
            Claim(str(path), "x")


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking, the last holder removed the file: the lock of that file protects nothing."""
    path, opened = str(tmp_path / "lock"), claims._opened
    removed: list[int] = []

    def slow(name: str) -> int:
        fd = opened(name)
        if not removed:
            removed.append(fd)
            os.unlink(name)
        return fd

    monkeypatch.setattr(claims, "_opened", slow)
    with Claim(path, "x") as held:
        assert os.path.samestat(os.fstat(held._fd), os.stat(path))
    removed.clear()

    def hostile(name: str) -> int:
        fd = opened(name)
        os.unlink(name)
        return fd

    monkeypatch.setattr(claims, "_opened", hostile)
    with pytest.raises(AccelError, match="removed again and again"):
        Claim(path, "x")


def test_closing_leaves_a_file_alone_that_is_not_the_one_locked(tmp_path: Path) -> None:
    held = Claim(str(tmp_path / "lock"), "x")
    (tmp_path / "lock").unlink()
    other = Claim(str(tmp_path / "lock"), "x")
    held.close()
    held.close()
    assert (tmp_path / "lock").exists()
    other.close()


def test_what_is_no_lock_file_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionDenied):
        Claim(str(path), "x")
    assert not (tmp_path / "elsewhere").exists()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UsageError, match="no plain file"):
        Claim(str(path), "x")
    with pytest.raises(UsageError, match="there is no such folder"):
        Claim(str(tmp_path / "nowhere" / "lock"), "x")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_lock_file_of_somebody_else_is_not_believed(tmp_path: Path) -> None:
    """In a folder for all, anybody could make us tell root to kill process 1."""
    path = tmp_path / "lock"
    path.write_text("1 1\n")
    os.chown(path, 65534, 65534)
    with pytest.raises(PermissionDenied, match="belongs to user 65534"):
        Claim(str(path), "x")


def test_a_file_system_without_locks_is_no_second_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no)
    with pytest.raises(AccelError, match="cannot be locked: No locks available") as caught:
        Claim(str(tmp_path / "lock"), "x")
    assert caught.value.kind == "os_error"


# -- what is found at the address


def test_a_dead_socket_is_cleared_and_our_own_taken_away_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
    assert path.exists()
    with ExitStack() as held:
        claim(parse(str(path)), held)
        assert not path.exists()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
        assert path.exists()
    assert sorted(os.listdir(tmp_path)) == ["run"]


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM])
def test_a_socket_of_another_program_that_lives_stays(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind(str(path))
        if kind != socket.SOCK_DGRAM:
            sock.listen()
        who = "another process" if kind == socket.SOCK_DGRAM else f"process {os.getpid()}"
        with (
            ExitStack() as held,
            pytest.raises(AccelError, match=f"{who} listens there, which is no accelctl") as caught,
        ):
            claim(parse(str(path)), held)
        assert caught.value.kind == "already_exists"
        assert path.exists()
    assert not (tmp_path / "s.lock").exists()


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("thesis")
    with ExitStack() as held, pytest.raises(UsageError, match="is there already, and is no socket"):
        claim(parse(str(path)), held)
    assert path.read_text() == "thesis"


def test_at_the_end_only_a_dead_socket_goes(tmp_path: Path) -> None:
    with Claim(str(tmp_path / "lock"), "x") as held, socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        sock.listen()
        (tmp_path / "file").write_text("x")
        for name in ("s", "file", "nothing"):
            held.sweep(str(tmp_path / name))
        assert sorted(os.listdir(tmp_path)) == ["file", "lock", "run", "s"]


@pytest.mark.parametrize("text", ["127.0.0.1:4711", "[::1]:4711"])
def test_a_port_is_claimed_too(tmp_path: Path, text: str) -> None:
    with ExitStack() as held:
        claim(parse(text), held)
        assert os.listdir(tmp_path / "run" / "accelctl") == [f"{text}.lock"]
        with ExitStack() as other:
            with pytest.raises(AccelError, match=re.escape(f"{text} is taken: process {os.getpid()} serves it")):
                claim(parse(text), other)
            claim(parse(text.replace("4711", "0")), other)
    assert os.listdir(tmp_path / "run" / "accelctl") == []


def test_the_mask_makes_files_their_users_alone_and_comes_back(tmp_path: Path) -> None:
    old = os.umask(0o002)
    try:
        with private_mask():
            (tmp_path / "in").write_text("")
        (tmp_path / "out").write_text("")
    finally:
        os.umask(old)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("in", "out")] == [0o600, 0o664]
