"""The figures of predictions on resamples of the test queries (`xmcbench/bootstrap.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from xmcbench.bootstrap import resample
from xmcbench.data.dataset import Dataset
from xmcbench.evaluation.evaluator import Evaluator, dataset_hits, parse_metric
from xmcbench.evaluation.metrics import Hits, Terms
from xmcbench.predictions import Predictions


def resampled_figures(
    predictions: Predictions, dataset: Dataset, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]
) -> dict[str, np.ndarray]:
    """The figures `metrics` of checked `predictions` on every resample of the dataset's test queries, float32 [B] each.

    Those whose evaluator does not say what a query adds are left out.
    """
    return resample(figure_terms(dataset_hits(predictions, dataset), metrics, evaluators))


def figure_terms(hits: Hits, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]) -> dict[str, Terms]:
    """What each query adds to `metrics`; those whose evaluator does not say are left out."""
    found = {}
    for metric in metrics:
        evaluator, k = parse_metric(metric, evaluators)
        if (terms := getattr(evaluator, "terms", None)) is not None:
            found[metric] = terms(hits, k)
    return found
