"""Workers in processes of their own, so that a call that never returns, a crash or a kill takes nothing else along.

Commands go down a pipe, answers come up through the watched child (hal.reader), which names the call that hangs. When
the parent dies the worker releases what it holds, in order, and ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
from types import FrameType
from typing import Any, NoReturn

from accelctl.errors import AccelError, TimeoutFailure
from accelctl.hal.reader import Failed, Message, Stuck, WatchedChild
from accelctl.stress.ending import left_to_parent
from accelctl.stress.worker import CounterInfo, LocalWorker, Spec

_HEAD = struct.Struct("=I")
_PATIENCE_S = 600.0  # for one command; a call that hangs is named much sooner (deadline_s)


class Hang(TimeoutFailure):
    """A call did not come back. ``call`` is the stage, ``wchan`` the kernel function it sleeps in."""

    def __init__(self, stuck: Stuck) -> None:
        place = f" in {stuck.wchan}" if stuck.wchan else ""
        super().__init__(
            f"{stuck.path or 'the worker'} has not returned for {stuck.age_s:.1f} s ({stuck.state}{place})"
        )
        self.call, self.wchan = stuck.path, stuck.wchan


class Killed(AccelError):
    """The worker ended by itself (a crash, the OOM killer). ``by``: the signal's name, empty where it was none."""

    default_kind = "internal"

    def __init__(self, how: str, call: str) -> None:
        super().__init__(f"the worker ended: {how}, in {call or 'no call'}")
        self.by = how.removeprefix("killed by ") if how.startswith("killed by ") else ""


class _ParentGone(BaseException):
    """SIGIO on the life line."""


def _raise_parent_gone(number: int, frame: FrameType | None) -> NoReturn:
    raise _ParentGone


class ForkedWorker:
    """A LocalWorker in a child of its own, asked by the names of its methods. ``stage_names``: what it beats for."""

    def __init__(self, spec: Spec, lane: int, stage_names: tuple[str, ...], deadline_s: float = 10.0) -> None:
        self.pid = 0
        commands, self._commands = os.pipe()
        names = [word for name in stage_names for word in (name, f"release of {name}")]

        def work(watch: Any) -> None:
            _serve(spec, lane, commands, watch)

        self._child = WatchedChild(work, deadline_s=deadline_s, names=names, keep=(commands, *spec.keep))
        try:
            self._child.start()
        finally:
            os.close(commands)
        self.pid = self._child.pid

    def ask(self, command: str, argument: Any = None) -> Any:
        """Send a command and wait for its answer. Raises Hang, Killed, or what the worker raised."""
        self.send(command, argument)
        return self.answer()

    def send(self, command: str, argument: Any = None) -> None:
        """Send only: all workers get their order before the first answer is waited for."""
        body = pickle.dumps((command, argument))
        try:
            os.write(self._commands, _HEAD.pack(len(body)) + body)
        except BrokenPipeError:
            pass  # answer() says how it ended

    def answer(self) -> Any:
        """The answer to the last command."""
        event = self._child.poll(_PATIENCE_S)
        if isinstance(event, Message):
            worked, value = event.value
            if not worked:
                raise value
            return value
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Stuck):
            if event.age_s and not event.state.startswith(("exit", "killed", "gone")):
                raise Hang(event)
            raise Killed(event.state, event.path)
        raise TimeoutFailure(f"the worker gave no answer within {_PATIENCE_S:g} s")

    def kill(self) -> None:
        """SIGKILL while it holds everything; returns when the process is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End the child whatever it does; safe to call twice."""
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1
        self._child.close()


def _serve(spec: Spec, lane: int, commands: int, watch: Any) -> None:
    """The child: obey until the pipe ends, then release in order."""
    left_to_parent()
    signal.signal(signal.SIGIO, _raise_parent_gone)
    worker: LocalWorker | None = None
    try:
        while True:
            message = _receive(commands)
            if message is None:
                return
            command, argument = message
            try:
                if worker is None:
                    worker = LocalWorker(spec, lane, watch.slot.beat)
                value = worker.obey(command, argument)
            except (AccelError, OSError) as error:
                watch.send((False, _portable(error)))
                continue
            watch.send((True, value))
            if command == "finish":
                worker = None
                return
    except _ParentGone:
        pass
    finally:
        if worker is not None:
            worker.finish()


def _portable(error: AccelError | OSError) -> Exception:
    """The error if it survives the pipe, else one of the same words and exit code."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception class with arguments of its own
        kind = error.kind if isinstance(error, AccelError) else "os_error"
        return AccelError(str(error), getattr(error, "hint", None), kind=kind)
    return error


def _receive(fd: int) -> tuple[str, Any] | None:
    head = _exactly(fd, _HEAD.size)
    if head is None:
        return None
    body = _exactly(fd, _HEAD.unpack(head)[0])
    found: tuple[str, Any] | None = pickle.loads(body) if body is not None else None
    return found


def _exactly(fd: int, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        part = os.read(fd, count - len(data))
        if not part:
            return None
        data += part
    return data


class Crew:
    """All workers of a run. ``forked`` False: one worker, in this process (a library's user, a test)."""

    def __init__(
        self, spec: Spec, stage_names: tuple[str, ...], *, forked: bool = True, deadline_s: float = 10.0
    ) -> None:
        self.size = spec.plan.workers if forked else 1
        self._local = None if forked else LocalWorker(spec)
        self.workers: list[ForkedWorker] = []
        try:
            for lane in range(self.size if forked else 0):
                self.workers.append(ForkedWorker(spec, lane, stage_names, deadline_s))
        except BaseException:
            self.close()
            raise

    def ask(self, command: str, argument: object = None) -> list[Any]:
        """One command to all, then all their answers: they work at the same time. Raises what the first raised."""
        if self._local is not None:
            return [self._local.obey(command, argument)]
        for worker in self.workers:
            worker.send(command, argument)
        answers, wrong = [], None
        for worker in self.workers:
            try:
                answers.append(worker.answer())
            except Exception as error:  # the others' answers must be taken out of their pipes
                wrong = wrong or error
        if wrong is not None:
            raise wrong
        return answers

    @property
    def pid(self) -> int:
        """The first worker's process."""
        return self.workers[0].pid if self.workers else os.getpid()

    def infos(self) -> list[CounterInfo]:
        """The counters that each worker can read."""
        infos: list[CounterInfo] = self.ask("infos")[0]
        return infos

    def close(self) -> None:
        """End them all, whatever they do."""
        for worker in self.workers:
            worker.close()
