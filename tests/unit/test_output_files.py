"""Files that a person named: what is there before and after they could not be written, and the exit status."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from accelctl.errors import AccelError, UsageError, unwritable
from accelctl.render import output


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOENT, 2),
        (errno.ENOTDIR, 2),
        (errno.EISDIR, 2),
        (errno.EACCES, 5),
        (errno.EPERM, 5),
        (errno.EROFS, 5),
        (errno.ENOSPC, 7),
        (errno.EDQUOT, 7),
        (errno.EFBIG, 7),
        (errno.EIO, 7),
    ],
)
def test_what_a_script_is_told(number: int, code: int) -> None:
    """The exit statuses of accelctl.exits."""
    error = unwritable("f", OSError(number, os.strerror(number)))
    assert error.exit_code == code
    assert error.message == f"f: cannot be written ({os.strerror(number).lower()})"
    assert isinstance(error, UsageError) is (code == 2)


def test_a_look_leaves_nothing_behind(tmp_path: Path) -> None:
    output.check(str(tmp_path / "new"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").write_text("kept")
    output.check(str(tmp_path / "old"))
    assert (tmp_path / "old").read_text() == "kept"


@pytest.mark.parametrize("replace", [True, False])
def test_half_of_a_new_file_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool) -> None:
    """A full disk, told while the file is closed."""
    real = open

    class Full:
        def __init__(self, *words: object, **more: object) -> None:
            self._file = real(*words, **more)  # type: ignore[call-overload]

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def write(self, text: str) -> None:
            self._file.write(text[:1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("builtins.open", Full)
    with pytest.raises(AccelError, match="no space left") as caught:
        output.write(str(tmp_path / "f"), "text", replace=replace)
    monkeypatch.undo()
    assert caught.value.exit_code == 7
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_takes_no_more_stays(tmp_path: Path) -> None:
    before = os.stat("/dev/full")
    with pytest.raises(AccelError, match="/dev/full: cannot be written"):
        output.write("/dev/full", "text")
    assert os.stat("/dev/full").st_ino == before.st_ino
