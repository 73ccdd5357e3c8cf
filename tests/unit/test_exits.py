"""Exit codes and error kinds are public: pinned here, so that a change is a decision and not an accident."""

import json
from pathlib import Path

import pytest

from accelctl import errors
from accelctl.exits import EXIT_MEANINGS, ExitCode

PUBLIC = {
    "OK": 0,
    "FINDINGS": 1,
    "USAGE": 2,
    "NO_DEVICE": 3,
    "ABI": 4,
    "PERMISSION": 5,
    "TIMEOUT": 6,
    "UNUSABLE": 7,
    "SKIPPED": 77,
}

ABSENCES = [
    "no_node",
    "no_driver",
    "no_permission",
    "hidden_by_container",
    "asleep",
    "costly",
    "kernel_too_old",
    "not_offered",
    "not_captured",
    "empty",
    "timed_out",
    "unreadable",
    "malformed",
    "not_applicable",
    "not_allowed",
]


def test_codes_are_the_published_ones() -> None:
    assert {code.name: code.value for code in ExitCode} == PUBLIC


def test_every_code_is_explained_in_help() -> None:
    assert set(EXIT_MEANINGS) == {*PUBLIC.values(), 130}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError, 2),
        (errors.NoDeviceError, 3),
        (errors.AbiError, 4),
        (errors.PermissionDenied, 5),
        (errors.TimeoutFailure, 6),
        (errors.DeviceUnusable, 7),
    ],
)
def test_exception_carries_its_code(error: type[errors.AccelError], code: int) -> None:
    raised = error("what is wrong", "what to type")
    assert (raised.exit_code, raised.message, raised.hint, str(raised)) == (
        code,
        "what is wrong",
        "what to type",
        "what is wrong",
    )


def test_kind_decides_the_code() -> None:
    assert errors.AccelError("x", kind="timeout").exit_code == ExitCode.TIMEOUT
    assert errors.UsageError("x", kind="not_found").exit_code == ExitCode.USAGE


def test_kind_of_another_code_is_refused() -> None:
    with pytest.raises(ValueError, match="exit code 6"):
        errors.UsageError("x", kind="timeout")
    with pytest.raises(ValueError, match="unknown error kind"):
        errors.AccelError("x", kind="no_such_kind")


def test_kinds_are_the_shared_ones(shared: Path) -> None:
    """Names, groups and retryability are facts taken from the table of all stacks; the wording is ours."""
    table = json.loads((shared / "errors" / "kinds.json").read_text(encoding="utf-8"))
    theirs = {row["kind"]: (row["group"], row["retryable"]) for row in table["kinds"]}
    assert {name: (kind.group, kind.retryable) for name, kind in errors.KINDS.items()} == theirs


def test_kinds_are_complete_sentences_for_people() -> None:
    assert len(errors.KINDS) == 33
    for name, kind in errors.KINDS.items():
        assert kind.meaning, name
        assert kind.next_step, name
        assert "\n" not in kind.meaning + kind.next_step, name


def test_only_harmless_kinds_exit_zero() -> None:
    assert {name for name, kind in errors.KINDS.items() if kind.exit_code == 0} == {"ok", "notice", "ecc_correctable"}


def test_absence_reasons_refer_to_kinds() -> None:
    assert list(errors.ABSENCES) == ABSENCES
    assert {kind for kind, _ in errors.ABSENCES.values()} <= set(errors.KINDS)
