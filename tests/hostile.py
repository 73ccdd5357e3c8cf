"""Values that do harm: what tests/mutate.py puts into files, names, manifests and logs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

NUMBERS = (
    "-1", "0", "1", "7", "255", "65535", "65536", "4294967295", "18446744073709551615", "18446744073709551616",
    "9" * 5000, "-9223372036854775809", "0x" + "f" * 17, "0x" + "f" * 5000, "1e400", "-1e400", "nan", "inf",
    "Infinity", "٣", "²", "１２", "0x²", "1_000", "+5", "--5", "5.5", "0x", "-0x5", "0b11", "0o7", "007", "", " ",
    "1048576", "-128", "99999999999999", "3,4", "9" * 400, "½", "五", "0" * 4400 + "1", "2.5e3", "-", "0x-5",
    "1" + "0" * 309, "𝟜",
)  # fmt: skip
TEXTS = (
    "", "\n", "\0", "\0" * 5000, "(null)", "unknown", "N/A", "<none>", ": : :", "=", "\x1b[2J\x1b]0;x\x07",
    "\u2028\u2029", "\ufeff1", "../../../../etc/passwd", "/", "..", ".", "%s%n%d", "{0}{device}{", "\\1\\g<0>", "[",
    "(?P<x>", "*", "a\rb\x85c", "0000:03:00.0", "ffff:ff:1f.7", "0000:03:00.0\n0000:04:00.0",
    "GPU-\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "A" * 65536, "1 " * 40000, "a\n" * 9000,
    "k: v\n" * 9000, "x" * (1 << 20), "\t" * 300, '"unclosed', "'", "~1/~0//x", "name: a\nname: b\nNAME: c\nna me: d",
    "0: 500Mhz *\n0: 500Mhz *\nS: 1e9Mhz", "1.2.3.4." * 500, "226:128", "226:٣", ":", "-1:-1",
    "PCI_ID=1002:\nPCI_CLASS=", "DEVNAME=../../etc/shadow", "DEVNAME=\nDEVNAME=x\ny", "unlimited", "16.0 GT/s PCIe",
    "63", "Unknown", "ff" * 100, "()" * 2000, "[" * 5000, "c 226:* rwm\na *:* rwm",
    "Uid:\t-1\t\t\t-1\nGid:\t٣\t1\t1\t1", "node_to 5\ntype 11",
)  # fmt: skip
BINARY = (
    b"\xff" * 64, bytes(range(256)), b"\xff" * 4096, b"\x7fELF" + b"\0" * 400, b"\xed\xa0\x80", b"\xc3(",
    b"\x80" * 9000,
)  # fmt: skip
NAMES = (
    "a\nb", "~", "~1", "a~0b", "card²", "hwmon²", "hwmon\n0", "renderD٣", "0000:03:00.0\n", "0000:ZZ:00.0",
    "ffffffff:ff:1f.7", "0000:03:00.8", "node٣", "virtfn²", "virtfn-1", "\udcff\udcfe", "\ud800", "x" * 255, " ", "*",
    "[a", "temp1_", "temp_input", "temp٣_input", "power999999999999_cap", "in0_", "card-1", "tile\x1b[31m", "core*_x",
    "nvidia\u2028", "path", "value", "id", "a b", "{bdf}", "-rf", "renderD" + "9" * 400, "node" + "9" * 400,
    "tenstorrent!" + "9" * 400, "9" * 5000, "id_", "..ac", "'$(reboot)'",
)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1 << 70, -(1 << 70), 1.5, 1e300, "", "x", "0777", "-1", "99999999", "EACCES", "EPERM",
    "denied", "u::rw-,g::r--,o::---", "u::rw-,u:٣:rw-,g::---,m::rwx,o::---", "user:" * 50, [], [1], [[]], {},
    {"mode": "0660"}, "\ud800", "E" * 5000, "c", "d", "f", "0o7", "٣", [None], "errorcode", "ENOENT",
)  # fmt: skip
ERRNOS = (
    "EACCES", "EPERM", "EIO", "ENODEV", "ENODATA", "EOPNOTSUPP", "ETIMEDOUT", "EINVAL", "ELOOP", "EBUSY", "ENOENT",
    "EISDIR",
)  # fmt: skip
MASKS = (
    "all", "-1", "0,,1", "²", "9" * 5000, "0-9999", "9999-0", "GPU-1", "", ",", "0,0", "0000:03:00.0", "NoDevFiles",
    "none", "void", "x\ny",
)  # fmt: skip
LINES = (
    "NVRM: Xid (PCI:0000:41:00): {n}, pid={n}, name={t}, Ch 00000010",
    "NVRM: Xid (PCI:{t}): 79, GPU has fallen off the bus.", "{b}: AER: Correctable error message received from {b}",
    "pcieport {b}: AER: Corrected error received: id={n}", "pci {b}: BAR 0: no space for [mem size {n} 64bit pref]",
    "pci {b}: BAR 2 [mem size 0x{n}]: can't assign; no space",
    "INFO: task {t}:{n} blocked for more than {n} seconds.", " amdgpu_{t}+0x1/0x2 [amdgpu]",
    "amdgpu {b}: amdgpu: ring {t} timeout, signaled seq={n}", "amdgpu {b}: amdgpu: GPU reset({n}) succeeded!",
    "{t}: probe of {b} failed with error -{n}", "nvidia {b}: probe with driver {t} failed with error -2",
    "amdgpu {b}: Direct firmware load for {t} failed with error -{n}",
    "Lockdown: {t}: unsigned module loading is restricted",
    "NVRM: API mismatch: the client has the version {n}, but\nNVRM: this kernel module has the version {n}.  Please",
    "xe {b}: [drm] *ERROR* GT0: {t}", "i915 {b}: [drm] GPU HANG: ecode {n}:1:{t}, in {t} [{n}]",
    "habanalabs hl{n}: {t}", "DMAR: [DMA Read NO_PASID] Request device [{b}] fault addr {n}",
    "AMD-Vi: Event logged [IO_PAGE_FAULT device={b} domain={n}]",
    "{t}: cannot open shared object file: No such file or directory", "{b} = {t}",
    "libcuda.so.1: cannot open shared object file", "pcieport {b}: pciehp: Slot({t}): Link Down",
    "{b}: not ready {n}ms after FLR; giving up", "tenstorrent {b}: {t} {n}", "{t}",
)  # fmt: skip
EDITS: tuple[Callable[[str], str], ...] = (
    lambda text: text + "\0" * 100, lambda text: "\0" * 100 + text, "\0".join,
    lambda text: text * 2, lambda text: text * 300, lambda text: text.replace("\n", "\r\n"),
    lambda text: text.replace("\n", "\r"), lambda text: text.replace("\n", ""), lambda text: text.replace(":", "="),
    lambda text: text.replace(" ", "\t"), lambda text: text.replace(" ", ""),
    lambda text: text.replace(" ", "\u00a0"), lambda text: text[: len(text) // 2],
    lambda text: text[len(text) // 2 :], str.upper, str.lower, lambda text: text[::-1],
    lambda text: text.replace("0x", ""), lambda text: re.sub(r"\d", "٣", text), lambda text: re.sub(r"\d", "²", text),
    lambda text: re.sub(r"[a-z]", "\u00df", text), lambda text: "\n".join(sorted(text.split("\n"))),
    lambda text: "\n" * 1000 + text, lambda text: text.replace("\n", "\n\n"), lambda text: text.replace("_", "/"),
    lambda text: re.sub(r"^", "/", text, flags=re.MULTILINE), lambda text: re.sub(r"\d+", "-\\g<0>", text),
    lambda text: text + "\n" + text.replace("0", "1"), lambda text: text.replace(" ", " " * 3000),
)  # fmt: skip
SICK: dict[str, tuple[str, ...]] = {
    "link_width": ("1", "4", "8", "0", "63", "16"),
    "link_speed": ("2.5 GT/s PCIe", "Unknown", "5.0 GT/s PCIe", "128.0 GT/s PCIe"),
    "aer_dev": ("RxErr 5000\nTOTAL_ERR_COR 5000", "TLP 12\nTOTAL_ERR_FATAL 12", "TOTAL_ERR_NONFATAL -7\nX -9", "X 50"),
    "_input": ("120000", "-273150", "99000000", "0"), "_crit": ("100000", "0", "-1", "40000"), "_fault": ("1",),
    "_percent": ("100", "-5", "300"), "numa_node": ("-1", "0", "1", "7"),
    "driver_override": ("vfio-pci", "xe", "nouveau"), "power_state": ("D3cold", "D3hot", "unknown"),
    "runtime_status": ("suspended", "suspending", "error"),
    "resource": ("0x0 0x7ffffffff 0x2014220c\n" * 6, "0x0 0x0 0x0\n" * 13, "0x5 0x1 0x100"),
    "resize": ("00000000000fff00", "1", "ffffffffffffffff", "8000000000000000"), "numvfs": ("0", "1", "9", "-1"),
    "config": ("\xff" * 64, "\xff"), "vram_total": ("1", "0", "17163091968", "-4096"),
    "vram_used": ("17163091969", "-1"),
    "properties": (
        "simd_count 5\nlocation_id 99999999\ndomain -3", "heap_type 1\nsize_in_bytes -5", "type 11\nnode_to 1\nweight",
        "simd_count 1\ndrm_render_minor 128\nlocation_id 768\ndomain 4294967296",
    ),
    "lockdown": ("none [integrity] confidentiality",),
    "cmdline": ("iommu=off nomodeset modprobe.blacklist=amdgpu,xe,nvidia module_blacklist= pci=x",),
    "limits": ("x\nMax locked memory 65536 unlimited bytes", "Max locked memory  ٣ -1 bytes"),
    "cgroup": ("0::/kubepods/x", "1:devices:/docker/x\n٣:a:b"),
    "devices.list": ("a *:* rwm", "c 226:* r", "", "b 1:2 x"), "version": ("550.107", "550..", "v", "1.2.3.4.5.6.7"),
    "uevent": ("DEVNAME=../x", "PCI_ID=1002", "PCI_CLASS=30000\nPCI_ID=10DE:2330", "DEVNAME=dri/renderD999"),
    "dev": ("226:0", "226:999999999", "261:0", "1:1"), "enable": ("0", "-1"),
    "class": ("0x030000", "0x120000", "0x0b4000", "0x060400", "0xffffff"),
    "vendor": ("0x10de", "0x8086", "0xffff", "0x1e52"), "device": ("0xffff", "0x2330"), "hl": ("1", "1000"),
    "temperature": ("150000", "-1"), "reset_count": ("5000",), "throttle": ("1", "255"),
    "status": ("Operational", "Disabled", "PM_D3"),
}  # fmt: skip
"""By part of the file's name: what stands there on machines that are not well."""
