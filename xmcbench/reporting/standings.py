"""Records to ranked rows. Only rows of one dataset and one budget are ever ranked together."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from textwrap import shorten
from typing import Any

from xmcbench.errors import UnknownNameError
from xmcbench.record import METRIC_VERSION, Record, Status

USUAL_METRICS = ("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@100")
SCORED = (Status.OK, Status.OVER_BUDGET)  # only these have figures


@dataclass(frozen=True)
class Row:
    """One method with one configuration under one budget: the seeds that ended alike, averaged."""

    rank: int | None  # None: shown, not ranked
    method: str  # its label, and the settings that tell it from other rows of that label
    status: Status
    metrics: dict[str, float]  # fractions, mean over seeds
    std: dict[str, float]  # over seeds, n - 1; empty for one seed
    seeds: tuple[int, ...]
    spent: dict[str, float]  # means over seeds; of peak_bytes the largest
    num_parameters: int
    metric_version: int
    selection_split: str
    suite: str
    keys: tuple[str, ...]
    problem: str  # why there are no figures

    def figure(self, metric: str) -> float:
        """The figure to sort by: below every other where there is none."""
        return self.metrics.get(metric, -1.0)


@dataclass(frozen=True)
class Group:
    """Rows that are comparable, best first."""

    dataset: str
    dataset_hash: str
    budget: dict[str, float]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """A leaderboard: `metrics` are its columns, `notes` say how to read it."""

    metrics: tuple[str, ...]
    sort: str
    groups: tuple[Group, ...]
    notes: tuple[str, ...]


def leaderboard(
    records: Iterable[Record],
    dataset: str | None = None,
    metrics: Sequence[str] | None = None,
    sort: str | None = None,
) -> Table:
    """Rank `records` by `sort` (default P@1), datasets and budgets apart.

    Raises `UnknownNameError` for a dataset or a metric that no record has.
    """
    records = list(records)
    if dataset is not None:
        names = {record.trial.dataset for record in records}
        if dataset not in names:
            raise UnknownNameError("dataset", dataset, names, "in these records")
        records = [record for record in records if record.trial.dataset == dataset]
    shown, sort = _columns(recorded_metrics(records), metrics, sort)
    comparable: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        trial = record.trial
        comparable[_canonical([trial.dataset, trial.dataset_hash, sorted(trial.budget.limits().items())])].append(
            record
        )
    groups = tuple(_group(comparable[where], (*shown, sort), sort) for where in sorted(comparable))
    return Table(shown, sort, groups, _notes([row for group in groups for row in group.rows], sort))


def recorded_metrics(records: Iterable[Record]) -> tuple[str, ...]:
    """All metrics that any record has, in the order they were first recorded."""
    return tuple(dict.fromkeys(name for record in records if record.status in SCORED for name in record.metrics))


def _columns(known: Sequence[str], metrics: Sequence[str] | None, sort: str | None) -> tuple[tuple[str, ...], str]:
    """The metrics to show and the one to sort by, out of the known ones."""
    for name in (*(metrics or ()), *([sort] if sort else ())):
        if name not in known:
            raise UnknownNameError("metric", name, known, "in these records")
    usual = [name for name in USUAL_METRICS if name in known] or known[: len(USUAL_METRICS)] or USUAL_METRICS[:1]
    shown = tuple(dict.fromkeys(metrics or usual))
    return shown, sort or ("P@1" if "P@1" in known else shown[0])


def _group(records: list[Record], metrics: Sequence[str], sort: str) -> Group:
    seeds: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        alike = record.trial.model_dump(mode="json", exclude={"seed"})
        seeds[_canonical([alike, record.status, record.metric_version])].append(record)
    labels = _labels([group[0] for group in seeds.values()])
    rows = [_row(group, label, metrics) for group, label in zip(seeds.values(), labels, strict=True)]
    trial = records[0].trial
    return Group(trial.dataset, trial.dataset_hash, trial.budget.limits(), tuple(_ranked(rows, sort)))


def _row(records: list[Record], label: str, metrics: Sequence[str]) -> Row:
    """Average records that differ in their seed alone."""
    records = sorted(records, key=lambda record: record.trial.seed)
    first = records[0]
    figures = {name: [r.metrics[name] for r in records if name in r.metrics] for name in dict.fromkeys(metrics)}
    complete = {name: values for name, values in figures.items() if len(values) == len(records)}
    if first.status not in SCORED:
        complete = {}
    failure = first.failure
    return Row(
        rank=None,
        method=label,
        status=first.status,
        metrics={name: fmean(values) for name, values in complete.items()},
        std={name: stdev(values) for name, values in complete.items() if len(values) > 1},
        seeds=tuple(record.trial.seed for record in records),
        spent=_spent(records),
        num_parameters=first.num_parameters,
        metric_version=first.metric_version,
        selection_split=first.selection_split,
        suite=first.suite,
        keys=tuple(record.key for record in records),
        problem=" ".join(f"{failure.type}: {failure.message}".split()) if failure else "",
    )


def _spent(records: list[Record]) -> dict[str, float]:
    ledgers = [
        {**record.spent, "train_seconds": record.spent.get("stage_seconds", {}).get("train")} for record in records
    ]
    spent = {}
    for name in ("encoder_tokens", "steps", "train_seconds", "device_seconds", "peak_bytes"):
        values = [float(ledger[name]) for ledger in ledgers if ledger.get(name) is not None]
        if values:
            spent[name] = max(values) if name == "peak_bytes" else fmean(values)
    return spent


def _labels(records: list[Record]) -> list[str]:
    """The label of each record; where several share one, with the settings they differ in."""
    sharing = Counter(record.trial.label for record in records)
    labels = []
    for record in records:
        label = record.trial.label
        if sharing[label] > 1:
            others = [_settings(other) for other in records if other.trial.label == label]
            own = _settings(record)
            names = sorted({name for other in others for name in other})
            differing = [name for name in names if len({other.get(name) for other in others}) > 1]
            if differing:
                label += f" ({', '.join(f'{name}={own.get(name)}' for name in differing)})"
        labels.append(" ".join(label.split()))
    return labels


def _settings(record: Record) -> dict[str, str]:
    """All that makes this record's trial another than its neighbours', flat, as text."""
    trial = record.trial
    settings = _flat("", trial.config)
    settings |= {"method": trial.method, "distribution": trial.distribution, "version": trial.version}
    return settings | _flat("selection.", trial.selection.model_dump() if trial.selection else {})


def _flat(prefix: str, tree: dict[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in tree.items():
        flat |= _flat(f"{prefix}{name}.", value) if isinstance(value, dict) else {f"{prefix}{name}": str(value)}
    return flat


def _ranked(rows: list[Row], sort: str) -> list[Row]:
    """Ranked rows first, best first; then rows with figures that do not compete; then those without figures."""
    rows = sorted(rows, key=lambda row: (-row.figure(sort), row.status, row.method))
    competing = [row for row in rows if _competes(row, sort)]
    better = {row.figure(sort): place for place, row in reversed(list(enumerate(competing, start=1)))}
    ranked = [replace(row, rank=better[row.figure(sort)]) for row in competing]
    return ranked + [row for row in rows if not _competes(row, sort)]


def _competes(row: Row, sort: str) -> bool:
    return row.status == Status.OK and row.metric_version == METRIC_VERSION and sort in row.metrics


def _notes(rows: list[Row], sort: str) -> tuple[str, ...]:
    if not rows:
        return ()
    notes = [
        f"Figures in per cent, means over seeds; ± is the standard deviation (n - 1) of {sort}. "
        f"Ranked by {sort} within a dataset and a budget.",
        "Equal figures share a rank. Labels with equal scores rank by label id.",
    ]
    splits = Counter(row.selection_split for row in rows if row.status in SCORED)
    if splits:
        notes.append(f"Checkpoints chosen on: {'; '.join(f'{name} ({n} rows)' for name, n in sorted(splits.items()))}.")
    if any(row.status == Status.OVER_BUDGET for row in rows):
        notes.append("over_budget: spent more than one step past the budget; not ranked.")
    if old := {row.metric_version for row in rows if row.metrics} - {METRIC_VERSION}:
        versions = ", ".join(map(str, sorted(old)))
        notes.append(
            f"Rows scored by other metric definitions (version {versions}, now {METRIC_VERSION}) are not ranked: "
            "`xmcbench rescore` brings them up to date."
        )
    notes += [f"{row.method}: {row.status}: {shorten(row.problem, 160)}" for row in rows if row.problem]
    return tuple(dict.fromkeys(notes))


def budget_text(budget: dict[str, float]) -> str:
    """A budget in words, ``1,000 steps, 20,000,000 encoder tokens``."""
    return ", ".join(f"{limit:,.10g} {name.replace('_', ' ')}" for name, limit in budget.items())


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True)
