"""R-seen and R-unseen against a loop, and against R."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import find_evaluators, find_hits, rank, score

LABELS = 9
NAMES = ("R-seen", "R-unseen", "R")


@given(seed=st.integers(0, 10_000), k=st.integers(1, LABELS))
def test_recall_of_a_group_is_that_of_a_loop(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.random((6, LABELS)) < 0.3
    counts = rng.integers(0, 3, LABELS).astype(float)
    ranked = rank(np.tile(np.arange(LABELS), (6, 1)), rng.random((6, LABELS)), LABELS)
    hits = find_hits(ranked, scipy.sparse.csr_array(truth.astype(np.float32)), np.ones(LABELS), counts)
    metrics = [f"{name}@{k}" for name in NAMES]
    found = score(hits, metrics, find_evaluators(metrics))
    for name, group in (("R-seen", counts > 0), ("R-unseen", counts == 0), ("R", counts >= 0)):
        shares = []
        for query in range(6):
            own = set(np.flatnonzero(truth[query] & group).tolist())
            if own:
                shares.append(len(own & set(ranked.indices[query, :k].tolist())) / len(own))
            elif name == "R":
                shares.append(0.0)
        assert found[f"{name}@{k}"] == pytest.approx(sum(shares) / len(shares) if shares else 0.0)


def test_without_a_dataset_it_says_what_it_needs() -> None:
    ranked = rank(np.array([[0, 1]]), np.array([[1.0, 0.5]]), 2)
    hits = find_hits(ranked, scipy.sparse.csr_array(np.eye(1, 2, dtype=np.float32)), np.ones(2))
    with pytest.raises(XMCBenchError, match="need the training queries of a dataset"):
        score(hits, ["R-seen@1"], find_evaluators(["R-seen@1"]))
