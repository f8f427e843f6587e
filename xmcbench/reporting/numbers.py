"""Numbers and texts as people read them: one formatter for tables, charts and pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from unicodedata import normalize

from xmcbench.suite.tables import Kind

Value = str | int | float | bool
UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_value(value: Value, kind: Kind) -> str:
    """The value as a cell of a column of that kind shows it.

    >>> format_value(20_400_000, "count"), format_value(8192, "number"), format_value(1_234_000_000, "bytes")
    ('20.4M', '8,192', '1.2GB')
    >>> format_value(True, "flag"), format_value(0.27, "hours"), format_value(9.738095238, "number")
    ('yes', '0.27', '9.738')
    """
    if isinstance(value, str):
        return printable(" ".join(value.split()))
    if kind == "flag":
        return "yes" if value else "no"
    if kind == "seconds":
        return f"{value:.1f}" if value < 100 else f"{value:.0f}"
    if kind == "hours":
        return f"{value:.4g}"
    if kind in ("count", "bytes"):
        return short_number(float(value), "{:.1f}") + ("B" if kind == "bytes" else "")
    return f"{value:,.0f}" if float(value).is_integer() or value >= 1000 else f"{value:.4g}"


def percent_interval(ends: Sequence[float], sign: Literal["", "+"] = "") -> str:
    """The ends of an interval in per cent, with `sign` also where they are positive; empty without ends.

    >>> percent_interval((0.1234, 0.2)), percent_interval((-0.01, 0.02), "+"), percent_interval(())
    ('12.34 to 20.00', '-1.00 to +2.00', '')
    """
    return " to ".join(f"{100 * end:{sign}.2f}" for end in ends)


def short_number(value: float, digits: str = "{:.6g}") -> str:
    """The number with a unit prefix; `digits` formats what stands before the prefix.

    >>> short_number(20_000.0), short_number(1_500_000.0), short_number(0.05), short_number(950, "{:.1f}")
    ('20k', '1.5M', '0.05', '950')
    """
    for size, unit in UNITS:
        if value >= size:
            return digits.format(value / size) + unit
    return f"{value:.6g}" if value < 1 else f"{value:.0f}"


def printable(text: str) -> str:
    """The text with control characters and line breaks spelt out, so that a terminal does not obey them.

    >>> printable("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def folded(text: str) -> str:
    """The letters and digits of the text, without case and accents, to compare names by.

    >>> folded("PRIME-lite"), folded("Renée")
    ('primelite', 'renee')
    """
    return "".join(letter for letter in normalize("NFKD", text).casefold() if letter.isalnum())
