"""What watching clients costs: 500 processes with 10 descriptors each, on 16 made-up cards, as real files.

`python -m tests.perf.fdinfo` prints the figures. A steady tick is one of those that follow the first: every client is
read, and some of the processes are looked at again. In each tick others of the clients have worked, one in a hundred.

How many clients 5000 descriptors are is the program's choice: Mesa duplicates the one it got, compute runtimes open a
node for each device. Two clients with five descriptors each and ten clients of one descriptor, the worst there is, are
held to the same limits. (On a machine where a tick costs more than the budget, the sampler's period is stretched.)

Files of a folder stand for those of /proc: to read those costs the kernel about as much.
"""

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median, quantiles

from accelctl.abi.telemetry import Draft, Tick
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import LiveTree, NodeStat, node_stat
from accelctl.telemetry.clients import Clients
from tests.fdkit import SECOND, Machine, drm
from tests.perf.bench import Result

CARDS, PROCESSES, FILES, CLIENTS = 16, 500, 10, 2
TICKS = 60
BUSY = 100
"""One of so many clients works in a tick."""
_LIBRARIES = [f"7f{n:06x}0000-7f{n:06x}8000 r-xp 00000000 08:01 {n}   /usr/lib/lib{n}.so.1\n" for n in range(120)]


class Prefixed(LiveTree):
    """The calls of the running machine's tree, below a prefix."""

    live = False

    def __init__(self, folder: str) -> None:
        self.name = folder
        self._at = folder.rstrip("/")[1:] + "/"

    def read(self, path: str, limit: int) -> bytes:
        """A file."""
        return super().read(self._at + path, limit)

    def listdir(self, path: str) -> list[str]:
        """A folder."""
        return super().listdir(self._at + path)

    def readlink(self, path: str) -> str:
        """A link."""
        return super().readlink(self._at + path)

    def resolve(self, path: str) -> str:
        """The real path below the prefix. Below proc that is the path: the live tree asks for none."""
        return path if path.startswith("proc/") else super().resolve(self._at + path).removeprefix(self._at)

    def stat(self, path: str) -> NodeStat:
        """stat(2)."""
        return node_stat(f"/{self._at}{path}")


class Load:
    """A machine whose clients work, and the source that watches them."""

    def __init__(self, folder: Path, processes: int, clients: int) -> None:
        self.machine = Machine(folder, CARDS)
        self.clients: list[tuple[list[Path], int, int]] = []
        for number in range(processes):
            self._process(1000 + number, number % CARDS, clients)
        self.source = Clients(SysRoot(Prefixed(str(folder))))
        self.at = 0

    def _process(self, pid: int, card: int, clients: int) -> None:
        """Its mappings are as many as those of a program with a hundred libraries."""
        node = f"/dev/dri/renderD{128 + card}"
        maps = "".join([*_LIBRARIES, *(f"7e{n:06x}0000-7e{n:06x}8000 rw-s 0 00:06 9   {node}\n" for n in range(8))])
        owners = [pid * 100 + n % clients for n in range(FILES)]
        self.machine.process(pid, {3 + n: (node, text(card, one, 0)) for n, one in enumerate(owners)}, maps=maps)
        base = self.machine.folder / f"proc/{pid}/fdinfo"
        for client in sorted(set(owners)):
            files = [base / str(3 + n) for n, one in enumerate(owners) if one == client]
            self.clients.append((files, card, client))

    def work(self, every: int) -> None:
        """Some clients go on."""
        for files, card, one in self.clients[self.at % every :: every]:
            for file in files:
                file.write_text(text(card, one, self.at * 1_000_000))

    def tick(self) -> tuple[float, Draft]:
        """Processor time of one tick, in seconds."""
        elapsed = SECOND if self.at else 0
        self.at += 1
        draft = Draft()
        tick = Tick(0, self.at * SECOND, elapsed, enter)
        begin = time.process_time()
        self.source.sample(draft, tick)
        return time.process_time() - begin, draft

    def measure(self, every: int = BUSY, ticks: int = TICKS) -> list[float]:
        """Times of steady ticks."""
        times = []
        for _ in range(ticks):
            self.work(every)
            times.append(self.tick()[0])
        return times


def text(card: int, client: int, busy_ns: int) -> str:
    """What amdgpu prints since 6.13: sizes of eight regions, two engines."""
    regions = ("vram", "gtt", "cpu", "gds", "gws", "oa", "doorbell")
    sizes = [f"drm-{kind}-{region}:\t{'4 MiB' if region == 'vram' else '0'}"
             for region in regions for kind in ("total", "shared", "resident")]  # fmt: skip
    own = [f"drm-memory-{region}:\t0 KiB" for region in regions[:3]] + ["amd-evicted-vram:\t0 KiB"]
    engines = [f"drm-engine-gfx:\t{busy_ns} ns", f"drm-engine-compute:\t{busy_ns // 2} ns"]
    return drm("amdgpu", Machine.address(card), client, *sizes, *own, *engines)


_slot: list[str] = [""]


def enter(path: str) -> None:
    """As dear as a slot that another process reads (about 1 us)."""
    _slot[0] = path
    path.encode("utf-8", "surrogatepass")
    time.monotonic_ns()


def p95(times: list[float]) -> float:
    """The 95th percentile, in milliseconds."""
    return quantiles(times, n=20)[-1] * 1e3


def steady(what: str, load: Load) -> Iterable[Result]:
    """Figures of one machine; it is closed."""
    first, draft = load.tick()
    load.measure(ticks=6)
    times = load.measure()
    detail = f"{len(load.clients)} clients, {PROCESSES} processes, {CARDS} cards; first look {first * 1e3:.0f} ms"
    yield Result(f"{what}: p95 of a tick", p95(times), "ms", 50, f"{detail}, {draft.reads} reads")
    tick, floor = median(times), bare(load)
    detail = f"{tick * 1e3:.1f} ms a tick; its {len(load.clients)} preads alone: {floor * 1e3:.1f} ms"
    yield Result(f"{what}: share of a core at 1 Hz", tick * 100, "%", 2, detail)
    load.source.close()


def bare(load: Load) -> float:
    """Seconds of reading every client's file in place and doing nothing with it: what no program can go below."""
    fds = [os.open(files[0], os.O_RDONLY) for files, _, _ in load.clients]
    times = []
    for _ in range(9):
        begin = time.process_time()
        for fd in fds:
            os.pread(fd, 4096, 0)
        times.append(time.process_time() - begin)
    for fd in fds:
        os.close(fd)
    return median(times)


def measure() -> Iterable[Result]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        yield from steady("5000 files", Load(Path(folder) / "few", PROCESSES, CLIENTS))
        yield from steady("5000 clients", Load(Path(folder) / "many", PROCESSES, FILES))
        yield linear(*(Load(Path(folder) / str(n), n, FILES) for n in (PROCESSES // 5, PROCESSES)))


def linear(small: Load, large: Load) -> Result:
    """1,000 descriptors against 5,000, in turns."""
    for one in (small, large):
        one.measure(ticks=6)
    pairs = [(large.measure(ticks=1)[0], small.measure(ticks=1)[0]) for _ in range(TICKS)]
    value = median(many for many, _ in pairs) / median(few for _, few in pairs)
    for one in (small, large):
        one.source.close()
    return Result("a tick of 5000 clients / of 1000", value, "x", 6, f"5 is linear; {len(pairs)} pairs")


if __name__ == "__main__":
    for result in measure():
        print(result, flush=True)
