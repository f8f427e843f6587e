"""The overview of the page: the best result of each method on each dataset, measured and published apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xmcbench.reporting.rows import Group, Row, cell

METHODS = 60  # of an overview, the best ones


@dataclass(frozen=True)
class OverviewCell:
    """The best result of a method on a dataset."""

    text: str  # the metric as printed, or with two decimals
    kind: str  # of the result: encoder, classifier, both
    share: int  # per cent of the best ranked result of the dataset, for a bar
    best: bool  # of the ranked results


@dataclass(frozen=True)
class Overview:
    """Methods by datasets; the methods that are best most often come first."""

    source: str
    datasets: tuple[str, ...]
    metrics: tuple[str, ...]  # of each dataset: what its results are compared by
    rows: tuple[tuple[str, tuple[OverviewCell | None, ...]], ...]
    left_out: int = 0  # methods below the ones shown


def overviews(groups: Sequence[Group]) -> list[Overview]:
    """An overview for each source and track that has rows; groups with a protocol of their own are left out."""
    keys = dict.fromkeys((g.source, g.track) for g in sorted(groups, key=lambda g: (g.source, g.track)))
    return [_overview([g for g in groups if (g.source, g.track) == key and not g.protocol], *key) for key in keys]


def _overview(groups: Sequence[Group], source: str, track: str) -> Overview:
    metrics = {group.dataset: group.sort for group in groups}
    datasets = sorted(metrics, key=lambda name: (-_count(groups, name), name))
    best: dict[str, dict[str, Row]] = {}
    for group in groups:
        for row in group.rows:
            if group.sort not in row.metrics or (row.rank is None and "split" not in row.facts):
                continue
            own = best.setdefault(row.method, {})
            if group.dataset not in own or row.metrics[group.sort] > own[group.dataset].metrics[group.sort]:
                own[group.dataset] = row
    top = {
        name: max(
            (own[name].metrics[metrics[name]] for own in best.values() if name in own and own[name].rank), default=0.0
        )
        for name in datasets
    }
    rows = [
        (method, tuple(_cell(own[name], metrics[name], top[name]) if name in own else None for name in datasets))
        for method, own in best.items()
    ]
    rows.sort(key=lambda row: (-sum(c.best for c in row[1] if c), -sum(c.share for c in row[1] if c), row[0]))
    name = source if track == "supervised" else f"{source}, {track}"
    return Overview(
        name,
        tuple(datasets),
        tuple(metrics[dataset] for dataset in datasets),
        tuple(rows[:METHODS]),
        max(0, len(rows) - METHODS),
    )


def _count(groups: Sequence[Group], dataset: str) -> int:
    return sum(len(group.rows) for group in groups if group.dataset == dataset)


def _cell(row: Row, metric: str, top: float) -> OverviewCell:
    value = row.metrics[metric]
    share = min(100, round(100 * value / top)) if top else 0
    return OverviewCell(cell(row, metric), row.kind, share, bool(row.rank) and value == top)
