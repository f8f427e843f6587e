"""What the commands do, for Python: functions whose results print as tables, in a terminal and in a notebook.

import xmcbench as xb

board = xb.run("quickstart")
board.to_pandas()
xb.leaderboard("lf-amazontitles-1.3m")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from xmcbench.errors import XMCBenchError, import_extra
from xmcbench.reporting import leaderboard_text, ranked_groups
from xmcbench.reporting.archive import Archive, archive, uncollected
from xmcbench.reporting.describe import Sections
from xmcbench.reporting.make_rows import recorded_metrics
from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.reporting.published import claims_of_papers, published_rows
from xmcbench.reporting.rows import About, Group, Leaderboard, View
from xmcbench.reporting.text_table import Heading, TextTable, printable, render_notes, render_tables
from xmcbench.runs.terminal import listing, width

if TYPE_CHECKING:
    from xmcbench.data import Dataset
    from xmcbench.evaluation.comparison import ComparedMetric
    from xmcbench.evaluation.evaluator import Scores
    from xmcbench.plugins.commands import Command
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store

Names = str | Sequence[str]


class _Printed:
    """Something that prints as text, in a notebook as tables."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return render_tables(self._tables(), "html")

    def _tables(self) -> Sequence[TextTable]:
        """What a notebook shows."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Board(_Printed):
    """A leaderboard: `groups` of comparable rows. It prints as the command `xmcbench leaderboard` does."""

    table: Leaderboard
    measured: Archive
    published: tuple[PublishedRow, ...] = ()
    form: Literal["lines", "answer", "tables"] = "answer"  # a line a dataset, the main tables, every table
    below: frozenset[About] = frozenset()  # the notes that it prints besides those about the user's rows
    closing_first: bool = False  # whether it says who leads before the first table

    @property
    def groups(self) -> tuple[Group, ...]:
        """Rows that are comparable, best first: of one dataset, track and budget."""
        return self.table.groups

    def __str__(self) -> str:
        if self.form == "lines":
            return leaderboard_text.summary(self.table, width())
        every = self.form == "tables"
        return leaderboard_text.answer(
            self.table, width(), every=every, below=self.below, closing_first=self.closing_first
        )

    def _tables(self) -> Sequence[TextTable]:
        every = self.form == "tables"
        return leaderboard_text.tables_to_show(self.table, lines=self.form == "lines", every=every, below=self.below)

    def to_pandas(self) -> Any:
        """A pandas data frame: a line per row with all its values, metrics as fractions. Needs pandas."""
        pandas = import_extra("pandas", "pandas", "a data frame")
        return pandas.read_csv(StringIO(leaderboard_text.render(self.table, "csv")))

    def plot(self) -> Picture:
        """Quality along the budget where it was measured on held-out queries, else quality against cost."""
        from xmcbench.plugins.registry import registry
        from xmcbench.reporting.formats import Format, Shown

        svg: Format = registry().thing("format", "svg")
        with TemporaryDirectory() as folder:
            shown = Shown(self.table, self.measured, self.published, Path(), lambda _: None, analysed=False)
            written = [path for path in svg.write(shown, Path(folder)) if isinstance(path, Path)]
            if not written:
                raise XMCBenchError("nothing to draw: fewer than two rows have a metric and a cost in common")
            chosen = next((path for path in written if path.stem.endswith("-curve")), written[0])
            return Picture(chosen.read_text(encoding="utf-8"))


@dataclass(frozen=True, repr=False)
class Picture:
    """A figure as SVG, which a notebook shows."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: Path | str) -> None:
        """Write the figure to the file `path`."""
        Path(path).write_text(self.svg, encoding="utf-8")


@dataclass(frozen=True, repr=False)
class Scored(_Printed):
    """Metrics of predictions, fractions by name, with their 95 % intervals over test queries.

    `warnings` are sentences: what is plausible in the predictions, and may be wrong all the same.
    """

    scores: Scores
    table: TextTable
    warnings: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, float]:
        """Fractions by the name of the metric."""
        return self.scores.metrics

    def __str__(self) -> str:
        return render_tables(self._tables(), "table")

    def _tables(self) -> Sequence[TextTable]:
        return [self.table]

    def to_pandas(self) -> Any:
        """A pandas data frame: a line per metric with value, low and high, fractions. Needs pandas."""
        pandas = import_extra("pandas", "pandas", "a data frame")
        none = (float("nan"),) * 2
        rows = [(value, *self.scores.intervals.get(name, none)) for name, value in self.metrics.items()]
        return pandas.DataFrame(rows, columns=["value", "low", "high"], index=list(self.metrics))


@dataclass(frozen=True, repr=False)
class Compared(_Printed):
    """Two trials, or all seeds of two configurations: `metrics` with their paired differences, and example queries."""

    metrics: tuple[ComparedMetric, ...]
    tables: tuple[TextTable, ...]
    answer: str = ""  # which of the two is better, by which metrics
    examples: tuple[str, ...] = ()  # lines on the queries that change most
    missing: str = ""  # why there are no example queries

    def __str__(self) -> str:
        tables = render_tables(self.tables, width=width())
        answer = render_notes([self.answer], "table", width())
        return "\n".join([answer, "", tables, *(["", *self.examples] if self.examples else [])])

    def _tables(self) -> Sequence[TextTable]:
        return self.tables


@dataclass(frozen=True, repr=False)
class Answers(_Printed):
    """The labels that a model ranks for texts.

    `answers` has for each text a dictionary with `text` and `labels`, best first, each with `id`, `label`, `score`, and
    `key` and `probability` where they are known. Without a label, `no_label` says why.
    """

    answers: list[dict[str, Any]]

    def __str__(self) -> str:
        return "\n\n".join(map(_answer_text, self.answers))

    def _tables(self) -> Sequence[TextTable]:
        return [
            TextTable(
                answer["text"], ("label", "score"), [row[1:] for row in _ranked_labels(answer)], _why_none(answer)
            )
            for answer in self.answers
        ]


@dataclass(frozen=True, repr=False)
class Description(_Printed):
    """A record, and its facts in `sections`: names and texts by title."""

    record: Record
    sections: Sections

    def __str__(self) -> str:
        return render_tables(self._tables())

    def _tables(self) -> Sequence[TextTable]:
        heads = (Heading("", left=True), Heading("", left=True))
        return [TextTable(title, heads, rows) for title, rows in self.sections.items()]


def run(
    suite: Path | str,
    *,
    only: Names = (),
    sets: Names = (),
    datasets: Names = (),
    encoder: str | None = None,
    data: Path | str = "data",
    store: Path | str = "results",
    retry: bool = False,
    parallel: int | None = None,
) -> Board:
    """Run the trials of a suite that are not in the store yet; their leaderboard.

    `suite` is a file or the name of a bundled suite. The arguments are the options of `xmcbench run`. Raises
    `XMCBenchError` for invalid input; a trial that fails is a row with its reason.
    """
    from xmcbench.plugins.registry import registry
    from xmcbench.runs.progress import display
    from xmcbench.runs.runner import Runner, Settings
    from xmcbench.runs.tuning import run_plan

    registry().renew_classes()
    settings = Settings(
        suite=Path(suite),
        data=Path(data),
        store=Path(store),
        sets=_names(sets),
        datasets=_names(datasets),
        encoder=encoder,
        only=_names(only),
        retry=retry,
        parallel=parallel,
        command=sys.argv,
    )
    runner = Runner(settings)
    with display() as shown:
        records = run_plan(runner, runner.plan(), shown)
    return board_of(records, runner.suite.metrics, runner.store)


def board_of(records: Sequence[Record], metrics: Sequence[str], store: Store) -> Board:
    """The leaderboard of some trials of a store, with the metrics of their suite where those are not the default."""
    from xmcbench.evaluation import DEFAULT_METRICS

    recorded = recorded_metrics(records)
    shown = () if tuple(metrics) == DEFAULT_METRICS else [name for name in metrics if name in recorded]
    by_key = {record.key: record for record in records}
    board = _board(Archive(by_key, dict.fromkeys(by_key, store)), (), View(metrics=shown), lambda _: True)
    return replace(board, form="tables", closing_first=True)


def leaderboard(
    dataset: str | None = None,
    *,
    method: str | None = None,
    source: Literal["published", "measured", "imported", "all"] = "all",
    track: Literal["supervised", "zero-shot"] | None = None,
    budget: str | None = None,
    metrics: Names = (),
    columns: Names = (),
    sort: str | None = None,
    group_by: str | None = None,
    top: int | None = None,
    variants: bool = False,
    whole: bool = False,
    paper: bool = False,
    notes: bool = False,
    claims: bool = False,
    rows: Sequence[Path | str] = (),
    data: Path | str = "data",
    store: Path | str = "results",
) -> Board:
    """Published results and measured ones, those of the user's store among them, best first.

    Where no dataset, method, variants or number of rows are asked for, it has the user's datasets; if there are none,
    all, and prints a line for each dataset, unless `whole` asks for every row. `paper` leaves out what a table in a
    paper has no place for. The other arguments are the options of `xmcbench leaderboard`.

    `groups` has all tables. It prints one for each dataset and source, unless the arguments choose some. Raises
    `UnknownNameError` for a name that no row has.
    """
    store = Path(store)
    measured = archive(store) if source != "published" else Archive({}, {})
    published = published_rows(*map(Path, rows)) if source in ("all", "published") else ()
    if not measured.records and not published:
        raise XMCBenchError(f"{store}: no records yet; `xmcbench run SUITE --store {store}` makes some")
    overview = not (whole or dataset or method or variants or top)
    if overview and (users_datasets := measured.datasets(store)):
        overview, measured = False, measured.of(users_datasets)
        published = tuple(row for row in published if row.dataset in users_datasets)
    view = View(
        dataset=dataset,
        source=source,
        track=track,
        budget=budget,
        method=method,
        metrics=_names(metrics),
        columns=_names(columns),
        sort=sort,
        group_by=group_by,
        top=top,
        variants=variants,
        paper=paper,
        whole=whole,
    )
    board = _board(measured, published, view, measured.recomputable(Path(data)), measured.accepted)
    chosen = source != "all" or any((track, budget, method, group_by, variants))
    below = {About.CLAIM} if claims else set()
    below |= {*About} - {About.CLAIM} if notes else set()
    return replace(board, form="lines" if overview else "tables" if chosen else "answer", below=frozenset(below))


def compare(
    first: str,
    second: str,
    *,
    metrics: Names = (),
    k: int = 5,
    queries: int = 3,
    data: Path | str = "data",
    store: Path | str = "results",
) -> Compared:
    """Compare two trials on one test split, or all seeds of two configurations, as `xmcbench compare` does.

    `first` and `second` are keys or the starts of them, labels, or dataset/label. Of single trials whose dataset and
    predictions are at hand, labels are broken down into bins, and the `queries` that gain and lose most are shown.
    Raises `XMCBenchError` for names that mean no trial, and for trials with other test labels.
    """
    compared: Compared = function_of("compare")(
        first, second, metrics=_names(metrics), k=k, queries=queries, data=Path(data), store=Path(store)
    )
    return compared


def predict(
    run: str,
    texts: Names,
    *,
    k: int = 10,
    threshold: str | float | None = None,
    labels: Names | None = None,
    labels_from: str = "labels",
    seed: int | None = None,
    data: Path | str = "data",
    store: Path | str = "results",
) -> Answers:
    """Rank the labels of a finished trial's dataset for new texts, as `xmcbench predict` does.

    `labels` are added to those of the dataset; messages say that they are from `labels_from`. `threshold` is a
    probability, or `auto`. Raises `XMCBenchError` for a name that means no trial with a model.
    """
    answers: Answers = function_of("predict")(
        run,
        _names(texts),
        k=k,
        threshold=None if threshold is None else str(threshold),
        labels=None if labels is None else _names(labels),
        labels_from=labels_from,
        seed=seed,
        data=Path(data),
        store=Path(store),
    )
    return answers


def show(run: str, *, everything: bool = False, seed: int | None = None, store: Path | str = "results") -> Description:
    """A record, what people ask of it first or `everything`, and how to reproduce it, as `xmcbench show` does."""
    from xmcbench.reporting.describe import brief, describe
    from xmcbench.reporting.find import find_record
    from xmcbench.trial.store import Store

    record = find_record(Store(Path(store)), run, seed)
    return Description(record, (describe if everything else brief)(record, Path(store)))


def _ranked_labels(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Rank, label, and probability or score of each label of an answer."""
    return [
        (str(rank), printable(" ".join(label["label"].split())), f"{label.get('probability', label['score']):.4f}")
        for rank, label in enumerate(answer["labels"], start=1)
    ]


def _why_none(answer: dict[str, Any]) -> list[str]:
    return [answer["no_label"]] if "no_label" in answer else []


def _answer_text(answer: dict[str, Any]) -> str:
    rows = [(rank, value, label) for rank, label, value in _ranked_labels(answer)]
    table = listing(rows, tablefmt="plain", colalign=("right", "right", "left")) if rows else ""
    return f"{answer['text']}\n{table or '  ' + answer['no_label']}"


def score(predictions: Any, truth: Dataset | str, *, metrics: Names = (), data: Path | str = "data") -> Scored:
    """Metrics of predictions for the test queries of a dataset, in their order.

    `predictions` is the path of a file that `xmcbench score` reads, or `Predictions`; a matrix of scores [queries,
    labels] of numpy, scipy.sparse, torch or pandas; ranked labels `(indices, scores)`; a list with the ranked labels
    or `{label: score}` of each query; or a data frame with the columns query, label and score. `truth` is a dataset or
    its name.

    What may be wrong is in the result's `warnings`, and warned of as `UserWarning`. Raises `XMCBenchError` where
    predictions and dataset do not fit each other.
    """
    scored: Scored = function_of("score")(predictions, truth, metrics=_names(metrics), data=Path(data))
    return scored


def function_of(name: str) -> Callable[..., Any]:
    """What the command `name` of a plugin does, for Python."""
    from xmcbench.plugins.registry import registry

    command: Command = registry().thing("command", name)
    if command.function is None:
        raise XMCBenchError(f"xmcbench {name}: this command has no function for Python")
    return command.function


def _board(
    measured: Archive,
    published: tuple[PublishedRow, ...],
    view: View,
    recomputable: Callable[[Record], bool],
    accepted: Collection[str] = (),
) -> Board:
    """The board; rows are marked whose metrics are not `recomputable` here, variants of `accepted` trials folded."""
    claims = () if view.paper else claims_of_papers()  # a paper has its own
    rows = measured.records.values()
    with uncollected():
        table = ranked_groups.leaderboard(
            rows, published, view, measured.resampled, claims, recomputable, accepted, measured.reproduced()
        )
    return Board(table, measured, published)


def _names(names: Names) -> list[Any]:
    return [names] if isinstance(names, str) else list(names)
