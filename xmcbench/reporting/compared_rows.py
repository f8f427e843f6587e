"""Measured rows beside others: the difference from the published row of their setting, ties with the best of a group.

Every trial stores its metrics on the same resamples of the test queries, so neither predictions nor the dataset are
needed. The rule is that of `xmcbench/evaluation/significance.py`. S seeds, B resamples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.reporting.rows import Row, grouped
from xmcbench.reporting.text_table import folded
from xmcbench.trial.record import Record

if TYPE_CHECKING:
    import numpy as np

    from xmcbench.evaluation.significance import Sample

# Two settings are the same where both rows state these facts and agree, and no other stated fact differs.
MUST_AGREE = ("encoder", "batch_size")
MAY_NOT_DIFFER = ("negatives", "loss", "dimension")


def with_difference(row: Row, near: Iterable[PublishedRow]) -> Row:
    """The measured row with its difference from the published row of the same method and setting, if there is one.

    `near` are the rows of its dataset and track. Of several it is the one that agrees in most facts, then the one with
    the shortest variant.
    """
    by_method = grouped(near, lambda other: folded(other.method))
    same = by_method.get(folded(row.method)) or by_method.get(folded(row.plugin), [])
    match = min(same, key=lambda other: (-_agreements(row, other), len(other.variant)), default=None)
    if match is None or not _agreements(row, match):
        return row
    against = {name: row.metrics[name] - value for name, value in match.metrics.items() if name in row.metrics}
    return replace(row, against=against, against_source=match.source)


def _agreements(row: Row, other: PublishedRow) -> int:
    """The number of facts on which both rows agree; 0 where the settings are not the same."""
    facts = {name: (row.facts.get(name), getattr(other, name)) for name in (*MUST_AGREE, *MAY_NOT_DIFFER)}
    stated = {name: [folded(str(fact)) for fact in pair] for name, pair in facts.items() if None not in pair}
    if not {*MUST_AGREE} <= stated.keys():
        return 0
    short, long = sorted(stated.pop("encoder"), key=len)  # distilbert-base, DistilBERT and distilbert-base-uncased
    alike = [len({fact.removesuffix("labels") for fact in pair}) == 1 for pair in stated.values()]
    return 1 + len(alike) if long.startswith(short) and all(alike) else 0


# (key of a trial, names of metrics) -> the stored replicates [B] of each metric; empty where none are stored
Resampled = Callable[[str, Sequence[str]], Mapping[str, "np.ndarray"]]


def with_uncertainty(
    rows: Sequence[Row], metrics: Sequence[str], records: Mapping[str, Record], resampled: Resampled
) -> list[Row]:
    """The `rows` of a group, with intervals of means over seeds and the `metrics` in which each ties with the best.

    Rows without rank, and rows of which a trial has no replicates, are not compared. Nor are rows with fewer replicates
    than others: an installed xmcbench has those of accepted trials in fewer numbers. `records` are by key.
    """
    ranked = [row for row in rows if row.rank is not None]
    if len(ranked) < 2 and not any(row.std for row in ranked):
        return list(rows)
    from xmcbench.evaluation.significance import estimate, samples, tied_with_best

    of_row: dict[tuple[str, ...], Mapping[str, Sample]] = {
        row.keys: samples([records[key] for key in row.keys], [resampled(key, metrics) for key in row.keys])
        for row in ranked
    }
    tied: dict[tuple[str, ...], set[str]] = defaultdict(set)
    tested: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for metric in metrics:
        known = {keys: of_metric[metric] for keys, of_metric in of_row.items() if metric in of_metric}
        most = max((sample.replicates_SB.shape[1] for sample in known.values()), default=0)
        compared = [keys for keys, sample in known.items() if sample.replicates_SB.shape[1] == most]
        if len(compared) > 1:
            lower = any(record.is_lower(metric) for record in records.values())
            marks = tied_with_best([known[keys] for keys in compared], lower_is_better=lower)
            for keys, same in zip(compared, marks, strict=True):
                tied[keys] |= {metric} if same else set()
                tested[keys].add(metric)
    marked = []
    for row in rows:
        over_seeds = of_row.get(row.keys, {}) if row.std else {}
        intervals = {metric: estimate(sample).interval for metric, sample in over_seeds.items()}
        row = replace(row, tied=frozenset(tied[row.keys]), tested=frozenset(tested[row.keys]))
        marked.append(replace(row, intervals=row.intervals | intervals))
    return marked
