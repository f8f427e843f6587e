"""Two configurations over seeds: how their metrics differ, with what significance.

Of methods on several datasets: mean rank, win rate, improvability. Their intervals are percentiles over resamples of
the datasets, drawn with replacement. They leave out the uncertainty within a dataset, over its test queries and seeds.

Legend: D datasets, M methods, B resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.bootstrap import RESAMPLES, interval
from xmcbench.evaluation.significance import Estimate, Sample, difference, samples
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store


@dataclass(frozen=True)
class ComparedMetric:
    """A metric of two trials or configurations, as fractions; the difference is the first value minus the second."""

    name: str
    first: float  # mean over seeds
    second: float
    difference: Estimate


def compare_rows(first: Mapping[str, Sample], second: Mapping[str, Sample]) -> tuple[ComparedMetric, ...]:
    """Compare the metrics that two configurations share; needs neither predictions nor dataset."""
    return tuple(
        ComparedMetric(name, sample.mean, second[name].mean, difference(sample, second[name]))
        for name, sample in first.items()
        if name in second
    )


def stored_samples(store: Store, records: Sequence[Record], metrics: Sequence[str]) -> dict[str, Sample]:
    """By metric: what trials that differ in their seed alone come to. Metrics without replicates are left out."""
    known = samples(records, [store.resampled(record, metrics) for record in records])
    return {name: sample for name, sample in known.items() if name in metrics}


# Several datasets ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """A mean over datasets with its 95 % interval over resamples of the datasets."""

    value: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Overall:
    """How one method compares with the others over all datasets."""

    mean_rank: Mean  # 1 is best; ties share the mean of their ranks
    win_rate: Mean  # share of the other methods that it is above, a tie counting half
    improvability: Mean  # by what share of its error the best method's error is lower; 0 for the best (TabArena, 2025)


def across_datasets(metric_DM: np.ndarray, *, lower_is_better: bool = False) -> list[Overall]:
    """Compare M methods by a metric, as fractions of 1 where 1 is best, or 0 where lower is better, on D datasets.

    Raises XMCBenchError for fewer than two datasets or methods.
    """
    num_datasets, num_methods = metric_DM.shape
    if min(num_datasets, num_methods) < 2:
        raise XMCBenchError(f"found {num_datasets} datasets and {num_methods} methods, expected at least 2 of each")
    metric_DM = 1 - metric_DM if lower_is_better else metric_DM
    error_DM = 1 - metric_DM
    best_D1 = error_DM.min(axis=1, keepdims=True)
    parts = (
        rankdata(-metric_DM, axis=1),
        (num_methods - rankdata(-metric_DM, axis=1)) / (num_methods - 1),
        np.divide(error_DM - best_D1, error_DM, out=np.zeros_like(error_DM), where=error_DM > 0),
    )
    drawn_BD = np.random.default_rng(num_datasets).integers(num_datasets, size=(RESAMPLES, num_datasets))
    means = [_means(each_DM, drawn_BD) for each_DM in parts]
    return [Overall(*(mean[i] for mean in means)) for i in range(num_methods)]


def _means(values_DM: np.ndarray, drawn_BD: np.ndarray) -> list[Mean]:
    resampled_BM = values_DM[drawn_BD].mean(axis=1)
    return [
        Mean(float(values_D.mean()), interval(resampled_B))
        for values_D, resampled_B in zip(values_DM.T, resampled_BM.T, strict=True)
    ]
