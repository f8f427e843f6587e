"""What a leaderboard is: groups of rows that are comparable. Tables, pages and figures are views of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from xmcbench.reporting.numbers import Value
from xmcbench.trial.record import Status

Source = Literal["published", "measured", "imported"]


@dataclass(frozen=True)
class View:
    """What is asked of a leaderboard; None and empty: whatever there is, or what suits a group."""

    dataset: str | None = None
    source: Literal["published", "measured", "imported", "all"] = "all"
    track: Literal["supervised", "zero-shot"] | None = None
    budget: str | None = None  # a limit, as in `steps` or `steps=1000`
    method: str | None = None  # name, label or shell pattern; letter case does not matter
    metrics: Sequence[str] = ()
    columns: Sequence[str] = ()
    sort: str | None = None  # a metric, or a column
    group_by: str | None = None  # a column
    top: int | None = None  # rows of each group


@dataclass(frozen=True)
class Row:
    """A result. Measured: one method with one configuration under one budget, the seeds that ended alike averaged.

    Published: what a paper prints, in one table or alike in several. Figures are fractions.
    """

    source: Source
    method: str  # its name, and what tells it from others of that name
    metrics: dict[str, float]  # all it has, means over seeds
    rank: int | None = None  # None: shown, not ranked
    status: Status = Status.OK
    printed: dict[str, str] = field(default_factory=dict)  # published: the paper's own digits
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # 95 %, over test queries
    std: dict[str, float] = field(default_factory=dict)  # over seeds, n - 1; empty for one seed
    tied: frozenset[str] = frozenset()  # metrics in which it cannot be told from the best of its group
    against: dict[str, float] = field(default_factory=dict)  # measured less published, same method and setting
    against_source: str = ""  # where the published ones stand
    facts: dict[str, Value] = field(default_factory=dict)  # by the name of a column; absent: not known
    seeds: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()  # of its trials
    metric_version: int = 0  # measured: of the definitions
    place: str = ""  # published: file and line, of each table
    url: str = ""
    citation: str = ""
    problem: str = ""  # why there are no figures

    def value(self, column: str) -> Value | None:
        """What it has in a metric's or fact's column, to sort by; None where it has nothing."""
        return self.metrics.get(column, self.facts.get(column))


@dataclass(frozen=True)
class Group:
    """Rows that are comparable, best first, and the columns to show them in."""

    source: Source
    dataset: str
    track: str
    protocol: str  # how evaluation differs from the dataset's test split; empty: it does not
    rows: tuple[Row, ...]
    metrics: tuple[str, ...]  # columns of figures, and
    columns: tuple[str, ...]  # columns of facts after them
    sort: str  # the metric ranks are by
    dataset_hash: str = ""  # measured: of the content
    budget: dict[str, float] = field(default_factory=dict)  # measured: limits by name
    by: dict[str, str] = field(default_factory=dict)  # column and value, where rows are grouped by one
    left_out: int = 0  # rows below the best that were asked for

    @property
    def every_metric(self) -> tuple[str, ...]:
        """All metrics that any of its rows has."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.metrics))

    @property
    def every_column(self) -> tuple[str, ...]:
        """All facts that any of its rows has."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.facts))


@dataclass(frozen=True)
class Leaderboard:
    """A leaderboard, and how to read it."""

    groups: tuple[Group, ...]
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns of figures of all groups."""
        return tuple(dict.fromkeys(name for group in self.groups for name in group.metrics))


def budget_text(budget: dict[str, float]) -> str:
    """A budget in words, ``1,000 steps, 20,000,000 encoder tokens``."""
    if not budget:
        return "unknown"
    return ", ".join(f"{limit:,.10g} {name.replace('_', ' ')}" for name, limit in budget.items())
