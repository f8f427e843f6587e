"""Held-out training queries as judges: their targets, the metrics of predictions for them, and how sure these are.

Legend: N held-out queries, L labels, B resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xmcbench.data import TrainingData
from xmcbench.evaluation import check_predictions, drop_ignored, find_evaluators, find_hits, fit_fusion
from xmcbench.evaluation import score as score_hits
from xmcbench.evaluation.calibration import Calibration, fit_calibration
from xmcbench.evaluation.evaluator import lower_is_better, resampled_metrics
from xmcbench.evaluation.metrics import Hits, inverse_propensity, label_counts
from xmcbench.evaluation.significance import Sample
from xmcbench.trial.facts import worth
from xmcbench.trial.predictions import Predictions


class Judge:
    """Scores predictions for some training queries. It holds no test target."""

    def __init__(self, train: TrainingData, rows: np.ndarray, metrics: Sequence[str]) -> None:
        self.queries, self.metrics, self._card = train.rows(rows), list(metrics), train.card
        self._counts, self._evaluators = label_counts(train.targets), find_evaluators(self.metrics)
        self.lower_is_better = lower_is_better(self._evaluators)
        self.weights_L = inverse_propensity(train.targets, train.card.propensity_a, train.card.propensity_b)

    def hits(self, predictions: Predictions) -> Hits:
        """Which of the predicted labels are true. Raises InvalidPredictions for what is none."""
        check_predictions(predictions, *self.queries.targets.shape)
        valid = drop_ignored(predictions, self.queries.ignore, predictions.k)
        found = find_hits(valid, self.queries.targets, self.weights_L, self._counts, self._card)
        return replace(found, texts=self.queries.texts, label_texts=self.queries.label_texts)

    def scores(self, predictions: Predictions) -> dict[str, float]:
        """The metrics of predictions, by name."""
        return score_hits(self.hits(predictions), self.metrics, self._evaluators)

    def sample(self, predictions: Predictions, metric: str) -> Sample:
        """A metric of predictions with its replicates [1, B]: two samples of one judge are paired by query."""
        hits = self.hits(predictions)
        value = score_hits(hits, [metric], self._evaluators)[metric]
        replicates_B = resampled_metrics(hits, [metric], self._evaluators)[metric]
        return Sample((0,), np.array([value]), np.asarray(replicates_B, np.float64)[None])

    def calibration(self, predictions: Predictions) -> Calibration | None:
        """The probabilities of the scores of predictions; None where they cannot be fitted."""
        return fit_calibration(drop_ignored(predictions, self.queries.ignore, predictions.k), self.queries.targets)

    def fused(self, parts: Sequence[Predictions], metric: str) -> Predictions:
        """The weighted fusion of several predictions. Each half of the queries gets the weights of the other half."""
        even_N, k = np.arange(len(parts[0])) % 2 == 0, max(part.k for part in parts)
        indices, scores = np.empty((len(even_N), k), np.int32), np.empty((len(even_N), k), np.float32)
        for fitted_N in (even_N, ~even_N):
            fitted, asked = ([_rows(part, which_N) for part in parts] for which_N in (fitted_N, ~fitted_N))
            fusion = fit_fusion("weighted", fitted, self.queries.targets[fitted_N], self.weights_L, metric)
            answers = fusion.fuse(asked, k)
            indices[~fitted_N], scores[~fitted_N] = answers.indices, answers.scores
        return Predictions(indices, scores)


class Answers:
    """What a method answered about held-out queries: the best answers by a metric, and the last."""

    def __init__(self, metric: str) -> None:
        self._metric, self.asked = metric, 0
        self.lower_is_better: tuple[str, ...] = ()
        self._kept: list[tuple[float, Predictions]] = []

    def note(self, predictions: Predictions, metrics: dict[str, float]) -> None:
        """Keep an answer if it is the best so far, and for as long as it is the last."""
        self.asked += 1
        value = worth(self._metric, metrics[self._metric], self.lower_is_better)
        best = self._kept[:1] if self._kept and self._kept[0][0] >= value else [(value, predictions)]
        self._kept = [*best, (value, predictions)]

    def of(self, value: float) -> Predictions | None:
        """The answers of this worth: those of the chosen weights. None if they are not kept."""
        return next((predictions for own, predictions in self._kept if own == value), None)


def _rows(predictions: Predictions, which_N: np.ndarray) -> Predictions:
    return Predictions(predictions.indices[which_N], predictions.scores[which_N])
