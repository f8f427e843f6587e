"""JSON objects in which no name is there twice: `json` keeps the last of two values and says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xmcbench.errors import shown


def with_names_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, for `object_pairs_hook` of `json.loads`. Raises ValueError for a name that repeats."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(repeated([name for name, _ in pairs]))
    return found


def repeated(names: Sequence[str]) -> str:
    """What is wrong with names of which one repeats; empty if none does."""
    if len(set(names)) == len(names):
        return ""
    twice = next(name for place, name in enumerate(names) if name in names[:place])
    return f"found {shown(twice)} twice, expected each column or key once"
