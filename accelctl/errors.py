"""The one table of error kinds, and the exceptions that carry one.

Every stack has its own error numbers (CUDA, HIP, Level Zero, errno, ...). accelctl sorts them all into the kinds below;
other vocabularies (vendor codes, absence reasons, rule ids) refer to a kind and never define one of their own.
"""

import errno
from typing import NamedTuple

from accelctl.exits import ExitCode

Group = str
"""ok, caller, environment, transient, resource, kernel, hardware, internal or info."""


class Kind(NamedTuple):
    """One kind of error: what it means whichever stack reported it."""

    group: Group
    meaning: str
    retryable: str
    """no, yes, yes_poll, yes_backoff, after_fix, after_free, after_reset, after_restart_of_capture, depends, unknown or
    n/a."""
    exit_code: ExitCode
    """Exit status of a command that this kind keeps from doing what it was asked."""
    next_step: str
    """What a person does now, in one line."""


_OK, _FAIL, _USAGE, _ABSENT = ExitCode.OK, ExitCode.FINDINGS, ExitCode.USAGE, ExitCode.NO_DEVICE
_STOP = ExitCode.UNUSABLE

KINDS: dict[str, Kind] = {
    "ok": Kind("ok", "the call did its work; a query found its work complete", "n/a", _OK, "nothing to do"),
    "notice": Kind(
        "info",
        "said for information or as a warning; nothing was refused",
        "n/a",
        _OK,
        "read it beside what surrounds it",
    ),
    # the program that made the call
    "invalid_argument": Kind(
        "caller",
        "a value, size, flag or pointer is out of range or makes no sense",
        "no",
        _USAGE,
        "correct the argument; print what was passed",
    ),
    "invalid_handle": Kind(
        "caller",
        "a handle is unknown here: destroyed, never made, or of another device or context",
        "no",
        _FAIL,
        "look for a use after destroy, or for the wrong current device",
    ),
    "invalid_state": Kind(
        "caller",
        "the object exists but its state does not allow this call now",
        "after_fix",
        _FAIL,
        "correct the order of calls, then call again",
    ),
    "capture_violation": Kind(
        "caller",
        "a call that a running stream or graph capture forbids",
        "after_restart_of_capture",
        _FAIL,
        "move the call out of the captured part and capture again",
    ),
    "not_initialized": Kind(
        "caller",
        "used before its initialisation, after its shutdown, or without a current context",
        "after_fix",
        _FAIL,
        "initialise on this thread first; make no calls while the process exits",
    ),
    "already_exists": Kind(
        "caller", "what was asked for is there already", "no", _FAIL, "treat as done, or remove the first one"
    ),
    "not_found": Kind(
        "caller",
        "a file, symbol, object or id of that name does not exist",
        "no",
        _USAGE,
        "check the name and where it is searched",
    ),
    # the installation
    "not_supported": Kind(
        "environment",
        "this device, driver or build cannot do it at all",
        "no",
        _ABSENT,
        "ask for the capability first; use another way or a newer driver",
    ),
    "version_mismatch": Kind(
        "environment",
        "driver, runtime, firmware or binary versions do not fit together",
        "no",
        ExitCode.ABI,
        "print every version and install a matching set; reboot after a driver change",
    ),
    "compile_failure": Kind(
        "environment",
        "device code cannot be compiled, linked, loaded, or has no image for this device",
        "no",
        _FAIL,
        "read the build log; build for this device's architecture",
    ),
    "permission": Kind(
        "environment",
        "the caller lacks a right: file mode, group, capability, cgroup or licence",
        "no",
        ExitCode.PERMISSION,
        "compare node modes and groups with your own; in a container, its device list",
    ),
    "no_device": Kind(
        "environment",
        "no usable device is visible, or the one asked for is not there",
        "no",
        _ABSENT,
        "compare the PCI list, the device nodes, the loaded driver and *_VISIBLE_DEVICES",
    ),
    # may pass by itself
    "busy": Kind(
        "transient",
        "in use by another, and the call would not wait",
        "yes_backoff",
        ExitCode.SKIPPED,
        "find the other user; try again later",
    ),
    "not_ready": Kind(
        "transient",
        "work or a service has not finished yet",
        "yes_poll",
        ExitCode.TIMEOUT,
        "poll; if it never ends, it is a timeout",
    ),
    "timeout": Kind(
        "transient",
        "a bounded wait ended, or a watchdog stopped the work",
        "depends",
        ExitCode.TIMEOUT,
        "an expired wait can be repeated; after a watchdog the context is lost",
    ),
    "cancelled": Kind(
        "transient",
        "dropped on purpose: by the user, by a failed sibling, by a teardown",
        "after_fix",
        _STOP,
        "find the first error; this one only followed it",
    ),
    # something limited is used up
    "out_of_memory": Kind(
        "resource",
        "not enough device or host memory",
        "after_free",
        _FAIL,
        "free or shrink; see free, total and the largest holder",
    ),
    "out_of_resources": Kind(
        "resource",
        "a limited thing other than memory is used up: queues, handles, sessions",
        "after_free",
        _FAIL,
        "destroy what is unused or raise the limit",
    ),
    "out_of_address_space": Kind(
        "resource",
        "no room in a device address range, or the range asked for is taken",
        "after_free",
        _FAIL,
        "release reservations; avoid fixed addresses; look at the BAR size",
    ),
    # code on the device
    "launch_config": Kind(
        "kernel",
        "a launch that can never run: its dimensions or resources exceed the limits",
        "no",
        _FAIL,
        "compare the launch with the device's and the kernel's limits",
    ),
    "launch_failure": Kind(
        "kernel", "device code ran and died", "no", _FAIL, "run again with blocking launches and the vendor's checker"
    ),
    "illegal_access": Kind(
        "kernel",
        "device code or a DMA engine used an address that is not mapped for it",
        "no",
        _FAIL,
        "run under a memory checker; a new process is needed",
    ),
    "misaligned_access": Kind(
        "kernel",
        "an address lacks the alignment that the instruction or engine needs",
        "no",
        _FAIL,
        "align the pointer",
    ),
    "numeric": Kind(
        "kernel", "the device flagged overflow, NaN or Inf in results", "no", _FAIL, "find the operator by bisection"
    ),
    # the machine
    "ecc_uncorrectable": Kind(
        "hardware",
        "stored data was damaged beyond repair",
        "no",
        _STOP,
        "drain and reset the device; look at retired pages; replace it if it returns",
    ),
    "ecc_correctable": Kind(
        "hardware",
        "damaged data was repaired, or a bad row was put aside",
        "yes",
        _OK,
        "watch the rate; plan a reset if a remap waits",
    ),
    "device_lost": Kind(
        "hardware",
        "the device stopped answering, left the bus, or refuses work until a reset",
        "after_reset",
        _STOP,
        "keep the kernel log, reset the device or reboot, scan again",
    ),
    "communication": Kind(
        "hardware",
        "a path to a peer failed: link, channel, rank or daemon",
        "depends",
        _FAIL,
        "look at the link and at the peer's first error",
    ),
    "power_thermal": Kind(
        "hardware",
        "power or heat keeps the device from working normally",
        "after_fix",
        _FAIL,
        "check cables, limits and cooling",
    ),
    # below the interface
    "os_error": Kind(
        "internal",
        "a system call, library load or file operation failed underneath",
        "depends",
        _STOP,
        "read errno, the kernel log and the limits",
    ),
    "internal": Kind(
        "internal",
        "the stack failed without a better reason",
        "unknown",
        _STOP,
        "keep logs and versions; try once in a new process; report it",
    ),
}
"""kind -> what it is. The names are shared by all commands; `explain` maps vendor codes onto them."""

ABSENCES: dict[str, tuple[str, str]] = {
    "no_node": ("no_device", "the device node does not exist"),
    "no_driver": ("no_device", "no driver is bound that would provide it"),
    "no_permission": ("permission", "this process may not read it"),
    "hidden_by_container": ("no_device", "the container does not show it"),
    "asleep": ("not_ready", "reading it would wake a sleeping device"),
    "costly": ("not_ready", "reading it blocks for a noticeable time, so it is only read when asked for"),
    "kernel_too_old": ("not_supported", "this kernel does not provide it yet"),
    "not_offered": ("not_supported", "the driver does not provide it"),
    "not_captured": ("not_found", "the captured machine does not contain it"),
    "empty": ("not_supported", "the file is there but holds no value"),
    "timed_out": ("timeout", "reading it did not come back within the deadline"),
    "unreadable": ("os_error", "reading it failed"),
    "malformed": ("internal", "the text read is not what this file should hold"),
    "not_applicable": ("not_supported", "it has no meaning for this device"),
    "not_allowed": ("permission", "it is not on the list of files that may be opened"),
}
"""Why a reading has no value: reason -> (kind, meaning). model.reading.Absence uses these reasons and no others."""


class AccelError(Exception):
    """A failure that is explained to the user in one line; the command line turns it into an exit status.

    message: one line: what is wrong. hint: what to type or do now, or None. kind: a key of KINDS; it decides the exit
    code, so a subclass accepts only kinds that have its own code.
    """

    default_kind = "internal"

    def __init__(self, message: str, hint: str | None = None, *, kind: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind or self.default_kind
        if self.kind not in KINDS:
            raise ValueError(f"unknown error kind {self.kind!r}")
        if type(self) is not AccelError and self.exit_code != KINDS[self.default_kind].exit_code:
            raise ValueError(f"kind {self.kind!r} has exit code {self.exit_code}, not that of {type(self).__name__}")

    @property
    def exit_code(self) -> ExitCode:
        """The exit status that follows from the kind."""
        return KINDS[self.kind].exit_code


class UsageError(AccelError):
    """The command line, or a file or filter named on it, is wrong (exit 2)."""

    default_kind = "invalid_argument"


def unwritable(file: object, error: Exception) -> AccelError:
    """Why a file that somebody named cannot be written, for whoever raises it: exit 5 where a right is missing, 7 where
    the disk takes no more, 2 where there can be no such file."""
    number = getattr(error, "errno", None)
    kind = "invalid_argument"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        kind = "permission"
    elif number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        kind = "os_error"
    text = f"{file}: cannot be written ({(getattr(error, 'strerror', None) or str(error)).lower()})"
    return UsageError(text) if kind == "invalid_argument" else AccelError(text, kind=kind)


class NoDeviceError(AccelError):
    """The device asked for is absent or unsupported, or an extra is not installed (exit 3)."""

    default_kind = "no_device"


def extra(name: str) -> str:
    """What to type for the packages of an extra. It is no name of an index: accelctl is installed from its checkout."""
    return f"pip install '.[{name}]' # in the folder that holds pyproject.toml"


class AbiError(AccelError):
    """Two sides do not speak the same version (exit 4)."""

    default_kind = "version_mismatch"


class PermissionDenied(AccelError):
    """A right is missing; the hint names what would give it (exit 5)."""

    default_kind = "permission"


class TimeoutFailure(AccelError):
    """A deadline passed; the message names what did not answer (exit 6)."""

    default_kind = "timeout"


class DeviceUnusable(AccelError):
    """The device is lost, or the run had to stop (exit 7)."""

    default_kind = "device_lost"
