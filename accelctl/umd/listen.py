"""Where a service listens: a Unix socket in a private folder, or a loopback port when that is asked for."""

from __future__ import annotations

import ipaddress
from contextlib import ExitStack
from typing import NamedTuple

from accelctl.errors import UsageError
from accelctl.hal.claim import Claim, private_folder
from accelctl.hal.sidesocket import check_path

SOCKET = "serve.sock"


class Address(NamedTuple):
    """``grpc`` is what gRPC is told. ``path``: of the Unix socket; empty for TCP."""

    grpc: str
    path: str = ""
    host: str = ""
    port: int = 0


def parse(text: str) -> Address:
    """``unix:/path``, ``host:port``, or empty for the usual socket. UsageError for anything but loopback: the protocol
    has no passwords."""
    if not text:
        path = f"{private_folder()}/{SOCKET}"
        return Address(f"unix:{check_path(path)}", path)
    if text.startswith(("unix:", "/")):
        path = text.removeprefix("unix:")
        if not path.startswith("/"):
            raise UsageError(f"{text}: the path of a socket begins with /")
        return Address(f"unix:{check_path(path)}", path)
    host, colon, number = text.rpartition(":")
    if not colon or not number.isdecimal() or int(number) > 65535:
        raise UsageError(f"{text}: an address is unix:/path or 127.0.0.1:port")
    return Address(text, host=_loopback(host), port=int(number))


def _loopback(host: str) -> str:
    if host == "localhost":
        return "127.0.0.1"
    try:
        there = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise UsageError(f"{host}: not an IP address; only loopback ones are listened on") from None
    if not there.is_loopback:
        raise UsageError(
            f"{host} is not a loopback address: the protocol has no passwords, so it is never offered to a network",
            "ssh -L 9000:/path/of/the/socket HOST",
        )
    return str(there)


def claim(address: Address, held: ExitStack) -> None:
    """Make sure that nobody else serves there, and clear what a dead one left. AccelError naming the pid of the other.

    A port is not claimed: the kernel lets only one listen (the server does not share ports)."""
    if not address.path:
        return
    lock = held.enter_context(Claim(f"{address.path}.lock", address.grpc))
    lock.remove_socket(address.path)
    held.callback(lock.remove_socket, address.path)
