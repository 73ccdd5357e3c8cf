"""What of each file goes into a capture: a rule per path, so that nothing is packed because nobody thought of it.

The scan opens only what the allow-list names; here every opened file gets a treatment. Whole files that are about
people or about everything on the machine (passwd, logs, other processes) are left out or cut down to the lines that a
scan needs; texts of drivers pass through the redactor; identities, by the scope of the fact or by the file's name,
become hashes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from accelctl.accept.redact import Redactor
from accelctl.model.reading import IDENTITY, Reading
from accelctl.model.report import Report

CONFIG_BYTES = 64
"""Bytes of PCI configuration space: the header, without the capabilities, of which one holds the device serial
number."""

_OS_RELEASE = re.compile(r"^(NAME|PRETTY_NAME|ID|ID_LIKE|VERSION|VERSION_ID|VERSION_CODENAME)=")
_UEVENT = re.compile(
    r"^(DRIVER|PCI_\w+|MODALIAS|OF_\w+|MAJOR|MINOR|DEVNAME|DEVTYPE|DEVMODE|SUBSYSTEM|ACTION|SEQNUM|DEVPATH|CARD)="
)
_UDEV = re.compile(
    r"^(E:(ID_PATH|ID_PATH_TAG|ID_VENDOR_FROM_DATABASE|ID_MODEL_FROM_DATABASE|ID_PCI_\w+|ID_FOR_SEAT)=|[GQVIL]:)"
)
_STATUS = re.compile(
    r"^(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp|Seccomp_filters|Threads):"
)
_CPUINFO = re.compile(
    r"^(processor|vendor_id|cpu family|model|model name|stepping|flags|physical id|siblings|core id|cpu cores)\b"
)
#: Words of control groups that tell a container; everything else in a path names services, users and pods.
_CGROUP = frozenset({
    "docker", "kubepods", "libpod", "containerd", "crio", "lxc", "garden", "podman", "burstable", "besteffort",
    "machine",
    "init", "user", "system", "slice", "scope", "service", "payload", "pod",
})  # fmt: skip
_FILESYSTEMS = frozenset({
    "sysfs", "proc", "devtmpfs", "efivarfs", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs", "configfs", "bpf",
    "devpts", "hugetlbfs", "mqueue",
})  # fmt: skip
#: Files whose whole content is an identity, whatever a driver calls the fact.
_SECRET = re.compile(
    r"(^|_)(serial(_?(number|num|no))?|sn|uuids?|unique_id|guid|asset_tag|fru_id|asic_id|chip_id|hw_?id|mac(_addr(ess)?)?|"
    r"wwid|wwn|vpd|edid|dsn|product_serial|board_serial|machine_id|boot_id)$"
)
#: A small number, whatever the file: by far the most of them.
_PLAIN = re.compile(r"^-?\d{0,6}\s*\Z")
_DROPPED = re.compile(
    r"^(etc/passwd|etc/shadow|var/log/.*|proc/\d+/(?!cgroup$).*|proc/(?!1/)\d+/cgroup|dev/kmsg|proc/(thread-)?self/environ|"
    r"proc/(thread-)?self/cmdline|accelctl-(capture\.json|kmsg\.txt)|.*/(edid|vpd|rom)|etc/(hostname|machine-id))$"
)

Treatment = Callable[[str], str]


class Keeper:
    """Treats the files of one capture."""

    def __init__(self, redactor: Redactor, report: Report, gids: frozenset[int]) -> None:
        self._redact = redactor
        self._report = report
        self._gids = gids
        self._identities = _identities(report)
        self._by_path: dict[str, Treatment] = {
            "etc/os-release": _lines(_OS_RELEASE),
            "usr/lib/os-release": _lines(_OS_RELEASE),
            "etc/group": self._groups,
            "proc/cmdline": self._command_line,
            "proc/version": self._version,
            "proc/mounts": self._mounts,
            "proc/self/mounts": self._mounts,
            "proc/self/mountinfo": self._mountinfo,
            "proc/self/cgroup": self._cgroup,
            "proc/1/cgroup": self._cgroup,
            "proc/self/status": _lines(_STATUS),
            "proc/cpuinfo": _lines(_CPUINFO),
        }

    def keep(self, path: str, data: bytes) -> bytes | None:
        """The bytes that may leave the machine; None for a file that is left out."""
        name = path.rpartition("/")[2]
        if _DROPPED.match(path):
            return None
        if name == "config":
            return data[:CONFIG_BYTES]
        if path.startswith("sys/firmware/efi/efivars/"):
            return data[:5]
        if name == "pci.ids":
            return self._pci_ids(data)
        if name.endswith("gpu_metrics"):
            return data[:4]  # the header: what follows are counters of a moment, and on some chips a serial number
        if _is_binary(data):
            return b""  # nothing that a rule could vouch for
        text = data.decode("utf-8", "surrogateescape")
        if _PLAIN.match(text):
            return data
        return self._treated(path, name, text).encode("utf-8", "surrogateescape")

    def _treated(self, path: str, name: str, text: str) -> str:
        special = self._by_path.get(path)
        if special is not None:
            return special(text)
        if name == "uevent":
            return self._keys(text, _UEVENT)
        if path.startswith("run/udev/data/"):
            return "".join(line for line in text.splitlines(keepends=True) if _UDEV.match(line))
        if _SECRET.search(name):
            return self._identity(name, text)
        done: dict[str, str] = {}
        for raw, value in self._identities.get(path, ()):
            text = self._set_aside(text, raw, value, done)
        text = self._redact.text(text, names=not path.startswith("sys/"))
        for mark, hidden in done.items():
            text = text.replace(mark, hidden)
        return text

    # -- identities --

    def _identity(self, name: str, text: str) -> str:
        if name == "unique_id" and re.fullmatch(r"[0-9A-Fa-f]{1,16}\s*", text):
            bare = text.rstrip()
            return self._redact.hexadecimal(bare) + text[len(bare) :]
        return re.sub(r"[^\s,]+", lambda match: self._redact.token(match[0]), text)

    def _set_aside(self, text: str, raw: str | None, value: object, done: dict[str, str]) -> str:
        """Put a mark where an identity stands (a number on its line, a text wherever it is), so that it is hashed once
        and not again by its shape."""
        mark = f"\uf000{chr(0xF100 + len(done) % 2048)}\uf000"
        if isinstance(value, int) and raw is not None and raw.endswith(str(value)):
            done[mark] = str(self._redact.number(value))
            return text.replace(raw, raw[: -len(str(value))] + mark)
        if isinstance(value, str) and value and self._redact.text(value) == value:  # else its shape says enough
            done[mark] = self._redact.token(value)
            return text.replace(value, mark)
        return text

    def _keys(self, text: str, known: re.Pattern[str]) -> str:
        """KEY=value lines: values of unknown keys are hashed."""
        lines = []
        for line in text.splitlines():
            key, equals, value = line.partition("=")
            lines.append(line if known.match(line) or not equals else f"{key}={self._redact.token(value)}")
        return "".join(f"{line}\n" for line in lines)

    # -- files about the whole machine --

    def _groups(self, text: str) -> str:
        """Groups that own a node or that the process is in, without their members; only known names stay readable."""
        lines = []
        for line in text.splitlines():
            fields = line.split(":")
            if len(fields) >= 3 and fields[2].isdigit() and int(fields[2]) in self._gids:
                name = fields[0] if fields[0] in _GROUPS else self._redact.token(fields[0])
                lines.append(f"{name}:x:{fields[2]}:\n")
        return "".join(lines)

    def _command_line(self, text: str) -> str:
        """Only the parameters that the report shows."""
        chosen = self._report.value("kernel/parameters")
        words = [f"{name}={value}" if value else str(name) for name, value in (chosen or {}).items()] + [_CUT]
        quoted = [re.sub(r"^([^=]*=)?(.*\s.*)$", r'\1"\2"', word, flags=re.DOTALL) for word in words]
        return self._redact.text(" ".join(quoted)) + "\n"

    def _version(self, text: str) -> str:
        """Who built the kernel where is nobody's business."""
        return re.sub(r"(?<=\()([^()@\s]+@[^()\s]+)(?=\))", lambda match: self._redact.token(match[0]), text)

    def _mounts(self, text: str) -> str:
        kept = [line for line in text.splitlines() if _mounted(line.split(" "), 2, 1)]
        return "".join(f"{line}\n" for line in kept)

    def _mountinfo(self, text: str) -> str:
        kept = []
        for line in text.splitlines():
            front, dash, back = line.partition(" - ")
            fields = [*front.split(" "), *back.split(" ")]
            if dash and len(fields) > 4 and _mounted([back.split(" ")[0], fields[4]], 0, 1):
                kept.append(line)
        return self._redact.text("".join(f"{line}\n" for line in kept))

    def _cgroup(self, text: str) -> str:
        """The shape of the path, with the words that tell a container."""
        lines = []
        for line in text.splitlines():
            number, _, rest = line.partition(":")
            controllers, _, where = rest.partition(":")
            shape = re.sub(r"[^\W_]+", lambda match: match[0] if match[0] in _CGROUP else "x", where)
            lines.append(f"{number}:{controllers}:{shape}\n")
        return "".join(lines)

    def _pci_ids(self, data: bytes) -> bytes:
        """Lines of the vendors and devices that are here, with the file's own line structure."""
        wanted = {
            (str(device.value("pci/vendor_id") or "")[2:], str(device.value("pci/device_id") or "")[2:])
            for device in self._report.devices
        }
        kept: list[str] = []
        vendor = device = None
        for line in data.decode("utf-8", "replace").splitlines():
            if not line.startswith(("\t", "#")):
                vendor, device = line[:4], None
                if any(vendor == one for one, _ in wanted):
                    kept.append(line)
            elif line.startswith("\t") and not line.startswith("\t\t"):
                device = line[1:5]
                if (vendor, device) in wanted:
                    kept.append(line)
            elif line.startswith("\t\t") and (vendor, device) in wanted:
                kept.append(line)
        return "".join(f"{line}\n" for line in kept).encode()


_SHM = "dev/shm"
_CUT = "accelctl.redacted"
"""Stands at the end of a kernel command line that was cut down: no module has this name, so no kernel ever saw it."""

_GROUPS = frozenset({
    "root", "video", "render", "kfd", "input", "disk", "kvm", "users", "wheel", "sudo", "adm", "tty", "dialout",
    "plugdev", "kmem", "sys", "daemon", "nogroup", "nobody", "docker", "vglusers", "accel", "habanalabs", "tenstorrent",
})  # fmt: skip
"""Names that distributions and drivers give to groups; any other may be a person's or a company's."""


def _identities(report: Report) -> dict[str, list[tuple[str | None, object]]]:
    """Source path -> (raw text, value) of the facts that tell machines apart; addresses of BARs and words that have a
    treatment of their own are left out."""
    found: dict[str, list[tuple[str | None, object]]] = {}

    def add(facts: Mapping[str, Reading]) -> None:
        for key, one in facts.items():
            if one.scope == IDENTITY and one.present and not key.startswith("bars/") and key != "kernel/command_line":
                found.setdefault(one.source, []).append((one.raw, one.value))

    add(report.machine)
    for device in report.devices:
        add(device.facts)
    return found


def _lines(known: re.Pattern[str]) -> Treatment:
    """Keep the lines that begin with a known word."""
    return lambda text: "".join(f"{line}\n" for line in text.splitlines() if known.match(line))


def _mounted(fields: list[str], kind: int, point: int) -> bool:
    return len(fields) > max(kind, point) and (fields[kind] in _FILESYSTEMS or fields[point] == f"/{_SHM}")


def _is_binary(data: bytes) -> bool:
    """More than one byte in eight that no text holds."""
    strange = sum(byte < 9 or 13 < byte < 32 for byte in data[:4096] if byte)
    return strange * 8 > len(data[:4096])
