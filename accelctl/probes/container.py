"""Is this process in a container, and of which kind? It changes what a missing node means."""

from __future__ import annotations

import re

from accelctl.model.reading import Reading, absent, computed
from accelctl.probes.context import Scan

_CGROUP = re.compile(r"(docker|kubepods|libpod|containerd|crio|lxc|garden|machine\.slice/machine-)")
_NAMES = {
    "libpod": "podman",
    "kubepods": "kubernetes",
    "crio": "kubernetes",
    "machine.slice/machine-": "systemd-nspawn",
}


def describe(scan: Scan) -> None:
    """Machine fact ``container/kind``: "none" or the runtime's name, with what gave it away."""
    scan.machine["container/kind"] = _kind(scan)


def _kind(scan: Scan) -> Reading:
    root = scan.root
    environment = root.environ()
    if "KUBERNETES_SERVICE_HOST" in environment:
        return Reading("kubernetes", "environment: KUBERNETES_SERVICE_HOST", "set")
    if root.exists("run/.containerenv"):
        return Reading("podman", "run/.containerenv", "present")
    if root.exists(".dockerenv"):
        return Reading("docker", ".dockerenv", "present")
    if environment.get("container"):
        return Reading(environment["container"], "environment: container", environment["container"])
    for path in ("proc/1/cgroup", "proc/self/cgroup"):
        text = root.text(path) or ""
        match = _CGROUP.search(text)
        if match:
            return Reading(_NAMES.get(match.group(1), match.group(1)), path, text.splitlines()[0])
    if root.text("proc/self/cgroup") is None and not root.live:
        return absent("proc/self/cgroup", "not_captured")
    return computed(
        "none", "no container marker in run/.containerenv, .dockerenv, environment, proc/1/cgroup, proc/self/cgroup"
    )
