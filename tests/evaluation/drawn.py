"""A dataset with drawn targets, and predictions of a given quality for it."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from xmcbench.data.dataset import Dataset, DatasetCard, Split
from xmcbench.evaluation import rank
from xmcbench.trial.predictions import Predictions


def made(num_queries: int = 120, num_labels: int = 30) -> Dataset:
    rng = np.random.default_rng(5)
    train, test = (sp.csr_array((rng.random((n, num_labels)) < 0.1).astype(np.float32)) for n in (400, num_queries))
    card = DatasetCard(
        name="made", num_train=400, num_test=num_queries, num_labels=num_labels, content_hash="c" * 64, head_at_least=41
    )
    nothing = sp.csr_array((num_queries, num_labels), dtype=np.float32)
    labels = [f"label {i}" for i in range(num_labels)]
    texts = [f"text {i}" for i in range(num_queries)]
    return Dataset(card, Split(texts * 4, train), Split(texts, test), labels, nothing, nothing)


def predicted(dataset: Dataset, quality: float, seed: int) -> Predictions:
    rng = np.random.default_rng(seed)
    shape = dataset.test.targets.shape
    scores = rng.random(shape) + quality * dataset.test.targets.toarray()
    return rank(np.tile(np.arange(shape[1]), (shape[0], 1)), scores, 20)
