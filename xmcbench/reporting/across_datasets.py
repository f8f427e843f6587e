"""The table of methods over several datasets, from measured records alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.across_datasets import Mean, across_datasets
from xmcbench.reporting.rows import budget_text
from xmcbench.reporting.text_table import TextTable
from xmcbench.trial.record import Record


def across_datasets_table(records: Sequence[Record], metric: str) -> TextTable:
    """Rank, wins and improvability of each label over the datasets of `records`; seeds are averaged.

    Raises XMCBenchError unless each label has trials of one configuration on every dataset, with the metric.
    """
    values = _values(records, metric)
    datasets = list(dict.fromkeys(dataset for _, dataset in values))
    labels = list(dict.fromkeys(label for label, _ in values))
    for label in labels:
        for dataset in datasets:
            if (label, dataset) not in values:
                raise XMCBenchError(f"{label} has no trial on {dataset}: expected each method on every dataset")
    metric_DM = np.array([[values[label, dataset] for label in labels] for dataset in datasets])
    ranked = sorted(zip(labels, across_datasets(metric_DM), strict=True), key=lambda pair: pair[1].mean_rank.value)
    rows = tuple(
        (label, _text(standing.mean_rank, 1), _text(standing.win_rate, 100), _text(standing.improvability, 100))
        for label, standing in ranked
    )
    notes = (
        f"{len(datasets)} datasets: {', '.join(datasets)}",
        "95 % intervals over resamples of the datasets. Win rate: share of the other methods that it is above, in per "
        "cent. Improvability: by how much of its error the best method's error is lower, in per cent.",
    )
    return TextTable(
        f"methods over {len(datasets)} datasets: {metric}",
        ("method", "mean rank", "win rate", "improvability"),
        rows,
        notes,
    )


def _values(records: Sequence[Record], metric: str) -> dict[tuple[str, str], float]:
    """The metric by label and dataset, averaged over seeds."""
    seeds: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
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
    return {place: fmean(record.metrics[metric] for record in alike.values()) for place, alike in seeds.items()}


def _text(mean: Mean, scale: float) -> str:
    low, high = mean.interval
    return f"{scale * mean.value:.2f} ({scale * low:.2f} to {scale * high:.2f})"
