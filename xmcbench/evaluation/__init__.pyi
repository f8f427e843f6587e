from .analysis import LabelBins, decile_bins, label_bins, similarity_bins
from .evaluator import (
    DEFAULT_METRICS,
    ZERO_SHOT_METRICS,
    Evaluator,
    dataset_hits,
    find_evaluators,
    parse_metric,
    resampled_metrics,
    score,
    truth_hash,
)
from .fusion import MAX_PARTS, Fusion, fit_fusion, restore_fusion
from .metrics import Hits, MetricTerms, find_hits, inverse_propensity
from .prediction_files import read_predictions
from .ranking import InvalidPredictions, check_metrics, check_predictions, drop_ignored, rank, rank_sparse

__all__ = [
    "DEFAULT_METRICS",
    "MAX_PARTS",
    "ZERO_SHOT_METRICS",
    "Evaluator",
    "Fusion",
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
    "fit_fusion",
    "inverse_propensity",
    "label_bins",
    "parse_metric",
    "rank",
    "rank_sparse",
    "read_predictions",
    "resampled_metrics",
    "restore_fusion",
    "score",
    "similarity_bins",
    "truth_hash",
]
