"""The entry point: one table of commands, the root's help and version, and the way every command ends.

Commands are imported only when they run. `--version`, `--help`, a bare call and the suggestion after a typing error are
answered from the table below, without importing typer either. To add a command: a file in commands/ and a row here,
then `make generate` (completions and man pages).
"""

from __future__ import annotations

import os
import sys

import accelctl

TYPE_CHECKING = False
if TYPE_CHECKING:  # not from typing: importing that costs a good part of `--version`
    from collections.abc import Sequence
    from typing import NoReturn


class Row:
    """One command. A plain class, because a NamedTuple would need typing (see above)."""

    __slots__ = ("function", "module", "panel", "summary")

    def __init__(self, module: str, function: str, summary: str, panel: str) -> None:
        self.module, self.function = module, function
        """Where it is: the module, and the typer-style function (or typer.Typer, for a group) in it."""
        self.summary, self.panel = summary, panel
        """One line for lists, and the heading it stands under."""


_LOOK, _WORK = "Look at a machine", "Put a device to work"
_UNDERSTAND, _SETUP = "Understand and hand over", "Set it up"

COMMANDS: dict[str, Row] = {
    "probe": Row("accelctl.commands.probe", "probe", "what is in this machine, is it healthy, and if not: why?", _LOOK),
    "watch": Row(
        "accelctl.commands.watch", "watch", "print devices that come, go, change or fail, as it happens", _LOOK
    ),
    "export": Row("accelctl.commands.export", "export", "numbers of devices and services, for a collector", _LOOK),
    "top": Row("accelctl.commands.top", "top", "live memory pools, queues, address spaces and processes", _LOOK),
    "stress": Row(
        "accelctl.commands.stress",
        "stress",
        "allocate, map and free on a device: does it all come back?",
        _WORK,
    ),
    "serve": Row(
        "accelctl.commands.serve", "serve", "a service that translates ops for a device, and runs them", _WORK
    ),
    "smoke": Row("accelctl.commands.smoke", "smoke", "does a device compute the right thing, op by op?", _WORK),
    "bench": Row(
        "accelctl.commands.bench", "bench", "bandwidths and latencies, against ceilings and a baseline", _WORK
    ),
    "bringup": Row("accelctl.commands.bringup", "bringup", "the whole acceptance: accepted or not, and why", _WORK),
    "explain": Row(
        "accelctl.commands.explain", "explain", "what a finding or an error code means, and what to do", _UNDERSTAND
    ),
    "capture": Row(
        "accelctl.commands.capture", "capture", "pack what probe reads, redacted, for `probe --root`", _UNDERSTAND
    ),
    "merge": Row(
        "accelctl.commands.merge", "merge", "fold reports of many nodes, and show the odd ones out", _UNDERSTAND
    ),
    "backends": Row("accelctl.commands.backends", "backends", "chips: list, check, make and upgrade plug-ins", _SETUP),
    "caps": Row("accelctl.commands.caps", "caps", "which kernels may be trusted for what, on which evidence", _SETUP),
    "config": Row(
        "accelctl.commands.config", "config", "options that are not typed: what they are, and where from", _SETUP
    ),
    "completion": Row(
        "accelctl.commands.completion", "completion", "print the completion script for bash, zsh or fish", _SETUP
    ),
}

TAGLINE = "Bring up accelerators on Linux: GPU, NPU, DCU, XPU, TPU and FPGA cards."

TRY_FIRST = (
    ("accelctl probe", "what is here, is it healthy, and if not: what to type"),
    ("accelctl probe --json", "the same for programs, with evidence for each value"),
    ("accelctl watch", "devices that come, go, change or fail"),
)

GLOBAL_OPTIONS = (
    ("-h, --help", "show help; also after a command"),
    ("--version", "show the version; with --json as JSON"),
    ("--ascii", "plain ASCII signs and frames; also ACCELCTL_ASCII=1"),
    ("--color WHEN", "auto (default), always or never; also NO_COLOR, FORCE_COLOR"),
    ("--debug", "show tracebacks; also ACCELCTL_DEBUG=1"),
    ("--no-config", "read no configuration file; also ACCELCTL_NO_CONFIG=1"),
)
"""Options of accelctl itself. The last four may stand anywhere on the line."""

_NO_CONFIG = "ACCELCTL_NO_CONFIG"

COLOR_WORDS = ("auto", "always", "never")

_SWITCHES = ("--help", "--version", "--ascii", "--color", "--debug", "--no-config")

_EXTRA_OF = {"grpc": "umd", "google": "umd", "numpy": "umd", "ml_dtypes": "umd", "pyopencl": "opencl"}
_EXTRA_OF |= dict.fromkeys(("grpc_health", "grpc_reflection", "crc32c", "prometheus_client"), "umd")
"""Third-party package -> the extra that installs it; every other missing package belongs to the base installation."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit status (exits.ExitCode, or 128+n)."""
    args = list(sys.argv[1:] if argv is None else argv)
    state, without = _State(), os.environ.get(_NO_CONFIG)
    try:
        try:
            code = _dispatch(args, state)
        except BaseException as exc:  # every way to end is mapped, including SystemExit and Ctrl-C
            code = _ended_by(exc, state)
        return _flush(code, state)
    except KeyboardInterrupt:  # a second Ctrl-C while the first one was handled
        return 130
    finally:
        if without is None:
            os.environ.pop(_NO_CONFIG, None)
        else:
            os.environ[_NO_CONFIG] = without


class _State:
    """What the error printer and the command's frame need to know about the command line."""

    __slots__ = ("debug", "files", "who")

    def __init__(self) -> None:
        self.debug, self.who = False, "accelctl"
        self.files = True
        """Whether configuration files count."""


def _dispatch(args: list[str], state: _State) -> int:
    if "--version" in args and set(args) <= {"--version", "--json"}:
        return _version("--json" in args)
    from accelctl.render import term

    term.prepare_streams()
    args = _take_switches(args, state)
    if not args:
        term.emit(short_help())
        return 0
    if args[0] == "help":
        args = [*args[1:], "--help"]
    if args[0] in ("-h", "--help"):
        term.emit(root_help())
        return 0
    row = COMMANDS.get(args[0])
    if row is None:
        _unknown(args[0])
    state.who = f"accelctl {args[0]}"
    from accelctl.commands import frame
    from accelctl.model.setting import Setup

    command = frame.load(args[0], row.module, row.function, row.summary)
    return frame.run(command, state.who, args[1:], Setup(COMMANDS, state.files))


def _version(as_json: bool) -> int:
    """Both values are plain ASCII without quotes, so no JSON library is needed (it would double the start-up time)."""
    if sys.stdout is not None:
        version = accelctl.__version__
        text = f'{{"schema": "accelctl.version/1", "version": "{version}"}}' if as_json else f"accelctl {version}"
        sys.stdout.write(text + "\n")
    return 0


def _take_switches(args: list[str], state: _State) -> list[str]:
    """Remove the options that belong to accelctl itself, wherever they stand before a `--`."""
    from accelctl.render import term

    state.debug = os.environ.get("ACCELCTL_DEBUG", "") not in ("", "0")
    state.files = os.environ.get(_NO_CONFIG, "") in ("", "0")
    color, ascii_only, rest = "auto", False, []
    words = iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word == "--debug":
            state.debug = True
        elif word == "--no-config":
            state.files = False
            os.environ[_NO_CONFIG] = "1"  # for programs of its own that a command starts; as it was when main ends
        elif word == "--ascii":
            ascii_only = True
        elif word == "--color" or word.startswith("--color="):
            color = next(words, "") if word == "--color" else word.partition("=")[2]
        else:
            rest.append(word)
    if color not in COLOR_WORDS:
        from accelctl.errors import UsageError

        raise UsageError(f"--color takes auto, always or never, not {color!r}")
    term.configure(color, ascii_only)
    return rest


def _unknown(word: str) -> NoReturn:
    """Refuse a word that is no command, with the nearest one that is."""
    from difflib import get_close_matches

    from accelctl.errors import UsageError

    what = "option" if word.startswith("-") else "command"
    known = list(COMMANDS) if what == "command" else list(_SWITCHES)
    near = get_close_matches(word, known)
    raise UsageError(f"no such {what}: {word}" + (f" (did you mean {near[0]}?)" if near else ""), "accelctl --help")


def short_help() -> str:
    """What a bare `accelctl` says: what it is, and what to try first."""
    return "\n".join([TAGLINE, "", *_section("Try first", TRY_FIRST), "", "All commands: accelctl --help"])


def root_help() -> str:
    """The whole help of the root, at most 80 columns wide."""
    from accelctl.exits import EXIT_MEANINGS

    lines = ["Usage: accelctl COMMAND [OPTIONS]", "", TAGLINE, "", *_section("Try first", TRY_FIRST)]
    width = max(map(len, COMMANDS))
    for panel in dict.fromkeys(row.panel for row in COMMANDS.values()):
        rows = [(name, row.summary) for name, row in COMMANDS.items() if row.panel == panel]
        lines += ["", *_section(panel, rows, width)]
    lines += ["", *_section("Options", GLOBAL_OPTIONS)]
    lines += ["", *_section("Exit status", [(str(code), text) for code, text in EXIT_MEANINGS.items()])]
    return "\n".join([*lines, "", "Help of one command: accelctl COMMAND --help"])


def _section(title: str, rows: Sequence[tuple[str, str]], width: int = 0) -> list[str]:
    """A heading (bold where the terminal can) and rows aligned to `width`, or to their own longest left side."""
    from accelctl.render import term

    out = term.current()
    width = width or max(len(left) for left, _ in rows)
    return [out.style(title + ":", "1"), *(f"  {left:<{width}}  {right}" for left, right in rows)]


def _ended_by(exc: BaseException, state: _State) -> int:
    """Map an exception to an exit status, after saying in one line what a person needs to know about it."""
    if isinstance(exc, KeyboardInterrupt):
        return 130
    if isinstance(exc, BrokenPipeError) and _reader_is_gone():
        _silence("stdout")
        return 141
    from accelctl.errors import AccelError
    from accelctl.render import notes

    if isinstance(exc, SystemExit):
        if isinstance(exc.code, str):
            notes.error(exc.code, who=state.who)
            return 7
        return exc.code or 0
    if state.debug:
        notes.trace(exc)
    if isinstance(exc, ModuleNotFoundError):
        exc = _missing_package(exc) or exc
    if isinstance(exc, AccelError):
        notes.error(exc.message, exc.hint, who=state.who)
        return int(exc.exit_code)
    if isinstance(exc, OSError) and (code := _os_error(exc, state)):
        return code
    frame = sys.modules.get("accelctl.commands.frame")
    if frame is not None and (ended := frame.typer_ending(exc)) is not None:
        message, hint, code = ended
        if message:
            notes.error(message, hint, who=state.who)
        return int(code)
    where = "" if state.debug else "; run again with --debug for the traceback"
    notes.error(f"internal error: {type(exc).__name__}: {str(exc) or 'no message'}{_origin(exc)}{where}", who=state.who)
    return 7


def _missing_package(exc: ModuleNotFoundError) -> Exception | None:
    """A package that is not installed is not a bug; a missing part of accelctl itself is."""
    package = (exc.name or "").partition(".")[0]
    if package in ("", "accelctl"):
        return None
    from accelctl.errors import NoDeviceError, extra

    if package in _EXTRA_OF:
        return NoDeviceError(f"{package} is not installed; it comes with an extra", extra(_EXTRA_OF[package]))
    hint = "make run, or: python3 -m pip install .   (in the folder that holds pyproject.toml)"
    return NoDeviceError(f"the Python package {package!r} is not installed for {sys.executable}", hint)


def _os_error(exc: OSError, state: _State) -> int:
    """Output that cannot be written, or a file that a command did not expect to fail on; 0: neither."""
    import errno

    from accelctl.render import notes

    reason = (exc.strerror or str(exc)).lower()
    if exc.filename is None and exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF):
        _silence("stdout")
        notes.error(f"cannot write output: {reason}", who=state.who)
        return 7
    if exc.filename is None or isinstance(exc, BrokenPipeError):
        return 0
    notes.error(f"{exc.filename}: {reason}", who=state.who)
    if isinstance(exc, PermissionError):
        return 5
    return 2 if isinstance(exc, (FileNotFoundError, IsADirectoryError, NotADirectoryError)) else 7


def _origin(exc: BaseException) -> str:
    """The innermost place in accelctl's own code: what a bug report needs even without a traceback."""
    here, tb = "", exc.__traceback__
    while tb is not None:
        name = tb.tb_frame.f_globals.get("__name__", "")
        if name.startswith("accelctl.") and name != __name__:
            here = f" (in {name}, line {tb.tb_lineno})"
        tb = tb.tb_next
    return here


def _flush(code: int, state: _State) -> int:
    """Write out what is still buffered while an error can be reported; at interpreter exit it is too late for that."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as exc:
        code = _ended_by(exc, state)
    except ValueError:  # closed by the command
        pass
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        _silence("stderr")
    return code


def _reader_is_gone() -> bool:
    """Tell a closed stdout from a broken pipe inside accelctl (a child that died), which must not end quietly."""
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError, AttributeError):
        return False


def _silence(name: str) -> None:
    """Point a broken stream at /dev/null, so that the flush at interpreter exit has nothing to complain about."""
    try:
        with open(os.devnull, "w") as sink:
            os.dup2(sink.fileno(), getattr(sys, name).fileno())
    except (OSError, ValueError, AttributeError):
        pass
