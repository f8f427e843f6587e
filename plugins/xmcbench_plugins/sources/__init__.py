"""The catalogue of datasets in folders, datasets that are made here, and importers of two collections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xmcbench import hookimpl


@hookimpl
def register_datasets(register: Callable[[Any], None]) -> None:
    """Register the catalogued folders, the made datasets and `debian-packages`."""
    from xmcbench_plugins.sources import made
    from xmcbench_plugins.sources.catalog import folder_sources
    from xmcbench_plugins.sources.debian import DebianPackages
    from xmcbench_plugins.sources.shop import Shop

    for source in (*folder_sources(), made.TStar(), made.CATALOG, made.RANDOM_PAIRS, Shop(), DebianPackages()):
        register(source)


@hookimpl
def register_importers(register: Callable[[Any], None]) -> None:
    """Register the importers of clones."""
    from xmcbench_plugins.sources.llms4subjects import LLMs4Subjects
    from xmcbench_plugins.sources.spack import Spack

    register(LLMs4Subjects)
    register(Spack)
