"""The datasets that come with xmcbench, registered through the hook that third parties use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xmcbench.data import product_catalog, synthetic
from xmcbench.data.catalog import folder_sources
from xmcbench.data.debian import DebianPackages
from xmcbench.data.source import Family, Source
from xmcbench.plugins.hookspecs import hookimpl


@hookimpl
def register_datasets(register: Callable[[Any], None]) -> None:
    """Register the catalogued folders, the synthetic sets and the Debian packages."""
    for source in (*folder_sources(), DebianPackages(), synthetic.TStar()):
        register(source)
    for family in (product_catalog.FAMILY, synthetic.RANDOM_PAIRS):
        register(family)


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a dataset."""
    if not isinstance(thing, Source | Family):
        raise TypeError(f"{thing!r} is not a Source or a Family of xmcbench.data")
