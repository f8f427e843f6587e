"""Hostile records: accepted ones with a field changed, signed again."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from xmcbench.trial.packed import Packed

RECORDS = Path(__file__).parent / "records"  # four trials that were accepted once, as they were
Place = tuple[str | int, ...]

# What a field may be replaced by: other types, the edges of numbers, texts that a terminal or a page would obey.
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, -5, 0.5, -0.5, 1e18, 1e300, 10**30, 10**400, float("nan"), float("inf"),
    float("-inf"), "", "fast", "x", "7", "\x1b[31mred", "a\x00b", "\u202egnp", "<script>alert(1)</script>", "=1+1",
    "../../etc", "a" * 5000, "0" * 64, "\ud800", [], [1], ["x"], [[]], [None], {}, {"x": "y"}, {"P@1": 0.5}, {"": 0},
    {"x": {"y": {"z": [1, "w"]}}}, {"\x1b": 1}, {"a|b": 2.0},
]  # fmt: skip


def content(name: str) -> Any:
    """The record of the trial `name`, without its digest."""
    record = json.loads(Packed(RECORDS).records[name].content)
    del record["digest"]
    return record


def signed(record: Any) -> bytes:
    """The file of a record, with a digest that matches."""
    body = json.dumps(record, indent=1).removesuffix("\n}").encode()
    return body + b',\n "digest": "' + sha256(body).hexdigest().encode() + b'"\n}\n'


def places(tree: Any, place: Place = ()) -> Iterator[Place]:
    """Every place in a record, outer ones first."""
    if place:
        yield place
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, inner in items:
        yield from places(inner, (*place, name))


def replaced(record: Any, place: Place, value: Any) -> Any:
    """A copy of the record with another value at one place."""
    made = copy.deepcopy(record)
    inner = made
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    return made


def mutations(record: Any) -> st.SearchStrategy[Any]:
    """The record with one to three fields replaced, renamed, added or removed."""
    known = list(places(record))

    def change(made: Any, drawn: tuple[Place, str, Any]) -> Any:
        place, how, value = drawn
        made = copy.deepcopy(made)
        inner = made
        try:
            for step in place[:-1]:
                inner = inner[step]
            if how == "remove":
                del inner[place[-1]]
            elif how == "add" and isinstance(inner, dict):
                inner[value if isinstance(value, str) else "further"] = value
            else:
                inner[place[-1]] = value
        except (LookupError, TypeError):
            pass  # an earlier change took the place away
        return made

    change_of = st.tuples(
        st.sampled_from(known),
        st.sampled_from(["replace", "replace", "replace", "remove", "add"]),
        st.sampled_from(VALUES) | st.recursive(st.none() | st.floats() | st.integers() | st.text(), st.lists),
    )
    return st.lists(change_of, min_size=1, max_size=3).map(lambda changes: _all(record, changes, change))


def _all(record: Any, changes: list[Any], change: Any) -> Any:
    for one in changes:
        record = change(record, one)
    return record
