"""The board: accepted results, how they are submitted and checked, and the page and logs that show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xmcbench import hookimpl

if TYPE_CHECKING:
    from xmcbench import Format, Results
    from xmcbench.reporting.formats import Shown


def write_html(shown: Shown, output: Path | None) -> Sequence[Path]:
    """Write the page into the folder `output`; its files, of which the first is to be opened."""
    from xmcbench.reporting.leaderboard_text import bibtex_entry
    from xmcbench_plugins.board.claims import read_claims
    from xmcbench_plugins.board.page import check_folder, write_page
    from xmcbench_plugins.board.page.about import Example, examples

    folder = output or Path("leaderboard-site")
    check_folder(folder)  # before the work
    bibtex = {row.paper: bibtex_entry(row) for row in shown.published}
    measured = shown.measured
    found: dict[str, tuple[Example, ...]] = {}
    analyses = shown.analyses(
        lambda record, dataset, predictions: found.update({record.key: examples(dataset, predictions)})
    )
    return write_page(
        shown.table,
        measured.records,
        folder,
        analyses,
        read_claims(),
        bibtex,
        measured.resampled,
        found,
        shown.published,
    )


def write_logs(shown: Shown, output: Path | None) -> Sequence[Path]:
    """Write a log for each trial of the user's, in the schema Every Eval Ever, into the folder `output`; the files.

    Accepted results of others are written too where every row is asked for.
    """
    from xmcbench_plugins.board.every_eval_ever import write_evaluations

    folder = output or Path("every-eval-ever")
    keys = shown.table.keys if shown.every_row else shown.table.keys - shown.measured.accepted
    if not keys:
        shown.warn("no trial shown is yours: --all writes the accepted results of others")
    return write_evaluations(shown.measured, keys, shown.data, folder, shown.warn)


@hookimpl
def register_formats(register: Callable[[Format], None]) -> None:
    """Register the page and the logs."""
    from xmcbench import Format  # a command imports this package too, and needs no table

    register(Format("html", "a page with charts, comparisons and every record", write_html))
    register(Format("every-eval-ever", "a log of each trial in a schema that others share", write_logs))


@hookimpl
def register_results(register: Callable[[Results], None]) -> None:
    """Register what the board has."""
    from xmcbench_plugins.board.results import Board

    register(Board())
