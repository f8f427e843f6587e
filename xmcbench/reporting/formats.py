"""The contract of a format, which writes a leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmcbench.errors import shown
from xmcbench.reporting.archive import Archive
from xmcbench.reporting.leaderboard_text import FORMATS
from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.reporting.rows import Leaderboard

if TYPE_CHECKING:
    from xmcbench.data.dataset import Dataset
    from xmcbench.evaluation.analysis import Analysis
    from xmcbench.trial.predictions import Predictions
    from xmcbench.trial.record import Record


@dataclass(frozen=True)
class Shown:
    """A leaderboard and what it was made of."""

    table: Leaderboard
    measured: Archive
    published: Sequence[PublishedRow]
    data: Path  # the folder of datasets
    warn: Callable[[str], None]  # prints a line about what could not be shown
    every_row: bool = False  # whether rows were asked for that a reader seldom wants
    analysed: bool = True  # whether predictions and datasets are read, which analyses take

    def analyses(
        self, also: Callable[[Record, Dataset, Predictions], None] = lambda *_: None
    ) -> Mapping[str, Analysis]:
        """The analyses of the trials shown whose predictions and dataset are at hand, by key; `also` sees each."""
        return self.measured.analyses(self.table, self.data, self.warn, also) if self.analysed else {}


@dataclass(frozen=True)
class Format:
    """`xmcbench leaderboard --format NAME`.

    `write` gets what is shown, and the file or folder that --output names, or None. It returns text, which is printed
    or goes to that file, or the files that it wrote, of which the first is the one to open.
    """

    name: str
    summary: str
    write: Callable[[Shown, Path | None], str | Sequence[Path]]


def check_written(written: Any) -> str | Sequence[Path]:
    """What a format returned. Raises TypeError or ValueError where that is neither text nor files that are there."""
    if isinstance(written, str):
        written.encode()  # half a surrogate pair is no text
        return written
    if not isinstance(written, list | tuple) or not all(isinstance(path, Path) for path in written):
        raise TypeError(f"write returned {shown(written)}, expected a text or a list of paths")
    if absent := [path for path in written if not path.exists()]:
        raise ValueError(f"write returned the path {absent[0]}, where it wrote nothing")
    return written


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a format."""
    if not isinstance(thing, Format):
        raise TypeError(f"{thing!r} is not an xmcbench.Format")
    if thing.name in FORMATS:
        raise TypeError(f"the format {thing.name!r} is one of xmcbench")
