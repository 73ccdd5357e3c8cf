"""Replaces what tells a machine, its place or its people apart by a keyed hash: equal stays equal, shapes stay shapes.

With the key of another capture the same serial number becomes another text, so captures cannot be joined by it; with
``--key FILE`` they can, by whoever has the file.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from string import ascii_lowercase, digits

HEX_LETTERS = "abcdef"

_UUID = r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"
_MAC = r"(?<![0-9A-Fa-f:.])(?:[0-9A-Fa-f]{2}:){5}(?:(?:[0-9A-Fa-f]{2}:){2})?[0-9A-Fa-f]{2}(?![0-9A-Fa-f:.])"
_IP6 = (
    r"(?<![\w:])(?:(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}"
    r"|(?:[0-9A-Fa-f]{1,4}:){1,6}(?::[0-9A-Fa-f]{1,4}){1,6}|::(?:[0-9A-Fa-f]{1,4}:){0,5}[0-9A-Fa-f]{1,4})(?![\w:])"
)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IP4 = rf"(?<![\w.])(?:{_OCTET}\.){{3}}{_OCTET}(?![\w.])"
_MAIL = r"(?<![\w.+-])[\w.+-]{1,64}@[\w.-]{1,255}"

#: Shapes that are replaced wherever they stand in free text, each with a sign without which it cannot be there: most
#: texts are spared the search.
_SHAPES = tuple((sign, re.compile(pattern)) for sign, pattern in (("-", _UUID), (":", _MAC), (":", _IP6), ("@", _MAIL)))
#: Four numbers with points are an address only where no word says that they are a version.
_ADDRESS = re.compile(
    rf"(?P<before>\b(?:v|ver|version|firmware|fw|driver|release|guc|huc|gsc|vbios)\W*)?(?P<ip>{_IP4})", re.I
)
#: What follows a word that announces an identity: "Serial Number: 123", "sn=123", "name=python3".
_NAMED = re.compile(
    r"(?P<word>\b(?:serial(?:[ _-]?(?:number|num|no))?|serialnumber|s/n|sn|uuid|guid|unique[ _-]?id|chip[ _-]?id|"
    r"asset(?:[ _-]?tag)?|hostname|host[ _-]?name|node[ _-]?name|user(?:[ _-]?name)?|wwn|wwid|dsn)\b"
    r"(?:\s*[:=]\s*|\s+(?=[0-9A-Fa-f-]{8,}\b)))(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;]+)",
    re.I,
)
#: Names of processes in lines of the kernel log; pid numbers say nothing.
_PROCESS = re.compile(
    r"(?P<word>\bComm: |\bname=|\bprocess:? |\bProcess:? |\bthread |\btask |\bINFO: task |\bcomm[:=] ?\"?)"
    r"(?P<value>[^\s,:<\"]+)(?=[:\s,\"]|$)"
)
_HOME = re.compile(r"(?P<word>/(?:home|Users)/)(?P<value>[^/\s:]+)")
_EMPTY = re.compile(r"^(?:0+|[fF]+|[xX]+)$")


MARK = "\ue000"
"""Private-use character (Unicode): nothing that is read from a machine holds it, and no pattern here matches it."""


class _Aside:
    """Hashes wait here while further patterns run over a text, so that none is hashed again."""

    def __init__(self) -> None:
        self._kept: list[str] = []

    def put(self, text: str) -> str:
        """What stands in the text instead."""
        self._kept.append(text)
        return MARK + "".join(chr(0xE100 + int(digit)) for digit in str(len(self._kept) - 1)) + MARK

    def back(self, text: str) -> str:
        """The text with everything put back."""
        if not self._kept:
            return text
        numbered = re.compile(f"{MARK}([\ue100-\ue109]+){MARK}")

        def restore(match: re.Match[str]) -> str:
            number = int("".join(str(ord(letter) - 0xE100) for letter in match[1]))
            return self._kept[number] if number < len(self._kept) else match[0]

        return numbered.sub(restore, text)


class Redactor:
    """One key. ``words`` are names known to belong to this machine (host, users), replaced as whole words in free
    text."""

    def __init__(self, key: bytes, words: Iterable[str] = ()) -> None:
        self._key = key
        known = sorted(
            {word for word in words if len(word) > 2 and word not in _COMMON}, key=lambda word: (-len(word), word)
        )
        self._words = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, known))})(?![\w-])", re.I) if known else None

    def token(self, text: str) -> str:
        """A text of the same length and classes: digits stay digits, letters letters of the same case, and what was
        hexadecimal stays so. Zeros and all-ones, which identify nothing, stay as they are."""
        bare = "".join(letter for letter in text if letter.isalnum())
        if not bare or _EMPTY.match(bare) or bare.lower() in _COMMON:
            return text
        letters = HEX_LETTERS if re.fullmatch(r"[0-9A-Fa-f]+", bare) else ascii_lowercase
        stream = self._stream(text.lower())
        return "".join(_same_class(letter, next(stream), letters) for letter in text)

    def number(self, value: int) -> int:
        """A number of the same length in bits; short ones (up to 32 bits) identify nothing and are kept."""
        bits = value.bit_length()
        if value < 0 or bits <= 32:
            return value
        stream = self._stream(f"number {value}")
        drawn = int.from_bytes(bytes(next(stream) for _ in range((bits + 7) // 8)), "big")
        return drawn & ((1 << (bits - 1)) - 1) | 1 << (bits - 1)

    def hexadecimal(self, text: str) -> str:
        """A hexadecimal text whose number also stands elsewhere in decimal: both stay the same number."""
        try:
            return f"{self.number(int(text, 16)):0{len(text)}x}" if int(text, 16) >> 32 else self.token(text)
        except ValueError:
            return self.token(text)

    def text(self, text: str, *, names: bool = True) -> str:
        """Free text with everything in it replaced that looks like an identity. ``names``: also known names of host and
        people (not in files of drivers, where a host called like a chip would spoil the chip's name)."""
        aside = _Aside()
        for sign, shape in _SHAPES:
            if sign in text:
                text = shape.sub(lambda match: aside.put(self.token(match[0])), text)
        for pattern in (_NAMED, _HOME):
            text = pattern.sub(lambda match: self._named(match, aside), text)
        text = _ADDRESS.sub(lambda match: match[0] if match["before"] else aside.put(self.token(match["ip"])), text)
        if names and self._words is not None:
            text = self._words.sub(lambda match: aside.put(self.token(match[0])), text)
        return aside.back(text)

    def _named(self, match: re.Match[str], aside: _Aside) -> str:
        """A unique_id is one number in sysfs, in the KFD's files and in the log."""
        word, value = match["word"], match["value"]
        if MARK in value:
            return match[0]
        return word + aside.put(self.hexadecimal(value) if "unique" in word.lower() else self.token(value))

    def log_line(self, text: str) -> str:
        """The same for a line of the kernel log, which also names processes."""
        return self.text(_PROCESS.sub(self._process, text))

    def _process(self, match: re.Match[str]) -> str:
        value = match["value"]
        return match[0] if value.strip("'") in ("unknown", "is", "of", "pid") else match["word"] + self.token(value)

    def _stream(self, text: str) -> _Stream:
        return _Stream(self._key, text.encode("utf-8", "surrogateescape"))


class _Stream:
    """Endless bytes from key and text: HMAC-SHA-256 with a block counter."""

    def __init__(self, key: bytes, text: bytes) -> None:
        self._key, self._text = key, text
        self._block, self._at, self._number = b"", 0, 0

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> int:
        if self._at == len(self._block):
            message = self._number.to_bytes(4, "big") + self._text
            self._block, self._at = hmac.new(self._key, message, hashlib.sha256).digest(), 0
            self._number += 1
        self._at += 1
        return self._block[self._at - 1]


def _same_class(letter: str, drawn: int, letters: str) -> str:
    if letter in digits:
        return digits[drawn % 10]
    if letter.isascii() and letter.isalpha():
        chosen = letters[drawn % len(letters)]
        return chosen.upper() if letter.isupper() else chosen
    return "x" if letter.isalpha() else letter


#: Words that identify nobody, whoever bears them as a host or user name.
_COMMON = frozenset({
    "root", "localhost", "localdomain", "unknown", "none", "user", "admin", "null", "debian", "ubuntu", "fedora",
    "linux", "amd", "intel", "nvidia", "amdgpu", "gpu", "npu", "kernel", "nobody", "default", "n/a", "na",
})  # fmt: skip
