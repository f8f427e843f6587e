"""CSV for spreadsheets: no cell is a formula."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from io import StringIO
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?"
_NUMBERS = re.compile(rf"{_NUMBER}( to {_NUMBER})?\*?")


def cell(value: Any) -> Any:
    """`value` as a cell. Text that a spreadsheet would take for a formula gets an apostrophe before it.

    Numbers and intervals stay.

    >>> cell("=1+1"), cell(-0.5), cell("-0.5*"), cell("-0.5 to +1.0"), cell("dexml")
    ("'=1+1", -0.5, '-0.5*', '-0.5 to +1.0', 'dexml')
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA) or _NUMBERS.fullmatch(value):
        return value
    return f"'{value}"


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """The rows as CSV, each line ended by a newline. A carriage return becomes a space: Python would not quote it."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [value.replace("\r", " ") if isinstance(value, str) else value for value in map(cell, row)] for row in rows
    )
    return text.getvalue()
