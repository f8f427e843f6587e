"""Asks a fitted method for its predictions on the test split."""

from __future__ import annotations

import numpy as np
import scipy

from xmcbench.data.dataset import Texts
from xmcbench.evaluation import InvalidPredictions, check_predictions, drop_ignored
from xmcbench.runs.repeated_predictions import Sample
from xmcbench.trial.method import Method
from xmcbench.trial.predictions import STORED, Predictions
from xmcbench.trial.run import derive_seed


def predict_test(method: Method, texts: Texts, ignore: scipy.sparse.csr_array) -> tuple[Predictions, Sample]:
    """The best labels of every test query, without the pairs in `ignore` [N, L], and a sample to be predicted again.

    Queries are shuffled first, so that their order tells the method nothing. Raises `InvalidPredictions`.
    """
    num_labels = ignore.shape[1]
    order = np.random.default_rng(derive_seed(0, "test order")).permutation(len(texts))
    most_ignored = int(np.diff(ignore.indptr).max(initial=0))
    k = min(num_labels, STORED + most_ignored)
    shuffled = method.predict([texts[int(i)] for i in order], k)
    if not isinstance(shuffled, Predictions):
        raise InvalidPredictions(f"predict returned {type(shuffled).__name__}, expected xmcbench.Predictions")
    if shuffled.indices.shape != (len(order), k):
        raise InvalidPredictions(
            f"predictions are of shape {shuffled.indices.shape}, expected (queries, k) = {(len(order), k)}"
        )
    back = np.argsort(order)
    predictions = Predictions(shuffled.indices[back], shuffled.scores[back])
    check_predictions(predictions, *ignore.shape)
    return drop_ignored(predictions, ignore, min(STORED, num_labels)), Sample.draw(texts, predictions)
