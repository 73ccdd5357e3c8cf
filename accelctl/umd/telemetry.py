"""What a service can tell of itself at one moment: levels of every session, counts of all there were."""

from __future__ import annotations

import time
from collections import Counter

from accelctl.memory.pool import PoolStats
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.registrar import Registrar, classes_of
from accelctl.umd.session import Session, no_counts


def sample(registrar: Registrar, taken_ns: int, uptime_s: float) -> pb.TelemetrySample:
    """One sample."""
    found = pb.TelemetrySample(
        taken_ns=taken_ns,
        uptime_ms=int(uptime_s * 1000),
        sessions_created=registrar.created,
        sessions_expired=registrar.expired,
    )
    counts = no_counts()
    counts.add(registrar.past.counts)
    allocations, frees = Counter(registrar.past.allocations), Counter(registrar.past.frees)
    classes = dict(registrar.past.classes)
    for session in registrar.all():
        with session.lock:
            if session.closed:
                continue
            found.sessions.append(_level(session))
            counts.add(session.counts)
            allocations.update(session.memory.allocations)
            frees.update(session.memory.frees)
            for size, (made, freed) in classes_of(session).items():
                before = classes.get(size, (0, 0))
                classes[size] = (before[0] + made, before[1] + freed)
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


def _level(session: Session) -> pb.SessionLevel:
    line = session.line
    passed = line.passed()
    return pb.SessionLevel(
        session_id=session.number,
        client=session.client,
        age_ms=int((time.monotonic() - session.created) * 1000),
        tensors=session.tensors,
        pool=pool_level(session.memory.stats()),
        queue_depth=line.depth,
        in_flight=line.submitted - passed,
        queue_state=line.ring.state,
        cached_translations=len(session.plans),
        submitted_fence=line.submitted,
        passed_fence=passed,
    )


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
