"""The ownership ledger: what this process holds of which driver, for how many bytes, and why it is still there.

One of the two books that `stress` compares (the other is the kernel's). Its rules are those of the kernel:

- A handle is a number *per open file*: importing one dma-buf twice into the same file gives the same handle with ONE
  reference (drm_gem_prime_fd_to_handle), so counting imports against closes either sees a leak that is none or closes
  twice (ValveSoftware/gamescope#60, tomba/kmsxx#25). Entries are a set per (domain, kind), never a count.
- Bytes belong to storage, not to a handle: they come back with the *last* reference, which may be a mapping, an
  exported descriptor, an import on a second device or an address reservation (ROCm/legacy-rocm-build#6021). Looking
  right after the handle was closed is a false alarm; looking at handles only misses what a reservation holds.
- What the device may still use is not free: a release waits for the gates of the queues that use it.
- Freeing twice, or freeing what was only lent, is a defect of the caller: written down (`mistakes`), never raised,
  because a run with a leak must go on to say so.

Every operation is O(1) (waiting on a gate: O(log waiting)); memory is bounded by what is held, not by what has
happened.
"""

from collections import OrderedDict
from heapq import heappop, heappush

from accelctl.memory import CallerError, in_bytes
from accelctl.memory.account import Account
from accelctl.memory.records import (
    BORROWED,
    HOST,
    OURS,
    Balance,
    Gate,
    Holding,
    Key,
    Mistake,
    Number,
    Outcome,
    StageCount,
)


class Storage:
    """Memory with an owner of its own: alive while anything refers to it."""

    __slots__ = ("bytes", "holders", "home", "origin")

    def __init__(self, size: int, home: str, origin: Key) -> None:
        self.bytes, self.home, self.origin = size, home, origin
        self.holders: set[Key] = set()
        """Entries that refer to it."""

    @property
    def orphan(self) -> bool:
        """What made it, or was imported from it, is closed; only mappings, reservations and the like are left."""
        return not any(key.kind == self.origin.kind for key in self.holders)


class Entry:
    """One thing held."""

    __slots__ = ("chip", "gates", "key", "owner", "pins", "references", "releasing", "serial", "stage", "storage")

    def __init__(self, key: Key, stage: str, chip: str, owner: str, serial: int, storage: Storage | None) -> None:
        self.key, self.stage, self.chip, self.owner, self.serial = key, stage, chip, owner, serial
        self.storage = storage
        self.references = 1
        self.pins: tuple[Storage, ...] = ()
        self.gates: dict[str, int] | None = None
        """Queue -> the point it must pass before this may go."""
        self.releasing = False

    @property
    def ownership(self) -> str:
        """ours, borrowed, or shared(n) with the references that must all be given back."""
        return f"shared({self.references})" if self.references > 1 else self.owner


MISTAKES = 64
"""Mistakes that are kept in full; after that they are counted."""
CLOSED = 1024
"""Closed keys that are remembered, to tell a double free from one of a number that was never held."""


class Ledger:
    """One worker's book. Not locked: a worker has its own."""

    def __init__(self) -> None:
        self._domains: dict[Number, dict[tuple[str, Number], Entry]] = {}
        self._bytes: dict[str, int] = {}
        self._stages: dict[tuple[str, str], list[int]] = {}  # (chip, stage) -> held, acquired, released, peak
        self._closed: OrderedDict[Key, int] = OrderedDict()
        self._passed: dict[str, int] = {}
        self._waiting: dict[str, list[tuple[int, int, Key]]] = {}
        self._accounts: list[Account] = []
        self._mistakes: list[Mistake] = []
        self.mistake_count = 0
        self._operation = 0

    def account(self, domain: Number, chip: str, stage: str, kind: str, stores: bool = True) -> Account:
        """A fast lane for a stage's numbers; ``stores``: each of them has storage of its own."""
        account = Account(self.mistake, domain, chip, stage, kind, stores)
        self._accounts.append(account)
        return account

    def hold(
        self,
        key: Key,
        *,
        stage: str,
        chip: str,
        size: int = 0,
        of: Key | None = None,
        owner: str = OURS,
        host: bool = False,
    ) -> Entry:
        """Something was acquired.

        size > 0: it is new storage of so many bytes, on the chip or (`host`) in host memory. `of`: it refers to the
        storage of another entry, in whichever domain (a mapping, an export, an import on a second device): the bytes
        stay with the home of that storage and are counted once. Neither: a thing without storage, such as an address
        range. CallerError: `of` is not held, or both are given. A key that is held already is the mistake "taken" (the
        driver gave out a number that we think is alive, so a release was missed), and the old entry is returned.
        """
        self._operation += 1
        there = self._get(key)
        if there is not None:
            self.mistake("taken", key, f"{key} was given out again while it is held (stage {there.stage})")
            return there
        if of is not None and size:
            raise CallerError(f"{key}: new storage, or that of {of}, not both")
        storage = Storage(size, HOST if host else chip, key) if size else None
        if of is not None:
            storage = self._storage_of(of)
        entry = Entry(key, stage, chip, owner, self._operation, storage)
        self._domains.setdefault(key.domain, {})[key.kind, key.number] = entry
        self._closed.pop(key, None)
        if storage is not None:
            self._attach(storage, key)
        self._count(entry, 1)
        return entry

    def bring_in(self, key: Key, *, stage: str, chip: str, size: int = 0, of: Key | None = None) -> Entry:
        """An import: a handle that is held already is the same handle, with the one reference that it has.

        A close of it that still waits for a queue is called off: it would close what was imported now.
        """
        there = self._get(key)
        if there is not None:
            self._operation += 1
            there.releasing = False
            return there
        return self.hold(key, stage=stage, chip=chip, size=size, of=of)

    def share(self, key: Key) -> int:
        """One more reference that must be given back (where the driver counts, unlike PRIME imports); how many now."""
        self._operation += 1
        entry = self._must(key)
        entry.references += 1
        return entry.references

    def pin(self, holder: Key, of: Key) -> None:
        """`holder` keeps the storage of `of` alive as well, until it is released itself.

        A reservation that was mapped once does, with ROCm (legacy-rocm-build#6021): neither the unmap nor the release
        of the handle returns the memory, only giving the range back. CallerError: one of the two is not held.
        """
        self._operation += 1
        entry, storage = self._must(holder), self._storage_of(of)
        if storage is not None and holder not in storage.holders:
            entry.pins += (storage,)
            self._attach(storage, holder)

    def gate(self, key: Key, queue: str, point: int) -> None:
        """The queue uses it until it has passed `point`. CallerError: not held.

        Points of a queue only rise, also when a context of that name is made anew; a queue's last point is kept for
        good.
        """
        self._operation += 1
        entry = self._must(key)
        if point > self._passed.get(queue, -1):
            entry.gates = entry.gates or {}
            entry.gates[queue] = max(point, entry.gates.get(queue, point))

    def release(self, key: Key) -> Outcome:
        """We give one reference back. Only when `gone` may the driver's release be called."""
        self._operation += 1
        entry = self._get(key)
        if entry is None or entry.owner == BORROWED or entry.releasing:
            return Outcome(False, 0, (), self._wrong_release(key, entry))
        if entry.references > 1:
            entry.references -= 1
            return Outcome(False, 0, (), None)
        waits = self._shut_gates(entry)
        if waits:
            entry.releasing = True
            self._wait(entry, waits[0])
            return Outcome(False, 0, waits, None)
        return Outcome(True, self._drop(entry), (), None)

    def passed(self, queue: str, point: int) -> tuple[Key, ...]:
        """The queue has passed `point`: what waited for it and is closed by that, for the driver's release now."""
        self._passed[queue] = max(point, self._passed.get(queue, point))
        waiting, free = self._waiting.get(queue, []), []
        while waiting and waiting[0][0] <= point:
            _, serial, key = heappop(waiting)
            entry = self._get(key)
            if entry is None or entry.serial != serial or not entry.releasing:
                continue  # its domain was closed meanwhile, or it was imported again
            shut = self._shut_gates(entry)
            if shut:
                self._wait(entry, shut[0])
            else:
                self._drop(entry)
                free.append(key)
        if not waiting:
            self._waiting.pop(queue, None)
        return tuple(free)

    def forget(self, key: Key) -> None:
        """Something borrowed went back to its owner; no release of ours. CallerError: not held, or not borrowed."""
        self._operation += 1
        entry = self._must(key)
        if entry.owner != BORROWED:
            raise CallerError(f"{key} is ours: release it")
        self._drop(entry)

    def close(self, domain: Number) -> tuple[Holding, ...]:
        """The open file was closed: the kernel drops all of it. What had been left in it; O(entries of the domain).

        Storage that something of another domain refers to (a mapping, an exported descriptor) stays, as in the kernel.
        """
        self._operation += 1
        left = self.outstanding(domain)
        for account in self._accounts:
            if account.domain == domain:
                account.released += len(account.live)
                account.live.clear()
        for entry in list(self._domains.get(domain, {}).values()):
            self._drop(entry)
        return left

    def live(self, domain: Number, kind: str) -> frozenset[Number]:
        """The numbers held in a domain: what the kernel's own table must show. O(entries of the domain)."""
        lanes = (a.live for a in self._accounts if (a.domain, a.kind) == (domain, kind))
        entries = (number for have, number in self._domains.get(domain, {}) if have == kind)
        return frozenset(entries).union(*lanes)

    def get(self, key: Key) -> Entry | None:
        """The entry, if it is held."""
        return self._get(key)

    def held_bytes(self, home: str) -> int:
        """Bytes of storage alive on a chip, or on "host"."""
        return self._bytes.get(home, 0) + sum(a.held_bytes for a in self._accounts if a.chip == home)

    def stages(self, chip: str | None = None) -> dict[str, StageCount]:
        """Stage -> counts, of one chip or of all together."""
        sums: dict[str, list[int]] = {}
        for (of, stage), counts in self._stages.items():
            if chip in (None, of):
                sums[stage] = [a + b for a, b in zip(sums.get(stage, [0, 0, 0, 0]), counts, strict=True)]
        for lane in self._accounts:
            if chip in (None, lane.chip):
                counts = [len(lane.live), lane.acquired, lane.released, lane.peak]
                sums[lane.stage] = [a + b for a, b in zip(sums.get(lane.stage, [0, 0, 0, 0]), counts, strict=True)]
        return {stage: StageCount(*counts) for stage, counts in sums.items()}

    def outstanding(self, domain: Number | None = None) -> tuple[Holding, ...]:
        """What must still be given back, oldest first; lent things are not ours to give. O(entries)."""
        books = self._domains.values() if domain is None else [self._domains.get(domain, {})]
        entries = sorted((e for book in books for e in book.values() if e.owner != BORROWED), key=lambda e: e.serial)
        counted: set[int] = set()
        lanes = [h for a in self._accounts if domain in (None, a.domain) for h in a.holdings()]
        return (*(self._holding(entry, counted) for entry in entries), *lanes)

    def balance(self) -> Balance:
        """The account of this moment; right at the end of a run, when everything should be back. O(entries)."""
        homes = sorted({*self._bytes, *(account.chip for account in self._accounts)})
        left, held = self.outstanding(), {home: size for home in homes if (size := self.held_bytes(home))}
        clean = not left and not held and not self.mistake_count
        return Balance(clean, left, held, tuple(self._mistakes), self.mistake_count)

    def check(self) -> None:
        """Assert: holders and entries name each other, bytes and stage counts are the sums. O(entries)."""
        entries = [entry for book in self._domains.values() for entry in book.values()]
        assert all(self._domains.values()), "an empty domain was kept"
        stores = {id(storage): storage for entry in entries for storage in _stores(entry)}
        sums: dict[str, int] = {}
        for storage in stores.values():
            sums[storage.home] = sums.get(storage.home, 0) + storage.bytes
            assert all(self._get(key) for key in storage.holders), "storage held by something that is gone"
        assert sums == {home: size for home, size in self._bytes.items() if size}, "bytes"
        for held, acquired, released, peak in self._stages.values():
            assert acquired == released + held
            assert 0 <= held <= peak
        assert sum(counts[0] for counts in self._stages.values()) == len(entries), "stage counts"

    def _get(self, key: Key) -> Entry | None:
        book = self._domains.get(key.domain)
        return book.get((key.kind, key.number)) if book else None

    def _must(self, key: Key) -> Entry:
        entry = self._get(key)
        if entry is None:
            raise CallerError(f"{key} is not held")
        return entry

    def _storage_of(self, key: Key) -> Storage | None:
        entry = self._must(key)
        return entry.storage or (entry.pins[0] if entry.pins else None)

    def _attach(self, storage: Storage, key: Key) -> None:
        if not storage.holders:
            self._bytes[storage.home] = self._bytes.get(storage.home, 0) + storage.bytes
        storage.holders.add(key)

    def _detach(self, storage: Storage, key: Key) -> int:
        """Bytes that come back because this was the last reference."""
        storage.holders.remove(key)
        if storage.holders:
            return 0
        self._bytes[storage.home] -= storage.bytes
        return storage.bytes

    def _drop(self, entry: Entry) -> int:
        """Close an entry; bytes that came back with it."""
        key = entry.key
        book = self._domains[key.domain]
        del book[key.kind, key.number]
        if not book:
            del self._domains[key.domain]
        self._count(entry, -1)
        self._closed[key] = self._operation
        if len(self._closed) > CLOSED:
            self._closed.popitem(last=False)
        return sum(self._detach(storage, key) for storage in _stores(entry))

    def _count(self, entry: Entry, by: int) -> None:
        place = entry.chip, entry.stage
        counts = self._stages.get(place) or self._stages.setdefault(place, [0, 0, 0, 0])
        counts[0] += by
        counts[1 if by > 0 else 2] += 1
        counts[3] = max(counts[3], counts[0])

    def _shut_gates(self, entry: Entry) -> tuple[Gate, ...]:
        if not entry.gates:
            return ()
        return tuple(Gate(q, point) for q, point in entry.gates.items() if point > self._passed.get(q, -1))

    def _wait(self, entry: Entry, gate: Gate) -> None:
        heappush(self._waiting.setdefault(gate.queue, []), (gate.point, entry.serial, entry.key))

    def mistake(self, what: str, key: Key, text: str) -> Mistake:
        """Write down what a caller must not do."""
        mistake = Mistake(what, key, text, self._operation)
        self.mistake_count += 1
        if len(self._mistakes) < MISTAKES:
            self._mistakes.append(mistake)
        return mistake

    def _wrong_release(self, key: Key, entry: Entry | None) -> Mistake:
        if entry is not None:
            if entry.owner == BORROWED:
                return self.mistake("foreign", key, f"release of {key}, which is only lent to us")
            return self.mistake("double", key, f"second release of {key}, which waits for its queue")
        if key in self._closed:
            return self.mistake("double", key, f"second release of {key}, closed by operation {self._closed[key]}")
        for domain in self._domains:
            if self._get(key._replace(domain=domain)) is not None:
                return self.mistake("foreign", key, f"release of {key}: that number is held in {domain}")
        return self.mistake("unknown", key, f"release of {key}, which was never held")

    def _holding(self, entry: Entry, counted: set[int]) -> Holding:
        stores = [storage for storage in _stores(entry) if id(storage) not in counted]
        counted.update(id(storage) for storage in stores)
        size = sum(storage.bytes for storage in stores)
        return Holding(entry.key, entry.stage, entry.chip, entry.ownership, size, self._why(entry, size))

    def _why(self, entry: Entry, size: int) -> str:
        shut = self._shut_gates(entry)
        if entry.releasing and shut:
            return f"{entry.key} waits for {shut[0].queue} to pass {shut[0].point}"
        text = f"{entry.key} is still open"
        if not size:
            return text
        orphan = all(storage.orphan for storage in _stores(entry))
        return f"{in_bytes(size)} held by {text}" + (", the object has no handle any more" if orphan else "")


def _stores(entry: Entry) -> tuple[Storage, ...]:
    """All storage that an entry keeps alive."""
    return (*entry.pins, entry.storage) if entry.storage else entry.pins
