"""What commands print: the one way to standard output and standard error.

Names and texts come from files of others. Characters that a terminal obeys are spelt out, so that none can hide a line,
change its order or write elsewhere.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from threading import Event, Thread
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


# What stands for a sign that the encoding of a terminal or pipe lacks. No two marks of a table share one, and none of
# them is a digit or a letter, which would become part of the value or the name before it.
_PLAIN = str.maketrans(
    dict(zip("≈¹†‡◇□○∅↓✓✗§", "~^+#$=@!<&/*", strict=True))
    | dict(zip("×−–—‐‑’‘“”„•·↑Δµ⌊⌋\u00a0", 'x-----\'\'"""**^du[] ', strict=True))
    | {"±": "+-", "≤": "<=", "≥": ">=", "…": "...", "→": "->", "←": "<-", "²": "^2", "³": "^3"}
)


def _replace_signs(problem: UnicodeError) -> tuple[str, int]:
    """Another sign for each that cannot be encoded, `?` where none is like it; for `codecs.register_error`."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    plain = problem.object[problem.start : problem.end].translate(_PLAIN)
    return "".join(sign if sign.isascii() else "?" for sign in plain), problem.end


def replace_unknown_signs() -> None:
    """Let standard output and error take any text: a sign that their encoding lacks is replaced, and nothing fails."""
    codecs.register_error("xmcbench-signs", _replace_signs)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="xmcbench-signs")


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print `text` on standard output, or with `err` on standard error."""
    typer.echo(escaped(str(text)), err=err, nl=nl)


class Silence:
    """The time since something was last printed. A reminder is due after 5 seconds, then after twice as long each time.

    >>> now = 0.0
    >>> silence, due = Silence(lambda: now), []
    >>> for now in range(30):
    ...     due += [now] * silence.is_due()
    >>> due
    [5, 15]
    """

    FIRST, LONGEST = 5.0, 60.0  # seconds

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, first: float = FIRST, longest: float = LONGEST
    ) -> None:
        self._clock, self._wait, self._longest, self._since = clock, first, longest, clock()

    def is_due(self) -> bool:
        """Whether a reminder is due; if so, the next one is due later."""
        if self._clock() - self._since < self._wait:
            return False
        self._since, self._wait = self._clock(), min(2 * self._wait, self._longest)
        return True


@contextmanager
def every_second(action: Callable[[], object]) -> Iterator[None]:
    """Call `action` every second, in a thread, until the block ends."""
    ended = Event()

    def repeat() -> None:
        while not ended.wait(1.0):
            action()

    thread = Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def patience(doing: str) -> Iterator[None]:
    """Say on standard error what the block is `doing`, where that takes more than five seconds."""
    start, silence = time.monotonic(), Silence(first=Silence.FIRST)

    def remind() -> None:
        if silence.is_due():
            echo(f"{doing}: {time.monotonic() - start:.0f} s so far", err=True)

    with every_second(remind):
        yield


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
