"""Predictions of other types than are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from xmcbench.evaluation import InvalidPredictions
from xmcbench.runs.predicting import predict_test
from xmcbench.trial.predictions import Predictions


class Answers:
    """Answers every query with the same labels and scores."""

    def __init__(self, labels: list[int], scores: list[float]) -> None:
        self.labels, self.scores = labels, scores

    def predict(self, texts: list[str], k: int) -> Predictions:
        indices = np.tile(np.array(self.labels[:k], np.int64), (len(texts), 1))
        return Predictions(indices, np.tile(np.array(self.scores[:k], np.float64), (len(texts), 1)))


def predicted(labels: list[int], scores: list[float]) -> Predictions:
    method: Any = Answers(labels, scores)
    return predict_test(method, ["a", "b"], sp.csr_array((2, 3)))[0]


def test_wider_types_are_cast() -> None:
    found = predicted([2, 0, 1], [3.0, 2.0, 1.0])
    assert (found.indices.dtype, found.scores.dtype) == (np.int32, np.float32)
    assert found.indices.tolist() == [[2, 0, 1]] * 2


def test_what_is_stored_is_what_is_checked() -> None:
    """Scores that differ in float64 alone tie where they are stored, and then rank by label."""
    near = [1.0 + 1e-12, 1.0, 0.0]
    assert predicted([0, 2, 1], near).indices.tolist() == [[0, 2, 1]] * 2
    with pytest.raises(InvalidPredictions, match="equal scores not ranked by ascending label"):
        predicted([2, 0, 1], near)
    with pytest.raises(InvalidPredictions, match="a label outside"):
        predicted([2**40, 0, 1], [3.0, 2.0, 1.0])
