"""Errors that a user can cause and fix; packages of extras, which may be missing."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from typing import Any

SHOWN = 200  # characters of a value in a message
LISTED = 20  # known names in a message; of more, the nearest ones


class XMCBenchError(Exception):
    """A problem that the user can fix. The message is one line: where, what was found, what was expected."""


class UnknownNameError(XMCBenchError):
    """A name that nothing is registered under. The message suggests the nearest known names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "") -> None:
        prefix = f"{where}: " if where else ""
        super().__init__(f"{prefix}unknown {kind} {shown(name)}{suggest(name, known)}")


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import `module`, a package of the extra `extra`. Raises `XMCBenchError` where it is not installed."""
    try:
        return import_module(module)
    except ImportError as problem:
        package = module.partition(".")[0]
        raise XMCBenchError(
            f"{purpose} needs {package}, which cannot be imported ({problem}): pip install 'xmcbench[{extra}]'"
        ) from problem


def check_extra(module: str, extra: str, purpose: str) -> None:
    """Raises `XMCBenchError` where `module` is not installed, as `import_extra` does. Imports nothing that is there."""
    if find_spec(module) is None:
        import_extra(module, extra, purpose)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)``; where none is similar the known names, or of many the nearest.

    >>> suggest("dexm", ["dexml", "tfidf-nn"])
    " (did you mean 'dexml'?)"
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.55) if len(name) <= SHOWN else []
    if near:
        return f" (did you mean {' or '.join(repr(n) for n in near)}?)"
    if len(names) > LISTED:
        nearest = difflib.get_close_matches(name[:SHOWN], names, n=3, cutoff=0.0)
        return f" (nearest of {len(names)}: {', '.join(map(repr, nearest))})"
    return f" (known: {', '.join(names)})" if names else ""


def text_of(problem: BaseException) -> str:
    """The message of an exception, also of one whose `__str__` fails."""
    try:
        return str(problem)
    except Exception as other:
        return f"an exception without text: {type(other).__name__} in its __str__"


def reason_of(problem: BaseException) -> str:
    """An exception on one line: the message of one of xmcbench, of others with their type.

    >>> reason_of(XMCBenchError("no file")), reason_of(ValueError("no   number"))
    ('no file', 'ValueError: no number')
    """
    kind = "" if isinstance(problem, XMCBenchError) else f"{type(problem).__name__}: "
    return " ".join(f"{kind}{text_of(problem)}".split())


def shown(value: Any, quote: bool = True) -> str:
    """A value in a message: on one line, stripped of secrets, then cut after `SHOWN` characters.

    >>> shown("a" * 1000, quote=False) == "a" * SHOWN + "..."
    True
    """
    from xmcbench.errors.secrets import beginning  # its patterns take longer to compile than `--help` to print

    if isinstance(value, str):
        start = beginning(value, SHOWN + 1)
        value = start if len(start) <= SHOWN else start[:SHOWN] + "..."
    text = beginning(repr(value) if quote else str(value), 2 * SHOWN + 1)
    return text if len(text) <= 2 * SHOWN else text[:SHOWN] + "..."


def place_of(problem: BaseException, files: Collection[Path]) -> str:
    """File and line of the last call in one of these files that led to an exception, else of the last call."""
    places = [(Path(frame.f_code.co_filename), line) for frame, line in walk_tb(problem.__traceback__)]
    own = [place for place in places if place[0] in files]
    path, line = (own or places)[-1]
    return f"{path.name}:{line}"
