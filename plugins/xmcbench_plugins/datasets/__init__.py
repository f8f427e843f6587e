"""The command `datasets`: files of other tools become datasets, which are listed, inspected, fetched and exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xmcbench.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from xmcbench.data.importer import Importer


@hookimpl
def register_importers(register: Callable[[type[Importer]], None]) -> None:
    """Register the formats that `xmcbench datasets import` reads."""
    from xmcbench_plugins.datasets.importing.formats import FORMATS

    for importer in FORMATS:
        register(importer)
