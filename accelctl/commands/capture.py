"""`accelctl capture [FILE]`: pack what probe reads, redacted, for `accelctl probe --root FILE`."""

from typing import Annotated

import typer

EXAMPLES = (
    ("accelctl capture", "writes accelctl-capture.tar.xz"),
    ("sudo $(command -v accelctl) capture machine.tar.xz", "with what only root may read"),
    ("accelctl capture - | ssh desk 'cat > machine.tar.xz'", "to another machine"),
    ("accelctl probe --root machine.tar.xz", "look at it there"),
)
FILE = "accelctl-capture.tar.xz"


def capture(
    file: Annotated[str, typer.Argument(help="where to write it; - is standard output", metavar="[FILE]")] = FILE,
    force: Annotated[bool, typer.Option("--force", help="replace the file if there is one")] = False,
    root: Annotated[str, typer.Option("--root", help="capture a captured machine again", metavar="DIR|TAR")] = "/",
    key: Annotated[
        str | None, typer.Option("--key", help="hash identities with the bytes of this file", metavar="FILE")
    ] = None,
    kmsg: Annotated[
        str | None, typer.Option("--kmsg", help="kernel log to take lines from; - is standard input", metavar="FILE|-")
    ] = None,
    allow_wake: Annotated[
        bool, typer.Option("--allow-wake", help="also read what wakes a sleeping device or blocks for a moment")
    ] = False,
) -> None:
    """Pack everything that probe read on this machine, so that `probe --root` sees the same elsewhere.

    Nothing else is read. Serial numbers, UUIDs, addresses of network cards, host and user names and the kernel command
    line are cut out or replaced by hashes; equal ones stay equal within a capture. The key is random unless --key names
    a file: with the same key the same device has the same hash in two captures. The file is readable by its owner only.
    """
    import sys

    from accelctl.accept import capture as work
    from accelctl.errors import UsageError
    from accelctl.render import notes, output, units

    if file == "-" and sys.stdout.isatty():
        raise UsageError("not written: standard output is a terminal", f"accelctl capture {FILE}")
    if file != "-" and not force:
        work.refuse_existing(file)
    done = work.take(root, key=work.read_key(key), kmsg=kmsg, allow_wake=allow_wake)
    if file == "-":
        output.emit_bytes(done.data)
    else:
        work.save(done.data, file, force=force)
    what = f"{units.counted(done.files, 'file')}, {units.size(len(done.data))}"
    notes.note(f"{'captured' if file == '-' else f'wrote {file}'}: {what}, identities hashed; look: probe --root FILE")
    for path in done.report.stuck:
        notes.warn(f"{path} did not come back and is marked so in the capture")
