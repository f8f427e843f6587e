"""The contract of results that others have, which a leaderboard shows beside those of the user's store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.reporting.names import NamedMethod, of_all_results
from xmcbench.reporting.paper_rows import Claim, PublishedRow
from xmcbench.reporting.rows import Reproduced

if TYPE_CHECKING:
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store

FOR_FILES = "board"  # the results of this distribution, which also read rows that a user wrote


class Results:
    """Results of others: the methods of a subclass return those that it has, whenever a leaderboard is made."""

    name: str

    @property
    def store(self) -> Path | None:
        """A folder of trials that others ran, in the form of the user's `results/`."""
        return None

    def rows(self) -> Sequence[PublishedRow]:
        """Rows that papers print."""
        return ()

    def read(self, file: Path) -> Sequence[PublishedRow]:
        """The rows of `xmcbench leaderboard --rows FILE`."""
        raise XMCBenchError(f"{file}: the results {self.name!r} read no files")

    def claims(self) -> Sequence[Claim]:
        """Claims that papers make of their rows, with what was seen of them."""
        return ()

    def methods(self) -> Sequence[NamedMethod]:
        """Names of methods, and their families."""
        return ()

    def reproduced(self, store: Store, records: Iterable[Record]) -> Mapping[str, Reproduced]:  # noqa: ARG002
        """By key: what came of training again those of the `records`, in the folder `store`, of which that is known."""
        return {}


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as results."""
    if not isinstance(thing, Results):
        raise TypeError(f"{thing!r} is no instance of a subclass of xmcbench.Results")


def installed_results() -> list[Results]:
    """The results of all plugins."""
    return [each.thing for each in registry().all("result")]


def published_rows(*files: Path) -> tuple[PublishedRow, ...]:
    """The rows that papers print: those of all plugins, then those of `files`, or folders, of the user.

    Raises `XMCBenchError` where two of them are the same row, and with a line for each mistake in a file.
    """
    rows: dict[tuple[str, ...], PublishedRow] = {}
    known = of_all_results("rows", "instances of PublishedRow", lambda each: isinstance(each, PublishedRow))
    for row in (*known, *(row for file in files for row in registry().thing("result", FOR_FILES).read(file))):
        if (same := rows.setdefault(row.key, row)) is not row:
            name = f"{row.source}, {row.dataset}, {row.label}"
            raise XMCBenchError(f"{row.place}: {name}: this row is at {same.place} already")
    return tuple(rows.values())


def claims_of_papers() -> tuple[Claim, ...]:
    """The claims of all plugins."""
    return tuple(of_all_results("claims", "claims, with is_about(row)", lambda each: hasattr(each, "is_about")))
