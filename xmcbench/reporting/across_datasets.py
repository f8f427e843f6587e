"""The table of methods over several datasets, from measured records alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import fmean

import numpy as np

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.comparison import Mean, across_datasets
from xmcbench.evaluation.significance import difference, samples, significant_together
from xmcbench.reporting.rows import budget_text
from xmcbench.reporting.text_table import TextTable
from xmcbench.trial.record import Record

# (record, names of metrics) -> each metric on resamples of the test queries, [B]; empty where none are stored
Resampled = Callable[[Record, Sequence[str]], Mapping[str, np.ndarray]]
Place = tuple[str, str]  # label and dataset


def across_datasets_table(records: Sequence[Record], metric: str, resampled: Resampled) -> TextTable:
    """Rank, wins and improvability of each label over the datasets of `records`; seeds are averaged.

    Raises XMCBenchError unless each label has trials of one configuration on every dataset, with the metric.
    """
    trials = _trials(records, metric)
    values = {place: fmean(record.metrics[metric] for record in own) for place, own in trials.items()}
    datasets = list(dict.fromkeys(dataset for _, dataset in values))
    labels = list(dict.fromkeys(label for label, _ in values))
    for label in labels:
        for dataset in datasets:
            if (label, dataset) not in values:
                raise XMCBenchError(f"{label} has no trial on {dataset}: expected each method on every dataset")
    metric_DM = np.array([[values[label, dataset] for label in labels] for dataset in datasets])
    ranked = sorted(zip(labels, across_datasets(metric_DM), strict=True), key=lambda pair: pair[1].mean_rank.value)
    decided = _decided(trials, metric, resampled)
    rows = tuple(
        (
            label,
            _text(standing.mean_rank, 1),
            _text(standing.win_rate, 100),
            f"{sum(label == better for better, _ in decided)}, {sum(label == worse for _, worse in decided)}",
            _text(standing.improvability, 100),
        )
        for label, standing in ranked
    )
    notes = (
        f"{len(datasets)} datasets: {', '.join(datasets)}",
        "95 % intervals over resamples of the datasets. Win rate: share of the other methods that it is above, in per "
        "cent. Improvability: by how much of its error the best method's error is lower, in per cent.",
        f"Above, below: comparisons (of {len(labels) - 1} other methods on {len(datasets)} datasets) in which it is "
        "significantly better and worse, over test queries and seeds, Holm over all pairs.",
    )
    return TextTable(
        f"methods over {len(datasets)} datasets: {metric}",
        ("method", "mean rank", "win rate", "above, below", "improvability"),
        rows,
        notes,
    )


def _trials(records: Sequence[Record], metric: str) -> dict[Place, list[Record]]:
    """The records by label and dataset, one for each seed; all have the metric."""
    seeds: dict[Place, dict[int, Record]] = defaultdict(dict)
    for record in records:
        trial = record.trial
        if metric not in record.metrics:
            raise XMCBenchError(f"{trial.dataset}/{trial.label} ({record.key}) has no {metric}")
        alike = seeds[trial.label, trial.dataset]
        if trial.seed in alike:
            budgets = ", ".join(budget_text(r.trial.budget.limits()) for r in (alike[trial.seed], record))
            raise XMCBenchError(
                f"{trial.dataset}/{trial.label} is several configurations of seed {trial.seed} ({budgets}): "
                "name the trials by their keys"
            )
        alike[trial.seed] = record
    return {place: [alike[seed] for seed in sorted(alike)] for place, alike in seeds.items()}


def _decided(trials: Mapping[Place, Sequence[Record]], metric: str, resampled: Resampled) -> list[tuple[str, str]]:
    """The better and the worse label of each pair on one dataset that differs significantly."""
    stored = {place: samples(own, [resampled(record, [metric]) for record in own]) for place, own in trials.items()}
    known = [(*place, own[metric]) for place, own in stored.items() if metric in own]
    pairs = [(first, second) for first, second in combinations(known, 2) if first[1] == second[1]]
    found = [difference(first[2], second[2]) for first, second in pairs]
    return [
        (first[0], second[0]) if own.value > 0 else (second[0], first[0])
        for (first, second), own, significant in zip(pairs, found, significant_together(found), strict=True)
        if significant
    ]


def _text(mean: Mean, scale: float) -> str:
    low, high = mean.interval
    return f"{scale * mean.value:.2f} ({scale * low:.2f} to {scale * high:.2f})"
