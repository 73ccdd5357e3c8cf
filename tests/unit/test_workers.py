"""Workers in processes of their own: commands, hangs, kills, a parent that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accelctl.abi.lifecycle import Block, Env, Memory, Target
from accelctl.errors import NoDeviceError
from accelctl.stress.crew import Crew, ForkedWorker, Hang, Killed
from accelctl.stress.plan import MIB, Plan
from accelctl.stress.worker import LocalWorker, Spec
from tests.helpers import ROOT
from tests.stresskit import TARGET, Toy, ToyMemory, ToySession

STAGES = ("object", "offset", "cpu_map")


def environment(memory: Memory, target: Target) -> Env:
    return Env()


def spec(memory: Memory | None = None, **plan: object) -> Spec:
    return Spec(memory or ToyMemory(), TARGET, "plain", Plan(**{"bytes_limit": MIB, **plan}), environment)  # type: ignore[arg-type]


def forked(what: Spec, deadline_s: float = 10.0) -> ForkedWorker:
    return ForkedWorker(what, 0, STAGES, deadline_s)


@pytest.mark.parametrize("kind", ["local", "forked"])
def test_a_run_from_trial_to_census(kind: str) -> None:
    crew = Crew(spec(), STAGES, forked=kind == "forked")
    assert crew.ask("trial") == [""]
    assert [info.name for info in crew.infos()] == ["toy-handles"]
    assert crew.ask("run", 500)[0].cycles == 500
    crew.ask("drain")
    assert crew.ask("read") == [{"toy-handles": 0}]
    assert crew.ask("fill")[0] > 0
    final = crew.ask("finish")[0]
    crew.close()
    assert (final.cycles, final.outstanding, final.mistake_count) == (500, (), 0)
    assert final.census == {"toy-handles": 0}
    held, acquired, released, _ = final.stages["object"]
    assert held == 0
    assert acquired == released == 1 + 500 + 8


def test_threads_share_the_cycles() -> None:
    worker = LocalWorker(spec(threads=3, hold=2))
    assert worker.run(300).cycles == 300
    assert worker.finish().stages["object"][1] == 300


def test_a_lifecycle_that_is_not_there_is_named() -> None:
    for name, text in (("never", "the toy is small"), ("other", "has no lifecycle other; it has: plain, never")):
        with pytest.raises(NoDeviceError, match=text):
            LocalWorker(Spec(ToyMemory(), TARGET, name, Plan(), environment))
    worker = ForkedWorker(Spec(ToyMemory(), TARGET, "other", Plan(), environment), 0, STAGES)
    with pytest.raises(NoDeviceError, match="has no lifecycle other"):
        worker.ask("trial")
    worker.close()


def test_two_workers_work_at_the_same_time() -> None:
    crew = Crew(spec(workers=2), STAGES)
    assert [progress.cycles for progress in crew.ask("run", 200)] == [200, 200]
    assert [final.cycles for final in crew.ask("finish")] == [200, 200]
    crew.close()


class Hanging(ToyMemory):
    """Its offset stage never returns once a file is there: it opens a FIFO that nobody writes to."""

    def __init__(self, fifo: Path) -> None:
        super().__init__()
        self.fifo = fifo

    def open(self, target: Target, env: Env) -> ToySession:
        session = super().open(target, env)

        def stuck(block: Block) -> int:
            with open(self.fifo, encoding="ascii") as file:
                return len(file.read())

        life = session.lifecycles[0]
        stages = (life.stages[0], life.stages[1]._replace(acquire=stuck), life.stages[2])
        return ToySession(session.toy, (life._replace(stages=stages),))


def test_a_call_that_hangs_is_named_and_left_behind(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    worker = forked(spec(Hanging(fifo)), deadline_s=0.5)
    with pytest.raises(Hang, match=r"offset has not returned for .* s") as caught:
        worker.ask("run", 10)
    assert caught.value.call == "offset"
    worker.close()


def test_a_worker_that_crashes_is_told_from_one_that_hangs() -> None:
    def crash(toy: Toy) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    worker = forked(spec(ToyMemory(crash)))
    with pytest.raises(Killed, match="SIGSEGV"):
        worker.ask("trial")
    worker.close()


def test_kill_leaves_no_process() -> None:
    worker = forked(spec())
    assert worker.ask("fill") > 0
    pid = worker.pid
    worker.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


PARENT = """
import sys
from pathlib import Path
from accelctl.stress.crew import ForkedWorker
from tests.stresskit import Toy, ToyMemory
from tests.unit.test_workers import spec, STAGES

class Noting(ToyMemory):
    def open(self, target, env):
        session = super().open(target, env)
        census = session.census
        def noted():
            found = census()
            Path(sys.argv[1]).write_text(repr(found))
            return found
        session.census = noted
        return session

worker = ForkedWorker(spec(Noting()), 0, STAGES)
worker.ask("fill")
print("ready", flush=True)
worker.send("idle", 60)
import time; time.sleep(60)
"""


def test_a_worker_whose_parent_dies_releases_in_order_and_ends(tmp_path: Path) -> None:
    note = tmp_path / "census"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(note)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 10
    while not (note.exists() and note.read_text(encoding="ascii")):
        assert time.monotonic() < end, "the worker did not release what it held"
        time.sleep(0.05)
    assert note.read_text(encoding="ascii") == "{'toy-handles': 0}"
