"""One process and what it holds of devices: descriptors, mappings, buffers. Looked at now and then, not at each tick.

What a look costs grows with the descriptors and mappings of a process, so most of them are dismissed by their link
alone. Mappings are read of processes that have, or had, something of a device open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from accelctl.hal import fdinfo
from accelctl.hal.procfile import Stat, parse_stat, parse_status
from accelctl.hal.root import SysRoot
from accelctl.model.snapshot import Gone, ProcessLevel
from accelctl.telemetry.nodes import DRM_MAJORS, Nodes

Read = Callable[[str], str]
"""The text of a file below the root; OSError where it is not to be had."""

_MOST_BUFFERS = 512
"""dma-bufs of one process that are asked for their size at a look."""
UNPLACED = ""
"""The device of what cannot be given to one: a buffer of a process that has several devices open."""


class Descriptor(NamedTuple):
    """One open file of a device. ``drm``: its fdinfo may tell of a client."""

    number: str
    device: str
    drm: bool


class Held(NamedTuple):
    """The open files of one look that matter."""

    descriptors: tuple[Descriptor, ...] = ()
    buffers: tuple[str, ...] = ()
    """Numbers of dma-bufs."""


class Process:
    """What is known of one process. (pid, started) is it: numbers are reused."""

    __slots__ = (
        "buffers", "clients", "container", "drm", "ever", "files", "gap", "held", "hidden", "kernel", "links", "looks",
        "loose", "mapped", "name", "pid", "places", "row", "started", "state", "uid", "wchan",
    )  # fmt: skip

    def __init__(self, pid: int, started: int) -> None:
        self.pid = pid
        self.started = started
        self.name = self.state = self.wchan = ""
        self.uid: int | None = None
        self.container = False
        self.kernel = False
        self.hidden = False
        self.looks = 0
        self.links: dict[str, str] | None = None
        """Number -> link of what may be a device's or a buffer; None: to be sorted anew at the next look."""
        self.held = Held()
        self.ever = False
        """Whether it holds or held anything of a device: only then its mappings are read."""
        self.files: dict[str, int] = {}
        self.mapped: dict[str, int] = {}
        self.buffers: dict[int, tuple[str, int]] = {}
        """Inode of a dma-buf (below 0: it has none) -> (device, bytes): descriptors of one buffer count once."""
        self.drm: dict[str, tuple[str, tuple[str, str] | None]] = {}
        """Number of a DRM file -> its link and its client."""
        self.loose: list[Descriptor] = []
        """DRM files that are not read at each tick: duplicates, and those of drivers that say nothing."""
        self.clients: dict[tuple[str, str], int] = {}
        self.places: dict[str, tuple[str, bool] | None] = {}
        """Link -> (device, is it a DRM file), of the links that are open."""
        self.row: ProcessLevel | None = None
        self.gap: tuple[tuple[str, Gone], ...] = ()
        """Devices of which it holds memory that is not known, and why; made with the row."""

    def shown(self) -> tuple[object, ...]:
        """What a look at its files makes of its row."""
        return self.files, self.mapped, self.buffers, self.clients

    @property
    def base(self) -> str:
        """Its folder below the root."""
        return f"proc/{self.pid}"

    @property
    def holds(self) -> bool:
        """Whether there is anything to show of it."""
        return bool(self.files or self.mapped or self.buffers or self.clients)


def open_files(root: SysRoot, base: str, state: str) -> dict[str, str]:
    """Number -> link. A process whose first thread has ended shows its open files with the others only (holders of
    :mod:`accelctl.hal.proc` know the same). Raises PermissionError where they may not be listed."""
    found: dict[str, str] = {}
    try:
        found = fdinfo.device_links(root, f"{base}/fd")
    except PermissionError:
        if state != "Z":
            raise
    if found or state != "Z":
        return found
    for thread in _names(root, f"{base}/task"):
        try:
            found = fdinfo.device_links(root, f"{base}/task/{thread}/fd")
        except OSError:
            continue
        if found:
            break
    return found


def _names(root: SysRoot, folder: str) -> list[str]:
    try:
        return root.tree.listdir(folder)
    except OSError:
        return []


def sort(root: SysRoot, nodes: Nodes, process: Process, links: Mapping[str, str]) -> Held:
    """Which of these files are a device's, and which are buffers."""
    found = []
    buffers = []
    places: dict[str, tuple[str, bool] | None] = {}
    for number, text in links.items():
        if fdinfo.kind_of(text) == "dmabuf":
            buffers.append(number)
            continue
        if text not in places:
            known = process.places.get(text)
            places[text] = known or _place(root, nodes, f"{process.base}/fd/{number}", text)
        place = places[text]
        if place is not None:
            found.append(Descriptor(number, *place))
    process.places = places
    return Held(tuple(found), tuple(buffers))


def _place(root: SysRoot, nodes: Nodes, path: str, text: str) -> tuple[str, bool] | None:
    """(device, is it a DRM file). By number wherever it can be asked: in another mount namespace the same name may be
    another device's."""
    number: tuple[int, int] | None = None
    try:
        info = root.tree.stat(path)
        if info.kind == "c":
            number = info.major, info.minor
    except OSError:
        pass
    if number is None and not root.live:
        number = nodes.number(text)
    if number is None and root.live:
        return None
    device = nodes.device(number, text)
    return None if device is None else (device, number is not None and number[0] in DRM_MAJORS)


def count(process: Process, nodes: Nodes, read: Read) -> None:
    """Descriptors by device, and bytes of dma-bufs. Without inode numbers (before Linux 5.14) each descriptor is a
    buffer."""
    files = Counter(one.device for one in process.held.descriptors)
    buffers: dict[int, tuple[str, int]] = {}
    only = only_device(process.held.descriptors)
    for index, number in enumerate(process.held.buffers):
        device = only
        try:
            text = read(f"{process.base}/fdinfo/{number}") if index < _MOST_BUFFERS else ""
            buffer = fdinfo.parse_dmabuf(text)
            device = nodes.maker(fdinfo.exporter(text)) or only
            buffers[buffer.inode or -index - 1] = device, buffer.size
        except (OSError, ValueError):
            pass
        files[device] += 1
    process.files, process.buffers = dict(files), buffers


def only_device(descriptors: tuple[Descriptor, ...]) -> str:
    """The device of a buffer that does not tell: the one that the process has open, if it is one."""
    devices = {one.device for one in descriptors}
    drm = {one.device for one in descriptors if one.drm}
    found = devices if len(devices) == 1 else drm
    return next(iter(found)) if len(found) == 1 else UNPLACED


def take_mappings(process: Process, nodes: Nodes, text: str) -> None:
    """Bytes of mappings by device. A node's mapping bears the node's name, a dma-buf's its inode number."""
    only = only_device(process.held.descriptors)
    found: dict[str, int] = {}
    for (name, inode), size in fdinfo.mappings(text).items():
        kind = fdinfo.kind_of(name)
        if kind == "dmabuf":
            device = process.buffers.get(inode, (only, 0))[0]
        elif name.startswith(("/drm mm object", "anon_inode:i915.gem")):
            device = only
        elif not fdinfo.may_be_device(name):
            continue
        else:
            place = process.places.get(name)
            at = place[0] if place else nodes.device(nodes.number(name), name)
            if at is None:
                continue
            device = at
        found[device] = found.get(device, 0) + size
    process.mapped = found


def take_state(process: Process, stat: Stat, read: Read) -> bool:
    """What a process does, and where it waits if it cannot be killed; True where that is new."""
    wchan = ""
    if stat.state == "D":
        try:
            wchan = read(f"{process.base}/wchan").strip()
        except OSError:
            pass
    before = process.name, process.state, process.wchan
    process.name, process.state, process.wchan = stat.comm, stat.state, "" if wchan == "0" else wchan
    process.kernel = stat.kernel_thread
    return before != (process.name, process.state, process.wchan)


def identify(process: Process, read: Read) -> None:
    """Whose it is, and whether it lives in a PID namespace below the reader's (NSpid of proc(5): a number for each)."""
    try:
        text = read(f"{process.base}/status")
        process.uid = parse_status(text).uid
    except (OSError, ValueError):
        return
    numbers = fdinfo.parse_fields(text).get("NSpid", "")
    process.container = len(numbers.split()) > 1


def stat_of(base: str, read: Read) -> Stat:
    """/proc/PID/stat; OSError or ValueError where it cannot be had."""
    return parse_stat(read(f"{base}/stat"))
