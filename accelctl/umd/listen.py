"""Where a service listens: a Unix socket in a private folder, or a loopback port when that is asked for."""

from __future__ import annotations

import ipaddress
from contextlib import ExitStack
from typing import NamedTuple
from urllib.parse import quote

from accelctl.errors import UsageError
from accelctl.hal import loopback
from accelctl.hal.claim import Claim, private_folder, private_mask
from accelctl.hal.sidesocket import check_path

SOCKET = "serve.sock"
DATA = ".data"
"""What the data channel's socket has behind the service's name."""
_FORMS = "an address is unix:/path, 127.0.0.1:port or [::1]:port"


class Address(NamedTuple):
    """``grpc`` is what gRPC is told, and what a client is given. ``path``: of the Unix socket; empty for TCP."""

    grpc: str
    path: str = ""
    host: str = ""
    port: int = 0


def parse(text: str) -> Address:
    """``unix:/path``, ``host:port``, or empty for the usual socket; port 0: the system chooses. UsageError for anything
    but loopback: the protocol has no passwords."""
    if not text:
        return _unix(f"{private_folder()}/{SOCKET}")
    if text.startswith(("unix:", "/")):
        return _unix(text.removeprefix("unix:"))
    host, colon, number = text.rpartition(":")
    if not colon or not (number.isascii() and number.isdecimal() and len(number) <= 5) or int(number) > 65535:
        raise UsageError(f"{text}: {_FORMS}")
    return _tcp(text, host, int(number))


def _unix(path: str) -> Address:
    """gRPC takes what follows "unix:" for part of a URI, and undoes percent signs in it."""
    if not path.startswith("/") or path.endswith("/"):
        raise UsageError(f"{path}: the path of a socket begins with / and ends with a name")
    return Address(f"unix:{quote(check_path(path))}", path)


def _tcp(text: str, host: str, port: int) -> Address:
    """Brackets decide: without them gRPC takes ::1:80 for the address ::1:80 and its own port 443."""
    boxed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if boxed else host
    if name == "localhost" and not boxed:  # asked of nobody: a name service might answer anything
        name = "127.0.0.1"
    try:
        there = ipaddress.ip_address(name)
    except ValueError:
        raise UsageError(f"{text}: {host!r} is no IP address; {_FORMS}") from None
    if boxed != (there.version == 6):
        raise UsageError(f"{text}: an IPv6 address has brackets, and only that; {_FORMS}")
    if not _is_loopback(there):
        raise UsageError(
            f"{name} is not a loopback address: the protocol has no passwords, so it is never offered to a network",
            "ssh -L 9000:/path/of/the/socket HOST",
        )
    return Address(f"[{there}]:{port}" if boxed else f"{there}:{port}", host=str(there), port=port)


def _is_loopback(there: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """127.0.0.0/8 and ::1 itself: no scope, and no IPv4 address in disguise, on which Python's versions disagree."""
    return there.is_loopback if isinstance(there, ipaddress.IPv4Address) else str(there) == "::1"


def claim(address: Address, held: ExitStack) -> None:
    """Make sure that nobody else serves there, and clear what a dead one left; until ``held`` ends, what this process
    makes is its user's alone. AccelError naming the pid of the other.

    A port that another program has is the kernel's to refuse: it has no lock of ours. Asked here as well, because gRPC
    writes to standard error when it is refused.
    """
    held.enter_context(private_mask())
    if address.path:
        lock = held.enter_context(Claim(f"{address.path}.lock", address.grpc))
        lock.remove_socket(address.path)
        held.callback(lock.sweep, address.path)
    elif address.port:
        held.enter_context(Claim(f"{private_folder()}/{address.grpc}.lock", address.grpc))
        loopback.listening(address.host, address.port).close()


def clear(address: Address) -> None:
    """Take away what a service that was killed left at its Unix socket. AccelError where one serves there."""
    for path in (address.path, address.path + DATA):
        with Claim(f"{path}.lock", path) as lock:
            lock.remove_socket(path)
