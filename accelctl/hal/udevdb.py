"""The texts behind udev's view: the kernel's ``uevent`` lines and udevd's database entries.

Pure parsing. Both forms are those of systemd's sd-device (src/libsystemd/sd-device/sd-device.c); what does not parse is
skipped there and here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

FOLDER = "run/udev/data"


def number_of(text: str | None) -> int:
    """A number of the kernel's; 0 for anything else, also for more than a device number can hold."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 9 else 0


def pairs_of(text: str) -> Iterator[tuple[str, str]]:
    """The KEY=VALUE lines of a uevent file."""
    for line in re.split(r"[\r\n]", text):
        key, equals, value = line.partition("=")
        if key and equals:
            yield key, value


def normalise(pairs: dict[str, str]) -> None:
    """What sd-device does while it takes properties in: full node names, no device number 0, no broken index."""
    node = pairs.get("DEVNAME")
    if node and not node.startswith("/"):
        pairs["DEVNAME"] = "/dev/" + node
    if "MAJOR" in pairs and not number_of(pairs["MAJOR"]):
        pairs.pop("MAJOR")
        pairs.pop("MINOR", None)
    if "IFINDEX" in pairs and not number_of(pairs["IFINDEX"]):
        pairs.pop("IFINDEX")


class Database:
    """One entry of udevd's database.

    Lines: S link, I microseconds, E property, G tag, Q current tag. V (version), L (link priority) and W (watch) say
    nothing about the device.
    """

    def __init__(self, *, present: bool = False) -> None:
        self.present = present
        self.initialized_usec = 0
        self.links: dict[str, None] = {}  # dicts keep the order and drop what comes twice
        self.tags: dict[str, None] = {}
        self.current_tags: dict[str, None] = {}
        self.properties: list[tuple[str, str]] = []

    @classmethod
    def parse(cls, text: str) -> Database:
        """Read an entry; lines of another form are skipped, as udev does."""
        entry = cls(present=True)
        for line in re.split(r"[\r\n]", text):
            if line[1:2] == ":":
                entry._line(line[0], line[2:])
        return entry

    @classmethod
    def from_event(cls, event: Mapping[str, str], handled: bool) -> Database:
        """What an event says of links and tags; ``handled``: udevd sent it."""
        entry = cls(present=handled)
        entry.links = dict.fromkeys(event.get("DEVLINKS", "").split())
        entry.tags = dict.fromkeys(tag for tag in event.get("TAGS", "").split(":") if tag)
        usec = event.get("USEC_INITIALIZED", "")
        entry.initialized_usec = int(usec) if usec.isascii() and usec.isdigit() and len(usec) <= 20 else 0
        return entry

    def _line(self, key: str, value: str) -> None:
        if key == "S":
            self.links["/dev/" + value] = None
        elif key in "GQ" and value and ":" not in value and " " not in value:
            self.tags[value] = None
            if key == "Q":
                self.current_tags[value] = None
        elif key == "E" and "=" in value:
            name, _, text = value.partition("=")
            self.properties.append((name, text))
        elif key == "I" and value.isascii() and value.isdigit() and len(value) <= 20:
            self.initialized_usec = int(value)
            self.properties.append(("USEC_INITIALIZED", str(self.initialized_usec)))

    def apply(self, pairs: dict[str, str]) -> None:
        """Lay the entry over the kernel's properties; a property with an empty value takes one away."""
        for name, text in self.properties:
            if text:
                pairs[name] = text
            else:
                pairs.pop(name, None)
        if self.links:
            pairs["DEVLINKS"] = " ".join(self.links)
        if self.tags:
            pairs["TAGS"] = f":{':'.join(self.tags)}:"
        if self.current_tags:
            pairs["CURRENT_TAGS"] = f":{':'.join(self.current_tags)}:"
