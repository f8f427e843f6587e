"""Imports what a method names as late, and counts the time."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from time import process_time  # as it is before a method may change the module

from xmcbench.runs.file_guard import BrokenContractError
from xmcbench.trial.meter import IMPORT_SECONDS, children_cpu_seconds

_import_seconds: dict[str, float] = {}  # by late module; a forked process has those of its parent


def import_late(modules: Iterable[str]) -> float:
    """Import the modules; the processor time that this took, or took when they were first imported.

    Raises `BrokenContractError` where that is more than `IMPORT_SECONDS`.
    """
    names = tuple(modules)
    for name in names:
        if name not in _import_seconds:
            start = process_time() + children_cpu_seconds()
            import_module(name)
            _import_seconds[name] = max(0.0, process_time() + children_cpu_seconds() - start)
    total = sum(_import_seconds[name] for name in names)
    if total > IMPORT_SECONDS:
        raise BrokenContractError(
            f"importing late_imports took {total:.0f} seconds of processors, expected at most {IMPORT_SECONDS:.0f}: "
            "compute in fit"
        )
    return total
