"""Datasets of single origins: the installed Debian packages, and importers of two public collections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xmcbench import hookimpl


@hookimpl
def register_datasets(register: Callable[[Any], None]) -> None:
    """Register `debian-packages`."""
    from xmcbench_plugins.sources.debian import DebianPackages

    register(DebianPackages())


@hookimpl
def register_importers(register: Callable[[Any], None]) -> None:
    """Register the importers of clones."""
    from xmcbench_plugins.sources.llms4subjects import LLMs4Subjects
    from xmcbench_plugins.sources.spack import Spack

    register(LLMs4Subjects)
    register(Spack)
