"""Nested settings as one level of dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings by dotted name, in order; an empty mapping is a leaf.

    >>> dict(flatten({"encoder": {"name": "tiny"}, "steps": None}))
    {'encoder.name': 'tiny', 'steps': None}
    """
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
