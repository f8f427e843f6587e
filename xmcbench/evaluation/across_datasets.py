"""Methods on several datasets at once: mean rank, win rate, improvability, with intervals over datasets.

The intervals are percentiles over resamples of the datasets, drawn with replacement. They leave out the uncertainty
within a dataset, over its test queries and over seeds.

Legend: D datasets, M methods, B resamples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.bootstrap import RESAMPLES, interval


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


def across_datasets(metric_DM: np.ndarray) -> list[Overall]:
    """Compare M methods by a metric, as fractions of 1 where 1 is best, on D datasets.

    Raises XMCBenchError for fewer than two datasets or methods.
    """
    num_datasets, num_methods = metric_DM.shape
    if min(num_datasets, num_methods) < 2:
        raise XMCBenchError(f"found {num_datasets} datasets and {num_methods} methods, expected at least 2 of each")
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
