"""The source "clients": who holds which device, from the open files, mappings and fdinfo of all visible processes.

A steady tick lists /proc and reads one kept file of each client in place; processes are looked at again in turns, all
of them within ``rescan_s``. A client's descriptors may be many, in several processes: it is counted once in its device
and shown with every holder.

No driver at hand prints drm- lines in fdinfo: clients, their memory and their engines are proven on recorded and
synthetic input only. Open files and mappings are counted for every driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from accelctl.hal import drmfdinfo, keptfiles, proc
from accelctl.hal.drmfdinfo import DrmClient
from accelctl.hal.keptfiles import KeptFile, KeptFiles
from accelctl.hal.root import SysRoot
from accelctl.model.snapshot import Gone
from accelctl.probes.pci import ADDRESS
from accelctl.telemetry import clientrows, processes
from accelctl.telemetry.client import Client, Group, Key
from accelctl.telemetry.nodes import Nodes
from accelctl.telemetry.processes import Descriptor, Process
from accelctl.telemetry.source import Draft, Tick

_LIMIT = 4 << 20
_MOST = 50
"""Looks at known processes in one tick: where there are more of them, a round takes longer than it should."""
_MANY = 200
"""Holders whose mappings are read at each look; of twice as many, at every second one, and so on."""
_FIRST_PID_SPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of include/linux/proc_ns.h: the machine's own


class Clients:
    """Fills open files, mappings, clients, attributed memory, engines and processes of a Draft.

    ``known``: device number -> id, as a scan found them. ``limit``: files kept open (None: what RLIMIT_NOFILE leaves).
    """

    name = "clients"

    def __init__(
        self,
        root: SysRoot,
        known: Mapping[tuple[int, int], str] | None = None,
        *,
        rescan_s: float = 5.0,
        limit: int | None = None,
    ) -> None:
        self._root, self._known, self._limit = root, known, limit
        self._nodes: Nodes
        self._files: KeptFiles
        self._rescan_ns = max(1, int(rescan_s * 1e9))
        self._processes: dict[int, Process] = {}
        self._clients: dict[Key, Client] = {}
        self._groups: dict[str, Group] = {}
        self._told: dict[KeptFile, Client] = {}
        self._ids: dict[tuple[str, bytes], Key] = {}
        self._restless: set[Client] = set()
        self._before_ns = 0
        self._turn: deque[int] = deque()
        self._debt = 0.0
        self._looked_ns: int | None = None
        self._seen: set[str] = set()
        self._tick: Tick
        self._reads = 0
        self._outside: Gone | None = None
        self._sums: clientrows.Sums | None = None
        self._stride = 1

    def sample(self, draft: Draft, tick: Tick) -> None:
        """One tick: new and due processes are looked at, every client is read, the draft is filled."""
        self._tick, self._reads = tick, 0
        if self._looked_ns is None:
            self._begin()
        self._refresh()
        self._find()
        self._write(draft)
        self._before_ns = tick.monotonic_ns
        draft.reads += self._reads

    def close(self) -> None:
        """Give every kept file back."""
        for client in self._clients.values():
            self._lose(client)
        self._clients.clear()
        self._groups.clear()
        self._ids.clear()
        self._processes.clear()
        self._turn.clear()

    # -- finding --

    def _begin(self) -> None:
        """In the child that samples: whoever makes a source reads and opens nothing."""
        self._looked_ns = self._tick.monotonic_ns
        self._nodes = Nodes(self._root, self._known)
        self._files = KeptFiles(self._root.tree, self._limit)
        self._seen = self._nodes.ids()
        self._outside = self._out_of_sight()

    def _find(self) -> None:
        """Processes that came are looked at now, those that stay in turns, those that went are forgotten."""
        tick = self._tick
        tick.enter("proc")
        here = {int(name) for name in self._root.tree.listdir("proc") if name.isdecimal()}
        for pid in self._processes.keys() - here:
            self._forget(pid)
        if self._looked_ns is not None and tick.monotonic_ns - self._looked_ns >= self._rescan_ns:
            self._look_at_nodes()
        came = sorted(here - self._processes.keys())
        self._debt = min(len(self._turn), self._debt + len(self._turn) * tick.elapsed_ns / self._rescan_ns)
        due = min(int(self._debt), _MOST)
        self._debt -= due
        while due and self._turn:
            pid = self._turn.popleft()
            if pid in self._processes:
                self._look(pid)
                due -= 1
                if pid in self._processes:
                    self._turn.append(pid)
        if came:  # a number that went before its turn still waits for it, and may be one of these
            self._turn = deque(pid for pid in self._turn if pid in self._processes)
        for pid in came:
            self._look(pid)
            if pid in self._processes:
                self._turn.append(pid)

    def _look_at_nodes(self) -> None:
        """Devices come and go, and their numbers are used again."""
        self._looked_ns = self._tick.monotonic_ns
        before = self._nodes.ids()
        self._nodes.look()
        if self._nodes.ids() != before:
            self._seen = self._nodes.ids() | self._groups.keys()
            for process in self._processes.values():
                process.places.clear()
                process.links = None

    def _read(self, path: str) -> str:
        tick = self._tick
        if path in tick.quarantine:
            raise TimeoutError(path)
        tick.enter(path)
        self._reads += 1
        return self._root.tree.read(path, _LIMIT).decode("utf-8", "replace")

    def _look(self, pid: int) -> None:
        """Everything about one process. What cannot be read leaves the rest as it is."""
        process = self._processes.get(pid)
        if process is None or not self._known_alive(process):
            process = self._meet(pid)
        if process is None or process.kernel:
            return
        before = process.shown()
        self._hold(process)
        process.looks += 1
        if process.shown() != before:
            process.row = None
            self._sums = None

    def _known_alive(self, process: Process) -> bool:
        """Where there are many, not each look reads the state of a process that a kept file proves to live."""
        told = process.links is not None and len(process.loose) < len(process.drm)
        return told and (process.looks + process.pid) % self._stride != 0

    def _meet(self, pid: int) -> Process | None:
        """Its state, and whether it is the one that had this number before; None where it cannot be had."""
        base = f"proc/{pid}"
        try:
            stat = processes.stat_of(base, self._read)
        except TimeoutError:
            return None
        except PermissionError:  # hidepid=1: kept, for not to be asked at each tick
            self._processes.setdefault(pid, Process(pid, -1))
            return None
        except (OSError, ValueError):
            self._forget(pid)
            return None
        process = self._processes.get(pid)
        if process is not None and process.started != stat.start_ticks:
            self._forget(pid)
            process = None
        if process is None:
            process = self._processes[pid] = Process(pid, stat.start_ticks)
            processes.identify(process, self._read)
        if processes.take_state(process, stat, self._read):
            process.row = None
        return process

    def _hold(self, process: Process) -> None:
        """What it has open and mapped. While the list of its links stays the same, little is asked again."""
        links = self._links(process)
        if links is None:
            return
        new = links != process.links
        if new:
            process.links = links
            process.held = processes.sort(self._root, self._nodes, process, links)
            self._descriptors(process)
        elif process.loose:
            self._check(process, process.loose[process.looks % len(process.loose)])
        if new or process.held.buffers:
            processes.count(process, self._nodes, self._read)
        if process.files or process.clients:
            process.ever = True
            self._seen.update(device for device in process.files if device)
        if process.ever and (new or (process.looks + process.pid) % self._stride == 0):
            self._map(process)

    def _links(self, process: Process) -> dict[str, str] | None:
        folder = f"{process.base}/fd"
        if folder in self._tick.quarantine:
            return None
        self._tick.enter(folder)
        process.hidden = False
        try:
            return processes.open_files(self._root, process.base, process.state)
        except PermissionError:
            process.hidden = True
        except OSError:
            pass
        return {}

    def _map(self, process: Process) -> None:
        try:
            processes.take_mappings(process, self._nodes, self._read(f"{process.base}/maps"))
        except (TimeoutError, PermissionError):  # what it was stays
            pass
        except (OSError, ValueError):
            process.mapped = {}
        self._seen.update(device for device in process.mapped if device)

    def _descriptors(self, process: Process) -> None:
        """Find out whose client each DRM file is."""
        drm: dict[str, tuple[str, Key | None]] = {}
        counts: dict[Key, int] = {}
        process.loose = []
        links = process.links or {}
        for one in process.held.descriptors:
            if not one.drm:
                continue
            found = self._client_at(process, one, links[one.number])
            drm[one.number] = links[one.number], found
            if found is not None:
                counts[found] = counts.get(found, 0) + 1
            if found is None or not self._kept_at(found, process, one):
                process.loose.append(one)
        process.drm = drm
        lost = process.clients.keys() - counts.keys()
        process.clients = counts
        for key, number in counts.items():
            client = self._clients[key]
            new = process.pid not in client.holders
            client.holders[process.pid] = number
            if new:
                self._stale(client)
        for key in lost:
            self._leave(self._clients[key], process.pid)

    def _check(self, process: Process, one: Descriptor) -> None:
        """A descriptor that is not read at each tick may have become another client's: one of them at each look."""
        link, before = process.drm[one.number]
        if self._client_at(process, one, link) != before:
            self._descriptors(process)

    def _kept_at(self, key: Key, process: Process, one: Descriptor) -> bool:
        client = self._clients.get(key)
        file = None if client is None else client.file
        return file is not None and file.path == f"{process.base}/fdinfo/{one.number}"

    def _client_at(self, process: Process, one: Descriptor, link: str) -> Key | None:
        """The client of a descriptor, read from it unless it is the one that is read at each tick anyway."""
        before = process.drm.get(one.number, ("", None))
        old = before[1] if before[0] == link else None
        if old is not None and self._kept_at(old, process, one):
            return old
        folder = f"{process.base}/fdinfo"
        path = f"{folder}/{one.number}"
        held = self._tick.quarantine
        if path in held or folder in held or one.device in self._tick.asleep:  # to read xe's fdinfo wakes the device
            process.links = None
            return old
        file = self._opened(process, path)
        if file is None:
            return None
        try:
            data = file.read()
        except OSError:
            data = b""
        known = self._ids.get((one.device, drmfdinfo.whose(data)))
        if known is not None and self._clients[known].file is not None:
            file.close()
            return known
        reading = drmfdinfo.parse(data.decode("utf-8", "replace"))
        if reading is None:
            file.close()
            return None
        return self._enter(process, one, file, data, reading)

    def _opened(self, process: Process, path: str) -> KeptFile | None:
        self._tick.enter(path)
        self._reads += 1
        try:
            return self._files.open(path)
        except PermissionError:
            process.hidden = True
        except OSError:
            pass
        return None

    def _enter(self, process: Process, one: Descriptor, file: KeptFile, data: bytes, reading: DrmClient) -> Key:
        at = _device(one.device, reading)
        key = at, reading.client_id or f"{process.pid}@{process.started}/{one.number}"
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = Client(key)
            client.whose = one.device, drmfdinfo.whose(data)
            if client.whose[1]:
                self._ids[client.whose] = key
            self._groups.setdefault(at, Group()).clients[key] = client
            self._seen.add(at)
        if client.file is None:
            client.file = file
            self._told[file] = client
            self._take(client, data, reading)
        else:
            file.close()
        return key

    def _leave(self, client: Client, pid: int) -> None:
        """A process holds this client no more: its file goes with it, and another holder's takes its place."""
        self._stale(client)
        client.holders.pop(pid, None)
        file = client.file
        if file is not None and (not client.holders or file.path.startswith(f"proc/{pid}/")):
            self._lose(client)
        if not client.holders and self._clients.pop(client.key, None) is not None:
            self._ids.pop(client.whose, None)
            group = self._groups[client.key[0]]
            group.remove(client)
            if not group.clients:
                del self._groups[client.key[0]]

    def _stale(self, client: Client) -> None:
        for pid in client.holders:
            process = self._processes.get(pid)
            if process is not None:
                process.row = None

    def _forget(self, pid: int) -> None:
        process = self._processes.pop(pid, None)
        self._sums = None
        for key in process.clients if process is not None else ():
            self._leave(self._clients[key], pid)

    # -- reading --

    def _refresh(self) -> None:
        """Read every client where it is."""
        resting = self._resting()
        files = [file for file, one in self._told.items() if one not in resting] if resting else list(self._told)
        new, gone = keptfiles.news(files, self._tick.enter)
        self._reads += len(files)
        moved = [self._told[file] for file in new]
        lost = [self._told[file] for file in gone]
        restless, self._restless = self._restless, set()
        for client in restless.difference(moved, lost, resting):
            if client.file is not None:
                client.calm()
                self._noted(client, False)
        lost += [client for client in moved if not self._changed(client)]
        for client in lost:
            self._find_again(client)

    def _resting(self) -> set[Client]:
        """Clients that are not read: the device sleeps (to read xe's fdinfo wakes it), so nothing works; or the file
        hung, and nothing is known."""
        tick = self._tick
        found = set()
        for file, client in self._told.items() if tick.asleep or tick.quarantine else ():
            asleep = client.key[0] in tick.asleep
            if asleep or file.path in tick.quarantine or file.folder in tick.quarantine:
                found.add(client)
                if client.rest(0.0 if asleep else None, self._before_ns):
                    self._noted(client, False)
        return found

    def _changed(self, client: Client) -> bool:
        old, file = client.reading, client.file
        if old is None or file is None:
            return False
        reading = drmfdinfo.parse_again(old, client.data, file.data)
        if reading is None or not client.is_same(reading):
            return False
        self._take(client, file.data, reading)
        return True

    def _take(self, client: Client, data: bytes, reading: DrmClient) -> None:
        memory = client.take(data, reading, self._before_ns, self._tick.monotonic_ns)
        if client.restless:
            self._restless.add(client)
        self._noted(client, memory)

    def _noted(self, client: Client, memory: bool) -> None:
        self._groups[client.key[0]].note(client, memory)
        self._stale(client)

    def _find_again(self, client: Client) -> None:
        """Its descriptor was closed, or is another's now: look at its holders, until one has it still."""
        self._lose(client)
        for pid in list(client.holders):
            self._processes[pid].links = None
            self._look(pid)
            if client.file is not None:
                return

    def _lose(self, client: Client) -> None:
        """Give its file back: it tells of this client no more, or is not needed."""
        if client.file is not None:
            del self._told[client.file]
            client.file.close()
            client.file = None
            client.rest(None, self._before_ns)

    # -- telling --

    def _write(self, draft: Draft) -> None:
        if self._sums is None:
            self._sums = clientrows.sums(self._processes.values())
            self._stride = 1 + len(self._sums.held) // _MANY
        looked = clientrows.Looked(self._processes, self._clients, self._groups, self._sums, self._tick.asleep)
        clientrows.write_processes(draft, looked)
        clientrows.write_devices(draft, self._seen, looked)
        clientrows.write_hidden(draft, sum(one.hidden for one in self._processes.values()), self._outside)

    def _out_of_sight(self) -> Gone | None:
        """Whether there are processes that are not even listed, and why."""
        if not self._root.live:
            return None
        if proc.hides_others(self._root):
            return Gone(
                "no_permission", "/proc is mounted with hidepid: other users' processes are not listed", clientrows.FIX
            )
        try:
            space = self._root.tree.readlink("proc/self/ns/pid")
        except OSError:
            return None
        if space == _FIRST_PID_SPACE:
            return None
        return Gone("hidden_by_container", "processes outside this container are not listed", "run it on the host")


def _device(device: str, reading: DrmClient) -> str:
    """The device that a client's memory is on: what the driver names, but for a node of a partition, which prints its
    parent's address and is a device of its own (amdgpu_xcp)."""
    if ADDRESS.match(reading.pdev) and (ADDRESS.match(device) or device.startswith("node:")):
        return reading.pdev
    return device
