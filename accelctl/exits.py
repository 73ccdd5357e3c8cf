"""Exit codes: the whole public list, and what each means to a script.

A command killed by signal n is reported by the shell as 128+n; accelctl itself returns 130 for Ctrl-C and 141 when the
reader of its output has gone away.
"""

from enum import IntEnum

SIGNAL_BASE = 128
"""A process ended by signal n counts as 128+n (the shells' convention)."""


class ExitCode(IntEnum):
    """What the exit status of an accelctl command says. Numbers are public and never change their meaning."""

    OK = 0
    """Done. Findings of level info and warn included; a machine without accelerators is ok for `probe`."""
    FINDINGS = 1
    """Done, and a finding or check is at the `--fail-on` level or worse."""
    USAGE = 2
    """The command line, a file named on it or a filter is wrong; nothing was done."""
    NO_DEVICE = 3
    """The device asked for is absent or unsupported, or a Python package that the command needs is not installed."""
    ABI = 4
    """Two sides do not speak the same version: plug-in and accelctl, driver and library, client and service."""
    PERMISSION = 5
    """Rights are missing; the message names the group, access list or capability that would give them."""
    TIMEOUT = 6
    """A deadline passed or something hangs; the message names it."""
    UNUSABLE = 7
    """Stopped without an answer: the device is unusable, the output cannot be written, or accelctl itself failed."""
    SKIPPED = 77
    """Every check was skipped (the number that automake and many test harnesses use for this)."""


EXIT_MEANINGS: dict[int, str] = {
    0: "ok; so are findings of level info or warn, and a machine without devices",
    1: "a finding or check is at the --fail-on level (default: error) or worse",
    2: "usage: the command line, or a file or filter named on it, is wrong",
    3: "the device asked for is absent or unsupported, or a package is missing",
    4: "version (ABI) mismatch between two sides",
    5: "permission missing",
    6: "timeout or hang",
    7: "stopped: device unusable, output not writable, or an internal error",
    77: "everything was skipped",
    130: "interrupted by Ctrl-C (128+n: ended by signal n)",
}
"""One line per code, for help texts and man pages."""
