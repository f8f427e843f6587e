"""The top k labels of each query: what a method hands over and what every figure is computed from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STORED = 100  # labels of each test query that are kept, after ignored pairs are dropped


@dataclass(frozen=True)
class Predictions:
    """`indices` [N, k] int32 label ids and `scores` [N, k] float32, best first; -1 and -inf pad a short row.

    Ties rank by lower label id.
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
