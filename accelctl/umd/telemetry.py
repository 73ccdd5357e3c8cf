"""What a service can tell of itself at one moment: levels of every session, counts of all there were."""

from __future__ import annotations

import heapq
import time

from accelctl.memory.pool import PoolStats
from accelctl.memory.va import GoodFit
from accelctl.umd.lists import level
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.registrar import Registrar, classes_of
from accelctl.umd.session import Session

MOST_RANGES, LEAST_RANGES, ALL_RANGES = 512, 16, 8192
"""Pieces of an address space that are told: more than a screen has columns; fewer where many sessions are told of."""


def sample(registrar: Registrar, taken_ns: int, uptime_s: float) -> pb.TelemetrySample:
    """One sample."""
    found = pb.TelemetrySample(
        taken_ns=taken_ns,
        uptime_ms=int(uptime_s * 1000),
        sessions_created=registrar.created,
        sessions_expired=registrar.expired,
        held_bytes=registrar.budget.held,
        limit_bytes=registrar.budget.limit,
    )
    past, sessions = registrar.counted()
    most = max(LEAST_RANGES, min(MOST_RANGES, ALL_RANGES // max(1, len(sessions))))
    for session in sessions:
        with session.lock:
            if not session.closed:
                found.sessions.append(_level(session, most))
            past.add(session)
    counts, allocations, frees, classes, lists = past
    now = (sum(one.lists.lists for one in found.sessions), sum(one.lists.bytes for one in found.sessions))
    found.lists.CopyFrom(level(lists, *now))
    for name in sorted({*counts.translated, *counts.launches, *counts.errors, *allocations}):
        found.ops.add(
            op=name,
            translated=counts.translated[name],
            cache_hits=counts.hits[name],
            launches=counts.launches[name],
            errors=counts.errors[name],
            allocations=allocations[name],
            frees=frees[name],
        )
    for size, (made, freed) in sorted(classes.items()):
        found.size_classes.add(bytes=size, allocations=made, frees=freed)
    return found


def _level(session: Session, most: int) -> pb.SessionLevel:
    line, memory = session.line, session.memory
    times, passed = line.times(), line.passed()
    return pb.SessionLevel(
        session_id=session.number,
        client=session.client,
        age_ms=int((time.monotonic() - session.created) * 1000),
        tensors=session.tensors,
        pool=pool_level(memory.stats()),
        queue_depth=line.depth,
        in_flight=line.submitted - passed,
        queue_state=line.ring.state,
        cached_translations=len(session.plans),
        submitted_fence=line.submitted,
        passed_fence=passed,
        spaces=[space_level(space, most) for space in session.spaces],
        flown_ns=times.flown,
        busy_ns=times.busy,
        stalled_ns=times.stalled,
        lists=session.lists.level(),
        ops=[
            pb.OpCount(op=op, allocations=memory.allocations[op], frees=memory.frees[op])
            for op in sorted(memory.allocations)
        ],
        size_classes=[
            pb.SizeClass(bytes=size, allocations=made, frees=freed)
            for size, (made, freed) in sorted(classes_of(session).items())
        ],
    )


def space_level(space: GoodFit, most: int = MOST_RANGES) -> pb.SpaceLevel:
    """An address space's account, as the protocol says it."""
    now = space.snapshot()
    return pb.SpaceLevel(
        base=space.base,
        size_bytes=now.size,
        reserved_bytes=now.reserved,
        mapped_bytes=now.mapped,
        free_bytes=now.free,
        largest_hole_bytes=now.largest_hole,
        ranges=[
            pb.SpaceRange(start=start, bytes=size, reserved=bool(now.reserved) and _is_reserved(space, start))
            for start, size in held_ranges(space, most)
        ],
    )


def held_ranges(space: GoodFit, most: int = MOST_RANGES) -> list[tuple[int, int]]:
    """(start, bytes) of what is between the holes, rising; of too many holes only the largest count."""
    holes = sorted(heapq.nlargest(most - 1, space.holes(), key=lambda hole: hole[1]))
    found, at = [], space.base
    for start, size in [*holes, (space.base + space.size, 0)]:
        if start > at:
            found.append((at, start - at))
        at = start + size
    return found


def _is_reserved(space: GoodFit, start: int) -> bool:
    block = space.block(start)
    return block is not None and block.fixed


def pool_level(stats: PoolStats) -> pb.PoolLevel:
    """A pool's account, as the protocol says it."""
    return pb.PoolLevel(
        in_use_bytes=stats.in_use,
        cached_bytes=stats.cached,
        asked_bytes=stats.asked,
        high_water_bytes=stats.high_water,
        hits=stats.hits,
        misses=stats.misses,
        fragmentation=stats.fragmentation,
    )
