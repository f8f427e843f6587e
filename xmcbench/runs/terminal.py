"""What commands print: the one way to standard output and standard error.

Names and texts come from files of others. Characters that a terminal obeys are spelt out, so that none can hide a line,
change its order or write elsewhere.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import typer

# Control characters but tab and newline; marks that turn the direction of text; line separators; half pairs.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """`text` with characters that a terminal obeys as `\\\\u001b`, the way JSON writes them.

    >>> escaped("a\\x1b[31mb"), escaped("Ärmel\\t日本")
    ('a\\\\u001b[31mb', 'Ärmel\\t日本')
    """
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print `text` on standard output, or with `err` on standard error."""
    typer.echo(escaped(str(text)), err=err, nl=nl)


def width() -> int | None:
    """The width of the terminal in characters, or what COLUMNS says; None if the output is no terminal."""
    chosen = "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if chosen or sys.stdout.isatty() else None


def listing(rows: Sequence[Sequence[object]], headings: Sequence[str] = (), **layout: Any) -> str:
    """Rows as columns of text, as they are; `layout` is that of tabulate."""
    from tabulate import tabulate

    return tabulate(rows, headings, disable_numparse=True, **layout)


class EscapingFormatter(logging.Formatter):
    """Formats warnings for the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The message alone, escaped."""
        return escaped(super().format(record))
