"""Ports of this machine's loopback, with refusals that a person can use."""

from __future__ import annotations

import errno
import socket

from accelctl.errors import AccelError, PermissionDenied

BACKLOG = 64


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at an IP address; port 0: the system chooses. AccelError of kind already_exists where
    another has the port, PermissionDenied where this user may not have it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    except OSError as error:
        raise AccelError(f"{shown}: {_said(error)}", kind="os_error") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what is only closing is no hindrance
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            hint = f"ss -ltnp 'sport = :{port}'"
            raise AccelError(f"{shown} is taken by another process", hint, kind="already_exists") from None
        if isinstance(error, PermissionError):
            raise PermissionDenied(f"{shown}: {_said(error)}") from None
        raise AccelError(f"{shown}: {_said(error)}", kind="os_error") from None
    return made


def _said(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
