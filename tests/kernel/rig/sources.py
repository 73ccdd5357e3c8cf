"""The machine's own apt sources, read, and the suites derived from them that carry the kernel.

Both formats of sources.list(5) are parsed, since which one a machine has depends on its age: one line per
source, and deb822 stanzas. Only Debian's own sources are derived from: a third party has no kernel to offer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

DEBIAN_SUITES = frozenset({"stable", "testing", "unstable", "sid", "oldstable", "bookworm", "trixie", "forky"})
"""Names whose base makes a source Debian's own, beside the code name of the running system."""

NEWER_SUITE = "trixie"
"""Debian 13: its kernel is 6.12 all through its life, so it is the last resort of an older machine."""

POCKETS = ("-security", "-updates", "-proposed-updates", "-backports", "-backports-sloppy")

_ONE_LINE = re.compile(r"^(?P<type>deb|deb-src)\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<rest>\S.*)$")
_OPTION_NAMES = {"arch": "Architectures", "lang": "Languages", "target": "Targets", "pdiffs": "PDiffs"}
_KEPT_OPTIONS = ("Signed-By", "Trusted", "Check-Valid-Until", "Allow-Insecure", "Allow-Weak", "By-Hash")


@dataclass(frozen=True)
class Source:
    """One archive: where it is, which suites of it, and the options that decide whether apt trusts it."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()

    def render(self) -> str:
        """Return the deb822 stanza; a key given inside the stanza keeps its lines."""
        fields = [
            ("Types", "deb"),
            ("URIs", " ".join(self.uris)),
            ("Suites", " ".join(self.suites)),
            ("Components", " ".join(self.components)),
            *((name, value) for name, value in self.options if name in _KEPT_OPTIONS),
        ]
        return "".join(f"{name}:{'' if value.startswith(chr(10)) else ' '}{value}\n" for name, value in fields)


def parse_one_line(text: str) -> list[Source]:
    """Parse the one-line format of sources.list(5); source packages and exact paths are left out."""
    found = []
    for line in text.splitlines():
        match = _ONE_LINE.match(line.split("#", 1)[0].strip())
        if match is None or match["type"] != "deb":
            continue
        words = match["rest"].split()
        if len(words) < 3 or words[1].endswith("/"):
            continue
        options = tuple(_option(word) for word in (match["options"] or "").split() if "=" in word)
        found.append(Source((words[0],), (words[1],), tuple(words[2:]), options))
    return found


def _option(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    name = name.rstrip("+-").lower()
    return _OPTION_NAMES.get(name, name.title()), value.replace(",", " ")


def parse_deb822(text: str) -> list[Source]:
    """Parse deb822 stanzas; disabled ones, source packages and exact paths are left out."""
    return [source for stanza in _stanzas(text) if (source := _source(stanza)) is not None]


def _stanzas(text: str) -> list[dict[str, str]]:
    stanzas: list[dict[str, str]] = [{}]
    name = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            stanzas.append({})
        elif line[0] in " \t":
            if name in stanzas[-1]:
                stanzas[-1][name] += "\n" + line
        else:
            name, _, value = line.partition(":")
            name = name.strip().title()
            stanzas[-1][name] = value.strip()
    return [stanza for stanza in stanzas if stanza]


def _source(stanza: dict[str, str]) -> Source | None:
    uris, suites = stanza.get("Uris", "").split(), stanza.get("Suites", "").split()
    components = stanza.get("Components", "").split()
    enabled = stanza.get("Enabled", "yes").lower() not in ("no", "false", "without", "off", "disable")
    if not enabled or "deb" not in stanza.get("Types", "").split() or not (uris and suites and components):
        return None
    options = tuple((name, stanza[name]) for name in _KEPT_OPTIONS if name in stanza)
    return Source(tuple(uris), tuple(suites), tuple(components), options)


def read_sources(etc_apt: Path = Path("/etc/apt")) -> list[Source]:
    """Read the machine's sources, in apt's own order; an unreadable file counts as absent, as it does for apt."""
    files = [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]
    found: list[Source] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if file.suffix == ".sources":
            found += parse_deb822(text)
        elif file.suffix == ".list":
            found += parse_one_line(text)
    return found


def suite_base(suite: str) -> str:
    """Return the release a suite belongs to: `bookworm-security` is of `bookworm`."""
    for pocket in sorted(POCKETS, key=len, reverse=True):
        if suite.endswith(pocket):
            return suite[: -len(pocket)]
    return suite


def debian_only(sources: Iterable[Source], codename: str) -> list[Source]:
    """Keep Debian's own main archives, one suite each, so that each can be moved to another suite alone."""
    bases = DEBIAN_SUITES | {codename}
    return [
        replace(source, suites=(suite,), components=("main",))
        for source in sources
        for suite in source.suites
        if suite_base(suite) in bases and "main" in source.components
    ]


def derive(sources: Iterable[Source], codename: str) -> list[tuple[str, list[Source]]]:
    """Return (what to call it, sources) in the order to try: nearest to the machine first, a newer release last."""
    own = debian_only(sources, codename)
    pockets = [source for source in own if suite_base(source.suites[0]) != source.suites[0]]
    plain = [source for source in own if suite_base(source.suites[0]) == source.suites[0]]
    security = [source for source in own if source.suites[0].endswith("-security")]
    backports = [replace(source, suites=(f"{codename}-backports",)) for source in plain]
    newer = [replace(source, suites=(NEWER_SUITE,)) for source in plain]
    newer += [replace(source, suites=(f"{NEWER_SUITE}-security",)) for source in security]
    tried: set[str] = set()
    groups = []
    for group in (pockets, plain, backports, newer):
        fresh = list(dict.fromkeys(source for source in group if source.render() not in tried))
        tried.update(source.render() for source in fresh)
        if fresh:
            groups.append((", ".join(dict.fromkeys(source.suites[0] for source in fresh)), fresh))
    return groups


def os_codename(os_release: Path = Path("/etc/os-release")) -> str:
    """Return VERSION_CODENAME of os-release(5), or an empty text on a system that has none."""
    try:
        text = os_release.read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r'^VERSION_CODENAME="?([^"\n]*)"?$', text, re.MULTILINE)
    return match[1] if match else ""
