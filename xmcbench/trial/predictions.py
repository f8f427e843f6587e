"""Predictions: the top k labels of each query. Every metric is computed from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STORED = 100  # labels per test query in the store, after ignored pairs are removed


@dataclass(frozen=True)
class Predictions:
    """`indices` [N, k] int32 label ids and `scores` [N, k] float32, best first; short rows are padded with -1 and -inf.

    Among equal scores, the lower label id ranks first.
    """

    indices: np.ndarray
    scores: np.ndarray

    def __post_init__(self) -> None:
        if self.indices.ndim != 2 or self.indices.shape != self.scores.shape:
            raise ValueError(f"indices {self.indices.shape} and scores {self.scores.shape} must be equal [N, k]")

    @property
    def k(self) -> int:
        return int(self.indices.shape[1])

    def __len__(self) -> int:
        return int(self.indices.shape[0])


def found_by(found: Predictions, exact: Predictions) -> np.ma.MaskedArray:
    """[N, k] which labels of an exact search are among those that another one found; padding is masked.

    Its mean is the recall of the other search.
    """
    among_NK = (exact.indices[:, :, None] == found.indices[:, None, :]).any(axis=2)
    return np.ma.masked_array(among_NK, exact.indices < 0)
