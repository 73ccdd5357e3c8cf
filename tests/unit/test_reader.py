"""The watched reader child: a path that hangs is named and left alone, and nothing of ours stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accelctl.errors import AccelError, PermissionDenied, TimeoutFailure, UsageError
from accelctl.hal.child import PATH_MAX, ChildError, Slot, Watch
from accelctl.hal.reader import Event, Failed, Finished, Message, Stuck, WatchedChild, run_inline, run_watched
from tests.helpers import environment

QUICK_S = 0.3
FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test: the same descriptors as before, and no child, dead or alive."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.fixture
def hang(tmp_path: Path) -> str:
    """A path whose opening never comes back: a FIFO without a writer."""
    path = tmp_path / "hangs"
    os.mkfifo(path)
    return str(path)


def reads(*paths: str) -> Callable[[Watch], list[str]]:
    """Work that opens paths in order, except those in quarantine; returns the ones it opened."""

    def work(watch: Watch) -> list[str]:
        opened = []
        for path in paths:
            watch.slot.enter(path)
            if path not in watch.quarantine:
                os.close(os.open(path, os.O_RDONLY))
                opened.append(path)
        return opened

    return work


# -- what comes back --


def test_value() -> None:
    outcome = run_watched(lambda watch: {"answer": 42, "quarantine": sorted(watch.quarantine)})
    assert outcome.value == {"answer": 42, "quarantine": []}
    assert outcome.stuck == []


def test_big_value() -> None:
    data = os.urandom(1 << 20) * 50
    assert run_watched(lambda _: data, deadline_s=QUICK_S).value == data


def test_exception_keeps_type_words_and_hint() -> None:
    def work(_: Watch) -> None:
        raise PermissionDenied("dev/kfd: group 109 is missing", hint="--group-add 109")

    with pytest.raises(PermissionDenied, match="group 109 is missing") as caught:
        run_watched(work)
    assert caught.value.hint == "--group-add 109"
    assert caught.value.kind == "permission"
    assert "test_reader.py" in str(caught.value.__cause__)  # where in the child


@pytest.mark.parametrize(
    "error", [UsageError("bad"), KeyError("x"), OSError(5, "io", "sys/x"), SystemExit(3), KeyboardInterrupt()]
)
def test_any_exception_comes_back(error: BaseException) -> None:
    def work(_: Watch) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        run_watched(work)
    assert caught.value.args == error.args


def test_exception_that_cannot_be_carried_over_is_told_in_words() -> None:
    class Local(Exception):
        pass

    def work(_: Watch) -> None:
        raise Local("only here")

    with pytest.raises(ChildError, match="Local: only here"):
        run_watched(work)


def test_value_that_cannot_be_carried_over_is_an_error() -> None:
    with pytest.raises(Exception, match=r"pickle|local"):
        run_watched(lambda _: lambda: None)


def test_inline() -> None:
    def work(watch: Watch) -> list[str]:
        watch.slot.enter("sys/x")
        watch.slot.leave()
        return sorted(watch.quarantine)

    outcome = run_inline(work, quarantine=["sys/y"])
    assert outcome.value == ["sys/y"]
    assert outcome.stuck == []
    with pytest.raises(RuntimeError, match="WatchedChild"):
        run_inline(lambda watch: watch.send(1))


# -- what hangs --


def test_hanging_path_is_named_and_the_rest_is_read(hang: str) -> None:
    outcome = run_watched(reads("/dev/null", hang, "/dev/zero"), deadline_s=QUICK_S)
    assert outcome.value == ["/dev/null", "/dev/zero"]
    (stuck,) = outcome.stuck
    assert stuck.path == hang
    assert QUICK_S <= stuck.age_s < 10
    assert stuck.state == "S"
    assert stuck.wchan in ("", "wait_for_partner")  # fifo_open in fs/pipe.c; "" where the kernel hides it


def test_several_hanging_paths(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        os.mkfifo(path)
    outcome = run_watched(reads(*paths), deadline_s=QUICK_S)
    assert outcome.value == []
    assert [stuck.path for stuck in outcome.stuck] == paths


def test_restarts_are_limited_and_all_paths_named(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        os.mkfifo(path)
    with pytest.raises(TimeoutFailure, match="after 2 attempts") as caught:
        run_watched(reads(*paths), deadline_s=QUICK_S, max_restarts=1)
    assert paths[0] in caught.value.message
    assert paths[1] in caught.value.message
    assert paths[2] not in caught.value.message


def test_total_time_is_limited() -> None:
    def work(watch: Watch) -> None:
        watch.slot.leave()
        time.sleep(60)

    start = time.monotonic()
    with pytest.raises(TimeoutFailure, match=r"after 0\.5 s"):
        run_watched(work, deadline_s=0.1, total_s=0.5)
    assert time.monotonic() - start < 10


def test_computing_is_not_hanging() -> None:
    def work(watch: Watch) -> int:
        watch.slot.enter("sys/read/long/ago")
        end = time.monotonic() + 4 * QUICK_S
        count = 0
        while time.monotonic() < end:
            count += 1
        return count

    outcome = run_watched(work, deadline_s=QUICK_S)
    assert outcome.value > 0
    assert outcome.stuck == []


def test_stopped_child_is_not_hanging() -> None:
    def work(watch: Watch) -> str:
        watch.slot.enter("sys/read/when/stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
        return "continued"

    with WatchedChild(work, deadline_s=QUICK_S) as child:
        child.start()
        assert child.poll(4 * QUICK_S) is None
        os.kill(child.pid, signal.SIGCONT)
        assert child.poll(10) == Finished("continued")


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The process in a frozen control group: state D, and SIGKILL waits."""
    group = FREEZER / f"accelctl-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        for _ in range(200):
            if not (group / "cgroup.procs").read_text():
                break
            time.sleep(0.01)
        group.rmdir()


@pytest.mark.skipif(
    not os.access(FREEZER / "cgroup.procs", os.W_OK) or os.geteuid() != 0,
    reason="needs root and the version 1 freezer at /sys/fs/cgroup/freezer (the kernel tests have a real D state)",
)
def test_child_that_cannot_be_killed_is_left_behind(hang: str) -> None:
    with WatchedChild(reads(hang), deadline_s=QUICK_S) as child:
        child.start()
        pid = child.pid
        assert child.poll(0.1) is None
        with frozen(pid):
            start = time.monotonic()
            event = child.poll(10)
            assert isinstance(event, Stuck)
            assert (event.path, event.state) == (hang, "D")
            child.restart()
            assert child.poll(10) == Finished([])
            assert time.monotonic() - start < 5
            assert Path(f"/proc/{pid}/stat").exists()
        child.close()
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z")
    assert run_watched(lambda _: 1).value == 1  # the next start collects it
    assert not Path(f"/proc/{pid}").exists()


# -- what dies --


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "killed by SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGRTMIN + 3), "killed by signal 37"),
        (lambda: os._exit(5), "exit status 5"),
    ],
)
def test_path_that_ends_the_child_is_named(end: Callable[[], None], words: str) -> None:
    def work(watch: Watch) -> str:
        watch.slot.enter("sys/kills")
        if "sys/kills" not in watch.quarantine:
            end()
        return "went on"

    outcome = run_watched(work)
    assert outcome.value == "went on"
    assert [(stuck.path, stuck.state) for stuck in outcome.stuck] == [("sys/kills", words)]


def test_death_without_a_path_is_an_error_at_once() -> None:
    with pytest.raises(AccelError, match="killed by SIGKILL"):
        run_watched(lambda _: os.kill(os.getpid(), signal.SIGKILL))


def test_ignored_sigchld_does_not_confuse() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run_watched(lambda _: "fine").value == "fine"
    finally:
        signal.signal(signal.SIGCHLD, before)


# -- a child that goes on sending --


def test_messages_come_in_order_and_poll_returns_in_between() -> None:
    def work(watch: Watch) -> str:
        for number in range(3):
            watch.send({"tick": number})
        time.sleep(3 * QUICK_S)  # idle after a message: nobody's fault
        return "end"

    events: list[Event] = []
    waits = 0
    with WatchedChild(work, deadline_s=QUICK_S) as child:
        child.start()
        assert child.fileno() >= 0
        while not events or not isinstance(events[-1], Finished):
            event = child.poll(QUICK_S / 2)
            if event is None:
                waits += 1
            else:
                events.append(event)
    assert events == [Message({"tick": 0}), Message({"tick": 1}), Message({"tick": 2}), Finished("end")]
    assert waits > 0


def test_hang_is_seen_by_a_parent_that_only_looks_in(hang: str) -> None:
    with WatchedChild(reads(hang), deadline_s=QUICK_S) as child:
        child.start()
        wait_until(lambda: child.poll(0) is not None)
        assert child.quarantine == {hang}


def test_full_pipe_is_not_a_hang() -> None:
    def work(watch: Watch) -> None:
        watch.slot.enter("sys/last")
        watch.send(b"x" * (8 << 20))

    with WatchedChild(work, deadline_s=QUICK_S) as child:
        child.start()
        time.sleep(3 * QUICK_S)  # the child waits for us all the while
        assert child.poll(10) == Message(b"x" * (8 << 20))
        assert child.poll(10) == Finished(None)


def test_failure_of_a_watched_child_is_an_event() -> None:
    with WatchedChild(lambda _: 1 // 0) as child:
        child.start()
        event = child.poll(10)
        assert isinstance(event, Failed)
        assert isinstance(event.error, ZeroDivisionError)


# -- what the child may hold --


def test_child_holds_no_descriptor_of_ours(tmp_path: Path) -> None:
    pipe = os.pipe()
    with (tmp_path / "open").open("w") as file:
        held = run_watched(lambda _: _links()).value
        assert file.fileno() > 2
    for fd in pipe:
        os.close(fd)
    assert all(held[name] == "/dev/null" for name in "012")
    waiting = ("anon_inode:[eventpoll]", "anon_inode:[eventfd]")  # of a library that this process has loaded
    others = [text for text in held.values() if text != "/dev/null" and text not in waiting]
    assert len(others) == 2, held  # the pipe to the parent and the parent's life line
    assert all(text.startswith("pipe:") for text in others)


def _links() -> dict[str, str]:
    links = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            links[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing itself
            continue
    return links


STUBBORN = """
import os, signal, sys
from accelctl.hal.reader import WatchedChild
def work(watch):
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # as a child in D state: its parent's end does not end it
    watch.send(os.getpid())
    os.open(sys.argv[1], os.O_RDONLY)
child = WatchedChild(work)
child.start()
print(child.poll(10).value, flush=True)
os._exit(0)
"""


def test_child_left_behind_keeps_no_pipe_open(hang: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUBBORN, hang],
        env=environment(),
        capture_output=True,
        timeout=20,
        text=True,
        check=True,
    )  # run() returns at the end of both pipes, not at the end of the process
    pid = int(done.stdout)
    assert alive(pid), "the child was to outlive its parent for this test"
    os.kill(pid, signal.SIGKILL)


WATCHING = """
import os, sys
from accelctl.hal.reader import WatchedChild
def work(watch):
    watch.send(os.getpid())
    watch.slot.enter(sys.argv[1])
    os.open(sys.argv[1], os.O_RDONLY)
with WatchedChild(work, deadline_s=60) as child:
    child.start()
    print(child.poll(10).value, flush=True)
    child.poll(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_child_ends_with_its_parent(hang: str, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WATCHING, hang], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(number)
        parent.wait(10)
    wait_until(lambda: not alive(pid))


CLOSED = """
import os, sys
for fd in (0, 1, 2):
    os.close(fd)
from accelctl.hal.reader import run_watched
value = run_watched(lambda watch: [os.readlink(f"/proc/self/fd/{n}") for n in (0, 1, 2)]).value
open(sys.argv[1], "w").write(" ".join(value))
"""


def test_parent_without_standard_streams(tmp_path: Path) -> None:
    told = tmp_path / "told"
    subprocess.run([sys.executable, "-c", CLOSED, str(told)], env=environment(), timeout=20, check=True)
    assert told.read_text() == "/dev/null /dev/null /dev/null"


def alive(pid: int) -> bool:
    """Is there such a process, other than a zombie that nobody has collected?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, "did not happen within 10 s"
        time.sleep(0.02)


# -- the slot --


def test_slot_says_what_was_entered() -> None:
    slot = Slot()
    first = slot.peek()
    slot.enter("sys/a/\udcff")
    second = slot.peek()
    assert first is not None
    assert second is not None
    assert (first[2], second[2]) == ("", "sys/a/\udcff")
    assert first[0] != second[0]
    slot.enter("x" * (2 * PATH_MAX))
    third = slot.peek()
    assert third is not None
    assert third[2] == "x" * PATH_MAX
    slot.leave()
    assert (slot.peek() or (0, 0, "?"))[2] == ""
    slot.close()


def test_slot_is_never_read_torn() -> None:
    """The child writes paths of every length as fast as it can; whatever the parent sees is whole."""

    def work(watch: Watch) -> None:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            for letter in "abcdefgh":
                watch.slot.enter(letter * (ord(letter) - 90) * 20)

    seen = set()
    with WatchedChild(work) as child:
        child.start()
        slot = child._slot
        assert slot is not None
        end = time.monotonic() + 0.8
        while time.monotonic() < end:
            entry = slot.peek()
            if entry is not None and entry[2]:
                path = entry[2]
                assert path == path[0] * (ord(path[0]) - 90) * 20
                seen.add(path)
        assert child.poll(10) == Finished(None)
    assert len(seen) > 1
