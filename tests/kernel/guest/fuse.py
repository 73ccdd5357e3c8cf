"""A hang that is real: a FUSE file whose server takes the READ and never answers.

The server speaks the kernel's protocol (include/uapi/linux/fuse.h) on /dev/fuse itself, so neither libfuse nor
ctypes is needed; mount(8) passes the open descriptor on as `fd=N`.

A reader waiting on FUSE is at first interruptible. The kernel stops trying to interrupt once a server has answered
an INTERRUPT with ENOSYS (`no_interrupt` in fs/fuse/dev.c); from then on a reader waits in state D, and when it is
killed it waits on without even hearing the signal, as long as the server holds the request. `FuseHang` provokes
that one INTERRUPT when it starts.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
_INIT, _OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _DESTROY, _BATCH_FORGET = 26, 27, 28, 29, 36, 38, 42

_HEADER = struct.Struct("=IIQQIIIHH")
_ROOT = 1
_WARM = ".warm"
_DIRECT_IO = 1  # FOPEN_DIRECT_IO: each read(2) is one READ, not a page of the cache

HANG = None
"""The content of a file that is never answered."""


class _Server:
    """The file system's side; runs in a process of its own, so that a stuck test cannot stop it."""

    def __init__(self, fd: int, files: Mapping[str, bytes | None], told: int) -> None:
        self.fd, self.told = fd, told
        self.names = list(files)
        self.contents = list(files.values())
        self.warm: int | None = None

    def serve(self) -> None:
        while True:
            try:
                message = os.read(self.fd, 1 << 20)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue  # ENOENT: the request was withdrawn before it was read
                return  # ENODEV: unmounted or aborted
            _, code, unique, node, *_ = _HEADER.unpack_from(message)
            self.answer(code, unique, node, message[_HEADER.size :])

    def answer(self, code: int, unique: int, node: int, body: bytes) -> None:
        if code in (_FORGET, _BATCH_FORGET):
            return
        if code == _INTERRUPT:
            self.reply(unique, error=errno.ENOSYS)
            if self.warm is not None:
                self.reply(self.warm)
                self.warm = None
        elif code == _INIT:
            self.reply(unique, struct.pack("=IIIIHHIIHHII24x", 7, 31, 0, 0, 16, 12, 4096, 1, 0, 0, 0, 0))
        elif code == _LOOKUP:
            self.lookup(unique, body.rstrip(b"\0").decode())
        elif code == _GETATTR:
            self.reply(unique, struct.pack("=QII", 3600, 0, 0) + self.attributes(node))
        elif code in (_OPEN, _OPENDIR):
            self.reply(unique, struct.pack("=QII", 0, _DIRECT_IO if code == _OPEN else 0, 0))
        elif code == _READ:
            self.read(unique, node, *struct.unpack_from("=QI", body, 8))
        elif code == _READDIR:
            self.reply(unique, self.entries() if struct.unpack_from("=Q", body, 8)[0] == 0 else b"")
        elif code in (_RELEASE, _RELEASEDIR, _FLUSH, _DESTROY):
            self.reply(unique)
        elif code == _STATFS:
            self.reply(unique, bytes(80))
        else:
            self.reply(unique, error=errno.ENOSYS)

    def reply(self, unique: int, data: bytes = b"", error: int = 0) -> None:
        try:
            os.write(self.fd, struct.pack("=IiQ", 16 + len(data), -error, unique) + data)
        except OSError:
            pass  # ENOENT: the caller is gone

    def attributes(self, node: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o444
        return struct.pack("=QQQQQQIIIIIIIIII", node, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def lookup(self, unique: int, name: str) -> None:
        if name not in self.names:
            self.reply(unique, error=errno.ENOENT)
            return
        node = self.names.index(name) + 2
        self.reply(unique, struct.pack("=QQQQII", node, 0, 3600, 3600, 0, 0) + self.attributes(node))

    def read(self, unique: int, node: int, offset: int, size: int) -> None:
        content = self.contents[node - 2]
        if content is not None:
            self.reply(unique, content[offset : offset + size])
            return
        if self.names[node - 2] == _WARM:
            self.warm = unique
        os.write(self.told, b"r")  # taken, and never answered

    def entries(self) -> bytes:
        out = b""
        for number, name in enumerate(self.names):
            raw = name.encode()
            entry = struct.pack("=QQII", number + 2, number + 1, len(raw), stat.S_IFREG >> 12) + raw
            out += entry + b"\0" * (-len(entry) % 8)
        return out


class FuseHang:
    """A mounted folder of small files: bytes are readable, `HANG` (None) is never answered.

    Use it as a context manager. Readers still stuck at the end get ECONNABORTED and go on.
    """

    def __init__(self, files: Mapping[str, bytes | None] | None = None) -> None:
        """Take file names and contents; by default one file named `hang`."""
        self.files: dict[str, bytes | None] = dict(files if files is not None else {"hang": HANG})
        self.folder = Path(tempfile.mkdtemp(prefix="hang-"))
        self.connection = 0
        self._server = 0
        self._told = -1
        self._bound: list[Path] = []

    def __enter__(self) -> FuseHang:
        """Mount, and make the kernel stop interrupting this connection's readers."""
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self._told, told = os.pipe()
        try:
            options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
            words = ["mount", "-i", "-t", "fuse", "-o", options, "accelctl-hang", str(self.folder)]
            subprocess.run(words, check=True, pass_fds=(fd,))
            self._server = os.fork()
            if self._server == 0:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                try:
                    _Server(fd, {**self.files, _WARM: HANG}, told).serve()
                finally:
                    os._exit(0)
        finally:
            os.close(fd)
            os.close(told)
        self.connection = os.minor(self.folder.stat().st_dev)
        self._stop_interrupts()
        return self

    def _stop_interrupts(self) -> None:
        reader = self.reader(_WARM)
        self.wait_taken()
        reader.terminate()
        reader.wait(timeout=30)

    def __exit__(self, *_: object) -> None:
        """Release every stuck reader and leave nothing mounted."""
        self.abort()
        for path in [*reversed(self._bound), self.folder]:
            subprocess.run(["umount", "-l", str(path)], check=False)
        if self._server:
            os.waitpid(self._server, 0)
        os.close(self._told)
        self.folder.rmdir()

    def path(self, name: str = "hang") -> Path:
        """Return the path of one file."""
        return self.folder / name

    def bind_over(self, target: Path, name: str = "hang") -> None:
        """Put one file over an existing file, such as an attribute in sysfs, until the end."""
        subprocess.run(["mount", "--bind", str(self.path(name)), str(target)], check=True)
        self._bound.append(target)

    def reader(self, name: str = "hang") -> subprocess.Popen[bytes]:
        """Start a process that reads one file."""
        return subprocess.Popen(["cat", str(self.path(name))], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_taken(self, timeout_s: float = 30) -> None:
        """Return once the server has taken one more READ that it will not answer."""
        if not select.select([self._told], [], [], timeout_s)[0]:
            raise TimeoutError(f"nobody read a hanging file within {timeout_s} s")
        os.read(self._told, 1)

    def abort(self) -> None:
        """End the connection from outside (Documentation/filesystems/fuse.rst): every waiting reader gets an error."""
        control = Path(f"/sys/fs/fuse/connections/{self.connection}/abort")
        if control.exists():
            control.write_text("1", encoding="ascii")


def state(pid: int) -> str:
    """Return a process's state letter from /proc/PID/stat (proc_pid_stat(5)); `gone` when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "gone"
    return text.rpartition(")")[2].split()[0]


def wait_state(pid: int, wanted: str, timeout_s: float = 30) -> str:
    """Return the state once it is among `wanted`, or the last one seen when time is up."""
    end = time.monotonic() + timeout_s
    while (seen := state(pid)) not in wanted and time.monotonic() < end:
        time.sleep(0.05)
    return seen
