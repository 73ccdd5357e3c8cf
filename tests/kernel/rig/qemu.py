"""One boot: starts QEMU, follows it, and ends only the process it started.

The command line and the reasons for it: software emulation only, since KVM is often absent and where it is nested
it may hang; the emulated IOMMU gives VFIO and DMA-BUF tests real groups; two virtio-gpus, qxl, bochs and the
default VGA are the display devices that Linux has drivers for and QEMU emulates.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from . import packages
from .errors import RigError

DEVICES = ("virtio-gpu-pci", "virtio-gpu-pci", "qxl", "bochs-display")
"""The devices beside the machine type's own VGA."""

CPUS = {"stock": "2", "debug": "1"}
"""One for debug: two emulated CPUs spend most of their time waiting for the leak search's one lock."""

GRACE_S = 30.0
"""How long after its own limit, or after its job, the guest may take to power off before it is ended."""


STOP = Event()
"""Set: every machine is ended. Several may run, each followed by a thread of its own."""


@dataclass(frozen=True)
class Boot:
    """How one boot went: the job's exit code (None: it never ended), the seconds it took, and why it failed."""

    code: int | None
    seconds: float
    trouble: str


def command(vmlinuz: Path, initrd: Path, kind: str, share: Path, limit_s: int) -> list[str]:
    """Return QEMU's command line; `share` is the only folder of the host that the guest can write."""
    program = packages.program("qemu-system-x86_64")
    if program is None:
        raise RigError(f"qemu-system-x86_64 is not here; type: {packages.install_line(['qemu-system-x86'])}")
    # no_timer_check: on a busy host the emulated timer may be late for the kernel's own test of it, which is a panic.
    append = "console=ttyS0 quiet panic=-1 no_timer_check intel_iommu=on iommu=pt"
    append += f" accelctl.guest={kind} accelctl.limit={limit_s}"
    words = [program, "-M", "q35,accel=tcg", "-cpu", "max", "-m", "2G", "-smp", CPUS[kind]]
    words += ["-no-reboot", "-nic", "none"]
    words += ["-display", "none", "-monitor", "none", "-serial", f"file:{share / 'console'}"]
    words += ["-kernel", str(vmlinuz), "-initrd", str(initrd)]
    words += ["-append", append + (" kmemleak=on" if kind == "debug" else "")]
    words += ["-device", "intel-iommu,intremap=on,caching-mode=on"]
    for device in DEVICES:
        words += ["-device", device]
    root = "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"
    words += ["-fsdev", root, "-device", "virtio-9p-pci,fsdev=root,mount_tag=hostroot"]
    words += ["-fsdev", f"local,id=share,path={share},security_model=none"]
    words += ["-device", "virtio-9p-pci,fsdev=share,mount_tag=share"]
    return words


def boot(words: list[str], share: Path, limit_s: int, follow: Callable[[], None]) -> Boot:
    """Run QEMU until the guest powers off; `follow` is called a few times a second to show what came so far."""
    start = time.monotonic()
    ended: float | None = None
    trouble = ""
    with (share / "qemu").open("wb") as log:
        machine = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            while machine.poll() is None:
                if STOP.wait(0.1):
                    trouble = "the guest was ended with the tests"
                    break
                follow()
                now = time.monotonic()
                if ended is None and (share / "exit-code").exists():
                    ended = now
                if now - start > limit_s + GRACE_S or (ended is not None and now - ended > GRACE_S):
                    trouble = f"the guest did not power off within {now - start:.0f} s and was ended"
                    break
        finally:
            if machine.poll() is None:
                machine.kill()
            machine.wait()
    follow()
    return _judge(share, time.monotonic() - start, trouble, machine.returncode)


def _judge(share: Path, seconds: float, trouble: str, status: int) -> Boot:
    code_text = _text(share / "exit-code").strip()
    code = int(code_text) if code_text.isdigit() else None
    if code is None:
        said = _text(share / "qemu").strip().splitlines()
        console = _text(share / "console").strip().splitlines()
        trouble = trouble or f"the guest stopped before its job ended (QEMU's exit status {status})"
        trouble = "\n".join([trouble, *said[-3:], "last lines of the guest's console:", *console[-15:]])
    return Boot(code, seconds, trouble)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
