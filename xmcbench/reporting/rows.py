"""The rows and groups of a leaderboard, the cells of their columns, and their costs in the units of the charts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, sqrt
from statistics import fmean, stdev
from typing import Literal, TypeVar

from xmcbench.reporting.names import NamedMethod, named, swept
from xmcbench.reporting.paper_rows import Claim
from xmcbench.reporting.text_table import Value, format_value, short_number
from xmcbench.suite.tables import COLUMNS
from xmcbench.trial.facts import is_lower, worth
from xmcbench.trial.record import METRIC_VERSION, Record, Status

Item = TypeVar("Item")
Key = TypeVar("Key")
Source = Literal["published", "measured", "imported"]


@dataclass(frozen=True)
class View:
    """What to show of a leaderboard; None and empty: everything, or what suits a group."""

    dataset: str | None = None  # letter case does not matter
    source: Source | Literal["all"] = "all"
    track: Literal["supervised", "zero-shot"] | None = None
    budget: str | None = None  # a limit, as in `steps` or `steps=1000`
    method: str | None = None  # name, label or shell pattern; letter case does not matter
    metrics: Sequence[str] = ()
    columns: Sequence[str] = ()
    sort: str | None = None  # a metric, or a column by its name or heading
    group_by: str | None = None  # a column
    top: int | None = None  # rows of each group
    variants: bool = False  # every row on its own, in place of one row per result of papers or per accepted method
    whole: bool = False  # every measured row on its own; those of papers stay folded
    paper: bool = False  # the columns of a table in a paper, unless columns are chosen


class Uneven(StrEnum):
    """How a row was trained otherwise than others in its table."""

    ALL_QUERIES = "all_queries"  # it held no training queries out, others did
    LAST_WEIGHTS = "last_weights"  # it held queries out, and chose no checkpoint by them, others did
    NOT_TUNED = "not_tuned"  # its settings are those of the suite, those of others were tuned
    WHOLE_SAMPLES = "whole_samples"  # a sample of its tuning was a whole training, of others a part
    SINGLE_WORDS = "single_words"  # its terms are single words, others read words in their order or parts of words


MARGIN = 1.0  # points within which a result that was trained again has to be


class Reproduced(StrEnum):
    """What came of training an accepted result again."""

    VERIFIED = "verified"  # fresh seeds are within the margin of it
    RETRAINED = "retrained"  # a training with its own seed is
    NOT = "not reproduced"  # these are not shown to be


@dataclass(frozen=True)
class Row:
    """A result; metrics are fractions.

    Measured: one method with one configuration under one budget, averaged over the seeds that ended alike.
    Published: one result of a method, merged from all tables that print it, with the results folded into it.
    """

    source: Source
    method: str
    variant: str = ""  # distinguishes the row from other rows of the method
    kind: str = ""  # what predicts: "encoder", "classifier", "both"
    metrics: dict[str, float] = field(default_factory=dict)  # means over seeds
    rank: int | None = None  # None: shown, not ranked
    status: Status = Status.OK
    printed: dict[str, str] = field(default_factory=dict)  # published: metrics and costs in the paper's own digits
    misprints: dict[str, str] = field(default_factory=dict)  # metrics that the paper misprints, and how
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # 95 %, over test queries and seeds
    std: dict[str, float] = field(default_factory=dict)  # over seeds, n - 1; empty for one seed
    tied: frozenset[str] = frozenset()  # metrics in which it is not significantly different from the best of its group
    tested: frozenset[str] = frozenset()  # metrics in which its difference from the best of its group was tested
    against: dict[str, float] = field(default_factory=dict)  # measured minus published, same method and setting
    against_source: str = ""  # paper and table of the published row
    facts: dict[str, Value] = field(default_factory=dict)  # by the name of a column; absent: not known
    seeds: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()  # of its trials
    metric_version: int = 0  # measured: of the definitions
    lower_is_better: tuple[str, ...] = ()  # measured: evaluators whose lower values are better
    plugin: str = ""  # measured: the method plugin of its trials
    tuned: bool = False  # measured: a tuning chose its settings
    held_out: int = 0  # measured: training queries that it was not trained on, to evaluate it
    evaluations: int = 0  # measured: on these, along its training
    single_words: bool = False  # measured: its settings say that its terms are single words
    uneven: tuple[Uneven, ...] = ()  # measured: how it was trained otherwise than others in its table
    older: str = ""  # measured: why it is a result of older code; empty if it is not
    codes: int = 0  # measured: how many digests of an older form its trials have, if more than one
    redefined: tuple[str, ...] = ()  # measured: metrics that other rows have by other code of an evaluator
    below_popular: bool = False  # measured: trained, yet not better than the most frequent labels
    idle: tuple[str, ...] = ()  # measured: parts of the method that never ran
    few_steps: str = ""  # measured: that training has hardly begun
    alike: str = ""  # measured: that its encoder does not tell texts apart
    unanswered: str = ""  # measured: how much its teacher left unanswered
    wrong: str = ""  # measured: what most likely keeps it down, where it is below popular
    unlimited: bool = False  # measured: it, or its linear solver, spends nothing that its budget limits
    unbounded: bool = False  # measured: it is trained nevertheless, so that it may have cost more than others
    stated: bool = False  # measured: its metrics cannot be recomputed here, and no check of submissions did it
    accepted: bool = False  # measured: its trials are accepted submissions, none of them the user's
    reproduced: Reproduced | None = None  # measured: what came of training it again; None: nobody did
    claims: tuple[Claim, ...] = ()  # published: claims that this result is better than another one
    papers: tuple[str, ...] = ()  # published: keys of the papers that print it, the one that is cited first
    url: str = ""
    citation: str = ""
    problem: str = ""  # why there are no metrics
    disagreements: dict[str, str] = field(default_factory=dict)  # metrics that papers print differently: the values
    folded: tuple[Row, ...] = ()  # the variants that are not shown on their own

    @property
    def label(self) -> str:
        """Method and variant."""
        return f"{self.method} ({self.variant})" if self.variant else self.method

    def worth(self, metric: str) -> float:
        """How good its value of a metric is, so that more is better; below all others where it has none."""
        return worth(metric, self.metrics[metric], self.lower_is_better) if metric in self.metrics else -inf

    @property
    def defined_as_now(self) -> bool:
        """Whether its metrics are of the present definitions; `xmcbench rescore` computes others again."""
        return self.metric_version == METRIC_VERSION and not self.redefined

    @property
    def named(self) -> NamedMethod:
        """Its method by its name in papers."""
        return named(self.method, self.plugin)

    @property
    def called(self) -> str:
        """Its name in figures: that of papers, with what distinguishes it from other rows of the method."""
        name = self.named.call(self.method)
        return f"{name} ({self.variant})" if self.variant else name

    @property
    def family(self) -> int:
        """The number of its method's family, which is that of its colour."""
        return self.named.colour

    @property
    def recommended(self) -> bool:
        """Whether it has its method's recommended settings, and no other values of a sweep."""
        return self.named.place(self.method) is not None and not swept(self.method)

    @property
    def preference(self) -> tuple[float, bool, int, str]:
        """Sorts the rows of a method: first the recommended settings, of these the tuned ones, then the most seeds.

        Metrics play no part: the best of many rows would be too good.
        """
        position = self.named.place(self.method) if self.recommended else None
        return inf if position is None else position, not self.tuned, -len(self.keys), self.label

    @property
    def folded_claims(self) -> tuple[Claim, ...]:
        """The claims about the rows folded into this one, without this row's own claims."""
        claims = dict.fromkeys(claim for row in self.folded for claim in row.claims)
        return tuple(claim for claim in claims if claim not in self.claims)


@dataclass(frozen=True)
class Group:
    """Rows that are comparable, best first, and the columns to show them in."""

    source: Source
    dataset: str
    track: str
    protocol: str  # how evaluation differs from the dataset's test split; empty: it does not
    rows: tuple[Row, ...]
    metrics: tuple[str, ...] = ()  # columns of metrics, and
    columns: tuple[str, ...] = ()  # columns of facts after them
    sort: str = ""  # the metric ranks are by
    dataset_hash: str = ""  # measured: of the content
    budget: dict[str, float] = field(default_factory=dict)  # measured: limits by name
    by: dict[str, str] = field(default_factory=dict)  # column and value, where rows are grouped by one
    best: dict[str, tuple[float, ...]] = field(default_factory=dict)  # by metric: the two best ranked values
    left_out: int = 0  # rows below the best that were asked for

    @property
    def lower_is_better(self) -> frozenset[str]:
        """Those metrics of its rows whose lower values are better."""
        return frozenset(name for row in self.rows for name in row.metrics if is_lower(name, row.lower_is_better))

    @property
    def every_metric(self) -> tuple[str, ...]:
        """All metrics that any of its rows has."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.metrics))

    @property
    def every_column(self) -> tuple[str, ...]:
        """All facts that any of its rows has."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.facts))


class About(StrEnum):
    """What a note is about."""

    READING = "reading"  # how to read tables: marks, columns, rules
    ROW = "row"  # what happened to a row of the user's
    ACCEPTED = "accepted"  # what happened to an accepted row
    DATA = "data"
    PAPERS = "papers"  # what papers misprint, or print differently
    CLAIM = "claim"  # a claim of a paper, and what was seen of it


@dataclass(frozen=True)
class Note:
    """A sentence below a leaderboard."""

    about: About
    text: str


@dataclass(frozen=True)
class Leaderboard:
    """A leaderboard, and how to read it."""

    groups: tuple[Group, ...]
    noted: tuple[Note, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The texts of its notes."""
        return tuple(note.text for note in self.noted)

    @property
    def keys(self) -> frozenset[str]:
        """The keys of the trials that its rows show."""
        return frozenset(key for group in self.groups for row in group.rows for key in row.keys)


def budget_text(budget: Mapping[str, float]) -> str:
    """A budget in words, ``1,000 steps, 20,000,000 encoder tokens``; operations are in short."""
    parts = (
        short_budget({name: limit}) if name == "flops" else f"{limit:,.10g} {_unit(name, limit)}"
        for name, limit in budget.items()
    )
    return ", ".join(parts) or "unknown"


def short_budget(budget: Mapping[str, float]) -> str:
    """A budget in few letters.

    >>> short_budget({"flops": 2.5e12, "epochs": 10})
    '2.5T operations, 10 epochs'
    """
    names = {"flops": "operations", "encoder_tokens": "tokens"}
    return ", ".join(
        f"{short_number(amount)} {_unit(names.get(name, name), amount)}" for name, amount in budget.items()
    )


def _unit(name: str, limit: float) -> str:
    """The unit of a limit, in the singular for 1.

    >>> _unit("device_seconds", 5), _unit("epochs", 1.0)
    ('device seconds', 'epoch')
    """
    words = name.replace("_", " ")
    return words.removesuffix("s") if limit == 1 else words


def column_name(word: str) -> str | None:
    """The column with this name or heading, or None.

    >>> column_name("batch"), column_name("GB"), column_name("hour")
    ('batch_size', 'memory_gb', None)
    """
    names = {column.heading.casefold(): name for name, column in COLUMNS.items()} | {name: name for name in COLUMNS}
    return names.get(word.casefold())


def cell(row: Row, name: str) -> str:
    """The text of a row's cell in the column of a metric or a fact; empty if the row has no value."""
    if name in row.printed:
        return row.printed[name]
    if name in row.metrics:
        return f"{100 * row.metrics[name]:.2f}"
    fact = row.kind if name == "kind" else row.facts.get(name)
    return "" if fact is None else format_value(fact, COLUMNS[name].kind)


def heading(name: str) -> str:
    """The heading of the column of a metric or a fact."""
    return COLUMNS[name].heading if name in COLUMNS else name


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by their keys, in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


CHART_COSTS = {
    "negative_pool": "negatives per query",  # as in PRIME, Figure 1: the labels that a query is scored against
    "encoder_tokens": "encoder tokens",
    "device_hours": "device hours",
    "flops": "floating-point operations",
    "batch_size": "batch size",
    "num_parameters": "parameters",
}
CURVE_COSTS = {
    "encoder_tokens": "encoder tokens",
    "flops": "floating-point operations",
    "steps": "optimiser steps",
    "device_seconds": "device seconds",
}  # what the points of a record's curve say of the budget


def costs(row: Row) -> dict[str, float]:
    """The known costs of a row, by name of `CHART_COSTS`; a cost of 0 is left out, since charts are logarithmic."""
    known = {name: row.facts[name] for name in CHART_COSTS if name in row.facts}
    seconds, hours, hardware = (row.facts.get(name) for name in ("device_seconds", "training_hours", "hardware"))
    if row.source == "measured":  # what the budget covers, of all workers
        known["device_hours"] = float(seconds or 0) * int(row.facts.get("workers", 1)) / 3600
    elif hours and hardware:  # of training, of all devices: three of "1 x A100 + 2 x V100 16 GB"
        known["device_hours"] = float(hours) * sum(map(int, re.findall(r"(?:^|\+ )(\d+) x ", str(hardware))))
    return {name: float(cost) for name, cost in known.items() if isinstance(cost, int | float) and cost > 0}


def share_spent(record: Record) -> float:
    """The share of its budget that a trial spent: of the limit of which the largest share is used up."""
    limits = record.trial.budget.spending().items()
    return max((float(record.spent.get(name, 0.0)) / limit for name, limit in limits), default=0.0)


def mean_curve(records: Sequence[Record]) -> dict[str, list[float]]:
    """Quality along the budget, mean over the seeds of a row: values by what was spent, in per cent by metric.

    `METRIC ±` is half the 95 % interval over seeds, where there are several. It ends where the first seed ended; empty
    where a seed has no curve.
    """
    points = list(zip(*(record.counted_curve for record in records), strict=False))
    columns: dict[str, list[float]] = {}
    for name in points[0][0] if points else ():
        if not all(name in at_seed for point in points for at_seed in point):
            continue
        values = [[at_seed[name] for at_seed in point] for point in points]
        if name in (*CURVE_COSTS, "fraction"):
            columns[name] = [float(f"{fmean(of_seeds):.4g}") for of_seeds in values]
        else:
            columns[name] = [round(100 * fmean(of_seeds), 2) for of_seeds in values]
            if len(records) > 1:
                columns[f"{name} ±"] = [round(100 * half_width(of_seeds), 2) for of_seeds in values]
    return columns


def half_width(values: Sequence[float]) -> float:
    """Half the 95 % interval of the mean of several `values`, Student's."""
    from xmcbench.evaluation.significance import Estimate  # scipy

    estimate = Estimate(0.0, 0.0, stdev(values) / sqrt(len(values)), len(values) - 1.0)
    return estimate.interval[1]
