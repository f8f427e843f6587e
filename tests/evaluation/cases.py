"""Small predictions and truths for hypothesis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from xmcbench.evaluation import rank
from xmcbench.trial.predictions import Predictions


@dataclass(frozen=True)
class Case:
    """Scores of some labels for each query (a dictionary a row), true labels, and a weight a label."""

    scores: list[dict[int, float]]
    true: list[set[int]]
    weights: list[float]

    @property
    def num_labels(self) -> int:
        return len(self.weights)

    @property
    def truth(self) -> sp.csr_array:
        return pairs(self.true, self.num_labels)

    @property
    def ranked(self) -> list[list[int]]:
        """Labels by score descending, then label ascending."""
        return [sorted(row, key=lambda label: (-row[label], label)) for row in self.scores]

    @property
    def predictions(self) -> Predictions:
        indices = np.full((len(self.scores), self.num_labels), -1)
        scores = np.zeros(indices.shape)
        for row, known in enumerate(self.scores):
            indices[row, : len(known)] = list(known)
            scores[row, : len(known)] = list(known.values())
        return rank(indices, scores, self.num_labels)


def pairs(rows: list[set[int]], num_labels: int) -> sp.csr_array:
    """The rows of label sets as a binary matrix."""
    dense = np.zeros((len(rows), num_labels), dtype=np.float32)
    for row, labels in enumerate(rows):
        dense[row, sorted(labels)] = 1.0
    return sp.csr_array(dense)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_labels = draw(st.integers(1, 8))
    num_queries = draw(st.integers(1, 6))
    label = st.integers(0, num_labels - 1)
    tying = st.integers(-2, 2).map(float)  # few values, so scores tie often
    return Case(
        draw(st.lists(st.dictionaries(label, tying), min_size=num_queries, max_size=num_queries)),
        draw(st.lists(st.sets(label), min_size=num_queries, max_size=num_queries)),
        draw(st.lists(st.floats(1.0, 50.0), min_size=num_labels, max_size=num_labels)),
    )
