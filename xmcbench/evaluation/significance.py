"""Replicates of metrics: their values on resamples of the test queries (`xmcbench/evaluation/bootstrap.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from xmcbench.evaluation.bootstrap import resample
from xmcbench.evaluation.evaluator import Evaluator, named_failure, parse_metric
from xmcbench.evaluation.metrics import Hits, MetricTerms


def resampled_metrics(hits: Hits, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]) -> dict[str, np.ndarray]:
    """The replicates of `metrics`, float32 [B] each. Metrics whose evaluator has no `terms` are left out."""
    return resample(metric_terms(hits, metrics, evaluators))


def metric_terms(hits: Hits, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]) -> dict[str, MetricTerms]:
    """The terms per query of `metrics`. Metrics whose evaluator has no `terms` are left out."""
    by_metric = {}
    for metric in metrics:
        evaluator, k = parse_metric(metric, evaluators)
        if (terms := getattr(evaluator, "terms", None)) is not None:
            with named_failure(metric):
                by_metric[metric] = terms(hits, k)
    return by_metric
