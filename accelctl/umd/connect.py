"""The client's end of a connection."""

from __future__ import annotations

import os
from urllib.parse import unquote

import grpc

MESSAGE_LIMIT = 64 << 20
"""Bytes of a message, both ways: what a service takes at most (umd.service.USUAL)."""
OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    # A proxy of the environment has no business between two processes of one machine.
    ("grpc.enable_http_proxy", 0),
    # A service that was restarted is found again while a call is tried again (umd.client.RETRIES).
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    # No pings: on a Unix socket and on loopback the kernel says at once when the other side is gone.
)
_FIRST = os.getpid()
_APART = (("grpc.use_local_subchannel_pool", 1),)


def connect(address: str) -> grpc.Channel:
    """A channel. Those of one process to one service share a connection; a forked process must not find its parent's
    among them, whose socket gRPC refuses to use there."""
    return grpc.insecure_channel(address, options=OPTIONS if os.getpid() == _FIRST else (*OPTIONS, *_APART))


def forbidden(address: str) -> str:
    """The path of a Unix socket that this process may not connect to; empty: it may, or that is not what is wrong.
    gRPC has no status for it: it says UNAVAILABLE, as where nobody listens."""
    if not address.startswith("unix:"):
        return ""
    path = unquote(address.removeprefix("unix:"))
    try:
        os.stat(path)
    except PermissionError:  # a folder on the way
        return path
    except (OSError, ValueError):
        return ""
    return "" if os.access(path, os.W_OK, effective_ids=True) else path
