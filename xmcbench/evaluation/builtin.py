"""The evaluators that come with the harness, registered through the hook that plugins use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xmcbench.evaluation import label_metrics, metrics, seen_labels
from xmcbench.evaluation.evaluator import Evaluator
from xmcbench.evaluation.metrics import Hits, MetricTerms
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.trial.record import METRIC_VERSION


@dataclass(frozen=True)
class RatioMetric:
    """An `Evaluator` whose metric is a ratio of two sums over queries or labels, given by the function `terms`."""

    name: str
    summary: str
    terms: Callable[[Hits, int], MetricTerms]
    version: int = METRIC_VERSION

    def compute(self, hits: Hits, k: int) -> float:
        return self.terms(hits, k).value


EVALUATORS: tuple[RatioMetric, ...] = (
    RatioMetric("P", "share of the k predictions that are true", metrics.precision),
    RatioMetric("nDCG", "discounted gain over that of the best ranking", metrics.ndcg),
    RatioMetric(
        "PSP", "P weighted by inverse propensity, over the best attainable", metrics.propensity_scored_precision
    ),
    RatioMetric(
        "PSnDCG", "nDCG weighted by inverse propensity, over the best attainable", metrics.propensity_scored_ndcg
    ),
    RatioMetric("R", "share of a query's true labels among the k predictions", metrics.recall),
    RatioMetric("F1", "harmonic mean of a query's precision and recall, mean over queries", metrics.f1),
)

LABEL_EVALUATORS: tuple[RatioMetric, ...] = (
    RatioMetric("macro-P", "precision of a label's predictions, mean over labels", label_metrics.macro_precision),
    RatioMetric(
        "macro-F1", "harmonic mean of a label's precision and recall, mean over labels", label_metrics.macro_f1
    ),
    RatioMetric("coverage", "share of labels that are predicted rightly at least once", label_metrics.coverage),
)

SEEN_EVALUATORS: tuple[RatioMetric, ...] = (
    RatioMetric("R-seen", "R of labels with a training query, over queries that have one", seen_labels.recall_of_seen),
    RatioMetric("R-unseen", "R of labels without a training query, likewise", seen_labels.recall_of_unseen),
)


@hookimpl
def register_evaluators(register: Callable[[Evaluator], None]) -> None:
    """Register the metrics that are means over queries, those that are means over labels, and those of some labels."""
    for evaluator in (*EVALUATORS, *LABEL_EVALUATORS, *SEEN_EVALUATORS):
        register(evaluator)


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as an evaluator."""
    if not callable(getattr(thing, "compute", None)):
        raise TypeError(f"{thing!r} is not an Evaluator of xmcbench.evaluation: it does not define compute")
