"""Splits the training queries of a trial into those to train on and those held out to choose a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy

from xmcbench.data import DatasetCard, TrainingData
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import (
    Evaluator,
    check_predictions,
    drop_ignored,
    find_evaluators,
    find_hits,
    inverse_propensity,
    score,
)
from xmcbench.evaluation.metrics import label_counts
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.run import HeldOut, held_out_rows
from xmcbench.trial.trial import Selection

MOST_SCORES = 20  # times the evaluations that a suite asks for: a method may have reasons of its own for some more


@dataclass(frozen=True)
class HeldOutScorer:
    """Computes metrics of predictions for held-out training queries. It holds their targets and no test target."""

    truth: scipy.sparse.csr_array  # [N, L]
    ignore: scipy.sparse.csr_array  # [N, L]
    weights: np.ndarray  # [L] inverse propensities
    train_counts: np.ndarray  # [L]
    card: DatasetCard
    metrics: list[str]
    evaluators: Mapping[str, Evaluator]
    calls: list[None] = field(default_factory=list)

    def __call__(self, predictions: Predictions) -> dict[str, float]:
        self.calls.append(None)
        check_predictions(predictions, *self.truth.shape)
        valid = drop_ignored(predictions, self.ignore, predictions.k)
        hits = find_hits(valid, self.truth, self.weights, self.train_counts, self.card)
        return score(hits, self.metrics, self.evaluators)


def scorer_calls(held_out: HeldOut) -> int:
    """How often a method asked for metrics of the held-out queries."""
    return len(held_out.score.calls) if isinstance(held_out.score, HeldOutScorer) else 0


def hold_out(
    train: TrainingData, selection: Selection, seed: int, metrics: Sequence[str]
) -> tuple[HeldOut, TrainingData, np.ndarray]:
    """The held-out queries, the training data without them, and the rows of `train` that remain.

    Raises XMCBenchError if no training query would remain.
    """
    total, card = len(train.texts), train.card
    if selection.queries >= total:
        raise XMCBenchError(
            f"selection.queries is {selection.queries}, expected fewer than the {total} training queries of {card.name}"
        )
    held_out, remaining = held_out_rows(selection, seed, total)
    data, names = train.rows(held_out), list(dict.fromkeys([selection.metric, *metrics]))
    counts = label_counts(train.targets)
    weights = inverse_propensity(train.targets, card.propensity_a, card.propensity_b)
    scorer = HeldOutScorer(data.targets, data.ignore, weights, counts, card, names, find_evaluators(names))
    held = HeldOut(data.texts, scorer, selection.metric, selection.evaluations, selection.patience)
    return held, train.most_rows(remaining), remaining
