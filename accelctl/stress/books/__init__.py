"""The kernel's own book of what a process, a device and the system hold, as counters of one number each.

The ledger says what we believe to hold; these say what the kernel gave out. A book that cannot be read is named with
its reason, because a verdict is worth what it rests on. Nothing here opens a device node or wakes a device.
"""

from __future__ import annotations

from collections.abc import Collection

from accelctl.abi.lifecycle import Counter, Target
from accelctl.hal.root import SysRoot, open_root
from accelctl.stress.books import device, process, system
from accelctl.stress.books.book import Book, NotApplicable, Place, Unreadable, as_counter, reason

__all__ = ["SCOPES", "Book", "Unreadable", "books_for", "every_book"]

SCOPES = ("process", "device", "system")


def every_book() -> tuple[Book, ...]:
    """All books there are, whatever the device: for ``--list`` and for people."""
    return (*process.BOOKS, *device.BOOKS, *system.BOOKS)


def books_for(
    target: Target, pid: int | None = None, *, root: SysRoot | None = None, scopes: Collection[str] = SCOPES
) -> tuple[tuple[Counter, ...], tuple[Unreadable, ...]]:
    """The counters that can be read for this device now, and the books that cannot, with the reason.

    ``pid``: the process that is counted; None: the one that reads, so that counters made before a fork count the child.
    The books of open DRM files (fdinfo) exist only once that process has the device open.
    """
    place = Place(root or open_root("/"), target, pid)
    counters: list[Counter] = []
    unreadable: list[Unreadable] = []
    for book in every_book():
        if book.scope not in scopes or not book.fits(target):
            continue
        try:
            found = book.find(book, place) if book.find else (as_counter(book, place),)
            for counter in found:
                counter.read()
        except NotApplicable:
            continue
        except (OSError, ValueError) as error:
            unreadable.append(Unreadable(book.name, reason(book, place, error)))
        else:
            counters.extend(found)
    return tuple(counters), tuple(unreadable)
