"""The figures of predictions on resamples of the test queries (`xmcbench/evaluation/bootstrap.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from xmcbench.evaluation.bootstrap import resample
from xmcbench.evaluation.evaluator import Evaluator, parse_metric
from xmcbench.evaluation.metrics import Hits, Terms


def resampled_figures(hits: Hits, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]) -> dict[str, np.ndarray]:
    """The figures `metrics` of predictions by their hits, on every resample of their queries: float32 [B] each.

    Those whose evaluator does not say what a query adds are left out.
    """
    return resample(figure_terms(hits, metrics, evaluators))


def figure_terms(hits: Hits, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]) -> dict[str, Terms]:
    """What each query adds to `metrics`; those whose evaluator does not say are left out."""
    found = {}
    for metric in metrics:
        evaluator, k = parse_metric(metric, evaluators)
        if (terms := getattr(evaluator, "terms", None)) is not None:
            found[metric] = terms(hits, k)
    return found
