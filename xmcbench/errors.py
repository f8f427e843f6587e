"""Errors a user can cause, and the words that help to mend them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class XMCBenchError(Exception):
    """A problem the user can mend; the message is one line that says what, where and what was expected."""


class UnknownNameError(XMCBenchError):
    """A name that nothing answers to. The message holds the nearest known names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "") -> None:
        prefix = f"{where}: " if where else ""
        super().__init__(f"{prefix}unknown {kind} {name!r}{suggest(name, known)}")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)``, or the known names where none is near.

    >>> suggest("dexm", ["dexml", "tfidf-nn"])
    " (did you mean 'dexml'?)"
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.55)
    if near:
        return f" (did you mean {' or '.join(repr(n) for n in near)}?)"
    return f" (known: {', '.join(names)})" if names else ""
