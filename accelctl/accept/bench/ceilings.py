"""What a PCIe link could carry at best, from what the kernel says about it.

    payload B/s = transfers/s * lanes * encoding / 8 * payload / (payload + overhead)

Generations 1 and 2 send 10 bits for 8 (8b/10b), generations 3 to 5 130 for 128 (128b/130b), generation 6 sends flits of
256 bytes of which 236 are for packets. A packet (TLP) before generation 6 has, besides its payload, at least 20 bytes:
framing and sequence number 4 (3 and 1 in generations 1 and 2), a header of 12 and a link CRC of 4; in a flit only the
header. (PCI Express base specification: physical layer, logical sub-block; data link layer, LCRC; transaction layer,
packet formats. Flit layout: revision 6.0.) Acknowledgements, flow control and longer headers come on top, so nothing
real reaches this: 85 to 95 % of it is what good cards do.

The payload of a packet is set for each path by firmware or kernel (Device Control, Max_Payload_Size). Only root may
read that register, so 256 bytes, what most hosts set, are assumed and named.
"""

from __future__ import annotations

from typing import NamedTuple

from accelctl.model.benchreport import Ceiling
from accelctl.model.device import Device

PAYLOAD = 256
ENCODING = {2.5: 8 / 10, 5.0: 8 / 10, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 236 / 256}
"""GT/s -> share of what is sent that is packets."""
GENERATIONS = {rate: number for number, rate in enumerate(ENCODING, 1)}
PACKET, IN_FLIT = 20, 12
"""Bytes of a packet beside its payload."""


class Link(NamedTuple):
    """A width and a rate."""

    gts: float
    lanes: int

    @property
    def text(self) -> str:
        """``PCIe 4.0 x16``."""
        return f"PCIe {GENERATIONS[self.gts]}.0 x{self.lanes}"


class Links(NamedTuple):
    """A device's link, as it is now and as it could be. ``narrowest``: where another link on the way to the root is the
    narrowest of the path, its bytes a second as the probe computed them."""

    device: str
    now: Link | None
    best: Link | None
    narrowest: float = 0.0
    narrowest_at: str = ""


def payload_rate(link: Link, payload: int = PAYLOAD) -> float:
    """Bytes a second of payload, one way."""
    overhead = IN_FLIT if link.gts >= 64 else PACKET
    return link.gts * 1e9 * link.lanes * ENCODING[link.gts] / 8 * payload / (payload + overhead)


def how(link: Link, payload: int = PAYLOAD) -> str:
    """The same as a formula with its numbers."""
    overhead = IN_FLIT if link.gts >= 64 else PACKET
    code = {2.5: "8/10", 5.0: "8/10", 64.0: "236/256"}.get(link.gts, "128/130")
    return (
        f"{link.gts:g} GT/s x {link.lanes} x {code} / 8 x {payload}/{payload + overhead} (payload {payload} B assumed)"
    )


def links_of(device: Device) -> Links:
    """From the facts of a probed device."""
    own = _link(device, "current"), _link(device, "max")
    narrow, at = device.value("link/narrowest_gbs"), str(device.value("link/narrowest") or "")
    elsewhere = isinstance(narrow, (int, float)) and at and at != device.id
    return Links(device.id, *own, float(narrow) * 1e9 if elsewhere else 0.0, at if elsewhere else "")


def _link(device: Device, which: str) -> Link | None:
    gts, lanes = device.value(f"link/{which}_speed_gts"), device.value(f"link/{which}_width")
    if not isinstance(gts, (int, float)) or not isinstance(lanes, int) or lanes < 1 or float(gts) not in ENCODING:
        return None
    return Link(float(gts), lanes)


def faster(one: Links, other: Links) -> Links:
    """Of two looks at one device, the one with the faster current link: an idle card slows its link down."""
    if one.now is None or (other.now is not None and payload_rate(other.now) > payload_rate(one.now)):
        return other
    return one


def ceiling(links: Links) -> Ceiling | None:
    """Of the link as it is now, or where a link on the way is narrower, of that one."""
    link = links.now or links.best
    if link is None:
        return None
    rate, text = payload_rate(link), how(link)
    if links.narrowest and links.narrowest * PAYLOAD / (PAYLOAD + PACKET) < rate:
        name = f"the narrowest link of the path, at {links.narrowest_at}"
        share = PAYLOAD / (PAYLOAD + PACKET)
        return Ceiling(links.narrowest * share, name, f"its line rate after encoding x {PAYLOAD}/{PAYLOAD + PACKET}")
    return Ceiling(rate, link.text, text)


def said(links: Links) -> str:
    """Both, in one line."""
    parts = []
    for word, link in (("now", links.now), ("at most", links.best)):
        if link is not None:
            parts.append(f"{word} {link.text}: {payload_rate(link) / 1e9:.2f} GB/s = {how(link)}")
    return f"link of {links.device} " + ("; ".join(parts) or "is not known")
