"""The contract of a format, which writes a leaderboard, and the built-in formats of files: figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.reporting.archive import Archive
from xmcbench.reporting.leaderboard_text import FORMATS
from xmcbench.reporting.published import PublishedRow
from xmcbench.reporting.rows import Leaderboard


@dataclass(frozen=True)
class Shown:
    """A leaderboard and what it was made of."""

    table: Leaderboard
    measured: Archive
    published: Sequence[PublishedRow]
    data: Path  # the folder of datasets
    warn: Callable[[str], None]  # prints a line about what could not be shown


@dataclass(frozen=True)
class Format:
    """`xmcbench leaderboard --format NAME`.

    `write` gets what is shown, and the file or folder that --output names, or None. It returns text, which is printed
    or goes to that file, or the files that it wrote, of which the first is the one to open.
    """

    name: str
    summary: str
    write: Callable[[Shown, Path | None], str | Sequence[Path]]


def _figures(format: str, shown: Shown, output: Path | None) -> Sequence[Path]:
    from xmcbench.reporting.plots import write_figures

    analyses = shown.measured.analyses(shown.table, shown.data, shown.warn)
    return write_figures(shown.table, shown.measured.records, output or Path("leaderboard-figures"), format, analyses)


@hookimpl
def register_formats(register: Callable[[Format], None]) -> None:
    """Register the formats of figures."""
    for name in ("png", "pdf", "svg"):
        register(Format(name, "figures of quality and cost", partial(_figures, name)))


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a format."""
    if not isinstance(thing, Format):
        raise TypeError(f"{thing!r} is not an xmcbench.Format")
    if thing.name in FORMATS:
        raise TypeError(f"the format {thing.name!r} is one of xmcbench")
