"""What `accelctl top` costs: on a pseudo-terminal, with 8 made-up cards and 64 processes that use them.

`python -m tests.perf.top` prints the figures; `python -m tests.perf.top hours` what ten hours add to its memory, which
takes a quarter of an hour and is no part of `make bench`. Processor time and memory are those of the kernel's own
accounts (/proc/PID/stat, smaps_rollup) for the program and its children, from outside.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from tests.fdkit import Machine, drm
from tests.perf.bench import Result
from tests.tui.ptykit import Screen

CARDS, PROCESSES = 8, 64
STARTS = 7
SECONDS = 20.0
HANGS_S = 60.0
TICK = os.sysconf("SC_CLK_TCK")


def machine(folder: Path) -> None:
    """Each process has one client with memory and an engine."""
    made = Machine(folder, CARDS)
    for number in range(PROCESSES):
        card = number % CARDS
        text = drm("amdgpu", Machine.address(card), number, "drm-total-vram:\t64 MiB", "drm-engine-gfx:\t1000 ns")
        made.process(1000 + number, {3: (f"/dev/dri/renderD{128 + card}", text)}, name=f"work{number}")


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def cpu_s(pid: int) -> float:
    """Processor time so far, of children that have ended as well."""
    total = 0
    for one in family(pid):
        words = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += sum(int(word) for word in words[11:15])
    return total / TICK


def memory_mib(pid: int, kind: str) -> float:
    """Rss or Pss of one process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) / 1024


def results() -> Iterable[Result]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        machine(Path(folder))
        command = ("accelctl", "top", "--root", folder, "--screen", "processes")
        # as after an installation: byte code is there
        compiled = {"PYTHONDONTWRITEBYTECODE": None, "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
        starts = []
        for _ in range(STARTS + 1):
            begin = time.monotonic()
            with Screen(*command, size=(120, 50), env=compiled) as screen:
                screen.read_until(b"work")
                starts.append(time.monotonic() - begin)
                screen.type(b"q")
                screen.wait()
        del starts[0]
        detail = f"median of {STARTS}; from exec to the rows of processes; {min(starts) * 1e3:.0f} ms at best"
        yield Result("top: first frame with numbers", median(starts) * 1e3, "ms", 500, detail)
        with Screen(*command, size=(120, 50)) as screen:
            screen.read_until(b"work")
            _idle(screen, 3.0)
            before = cpu_s(screen.pid)
            _idle(screen, SECONDS)
            share = (cpu_s(screen.pid) - before) / SECONDS
            rss = memory_mib(screen.pid, "Rss")
            pss = sum(memory_mib(pid, "Pss") for pid in family(screen.pid))
            times = keys_while_it_hangs(screen, HANGS_S)
            screen.type(b"q")
            screen.wait()
        worst = f"the worst of {len(times)} keys; median {median(times) * 1e3:.0f} ms"
        yield Result(f"top: key to screen while a source hangs for {HANGS_S:g} s", max(times) * 1e3, "ms", 100, worst)
        yield Result("top: share of a core at 1 Hz, all its processes", share * 100, "%", 6, f"{SECONDS:g} s")
        yield Result("top: memory of the screen's process", rss, "MiB", 80, "RSS")
        yield Result("top: memory of all its processes", pss, "MiB", 130, "PSS")


def hours(ticks: int = 36_000, first: int = 3_000) -> Iterable[Result]:
    """What so many ticks, as fast as they go, add to the memory of the whole program, screen and sampler: ten hours at
    1 Hz. The first of them fill the charts."""
    with tempfile.TemporaryDirectory() as folder:
        machine(Path(folder))
        count = Path(folder) / "count"
        with Screen("tests.tui.host", "live", folder, str(count), size=(120, 50)) as screen:
            begin = _after(screen, count, first)
            end = _after(screen, count, ticks + first)
            screen.type(b"q")
            screen.wait()
        for name, before, after in zip(("screen", "sampler"), begin, end, strict=True):
            detail = f"{before:.1f} MiB after {first:,} ticks, {after:.1f} after {ticks + first:,}"
            yield Result(f"top: growth of the {name}'s process in {ticks:,} ticks", after - before, "MiB", 5, detail)


def _after(screen: Screen, count: Path, ticks: int) -> list[float]:
    """Memory of the screen's process and of the sampler's, once so many ticks have come."""
    while not count.exists() or int(count.read_text() or 0) < ticks:
        screen._take(0.5)
        screen.sent = b""
    return [memory_mib(pid, "Rss") for pid in family(screen.pid)[:2]]


def keys_while_it_hangs(screen: Screen, seconds: float) -> list[float]:
    """Seconds from a key to the screen that it asks for, while whatever samples is stopped, as by a driver that does
    not answer; a new sampler is stopped as well."""
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for key, tab in ((b"2", b"[2 Memory]"), (b"5", b"[5 Processes]")):
            for child in family(screen.pid)[1:]:
                os.kill(child, signal.SIGSTOP)
            screen.drain(0.2)
            begin = time.monotonic()
            screen.type(key)
            screen.read_until(tab)
            times.append(time.monotonic() - begin)
    return times


def _idle(screen: Screen, seconds: float) -> None:
    """Let it work, and take what it draws."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        screen.drain(0.5)


if __name__ == "__main__":
    for result in hours() if sys.argv[1:] == ["hours"] else results():
        print(result, flush=True)
