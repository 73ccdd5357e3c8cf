"""Limits of this process and container that break work with accelerators: locked memory, shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.hal.proc import credentials
from accelctl.model.finding import Finding
from accelctl.probes.rules._common import computing, in_container, size_words

#: CAP_IPC_LOCK, include/uapi/linux/capability.h: the limit is not applied to its holder (mm/mlock.c can_do_mlock).
_IPC_LOCK = 1 << 14
#: Chip rooms whose runtime pins memory under RLIMIT_MEMLOCK, and the least that it starts with in bytes. amdxdna:
#: chunks of 64 MiB (amd/xdna-driver pull 1233), runtimes refuse below 100 MB (ROCm/FastFlowLM pull 397).
_PINNING = {"amdxdna": 100_000_000}
#: What a container gets unless told otherwise (docker run --shm-size default; Kubernetes uses the same).
_DEFAULT_SHM = 64 << 20
_SMALL_SHM = 512 << 20


@rule("LIMIT-MEMLOCK")
def locked_memory(ctx: RuleContext) -> Iterator[Finding]:
    """Only where a chip that is here needs it; "unlimited" and CAP_IPC_LOCK are no limit. Limits are in bytes."""
    limit = ctx.report.machine.get("limits/memlock_soft")
    who = credentials(ctx.root)
    if limit is None or not isinstance(limit.value, int) or (who is not None and who.capabilities & _IPC_LOCK):
        return
    needy = [one for one in computing(ctx) if one.chip in _PINNING and limit.value < _PINNING[one.chip]]
    if not needy:
        return
    least = max(_PINNING[device.chip or ""] for device in needy)
    title = (
        f"this process may lock {size_words(limit.value)} of memory, the runtime of {needy[0].id} needs "
        f"{size_words(least)} or more"
    )
    fix = (
        "ulimit -l  # prints KiB",
        "for a user: '* - memlock unlimited' in /etc/security/limits.d/accelerator.conf, then log in again",
        "for a service: LimitMEMLOCK=infinity; for a container: --ulimit memlock=-1:-1",
    )
    yield Finding("LIMIT-MEMLOCK", "warn", title, needy[0].id if len(needy) == 1 else None, evidence(limit), fix)


@rule("SHM-SMALL")
def shared_memory(ctx: RuleContext) -> Iterator[Finding]:
    """Data loaders and collectives exchange tensors through /dev/shm; a container's default is a batch of pictures."""
    size = ctx.report.machine.get("shm/size_bytes")
    if size is None or not isinstance(size.value, int) or size.value >= _SMALL_SHM or not any(computing(ctx)):
        return
    boxed = in_container(ctx)
    if size.value > _DEFAULT_SHM and not boxed:
        return
    title = f'/dev/shm has {size_words(size.value)}: data loaders and multi-device jobs may end in "bus error"'
    fix = (
        (
            "docker run --shm-size=8g ... (or --ipc=host)",
            "Kubernetes: an emptyDir volume with medium: Memory, mounted at /dev/shm",
        )
        if boxed
        else ("sudo mount -o remount,size=50% /dev/shm",)
    )
    yield Finding("SHM-SMALL", "warn" if boxed else "info", title, None, evidence(size), fix)
