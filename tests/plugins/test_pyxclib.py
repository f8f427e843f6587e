"""pyxclib's metrics beside those of xmcbench, where it is installed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from xmcbench.evaluation import DEFAULT_METRICS, find_evaluators, find_hits, score
from xmcbench.evaluation.evaluator import repeated_metrics
from xmcbench.evaluation.ranking import rank

pytest.importorskip("xclib", reason="its README tells how pyxclib is installed from its repository")


@pytest.mark.parametrize("predicted", [100, 3])
def test_every_metric_agrees(predicted: int) -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 9, (60, 120)).astype(np.float32)  # with ties
    order = np.tile(np.arange(120, dtype=np.int32), (60, 1))
    labels = np.where(rng.random(order.shape) < predicted / 120, order, -1)  # short rows
    truth = sp.csr_array((rng.random((60, 120)) < 0.04).astype(np.float32))  # some rows are empty
    hits = find_hits(rank(labels, np.where(labels < 0, -np.inf, scores), 100), truth, 1 + rng.random(120) * 9)
    repeated = repeated_metrics(DEFAULT_METRICS)
    assert len(repeated) == len(DEFAULT_METRICS)
    names = [*DEFAULT_METRICS, *repeated]
    score(hits, names, find_evaluators(names))  # a difference is an error
