"""Searches to solve, and their solution by a sort of every score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import strategies as st
from torch import Tensor

from xmcbench.trial.predictions import Predictions


@dataclass
class Case:
    queries_ND: Tensor
    labels_LD: Tensor
    k: int
    exclude: sp.csr_array

    def solution(self) -> Predictions:
        """Per row: score descending, then label ascending; excluded pairs never, -1 and -inf for what is missing."""
        scores_NL = (self.queries_ND.double() @ self.labels_LD.double().T).numpy()
        scores_NL[self.exclude.toarray() != 0] = -np.inf
        order_NL = np.lexsort((np.broadcast_to(np.arange(scores_NL.shape[1]), scores_NL.shape), -scores_NL))
        indices_NK = order_NL[:, : self.k]
        best_NK = np.take_along_axis(scores_NL, indices_NK, axis=1)
        return Predictions(np.where(best_NK == -np.inf, -1, indices_NK), best_NK)


@st.composite
def tied(draw: st.DrawFn) -> Case:
    """Vectors of small integers: products are exact, and tie often. The last drawn `most` makes them all tie."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    num_queries, num_labels, dimension = draw(st.integers(1, 20)), draw(st.integers(1, 200)), draw(st.integers(1, 3))
    most = draw(st.sampled_from([2, 1, 40, 0]))
    queries, labels = (rng.integers(-most, most + 1, (rows, dimension)) for rows in (num_queries, num_labels))
    excluded = rng.random((num_queries, num_labels)) < draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    k = draw(st.one_of(st.integers(1, num_labels), st.just(num_labels)))
    return Case(torch.from_numpy(queries).float(), torch.from_numpy(labels).float(), k, sp.csr_array(excluded))


def clustered(num_queries: int = 30, num_labels: int = 3_000, dimension: int = 48, k: int = 40) -> Case:
    """Unit vectors around 100 centres that lean to one side, as those of encoders do; a tenth of the labels twice."""
    generator = torch.Generator().manual_seed(4)
    centres = torch.randn(100, dimension, generator=generator) + 2.0 * torch.randn(dimension, generator=generator)

    def around(number: int) -> Tensor:
        centre = torch.randint(100, (number,), generator=generator)
        vectors = centres[centre] + 0.5 * torch.randn(number, dimension, generator=generator)
        return torch.nn.functional.normalize(vectors, dim=1)

    labels_LD = around(num_labels)
    labels_LD[-num_labels // 10 :] = labels_LD[: num_labels // 10]
    excluded = sp.random_array((num_queries, num_labels), density=0.01, rng=np.random.default_rng(5), format="csr")
    return Case(around(num_queries), labels_LD, k, excluded)


def assert_same(found: Predictions, expected: Predictions) -> None:
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert (found.indices.dtype, found.scores.dtype) == (np.int32, np.float32)
