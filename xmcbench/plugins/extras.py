"""Optional packages, installed by `pip install 'xmcbench[EXTRA]'`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from xmcbench.errors import XMCBenchError


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import `module`, a package of the extra `extra`. Raises `XMCBenchError` where it is not installed."""
    try:
        return import_module(module)
    except ImportError as problem:
        package = module.partition(".")[0]
        raise XMCBenchError(
            f"{purpose} needs {package}, which cannot be imported ({problem}): pip install 'xmcbench[{extra}]'"
        ) from problem
