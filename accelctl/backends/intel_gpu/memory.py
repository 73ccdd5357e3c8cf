"""Intel GPUs have two kernel drivers with nothing in common but the vendor; the target says which one it is."""

from __future__ import annotations

from accelctl.abi.lifecycle import Env, Session, Target
from accelctl.backends.intel_gpu import i915, xe


class _Memory:
    def open(self, target: Target, env: Env) -> Session:
        """Open the device. AccelError where that is impossible; nothing stays open then."""
        if target.driver == "xe":
            return xe.open_session(target, env)
        return i915.open_session(target, env)


MEMORY = _Memory()
