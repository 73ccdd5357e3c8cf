"""The path from a device to the root complex: its narrowest link, and the errors its partners count.

A card may report x16 on its own function while the slot above it is x4, and an Intel or Radeon card with a switch of
its own reports its internal link. An endpoint's link trouble may be counted only at its link partner. So every bridge
on the way is read.
"""

from __future__ import annotations

from accelctl.model.device import Device
from accelctl.model.reading import STABLE, VOLATILE, Reading, absent, computed
from accelctl.probes.context import Field, Scan, read_fields
from accelctl.probes.pci import ADDRESS, parse_aer

_LINK: tuple[Field, ...] = (
    ("current_speed_gts", "current_link_speed", "gts", "GT/s", VOLATILE),
    ("current_width", "current_link_width", "lanes", "lanes", VOLATILE),
    ("max_speed_gts", "max_link_speed", "gts", "GT/s", STABLE),
    ("max_width", "max_link_width", "lanes", "lanes", STABLE),
    ("vendor_id", "vendor", "hex", None, STABLE),
)

#: Payload share of the line rate: 8b/10b up to 5 GT/s, 128b/130b from 8 GT/s, FLIT mode from 64 GT/s (PCIe base
#: specification).
_ENCODING = {2.5: 0.8, 5.0: 0.8, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 242 / 256}


def bandwidth_gbs(speed_gts: float | None, width: int | None) -> float | None:
    """One direction's line rate after encoding in GB/s (10**9); None where speed or width is unknown or zero."""
    share = _ENCODING.get(speed_gts or 0.0)
    return None if share is None or not width or speed_gts is None else speed_gts * share * width / 8


def bridges(device: Device) -> list[tuple[str, str]]:
    """(address, folder) of the bridges above a device, nearest first, read off its path."""
    found = []
    path, _, name = device.path.rpartition("/")[0].rpartition("/")
    while path and ADDRESS.match(name):
        found.append((name, f"{path}/{name}"))
        path, _, name = path.rpartition("/")
    return found


def describe(scan: Scan, device: Device, cache: dict[str, dict[str, Reading]]) -> None:
    """Add ``upstream/<address>/...`` for each bridge and ``link/narrowest`` for the whole path; bridges are read once a
    scan.
    """
    for address, folder in bridges(device):
        if folder not in cache:
            cache[folder] = _bridge(scan, folder)
        device.facts.update({f"upstream/{address}/{key}": reading for key, reading in cache[folder].items()})
    _narrowest(device)


def _bridge(scan: Scan, folder: str) -> dict[str, Reading]:
    names = set(scan.root.listdir(folder))
    facts = read_fields(scan.root, folder, (field for field in _LINK if field[1] in names))
    for kind in ("correctable", "nonfatal", "fatal"):
        if f"aer_dev_{kind}" in names:
            facts[f"aer/{kind}"] = scan.root.read(f"{folder}/aer_dev_{kind}", parse_aer, scope=VOLATILE)
    for short in ("cor", "nonfatal", "fatal"):
        if f"aer_rootport_total_err_{short}" in names:
            facts[f"aer/rootport_{short}"] = scan.root.read(
                f"{folder}/aer_rootport_total_err_{short}", "int", scope=VOLATILE
            )
    return facts


def _inside(device: Device, base: str) -> bool:
    """Does a hop's link lie inside the card? Intel's discrete GPUs sit behind a switch of their own and report
    2.5 GT/s x1 for it at both ends; the slot's link is above (notes of captured A380 and B580 machines).
    """
    speed = device.value(f"{base}max_speed_gts") or device.value(f"{base}current_speed_gts")
    width = device.value(f"{base}max_width") or device.value(f"{base}current_width")
    return (speed, width) == (2.5, 1)


def _narrowest(device: Device) -> None:
    """The link that limits the path at best, by maximum rate of each hop: what the slot can do, whatever the card
    can.
    """
    hops = [("link/", device.id)] + [(f"upstream/{address}/", address) for address, _ in bridges(device)]
    if device.value("pci/vendor_id") == "0x8086":
        hops = hops[next((i for i, (base, _) in enumerate(hops) if not _inside(device, base)), len(hops)) :]
    rates = []
    for base, address in hops:
        rate = bandwidth_gbs(device.value(f"{base}max_speed_gts"), device.value(f"{base}max_width"))
        if rate is not None:
            rates.append((rate, address, base))
    if not rates:
        detail = None if hops else "only the link inside the card is there, not the slot's"
        device.facts["link/narrowest"] = absent("computed: maximum links of the path", "not_offered", detail=detail)
        return
    rate, address, base = min(rates)
    device.facts["link/narrowest"] = computed(address, "lowest max_link_speed x max_link_width on the path to the root")
    how = f"{base}max_speed_gts x {base}max_width, encoding taken off"
    device.facts["link/narrowest_gbs"] = computed(round(rate, 2), how, unit="GB/s")
