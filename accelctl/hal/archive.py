"""A tar archive from a stranger becomes a :class:`MemoryTree`, or one clear line.

Nothing is written to disk, no device is made, no name may leave the root, and both the number of members and the bytes
that come out of the decompressor are capped, so that a bomb ends as a refusal. The caps are far above any real machine
(the largest captured tree at hand, with 1,400 files, holds 0.7 MB).
"""

from __future__ import annotations

import io
import tarfile
import zlib
from typing import IO, cast

from accelctl.errors import UsageError
from accelctl.hal.tree import MemoryTree, NodeStat

MAX_MEMBERS = 50_000
MAX_BYTES = 256 * 1024 * 1024
MAX_FILE = 16 * 1024 * 1024
MAX_DEPTH = 64
MAX_NAME = 4095  # bytes; the kernel's PATH_MAX without its NUL, which no path or link target on a machine exceeds
MAX_PART = 255  # bytes; NAME_MAX
MAX_FOLDERS = 200_000  # a member's name makes all folders above it
MAX_HEADER = 256 * 1024  # bytes of one extended header: tarfile takes its text apart before anyone can look at it
MAX_HEADERS = 64 * 1024 * 1024  # of all of them: every member may have one, for its long name
MAX_GLOBAL = 64 * 1024  # of the global ones, whose records tarfile copies for every member


class _Capped(io.RawIOBase):
    """Counts what the decompressor yields and stops it at the cap."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._left = MAX_BYTES
        self.ended = False

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(min(size if size >= 0 else 65536, 1 << 20))
        self.ended = not data
        self._left -= len(data)
        if self._left < 0:
            raise _TooBig(f"unpacks to more than {MAX_BYTES >> 20} MiB")
        return data


#: What tarfile and the decompressors raise for input that is not what it claims to be; chained headers exhaust the
#: stack, a dictionary size out of thin air the memory.
_DAMAGED = (
    tarfile.TarError,
    EOFError,
    zlib.error,
    ValueError,
    OverflowError,
    LookupError,
    RecursionError,
    MemoryError,
)


class _TooBig(Exception):
    """A cap was hit; carries the words for the user."""


def _guarded() -> type[tarfile.TarInfo]:
    """A TarInfo for one archive that looks at each header before tarfile acts on it."""
    spent = {"extended": 0, "global": 0}

    class Guarded(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Guarded:
            info = super().frombuf(buf, encoding, errors)
            if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, *_PAX_TYPES):
                spent["extended"] += max(info.size, 0)
                spent["global"] += max(info.size, 0) if info.type == tarfile.XGLTYPE else 0
                if info.size > MAX_HEADER or spent["extended"] > MAX_HEADERS or spent["global"] > MAX_GLOBAL:
                    raise _TooBig(f"an extended header of {info.size} bytes, more than any machine's names need")
            return info

    return Guarded


_PAX_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


def _decompressed(raw: IO[bytes]) -> IO[bytes]:
    """Choose the decompressor by the magic number, not by the file's name."""
    magic = raw.read(6)
    raw.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        import gzip

        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if magic.startswith(b"\xfd7zXZ\x00"):
        import lzma

        return cast("IO[bytes]", lzma.LZMAFile(raw))
    if magic.startswith(b"BZh"):
        import bz2

        return cast("IO[bytes]", bz2.BZ2File(raw))
    return raw


def _name(member: tarfile.TarInfo) -> str:
    if member.name.startswith("/"):
        raise _TooBig(f"member {member.name[:80]!r} has an absolute name")
    _check_text(member.name, "name")
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _TooBig(f"member {member.name[:80]!r} leaves the root")
    if len(parts) > MAX_DEPTH:
        raise _TooBig(f"member {member.name[:60]!r}... is nested deeper than {MAX_DEPTH} folders")
    return "/".join(parts)


def _check_text(text: str, what: str) -> None:
    """A name or link target that no file system could hold is not from a machine; resolving it would only cost time."""
    data = text.encode("utf-8", "surrogateescape")
    if b"\0" in data or len(data) > MAX_NAME or any(len(part) > MAX_PART for part in data.split(b"/")):
        raise _TooBig(f"a {what} that no file system holds: {text[:60]!r} ({len(data)} bytes)")


def _add(tree: MemoryTree, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    name = _name(member)
    if member.issym() or member.islnk():
        _check_text(member.linkname, "link target")
    if not name:  # "." itself
        return
    if member.isdir():
        tree.add_folder(name)
    elif member.issym():
        tree.add_link(name, member.linkname)
    elif member.islnk():
        tree.add_link(name, "/" + member.linkname.lstrip("/"))
    elif member.isreg():
        if not 0 <= member.size <= MAX_FILE:
            raise _TooBig(f"member {name[:80]!r} claims {member.size} bytes (0 to {MAX_FILE >> 20} MiB are read)")
        source = archive.extractfile(member)
        tree.add_file(name, source.read(MAX_FILE) if source is not None else b"")
    elif member.ischr() or member.isblk():
        kind = "c" if member.ischr() else "b"
        tree.add_node(
            name, NodeStat(kind, member.mode & 0o7777, member.uid, member.gid, member.devmajor, member.devminor)
        )
    else:
        tree.add_node(name, NodeStat("p", member.mode & 0o7777, member.uid, member.gid))


def _add_all(tree: MemoryTree, archive: tarfile.TarFile) -> None:
    """All members. Sizes are summed apart from the bytes read, because a sparse member unpacks from nothing.

    The place of the next header is checked because tarfile goes there in steps of 10 KiB, and a size can be 2**88.
    """
    total = 0
    for count, member in enumerate(archive):
        total += member.size if member.isreg() else 0
        if count >= MAX_MEMBERS:
            raise _TooBig(f"holds more than {MAX_MEMBERS} members")
        if total > MAX_BYTES or not 0 <= archive.offset <= MAX_BYTES:
            raise _TooBig(f"unpacks to more than {MAX_BYTES >> 20} MiB")
        if len(tree.folders) > MAX_FOLDERS:
            raise _TooBig(f"holds more than {MAX_FOLDERS} folders")
        _add(tree, archive, member)


def read_archive(path: str) -> MemoryTree:
    """Read a (compressed) tar into memory; raises UsageError with one line when it is damaged, hostile or too large."""
    import lzma

    tree = MemoryTree(path)
    try:
        with open(path, "rb") as raw:
            source = _Capped(_decompressed(raw))
            with tarfile.open(fileobj=cast("IO[bytes]", source), mode="r|", tarinfo=_guarded()) as archive:
                _add_all(tree, archive)
            if source.ended:  # before tar's own end mark, blocks of zeros
                raise _TooBig("it breaks off; copy it again")
            while source.read():  # the checksum of the whole stands at the end
                pass
    except _TooBig as error:
        raise UsageError(f"{path}: refused: {error}") from None
    except _DAMAGED as error:
        raise UsageError(f"{path}: not a readable tar archive ({str(error)[:100] or type(error).__name__})") from None
    except lzma.LZMAError as error:
        raise UsageError(f"{path}: not a readable tar archive ({error})") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read as an archive ({error.strerror or error})") from None
    if not tree.files and not tree.links and not tree.nodes:
        raise UsageError(f"{path}: the archive is empty", hint="accelctl capture writes one that --root reads")
    return tree
