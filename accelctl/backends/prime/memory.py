"""PRIME between two DRM drivers: ``target.node`` makes a dumb buffer and exports it, each of ``target.others`` imports.

What a pair does not do is found by trying: a driver without the operation says so only when it is asked.
"""

from __future__ import annotations

from accelctl.abi import dumb, gem
from accelctl.abi.dumb import Book, GemSession, Importer
from accelctl.abi.lifecycle import Env, Lifecycle, Session, Sizes, Target
from accelctl.hal.devfile import DevFile

LARGEST = 4 << 20
"""Bytes; the smallest VRAM among the exporters is 16 MiB."""


def _lifecycles(
    file: DevFile, driver: str, importers: tuple[Importer, ...], mine: Book, env: Env
) -> tuple[Lifecycle, ...]:
    """Exported and mapped; then per importer imported alone, and imported and mapped: not every exporter maps."""
    made, export = dumb.object_stage(file, mine.handles), gem.export_stage(file, env.syscalls)
    held = export._replace(early=False)  # a mapping of the dma-buf goes through its descriptor
    sizes, why = Sizes(dumb.PAGE, LARGEST), mine.why
    names = dumb.import_names(importers, f"{driver}-to-")
    alone = tuple(
        Lifecycle(name, (made, export, importer.stage()), sizes, unsupported=why)
        for name, importer in zip(names, importers, strict=True)
    )
    mapped = [f"{name}-mapped" for name in names]
    return (
        Lifecycle(f"{driver}-export", (made, held, dumb.shared_map_stage()), sizes, dumb.sync, why),
        *alone,
        *dumb.import_lifecycles((made, held), importers, sizes, mapped, why),
    )


class _Memory:
    def open(self, target: Target, env: Env) -> Session:
        """Open exporter and importers. AccelError where one cannot be opened, or does not answer as DRM."""
        file = gem.open_node(target.node, env)
        with dumb.closing_on_error(target.node, file):
            driver = gem.driver_name(file)
            mine = dumb.dumb_book(file)
            importers = dumb.open_importers(target.others, env)
        found = _lifecycles(file, driver, importers, mine, env)
        files = (file, *(importer.file for importer in importers))
        return GemSession(target, found, files, [mine, *(importer.book for importer in importers)])


MEMORY = _Memory()
