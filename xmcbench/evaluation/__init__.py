"""Metrics from predictions and truth. Only numpy and scipy are needed, and nothing here knows a method."""

from xmcbench.evaluation.breakdown import LabelBins, decile_bins, label_bins, similarity_bins
from xmcbench.evaluation.entry_check import InvalidPredictions, check_metrics, check_predictions, drop_ignored
from xmcbench.evaluation.evaluator import (
    DEFAULT_METRICS,
    ZERO_SHOT_METRICS,
    Evaluator,
    dataset_hits,
    find_evaluators,
    parse_metric,
    score,
)
from xmcbench.evaluation.metrics import Hits, MetricTerms, find_hits
from xmcbench.evaluation.propensity import inverse_propensity
from xmcbench.evaluation.ranking import rank
from xmcbench.evaluation.significance import resampled_metrics
from xmcbench.evaluation.truth import truth_hash
from xmcbench.trial.record import METRIC_VERSION

__all__ = [
    "DEFAULT_METRICS",
    "METRIC_VERSION",
    "ZERO_SHOT_METRICS",
    "Evaluator",
    "Hits",
    "InvalidPredictions",
    "LabelBins",
    "MetricTerms",
    "check_metrics",
    "check_predictions",
    "dataset_hits",
    "decile_bins",
    "drop_ignored",
    "find_evaluators",
    "find_hits",
    "inverse_propensity",
    "label_bins",
    "parse_metric",
    "rank",
    "resampled_metrics",
    "score",
    "similarity_bins",
    "truth_hash",
]
