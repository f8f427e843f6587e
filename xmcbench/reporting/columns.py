"""The name, the heading and the cells of a column."""

from __future__ import annotations

from xmcbench.reporting.numbers import format_value
from xmcbench.reporting.rows import Row
from xmcbench.suite.tables import COLUMNS


def column_name(word: str) -> str | None:
    """The column with this name or heading, or None.

    >>> column_name("batch"), column_name("GB"), column_name("hour")
    ('batch_size', 'memory_gb', None)
    """
    names = {column.heading.casefold(): name for name, column in COLUMNS.items()} | {name: name for name in COLUMNS}
    return names.get(word.casefold())


def cell(row: Row, name: str) -> str:
    """The text of a row's cell in the column of a metric or a fact; empty if the row has no value."""
    if name in row.metrics:
        return row.printed.get(name) or f"{100 * row.metrics[name]:.2f}"
    if name in row.printed:
        return row.printed[name]
    fact = row.facts.get(name)
    if name == "kind":
        return row.kind
    return "" if fact is None else format_value(fact, COLUMNS[name].kind)


def heading(name: str) -> str:
    """The heading of the column of a metric or a fact."""
    return COLUMNS[name].heading if name in COLUMNS else name
