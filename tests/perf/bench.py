"""`make bench`: what must hold about speed, as ratios of things measured in turns within one run.

Each comparison runs its commands alternately, so that a machine that gets slower or faster meanwhile hits all of them.
The figure is the median of the rounds; its limit comes from the requirements. Exit status 1 when a limit is broken.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.helpers import environment
from tests.synthetic import make_machine

PYTHON = sys.executable
SCRIPT = str(Path(PYTHON).with_name("accelctl"))
Command = Sequence[str]


class Result(NamedTuple):
    """One line of the report. limit None: only for information."""

    what: str
    value: float
    unit: str
    limit: float | None
    detail: str

    @property
    def good(self) -> bool:
        """Whether the limit holds."""
        return self.limit is None or self.value <= self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"<= {self.limit:g} {self.unit}"
        word = "" if self.limit is None else "ok" if self.good else "TOO SLOW"
        return f"{self.what:<44} {self.value:8.2f} {self.unit:<2} {limit:<9} {word:<8}  {self.detail}"


def seconds(command: Command) -> float:
    """Wall time of one run, output thrown away; a command that cannot run is an error, findings (exit 1) are not."""
    start = time.perf_counter()
    done = subprocess.run(command, env=ENV, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    spent = time.perf_counter() - start
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
    return spent


ENV = environment({"PYTHONDONTWRITEBYTECODE": None})


def in_turns(rounds: int, *commands: Command) -> list[list[float]]:
    """Per command its times; one unmeasured round first, to fill caches and write byte code."""
    for command in commands:
        seconds(command)
    times: list[list[float]] = [[] for _ in commands]
    for number in range(rounds):
        order = range(len(commands)) if number % 2 == 0 else reversed(range(len(commands)))
        for index in order:
            times[index].append(seconds(commands[index]))
    return times


def ratio(what: str, ours: Command, theirs: Command, limit: float | None, rounds: int) -> Result:
    """Median over the rounds of ours / theirs."""
    one, other = in_turns(rounds, ours, theirs)
    value = median(a / b for a, b in zip(one, other, strict=True))
    detail = f"{median(one) * 1e3:.1f} ms / {median(other) * 1e3:.1f} ms, {rounds} pairs"
    return Result(what, value, "x", limit, detail)


def version() -> Iterable[Result]:
    """`--version` against an empty Python program, as a module and as the installed script."""
    empty = [PYTHON, "-c", "pass"]
    yield ratio("--version / python -c pass (script)", [SCRIPT, "--version"], empty, 2.5, 31)
    yield ratio("--version / python -c pass (python -m)", [PYTHON, "-m", "accelctl", "--version"], empty, 2.5, 31)


def help_pages() -> Iterable[Result]:
    """Help, for information: what it loads is held by tests/unit/test_imports.py."""
    empty = [PYTHON, "-c", "pass"]
    yield ratio("--help / python -c pass", [SCRIPT, "--help"], empty, None, 15)
    yield ratio("completion --help / python -c pass", [SCRIPT, "completion", "--help"], empty, None, 15)


def scale() -> Iterable[Result]:
    """What devices cost: time with n devices less time with none, so that the start-up does not flatter the ratio."""
    with tempfile.TemporaryDirectory() as folder:
        roots = {n: make_machine(Path(folder) / str(n), n) for n in (0, 8, 64)}
        commands = [[SCRIPT, "probe", "--json", "--root", str(root)] for root in roots.values()]
        none, eight, many = in_turns(15, *commands)
    few_cost, many_cost = median(eight) - median(none), median(many) - median(none)
    walls = ", ".join(f"{n}: {median(t) * 1e3:.0f} ms" for n, t in zip(roots, (none, eight, many), strict=True))
    yield Result("64 synthetic devices / 8", many_cost / few_cost, "x", 9, f"start-up taken off; {walls}")
    yield Result("each of 64 synthetic devices", many_cost / 64 * 1e3, "ms", 5, "start-up taken off")


def lshw() -> Iterable[Result]:
    """The whole process against the tool that people use for this now, on this very machine."""
    if shutil.which("lshw") is None:
        print("lshw is not installed (apt install lshw): not compared", file=sys.stderr)
        return
    theirs = ["lshw", "-C", "display", "-json"]
    yield ratio("probe --json / lshw -C display -json", [SCRIPT, "probe", "--json"], theirs, 2, 15)


def serve() -> Iterable[Result]:
    """Translations of the service against an empty call. (Imported here: those modules use this one.)"""
    from tests.perf import serve

    yield from serve.results()


def channel() -> Iterable[Result]:
    """The data channel against memcpy and against gRPC streaming."""
    from tests.perf import channel

    yield from channel.channel()


def soak() -> Iterable[Result]:
    """64 sessions for 60 s with mixed ops, and 50 killed processes: how much went wrong."""
    from tests import soak

    found = soak.soak(64, 60.0)
    rate = f"{found.ops / found.seconds:.0f} ops/s, RSS {found.rss_growth_bytes / 2**20:+.1f} MiB"
    yield Result("64 sessions for 60 s: wrong results", len(found.wrong), "", 0, rate)
    yield Result("bytes that they left", found.left_bytes, "B", 0, "in the service's pools")
    yield Result("50 killed processes: wrong afterwards", len(soak.kill(50)), "", 0, "clients and services in turns")


def top() -> Iterable[Result]:
    """The monitor: its start, what it costs at 1 Hz, and 5,000 descriptors of clients."""
    from tests.perf import fdinfo, top

    yield from top.results()
    yield from fdinfo.measure()


def plugins() -> Iterable[Result]:
    """What many installed plug-ins cost."""
    return _of("plugins")


def dispatch() -> Iterable[Result]:
    """What choosing a special kernel adds to an op."""
    return _of("dispatch")


def _of(name: str) -> Iterable[Result]:
    """The figures of a module beside this one. (Imported late: those modules use this one.)"""
    found: Iterable[Result] = import_module(f"tests.perf.{name}").report()
    return found


PARTS: dict[str, Callable[[], Iterable[Result]]] = {
    "version": version,
    "help": help_pages,
    "scale": scale,
    "lshw": lshw,
    "serve": serve,
    "channel": channel,
    "soak": soak,
    "top": top,
    "plugins": plugins,
    "dispatch": dispatch,
}


def main() -> int:
    """Run all parts, or those named on the command line, and print a line per figure as it is known."""
    wanted = sys.argv[1:] or list(PARTS)
    print(f"# {os.cpu_count()} CPUs, Python {sys.version.split()[0]}; medians of runs in turns")
    bad = 0
    for name in wanted:
        for result in PARTS[name]():
            print(result, flush=True)
            bad += not result.good
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
