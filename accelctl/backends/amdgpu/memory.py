"""amdgpu has two ways to its memory that must not be mixed on one file: GEM, and KFD behind a node of its own.

ACQUIRE_VM turns the address space of a render file into KFD's for the rest of the process. So a target is one or the
other: the driver "kfd" (or its node) is KFD, anything else GEM.
"""

from __future__ import annotations

from accelctl.abi.lifecycle import Env, Session, Target
from accelctl.backends.amdgpu import gem, kfd


class _Memory:
    def open(self, target: Target, env: Env) -> Session:
        """Open the device. AccelError where that is impossible; nothing stays open then."""
        if kfd.NODE in (target.driver, target.node.rpartition("/")[2]):
            return kfd.open_session(target, env)
        return gem.open_session(target, env)


MEMORY = _Memory()
