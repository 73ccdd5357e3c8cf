"""What is refused, and how that is said: a kind of errors.KINDS, one line, and the field of the request it is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accelctl.errors import KINDS, AccelError
from accelctl.umd.proto import umd_pb2 as pb

OK = 0
CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS = 1, 3, 4, 5, 6
PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED = 7, 8, 9, 10
OUT_OF_RANGE, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS = 11, 12, 13, 14, 15
"""gRPC status codes (grpc/statuscodes.md). Here as numbers, because what has no gRPC speaks of them too."""

_BY_KIND = {
    "ok": OK,
    "notice": OK,
    "invalid_argument": INVALID_ARGUMENT,
    "launch_config": INVALID_ARGUMENT,
    "misaligned_access": INVALID_ARGUMENT,
    "invalid_handle": NOT_FOUND,
    "not_found": NOT_FOUND,
    "already_exists": ALREADY_EXISTS,
    "invalid_state": FAILED_PRECONDITION,
    "capture_violation": FAILED_PRECONDITION,
    "not_initialized": FAILED_PRECONDITION,
    "version_mismatch": FAILED_PRECONDITION,
    "permission": PERMISSION_DENIED,
    "not_supported": UNIMPLEMENTED,
    "out_of_memory": RESOURCE_EXHAUSTED,
    "out_of_resources": RESOURCE_EXHAUSTED,
    "out_of_address_space": RESOURCE_EXHAUSTED,
    "timeout": DEADLINE_EXCEEDED,
    "not_ready": UNAVAILABLE,
    "busy": UNAVAILABLE,
    "no_device": UNAVAILABLE,
    "cancelled": CANCELLED,
    "communication": DATA_LOSS,
}
"""Kind -> code. UNAVAILABLE invites a client to ask again, so only what may pass by itself has it. A lost device is
INTERNAL, as all that is not named here."""


class Refusal(Exception):
    """A request, or a part of one, that is not carried out. Nothing of it was done."""

    def __init__(self, field: str, message: str, kind: str = "invalid_argument", hint: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field, self.message, self.kind, self.hint = field, message, kind, hint
        self.told = False
        """The observer knows of it."""
        if kind not in KINDS:
            raise ValueError(f"unknown error kind {kind!r}")

    @property
    def code(self) -> int:
        """The gRPC status code."""
        return code_of(self.kind)

    def status(self, prefix: str = "") -> pb.Status:
        """As the protocol says it; ``prefix`` stands before the field (``ops[3].``)."""
        field = _short(prefix + self.field if self.field else prefix.rstrip("."), _LONGEST_FIELD)
        text = _short(f"{field}: {self.message}" if field else self.message, _LONGEST_TEXT)
        return pb.Status(code=self.code, message=text, field=field, kind=self.kind, hint=self.hint)


_LONGEST_FIELD, _LONGEST_TEXT = 200, 1500
"""Bytes of what is said. It goes into gRPC's metadata twice, once with three for each byte that is not ASCII, and all
of that may have 8 KiB (grpc.max_metadata_size); what is longer breaks the call off and says nothing."""


def _short(text: str, most: int) -> str:
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= most else raw[: most - 3].decode("utf-8", "ignore") + "..."


def code_of(kind: str) -> int:
    """The gRPC status code for an error kind."""
    return _BY_KIND.get(kind, INTERNAL)


def refusal_of(error: Exception, field: str = "") -> Refusal:
    """Whatever went wrong, as a refusal. A failure of the service itself is kind ``internal`` and names its type."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, AccelError):
        return Refusal(field, error.message, error.kind, error.hint or "")
    if isinstance(error, MemoryError):
        return Refusal(field, "the service has no memory for this", "out_of_memory")
    if isinstance(error, OSError):
        return Refusal(field, f"the driver failed: {error.strerror or error}", "os_error")
    return Refusal(field, f"the service failed: {type(error).__name__}: {error}", "internal")


@contextmanager
def about(field: str) -> Iterator[None]:
    """What is raised inside as AccelError is about this field of the request."""
    try:
        yield
    except AccelError as error:
        raise refusal_of(error, field) from None
