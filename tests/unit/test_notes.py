"""stderr: one line whatever the text holds, and no failure of its own."""

import errno
import io
import sys

import pytest

from accelctl.render import notes


def test_error_is_one_line_and_hint_another(capsys: pytest.CaptureFixture[str]) -> None:
    notes.error("it\nbroke\there", "type  this\n", who="accelctl probe")
    captured = capsys.readouterr()
    assert captured.err == "accelctl probe: it broke here\n  try: type this\n"
    assert captured.out == ""


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert notes.one_line("name \x1b[31mred\x07\x00") == "name ?[31mred??"


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        self.write("")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_broken_streams_are_survived(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, stream, Full())
    notes.warn("no one hears this")
    notes.note("nor this")
    monkeypatch.setattr(sys, stream, None)
    notes.error("nor this")
