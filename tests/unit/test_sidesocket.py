"""Unix sockets beside a service, and the memory that is passed on them: who is spoken to, and what cannot be forced."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import socket
import stat
import threading
import time
from pathlib import Path

import pytest

from accelctl.errors import AccelError, PermissionDenied, TimeoutFailure, UsageError
from accelctl.hal import devfile, sharedmem, sidesocket
from accelctl.hal.sidesocket import Gone, Peer, SideListener, pair

SIZE = 2 * devfile.PAGE
FDS = "/proc/self/fd"


@pytest.fixture(autouse=True)
def _nothing_left() -> object:
    """Every test ends with no more descriptors and shared mappings than it began with."""
    before, mapped = files(), maps()
    yield
    assert (files() - before, maps()) == (set(), mapped)
    return None


def files() -> set[str]:
    """Of all, those that stay: the listing has one of its own."""
    found = set()
    for name in os.listdir(FDS):
        try:
            found.add(f"{name} {os.readlink(f'{FDS}/{name}')}")
        except FileNotFoundError:
            continue
    return {link for link in found if "/proc/" not in link}


def maps() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:")


def test_messages_keep_their_borders_and_their_order() -> None:
    one, other = pair()
    with one, other:
        for text in (b"a", b"bb", b"ccc"):
            one.send(text, timeout_s=1)
        assert other.pending()
        assert [other.receive(10, timeout_s=1).data for _ in range(3)] == [b"a", b"bb", b"ccc"]
        assert not other.pending()


def test_descriptors_arrive_closed_on_exec_and_belong_to_the_receiver() -> None:
    one, other = pair()
    with one, other, sharedmem.create("test", SIZE) as memory:
        one.send(b"x", [memory.fd, memory.fd], timeout_s=1)
        packet = other.receive(10, timeout_s=1, max_fds=2)
        assert len(packet.fds) == 2
        assert not any(os.get_inheritable(fd) for fd in packet.fds)
        assert all(os.path.sameopenfile(fd, memory.fd) for fd in packet.fds)
        packet.close()
        packet.close()


@pytest.mark.parametrize("wanted", [0, 1])
def test_more_descriptors_than_asked_for_are_closed_and_refused(wanted: int) -> None:
    one, other = pair()
    with one, other, sharedmem.create("test", SIZE) as memory:
        one.send(b"x", [memory.fd] * 5, timeout_s=1)
        with pytest.raises(AccelError, match="descriptors nobody asked for"):
            other.receive(10, timeout_s=1, max_fds=wanted)
        one.send(b"y", timeout_s=1)
        assert other.receive(10, timeout_s=1).data == b"y"


def test_a_message_that_is_too_long_is_refused_and_the_next_one_read() -> None:
    one, other = pair()
    with one, other:
        one.send(b"x" * 11, timeout_s=1)
        one.send(b"y", timeout_s=1)
        with pytest.raises(AccelError, match="longer than allowed") as caught:
            other.receive(10, timeout_s=1)
        assert caught.value.kind == "communication"
        assert other.receive(10, timeout_s=1).data == b"y"


def test_waiting_ends_at_the_deadline() -> None:
    one, other = pair()
    with one, other:
        start = time.monotonic()
        with pytest.raises(TimeoutFailure):
            one.receive(10, timeout_s=0.05)
        assert 0.04 < time.monotonic() - start < 2
        with pytest.raises(TimeoutFailure):
            one.receive(10, timeout_s=0)


def test_a_peer_that_reads_nothing_is_not_waited_for() -> None:
    one, other = pair()
    with one, other:
        while one.hint(b"x" * 1000):
            pass
        start = time.monotonic()
        with pytest.raises(TimeoutFailure, match="takes no messages"):
            one.send(b"x", timeout_s=0.05)
        assert time.monotonic() - start < 2


def test_the_end_of_a_peer_is_told_behind_its_last_words() -> None:
    one, other = pair()
    with one:
        with other:
            other.send(b"bye", timeout_s=1)
        assert one.receive(10, timeout_s=1).data == b"bye"
        for call in (
            lambda: one.receive(10, timeout_s=1),
            lambda: one.send(b"x", timeout_s=1),
            lambda: one.hint(b"x"),
        ):
            with pytest.raises(Gone, match="closed the connection"):
                call()
    with pytest.raises(Gone):
        one.send(b"x", timeout_s=1)


def test_last_words_are_heard_of_a_peer_that_did_not_listen() -> None:
    """Linux tells the end of a peer with unread messages as an error, before that peer's own messages."""
    one, other = pair()
    with one:
        with other:
            one.send(b"unread", timeout_s=1)
            other.send(b"bye", timeout_s=1)
        assert one.receive(10, timeout_s=1).data == b"bye"
        with pytest.raises(Gone):
            one.receive(10, timeout_s=1)


def test_stop_wakes_a_waiting_thread() -> None:
    one, other = pair()
    with one, other:
        timer = threading.Timer(0.05, one.stop)
        timer.start()
        with pytest.raises(Gone):
            one.receive(10, timeout_s=None)
        timer.join()
        with pytest.raises(Gone):
            other.receive(10, timeout_s=1)


# -- the listener


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_the_file_is_its_owners_alone_from_the_first_moment(tmp_path: Path, mask: int) -> None:
    path, old = tmp_path / "s", os.umask(mask)
    try:
        listener = SideListener(str(path))
    finally:
        os.umask(old)
    info = path.lstat()
    assert stat.S_ISSOCK(info.st_mode)
    assert stat.S_IMODE(info.st_mode) == 0o600
    listener.close()
    listener.close()
    assert not path.exists()


def test_who_is_at_the_other_end(tmp_path: Path) -> None:
    listener = SideListener(str(tmp_path / "s"))
    with sidesocket.connect(listener.path, timeout_s=1) as client:
        server = listener.accept(1)
        assert server is not None
        with server:
            me = Peer(os.getpid(), os.geteuid(), os.getegid())
            assert server.require_friend() == client.require_friend() == me
            client.send(b"x", timeout_s=1)
            assert server.receive(1, timeout_s=1).data == b"x"
    listener.close()


@pytest.mark.parametrize(("uid", "mine", "good"), [(0, 1000, True), (1000, 1000, True), (1001, 1000, False)])
def test_only_the_same_user_and_root_are_friends(
    monkeypatch: pytest.MonkeyPatch, uid: int, mine: int, good: bool
) -> None:
    one, other = pair("x")
    with one, other:
        monkeypatch.setattr(os, "geteuid", lambda: mine)
        monkeypatch.setattr(sidesocket, "_peer", lambda sock: Peer(77, uid, uid))
        if good:
            assert one.require_friend().uid == uid
        else:
            with pytest.raises(PermissionDenied, match="process 77 of user 1001 is at the other end"):
                one.require_friend()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_connect(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    listener = SideListener(str(tmp_path / "s"))
    pid = os.fork()
    if pid == 0:  # pragma: no cover - another process
        os.setresuid(65534, 65534, 65534)
        try:
            sidesocket.connect(listener.path, timeout_s=1)
        except PermissionDenied:
            os._exit(3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    listener.close()


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(Gone, match="nobody listens there"):
        sidesocket.connect(str(tmp_path / "s"), timeout_s=1)
    SideListener(str(tmp_path / "s"))._sock.close()  # as a killed service leaves it
    with pytest.raises(Gone, match="nobody listens there"):
        sidesocket.connect(str(tmp_path / "s"), timeout_s=1)


def test_a_place_that_is_taken_stays_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(AccelError, match="in use") as caught:
        SideListener(str(path))
    assert caught.value.kind == "already_exists"
    assert path.read_text() == "mine"


def test_closing_leaves_a_file_alone_that_is_not_the_one_made(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = SideListener(str(path))
    path.unlink()
    other = SideListener(str(path))
    listener.close()
    assert path.exists()
    other.close()


def test_a_full_backlog_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    listener = SideListener(str(tmp_path / "s"), backlog=0)
    with sidesocket.connect(listener.path, timeout_s=1):
        start = time.monotonic()
        with pytest.raises(TimeoutFailure, match="no answer within"):
            sidesocket.connect(listener.path, timeout_s=0.05)
        assert time.monotonic() - start < 2
    listener.close()


def test_stop_ends_accept(tmp_path: Path) -> None:
    listener = SideListener(str(tmp_path / "s"))
    timer = threading.Timer(0.05, listener.stop)
    timer.start()
    with pytest.raises(TimeoutFailure):
        listener.accept(0.01)
    assert listener.accept() is None
    timer.join()
    assert listener.accept() is None
    listener.close()


@pytest.mark.parametrize(("length", "good"), [(107, True), (108, False)])
def test_the_longest_path(tmp_path: Path, length: int, good: bool) -> None:
    path = str(tmp_path / "x")
    path += "x" * (length - len(path))
    if good:
        SideListener(path).close()
        return
    for call in (lambda: SideListener(path), lambda: sidesocket.connect(path, timeout_s=1)):
        with pytest.raises(UsageError, match="108 bytes are too long for the path of a Unix socket, at most 107"):
            call()


@pytest.mark.parametrize(
    ("kind", "known"), [(socket.SOCK_STREAM, True), (socket.SOCK_SEQPACKET, True), (socket.SOCK_DGRAM, False)]
)
def test_who_listens(tmp_path: Path, kind: int, known: bool) -> None:
    path = str(tmp_path / "s")
    assert sidesocket.listening(path) is None
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind(path)
        if known:
            assert sidesocket.listening(path) is None
            sock.listen()
        found = sidesocket.listening(path)
        assert found is not None
        assert found.pid == (os.getpid() if known else 0)
    assert sidesocket.listening(path) is None


# -- shared memory


def test_memory_is_zero_all_there_and_shared() -> None:
    with sharedmem.create("test", SIZE) as memory:
        assert bytes(memory.view) == bytes(SIZE)
        assert os.fstat(memory.fd).st_blocks * 512 >= SIZE  # allocated, not a hole
        with sharedmem.adopt(os.dup(memory.fd), SIZE, "same") as other:
            memory.view[SIZE - 1] = 7
            assert other.view[SIZE - 1] == 7


def test_nobody_can_change_its_size_or_take_the_seals_off() -> None:
    with sharedmem.create("test", SIZE) as memory:
        for size in (0, devfile.PAGE, 4 * devfile.PAGE):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.fd, size)
        with pytest.raises(PermissionError):
            os.posix_fallocate(memory.fd, 0, 4 * devfile.PAGE)
        with pytest.raises(PermissionError):
            fcntl.fcntl(memory.fd, devfile.F_ADD_SEALS, 8)  # F_SEAL_WRITE
        assert memory.view[SIZE - 1] == 0


def test_what_a_peer_offers_is_checked_before_it_is_mapped(tmp_path: Path) -> None:
    plain = tmp_path / "file"
    plain.write_bytes(bytes(SIZE))
    unsealed = os.memfd_create("x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, SIZE)
    with sharedmem.create("test", SIZE) as memory:
        offers = [
            (os.open(plain, os.O_RDWR), "is no memfd"),
            (os.open("/dev/zero", os.O_RDWR), "is no memfd"),
            (unsealed, "it is not sealed"),
        ]
        for fd, words in offers:
            with pytest.raises(AccelError, match=words):
                sharedmem.adopt(fd, SIZE, "x")
        for size in (SIZE - devfile.PAGE, SIZE + devfile.PAGE):
            with pytest.raises(AccelError, match=f"has {SIZE} bytes, not {size}"):
                sharedmem.adopt(os.dup(memory.fd), size, "x")


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, "out_of_memory"), (errno.EFBIG, "os_error")])
def test_no_room_is_said_at_once(monkeypatch: pytest.MonkeyPatch, code: int, kind: str) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(AccelError, match=f"no shared memory of {SIZE} bytes") as caught:
        sharedmem.create("test", SIZE)
    assert caught.value.kind == kind


@pytest.mark.parametrize("size", [0, -4096, 4097])
def test_sizes_are_pages(size: int) -> None:
    with pytest.raises(ValueError, match="whole number of pages"):
        sharedmem.create("test", size)


def test_closing_twice_and_with_a_view_alive() -> None:
    memory = sharedmem.create("test", SIZE)
    memory.close()
    memory.close()
    memory = sharedmem.create("test", SIZE)
    part = memory.view[:10]
    with pytest.raises(BufferError):
        memory.close()
    assert memory.fd == -1
    part.release()
    del memory
    gc.collect()


def test_scratch_is_private_and_of_the_size_asked_for() -> None:
    view = sharedmem.scratch(1000)
    assert view.nbytes == 1000
    view[:] = b"x" * 1000
    assert bytes(view) == b"x" * 1000
